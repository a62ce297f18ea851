"""Options that mean something only beside another one, or not beside another one.

The rule stands beside the option's type (``Needs("hints")``), or in its class as ``rules``, for every option that the
class itself declares. Only what a user wrote is checked: a sweep's grid may combine what it likes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, TypeVar, cast

from continuum_bench.options.declare import OptionError, extras_of, hints_of, owner_of, spelling

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Needs:
    """The option is refused unless the option ``other`` is given."""

    other: str
    """The field's name."""
    value: str | None = None
    """The value that the other one must have; None: any but its default."""

    def fault(self, other: Option) -> str | None:
        if other.given if self.value is None else other.value == self.value:
            return None
        return f"needs {other.spelling}{'' if self.value is None else f' {self.value}'}"


@dataclass(frozen=True, slots=True)
class Without:
    """The option is refused if the option ``other`` is given."""

    other: str
    """The field's name."""
    why: str
    values: Callable[[Any], bool] = lambda value: True
    """The values of the other one with which the option does nothing."""

    def fault(self, other: Option) -> str | None:
        if not (other.given and self.values(other.value)):
            return None
        return f"not with {other.spelling}: {self.why}"


Rule = Needs | Without


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a command and the value that it has."""

    spelling: str
    value: Any
    default: Any
    rules: tuple[Rule, ...]

    @property
    def given(self) -> bool:
        return self.value != self.default and self.value not in ([], ())


def option(name: str, hint: Any, value: Any, default: Any, of_class: tuple[Rule, ...] = ()) -> Option:
    own = (extra for extra in extras_of(hint) if isinstance(extra, Rule))
    return Option(spelling(name, hint), value, default, (*own, *of_class))


def options_of(group: Any) -> dict[str, Option]:
    """The options of a dataclass, by the field's name."""
    kind: Any = type(group)
    hints = hints_of(kind)
    return {
        each.name: option(
            each.name,
            hints[each.name],
            getattr(group, each.name),
            None if each.default is MISSING else each.default,
            vars(owner_of(kind, each.name)).get("rules", ()),
        )
        for each in fields(kind)
    }


def faults(options: Mapping[str, Option]) -> Iterator[tuple[str, str]]:
    """Each option that is given although it does nothing, by the field's name, and why."""
    for name, each in options.items():
        for rule in each.rules if each.given else ():
            fault = rule.fault(options[rule.other]) if rule.other in options else None
            if fault is not None:
                yield name, fault


def settled(group: T) -> T:
    """The same options; those that do nothing beside the others have their defaults."""
    options = options_of(group)
    defaults = {name: options[name].default for name, _ in faults(options)}
    return cast(T, replace(cast(Any, group), **defaults))


def check_together(options: Mapping[str, Option]) -> None:
    """Raises:
    OptionError: an option that does nothing beside the others.
    """
    for name, fault in faults(options):
        raise OptionError(f"{options[name].spelling}: {fault}")
