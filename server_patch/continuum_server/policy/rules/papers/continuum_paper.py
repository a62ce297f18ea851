"""``continuum-paper``: ``continuum`` without the choices of ours that the papers do not make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from continuum_server.policy.facts import TurnFinish
from continuum_server.policy.limits import Range, Window
from continuum_server.policy.rules.continuum import Continuum, ContinuumOptions

ALL = 1_000_000
"""More tool times of a tool, and more tools, than a run has."""


@dataclass(frozen=True, slots=True)
class ContinuumPaperOptions(ContinuumOptions):
    """Options of ``continuum-paper``."""

    sample_window: Window = ALL
    """Most recent tool times kept per tool; older ones are forgotten."""
    max_tools: Annotated[int, Range(1, 1_000_000)] = ALL
    """Tools remembered; the API key with the most tools loses the tool that it did not call for longest."""


class ContinuumPaper(Continuum):
    """``continuum`` as arXiv 2511.02230 v4 has it: it assumes that every program goes on, all tool times count, a
    shell tool is named by its command's first word, and one-offs wait in program order."""

    name: ClassVar[str] = "continuum-paper"
    options_type: ClassVar[type] = ContinuumPaperOptions
    one_offs_first: ClassVar[bool] = False
    first_words: ClassVar[bool] = True

    def return_share(self, finish: TurnFinish) -> float:
        return 1.0
