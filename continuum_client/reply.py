"""Read token counts, tool calls and text from a reply.

A reply is a complete answer or the chunks of a stream, in the form of openai's objects or of plain JSON.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from continuum_traces.wire import MAX_TOOL_CHARS

Content = Literal["none", "digest", "full"]
"""How much text is recorded: no text, digests of tool arguments, or the whole answer and arguments."""

CONTENTS: tuple[Content, ...] = get_args(Content)

_ENDS = ("response.completed", "response.incomplete", "response.failed")
ENDS = (*_ENDS, "message_stop")
"""Types of the last event of a stream. A stream of chat chunks ends with ``[DONE]`` instead."""
ANTHROPIC = ("message", "message_start", "content_block_start", "content_block_delta", "message_delta")
"""Types of the answers and events of Anthropic's API that contain facts of the reply."""


def check_content(content: str, source: str = "content") -> Content:
    """Return ``content`` if it is a ``Content``.

    Args:
        content: the name.
        source: where the name comes from, for the error message.

    Raises:
        ValueError: ``content`` is another name.
    """
    if content not in CONTENTS:
        raise ValueError(f"{source} {content!r}: there are {', '.join(CONTENTS)}")
    return content


@dataclass(slots=True)
class ToolAsked:
    """A tool call in a reply."""

    name: str = ""
    call_id: str = ""
    arguments: list[str] = field(default_factory=list)
    """The JSON text, in the parts in which it arrived; empty with content ``none``."""


