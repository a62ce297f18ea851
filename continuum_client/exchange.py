"""What a client and a server say to each other: which dialect, a call with its tags, a release.

Each exchange is written once, as a generator. It yields what is to be done, as a function, and receives the function's
result or exception. ``run`` does it for a synchronous client; ``run_async`` for an asynchronous client and the proxy.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, Protocol

from continuum_client.call import Call
from continuum_client.dialects import HEADERS, Dialect
from continuum_client.endpoints import endpoints
from continuum_client.errors import logger, once
from continuum_client.program import SendingClient

ASK_TIMEOUT_S = 2.0
"""Time limit of the two requests that a client itself makes: ``GET /models`` for ``auto``, and the release."""
NO_RELEASE = (404, 405)
"""HTTP statuses of a server that has no such request, and so no pins either."""

Steps = Generator[Callable[[], Any], Any, Any]
Post = Callable[[str, Mapping[str, Any]], Any]
"""Sends a body to a URL."""


class AskingClient(SendingClient, Protocol):
    """A client that can also ask its server for the models. Its errors have openai's attribute ``status_code``."""

    _timeouts: tuple[type[BaseException], ...]
    """Exceptions that mean that the server is too slow."""

    def _models(self) -> Any:
        """Return the parsed answer to ``GET /models``."""


def run(steps: Steps) -> Any:
    """Do all steps; return the result of the exchange."""
    try:
        step = next(steps)
        while True:
            try:
                result = step()
            except BaseException as error:  # noqa: BLE001 - passed to the exchange, which decides
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        return end.value


async def run_async(steps: Steps) -> Any:
    """Do all steps, each of which returns an awaitable; return the result of the exchange."""
    try:
        step = next(steps)
        while True:
            try:
                result = await step()
            except BaseException as error:  # noqa: BLE001 - passed to the exchange, which decides
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        return end.value


def sending(call: Call, client: AskingClient, stream: bool, send: Callable[[], Any]) -> Steps:
    """Send a call with its tags; if the server refuses our fields, once more without them. The result is ``send``'s."""
    while True:
        try:
            if not call.tagged:
                dialect = call.dialect or (yield from _asking(call.url, client))
                call.apply_tags(dialect, stream, client)
            return (yield send)
        except BaseException as error:
            if not call.retry_untagged(error):
                raise


def _asking(url: str, client: AskingClient) -> Generator[Callable[[], Any], Any, Dialect]:
    """Return the dialect that ``auto`` means for the server at ``url``, from its model list."""
    if not endpoints.begin_probe(url):
        return HEADERS
    try:
        models = yield client._models
    except Exception as error:  # noqa: BLE001 - the call is sent without tags, and meets the fault too
        if hasattr(error, "status_code") or isinstance(error, client._timeouts):
            return endpoints.end_probe(url, None)  # the server has no model list, or is too slow
        endpoints.abandon_probe(url)
        return HEADERS
    except BaseException:
        endpoints.abandon_probe(url)
        raise
    return endpoints.end_probe(url, models)


def releasing(program_id: str, dialect: Dialect | None, url: str, root: str, post: Post) -> Steps:
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
        yield lambda: post(to, release.body)
    except Exception as error:  # noqa: BLE001 - a failed release must not fail the agent
        if getattr(error, "status_code", None) not in NO_RELEASE:
            once.warn(f"release {url}", f"{url}: the release of a program failed: {error!r}")
    else:
        logger.debug("program %s: released by %s", program_id, to)
