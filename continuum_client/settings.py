"""The options of a client that openai does not have; a client and its copies share them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from continuum_client.conversation import Conversations
from continuum_client.dialects import Dialect, find_dialect
from continuum_client.errors import InvalidTag
from continuum_client.predictors import Predictor, RunningQuantiles
from continuum_client.program import Program, current_program

if TYPE_CHECKING:
    from continuum_client.recorder import Recorder
    from continuum_client.reply import Content

DIALECT_VARIABLE = "CONTINUUM_DIALECT"
RECORD_VARIABLE = "CONTINUUM_RECORD"


@dataclass(slots=True)
class ClientSettings:
    """The options of a client; made by ``settings_from``."""

    dialect: Dialect | None
    """None: ``auto``."""
    recorder: Recorder | None
    predictor: Predictor | None
    clock: Callable[[], float] = time.monotonic  # noqa: TID251 - the default of an injected clock
    conversations: Conversations | None = None
    quantiles: RunningQuantiles = field(default_factory=RunningQuantiles)
    """The predictor of ``predict=True``; it learns from all programs of the client."""

    def program(
        self,
        program_id: str | None = None,
        predict: bool | Predictor | None = None,
        parent: Program | str | None = None,
        output_tokens: int | None = None,
    ) -> Program:
        """Open a program; see ``client.OpenAI.program``."""
        if output_tokens is not None and (isinstance(output_tokens, bool) or output_tokens < 1):
            raise InvalidTag(f"output_tokens {output_tokens!r}: must be at least 1")
        above = current_program() if parent is None else parent
        program = Program(
            program_id,
            self.clock,
            parent_id=above.id if isinstance(above, Program) else above,
            predictor=self._predictor(predict),
            output_tokens=output_tokens,
            child=self.program,
        )
        if self.recorder is not None:
            program.keep(self.recorder.ledger(program.id, program.parent_id))
        return program

    def _predictor(self, predict: bool | Predictor | None) -> Predictor | None:
        if predict is None:
            return self.predictor
        if isinstance(predict, bool):
            return (self.predictor or self.quantiles) if predict else None
        return predict


def settings_from(
    dialect: str | Dialect | None = None,
    record: str | os.PathLike[str] | Recorder | None = None,
    content: Content = "none",
    predict: bool | Predictor = False,
    implicit: bool = True,
) -> ClientSettings:
    """The settings for a client's options, which ``client.OpenAI`` describes.

    Raises:
        UnknownDialect: no dialect has that name.
        ValueError: no ``content`` has that name, or the directory is already recorded with another one.
    """
    wanted = dialect if dialect is not None else os.environ.get(DIALECT_VARIABLE) or "headers"
    place = record if record is not None else os.environ.get(RECORD_VARIABLE) or None
    settings = ClientSettings(find_dialect(wanted), _recorder(place, content), None)
    if not isinstance(predict, bool):
        settings.predictor = predict
    elif predict:
        settings.predictor = settings.quantiles
    if implicit:
        settings.conversations = Conversations(lambda: settings.program(parent=None))
    return settings


def _recorder(place: str | os.PathLike[str] | Recorder | None, content: Content) -> Recorder | None:
    if place is None:
        return None
    from continuum_client.recorder import Recorder, recorder_at  # noqa: PLC0415 - imported only if something is recorded

    return place if isinstance(place, Recorder) else recorder_at(place, content)


OPTIONS = ("dialect", "record", "content", "predict", "implicit")
"""Names of the options that openai's clients do not have."""
