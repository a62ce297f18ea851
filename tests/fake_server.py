"""The fake OpenAI-compatible server of all tests, over real sockets: what it speaks, what came, and what a test plans.

A schema refuses what the server of its name refuses. Field lists: OpenAI's from the installed ``openai`` package's own
parameter types; the others' from their sources. test_real_vllm and test_endpoints have real ones.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints
from urllib.parse import unquote

from aiohttp import web
from openai.types import completion_create_params as completion_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params as responses_params

Json = dict[str, Any]
Handler = Callable[[Any, int], Awaitable[web.StreamResponse]]
"""Answers a generating request; the number is 1 for the first of them."""

ASK: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
_PARAMETERS: dict[str, Any] = {
    "/chat/completions": chat_params.CompletionCreateParamsBase,
    "/completions": completion_params.CompletionCreateParamsBase,
    "/responses": responses_params.ResponseCreateParamsBase,
}
GENERATING = tuple(_PARAMETERS)
STANDARD = {route: frozenset(get_type_hints(fields)) | {"stream"} for route, fields in _PARAMETERS.items()}

# -------------------------------------------------------------------------------------------- schemas

_EXTRA = {
    "openai": "",
    "vllm": "session_id vllm_xargs priority ignore_eos min_tokens add_special_tokens cache_salt",
    "thunderagent": "program_id docker_ids",
}
EXTRA = {name: frozenset(fields.split()) for name, fields in _EXTRA.items()}
"""The fields that a server knows beside OpenAI's. Servers that are not here, nor below, refuse nothing."""
_TRTLLM_BOTH = """model frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream
stream_options temperature top_p user lora_request prompt_ignore_length best_of use_beam_search top_k top_p_min min_p
repetition_penalty length_penalty early_stopping stop_token_ids include_stop_str_in_output ignore_eos min_tokens
skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens thinking_token_budget echo add_special_tokens
response_format disaggregated_params priority conversation_params"""
_TRTLLM_CHAT = """messages prompt_token_ids prompt_token_ids_b64 top_logprobs max_completion_tokens tools tool_choice
reasoning_effort thinking add_generation_prompt documents chat_template chat_template_kwargs media_io_kwargs cache_salt
agent_hierarchy mm_processor_kwargs"""
TRTLLM = {
    "/chat/completions": frozenset(f"{_TRTLLM_BOTH} {_TRTLLM_CHAT}".split()),
    "/completions": frozenset(f"{_TRTLLM_BOTH} prompt suffix return_context_logits detokenize".split()),
}
"""All fields of TensorRT-LLM's requests, which forbid others, by its published schema (``serve/openai_protocol.py`` of
its main branch in 2026). Its Responses request allows any field."""
OWNED_BY = {"plugin": "vllm", "dynamo": "nvidia", "trtllm": "tensorrt_llm", "thunderagent": "vllm"}
RELEASES = {"sglang": "/close_session", "thunderagent": "/programs/release"}


def refusal(schema: str, route: str, body: Json) -> Json | None:
    """The error with which a server of this schema answers status 400; None: it accepts the body."""
    known = TRTLLM.get(route) if schema == "trtllm" else STANDARD[route] | EXTRA[schema] if schema in EXTRA else None
    unknown = sorted(set(body) - (known or set(body)))
    unknown += [
        f"conversation_params.{name}" for name in body.get("conversation_params", {}) if name != "conversation_id"
    ]
    complaint = "Unrecognized request argument supplied" if schema == "openai" else "extra field"
    said = [f"{complaint}: {name}" for name in unknown] or list(_faults(schema, body))
    if said and schema == "trtllm":
        loc = {"type": "extra_forbidden", "loc": ["body", *unknown[0].split(".")]}
        return {"object": "error", "message": str([loc]), "code": 400}
    return {"error": {"message": "; ".join(said), "type": "invalid_request_error"}} if said else None


def _faults(schema: str, body: Json) -> Iterator[str]:
    """What is wrong in fields that the server knows."""
    if len(body.get("prompt_cache_key") or "") > 64:
        yield "Invalid 'prompt_cache_key': string too long. Expected a string with maximum length 64."
    if schema == "vllm" and body.get("priority"):
        yield "priority scheduling is not enabled"
    for name in ("session_id", "program_id"):
        if not isinstance(body.get(name, ""), str):
            yield f"{name}: expected text"
    for name, value in body.get("vllm_xargs", {}).items():
        if not all(type(item) in (str, int, float) for item in (value if isinstance(value, list) else [value])):
            yield f"vllm_xargs.{name}: {value!r} is not str, int, float or a flat list of them"


