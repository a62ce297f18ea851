"""Run functions within a ``with`` block: ``@client.program``, ``@p.tool``, ``@tool``.

A decorated function is of the same kind as the original: plain, coroutine, generator or asynchronous generator.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function: of the function inside a ``functools.partial``, and of an object's class."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


def around(function: F, block: Callable[[], Any]) -> F:
    """Return a function that runs ``function`` within a ``with`` block.

    Args:
        function: the function to decorate.
        block: returns a new context manager for each call, for ``with`` and for ``async with``.
    """
    wrapped: Callable[..., Any]
    if inspect.isasyncgenfunction(function):

        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            async with block():
                async for item in function(*args, **kwargs):
                    yield item

    elif inspect.iscoroutinefunction(function):

        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            async with block():
                return await function(*args, **kwargs)

    elif inspect.isgeneratorfunction(function):

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with block():
                return (yield from function(*args, **kwargs))

    else:

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with block():
                return function(*args, **kwargs)

    return cast("F", functools.wraps(function)(wrapped))
