"""Run functions within a ``with`` block: ``@client.program``, ``@p.tool``, ``@tool``.

A decorated function is of the same kind as the original: plain, coroutine, generator or asynchronous generator.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator
from contextlib import nullcontext
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function: of the function inside a ``functools.partial``, and of an object's class."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


def around(function: F, block: Callable[[], Any], paused: Callable[[Any], Any] = nullcontext) -> F:
    """Return a function that runs ``function`` within a ``with`` block.

    Args:
        function: the function to decorate.
        block: returns a new context manager for each call, for ``with`` and for ``async with``.
        paused: returns, for what was entered, the context manager of the code between two steps of a generator.
    """
    wrapped: Callable[..., Any]
    if inspect.isasyncgenfunction(function):

        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            async with block() as entered:
                async for item in function(*args, **kwargs):
                    with paused(entered):
                        yield item

    elif inspect.iscoroutinefunction(function):

        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            async with block():
                return await function(*args, **kwargs)

    elif inspect.isgeneratorfunction(function):

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with block() as entered:
                return (yield from _pausing(function(*args, **kwargs), lambda: paused(entered)))

    else:

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with block():
                return function(*args, **kwargs)

    return cast("F", functools.wraps(function)(wrapped))


def _pausing(generator: Generator[Any, Any, Any], paused: Callable[[], Any]) -> Generator[Any, Any, Any]:
    """Do what ``yield from generator`` does, with each ``yield`` in the context manager ``paused()``."""
    step = functools.partial(next, generator)
    while True:
        try:
            item = step()
        except StopIteration as end:
            return end.value
        try:
            with paused():
                sent = yield item
        except GeneratorExit:
            generator.close()
            raise
        except BaseException as error:  # noqa: BLE001 - the generator's, as with ``yield from``
            step = functools.partial(generator.throw, error)
        else:
            step = functools.partial(generator.send, sent)
