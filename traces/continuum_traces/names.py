"""Words for messages: suggestions for a misspelled name, counts, and texts of others. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def which(name: object, choices: Iterable[str]) -> str:
    """Return the choices, behind the one that a misspelled name resembles, for an error message.

    >>> which("continum", ["vllm", "continuum"])
    'did you mean continuum? there are vllm and continuum'
    """
    names = sorted(choices, key=lambda choice: choice == "none")  # nobody reads "there are none, ..." to its end
    if len(names) < 2:
        return f"{near(name, names)}{f'there is only {names[0]}' if names else 'there are none'}"
    return f"{near(name, names)}there are {' and '.join(names) if len(names) == 2 else ', '.join(names)}"


def listed(names: Iterable[str]) -> str:
    """Return ``a``, ``a and b`` or ``a, b and c``."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def near(name: object, choices: Iterable[str], most: int = 1) -> str:
    """Return ``did you mean continuum? `` with up to ``most`` choices of similar spelling, or an empty text.

    Upper case equals lower case, and an underscore equals a hyphen.
    """
    by_plain: dict[str, str] = {}
    for choice in choices:
        by_plain.setdefault(_plain(choice), choice)
    similar = get_close_matches(_plain(str(name)), by_plain, n=most, cutoff=0.6)
    return f"did you mean {' or '.join(by_plain[plain] for plain in similar)}? " if similar else ""


def counted(number: int, thing: str) -> str:
    """Return ``1 run`` or ``3 runs``."""
    return f"{number} {thing}{'s' * (number != 1)}"


def harmless(text: str) -> str:
    """Return a text without characters that a terminal obeys or hides: each is written as in Python's source.

    These are control characters (but line ends and tabs), marks of direction, and invisible characters. Texts that
    servers, models and files contain are printed in this form.

    >>> harmless("\x1b[2J")
    '\\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(each if each in _KEPT or each.isprintable() else _source_of(each) for each in text)


_KEPT = "\n\t\xa0"


def _source_of(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")
