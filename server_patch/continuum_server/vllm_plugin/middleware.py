"""The HTTP side of the plugin: ``--middleware continuum_server.vllm_plugin.middleware.ContinuumMiddleware``.

- It answers ``GET /continuum/state``, ``GET /continuum/engine``, ``POST /continuum/programs/{id}/release`` and
  ``POST /continuum/programs/{id}/events``. They require the server's API key, if it has one.
- It moves a client's tags from headers and body fields to ``vllm_xargs``, which the scheduler reads, and adds a digest
  of the client's API key. Malformed tags are dropped; they never fail a request.
- It appends ``continuum:*`` metrics to vLLM's own ``/metrics``.
- If vLLM has several engines, it keeps each program at one (``ranks``).

The plugin also works without it, because vLLM itself passes ``vllm_xargs`` and ``X-Session-ID`` to the scheduler.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from continuum_traces.wire import FINAL_HEADER, SESSION_HEADERS, read_program_id
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from continuum_server.defaults import NO_SCHEDULER, SERVER_NAME
from continuum_server.foreign_ids import ForeignId, operators_rows
from continuum_server.machine import machine
from continuum_server.vllm_plugin.callers import caller_of, headers_of
from continuum_server.vllm_plugin.form_tags import tag_form
from continuum_server.vllm_plugin.metrics import prometheus_text
from continuum_server.vllm_plugin.plugin_settings import read_settings
from continuum_server.vllm_plugin.ranks import Ranks, place_programs
from continuum_server.vllm_plugin.request_tags import Caller, UnreadableBody, normalize_tags
from continuum_server.vllm_plugin.routes import Carrier, Find, finder, guarded
from continuum_server.vllm_plugin.state import LISTED, StateCache, engine_state
from continuum_server.vllm_plugin.stopping import STOPPING, WholeOrError, set_at_shutdown
from continuum_server.vllm_plugin.tool_events import BadEvent, read_event

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

UTILITY = "continuum"
"""Name of the engine core's utility method that calls ``Online.call``."""
PROGRAMS, RELEASE, EVENTS = "/continuum/programs/", "/release", "/events"
METRICS_LIMIT_S = 1.0
"""How long ``/metrics`` and a malformed tag wait for the engine's answer."""
ANSWER_LIMIT_S = 5.0
"""How long ``/continuum/`` waits for the engine's answer."""
NO_ID = {"error": "a program id has 1 to 256 printable characters"}


class NoAnswer(Exception):
    """The engine did not answer, because it is stopped, busy or dead."""


