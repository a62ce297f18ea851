"""Servers with strict schemas, on one asyncio thread: what is not in a server's schema is refused as that server does.

Field lists: OpenAI's from the installed ``openai`` package's own parameter types; the others' extensions from their
sources (continuum_client/dialects.py names them).
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, get_type_hints
from urllib.parse import unquote

from openai.types import completion_create_params as completion_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params as responses_params

Json = dict[str, Any]

STANDARD: dict[str, frozenset[str]] = {
    "/chat/completions": frozenset(get_type_hints(chat_params.CompletionCreateParamsBase)) | {"stream"},
    "/completions": frozenset(get_type_hints(completion_params.CompletionCreateParamsBase)) | {"stream"},
    "/responses": frozenset(get_type_hints(responses_params.ResponseCreateParamsBase)) | {"stream"},
}


@dataclass(frozen=True)
class Refusal:
    status: int
    body: Any


Check = Callable[[str, Json], Refusal | None]


def _error(message: str, **more: Any) -> Refusal:
    return Refusal(400, {"error": {"message": message, "type": "invalid_request_error", **more}})


def _unknown(path: str, body: Json, extra: set[str]) -> list[str]:
    return sorted(set(body) - STANDARD[path] - extra)


def openai_schema(path: str, body: Json) -> Refusal | None:
    unknown = _unknown(path, body, set())
    if unknown:
        return _error(f"Unrecognized request argument supplied: {unknown[0]}", param=None, code=None)
    key = body.get("prompt_cache_key")
    if key is not None and (not isinstance(key, str) or len(key) > 64):
        return _error("Invalid 'prompt_cache_key': string too long. Expected a string with maximum length 64.")
    return None


def vllm_schema(path: str, body: Json) -> Refusal | None:
    extra = {"session_id", "vllm_xargs", "priority", "ignore_eos", "min_tokens", "add_special_tokens", "cache_salt"}
    unknown = _unknown(path, body, extra)
    if unknown:
        return _error(f"extra field: {unknown[0]}")
    if body.get("priority"):
        return _error("priority scheduling is not enabled")
    if not isinstance(body.get("session_id", ""), str):
        return _error("session_id: expected text")
    for name, value in body.get("vllm_xargs", {}).items():
        flat = value if isinstance(value, list) else [value]
        if not all(type(item) in (str, int, float) for item in flat):
            return _error(f"vllm_xargs.{name}: {value!r} is not str, int, float or a flat list of them")
    return None


def sglang_schema(path: str, body: Json) -> Refusal | None:
    extra = {"session_id", "session_params", "priority", "extra_key", "cache_salt", "rid", "custom_params"}
    unknown = _unknown(path, body, extra)
    return _error(f"extra field: {unknown[0]}") if unknown else None


DYNAMO_PASSES = {
    "cache_salt",
    "stop_token_ids",
    "detokenize",
    "allowed_token_ids",
    "bad_words_token_ids",
    "logprob_token_ids",
}


def dynamo_schema(path: str, body: Json) -> Refusal | None:
    unknown = _unknown(path, body, DYNAMO_PASSES | {"nvext"})
    if unknown:
        return _error("Validation: Unsupported parameter(s): " + ", ".join(f"`{name}`" for name in unknown))
    nvext = body.get("nvext", {})
    hints = nvext.get("agent_hints", {})
    wrong = set(nvext) - {"agent_hints", "extra_fields", "agent_context", "cache_control"}
    wrong |= set(hints) - {"priority", "strict_priority", "osl", "speculative_prefill"}
    if wrong or not isinstance(hints.get("osl", 1), int):
        return _error(f"nvext: {sorted(wrong)}")
    return None


def trtllm_schema(path: str, body: Json) -> Refusal | None:
    extra = {"cache_salt", "priority", "agent_hierarchy", "kv_hints"}
    unknown = _unknown(path, body, extra | (set() if path == "/responses" else {"conversation_params"}))
    params = body.get("conversation_params", {})
    unknown += [f"conversation_params.{name}" for name in set(params) - {"conversation_id"}]
    if unknown:
        loc = ["body", *unknown[0].split(".")]
        what = {"type": "extra_forbidden", "loc": loc, "msg": "Extra inputs are not permitted"}
        return Refusal(400, {"object": "error", "message": str([what]), "type": "BadRequestError", "code": 400})
    return None


def thunderagent_schema(path: str, body: Json) -> Refusal | None:
    unknown = _unknown(path, body, {"program_id", "docker_ids"})
    if unknown:
        return _error(f"extra field: {unknown[0]}")
    return None if isinstance(body.get("program_id", ""), str) else _error("program_id: expected text")


SCHEMAS: dict[str, Check] = {
    "openai": openai_schema,
    "vllm": vllm_schema,
    "sglang": sglang_schema,
    "dynamo": dynamo_schema,
    "trtllm": trtllm_schema,
    "thunderagent": thunderagent_schema,
}
OWNERS = {"vllm": "vllm", "sglang": "sglang", "dynamo": "nvidia", "trtllm": "tensorrt_llm", "thunderagent": "vllm"}
RELEASES = {"sglang": "/close_session", "thunderagent": "/programs/release"}


@dataclass
class Seen:
    """A request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    status: int = 200

    @property
    def program_id(self) -> str | None:
        return self.headers.get("x-session-id")


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
    """``with FakeServer("vllm") as server``: ``server.url`` is the base URL, ``server.seen`` what came."""

    def __init__(self, schema: str = "openai", usage: bool = True) -> None:
        self.schema = schema
        self.check = SCHEMAS[schema]
        self.usage = usage
        self.seen: list[Seen] = []
        self.plan: deque[Planned] = deque()
        self.cached = True
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> FakeServer:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Until it holds: a client that gives up may be gone before its request was read here."""
        for _ in range(6000):
            if condition():
                return
            time.sleep(0.01)
        raise AssertionError("it never came to that")

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return self.root + "/v1"

    @property
    def turns(self) -> list[Seen]:
        """Generating requests that were answered."""
        return [seen for seen in self.seen if _generating(seen.path) and seen.status == 200]

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=4096))
        self.port: int = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        while tasks := asyncio.all_tasks(self._loop):
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.sleep(0))
        for _ in range(3):  # transports close in callbacks of callbacks
            self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    # ------------------------------------------------------------------------------------------ HTTP

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").strip().split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        seen = Seen(method, target.partition("?")[0], headers, json.loads(raw) if raw else None)
        self.seen.append(seen)
        generating = _generating(seen.path)
        planned = self.plan.popleft() if generating and self.plan else None
        if planned is not None:
            await asyncio.sleep(planned.delay_s)
            if planned.hang_up:
                seen.status = 0
                return False
            if planned.status != 200:
                seen.status = planned.status
                await _send_json(writer, planned.status, planned.body or {"error": {"message": "planned"}}, planned)
                return True
        if generating is None:
            await self._own(seen, writer)
            return True
        refusal = self.check(generating, seen.body)
        if refusal is not None:
            seen.status = refusal.status
            await _send_json(writer, refusal.status, refusal.body)
            return True
        await self._answer(generating, seen.body, writer, planned)
        return not (planned and planned.tear)

    async def _own(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        path = seen.path
        if path == "/v1/models":
            data = [{"id": "m", "object": "model", "created": 1, "owned_by": OWNERS.get(self.schema, "openai")}]
            await _send_json(writer, 200, {"object": "list", "data": data})
        elif path == "/v1/embeddings":
            data = [{"object": "embedding", "index": 0, "embedding": [0.0]}]
            usage = {"prompt_tokens": 1, "total_tokens": 1}
            await _send_json(writer, 200, {"object": "list", "data": data, "model": "m", "usage": usage})
        elif path == RELEASES.get(self.schema) or (path.startswith("/continuum/") and self.schema == "vllm"):
            await _send_json(writer, 200, {"released": True})
        else:
            seen.status = 404
            await _send_json(writer, 404, {"error": {"message": f"no {unquote(path)}"}})

    async def _answer(self, path: str, body: Json, writer: asyncio.StreamWriter, planned: Planned | None) -> None:
        if not body.get("stream"):
            await _send_json(writer, 200, self.answer(path, body), planned)
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for number, event in enumerate(self.events(path, body)):
            if planned is not None and planned.tear and number == 2:
                await writer.drain()
                return
            text = event if isinstance(event, str) else json.dumps(event)
            name = f"event: {event['type']}\n" if path == "/responses" and isinstance(event, dict) else ""
            part = f"{name}data: {text}\n\n".encode()
            writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    # --------------------------------------------------------------------------------------- answers

    def answer(self, path: str, body: Json) -> Json:
        usage = self._usage(path, body)
        if path == "/responses":
            return _response(body, usage)
        if path == "/completions":
            choice: Json = {"index": 0, "text": " fine", "finish_reason": "stop", "logprobs": None}
            return {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [choice], **usage}
        message, reason = _message(body)
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], **usage}

    def events(self, path: str, body: Json) -> Iterator[Json | str]:
        usage = self._usage(path, body)
        if path == "/responses":
            yield from _response_events(body, usage)
            return
        base: Json = {"id": "c", "created": 1, "model": "m", "object": "chat.completion.chunk"}
        if path == "/completions":
            base["object"] = "text_completion"
            for text in (" fi", "ne"):
                yield {**base, "choices": [{"index": 0, "text": text, "finish_reason": None}]}
            yield {**base, "choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}
        else:
            for delta, reason in _deltas(body):
                yield {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
        if (body.get("stream_options") or {}).get("include_usage") and usage:
            yield {**base, "choices": [], **usage}
        yield "[DONE]"

    def _usage(self, path: str, body: Json) -> Json:
        if not self.usage:
            return {}
        prompt = max(1, len(json.dumps(body.get("messages") or body.get("prompt") or body.get("input"))) // 4)
        cached = prompt // 2 if self.cached else 0
        if path == "/responses":
            details = {
                "input_tokens_details": {"cached_tokens": cached},
                "output_tokens_details": {"reasoning_tokens": 0},
            }
            return {"usage": {"input_tokens": prompt, "output_tokens": 7, "total_tokens": prompt + 7, **details}}
        details = {"prompt_tokens_details": {"cached_tokens": cached}}
        return {"usage": {"prompt_tokens": prompt, "completion_tokens": 7, "total_tokens": prompt + 7, **details}}


def _generating(path: str) -> str | None:
    return next((name for name in ("/chat/completions", "/completions", "/responses") if path.endswith(name)), None)


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
    if message["content"] is None:
        call = message["tool_calls"][0]
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        head = {"index": 0, "id": call["id"], "type": "function", "function": {"name": name, "arguments": ""}}
        yield {"tool_calls": [head]}, None
        for piece in (arguments[:4], arguments[4:]):
            yield {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}, None
    else:
        half = len(message["content"]) // 2
        yield {"content": message["content"][:half]}, None
        yield {"content": message["content"][half:]}, None
    yield {}, reason


def _response(body: Json, usage: Json, status: str = "completed") -> Json:
    text = '{"x": 1}' if (body.get("text") or {}).get("format") else "fine"
    part = {"type": "output_text", "text": text, "annotations": []}
    output = [{"id": "msg", "type": "message", "role": "assistant", "status": "completed", "content": [part]}]
    if body.get("tools"):
        call = {"type": "function_call", "id": "fc", "call_id": "call0", "name": "grep", "arguments": '{"x": 1}'}
        output = [{**call, "status": "completed"}]
    return {
        "id": "resp",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "status": status,
        "output": output if status == "completed" else [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        **usage,
    }


def _response_events(body: Json, usage: Json) -> Iterator[Json]:
    done = _response(body, usage)
    item = done["output"][0]
    yield {"type": "response.created", "sequence_number": 0, "response": _response(body, {}, "in_progress")}
    if item["type"] == "message":
        place = {"item_id": "msg", "output_index": 0, "content_index": 0}
        empty = {"type": "output_text", "text": "", "annotations": []}
        opened = {**item, "content": [], "status": "in_progress"}
        yield {"type": "response.output_item.added", "sequence_number": 1, "output_index": 0, "item": opened}
        yield {"type": "response.content_part.added", "sequence_number": 2, "part": empty, **place}
        text = item["content"][0]["text"]
        for number, piece in enumerate((text[:2], text[2:])):
            delta = {"type": "response.output_text.delta", "delta": piece, "logprobs": [], **place}
            yield {**delta, "sequence_number": 3 + number}
        yield {"type": "response.output_text.done", "sequence_number": 5, "text": text, "logprobs": [], **place}
    yield {"type": "response.output_item.done", "sequence_number": 6, "output_index": 0, "item": item}
    yield {"type": "response.completed", "sequence_number": 7, "response": done}


async def _send_json(writer: asyncio.StreamWriter, status: int, data: Any, planned: Planned | None = None) -> None:
    body = json.dumps(data).encode()
    more = "".join(f"{name}: {value}\r\n" for name, value in (planned.headers if planned else {}).items())
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    writer.write(head.encode() + body[: 5 if planned is not None and planned.tear else None])
    await writer.drain()


async def collected(stream: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in stream]
