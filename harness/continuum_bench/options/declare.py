"""How an option is declared: as a field of a dataclass that derives from ``OptionGroup``, with its sentence below it.

The field gives the option's type, its range (``Annotated[int, Meta(ge=1)]``) and its default. Its sentence, the string
below the field, is the text of ``--help``; a type that several classes share has it in ``Meta(description=...)``.
Nothing here knows the command line's library, so the code behind a command takes the options as they are.
"""

from __future__ import annotations

import ast
import inspect
import operator
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from itertools import pairwise
from math import inf, nan
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from continuum_server.policy.limits import Range
from continuum_traces.names import which
from msgspec import Meta

from continuum_bench.errors import OptionError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Limit:
    """A condition on the value of an option that is no range. It is part of the annotation of the option's type."""

    holds: Callable[[Any], bool]
    words: str
    """The end of the error message ``--out x: cannot write there``."""
    names: tuple[str, ...] = ()
    """The allowed values, if the option takes one of several names. The message then suggests similar names."""

    def message(self, value: Any) -> str:
        return which(value, self.names) if self.names else self.words


def one_of(*names: str) -> Limit:
    return Limit(lambda value: value in names, "", names)


def _can_be_written(file: Path) -> bool:
    """Return whether a file can be created or replaced at this path, as far as its permissions say."""
    writable = file if file.exists() else file.parent
    return not file.is_dir() and (file.exists() or writable.is_dir()) and os.access(writable, os.W_OK)


WRITABLE = Limit(_can_be_written, "cannot write there; name a file in a folder that exists and that you may write to")
"""For files that a command writes at its end: a wrong path is reported before the work begins."""


MOST = 10**12
"""Largest numeric option, unless its type allows less. With larger numbers, computations overflow or never end."""
FINITE = Range(0, MOST)
"""The range of every number."""
OR_INFINITE = Meta(examples=[inf])
"""For options with which infinity means that there is no limit."""
BOUNDS = (("gt", operator.gt, "above"), ("ge", operator.ge, "at least"), ("le", operator.le, "at most"))
"""The bounds of a range: their names in ``Meta``, and in error messages."""


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

    names: tuple[str, ...] = ()
    panel: str | None = None
    argument: bool = False
    """An argument of the command, without a name of its own."""
    listed: bool = True
    """False: no option of the command line, unless a subclass declares the field again."""


def named(*names: str) -> Option:
    return Option(names=names)


ARGUMENT = Option(argument=True)
UNLISTED = Option(listed=False)


@dataclass(frozen=True, slots=True)
class Declared:
    """The declaration of one option."""

    name: str
    """Name of the field."""
    hint: Any
    """The field's type. If it is ``Annotated``, its metadata are ranges, limits, rules and an ``Option``."""
    default: Any
    """``dataclasses.MISSING`` if the user must give a value."""
    owner: type
    """The class that declares the field: the options' class or one of its bases."""
    group: type
    """The class of options that has the field first; its panel and rules are the option's. Mostly ``owner``."""

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
        """The option's sentence.

        Raises:
            TypeError: there is none.
        """
        sentence = sentences(self.owner.__module__)[self.owner.__name__].get(self.name)
        sentence = sentence or next((each.description for each in self._ranges if each.description), None)
        if sentence is None:
            raise TypeError(f"{self.owner.__name__}.{self.name}: write a sentence below this option, for --help")
        return sentence

    @property
    def _ranges(self) -> tuple[Meta, ...]:
        return tuple(extra for extra in self.extras if isinstance(extra, Meta))

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
        """Check a value against the ranges and limits in the annotation. ``None`` is always allowed.

        Raises:
            OptionError: the value, or an item of a list, is not allowed.
        """
        for item in value if isinstance(value, list) else [value]:
            if item is not None and (fault := self._fault(item)) is not None:
                shown = f"{item:g}" if isinstance(item, float) else item
                raise OptionError(f"{self.spelling} {shown}: {fault}")

    def _fault(self, item: Any) -> str | None:
        limits = (extra for extra in self.extras if isinstance(extra, Limit))
        unmet = next((limit.message(item) for limit in limits if not limit.holds(item)), None)
        if unmet or isinstance(item, bool) or not isinstance(item, int | float):
            return unmet
        unbounded = item == inf and OR_INFINITE in self.extras
        ranges = self._ranges if unbounded else (*self._ranges, FINITE)
        return next((fault for each in ranges if (fault := _outside(item, each))), None)


def _outside(number: float, bounds: Meta) -> str | None:
    """Return which bound of the range the number exceeds: ``must be at least 1``; None: it is in the range."""
    for name, holds, words in BOUNDS:
        bound = getattr(bounds, name)
        if bound is not None and not holds(number, bound):
            return f"{bounds.title or ''} must be {words} {bound:,.15g}".lstrip()
    return None


class OptionGroup:
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

    def given(self, group: type[OptionGroup]) -> dict[str, Any]:
        """Return the values, by name, of a group's options that have another value than their default."""
        options = declared(group)
        values = {name: getattr(self, name) for name in sorted(options)}
        return {name: value for name, value in values.items() if options[name].is_given(value)}

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
        field.name: Declared(field.name, _hint(hints[field.name]), field.default, *_owners(options, field.name))
        for field in fields(cast(Any, options))
    }


def _hint(hint: Any) -> Any:
    """Return the type of an option: a ``Literal`` is text that is one of several names."""
    plain, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    return Annotated[(str, one_of(*get_args(plain)), *extras)] if get_origin(plain) is Literal else hint


def _owners(options: type, field: str) -> tuple[type, type]:
    """Return ``Declared.owner`` and ``Declared.group`` of a field."""
    owner = next(base for base in options.__mro__ if field in vars(base).get("__annotations__", ()))
    bases = (base for base in reversed(options.__mro__) if issubclass(base, OptionGroup) and issubclass(base, owner))
    return owner, next(bases)


@cache
def sentences(module: str) -> Mapping[str, Mapping[str, str]]:
    """Return the sentences below the fields of a module's classes, by class and field."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {
        node.name: {
            field.target.id: " ".join(str(below.value.value).split())
            for field, below in pairwise(node.body)
            if isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        }
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
