"""``Call``, one call of a program: it adds tags to the request, and leaves them out if the server refuses them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from continuum_traces.wire.answers import Asked, asked_in

from continuum_client.conversation import NO_SHAPE, Conversation, shape_of
from continuum_client.current import closed_here, entered_elsewhere
from continuum_client.dialects import HEADERS, Dialect
from continuum_client.ending import unless_dropped
from continuum_client.endpoints import Feature, endpoints, named_in, shown
from continuum_client.errors import logger, once
from continuum_client.observe import NOT_RECORDED, OnEnd, WatchedReply, watch
from continuum_client.options import ClientState
from continuum_client.own_requests import Sender, awaited, dialect_for
from continuum_client.program import Program, current_program
from continuum_client.reply import Content, Reply
from continuum_client.spans import CallSpan, current_span
from continuum_client.state import CutOff, TaggedProgram
from continuum_client.tagging import merged_body, merged_headers, tag_body, tag_headers
from continuum_client.tools import ToolRun
from continuum_client.turns import EndedCall

GENERATING = frozenset(("/chat/completions", "/completions", "/responses"))
"""Paths of the requests that are turns; all other requests are sent unchanged."""
MESSAGES = "/messages"
"""The path of Anthropic's API, which only the proxy sees. Only the dialect ``vllm`` has body fields for it."""
STREAM_OPTIONS = "stream_options"
RAW = "x-stainless-raw-response"
"""The header by which openai's library says that the caller gets the response itself, as LiteLLM does."""
REFUSALS = (400, 422)
"""HTTP statuses with which servers refuse an unknown field."""
MAX_COMPLAINT_CHARS = 20_000
"""The part of a server's error message that is searched for the names of our fields."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request that generates text, as a client is about to send it."""

    path: str
    """After the base URL."""
    headers: Mapping[str, Any]
    """The headers that the caller has set or removed for this request."""
    body: Mapping[str, Any] | None
    """None: it is no JSON object."""
    extra_body: Mapping[str, Any] | None = None
    """Fields to merge into the body."""
    stream: bool = False
    """Whether the caller asks for a stream."""


