"""``continuum-bench`` in this process, as a user types it."""

from __future__ import annotations

from click.testing import Result
from continuum_bench.cli import app
from typer.testing import CliRunner

runner = CliRunner()


def bench(*arguments: object) -> Result:
    return runner.invoke(app, [str(argument) for argument in arguments])
