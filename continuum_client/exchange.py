"""What a client and a server say to each other beside calls: which dialect, and a release.

Each exchange is written once, as a coroutine. Asynchronous clients and the proxy await it; ``run`` does it for a
synchronous client.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from continuum_client.dialects import HEADERS, Dialect
from continuum_client.endpoints import endpoints
from continuum_client.errors import logger, once
from continuum_client.program import SendingClient

ASK_TIMEOUT_S = 2.0
"""Time limit of the two requests that a client itself makes: ``GET /models`` for ``auto``, and the release."""
NO_RELEASE = (404, 405)
"""HTTP statuses of a server that has no such request, and so no pins either."""

Post = Callable[[str, Mapping[str, Any]], Any]
"""Sends a body to a URL."""


def run(exchange: Coroutine[Any, Any, Any]) -> Any:
    """Do the exchange of a synchronous client, whose requests need no event loop; return its result."""
    try:
        exchange.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("a synchronous client has no event loop to wait in")


async def done(result: Any) -> Any:
    """Return the result of a client's method. That of an asynchronous client is awaited first."""
    return (await result) if inspect.isawaitable(result) else result


async def asking(url: str, client: SendingClient) -> Dialect:
    """Return the dialect that ``auto`` means for the server at ``url``, from its model list."""
    if not endpoints.begin_probe(url):
        return HEADERS
    try:
        models = await done(client._models())
    except Exception as error:  # noqa: BLE001 - the call is sent without tags, and meets the fault too
        if hasattr(error, "status_code") or isinstance(error, client._timeouts):
            return endpoints.end_probe(url, None)  # the server has no model list, or is too slow
        endpoints.abandon_probe(url)
        return HEADERS
    except BaseException:
        endpoints.abandon_probe(url)
        raise
    return endpoints.end_probe(url, models)


async def releasing(program_id: str, dialect: Dialect | None, url: str, root: str, post: Post) -> None:
    """Make a server release a program's KV cache, if its dialect has a release. Never raises.

    Args:
        program_id: the program.
        dialect: the server's dialect; None: unknown.
        url: the server's base URL, for messages.
        root: the server's root, to which the release is sent.
        post: sends it.
    """
    release = None if dialect is None else dialect.release(program_id)
    if release is None:
        return
    to = root.rstrip("/") + release.path
    try:
        await done(post(to, release.body))
    except Exception as error:  # noqa: BLE001 - a failed release must not fail the agent
        if getattr(error, "status_code", None) not in NO_RELEASE:
            once.warn(f"release {url}", f"{url}: the release of a program failed: {error!r}")
    else:
        logger.debug("program %s: released by %s", program_id, to)
