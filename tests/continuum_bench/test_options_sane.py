"""No number that a user can type ends in a traceback: every numeric option of every command refuses absurd ones."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import is_dataclass
from math import inf, nan
from typing import Any, get_args

import pytest
from bench_cli import bench
from continuum_bench.agents_cli import agent_app
from continuum_bench.cli import app, step_times_app, traces_app
from continuum_bench.commands import hints_of
from continuum_bench.errors import OptionError
from continuum_bench.options.declare import (
    ABOVE_ZERO,
    FINITE,
    NOT_NEGATIVE,
    SHARE,
    WRITABLE,
    Limit,
    Options,
    at_least,
    at_most,
    declared,
)
from continuum_bench.options.run import RunOptions
from continuum_bench.options.sweep import FigureOptions

LIMITS = {
    "must be at least 1": "block_size chunk chunk_tokens data_parallel_size jobs limit limits max_model_len "
    "max_num_seqs num_programs pp processes repeats replicas seeds step_limit tool_limit_s tp turn_scale workers",
    "must be at least 2": "kv_blocks",
    "must be at least 0.1": "interval",
    "must be at most 9,999": "limit",
    "must be at least 0": "drain_s port",
    "must not be negative": "compact_at max_think_s retries seed shared_prefix",
    "must not be negative or infinite": "step_overhead_ms",
    "must be above 0": "first_token_s length_scale program_limit_s ready_timeout_s request_limit_s time_limit_s "
    "time_scale",
    "programs per second must be above 0": "jps",
    "must be above 0, at most 1": "gpu_memory_utilization",
    "from 0 to 2": "temperature",
    "must be at most 1,000": "data_parallel_size processes replicas turn_scale",
    "must be at most 10,000": "seeds",
    "must be at most 65,535": "port",
    "must be at most 100,000": "num_programs",
    "must be at most 10,000,000": "kv_blocks",
    "no such folder": "scheduler_records",
    WRITABLE.words: "junit out record_web target",
}
"""The options of all commands that have this limit."""
EDGES = [
    (at_least(1), 1, 0),
    (at_most(3.0), 3, 4),
    (ABOVE_ZERO, 1e-9, 0),
    (NOT_NEGATIVE, 0, -1),
    (SHARE, 1, 0),
    (SHARE, 0.1, 1.01),
    (FINITE, 0, -1),
    (FINITE, 1e300, inf),
]
"""Of a limit: the last value that it allows, and one beyond."""
ABSURD = (1e23, -1e23, 10**23, inf, -inf, nan)
TYPED = ("1e23", "-1e23", "9" * 23, "9" * 5000, "inf", "nan", "1e400", "one", "")


def commands() -> Iterator[tuple[str, Any]]:
    """Every parameter of every command, before dataclasses of options are taken apart."""
    for group in (app, agent_app, traces_app, step_times_app):
        for command in group.registered_commands:
            function: Any = inspect.unwrap(command.callback)  # type: ignore[arg-type]
            yield from ((str(command.name), hint) for hint in hints_of(function).values())


def numbers_in(hint: Any) -> set[type]:
    kinds = {hint} & {int, float}
    return kinds.union(*map(numbers_in, get_args(hint))) if get_args(hint) else kinds


def test_every_number_of_every_command_is_a_checked_option() -> None:
    """A number is a field of ``Options``, whose constructor holds all of them to the same limits."""
    for command, hint in commands():
        if is_dataclass(hint):
            assert issubclass(hint, Options), command  # type: ignore[arg-type]
            assert hint.__post_init__ is Options.__post_init__, command
            told = {option.name for option in declared(hint).values() if option.help}
            assert set(declared(hint)) - told <= {"environment", "config"}, f"{command}: no sentence under Attributes:"
        elif hint is not int:  # the exit code
            assert not numbers_in(hint), command


def test_every_option_has_the_limits_that_it_should() -> None:
    found: dict[str, set[str]] = {}
    for _, hint in commands():
        for option in declared(hint).values() if is_dataclass(hint) else ():
            for limit in option.extras:
                if isinstance(limit, Limit) and not limit.names:
                    found.setdefault(limit.words, set()).add(option.name)
    assert found == {words: set(options.split()) for words, options in LIMITS.items()}
    for limit, last, beyond in EDGES:
        assert (limit.holds(last), limit.holds(beyond)) == (True, False), limit.words


@pytest.mark.parametrize("number", ABSURD)
def test_absurd_numbers_are_one_sentence(number: float) -> None:
    for option in (declared(RunOptions)["jps"], declared(FigureOptions)["limits"]):
        with pytest.raises(OptionError, match=rf"^{option.spelling} .*must be") as caught:
            option.check([1.0, number] if option.name == "limits" else number)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("number", TYPED)
def test_on_the_command_line(number: str) -> None:
    done = bench("swebench --jps", number)
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
    assert isinstance(done.exception, SystemExit)
