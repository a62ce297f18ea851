"""How an option is declared: as a field of a dataclass that derives from ``Options``.

The field gives the option's type, its limits and its default. Its sentence stands under ``Attributes:`` in the
docstring of the class, and is the text of ``--help``. A field without a sentence is no option of the command line.
Nothing here knows the command line's library, so the code behind a command takes the options as they are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from inspect import cleandoc
from math import inf, nan
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast, get_type_hints

from continuum_traces.names import which

from continuum_bench.errors import OptionError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Limit:
    """A condition on the value of an option. It is part of the annotation of the option's type.

    ``None`` is always allowed. A list is allowed if each of its items is.
    """

    holds: Callable[[Any], bool]
    words: str
    """The end of the error message ``--jobs 0: must be at least 1``."""
    names: tuple[str, ...] = ()
    """The allowed values, if the option takes one of several names. The message then suggests similar names."""

    def message(self, value: Any) -> str:
        return which(value, self.names) if self.names else self.words


def at_least(least: float) -> Limit:
    return Limit(lambda value: value >= least, f"must be at least {least}")


def at_most(most: float) -> Limit:
    return Limit(lambda value: value <= most, f"must be at most {most:,}")


def one_of(*names: str) -> Limit:
    return Limit(lambda value: value in names, "", names)


ABOVE_ZERO = Limit(lambda value: value > 0, "must be above 0")
NOT_NEGATIVE = Limit(lambda value: value >= 0, "must not be negative")
SHARE = Limit(lambda value: 0 < value <= 1, "must be above 0, at most 1")
FINITE = Limit(lambda value: 0 <= value < inf, "must not be negative or infinite")


def _can_be_written(file: Path) -> bool:
    """Return whether a file can be created or replaced at this path, as far as its permissions say."""
    writable = file if file.exists() else file.parent
    return not file.is_dir() and (file.exists() or writable.is_dir()) and os.access(writable, os.W_OK)


WRITABLE = Limit(_can_be_written, "cannot write there; name a file in a folder that exists and that you may write to")
"""For files that a command writes at its end: a wrong path is reported before the work begins."""


FOLDER = Limit(Path.is_dir, "no such folder")
"""For folders that a command reads at its end."""


MOST = 10**12
"""Largest absolute value of a numeric option. With larger numbers, computations overflow or never end."""
SANE = Limit(lambda value: abs(value) <= MOST, f"must be a number of at most {MOST:,}")
OR_INFINITE = Limit(lambda value: value == inf or SANE.holds(value), SANE.words)
"""For options with which infinity means that there is no limit."""


MOST_S = 1e8
"""Longest time of a run in seconds (three years). Beyond it, a clock of floats cannot distinguish two steps."""


def number_in(text: str) -> float:
    """Return the number in a text; NaN, which is within no limits, if the text is no number."""
    try:
        return float(text)
    except ValueError:
        return nan


@dataclass(frozen=True, slots=True)
class Option:
    """What the command line shows of a field, where the field itself does not say it. Part of the annotation."""

    help: str = ""
    """The sentence of a type that several classes share; other fields have theirs in the docstring of the class."""
    names: tuple[str, ...] = ()
    panel: str | None = None
    argument: bool = False
    """An argument of the command, without a name of its own."""


def named(*names: str) -> Option:
    return Option(names=names)


ARGUMENT = Option(argument=True)


@dataclass(frozen=True, slots=True)
class Declared:
    """The declaration of one option."""

    name: str
    """Name of the field."""
    hint: Any
    """The field's type. If it is ``Annotated``, its metadata are limits, rules and an ``Option``."""
    default: Any
    """``dataclasses.MISSING`` if the user must give a value."""
    owner: type
    """The class that declares the field: the options' class or one of its bases."""

    @property
    def extras(self) -> tuple[Any, ...]:
        """The metadata of the annotation."""
        return tuple(getattr(self.hint, "__metadata__", ()))

    @property
    def plain_type(self) -> Any:
        """The type without its metadata."""
        return self.hint.__origin__ if self.extras else self.hint

    @property
    def shown(self) -> Option:
        """What the annotation says about the command line."""
        return next((extra for extra in self.extras if isinstance(extra, Option)), Option())

    @property
    def help(self) -> str:
        """The option's sentence; empty if the field is no option of the command line."""
        return _sentences(self.owner.__doc__ or "").get(self.name, self.shown.help)

    @property
    def spelling(self) -> str:
        """The name on the command line (``--time-limit``), or in ``--help`` for an argument (``GRID``)."""
        if self.shown.argument:
            return self.name.upper()
        long = (name for name in self.shown.names if name.startswith("--"))
        return next(long, f"--{self.name.replace('_', '-')}").partition("/")[0]

    def is_given(self, value: Any) -> bool:
        """Return whether this value differs from the default."""
        return value != self.default and value not in ([], ())

    def check(self, value: Any) -> None:
        """Check a value against the limits in the annotation.

        Raises:
            OptionError: the value violates a limit.
        """
        limits = [extra for extra in self.extras if isinstance(extra, Limit)]
        for item in value if isinstance(value, list) else [value]:
            number = isinstance(item, int | float) and not isinstance(item, bool)
            for limit in [*limits, SANE] if number and OR_INFINITE not in limits else limits:
                if item is not None and not limit.holds(item):
                    shown = f"{item:g}" if isinstance(item, float) else item
                    raise OptionError(f"{self.spelling} {shown}: {limit.message(item)}")


class Options:
    """Base of all dataclasses of options. Constructing one checks every value against its limits.

    Raises:
        OptionError: a value violates a limit.
    """

    panel: ClassVar[str | None] = None
    """Panel of ``--help`` for the options that this class itself declares, not for those of a subclass."""
    usual: ClassVar[tuple[str, ...]] = ()
    """Fields that ``--help`` shows, if it does not show all: the others are for ``--help-all``."""
    rules: ClassVar[tuple[Any, ...]] = ()
    """Rules (``options.together``) for each option that this class itself declares."""

    def __post_init__(self) -> None:
        for name, option in declared(type(self)).items():
            option.check(getattr(self, name))
        self.expand()

    def expand(self) -> None:
        """Write what a short option says into the option that it is short for."""

    def shared_with(self, kind: type) -> dict[str, Any]:
        """Return the values of the options that have the name of a field of this dataclass."""
        names = (each.name for each in fields(cast(Any, kind)))
        return {name: getattr(self, name) for name in names if name in declared(type(self))}


def is_set(value: Any) -> bool:
    """Return whether a value has to be written out: None and False do not, 0 does."""
    return value is not None and value is not False


def declared(options: type) -> Mapping[str, Declared]:
    """Return the options that a dataclass and its bases declare, by field name."""
    return _declared(cast(Any, options))  # mypy does not know that a class is hashable


@cache
def _declared(options: type) -> Mapping[str, Declared]:
    hints = get_type_hints(options, include_extras=True)
    return {
        field.name: Declared(field.name, hints[field.name], field.default, _owner(options, field.name))
        for field in fields(cast(Any, options))
    }


def _owner(options: type, field: str) -> type:
    return next(base for base in options.__mro__ if field in vars(base).get("__annotations__", ()))


@cache
def _sentences(docstring: str) -> Mapping[str, str]:
    """Return the entries of the section ``Attributes:``, by name."""
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", cleandoc(docstring).partition("Attributes:\n")[2], re.M)
    return {name: " ".join(text.split()) for name, text in entries}
