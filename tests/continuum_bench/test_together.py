"""Rules between options: each can be broken, and a sweep's own servers break none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any, get_type_hints

import typer
from continuum_bench.cli import app
from continuum_bench.options.declare import declared
from continuum_bench.options.run import RunOptions
from continuum_bench.options.together import Rule, rules_of, settled


def test_a_sweeps_server_gets_no_option_that_does_nothing() -> None:
    """A grid may combine hints [none, tool_s] with errors [0, 1]."""
    crossed = RunOptions(hint_error="1", jps=3.0, arrivals="concurrency:2")
    assert settled(crossed) == RunOptions(arrivals="concurrency:2")
    assert settled(RunOptions(hints="tool_s", hint_error="1")).hint_error == "1"


def test_rules_name_options_that_exist() -> None:
    """A rule about an option that no command has beside it would never be broken."""
    beside: dict[tuple[str, Rule], bool] = {}

    def visit(command: Any) -> None:
        for inner in getattr(command, "commands", {}).values():
            visit(inner)
        names = {each.name for each in command.params}
        for kind in get_type_hints(getattr(command.callback, "__wrapped__", visit), include_extras=True).values():
            for name, rule in _rules(kind):
                beside[name, rule] = beside.get((name, rule), False) or rule.other in names

    visit(typer.main.get_command(app))
    assert len(beside) > 20
    assert [each for each, found in beside.items() if not found] == []


def _rules(kind: Any) -> Iterator[tuple[str, Rule]]:
    for option in declared(kind).values() if is_dataclass(kind) else ():
        yield from ((option.name, rule) for rule in rules_of(option))
