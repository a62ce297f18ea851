"""Rules for options that require, or exclude, another option.

A rule is part of the annotation of an option's type (``Needs("hints")``). A class of options can also have ``rules``,
which hold for every option that the class itself declares. The rules apply to command lines and experiment files. The
grid of a sweep may combine options freely; the commands for its servers leave out options that break a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from continuum_bench.errors import OptionError
from continuum_bench.options.declare import Declared, OptionGroup, declared

T = TypeVar("T", bound=OptionGroup)


@dataclass(frozen=True, slots=True)
class Needs:
    """The option is refused unless the option ``other`` is given."""

    other: str
    """Name of the other option's field."""
    value: str | None = None
    """The value that the other option must have; None: any value except its default."""

    def fault(self, other: Declared, value: Any) -> str | None:
        """Return the end of the error message, or None if the rule holds for this ``value`` of the other option."""
        if self.value is None:
            return None if other.is_given(value) else f"needs {other.spelling}"
        return None if value == self.value else f"needs {other.spelling} {self.value}"


@dataclass(frozen=True, slots=True)
class Without:
    """The option is refused if the option ``other`` is given."""

    other: str
    """Name of the other option's field."""
    why: str
    values: Callable[[Any], bool] = lambda value: True
    """Returns whether the rule applies to this value of the other option."""

    def fault(self, other: Declared, value: Any) -> str | None:
        """Return the end of the error message, or None if the rule holds for this ``value`` of the other option."""
        if other.is_given(value) and self.values(value):
            # ``--concurrency 4`` is ``--arrivals concurrency:4``: the value shows what was given
            return f"not with {other.spelling}{f' {value}' * isinstance(value, str)}: {self.why}"
        return None


Rule = Needs | Without


def rules_of(option: Declared) -> tuple[Rule, ...]:
    """Return the rules in the annotation, then those of the option's class."""
    rules = (extra for extra in option.extras if isinstance(extra, Rule))
    return (*rules, *vars(option.group).get("rules", ()))


def faults(*groups: OptionGroup) -> Iterator[tuple[Declared, str]]:
    """Yield each option that is given but breaks a rule, with the end of the error message."""
    options = {name: option for group in groups for name, option in declared(type(group)).items()}
    values = {name: getattr(group, name) for group in groups for name in declared(type(group))}
    for name, option in options.items():
        for rule in rules_of(option) if option.is_given(values[name]) else ():
            fault = rule.fault(options[rule.other], values[rule.other]) if rule.other in options else None
            if fault is not None:
                yield option, fault


def settled(group: T, *others: OptionGroup) -> T:
    """Return the options of ``group``, with the default for every one that breaks a rule among all."""
    options = declared(type(group))
    while refused := {option.name: option.default for option, _ in faults(group, *others) if option.name in options}:
        group = cast(T, replace(cast(Any, group), **refused))  # another may have needed it
    return group


def check_together(*groups: OptionGroup) -> None:
    """Check the rules between all options of a command.

    Raises:
        OptionError: an option breaks a rule.
    """
    for option, fault in faults(*groups):
        raise OptionError(f"{option.spelling}: {fault}")