class ContinuumMiddleware:
    """The ASGI middleware. Requests without tags that are not for metrics pass through unchanged."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._find: Find = lambda path: None
        self._answers_none = False
        """The engine runs without the plugin's scheduler, and is not asked again."""
        self._ours_only = False
        """Ids that are not part of our own protocol are not read."""
        self._operators: tuple[ForeignId, ...] = ()
        """The headers that the operator named."""
        self._draining: threading.Event | None = None
        """Set when vLLM begins to stop; None before the first request."""
        self._states: StateCache
        """Made at the first request."""
        self._ranks: Ranks | None = None
        """Made likewise, if there are several engines with the plugin's scheduler."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._draining is None:
            self._find = finder(scope["app"])  # at the first request vLLM has added all its routes
            state = scope["app"].state
            self._draining = set_at_shutdown(state)
            self._states = self._new_states(state)
            if not _runs_vllms_scheduler(state):
                self._ranks = place_programs(getattr(state, "engine_client", None), time.monotonic)  # noqa: TID251
            settings = read_settings(_additional_config(scope))
            self._ours_only = settings.recognise == "none"
            self._operators = operators_rows(settings.session_headers)
        path, method = scope["path"].removeprefix(scope.get("root_path", "")), scope["method"]
        if path.startswith("/continuum/"):
            await self._own(path, method, scope, receive, send)
        elif path.rstrip("/") == "/metrics":
            await self._metrics(scope, receive, send)
        elif method == "POST" and (carrier := self._find(path)) is not None:
            if self._draining.is_set():
                await _json(503, STOPPING)(scope, receive, send)
            else:
                await self._generate(carrier, path, scope, receive, WholeOrError(send, self._draining))
        else:
            await self._app(scope, receive, send)

    # ------------------------------------------------------------------------------ own endpoints

    async def _own(self, path: str, method: str, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            status, content = await self._answer(path, method, caller_of(scope), scope, receive)
        except NoAnswer as error:
            status, content = 503, {"error": str(error)}
        except BadEvent as error:
            status, content = error.status, {"error": str(error)}
        except ClientDisconnect:
            return
        await _json(status, content)(scope, receive, send)

    async def _answer(
        self, path: str, method: str, caller: Caller | None, scope: Scope, receive: Receive
    ) -> tuple[int, dict[str, Any]]:
        if caller is None:
            return 401, {"error": "Unauthorized"}
        reads = method in ("GET", "HEAD")
        if path == "/continuum/state" and reads:
            return await self._state(caller, scope)
        if path == "/continuum/engine" and reads:
            return 200, _engine(scope)
        inside = path.removeprefix(PROGRAMS)
        if path.startswith(PROGRAMS) and inside.endswith(RELEASE) and method == "POST":
            return await self._release(inside.removesuffix(RELEASE), caller, scope)
        if path.startswith(PROGRAMS) and inside.endswith(EVENTS) and method == "POST":
            return await self._tool_event(inside.removesuffix(EVENTS), caller, scope, receive)
        endpoints = "GET /continuum/state, GET /continuum/engine, POST /continuum/programs/{id}/release or /events"
        return 404, {"error": f"no such endpoint; there are: {endpoints}"}

    async def _state(self, caller: Caller, scope: Scope) -> tuple[int, dict[str, Any]]:
        limit = Request(scope).query_params.get("limit", str(LISTED))
        if not (limit.isascii() and limit.isdigit() and len(limit) < 4 and int(limit) <= LISTED):
            return 400, {"error": f"limit: expected how many programs to list, from 0 to {LISTED}"}
        snapshots = await self._snapshots(caller.namespace, ANSWER_LIMIT_S)
        if snapshots is None:
            return 503, {"error": NO_SCHEDULER}
        return 200, {"engines": [engine_state(snapshot, int(limit)) for snapshot in snapshots]}

    async def _release(self, sent_id: str, caller: Caller, scope: Scope) -> tuple[int, dict[str, Any]]:
        program_id = read_program_id(sent_id)
        if program_id is None:
            return 400, NO_ID
        argument = {"program_id": program_id, "namespace": caller.namespace}
        answers = await self._ask(scope["app"].state, "release", argument, ANSWER_LIMIT_S)
        self._states.forget()
        if self._ranks is not None:
            self._ranks.release(program_id, caller.namespace)
        released = [answer["released"] for answer in answers or ()]  # None: vLLM's own scheduler, without pins
        return 200, {"program_id": program_id, "released": any(released)}

    async def _tool_event(
        self, sent_id: str, caller: Caller, scope: Scope, receive: Receive
    ) -> tuple[int, dict[str, Any]]:
        program_id = read_program_id(sent_id)
        if program_id is None:
            return 400, NO_ID
        event = await read_event(Request(scope, receive).stream())
        argument = {"program_id": program_id, "namespace": caller.namespace, "event": asdict(event)}
        answers = await self._ask(scope["app"].state, "event", argument, ANSWER_LIMIT_S)
        held = [answer["held"] for answer in answers or ()]
        if all(answer is None for answer in held):
            return 404, {"error": "the server knows no program of yours with this id"}
        return 200, {"program_id": program_id, "held": any(held)}

    # -------------------------------------------------------------------------------- vLLM's own

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        added = (await self._our_metrics(scope)).encode()
        # without these headers vLLM answers in plain text, to which our metrics can be appended
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
                extra = added if start.get("status") == 200 else b""
                await send({**message, "body": message.get("body", b"") + extra})

        await self._app({**scope, "headers": plain}, receive, collect)

    async def _our_metrics(self, scope: Scope) -> str:
        try:
            snapshots = await self._snapshots(None, METRICS_LIMIT_S)
        except NoAnswer as error:
            return prometheus_text([], absent=str(error))
        return "" if snapshots is None else prometheus_text([engine_state(snapshot, 0) for snapshot in snapshots])

    async def _generate(self, carrier: Carrier, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        caller = caller_of(scope)
        if caller is None and guarded(path):  # vLLM answers 401
            await self._app(scope, receive, send)
            return
        headers = headers_of(scope)
        if caller is None or (carrier is Carrier.HEADERS and caller.namespace is not None):
            scope = {**scope, "headers": [pair for pair in scope["headers"] if pair[0].lower() not in _SESSION]}
        if carrier is Carrier.HEADERS:
            await self._app(scope, receive, send)
            return
        try:
            body = await Request(scope, receive).body()
        except ClientDisconnect:
            return
        rejected: tuple[str, ...] = ()
        if carrier is Carrier.FORM:
            form = await tag_form(scope, _replay(body, receive), headers, caller, self._ours_only, self._operators)
            if form is not None:
                body, content_type, rejected = form
                scope = _with(scope, b"content-type", content_type.encode())
        else:
            try:
                nested = carrier is Carrier.EXTRA_ARGS
                tagged = normalize_tags(body, headers, caller, nested, self._ours_only, self._operators)
            except UnreadableBody as error:
                refusal = {"error": {"message": str(error), "type": "BadRequestError", "code": 400}}
                await _json(400, refusal)(scope, receive, send)
                return
            body, rejected = tagged.body, tagged.rejected
        if rejected:
            await self._report(rejected, scope)
        await self._app(_with(scope, b"content-length", str(len(body)).encode()), _replay(body, receive), send)

    async def _report(self, rejected: tuple[str, ...], scope: Scope) -> None:
        """Report malformed tags to the engine, which counts them. The names are those of tags, not a client's."""
        names = list(dict.fromkeys(rejected))
        with suppress(NoAnswer):
            told = {"count": len(rejected), "names": names}
            await self._ask(scope["app"].state, "reject", told, METRICS_LIMIT_S)

    # ---------------------------------------------------------------------------------- the engine

    def _new_states(self, state: Any) -> StateCache:
        return StateCache(
            lambda namespace: self._ask(state, "state", {"namespace": namespace}, None),
            time.monotonic,  # noqa: TID251 - the edge of this process
        )

    async def _snapshots(self, namespace: str | None, limit_s: float) -> list[Any] | None:
        """Return the engines' latest snapshots; None: they run without the plugin's scheduler.

        Raises:
            NoAnswer: an engine did not answer within ``limit_s``.
        """
        try:
            return await self._states.get(namespace, limit_s)
        except asyncio.TimeoutError as error:
            raise _late(limit_s) from error

    async def _ask(
        self, state: Any, operation: str, argument: dict[str, Any], limit_s: float | None
    ) -> list[Any] | None:
        """Call ``Online.call`` in all engines, and return the answers; None: they run without the plugin's scheduler.

        Raises:
            NoAnswer: an engine did not answer within ``limit_s``. It may still carry out the operation later.
        """
        core = getattr(getattr(state, "engine_client", None), "engine_core", None)
        if core is None or self._answers_none or _runs_vllms_scheduler(state):
            return None
        try:
            return await asyncio.wait_for(ask_engines(core, operation, argument), limit_s)
        except asyncio.TimeoutError as error:
            raise _late(limit_s or 0.0) from error
        except Exception as error:  # vLLM wraps any exception in the engine in a bare Exception
            if "object has no attribute" in str(error):
                self._answers_none = True
                return None
            raise NoAnswer(f"the engine did not answer: {' '.join(str(error).split())}") from error