class Call:
    """One call, from the caller's request to the end of the reply. openai's retries are part of the call.

    Args:
        client: the state of the client that sends the request.
        program: the program of the call.
        request: the request, without tags.
        sender: sends the client's own requests.
        conversation: the conversation in which the call is made, if it is outside ``client.program``.
    """

    def __init__(
        self,
        client: ClientState,
        program: TaggedProgram,
        request: Outgoing,
        sender: Sender,
        conversation: Conversation | None = None,
    ) -> None:
        self._client = client
        self._program = program
        self._request = request
        self._sender = sender
        self._conversation = conversation
        self._model = str(request.body and request.body.get("model"))
        before, program.cut_off = program.cut_off, None
        again = before is not None and before.prompt == shape_of(request.body) != NO_SHAPE
        self._taken = program.take(before.tags if before is not None and again else None)
        self._sent_s = client.clock()
        self._shape = None if conversation is None else conversation.shape
        self._dialect: Dialect | None = None
        """The dialect of the tags; None: it is not known yet."""
        self._tagged = request
        """The request with our headers and fields."""
        self._added: dict[str, Any] = {}
        """Our body fields that are in the request."""
        self._span: CallSpan | None = None
        self._without: list[Feature] = []
        """The features that were left out after a refusal."""
        self._refused: list[str] = []
        """The fields that the server named in its refusal."""
        if program.ledger is not None:
            program.ledger.begin_turn()

    async def send(self, send: Callable[[Outgoing], Any]) -> Any:
        """Send the call with its tags; if the server refuses our fields, once more without them.

        Args:
            send: sends a request. Its result is returned.
        """
        while True:
            try:
                if self._dialect is None:
                    self._begin(await dialect_for(self._client.dialect, self._sender))
                return await awaited(send(self._tagged))
            except BaseException as error:
                if not self._retry_untagged(error):
                    raise

    def _begin(self, dialect: Dialect) -> None:
        path, url, tags = self._request.path, self._sender.url, self._taken.tags
        if path == MESSAGES and dialect.name != "vllm":
            dialect = HEADERS
        self._dialect = dialect
        accepted = dialect if endpoints.accepts(url, self._model, "extension") else HEADERS
        self._program.carried_by(self._sender, accepted, self._taken)
        self._write(accepted)
        outer = current_span()
        self._span = None if outer is None else CallSpan(outer, path, self._model, tags)
        message = "program %s, turn %s: sent to %s with headers and the body fields %s"
        logger.debug(message, tags.program_id, tags.turn_id, shown(url), [*self._added])

    def _write(self, dialect: Dialect) -> None:
        request, tags = self._request, self._taken.tags
        self._tagged = replace(request, headers=merged_headers(request.headers, tag_headers(tags)))
        if request.body is None:
            return
        fields = tag_body(tags, dialect, request.path, self._program.output_tokens)
        if self._wants_usage():
            fields[STREAM_OPTIONS] = {"include_usage": True}
        written = [name for name in fields if request.body.get(name) is not None]
        extra = merged_body(request.extra_body, fields, written) or request.extra_body
        self._tagged = replace(self._tagged, extra_body=extra)
        self._added = {name: value for name, value in fields.items() if name not in written}

    def _wants_usage(self) -> bool:
        """Whether to ask for the token counts of a stream: the stream is recorded, the caller did not ask for the
        counts, and the extra chunk can be hidden from the caller."""
        request = self._request
        return (
            request.stream
            and self._program.ledger is not None
            and request.path in ("/chat/completions", "/completions")
            and "stream_usage" not in self._without
            and endpoints.accepts(self._sender.url, self._model, "stream_usage")
            and not any(name.lower() == RAW for name in request.headers)
            and not (request.extra_body and STREAM_OPTIONS in request.extra_body)
            and not (request.body and request.body.get(STREAM_OPTIONS))
        )

    def _retry_untagged(self, error: BaseException) -> bool:
        """Remove the fields that the server refused from the request.

        Returns:
            Whether to send the request once more. If ``error`` names none of our fields, or if the request was sent
            twice already, the call has failed.
        """
        names = self._complaint(error)
        if not names or self._without or self._dialect is None:
            unless_dropped(error, lambda: self._failed(error))
            return False
        self._refused = names
        logger.debug("program %s: %s refuses the body fields %s", self._program.id, shown(self._sender.url), names)
        if STREAM_OPTIONS in names:
            self._without.append("stream_usage")
        if names != [STREAM_OPTIONS]:
            self._without.append("extension")
        self._write(HEADERS if "extension" in self._without else self._dialect)
        return True

    def _complaint(self, error: BaseException) -> list[str]:
        """Return our fields that the server names in its refusal."""
        if not self._added or getattr(error, "status_code", None) not in REFUSALS:
            return []
        text = f"{error} {getattr(error, 'body', '')}"[:MAX_COMPLAINT_CHARS]
        inner = (name for value in self._added.values() if isinstance(value, Mapping) for name in value)
        return named_in(text, dict.fromkeys([*self._added, *inner]))

    def _failed(self, error: BaseException) -> None:
        self._program.give_back(self._taken)
        watched = self._watch(())  # the tools before this call are sent and recorded with the next call
        if watched is not None:
            watched.end(error)

    def answered(self, result: Any) -> Any:
        """Watch the reply, which has begun, and return it for the caller."""
        watched = self.begin_reply()
        if watched is not None:
            once.guard(*NOT_RECORDED, lambda: watch(result, watched))
        return result

    def begin_reply(self) -> WatchedReply | None:
        """Return the object that receives the parts of the reply, which has begun; None if the reply is not watched."""
        if self._without:
            endpoints.drop(self._sender.url, self._model, self._without, self._refused)
        if "extension" in self._without:
            self._program.refused_by(self._sender.url)
        return self._watch(self._taken.runs, self._note_cut_off)

    def _watch(self, runs: tuple[ToolRun, ...], *first: OnEnd) -> WatchedReply | None:
        program, on_call = self._program, self._client.on_call
        listeners: list[OnEnd] = []
        if self._conversation is not None:
            listeners.append(self._conversation.ended)
        if on_call is not None:
            listeners.append(lambda reply, at_s, error: on_call(program, reply, at_s))
        if program.ledger is not None:
            sent_s, tags, shape = self._sent_s, self._taken.tags, self._shape or shape_of(self._request.body)

            def record(reply: Reply, at_s: float, error: str | None) -> None:  # it keeps the program alive
                program.end_turn(EndedCall(sent_s, at_s, reply, runs, shape, error, tags))

            listeners.append(record)
        if self._span is not None:
            listeners.append(self._span.end)
        if not listeners:
            return None
        listeners[:0] = first
        content: Content = "none" if program.ledger is None else program.ledger.content
        asked = self._asked()
        reply = Reply(content=content, with_text=self._conversation is not None, alone=asked.choices == 1)
        jobs = self._client.jobs if self._body.get("background") else None
        return WatchedReply(reply, self._client.clock, listeners, STREAM_OPTIONS in self._added, asked, jobs)

    def _asked(self) -> Asked:
        """Return the length that the request asks for. An answer may end at the context's limit, before the most."""
        return replace(asked_in(self._body), most=None)

    @property
    def _body(self) -> dict[str, Any]:
        """The request's fields, also those beside openai's own."""
        return {**(self._request.body or {}), **(self._request.extra_body or {})}

    def _note_cut_off(self, reply: Reply, at_s: float, error: str | None) -> None:
        """Note that the answer was cut off, if it was: the agent may send the same request again."""
        if error is not None and reply.ending(self._asked()).error is not None:
            self._program.cut_off = CutOff(self._taken.tags, shape_of(self._request.body))


def call_for(client: ClientState, bound: Program | None, request: Outgoing, sender: Sender) -> Call | None:
    """Make the call for a request that is a turn.

    Args:
        client: the state of the client that sends the request.
        bound: the program to which the client is bound, if it is bound.
        request: the request.
        sender: sends the client's own requests.

    Returns:
        The call; None if the request belongs to no program. It is then sent unchanged.
    """
    call = _tagged_call(client, bound, request, sender)
    if call is None and client.on_call is not None:
        client.on_call(None, None, client.clock())
    return call


def _tagged_call(client: ClientState, bound: Program | None, request: Outgoing, sender: Sender) -> Call | None:
    program = bound or current_program() or closed_here()
    if program is not None:
        if program.closed:
            message = f"program {program.id!r} is closed: later calls in it are sent without tags"
            once.warn(f"closed {program.id}", message)
            return None
        return Call(client, program._state, request, sender)
    if elsewhere := entered_elsewhere():
        once.warn(
            "entered elsewhere",
            f"a call outside all programs, while {elsewhere.id!r} is entered in another thread or greenlet. They "
            "do not inherit it: start them with program.bind(function), or call continuum_client.instrument(), after "
            "which threads inherit it. A call that belongs to no program is right as it is.",
        )
    if client.conversations is None:
        return None
    conversation = client.conversations.find(request.path, request.body)
    return None if conversation is None else Call(client, conversation.program, request, sender, conversation)
