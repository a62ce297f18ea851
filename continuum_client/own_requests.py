"""The requests that a client itself makes beside its calls: the model list, for ``auto``, a program's release and its
tool events.

They are written once, for synchronous and asynchronous clients and for the proxy, which differ in their ``Sender``.
"""

from __future__ import annotations

import inspect
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from continuum_traces.schema import Tags

from continuum_client import current
from continuum_client.dialects import AUTO, HEADERS, Dialect, Release
from continuum_client.endpoints import endpoints
from continuum_client.errors import logger, once
from continuum_client.tagging import tag_headers

OWN_TIMEOUT_S = 2.0
"""Time limit of a client's own requests."""
NO_RELEASE = (404, 405)
"""HTTP statuses of a server that has no such request, and so no pins either."""


class Sender(Protocol):
    """Sends a client's own requests to its server. Its errors may have openai's attribute ``status_code``."""

    url: str
    """The client's base URL."""
    asynchronous: bool
    """Whether the client needs an event loop."""

    async def models(self) -> Any:
        """Return the parsed answer to ``GET /models``; None if the server has no such list, or is too slow."""

    def post(self, release: Release, headers: Mapping[str, str]) -> None:
        """Send a release or an event without an event loop."""

    async def apost(self, release: Release, headers: Mapping[str, str]) -> None:
        """Send a release or an event. A cancellation does not stop it."""


@dataclass(frozen=True, slots=True)
class ProgramPost:
    """What one server is told of a program: that it ends, or something of its tool. Sending it never raises.

    Its headers name the program, so that a router sends it to the server that has the program.
    """

    program_id: str
    request: Release
    sender: Sender
    what: str = "the release of a program"

    @property
    def _headers(self) -> dict[str, str]:
        return tag_headers(Tags(program_id=self.program_id))

    def send(self) -> None:
        """Send it: by a task of the running event loop if the client is asynchronous, else before this returns."""
        if self.sender.asynchronous and current.running_loop() is not None:
            self._send_in_background()
        else:
            self._send_now()

    async def asend(self) -> None:
        """Send it, and wait for the answer."""
        with self._reported():
            await self.sender.apost(self.request, self._headers)

    def _send_now(self) -> None:
        with self._reported():
            self.sender.post(self.request, self._headers)

    def _send_in_background(self) -> None:
        def ended(task: Any) -> None:
            _background.discard(task)
            if task.cancelled():  # the loop has ended before
                self._send_now()

        task = current.running_loop().create_task(self.asend())
        _background.add(task)
        task.add_done_callback(ended)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        url = self.sender.url
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a failed release must not fail the agent
            if getattr(error, "status_code", None) not in NO_RELEASE:
                once.warn(f"{self.what} {url}", f"{url}: {self.what} failed: {error!r}")
        else:
            logger.debug("program %s: %s was sent to %s", self.program_id, self.what, url)


_background: set[Any] = set()
"""An event loop keeps no strong reference to its tasks."""


async def dialect_for(wanted: Dialect, sender: Sender) -> Dialect:
    """Return the dialect to use for a server: ``wanted``, or for ``auto`` that of the server, which is asked once."""
    url = sender.url
    dialect = endpoints.dialect_of(wanted, url)
    if dialect is not AUTO:
        return dialect
    if not endpoints.begin_probe(url):
        return HEADERS
    try:
        models = await sender.models()
    except Exception:  # noqa: BLE001 - the call is sent without tags, and meets the fault too
        endpoints.abandon_probe(url)
        return HEADERS
    except BaseException:
        endpoints.abandon_probe(url)
        raise
    return endpoints.end_probe(url, models)


def run(sending: Coroutine[Any, Any, Any]) -> Any:
    """Do the sending of a synchronous client, whose requests need no event loop; return its result."""
    try:
        sending.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("a synchronous client has no event loop to wait in")


async def awaited(result: Any) -> Any:
    """Return the result of a client's method. That of an asynchronous client is awaited first."""
    return (await result) if inspect.isawaitable(result) else result