def _late(limit_s: float) -> NoAnswer:
    return NoAnswer(f"the engine did not answer within {limit_s:g} s")


_SESSION = {name.lower().encode() for name in (*SESSION_HEADERS, FINAL_HEADER)}


async def ask_engines(core: Any, operation: str, argument: dict[str, Any]) -> list[Any]:
    """Call ``Online.call`` in all engines of a vLLM client's ``engine_core``, and return the answers.

    Raises:
        Exception: an engine is dead, runs without the plugin's scheduler, or could not do it.
    """
    sent, engines = json.dumps(argument), getattr(core, "core_engines", ())
    if len(engines) < 2:
        answers = [await core.call_utility_async(UTILITY, operation, sent)]
    else:
        calls = (core._call_utility_async(UTILITY, operation, sent, engine=engine) for engine in engines)
        answers = list(await asyncio.gather(*calls))
    return [_read(answer) for answer in answers]


def _read(answer: str) -> Any:
    content = json.loads(answer)
    if "error" in content:
        raise ValueError(content["error"])
    return content


def _runs_vllms_scheduler(state: Any) -> bool:
    """Whether the engine runs vLLM's own scheduler. Such an engine would log a traceback if it were asked."""
    config = getattr(getattr(state, "vllm_config", None), "scheduler_config", None)
    chosen = getattr(config, "scheduler_cls", None)
    return config is not None and (chosen is None or (isinstance(chosen, str) and chosen.startswith("vllm.")))


def _with(scope: Scope, name: bytes, value: bytes) -> Scope:
    """Return the scope with one header replaced, and without ``transfer-encoding``, since the body is no longer sent
    in chunks."""
    replaced = (name, b"transfer-encoding")
    return {**scope, "headers": [*(p for p in scope["headers"] if p[0].lower() not in replaced), (name, value)]}


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` for vLLM: it returns the body once, and then the client's next messages (a disconnect)."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return pending.pop() if pending else await receive()

    return again


def _engine(scope: Scope) -> dict[str, Any]:
    """Return the name that ``serve`` gave this server, its machine, whether its weights are random, and the settings of
    the emulated engine if it is one."""
    config = _additional_config(scope)
    section = config.get("continuum_emulated") if isinstance(config, dict) else None
    load = getattr(getattr(scope["app"].state, "vllm_config", None), "load_config", None)
    name, is_random = os.environ.get(SERVER_NAME), getattr(load, "load_format", None) == "dummy"
    return {"emulated": section, "server": name, "machine": machine(), "random_weights": is_random}


def _additional_config(scope: Scope) -> Any:
    return getattr(getattr(scope["app"].state, "vllm_config", None), "additional_config", None)


def _json(status: int, content: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    """Return a response that may contain infinite numbers, as a user's policy may, which ``JSONResponse`` refuses."""
    return Response(json.dumps(content), status, headers, media_type="application/json")
