"""The options that only our clients have. A client and its copies share one ``ClientSettings``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, cast

from continuum_client.conversation import Conversations
from continuum_client.dialects import Dialect, DialectName, find_dialect
from continuum_client.prediction import Predict, check_predict
from continuum_client.program import Program
from continuum_client.reply import Content, check_content
from continuum_client.tally import OnCall, on_call_from_environment

if TYPE_CHECKING:
    from continuum_traces.schema import Metadata
    from typing_extensions import Unpack

    from continuum_client.recorder import Recorder

DIALECT_VARIABLE = "CONTINUUM_DIALECT"
RECORD_VARIABLE = "CONTINUUM_RECORD"
CONTENT_VARIABLE = "CONTINUUM_CONTENT"


class Options(TypedDict, total=False):
    """The options that only our clients have, as the user passes them. ``client.OpenAI`` describes them."""

    dialect: DialectName | Dialect | None
    record: str | os.PathLike[str] | Recorder | None
    content: Content | None
    predict: Predict | None
    implicit: bool | None


OPTIONS = tuple(Options.__annotations__)


class ProgramOptions(TypedDict, total=False):
    """The options of a program, as the user passes them. ``sending.Tagging.program`` describes them."""

    predict: Predict | None
    parent: Program | str | None
    output_tokens: int | None
    metadata: Metadata | None


@dataclass(slots=True)
class ClientSettings:
    """The options in the form in which a client uses them; made by ``settings_from``."""

    dialect: Dialect | None
    """None: ``auto``."""
    recorder: Recorder | None
    predict: Predict | None = None
    clock: Callable[[], float] = time.monotonic  # noqa: TID251 - the default of an injected clock
    conversations: Conversations | None = None
    on_call: OnCall | None = None
    """Receives every call that has ended; None: the calls are not counted."""

    def program(self, program_id: str | None = None, **options: Unpack[ProgramOptions]) -> Program:
        """Open a program. ``sending.Tagging.program`` describes the options."""
        options["predict"] = options.get("predict") or self.predict
        program = Program(program_id, self.clock, self.program, **options)
        if self.recorder is not None:
            program.record_in(self.recorder.ledger(program.id, program.parent_id, program.metadata))
        return program

    def forget_conversations(self) -> list[Program]:
        """Forget the programs that were opened for conversations, and return them."""
        return [] if self.conversations is None else self.conversations.forget()


def settings_from(
    *,
    dialect: DialectName | Dialect | None = None,
    record: str | os.PathLike[str] | Recorder | None = None,
    content: Content | None = None,
    predict: Predict | None = None,
    implicit: bool | None = None,
) -> ClientSettings:
    """Return the settings for a client's options. An option that is None has its default.

    Raises:
        InvalidTag: ``predict`` is no function.
        UnknownDialect: no dialect has that name.
        ValueError: no ``content`` has that name, or the directory is already recorded with another ``content``.
    """
    amount = check_content(*_chosen(content, "content", CONTENT_VARIABLE, "none"))
    server = find_dialect(*_chosen(dialect, "dialect", DIALECT_VARIABLE, "headers"))
    place, _ = _chosen(record, "record", RECORD_VARIABLE, None)
    settings = ClientSettings(server, _recorder(place, amount), check_predict(predict))
    settings.on_call = on_call_from_environment()
    if implicit is not False:
        settings.conversations = Conversations(lambda: settings.program(parent=None))
    return settings


def settings_like(settings: ClientSettings, **options: Unpack[Options]) -> ClientSettings:
    """Return ``settings`` with some other options. Options that are missing or None stay as they are."""
    changed = {name: value for name, value in options.items() if value is not None}
    if not changed:
        return settings
    kept = Options(
        dialect=settings.dialect or "auto",
        record=settings.recorder,
        content=settings.recorder.content if settings.recorder is not None and "record" not in changed else None,
        predict=settings.predict,
        implicit=settings.conversations is not None,
    )
    return settings_from(**cast("Options", {**kept, **changed}))


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
