"""``continuum-fixed``: the rule of the authors' public preview."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from continuum_server.policy.base import Options
from continuum_server.policy.estimate import Moments
from continuum_server.policy.facts import NO_HOLD, Hold, Machine, TurnFinish, TurnState
from continuum_server.policy.limits import Seconds
from continuum_server.policy.rules.program_fcfs import ProgramFcfs
from continuum_server.policy.tool_statistics import ToolSamples


@dataclass(frozen=True, slots=True)
class ContinuumFixedOptions(Options):
    """Options of ``continuum-fixed``."""

    ttl_s: Seconds = 2.0
    """Seconds a turn is held."""
    longest_mean_s: Seconds = 2.0
    """A turn is not held if its tool's mean time is above this."""


class ContinuumFixed(ProgramFcfs):
    """KV is held for 2 s if the turn calls a tool whose mean time is unknown or at most 2 s, otherwise not at all."""

    name: ClassVar[str] = "continuum-fixed"
    options_type: ClassVar[type] = ContinuumFixedOptions
    options: ContinuumFixedOptions

    def __init__(self, machine: Machine, options: Options | None = None) -> None:
        super().__init__(machine, options)
        self.tools = ToolSamples(Moments)

    def turn_arrived(self, turn: TurnState, now_s: float) -> None:
        self.tools.note_return(turn, now_s)

    def turn_finished(self, finish: TurnFinish) -> Hold:
        if finish.tool is None:
            return NO_HOLD
        times = self.tools.get(finish.tool, finish.turn.program.namespace)
        if times is not None and times.mean > self.options.longest_mean_s:
            return NO_HOLD
        return Hold(self.options.ttl_s)
