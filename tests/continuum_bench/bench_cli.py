"""``continuum-bench`` in this process, as a user types it, and a small trace to play."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from click.testing import Result
from continuum_bench.cli import app
from continuum_bench.errors import OptionError
from continuum_bench.options.declare import Declared
from continuum_traces.programs.jsonl import write_programs
from continuum_traces.schema import Program, ToolCall, Turn
from typer.testing import CliRunner

runner = CliRunner()


def bench(command: str, *arguments: object) -> Result:
    """Spaces separate the words of ``command``; each further argument is one word."""
    return runner.invoke(app, [*command.split(" "), *map(str, arguments)])


def succeeded(command: str, *arguments: object) -> Result:
    done = bench(command, *arguments)
    assert done.exit_code == 0, repr(done.exception) + done.output
    return done


def refused(command: str, *arguments: object) -> str:
    """The one line of a command that must fail as a user's mistake."""
    done = bench(command, *arguments)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.output
    return done.stderr.removeprefix("error: ")


def allowed(option: Declared, value: Any) -> bool:
    """Whether an option takes this value."""
    try:
        option.check(value)
    except OptionError:
        return False
    return True


def small_trace(path: Path) -> Path:
    """Six programs of three turns, which together need more than a pool of 1,200 blocks."""
    call = (ToolCall("ls", 0.5),)
    turns = (Turn(3000, 60, tool_calls=call), Turn(800, 40, tool_calls=call), Turn(10, 5))
    write_programs(path, [Program(f"p{i}", turns) for i in range(6)])
    return path
