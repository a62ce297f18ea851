"""A policy of one's own: it holds the KV of every turn for as long as recomputing it would take.

continuum-bench swebench --policy vllm,continuum,my_policy:Recompute --out runs/mine    # in this folder
"""

from dataclasses import dataclass
from typing import ClassVar

from continuum_server.policy.base import Options
from continuum_server.policy.facts import Hold, TurnFinish
from continuum_server.policy.rules.program_fcfs import ProgramFcfs


@dataclass(frozen=True, slots=True)
class RecomputeOptions(Options):
    factor: float = 1.0
    """A turn is held for this many times the seconds that recomputing its KV would take."""


class Recompute(ProgramFcfs):
    """Programs run in order of arrival; a turn's KV is held for as long as recomputing it would take."""

    name: ClassVar[str] = "recompute"
    options_type: ClassVar[type] = RecomputeOptions
    options: RecomputeOptions

    def turn_finished(self, finish: TurnFinish) -> Hold:
        return Hold(self.options.factor * self.machine.rebuild_s(finish.context_tokens, finish.stored))
