"""How an option is declared: as a field of a dataclass that derives from ``Options``.

The option's type, limit, default and help text stand there and nowhere else. The help text is the sentence under the
field; a field without one is no option of the command line. ``typer.Option("--name")`` beside the type gives an option
another name than the field's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast, get_type_hints

from continuum_traces.names import which
from typer.models import ArgumentInfo, OptionInfo

T = TypeVar("T")


class OptionError(Exception):
    """An option with a value that it cannot have; the message names the option and says what it can be."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What the value of an option must be. It stands beside the option's type; ``None`` is always allowed."""

    holds: Callable[[Any], bool]
    words: str
    """The end of the error message ``--jobs 0: must be at least 1``."""
    names: tuple[str, ...] = ()
    """What the value can be, where that is one of some names."""

    def said(self, value: Any) -> str:
        return which(value, self.names) if self.names else self.words


def at_least(least: int) -> Limit:
    return Limit(lambda value: value >= least, f"must be at least {least}")


def at_most(most: float) -> Limit:
    return Limit(lambda value: value <= most, f"must be at most {most:,}")


def one_of(*names: str) -> Limit:
    return Limit(lambda value: value in names, "must be one of them", names)


ABOVE_ZERO = Limit(lambda value: value > 0, "must be above 0")
NOT_NEGATIVE = Limit(lambda value: value >= 0, "must not be negative")
SHARE = Limit(lambda value: 0 < value <= 1, "must be above 0, at most 1")
FINITE = Limit(lambda value: 0 <= value < inf, "must not be negative or infinite")
POSITIVE = Limit(lambda value: 0 < value < inf, "must be above 0 and finite")


def _can_be_written(file: Path) -> bool:
    """Whether a file can be made or replaced there, as far as can be seen before."""
    held = file if file.exists() else file.parent
    return not file.is_dir() and (file.exists() or held.is_dir()) and os.access(held, os.W_OK)


WRITABLE = Limit(_can_be_written, "cannot write there; name a file in a folder that exists and that you may write to")
"""Of a file that is written at the end: a wrong name is found before the work."""


FOLDER = Limit(Path.is_dir, "no such folder")
"""Of a folder that is read at the end."""


MOST = 10**12
"""No option takes a number above it, or below its negative: what is computed of it would overflow or never end."""
SANE = Limit(lambda value: abs(value) <= MOST, f"must be a number of at most {MOST:,}")


MOST_S = 1e8
"""Three years: a clock of floats no longer tells one step from the next where a run takes much longer."""


class Options:
    """Base of all dataclasses of options. A value outside its limit cannot be constructed.

    Raises:
        OptionError: the value of an option is outside its limit.
    """

    panel: ClassVar[str | None] = None
    """Panel of ``--help`` for the options that this class itself declares, not for those of a subclass."""
    rules: ClassVar[tuple[Any, ...]] = ()
    """Which other options these options need or exclude (``options.together``), as for ``panel``."""

    def __post_init__(self) -> None:
        for name, hint in self._hints().items():
            check(name, getattr(self, name), hint)

    def as_arguments(self) -> list[str]:
        """The options as arguments of a command line; those that are None or False are left out."""
        given = {spelling(name, hint): getattr(self, name) for name, hint in self._hints().items()}
        texts = {name: [name] if value is True else [name, str(value)] for name, value in given.items()}
        return [text for name, value in given.items() if is_set(value) for text in texts[name]]

    def group(self, kind: type[T]) -> T:
        """The options of one of the bases."""
        return kind(**{each.name: getattr(self, each.name) for each in fields(cast(Any, kind))})

    def _hints(self) -> dict[str, Any]:
        return hints_of(cast(Any, type(self)))


def is_set(value: Any) -> bool:
    """Whether an option with this value says anything: None and False do not, 0 does."""
    return value is not None and value is not False


@cache
def hints_of(kind: Any) -> dict[str, Any]:
    """Map each field of a dataclass to its annotated type."""
    hints = get_type_hints(kind, include_extras=True)
    return {each.name: hints[each.name] for each in fields(kind)}


def owner_of(kind: type, name: str) -> type:
    """Find the class, ``kind`` or one of its bases, that declares the field ``name``."""
    return next(each for each in kind.__mro__ if name in vars(each).get("__annotations__", ()))


def extras_of(hint: Any) -> tuple[Any, ...]:
    """Return the metadata of an ``Annotated`` type: limits, and parameters for Typer."""
    return tuple(getattr(hint, "__metadata__", ()))


def check(name: str, value: Any, hint: Any) -> None:
    """Raises:
    OptionError: the value violates a limit in the annotation of its type.
    """
    limits = [each for each in extras_of(hint) if isinstance(each, Limit)]
    for one in value if isinstance(value, list) else [value]:
        number = isinstance(one, int | float) and not isinstance(one, bool)
        for limit in [*limits, SANE] if number else limits:
            if one is not None and not limit.holds(one):
                shown = f"{one:g}" if isinstance(one, float) else one
                raise OptionError(f"{spelling(name, hint)} {shown}: {limit.said(one)}")


def spelling(name: str, hint: Any) -> str:
    """An option's name on the command line: the one beside its type if there is any, else made of the field's name. Of
    an argument without a name, the word in ``--help``."""
    if any(isinstance(extra, ArgumentInfo) for extra in extras_of(hint)):
        return name.upper()
    info = next((extra for extra in extras_of(hint) if isinstance(extra, OptionInfo)), OptionInfo())
    names = [each for each in (info.default, *(info.param_decls or ())) if str(each).startswith("--")]
    return str(names[0]) if names else f"--{name.replace('_', '-')}"