# --------------------------------------------------------------------------------------------- server


@dataclass
class Seen:
    """A request as it arrived. Names of headers match in any case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any
    status: int = 200
    """Of the answer; 0: there was none."""
    time_s: float = 0.0
    connection: object = None

    @property
    def program_id(self) -> str | None:
        return self.headers.get("x-session-id")

    @property
    def route(self) -> str | None:
        return next((route for route in GENERATING if self.path.endswith(route)), None)


@dataclass
class Planned:
    """What happens to the next generating request instead of an answer."""

    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None
    hang_up: bool = False
    delay_s: float = 0.0
    """Before the answer; with status 200 the answer comes after it."""
    tear: bool = False
    """An answer that ends in the middle."""


class FakeServer:
    """``with FakeServer("vllm") as server``: ``server.url`` is the base URL, ``server.seen`` what came.

    Args:
        schema: a server that is known above, ``plugin`` (vLLM with ours), or any other ``owned_by``.
        usage: whether answers have token counts.
        handler: answers the generating requests, whatever is in them.
    """

    def __init__(self, schema: str = "openai", usage: bool = True, handler: Handler | None = None) -> None:
        self.schema = schema
        self.usage = usage
        self.handler = handler
        self.refuses = refusal
        self.plugin_errors = 7
        self.pages: dict[str, tuple[int, Json | str]] = {}
        """Status and answer of a path, instead of this server's own: JSON, or a text, also a stream's events."""
        self.delays_s: dict[str, float] = {}
        """How late the answer of a path comes."""
        self.seen: list[Seen] = []
        self.plan: deque[Planned] = deque()
        self.most_at_once = 0
        self._at_once = 0
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> FakeServer:
        self._thread.start()
        assert self._started.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        runner = web.ServerRunner(web.Server(self._serve), shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
        self.port: int = runner.addresses[0][1]
        self._started.set()
        await self._stop.wait()
        await runner.cleanup()

    # ------------------------------------------------------------------------------------ what came

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return self.root + "/v1"

    @property
    def asked(self) -> list[Seen]:
        """Generating requests."""
        return [seen for seen in self.seen if seen.route]

    @property
    def turns(self) -> list[Seen]:
        """Generating requests that were answered."""
        return [seen for seen in self.asked if seen.status == 200]

    @property
    def ids(self) -> list[str | None]:
        """The programs of the turns."""
        return [turn.program_id for turn in self.turns]

    @property
    def xargs(self) -> list[Json]:
        return [turn.body.get("vllm_xargs", {}) for turn in self.turns]

    @property
    def bodies(self) -> list[Json]:
        return [seen.body for seen in self.asked]

    @property
    def headers(self) -> list[Mapping[str, str]]:
        return [seen.headers for seen in self.asked]

    @property
    def tool_events(self) -> list[Json]:
        """The tool events that came."""
        return [seen.body or {} for seen in self.seen if seen.path.endswith("/events")]

    @property
    def released(self) -> list[str]:
        """The programs whose end vLLM's plugin was told."""
        return [unquote(seen.path.split("/")[3]) for seen in self.seen if seen.path.endswith("/release")]

    @property
    def released_by_header(self) -> list[str]:
        """The same, as routers read it."""
        return [seen.headers["X-Session-ID"] for seen in self.seen if seen.path.endswith("/release")]

    # ------------------------------------------------------------------------------------- requests

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        raw = await request.read()
        try:
            body = json.loads(raw or "null")
        except ValueError:
            return web.json_response({"error": {"message": "no JSON"}}, status=400)
        path = request.raw_path.partition("?")[0]
        seen = Seen(request.method, path, request.headers, body, 200, self._loop.time(), request.transport)
        self.seen.append(seen)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            answer = await self._answer(request, seen)
            seen.status = seen.status and answer.status
            return answer
        finally:
            self._at_once -= 1

    async def _answer(self, request: web.BaseRequest, seen: Seen) -> web.StreamResponse:
        if seen.route is None and (self.handler is None or not seen.path.endswith("/messages")):
            await asyncio.sleep(self.delays_s.get(seen.path, 0.0))
            return self._own(seen.path)
        if self.handler is not None:
            return await self.handler(request, len(self.asked))
        planned = self.plan.popleft() if self.plan else Planned(200)
        await asyncio.sleep(planned.delay_s)
        if planned.hang_up:
            seen.status = 0
            return hang_up(request)
        body = planned.body or {"error": {"message": "planned"}}
        if planned.status != 200:
            return web.json_response(body, status=planned.status, headers=planned.headers)
        refused = self.refuses(self.schema, seen.route, seen.body)
        if refused is not None:
            return web.json_response(refused, status=400)
        if seen.body.get("stream"):
            return await self._stream(request, seen.route, seen.body, planned.tear)
        whole = web.json_response(self.answer(seen.route, seen.body), reason="Fine", headers=planned.headers)
        return await _half(request, whole) if planned.tear else whole

    async def _stream(self, request: web.BaseRequest, route: str, body: Json, tear: bool) -> web.StreamResponse:
        stream = await streaming(request)
        for number, event in enumerate(self.events(route, body)):
            if tear and number == 2:
                return hang_up(request, stream)
            await stream.write(as_event(event))
        return stream

    def _own(self, path: str) -> web.Response:
        vllm = self.schema in ("vllm", "plugin")
        plugin = self.schema == "plugin"
        state = {"policy": "fake", "plugin_errors": self.plugin_errors}
        owner = OWNED_BY.get(self.schema, self.schema)
        model = {"id": "m", "object": "model", "created": 1, "owned_by": owner, "max_model_len": 4096}
        data = [{"object": "embedding", "index": 0, "embedding": [0.0]}]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        text = {"type": "text", "text": "fine"}
        message = {"id": "msg", "type": "message", "role": "assistant", "model": "m", "content": [text]}
        counts = {"input_tokens": 1, "output_tokens": 1}
        answers: dict[str, Json] = {
            "/health": {},
            "/v1/messages": {**message, "stop_reason": "end_turn", "stop_sequence": None, "usage": counts},
            "/v1/models": {"object": "list", "data": [model]},
            "/v1/embeddings": {"object": "list", "data": data, "model": "m", "usage": usage},
        }
        if vllm:
            answers["/version"] = {"version": "0.0"}
            answers["/continuum/state"] = {"engines": [state] if plugin else []}
            answers["/continuum/engine"] = {"emulated": None, "server": "0a1b2c3d" if plugin else None}
        if path == RELEASES.get(self.schema) or (vllm and path.endswith("/release")):
            answers[path] = {"released": True}
        if plugin and path.endswith("/events"):
            answers[path] = {"held": True}
        unknown = 404, {"error": {"message": f"no {path}"}}
        status, page = self.pages.get(path) or ((200, answers[path]) if path in answers else unknown)
        if not isinstance(page, str):
            return web.json_response(page, status=status)
        kind = "text/event-stream" if page.startswith(("event:", "data:")) else "text/plain"
        return web.Response(text=page, status=status, content_type=kind)

    # --------------------------------------------------------------------------------------- answers

    def answer(self, route: str, body: Json) -> Json:
        usage = self._usage(route, body)
        if route == "/responses":
            return _response(body, usage)
        choice: Json = {"index": 0, "text": " fine", "finish_reason": "stop", "logprobs": None}
        kind = "text_completion"
        if route == "/chat/completions":
            message, reason = _message(body)
            choice, kind = {"index": 0, "message": message, "finish_reason": reason}, "chat.completion"
        return {"id": "c", "object": kind, "created": 1, "model": "m", "choices": [choice], **usage}

    def events(self, route: str, body: Json) -> Iterator[Json | str]:
        usage = self._usage(route, body)
        if route == "/responses":
            yield from _response_events(body, usage)
            return
        base: Json = {"id": "c", "created": 1, "model": "m", "object": "chat.completion.chunk"}
        if route == "/completions":
            base["object"] = "text_completion"
            deltas = [({"text": text}, reason) for text, reason in ((" fi", None), ("ne", None), ("", "stop"))]
        else:
            deltas = [({"delta": delta}, reason) for delta, reason in _deltas(body)]
        for delta, reason in deltas:
            yield {**base, "choices": [{"index": 0, **delta, "finish_reason": reason}]}
        if (body.get("stream_options") or {}).get("include_usage") and usage:
            yield {**base, "choices": [], **usage}
        yield "[DONE]"

    def _usage(self, route: str, body: Json) -> Json:
        if not self.usage:
            return {}
        prompt = max(1, len(json.dumps(body.get("messages") or body.get("prompt") or body.get("input"))) // 4)
        cached = {"cached_tokens": prompt // 2}
        if route == "/responses":
            details = {"input_tokens_details": cached, "output_tokens_details": {"reasoning_tokens": 0}}
            return {"usage": {"input_tokens": prompt, "output_tokens": 7, "total_tokens": prompt + 7, **details}}
        counts = {"prompt_tokens": prompt, "completion_tokens": 7, "total_tokens": prompt + 7}
        return {"usage": {**counts, "prompt_tokens_details": cached}}


# --------------------------------------------------------------------------------- parts of handlers


async def streaming(request: web.BaseRequest) -> web.StreamResponse:
    """An answer to which events are written."""
    stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await stream.prepare(request)
    return stream


def as_event(event: Json | str) -> bytes:
    text = event if isinstance(event, str) else json.dumps(event)
    name = f"event: {event['type']}\n" if isinstance(event, dict) and "type" in event else ""
    return f"{name}data: {text}\n\n".encode()


def hang_up(request: web.BaseRequest, answer: web.StreamResponse | None = None) -> web.StreamResponse:
    """End the connection when what was written has been sent."""
    assert request.transport is not None
    request.transport.close()
    return answer or web.Response()


async def _half(request: web.BaseRequest, whole: web.Response) -> web.StreamResponse:
    assert isinstance(whole.body, bytes)
    half = web.StreamResponse(headers={"Content-Length": str(len(whole.body))})
    await half.prepare(request)
    await half.write(whole.body[:5])
    return hang_up(request, half)


async def good(request: Any, number: int, usage: bool = True) -> web.StreamResponse:
    """A handler: as many tokens as are asked for, one an event."""
    body = await request.json()
    stream = await streaming(request)
    count = body.get("max_tokens") or body["max_completion_tokens"]
    for token in range(count):
        choice = {"text": "x", "token_ids": [1000 + token]} if "prompt" in body else {"delta": {"content": "x "}}
        reason = "length" if token + 1 == count else None
        await stream.write(as_event({"choices": [{**choice, "finish_reason": reason}]}))
    if usage:
        counts = {"prompt_tokens": len(body["prompt"]) if "prompt" in body else 100, "completion_tokens": count}
        usages = {**counts, "prompt_tokens_details": {"cached_tokens": 16}}
        await stream.write(as_event({"choices": [], "usage": usages}))
    await stream.write(as_event("[DONE]"))
    return stream


def _message(body: Json) -> tuple[Json, str]:
    """A tool call while tools are offered and fewer than two have run; then an answer."""
    ran = sum(message.get("role") == "tool" for message in body["messages"])
    if body.get("tools") and ran < 2:
        offered = body["tools"][0]["function"]["name"]
        function = {"name": offered, "arguments": "{}"}
        if offered == "pytest":
            function = {"name": ("grep", "pytest")[ran], "arguments": '{"x": 1}'}
        call = {"id": f"call{ran}", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
    content = '{"x": 1}' if body.get("response_format") else "fine"
    return {"role": "assistant", "content": content}, "stop"


def _deltas(body: Json) -> Iterator[tuple[Json, str | None]]:
    message, reason = _message(body)
    yield {"role": "assistant", "content": ""}, None
    for call in message.get("tool_calls", []):
        arguments = call["function"]["arguments"]
        yield {"tool_calls": [{**call, "index": 0, "function": {**call["function"], "arguments": ""}}]}, None
        for piece in (arguments[:4], arguments[4:]):
            yield {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}, None
    for piece in re.findall(".{1,2}", message["content"] or ""):
        yield {"content": piece}, None
    yield {}, reason


def _response(body: Json, usage: Json, status: str = "completed") -> Json:
    text = '{"x": 1}' if (body.get("text") or {}).get("format") else "fine"
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"id": "msg", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    if body.get("tools"):
        call = {"type": "function_call", "id": "fc", "call_id": "call0", "name": "grep", "arguments": '{"x": 1}'}
        item = {**call, "status": "completed"}
    plain = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    output = [item] if status == "completed" else []
    same = {"id": "resp", "object": "response", "created_at": 1, "model": "m", "status": status}
    return {**same, "output": output, **plain, **usage}


def _response_events(body: Json, usage: Json) -> Iterator[Json]:
    done = _response(body, usage)
    item = done["output"][0]
    events = [{"type": "response.created", "response": _response(body, {}, "in_progress")}]
    if item["type"] == "message":
        place = {"item_id": "msg", "output_index": 0, "content_index": 0}
        empty = {"type": "output_text", "text": "", "annotations": []}
        opened = {**item, "content": [], "status": "in_progress"}
        events.append({"type": "response.output_item.added", "output_index": 0, "item": opened})
        events.append({"type": "response.content_part.added", "part": empty, **place})
        for piece in re.findall(".{1,2}", item["content"][0]["text"]):
            events.append({"type": "response.output_text.delta", "logprobs": [], **place, "delta": piece})
    events.append({"type": "response.output_item.done", "output_index": 0, "item": item})
    events.append({"type": "response.completed", "response": done})
    yield from ({**event, "sequence_number": number} for number, event in enumerate(events))
