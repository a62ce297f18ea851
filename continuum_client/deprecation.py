"""How public names leave: they warn from one minor version to the next (docs/stability.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from typing_extensions import deprecated as _deprecated

F = TypeVar("F", bound=Callable[..., object])


def deprecated(name: str, *, gone: str, instead: str) -> Callable[[F], F]:
    """Return a decorator that makes calls of a public function or class warn. Type checkers report them too (PEP 702).

    Args:
        name: how callers write it.
        gone: the version that no longer has it.
        instead: what callers do.
    """
    return _deprecated(f"{name} is deprecated and goes in {gone}: {instead}")
