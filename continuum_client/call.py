"""One logical call of a program: tags are applied to it, and removed if the server refuses them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from continuum_client.conversation import NO_SHAPE, Shape, shape_of
from continuum_client.dialects import HEADERS, Dialect
from continuum_client.endpoints import Feature, endpoints, named_in
from continuum_client.errors import once
from continuum_client.program import Carrier, Program, ToolRun, current_program
from continuum_client.settings import Settings
from continuum_client.tagging import merged_body, merged_headers, tag_body, tag_headers

if TYPE_CHECKING:
    from continuum_client.observe import Turn
    from continuum_client.reply import Reply

GENERATING = frozenset(("/chat/completions", "/completions", "/responses"))
"""Requests that are turns; all others pass as they are."""
STREAM_OPTIONS = "stream_options"
REFUSALS = (400, 422)
MAX_COMPLAINT_CHARS = 20_000


class Call:
    """From a request's options to its reply.

    Args:
        settings: of the client that sends it.
        program: whose call it is.
        options: openai's ``FinalRequestOptions``; changed in place.
        url: base URL.
        shape: of its prompt, where it is known by now.
    """

    def __init__(self, settings: Settings, program: Program, options: Any, url: str, shape: Shape | None) -> None:
        self.url = url
        self._settings = settings
        self._program = program
        self._options = options
        self._headers = options.headers if isinstance(options.headers, Mapping) else {}
        self._extra_json = options.extra_json
        self._body = options.json_data if isinstance(options.json_data, Mapping) else None
        self._told = program.take()
        self._sent_s = settings.clock()
        self._shape = shape
        self._sent: dict[str, Any] = {}
        self._without: list[Feature] = []
        self._refused: list[str] = []
        self._tagged = False
        self.on_failure: Callable[[], None] | None = None
        if program.keeper is not None:
            program.keeper.begin_turn()

    @property
    def dialect(self) -> Dialect | None:
        """The dialect to speak; None: the server has to be asked first."""
        return self._settings.dialect or endpoints.found(self.url)

    @property
    def tagged(self) -> bool:
        return self._tagged

    def apply_tags(self, dialect: Dialect, stream: bool, carrier: Carrier) -> None:
        """Write tags into the request."""
        self._program.carried_by(self.url, carrier, self._told)
        self._dialect, self._stream, self._tagged = dialect, stream, True
        self._write(dialect if endpoints.accepts(self.url, "extension") else HEADERS)

    def _write(self, dialect: Dialect) -> None:
        self._sent = {}
        self._options.headers = merged_headers(self._headers, tag_headers(self._told.tags))
        if self._body is None:
            return
        ours = tag_body(self._told.tags, dialect, self._options.url, self._program.output_tokens)
        if self._wants_usage():
            ours[STREAM_OPTIONS] = {"include_usage": True}
        if ours:
            written = [name for name in ours if self._body.get(name) is not None]
            self._options.extra_json = merged_body(self._extra_json, ours, written)
            self._sent = {name: value for name, value in ours.items() if name not in written}
        else:
            self._options.extra_json = self._extra_json

    def _wants_usage(self) -> bool:
        """Whether to ask for a recorded stream's token counts: where the caller did not say and will not see them."""
        return (
            self._stream
            and self._program.keeper is not None
            and self._options.url != "/responses"
            and "stream_usage" not in self._without
            and endpoints.accepts(self.url, "stream_usage")
            and not any(name.lower() == "x-stainless-raw-response" for name in self._headers)
            and not (self._extra_json and STREAM_OPTIONS in self._extra_json)
            and not (self._body and self._body.get(STREAM_OPTIONS))
        )

    def try_without(self, error: BaseException) -> bool:
        """True if the server refused a field of ours: the field is removed, send it once more. Else the call
        has failed."""
        names = self._complaint(error)
        if not names or self._without:
            self._failed(error)
            return False
        self._refused = names
        if STREAM_OPTIONS in names:
            self._without.append("stream_usage")
        if names != [STREAM_OPTIONS]:
            self._without.append("extension")
        self._write(HEADERS if "extension" in self._without else self._dialect)
        return True

    def _complaint(self, error: BaseException) -> list[str]:
        """Fields of ours that a refusal names."""
        if not self._sent or getattr(error, "status_code", None) not in REFUSALS:
            return []
        text = f"{error} {getattr(error, 'body', '')}"[:MAX_COMPLAINT_CHARS]
        inner = (name for value in self._sent.values() if isinstance(value, Mapping) for name in value)
        return named_in(text, dict.fromkeys([*self._sent, *inner]))

    def _failed(self, error: BaseException) -> None:
        self._program.give_back(self._told)
        if self.on_failure is not None:
            self.on_failure()
        turn = self._turn(())  # the tools before it go with the next call
        if turn is not None:
            turn.end(error)

    def answered(self, result: Any) -> Any:
        """The reply has begun; gives what the caller gets."""
        if self._without:
            endpoints.drop(self.url, self._without, self._refused)
        turn = self._turn(self._told.runs)
        if turn is not None:
            from continuum_client import observe  # noqa: PLC0415 - loaded with the recorder

            try:
                observe.watch(result, turn, hide_usage=STREAM_OPTIONS in self._sent)
            except Exception as error:  # noqa: BLE001 - recording is a guest: what it raises must not reach the agent
                once.warn("recording", f"a reply could not be recorded: {error!r}")
        return result

    def _turn(self, runs: tuple[ToolRun, ...]) -> Turn | None:
        program = self._program
        if program.keeper is None:
            return None
        from continuum_client import observe  # noqa: PLC0415 - loaded with the recorder
        from continuum_client.reply import Reply  # noqa: PLC0415
        from continuum_client.turns import Ended  # noqa: PLC0415

        sent_s, shape = self._sent_s, self._shape or shape_of(self._body)
        is_last, turn_id = bool(self._told.tags.is_last_step), self._told.tags.turn_id

        def ended(reply: Reply, finish_s: float, error: str | None) -> None:  # the program lives until its replies end
            program.keeper.end_turn(Ended(sent_s, finish_s, reply, runs, shape, is_last, error, turn_id))

        return observe.Turn(Reply(program.keeper.recorder.content), self._settings.clock, ended)


def call_for(settings: Settings, bound: Program | None, options: Any, url: str) -> Call | None:
    """The call a request is; None where it goes out as it is: not a turn, or of no program."""
    if options.url not in GENERATING or options.method.lower() != "post":
        return None
    program = bound or current_program()
    if program is not None:
        if program.closed:
            message = "calls made in it after that go out without tags"
            once.warn(f"closed {program.id}", f"program {program.id!r} is closed: {message}")
            return None
        return Call(settings, program, options, url, None)
    if settings.conversations is None:
        return None
    shape = shape_of(options.json_data) if options.url != "/completions" else NO_SHAPE
    found = settings.conversations.program_of(shape)
    if found is None:
        return None
    call = Call(settings, found[0], options, url, shape)
    call.on_failure = found[1]
    return call
