"""``ClientOptions``, which only our clients have, and ``ClientState``, what a client and its copies keep."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict

from continuum_client.conversation import Conversations
from continuum_client.dialects import Dialect, DialectName, find_dialect
from continuum_client.observe import Jobs
from continuum_client.program import Program
from continuum_client.reply import Content, Reply, check_content
from continuum_client.state import TaggedProgram
from continuum_client.tools import Predict, check_predict

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from continuum_client.program import ProgramArguments
    from continuum_client.recorder import Recorder

DIALECT_VARIABLE = "CONTINUUM_DIALECT"
RECORD_VARIABLE = "CONTINUUM_RECORD"
CONTENT_VARIABLE = "CONTINUUM_CONTENT"
TALLY_VARIABLE = "CONTINUUM_TALLY"
"""Names the file to which the processes under ``continuum-instrument`` add a line for each call."""

OnCall = Callable[["TaggedProgram | None", "Reply | None", float], None]
"""Receives each call that has ended: its program, its reply, and the instant of its end on the client's clock. Program
and reply are None for a call without tags."""


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """The options that only our clients have. For an option that is None its environment variable counts, or else the
    default."""

    dialect: DialectName | Dialect | None = None
    """Which body fields the server accepts: a name, or a ``Dialect`` object. Default: ``CONTINUUM_DIALECT``, else
    ``headers``."""
    record: str | os.PathLike[str] | Recorder | None = None
    """The directory to record to, or a ``Recorder``. Default: ``CONTINUUM_RECORD``, else nothing is recorded."""
    content: Content | None = None
    """How much text is recorded. Default: ``CONTINUUM_CONTENT``, else ``none``."""
    predict: Predict | None = None
    """Predicts the next tool before each call."""
    implicit: bool = True
    """Whether each conversation outside ``client.program`` is a program of its own."""


class OptionArguments(TypedDict, total=False):
    """``ClientOptions`` as keyword arguments, for type checkers (PEP 692)."""

    dialect: DialectName | Dialect | None
    record: str | os.PathLike[str] | Recorder | None
    content: Content | None
    predict: Predict | None
    implicit: bool


OPTIONS = tuple(ClientOptions.__annotations__)


class ClientState:
    """What a client and its copies share.

    Raises:
        InvalidTag: ``predict`` is no function.
        UnknownDialect: no dialect has that name.
        ValueError: no ``content`` has that name, or the directory is already recorded with another ``content``.
    """

    def __init__(
        self,
        options: ClientOptions,
        clock: Callable[[], float] = time.monotonic,  # noqa: TID251 - the default of an injected clock
    ) -> None:
        self._options = options
        self.dialect = find_dialect(*_chosen(options.dialect, "dialect", DIALECT_VARIABLE, "headers"))
        content = check_content(*_chosen(options.content, "content", CONTENT_VARIABLE, "none"))
        self.recorder = _recorder(_chosen(options.record, "record", RECORD_VARIABLE, None)[0], content)
        self.predict = check_predict(options.predict)
        self.conversations = Conversations(lambda: self.program()._state) if options.implicit else None
        self.on_call = on_call_from_environment()
        """Receives every call that has ended; None: the calls are not counted."""
        self.clock = clock
        self.jobs: Jobs = {}

    def program(self, program_id: str | None = None, **options: Unpack[ProgramArguments]) -> Program:
        """Open a program. ``client.OpenAI.program`` describes the options."""
        return Program(self, None, program_id, **options)

    def with_options(self, changed: Mapping[str, Any]) -> ClientState:
        """Return the state of a copy of the client for which these ``ClientOptions`` differ; None: one stays."""
        given = {name: value for name, value in changed.items() if value is not None}
        return ClientState(replace(self._options, **given), self.clock) if given else self

    def forget_conversations(self) -> list[TaggedProgram]:
        """Forget the programs that were opened for conversations, and return them. Replies in the background have no
        end then."""
        self.give_up_jobs()
        return [] if self.conversations is None else self.conversations.forget()

    def give_up_jobs(self) -> None:
        """Note that the replies in the background will not be retrieved."""
        while self.jobs:
            self.jobs.popitem()[1].give_up()


def _chosen(wanted: Any, option: str, variable: str, default: Any) -> tuple[Any, str]:
    """Return the value of an option, and where it comes from: the user, the environment or our default."""
    named = os.environ.get(variable)
    if wanted is None and named:
        return named, variable
    return default if wanted is None else wanted, option


def _recorder(record: str | os.PathLike[str] | Recorder | None, content: Content) -> Recorder | None:
    if record is None:
        return None
    from continuum_client.recorder import Recorder, recorder_at  # noqa: PLC0415 - imported only if something is recorded

    if not isinstance(record, Recorder):
        return recorder_at(record, content)
    if content not in ("none", record.content):
        raise ValueError(f"{record.path}: the Recorder has content={record.content!r}, so not {content!r}")
    return record


def on_call_from_environment() -> OnCall | None:
    """Return a function that adds each call to the file in ``CONTINUUM_TALLY``; None if there is none."""
    path = os.environ.get(TALLY_VARIABLE)
    return None if not path else lambda program, reply, at_s: _append(path, program, reply)


def _append(path: str, program: TaggedProgram | None, reply: Reply | None) -> None:
    counts = (None, None) if reply is None else (reply.prompt_tokens, reply.cached_tokens)
    with suppress(OSError):  # the command has ended, or this process sees other files
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, json.dumps([program and program.id, *counts]).encode() + b"\n")
        finally:
            os.close(file)
