"""Suggestions for a misspelled name, for error messages. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def which(name: object, known: Iterable[str]) -> str:
    """Name the known names with a similar spelling, then all known names.

    >>> which("continum", ["vllm", "continuum"])
    'did you mean continuum? there are vllm and continuum'
    """
    names = list(known)
    listed = " and ".join(names) if len(names) == 2 else ", ".join(names)
    return f"{near(name, names)}there are {listed}"


def near(name: object, known: Iterable[str], most: int = 1) -> str:
    """``did you mean continuum? ``, or nothing. Upper case and underscores do not count."""
    plain: dict[str, str] = {}
    for each in known:
        plain.setdefault(_plain(each), each)
    found = get_close_matches(_plain(str(name)), plain, n=most, cutoff=0.6)
    return f"did you mean {' or '.join(plain[each] for each in found)}? " if found else ""


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")
