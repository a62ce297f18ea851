"""What clients get while vLLM stops: a whole answer, 503, or an error; never an answer that was cut and looks whole.

vLLM's engine, once it stops, aborts requests that reach it late, and those that its time to drain does not suffice for.
vLLM answers these with status 200, the tokens so far, and the finish reason ``abort``, which few clients read.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from continuum_server.vllm_plugin.engine_deaths import EngineDeaths

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

STOPPING = {"error": {"message": "the server is stopping", "type": "ServiceUnavailableError", "code": 503}}
_BODY = json.dumps(STOPPING).encode()
_ABORTED = (b'"finish_reason":"abort"', b'"finish_reason": "abort"')
"""An answer's own text cannot contain these: its quotation marks are escaped."""


def set_at_shutdown(state: Any) -> threading.Event:
    """Return an event that is set when vLLM shuts its engines down, or one of them dies. They finish their requests;
    a request that still waits when all have stopped gets an error."""
    draining = threading.Event()
    client: Any = getattr(state, "engine_client", None)
    shutdown: Any = getattr(client, "shutdown", None)
    if shutdown is None:
        return draining
    deaths = EngineDeaths(client, asyncio.get_running_loop(), draining)

    def note_and_shut_down(*args: Any, **kwargs: Any) -> Any:
        draining.set()
        try:
            return shutdown(*args, **kwargs)
        finally:
            deaths.fail_all()

    client.shutdown = note_and_shut_down
    return draining


class WholeOrError:
    """Sends an answer on. If the engine aborted it because the server stops, the client gets an error instead: status
    503, or in a stream that has begun an error event, after which nothing follows."""

    def __init__(self, send: Send, draining: threading.Event) -> None:
        self._send, self._draining = send, draining
        self._start: Message | None = None
        """The head of an answer of which no byte was sent yet."""
        self._cut = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
        elif not self._cut:
            await self._pass(message)

    async def _pass(self, message: Message) -> None:
        self._cut = self._draining.is_set() and any(mark in message.get("body", b"") for mark in _ABORTED)
        start, self._start = self._start, None
        if self._cut and start is not None:
            head = [(b"content-type", b"application/json"), (b"content-length", str(len(_BODY)).encode())]
            await self._send({**start, "status": 503, "headers": head})
            await self._send({"type": message["type"], "body": _BODY})
            return
        if start is not None:
            await self._send(start)
        event = {"type": message["type"], "body": b"data: " + _BODY + b"\n\n"}
        await self._send(event if self._cut else message)
