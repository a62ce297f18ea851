"""``static-ttl``: a TTL that knows no tool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from continuum_server.policy.base import Options
from continuum_server.policy.estimate import QueueDelay, cold_start_ttl
from continuum_server.policy.facts import Hold, Machine, TurnFinish, TurnStart
from continuum_server.policy.limits import Seconds, Window
from continuum_server.policy.rules.continuum import ttl_notes
from continuum_server.policy.rules.program_fcfs import ProgramFcfs


@dataclass(frozen=True, slots=True)
class StaticTtlOptions(Options):
    """Options of ``static-ttl``."""

    ttl_s: Seconds | None = None
    """Seconds every turn is held; None: the cold-start value ln(T + C)."""
    delay_window: Window = 100
    """T is the mean queueing delay of this many returning turns."""


class StaticTtl(ProgramFcfs):
    """KV is held for ln(T + C), ``continuum``'s value while it knows no tool times, or for ``ttl_s`` seconds."""

    name: ClassVar[str] = "static-ttl"
    options_type: ClassVar[type] = StaticTtlOptions
    options: StaticTtlOptions

    def __init__(self, machine: Machine, options: Options | None = None) -> None:
        super().__init__(machine, options)
        self.delay = QueueDelay(self.options.delay_window)

    def turn_started(self, start: TurnStart) -> None:
        if start.kv_was_evicted:
            self.delay.add(start.queued_s)

    def turn_finished(self, finish: TurnFinish) -> Hold:
        if self.options.ttl_s is not None:
            return Hold(self.options.ttl_s)
        rebuild_s = self.machine.rebuild_s(finish.kept_tokens, finish.stored)
        return Hold(cold_start_ttl(self.delay.mean_s + rebuild_s), notes=ttl_notes(self.delay.mean_s, 1.0))
