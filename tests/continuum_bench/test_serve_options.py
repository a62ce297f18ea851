"""What ``continuum-bench serve`` refuses before vLLM is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from continuum_bench.cli import app
from typer.testing import CliRunner

runner = CliRunner()


class StartedError(Exception):
    """A server would have been started."""


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*arguments: Any, **options: Any) -> None:
        raise StartedError

    monkeypatch.setattr("continuum_server.launcher.subprocess.Popen", start)


@pytest.mark.parametrize("engine", ["emulated", "cpu"])
@pytest.mark.parametrize(
    ("option", "given", "allowed"),
    [
        ("--pins-yield-to", "moon", "there are policy, never, waiting, later, anyone"),
        ("--max-ttl-s", "-1.0", "must be a number of seconds, 0 or more and finite"),
        ("--max-ttl-s", "nan", "must be a number of seconds, 0 or more and finite"),
        ("--max-ttl-s", "inf", "must be a number of seconds, 0 or more and finite"),
        ("--max-pinned-share", "-0.1", "must be a number from 0 to 1"),
        ("--max-pinned-share", "1.5", "must be a number from 0 to 1"),
        ("--max-pins-per-client", "-2", "must be a whole number, 0 or more; none: no limit"),
        ("--gpu-memory-utilization", "1.5", "must be above 0, at most 1"),
        ("--step-overhead-ms", "-1", "must not be negative or infinite"),
        ("--drain-s", "-1", "must be at least 0"),
        ("--max-num-seqs", "0", "must be at least 1"),
        ("--kv-blocks", "1", "must be at least 2"),
        ("--replicas", "0", "must be at least 1"),
    ],
)
def test_a_value_out_of_range_is_one_line(option: str, given: str, allowed: str, engine: str) -> None:
    done = runner.invoke(app, ["serve", "--engine", engine, "--port", "0", option, given])
    assert done.exit_code == 2
    assert done.stderr == f"error: {option} {given}: {allowed}\n"
    assert done.stdout == ""


def test_guards_at_their_limits_reach_the_server(tmp_path: Path) -> None:
    limits = ["--max-ttl-s", "0", "--max-pinned-share", "1", "--max-pins-per-client", "0", "--pins-yield-to", "never"]
    done = runner.invoke(app, ["serve", "--port", "0", "--log", str(tmp_path / "log"), *limits])
    assert isinstance(done.exception, StartedError)


def test_settings_past_the_options_are_refused() -> None:
    settings = '{"continuum": {"guards": {"pins_yield_to": "moon"}}}'
    done = runner.invoke(app, ["serve", "--port", "0", "--additional-config", settings])
    assert done.exit_code == 2
    assert done.stderr.startswith("error: --additional-config: the server's settings go there; ")
    assert len(done.stderr.splitlines()) == 1
