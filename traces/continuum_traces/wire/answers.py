"""The one reader of a server's answers: load generator, clients and proxy all read with it.

``Answer`` takes a whole answer, or the chunks or events of a stream: of OpenAI's chat, completions and Responses, and
of Anthropic's Messages, as plain JSON or as pydantic objects. It accepts every form in ``tests/stream_shapes.jsonl``,
and a field that it does not know has no effect. ``Answer.ending`` says how the answer ended.
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from continuum_traces.wire import MAX_TOOL_CHARS
from continuum_traces.wire.usage import count_in, fields_of, first_count, read_usage

End = Literal["finished", "cut", "refused", "failed"]
"""The answer has what was asked for, or a reason of its own to stop; the server stopped it early; a filter stopped it;
the server reported an error."""
LENGTH = frozenset(("length", "max_tokens", "max_output_tokens"))
_STOPS = """stop stop_sequence stop_token eos eos_token end_turn pause_turn completed repetition tool_calls tool_use
function_call model_context_window_exceeded"""
FINISHED = LENGTH.union(_STOPS.split())
"""Finish reasons of an answer that ended well. Any other one, ``abort`` or ``timeout`` for example, cuts it off."""
_FILTERS = """content_filter content_filtered refusal safety recitation blocklist prohibited_content spii image_safety
sensitive guardrail_intervened blocked"""
REFUSED = frozenset(_FILTERS.split())
FAILED = frozenset(("error", "failed", "internal_error", "network_error", "malformed_function_call"))
_LAST = ("response.completed", "response.incomplete", "response.failed", "response.cancelled", "message_stop")
"""Types of the last event of a stream. A stream of chunks may end with ``[DONE]`` instead."""
_ANTHROPIC = ("message", "message_start", "content_block_start", "content_block_delta", "message_delta")
_TEXT, _CALLS = frozenset(("content", "text")), frozenset(("tool_calls", "function_call"))
_THOUGHT = ("reasoning", "reasoning_content", "reasoning_details", "thinking", "thinking_blocks", "refusal", "audio")
_TOKENS = _TEXT | _CALLS | frozenset(_THOUGHT)
"""The fields of a message, or of a part of one, with what the model generated."""
_UNDER_WAY = (None, "queued", "in_progress")
_DONE = b"[DONE]"


@dataclass(frozen=True, slots=True)
class Asked:
    """The number of tokens that a request asks for, of each choice, and the number of choices."""

    least: int = 0
    """The model may not stop before."""
    most: int | None = None
    choices: int = 1


ANY_LENGTH = Asked()


@dataclass(frozen=True, slots=True)
class Ending:
    """How an answer ended."""

    end: End = "finished"
    code: str = ""
    """For counts of errors: ``stream``, ``invalid-json``, ``short``, ``long``, ``miscounted`` or ``refused``."""
    why: str = ""
    missing: int = 0
    """By how many tokens the answer is shorter than it had to be."""

    @property
    def error(self) -> str | None:
        """The error in words; None: the answer ended well."""
        return None if self.end == "finished" else f"{self.code}: {self.why}"


class Chunk(NamedTuple):
    """A part of an answer with output tokens."""

    instant_s: float
    tokens: int | None
    """None: the server does not say how many."""


@dataclass(slots=True)
class ToolAsked:
    """A tool call in an answer."""

    name: str = ""
    call_id: str = ""
    arguments: list[str] = field(default_factory=list)
    """The JSON text, in the parts in which it arrived."""

    def is_another(self, name: str, call_id: str) -> bool:
        """Whether a part with this name and id, at the place of this call, begins another call. Some servers give all
        calls the same place, some repeat the name in each part, and some send no ids."""
        if call_id and self.call_id:
            return call_id != self.call_id
        return _is_json("".join(self.arguments))

    def is_named(self, name: str) -> None:
        """Take a name, or the next part of it: it is complete before the arguments begin."""
        if not self.arguments:
            repeated = name.startswith(self.name)
            self.name = (name if repeated else self.name + name)[:MAX_TOOL_CHARS]


@dataclass(slots=True)
class Answer:
    """The facts of an answer, filled in while it arrives."""

    with_text: bool = False
    """Whether texts are stored."""
    alone: bool = False
    """The request asked for one answer, so that all choices are the same one, whatever index each part has."""
    parts: int = 0
    """The number of chunks with output tokens."""
    chunks: list[Chunk] | None = None
    """The chunks with output tokens; None: they are not stored."""
    done: bool | None = None
    """Whether the last event of a stream has come, which not every server sends. None: the answer is whole, or openai's
    library hides the event."""
    model: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    """Of all choices together, with reasoning."""
    cached_tokens: int | None = None
    reasoning_tokens: int = 0
    unnamed_tokens: int = 0
    """Tokens that the server counts in the total only: the output is longer by at most so many."""
    first_token_s: float | None = None
    """The instant at which the first token of a stream arrived, on the caller's clock; None: it was not a stream."""
    token_ids: list[int] = field(default_factory=list)
    job_id: str | None = None
    """The id of a response, by which it can be retrieved."""
    under_way: bool = False
    """Whether a response was accepted, and the model still answers."""
    fault: Ending | None = None
    """The first error that the server reported, or the first event that is not JSON."""
    reasons: dict[Any, str | None] = field(default_factory=dict)
    """The finish reason of each choice that has begun; None: it has not ended."""
    texts: dict[Any, list[str]] = field(default_factory=dict)
    """The text of each choice without its reasoning, in the parts in which it arrived."""
    tools: list[ToolAsked] = field(default_factory=list)
    _places: dict[tuple[Any, ...], ToolAsked] = field(default_factory=dict)
    """The latest tool call at each place (choice and index), and each tool call by its place and id."""
    _placed: int = 0
    """The number of tokens in the chunks that were stored, as far as the server says it."""

    # ------------------------------------------------------------------------------------------ what it says

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return "".join(self.texts[min(self.texts)]) if self.texts else ""

    @property
    def asked(self) -> list[ToolAsked]:
        """The tool calls that have a name, in order."""
        return [tool for tool in self.tools if tool.name.strip()]

    @property
    def choice_tokens(self) -> int | None:
        """The output tokens of one choice. Choices are decoded side by side, and servers count them together."""
        return None if self.output_tokens is None else -(-self.output_tokens // max(1, len(self.reasons)))

    @property
    def stopped(self) -> bool:
        """Whether every choice that has begun has a finish reason."""
        return bool(self.reasons) and all(self.reasons.values())

    def ending(self, asked: Asked = ANY_LENGTH) -> Ending:
        """Return how the answer ended, once its last byte has been read."""
        reasons = [str(reason).lower() for reason in self.reasons.values() if reason]
        if self.fault is not None:
            return self.fault
        for reason in reasons:
            if reason in FAILED:
                return Ending("failed", "stream", f"finish reason {reason!r}")
            if reason in REFUSED:
                return Ending("refused", "refused", f"finish reason {reason!r}")
        if self.done is False and not (self.stopped and len(self.reasons) >= asked.choices):
            return Ending("cut", "stream", "ended in the middle of the answer")
        return self._length(asked, reasons)

    def _length(self, asked: Asked, reasons: Sequence[str]) -> Ending:
        """Return the ending of an answer of which everything has come, by its length and its finish reasons."""
        counted, choices = self.output_tokens, max(1, len(self.reasons))
        tokens = counted if counted is not None else len(self.token_ids) or None
        strange = next((reason for reason in reasons if reason not in FINISHED), None)
        at_limit = not LENGTH.isdisjoint(reasons)
        end = f"with finish reason {strange or reasons[0]!r}" if self.stopped else "without a finish reason"
        least = choices * ((asked.most if choices == 1 and (at_limit or strange) else None) or asked.least)
        most = choices * asked.most if asked.most else None
        if tokens is not None and tokens + self.unnamed_tokens < least:
            return Ending("cut", "short", f"{tokens:,} of {least:,} tokens, {end}", least - tokens)
        if strange:
            return Ending("cut", "stream", f"ended {end}")
        if self.token_ids and counted not in (None, len(self.token_ids)):
            return Ending(
                "failed", "miscounted", f"{len(self.token_ids):,} tokens came, the server counted {counted:,}"
            )
        if tokens is not None and most is not None and tokens > most:
            return Ending("failed", "long", f"{tokens:,} tokens, {most:,} were asked for")
        if (least and tokens is not None) or (self.stopped and (at_limit or not least)):
            return Ending()
        return Ending("cut", "stream", f"ended {end}" + (" and without token counts" if least else ""))

    def counted_chunks(self) -> list[tuple[float, int]] | None:
        """Return the instant and the number of tokens of each chunk that was stored; None: the server does not say how
        many tokens each has, and there are not as many chunks as tokens, or several choices were decoded side by
        side."""
        if self.chunks is None or len(self.reasons) > 1:
            return None
        if len(self.chunks) == self.output_tokens:
            return [(chunk.instant_s, 1) for chunk in self.chunks]
        counted = [(chunk.instant_s, chunk.tokens) for chunk in self.chunks if chunk.tokens is not None]
        return counted if len(counted) == len(self.chunks) else None

    # ------------------------------------------------------------------------------------------ reading

    def take_events(
        self, events: bytes, clock: Callable[[], float], decode: Callable[[bytes], Any] = json.loads
    ) -> Any:
        """Read server-sent events, which have just arrived. Returns what ``decode`` made of the last one's data."""
        item = None
        for data in data_in(events):
            try:
                item = decode(data)
            except (ValueError, RecursionError) as error:
                self._not_json(data, error)
                continue
            now_s = clock() if self.first_token_s is None or self.chunks is not None else self.first_token_s
            if type(item) is dict:
                self.take(item, now_s)
            elif item == _DONE.decode():
                self.done = True
            else:
                for each in items_of(item):
                    self.take(each, now_s)
        return item

    def _not_json(self, data: bytes, error: Exception) -> None:
        """Note data that is the end of the stream, or is damaged: after the answer's end that harms nothing."""
        if data.lstrip().startswith(_DONE):
            self.done = True
        elif data.strip() and not self.stopped:
            self.fault = self.fault or Ending("failed", "invalid-json", f"{error}: {data.strip()[:200]!r}")

    def take(self, item: Any, now_s: float | None = None) -> None:
        """Read an answer, a chunk or an event.

        Args:
            item: the answer, chunk or event.
            now_s: the instant at which a part of a stream arrived; None for a whole answer.
        """
        fields = item if type(item) is dict else fields_of(item)
        counted = False
        if usage := fields.get("usage"):
            self._usage(fields_of(usage), fields)
            counted = self.output_tokens is not None
        if (choices := fields.get("choices")) and type(choices) is list:
            if self.model is None:
                self.model = fields.get("model")
            for number, choice in enumerate(choices):
                carried = (self.output_tokens or 0) - self._placed if counted else None
                self._choice(number, choice if type(choice) is dict else fields_of(choice), now_s, carried)
        elif kind := fields.get("object") if fields.get("object") in ("response", "error") else fields.get("type"):
            self._event(str(kind), fields, now_s)
        if error := fields.get("error"):
            self._failed(error)

    def _choice(self, number: int, choice: Mapping[str, Any], now_s: float | None, carried: int | None) -> None:
        index = 0 if self.alone else choice.get("index")
        if type(index) is not int:
            index = number
        token = False
        if part := choice.get("delta") or choice.get("message"):
            token = self._part_of(index, part if type(part) is dict else fields_of(part), now_s is None)
        elif text := choice.get("text"):
            token = True
            if self.with_text:
                self._text(index, text)
        if ids := choice.get("token_ids"):
            token = True
            self.token_ids += items_of(ids)
        if token:
            self._chunk(choice, now_s, carried)
        if (reason := choice.get("finish_reason")) and reason != "null":
            self.reasons[index] = str(reason)
            self._usage(fields_of(choice.get("usage")), {})  # Moonshot
        elif index not in self.reasons:
            self.reasons[index] = None
        if error := choice.get("error"):
            self._failed(error)

    def _part_of(self, choice: int, message: Mapping[str, Any], whole: bool) -> bool:
        """Read a choice's message or a part of it. Returns whether the model generated something of it."""
        token = False
        for name, value in message.items():
            if value and name in _TOKENS:
                token = True
                if name in _TEXT:
                    if self.with_text:
                        self._text(choice, value)
                elif name in _CALLS:
                    self._calls(choice, value, whole)
        return token

    def _text(self, choice: Any, value: Any) -> None:
        text = value if type(value) is str else text_of(value)
        if (texts := self.texts.get(choice)) is None:
            self.texts[choice] = [text]
        else:
            texts.append(text)

    def _calls(self, choice: int, value: Any, whole: bool) -> None:
        for place, call in enumerate(map(fields_of, items_of(value) or (value,))):
            index = None if whole else call.get("index")
            self._call(choice, place if index is None else index, call)

    def _chunk(self, choice: Mapping[str, Any], now_s: float | None, carried: int | None) -> None:
        """Note a chunk of a choice that has output tokens; ``carried`` is their number by the counts beside it."""
        if self.first_token_s is not None and self.chunks is None:
            self.parts += 1
        else:
            if carried is None or carried <= 0:  # some servers send zeros until the end
                carried = len(items_of(choice.get("token_ids"))) or _logprobs(choice)
            self._token(now_s, carried)

    def _token(self, now_s: float | None, tokens: int = 0) -> None:
        """Note that a chunk with output tokens has come; ``tokens`` is 0 if the server does not say how many."""
        self.parts += 1
        if self.first_token_s is None:
            self.first_token_s = now_s
        if self.chunks is not None and now_s is not None:
            self.chunks.append(Chunk(now_s, tokens if tokens > 0 else None))
            self._placed += max(0, tokens)

    def _failed(self, error: Any) -> None:
        fields = fields_of(error)
        text = str(fields.get("message") or error)
        self.fault = self.fault or Ending("failed", "stream", text[:500])

    def _call(self, choice: Any, place: Any, call: Mapping[str, Any], whole: bool = False) -> None:
        """Read a tool call or a part of one.

        Args:
            choice: the choice that it is in.
            place: its index among the choice's calls.
            call: its fields.
            whole: the call is complete, and takes the place of its parts.
        """
        function = fields_of(call.get("function") or call.get("custom") or call)
        call_id, name = str(call.get("call_id") or call.get("id") or ""), str(function.get("name") or "")
        tool = self._places.get((choice, place, call_id)) if call_id else None
        tool = tool or self._places.get((choice, place))
        if tool is None or (name and not whole and tool.is_another(name, call_id)):
            tool = ToolAsked()
            self.tools.append(tool)
        tool.call_id = tool.call_id or call_id
        tool.is_named(name)
        self._places[choice, place] = self._places[choice, place, tool.call_id] = tool
        if arguments := function.get("arguments") or function.get("input"):
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            tool.arguments[len(tool.arguments) if not whole else 0 :] = [text]

    # ------------------------------------------------------------------- Responses, and Anthropic's Messages

    def _event(self, kind: str, fields: Mapping[str, Any], now_s: float | None) -> None:
        """Read an event by its type, or a whole answer without choices."""
        if kind == "response":
            self._response(fields, "completed" if fields.get("output") else None, now_s)
        elif kind in _ANTHROPIC:
            self._anthropic(kind, fields, now_s)
        elif kind.endswith(".delta") and fields.get("delta"):
            self._token(now_s)
        elif kind == "response.output_item.done":
            self._part(fields.get("output_index"), fields_of(fields.get("item")))
            self._without_deltas(now_s)
        elif kind.startswith("response.") and (response := fields_of(fields.get("response"))):
            self._usage(fields_of(response.get("usage")), {})
            self._response(response, kind.removeprefix("response.") if kind in _LAST else None, now_s)
        elif kind == "error":
            self._failed(fields.get("error") or fields)
        if kind in _LAST:
            self.done = True

    def _without_deltas(self, now_s: float | None) -> None:
        """Note that tokens have come; if some came in deltas before, these are no others."""
        if self.first_token_s is None and now_s is not None:
            self._token(now_s)

    def _response(self, response: Mapping[str, Any], default: str | None, now_s: float | None) -> None:
        """Read an answer of the Responses API. ``default`` is its status if it names none."""
        self.model = response.get("model") or self.model
        outputs = items_of(response.get("output"))
        if outputs:  # each poll of a response has all that it has until then
            self.texts.pop(0, None)
            self._without_deltas(now_s)
        for number, output in enumerate(outputs):
            self._part(number, fields_of(output), self.with_text)
        status = response.get("status") or default
        self.job_id = response.get("id") or self.job_id
        self.under_way = status is not None and status in _UNDER_WAY
        if status not in _UNDER_WAY:
            details = fields_of(response.get("incomplete_details"))
            self.reasons[0] = str((details.get("reason") if status == "incomplete" else None) or status)
        if error := response.get("error"):
            self._failed(error)

    def _anthropic(self, kind: str, fields: Mapping[str, Any], now_s: float | None) -> None:
        """Read an answer or an event of Anthropic's API. ``take`` has read its usage already."""
        index, delta = fields.get("index"), fields_of(fields.get("delta"))
        if kind == "message_start":
            fields = fields_of(fields.get("message"))
            self._usage(fields_of(fields.get("usage")), {})
        for number, block in enumerate(items_of(fields.get("content"))):
            self._part(number, fields_of(block), self.with_text)
            self._without_deltas(now_s)
        if kind == "content_block_start":
            block = fields_of(fields.get("content_block"))
            self._part(index, block, self.with_text)
            if block.get("text") or block.get("input"):
                self._without_deltas(now_s)
        elif kind == "content_block_delta" and any(map(delta.get, ("text", "thinking", "partial_json"))):
            self._token(now_s)
            if part := delta.get("partial_json"):
                if (0, index) in self._places:
                    self._call(0, index, {"arguments": part})
            elif self.with_text:
                self._part(index, delta, True)
        self.model = fields.get("model") or self.model
        if reason := fields.get("stop_reason") or delta.get("stop_reason"):
            self.reasons[0] = str(reason)

    def _part(self, number: Any, part: Mapping[str, Any], with_text: bool = False) -> None:
        """Read an item of a Responses answer, or a block of a message in Anthropic's API."""
        if part.get("name"):
            if part.get("type") != "server_tool_use":
                self._call(0, number, part, whole=True)
        elif with_text and part.get("type") != "reasoning":
            self._text(0, part.get("text") or part.get("content"))

    # ------------------------------------------------------------------------------------------ counts

    def _usage(self, usage: Mapping[str, Any], chunk: Mapping[str, Any]) -> None:
        """Read token counts. Some servers send them with each chunk, some in parts; they only grow."""
        counts = read_usage(usage)
        cached, llama = counts.cached_tokens, count_in(fields_of(chunk.get("timings")), "cache_n")
        self.prompt_tokens = _larger(self.prompt_tokens, counts.prompt_tokens)
        self.output_tokens = _larger(self.output_tokens, counts.output_tokens)
        self.cached_tokens = _larger(self.cached_tokens, llama if cached is None else cached)
        self.reasoning_tokens = max(self.reasoning_tokens, counts.reasoning_tokens)
        self.unnamed_tokens = max(self.unnamed_tokens, counts.unnamed_tokens)


class EventBytes:
    """Cuts a stream of bytes after its whole server-sent events."""

    def __init__(self) -> None:
        self.rest = b""
        self._begun = False

    def feed(self, piece: bytes) -> bytes:
        """Return the events that the piece completes, with the blank lines after them."""
        text = self.rest + piece
        if not self._begun:
            if len(text) < len(BOM_UTF8) and BOM_UTF8.startswith(text):
                self.rest = text
                return b""
            text, self._begun = text.removeprefix(BOM_UTF8), True
        end = text.rfind(b"\n\n") + 2
        if b"\r" in text:
            end = max(end, text.rfind(b"\r\n\r\n") + 4, text.rfind(b"\r\r") + 2)
        if end < 5:
            self.rest = text
            return b""
        self.rest = text[end:]
        return text[:end]

    def last(self) -> bytes:
        """Return the last event, if the stream ended without the blank line after it."""
        rest, self.rest = self.rest, b""
        return rest


def data_in(events: bytes) -> list[bytes]:
    """Return the data of events. Events between which the blank line is missing are told apart too. An answer that came
    whole, in place of a stream, is the data itself."""
    between = events.count(b"\n\ndata:")
    if events.startswith(b"data:") and events.endswith(b"\n\n") and events.count(b"\n") == 2 * between + 2:
        return events[5:-2].split(b"\n\ndata:")
    data: list[bytes] = []
    begun = False
    for line in events.splitlines():
        if not line.startswith(b"data:"):
            begun = begun and bool(line)
        elif begun and not (data[-1].rstrip().endswith(b"}") and line[5:].lstrip().startswith((b"{", _DONE))):
            data[-1] += b"\n" + line[5:]
        else:
            data.append(line[5:])
            begun = True
    return data or [events] * events.lstrip().startswith(b"{")


def asked_in(body: Any) -> Asked:
    """Return the lengths and the number of answers that a request asks for."""
    fields = fields_of(body)
    most = first_count(fields, "max_tokens", "max_completion_tokens", "max_output_tokens") or None
    stops = any(fields.get(name) for name in ("stop", "stop_token_ids"))
    exact = most or 0 if fields.get("ignore_eos") is True and not stops else 0
    prompts = items_of(fields.get("prompt"))
    texts = len(prompts) if any(isinstance(prompt, str | list) for prompt in prompts) else 1
    return Asked(max(exact, count_in(fields, "min_tokens") or 0), most, texts * (count_in(fields, "n") or 1))


def only_usage(item: Any) -> bool:
    """Whether a chunk contains the token counts and no choices: the last chunk with ``include_usage``."""
    fields = fields_of(item)
    return bool(fields.get("usage")) and not fields.get("choices") and not fields.get("error")


def items_of(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _logprobs(choice: Mapping[str, Any]) -> int:
    """Return the number of tokens for which a chunk has logprobs, of a chat or a completion."""
    logprobs = fields_of(choice.get("logprobs"))
    return len(items_of(next(filter(None, map(logprobs.get, ("content", "tokens", "refusal"))), None)))


def text_of(value: Any) -> str:
    """Return the text of a message's content: a text, or a list of parts, of which only those with text count."""
    if isinstance(value, str):
        return value
    return "".join(text for part in items_of(value) if isinstance(text := fields_of(part).get("text"), str))


def _larger(before: int | None, now: int | None) -> int | None:
    return before if now is None else now if before is None else max(before, now)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
