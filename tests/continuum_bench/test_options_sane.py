"""No number that a user can type ends in a traceback: every numeric option of every command refuses absurd ones."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import is_dataclass
from math import inf, nan
from typing import Any, get_args, get_type_hints

import pytest
from continuum_bench.agents_cli import agent_app
from continuum_bench.cli import app, step_times_app, traces_app
from continuum_bench.errors import BenchError, OptionError
from continuum_bench.options.declare import Options, declared
from continuum_bench.options.run import ArrivalOptions, RunOptions, TraceOptions
from continuum_bench.options.sweep import FigureOptions
from continuum_bench.user_errors import USER_ERRORS
from continuum_bench.virtual.engine_options import engine_of
from continuum_bench.workload.workload import load_workload
from typer.testing import CliRunner

ABSURD = (1e23, -1e23, 10**23, inf, -inf, nan)
TYPED = ("1e23", "-1e23", "9" * 23, "9" * 5000, "inf", "nan", "1e400", "one", "")


def commands() -> Iterator[tuple[str, Any]]:
    """Every parameter of every command, before dataclasses of options are taken apart."""
    for group in (app, agent_app, traces_app, step_times_app):
        for command in group.registered_commands:
            function: Any = inspect.unwrap(command.callback)  # type: ignore[arg-type]
            yield from ((str(command.name), hint) for hint in get_type_hints(function, include_extras=True).values())


def numbers_in(hint: Any) -> set[type]:
    kinds = {hint} & {int, float}
    return kinds.union(*map(numbers_in, get_args(hint))) if get_args(hint) else kinds


def test_every_number_of_every_command_is_a_checked_option() -> None:
    """A number is a field of ``Options``, whose constructor holds all of them to the same limits."""
    numeric = set()
    for command, hint in commands():
        if is_dataclass(hint):
            assert issubclass(hint, Options), command  # type: ignore[arg-type]
            assert hint.__post_init__ is Options.__post_init__, command
            told = {option.name for option in declared(hint).values() if option.help}
            assert set(declared(hint)) - told <= {"environment", "config"}, f"{command}: no sentence under Attributes:"
            numeric |= {option.name for option in declared(hint).values() if numbers_in(option.hint)}
        elif hint is not int:  # the exit code
            assert not numbers_in(hint), command
    assert len(numeric) > 30


@pytest.mark.parametrize("number", ABSURD)
def test_absurd_numbers_are_one_sentence(number: float) -> None:
    for option in (declared(RunOptions)["jps"], declared(FigureOptions)["limits"]):
        with pytest.raises(OptionError, match=rf"^{option.spelling} .*must be") as caught:
            option.check([1.0, number] if option.name == "limits" else number)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("number", TYPED)
def test_on_the_command_line(number: str) -> None:
    done = CliRunner().invoke(app, ["swebench", "--jps", number])
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
    assert isinstance(done.exception, SystemExit)


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
