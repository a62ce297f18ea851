"""``Call``, one call of a program: it writes tags into the request, and removes them if the server refuses them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from continuum_client.conversation import Conversation
from continuum_client.current import closed_here
from continuum_client.dialects import HEADERS, Dialect
from continuum_client.ending import unless_dropped
from continuum_client.endpoints import Feature, endpoints, named_in, shown
from continuum_client.errors import logger, once
from continuum_client.exchange import asking, done
from continuum_client.observe import NOT_RECORDED, OnEnd, WatchedReply, watch
from continuum_client.program import Program, SendingClient, current_program
from continuum_client.reply import Content, Reply
from continuum_client.settings import ClientSettings
from continuum_client.shape import shape_of
from continuum_client.spans import CallSpan, current_span
from continuum_client.tagging import merged_body, merged_headers, tag_body, tag_headers
from continuum_client.tool_runs import ToolRun
from continuum_client.turns import EndedCall

GENERATING = frozenset(("/chat/completions", "/completions", "/responses"))
"""Paths of the requests that are turns; all other requests are sent unchanged."""
MESSAGES = "/messages"
"""The path of Anthropic's API, which only the proxy sees. Only the dialect ``vllm`` has body fields for it."""
STREAM_OPTIONS = "stream_options"
REFUSALS = (400, 422)
"""HTTP statuses with which servers refuse an unknown field."""
MAX_COMPLAINT_CHARS = 20_000
"""The part of a server's error message that is searched for the names of our fields."""