@dataclass(slots=True)
class Reply:
    """The facts of a reply, filled in while the reply arrives. Arguments of tools are stored as far as
    ``content`` allows."""

    content: Content = "none"
    with_text: bool = False
    """Whether the text is stored; always with the content ``full``."""
    model: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int = 0
    first_token_s: float | None = None
    """The instant at which the first token of a stream arrived, on the client's clock; None: it was not a stream."""
    finished: bool = False
    """Whether the server has sent the end of the answer (a finish reason or a final status)."""
    tools: dict[Any, ToolAsked] = field(default_factory=dict)
    text: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.with_text = self.with_text or self.content == "full"

    def take(self, item: Any, now_s: float | None = None) -> None:
        """Read an answer, a chunk or an event.

        Args:
            item: the answer, chunk or event.
            now_s: the instant at which a part of a stream arrived; None for a complete answer.
        """
        choices = get(item, "choices")
        usage = get(item, "usage")
        if usage is not None:
            self._usage(usage)
        if choices is not None:
            if self.model is None:
                self.model = get(item, "model")
            for choice in choices:
                self._choice(choice, now_s)
            return
        kind = str(get(item, "type"))
        if kind.startswith("response."):
            self._response_event(kind, item, now_s)
        elif kind in ANTHROPIC:
            self._anthropic(kind, item, now_s)
        else:
            self._response(item)

    def _choice(self, choice: Any, now_s: float | None) -> None:
        part = get(choice, "delta") or get(choice, "message") or choice  # a completion's choice has the text itself
        calls = get(part, "tool_calls")
        if calls:
            self._token(now_s)
            for number, call in enumerate(calls):
                position = get(call, "index")
                function = get(call, "function") or get(call, "custom")
                self._asked(number if position is None else position, function, get(call, "id"))
        if self.with_text or (self.first_token_s is None and now_s is not None):
            self._text(part, now_s)
        if get(choice, "finish_reason"):
            self.finished = True

    def _text(self, part: Any, now_s: float | None) -> None:
        text = get(part, "content") or get(part, "text")
        if text or any(get(part, name) for name in ("reasoning_content", "reasoning", "refusal")):
            self._token(now_s)
        if self.with_text and isinstance(text, str):
            self.text.append(text)

    def _response(self, response: Any) -> None:
        """Read an answer of the Responses API."""
        self.model = get(response, "model") or self.model
        for number, output in enumerate(get(response, "output") or ()):
            self._part(number, output)
        if get(response, "status") in ("completed", "incomplete", "failed"):
            self.finished = True

    def _response_event(self, kind: str, event: Any, now_s: float | None) -> None:
        """Read an event of the Responses API's stream."""
        if kind.endswith(".delta"):
            self._token(now_s)
        elif kind in _ENDS:
            self.take(get(event, "response"))
            self.finished = True

    def _anthropic(self, kind: str, item: Any, now_s: float | None) -> None:
        """Read an answer or an event of Anthropic's API. ``take`` has read its usage already."""
        if kind == "message":
            for number, block in enumerate(get(item, "content") or ()):
                self._part(number, block)
        elif kind == "message_start":
            message = get(item, "message")
            self.model = get(message, "model")
            self._usage(get(message, "usage"))
        elif kind == "content_block_start":
            self._part(get(item, "index"), get(item, "content_block"))
        elif kind == "content_block_delta":
            self._token(now_s)
            self._delta(get(item, "index"), get(item, "delta"))
        self.model = get(item, "model") or self.model
        self.finished = self.finished or bool(get(item, "stop_reason") or get(get(item, "delta"), "stop_reason"))

    def _part(self, number: Any, part: Any) -> None:
        """Read an item of a Responses answer, or a block of a message in Anthropic's API."""
        if get(part, "name") and get(part, "type") != "server_tool_use":
            self._asked(number, part, get(part, "call_id") or get(part, "id"))
        elif self.with_text:
            texts = [get(part, "text"), *(get(inner, "text") for inner in get(part, "content") or ())]
            self.text.extend(text for text in texts if isinstance(text, str))

    def _delta(self, number: Any, delta: Any) -> None:
        json_part = get(delta, "partial_json")
        if isinstance(json_part, str):
            self._asked(number, {"arguments": json_part})
        else:
            self._part(number, delta)

    def _asked(self, position: Any, function: Any, call_id: Any = None) -> None:
        tool = self.tools.setdefault(position, ToolAsked())
        tool.call_id = tool.call_id or str(call_id or "")
        tool.name = tool.name or str(get(function, "name") or "")[:MAX_TOOL_CHARS]
        arguments = get(function, "arguments") or get(function, "input")
        if self.content != "none" and arguments:
            tool.arguments.append(arguments if isinstance(arguments, str) else json.dumps(arguments))

    def _token(self, now_s: float | None) -> None:
        if self.first_token_s is None:
            self.first_token_s = now_s

    def _usage(self, usage: Any) -> None:
        written, read = _count(usage, "cache_creation_input_tokens"), _count(usage, "cache_read_input_tokens")
        prompt_tokens = _count(usage, "prompt_tokens", "input_tokens")
        if prompt_tokens is not None:  # the last usage of Anthropic's stream may contain only the output
            self.prompt_tokens = prompt_tokens + (written or 0) + (read or 0)  # Anthropic counts these separately
        self.output_tokens = _count(usage, "completion_tokens", "output_tokens")
        prompt = get(usage, "prompt_tokens_details") or get(usage, "input_tokens_details")
        output = get(usage, "completion_tokens_details") or get(usage, "output_tokens_details")
        cached = _count(prompt, "cached_tokens")
        self.cached_tokens = next((count for count in (cached, read) if count is not None), self.cached_tokens)
        self.reasoning_tokens = _count(output, "reasoning_tokens") or 0

    @property
    def asked(self) -> list[ToolAsked]:
        """The tool calls that have a name, in order."""
        return [tool for tool in self.tools.values() if tool.name.strip()]


def get(item: Any, name: str) -> Any:
    """Return a field of a pydantic model or of plain JSON; None if the field is missing.

    It reads pydantic's own dictionaries, because ``getattr`` for a missing attribute of a model takes ten times as long
    as for an existing attribute.
    """
    if isinstance(item, dict):
        return item.get(name)
    fields = getattr(item, "__dict__", None)
    if fields is None:
        return None
    if name in fields:
        return fields[name]
    extra = getattr(item, "__pydantic_extra__", None)
    return extra.get(name) if extra else None


def _count(usage: Any, *names: str) -> int | None:
    for name in names:
        value = get(usage, name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None


def only_usage(chunk: Any) -> bool:
    """Whether a chunk contains the token counts and no choices: the last chunk with ``include_usage``."""
    return get(chunk, "choices") == [] and get(chunk, "usage") is not None
