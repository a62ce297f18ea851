"""A dictionary of limited size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Lru(Generic[K, T]):
    """A dictionary with at most ``limit`` keys. When it is full, a new key replaces the least recently used key.

    Args:
        make: returns the value of a new key.
    """

    def __init__(self, make: Callable[[], T], limit: int) -> None:
        self._make = make
        self._limit = max(1, limit)
        self._values: OrderedDict[K, T] = OrderedDict()

    def of(self, key: K) -> T:
        """Return the key's value, and mark the key as used. A new key is added."""
        value = self._values.get(key)
        if value is None:
            value = self._values[key] = self._make()
            if len(self._values) > self._limit:
                self._values.popitem(last=False)
        self._values.move_to_end(key)
        return value