class Call:
    """One call, from the caller's request to the end of the reply. openai's retries are part of the call.

    Args:
        settings: the settings of the client that sends the request.
        program: the program of the call.
        options: openai's ``FinalRequestOptions`` of the request; they are changed in place.
        url: the client's base URL.
        conversation: the conversation in which the call is made, if it is outside ``client.program``.
    """

    def __init__(
        self,
        settings: ClientSettings,
        program: Program,
        options: Any,
        url: str,
        conversation: Conversation | None = None,
    ) -> None:
        self._url = url
        self._settings = settings
        self._program = program
        self._options = options
        self._headers = options.headers if isinstance(options.headers, Mapping) else {}
        self._extra_json = options.extra_json
        self._body = options.json_data if isinstance(options.json_data, Mapping) else None
        self._model = str(self._body and self._body.get("model"))
        self._taken = program.take()
        self._sent_s = settings.clock()
        self._shape = None if conversation is None else conversation.shape
        self._dialect: Dialect | None = None
        """The dialect in which tags were written into the request; None: none were yet."""
        self._added: dict[str, Any] = {}
        """Our body fields that are in the request."""
        self._span: CallSpan | None = None
        self._without: list[Feature] = []
        """The features that were left out after a refusal."""
        self._refused: list[str] = []
        """The fields that the server named in its refusal."""
        self._conversation = conversation
        if program.ledger is not None:
            program.ledger.begin_turn()

    async def send(self, client: SendingClient, stream: bool, send: Callable[[], Any]) -> Any:
        """Send the call with its tags; if the server refuses our fields, once more without them.

        Args:
            client: the client that sends the request.
            stream: whether the caller asks for a stream.
            send: sends the request. Its result is returned.
        """
        while True:
            try:
                if self._dialect is None:
                    known = self._settings.dialect or endpoints.dialect_of(self._url)
                    self._apply_tags(known or await asking(self._url, client), stream, client)
                return await done(send())
            except BaseException as error:
                if not self._retry_untagged(error):
                    raise

    def _apply_tags(self, dialect: Dialect, stream: bool, client: SendingClient) -> None:
        if self._options.url == MESSAGES and dialect.name != "vllm":
            dialect = HEADERS
        accepted = endpoints.accepts(self._url, self._model, "extension")
        self._program.carried_by(self._url, client if accepted else None, self._taken)
        self._dialect, self._stream = dialect, stream
        self._write(dialect if accepted else HEADERS)
        tags = self._taken.tags
        outer = current_span()
        self._span = None if outer is None else CallSpan(outer, self._options.url, self._model, tags)
        message = "program %s, turn %s: sent to %s with headers and the body fields %s"
        logger.debug(message, tags.program_id, tags.turn_id, shown(self._url), [*self._added])

    def _write(self, dialect: Dialect) -> None:
        self._options.headers = merged_headers(self._headers, tag_headers(self._taken.tags))
        if self._body is None:
            return
        ours = tag_body(self._taken.tags, dialect, self._options.url, self._program.output_tokens)
        if self._wants_usage():
            ours[STREAM_OPTIONS] = {"include_usage": True}
        written = [name for name in ours if self._body.get(name) is not None]
        self._options.extra_json = merged_body(self._extra_json, ours, written) or self._extra_json
        self._added = {name: value for name, value in ours.items() if name not in written}

    def _wants_usage(self) -> bool:
        """Whether to ask for the token counts of a stream: the stream is recorded, the caller did not ask for the
        counts, and the extra chunk can be hidden from the caller."""
        return (
            self._stream
            and self._program.ledger is not None
            and self._options.url in ("/chat/completions", "/completions")
            and "stream_usage" not in self._without
            and endpoints.accepts(self._url, self._model, "stream_usage")
            and not any(name.lower() == "x-stainless-raw-response" for name in self._headers)
            and not (self._extra_json and STREAM_OPTIONS in self._extra_json)
            and not (self._body and self._body.get(STREAM_OPTIONS))
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
        logger.debug("program %s: %s refuses the body fields %s", self._program.id, shown(self._url), names)
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
            endpoints.drop(self._url, self._model, self._without, self._refused)
        if "extension" in self._without:
            self._program.refused_by(self._url)
        return self._watch(self._taken.runs)

    def _watch(self, runs: tuple[ToolRun, ...]) -> WatchedReply | None:
        program, on_call = self._program, self._settings.on_call
        listeners: list[OnEnd] = []
        if self._conversation is not None:
            listeners.append(self._conversation.ended)
        if on_call is not None:
            listeners.append(lambda reply, at_s, error: on_call(program, reply, at_s))
        if program.ledger is not None:
            sent_s, shape = self._sent_s, self._shape or shape_of(self._body)
            is_last, turn_id = bool(self._taken.tags.is_last_step), self._taken.tags.turn_id

            def record(reply: Reply, at_s: float, error: str | None) -> None:  # it keeps the program alive
                program.end_turn(EndedCall(sent_s, at_s, reply, runs, shape, is_last, error, turn_id))

            listeners.append(record)
        if self._span is not None:
            listeners.append(self._span.end)
        if not listeners:
            return None
        content: Content = "none" if program.ledger is None else program.ledger.content
        reply = Reply(content, with_text=self._conversation is not None)
        return WatchedReply(reply, self._settings.clock, listeners, hide_usage=STREAM_OPTIONS in self._added)


def call_for(settings: ClientSettings, bound: Program | None, options: Any, url: str) -> Call | None:
    """Make the call for a request.

    Args:
        settings: the settings of the client that sends the request.
        bound: the program to which the client is bound, if it is bound.
        options: openai's ``FinalRequestOptions`` of the request.
        url: the client's base URL.

    Returns:
        The call; None if the request is not a turn, or belongs to no program. It is then sent unchanged.
    """
    if options.url not in GENERATING or options.method.lower() != "post":
        return None
    call = _tagged_call(settings, bound, options, url)
    if call is None and settings.on_call is not None:
        settings.on_call(None, None, settings.clock())
    return call


def _tagged_call(settings: ClientSettings, bound: Program | None, options: Any, url: str) -> Call | None:
    program = bound or current_program() or closed_here()
    if program is not None:
        if program.closed:
            message = f"program {program.id!r} is closed: later calls in it are sent without tags"
            once.warn(f"closed {program.id}", message)
            return None
        return Call(settings, program, options, url)
    if settings.conversations is None:
        return None
    conversation = settings.conversations.find(options.url, options.json_data)
    return None if conversation is None else Call(settings, conversation.program, options, url, conversation)
