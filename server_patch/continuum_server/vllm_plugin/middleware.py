"""The HTTP side of the plugin: ``--middleware continuum_server.vllm_plugin.middleware.ContinuumMiddleware``.

- ``GET /continuum/state``, ``GET /continuum/engine``, ``POST /continuum/programs/{id}/release``, behind the server's
  API key where it has one.
- Tags in any form a client may send them (headers, the preview's body fields, malformed ones) become what the scheduler
  reads: clean ``vllm_xargs``. A tag never fails a request.
- ``continuum:*`` metrics at the end of vLLM's own ``/metrics``.

vLLM runs without it too: ``vllm_xargs`` and ``X-Session-ID`` reach the scheduler by themselves.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from continuum_server.vllm_plugin.metrics import prometheus_text
from continuum_server.vllm_plugin.request_tags import Tagged, tag_body

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
UTILITY = "continuum"
"""Name of the engine core's utility method that reaches ``Online.call``."""
PROGRAMS, RELEASE = "/continuum/programs/", "/release"


class ContinuumMiddleware:
    """Pure ASGI; requests that need nothing pass through untouched."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path, method = scope["path"].removeprefix(scope.get("root_path", "")), scope["method"]
        if path.startswith("/continuum/"):
            await self._own(path, method, scope, send)
        elif path.rstrip("/") == "/metrics":
            await self._metrics(scope, receive, send)
        elif method == "POST" and path in GENERATING:
            await self._generate(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    # ------------------------------------------------------------------------------ own endpoints

    async def _own(self, path: str, method: str, scope: Scope, send: Send) -> None:
        if not _authorised(scope):
            await _reply(send, 401, {"error": "Unauthorized"})
            return
        if path == "/continuum/state" and method == "GET":
            await self._state(scope, send)
        elif path == "/continuum/engine" and method == "GET":
            await _reply(send, 200, _engine(scope))
        elif path.startswith(PROGRAMS) and path.endswith(RELEASE) and method == "POST":
            await self._release(path.removeprefix(PROGRAMS).removesuffix(RELEASE), scope, send)
        else:
            known = "GET /continuum/state, GET /continuum/engine, POST /continuum/programs/{id}/release"
            await _reply(send, 404, {"error": f"no such endpoint; there are: {known}"})

    async def _state(self, scope: Scope, send: Send) -> None:
        engines = await _ask(scope, "state", "")
        if engines is None:
            await _reply(send, 503, {"error": "this engine runs without the Continuum scheduler"})
        else:
            await _reply(send, 200, {"engines": engines})

    async def _release(self, program_id: str, scope: Scope, send: Send) -> None:
        answers = await _ask(scope, "release", program_id)
        if answers is None:  # a stock scheduler holds nothing: the wish is fulfilled
            answers = [{"released": False}]
        await _reply(send, 200, {"program_id": program_id, "released": any(a["released"] for a in answers)})

    # -------------------------------------------------------------------------------- vLLM's own

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        ours = prometheus_text(await _ask(scope, "state", "") or []).encode()
        # plain text only, so that ours can follow theirs
        plain = [(k, v) for k, v in scope["headers"] if k.lower() not in (b"accept", b"accept-encoding")]
        start: Message = {}

        async def collect(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
                headers = [(k, v) for k, v in message.get("headers", []) if k.lower() != b"content-length"]
                start["headers"] = headers
                await send(start)
            elif message.get("more_body"):
                await send(message)
            else:
                extra = ours if start.get("status") == 200 else b""
                await send({**message, "body": message.get("body", b"") + extra})

        await self._app({**scope, "headers": plain}, receive, collect)

    async def _generate(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _read_body(receive)
        if body is None:  # gone before it was sent whole
            return
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        tagged = tag_body(body, headers, _client_key(headers))
        if tagged.rejected:
            await _ask(scope, "reject", json.dumps(tagged.rejected))
        await self._app(_with_length(scope, tagged), _replay(tagged.body, receive), send)


def _with_length(scope: Scope, tagged: Tagged) -> Scope:
    kept = [(k, v) for k, v in scope["headers"] if k.lower() != b"content-length"]
    return {**scope, "headers": [*kept, (b"content-length", str(len(tagged.body)).encode())]}


async def _read_body(receive: Receive) -> bytes | None:
    parts = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body once, then whatever comes (a disconnect)."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return pending.pop() if pending else await receive()

    return again


def _engine(scope: Scope) -> dict[str, Any]:
    """Whether a GPU is behind this server, or a model of one: whoever measures it must know."""
    config = getattr(getattr(scope["app"].state, "vllm_config", None), "additional_config", None)
    section = config.get("continuum_emulated") if isinstance(config, dict) else None
    return {"emulated": section}


async def _ask(scope: Scope, operation: str, argument: str) -> list[Any] | None:
    """Every engine's answer; None where the engines have no Continuum scheduler."""
    core = getattr(getattr(scope["app"].state, "engine_client", None), "engine_core", None)
    if core is None:
        return None
    ask_all = getattr(core, "call_utility_all_async", None)
    try:
        if ask_all is not None:
            answers = await ask_all(UTILITY, operation, argument)
        else:
            answers = [await core.call_utility_async(UTILITY, operation, argument)]
    except Exception as error:  # vLLM wraps the engine's AttributeError in a bare Exception
        if "object has no attribute" in str(error):
            return None
        raise
    return [json.loads(answer) for answer in answers]


def _authorised(scope: Scope) -> bool:
    """True where the server has no key, or the request carries one of them."""
    configured = getattr(getattr(scope["app"].state, "args", None), "api_key", None) or [os.environ.get("VLLM_API_KEY")]
    keys = [key for key in configured if key]
    if not keys:
        return True
    value = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
    scheme, _, token = value.partition(" ")
    matches = [hmac.compare_digest(token.encode(), key.encode()) for key in keys]
    return scheme.lower() == "bearer" and any(matches)


def _client_key(headers: dict[str, str]) -> str | None:
    """A short digest of the request's API key: pins are counted by it, the key itself goes nowhere."""
    value = headers.get("authorization")
    return hashlib.sha256(value.encode()).hexdigest()[:12] if value else None


async def _reply(send: Send, status: int, content: dict[str, Any]) -> None:
    body = json.dumps(content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
