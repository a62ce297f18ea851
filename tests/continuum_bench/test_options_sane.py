"""No number that a user can type ends in a traceback: every numeric option of every command refuses absurd ones."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import is_dataclass
from math import inf, nan
from typing import Any, get_args, get_type_hints

import pytest
from continuum_bench.agents.cli import agent_app
from continuum_bench.cli import app, step_times_app, traces_app
from continuum_bench.errors import BenchError, OptionError
from continuum_bench.options.declare import Option, declared
from continuum_bench.options.run import ArrivalOptions, RunOptions, TraceOptions
from continuum_bench.user_errors import USER_ERRORS
from continuum_bench.virtual.engine_options import engine_of
from continuum_bench.workload.workload import load_workload
from typer.testing import CliRunner

ABSURD = (1e23, -1e23, 10**23, -(10**23), inf, -inf, nan)


def options() -> Iterator[tuple[str, Option]]:
    """Every option with the name of its command."""
    for commands in (app, agent_app, traces_app, step_times_app):
        for command in commands.registered_commands:
            function: Any = inspect.unwrap(command.callback)  # type: ignore[arg-type]
            for group in get_type_hints(function).values():
                for option in declared(group).values() if is_dataclass(group) else ():
                    yield str(command.name), option


def numbers_in(hint: Any) -> set[type]:
    kinds = {hint} & {int, float}
    return kinds.union(*map(numbers_in, get_args(hint))) if get_args(hint) else kinds


NUMERIC = [(command, option) for command, option in options() if numbers_in(option.hint)]


def test_the_table_is_not_empty() -> None:
    assert len({option.name for _, option in NUMERIC}) > 30
    assert {command for command, _ in NUMERIC} >= {"swebench", "serve", "profile", "synth", "figure"}


@pytest.mark.parametrize(("command", "option"), NUMERIC, ids=lambda value: getattr(value, "name", value))
def test_absurd_numbers_are_one_sentence(command: str, option: Option) -> None:
    for number in ABSURD:
        for value in (number, [1.0, number]) if "list" in str(option.hint) else (number,):
            with pytest.raises(OptionError) as caught:
                option.check(value)
            said = str(caught.value)
            assert said.startswith(f"{option.spelling} ")
            assert "must" in said or "from 0 to 2" in said
            assert "\n" not in said


SWEBENCH = [option.spelling for command, option in NUMERIC if command == "swebench" and option.name != "time_limit_s"]


@pytest.mark.parametrize("option", sorted(set(SWEBENCH)))
@pytest.mark.parametrize("number", ["1e23", "-1e23", "9" * 23, "9" * 5000, "inf", "nan", "1e400", "one", ""])
def test_on_the_command_line(option: str, number: str) -> None:
    done = CliRunner().invoke(app, ["swebench", option, number])
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)


@pytest.mark.parametrize(
    "given",
    [
        {"arrivals": "gamma:1e23"},
        {"arrivals": "gamma:1e-300"},
        {"arrivals": "ramp:1e23"},
        {"arrivals": "ramp:inf"},
        {"arrivals": "recorded:1e23"},
        {"arrivals": "concurrency:4:1e23"},
        {"jps": 1e-300},
        {"tool_times": "constant:1e23"},
        {"tool_times": "bimodal:0.5:1:1e23"},
        {"tool_times": "shift:1e300"},
        {"tool_times": "shift:1e8"},
        {"tool_times": "hang:0.5:1e23"},
        {"tool_times": "hang:nan"},
    ],
    ids=str,
)
def test_numbers_within_texts(given: dict[str, Any]) -> None:
    """A clock of floats would stand still, and the run would never end."""
    with pytest.raises(BenchError):
        load_workload("swebench", TraceOptions(num_programs=4), ArrivalOptions(**given))


@pytest.mark.parametrize(
    "given",
    [
        {"offload": "dram-99999999999999999999999"},
        {"kill_replica": "1e23@5", "replicas": 2},
        {"kill_replica": "0@nan", "replicas": 2},
        {"kill_replica": "0@1e23", "replicas": 2},
        {"tp": 10**12},
        {"gpu_memory_utilization": 1e-300},
        {"chunk_tokens": 1},
    ],
    ids=str,
)
def test_engines_that_cannot_be(given: dict[str, Any]) -> None:
    with pytest.raises(USER_ERRORS):
        engine_of(RunOptions(**given))
