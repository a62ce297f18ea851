"""Policies that hold KV for a time: ``static-ttl`` and ``continuum`` (SPEC 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from continuum_server.policy.base import Options
from continuum_server.policy.estimate import Memoryfulness, QueueDelay, cold_start_ttl
from continuum_server.policy.facts import Hold, Machine, ProgramState, TurnFinish, TurnStart, TurnState
from continuum_server.policy.limits import Count, Range, Seconds, Window
from continuum_server.policy.order import ProgramFcfs
from continuum_server.policy.tool_statistics import ToolStatistics, export_statistics, import_statistics

UNKNOWN_TOOL = "(unknown)"
"""Key of gaps after outputs that name no tool."""


@dataclass(frozen=True, slots=True)
class StaticTtlOptions(Options):
    """Options of ``static-ttl``."""

    ttl_s: Seconds | None = None
    """Seconds every turn is held; None: the cold-start value ln(T + C)."""
    delay_window: Window = 100
    """Returning turns in the mean that estimates T."""


class StaticTtl(ProgramFcfs):
    """Program order, and every turn held for the same time, whatever tool it called, or for what its client asks."""

    name: ClassVar[str] = "static-ttl"
    options_type: ClassVar[type] = StaticTtlOptions
    options: StaticTtlOptions

    def __init__(self, machine: Machine, options: object | None = None) -> None:
        super().__init__(machine, options)
        self.delay = QueueDelay(self.options.delay_window)

    def turn_started(self, start: TurnStart) -> None:
        if start.kv_was_evicted:
            self.delay.add(start.queued_s)

    def turn_finished(self, finish: TurnFinish) -> Hold:
        wish_s = finish.turn.ttl_wish_s
        if wish_s is not None or self.options.ttl_s is not None:
            return Hold(wish_s if wish_s is not None else self.options.ttl_s or 0.0)
        rebuild_s = self.machine.rebuild_s(finish.context_tokens, finish.stored)
        return Hold(cold_start_ttl(self.delay.mean_s + rebuild_s), self.delay.mean_s, 1.0)


@dataclass(frozen=True, slots=True)
class ContinuumOptions(Options):
    """Options of ``continuum``."""

    cold_samples: Count = 100
    """K: up to this many samples in all the exponential assumption is used, up to this many of a tool the pool."""
    delay_window: Window = 100
    """Returning turns in the mean that estimates T."""
    delay_of: Literal["evicted", "lost"] = "evicted"
    """Whose wait T is: evicted (KV had left the GPU), lost (no tier below had it either)."""
    sample_window: Window = 4096
    """Most recent tool times kept per tool; older ones are forgotten."""
    max_tools: Annotated[int, Range(1, 1_000_000)] = 256
    """Tools remembered; the one not heard of for longest is forgotten first."""
    statistics: str | None = None
    """Files of tool statistics from earlier runs to start from, separated by commas."""


class Continuum(ProgramFcfs):
    """The papers' v4 policy: tau maximises P(tau, f) * (T * eta + C) - tau over recorded tool times."""

    name: ClassVar[str] = "continuum"
    options_type: ClassVar[type] = ContinuumOptions
    options: ContinuumOptions

    def __init__(self, machine: Machine, options: object | None = None) -> None:
        super().__init__(machine, options)
        self.tools = ToolStatistics(self.options.cold_samples, self.options.sample_window, self.options.max_tools)
        self.delay = QueueDelay(self.options.delay_window)
        self.memory = Memoryfulness()

    def turn_arrived(self, turn: TurnState, now_s: float) -> None:
        program = turn.program
        if program.last_finish_s is not None:
            self.tools.add(program.last_tool or UNKNOWN_TOOL, now_s - program.last_finish_s)

    def turn_started(self, start: TurnStart) -> None:
        if start.kv_was_lost if self.options.delay_of == "lost" else start.kv_was_evicted:
            self.delay.add(start.queued_s)

    def turn_finished(self, finish: TurnFinish) -> Hold:
        delay_s = self.delay.mean_s
        rebuild_s = self.machine.rebuild_s(finish.context_tokens, finish.stored)
        if self.tools.is_cold:
            return Hold(cold_start_ttl(delay_s + rebuild_s), delay_s, 1.0)
        eta = self.memory.eta
        times = self.tools.times_for(finish.tool or UNKNOWN_TOOL)
        return Hold(times.best_ttl(delay_s * eta + rebuild_s), delay_s, eta)

    def program_finished(self, program: ProgramState) -> None:
        self.memory.add(program.turns_finished)

    def state(self) -> dict[str, Any]:
        return {"delay_s": self.delay.mean_s, "eta": self.memory.eta, "tools": self.tools.counts()}

    def export_statistics(self) -> dict[str, Any]:
        return export_statistics(self.tools, self.memory)

    def import_statistics(self, statistics: dict[str, Any]) -> None:
        import_statistics(statistics, self.tools, self.memory)
