"""``continuum``: the papers' v4 rule (arXiv 2511.02230)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from continuum_server.policy.base import Options
from continuum_server.policy.estimate import Memoryfulness, QueueDelay, cold_start_ttl
from continuum_server.policy.facts import Hold, Machine, ProgramState, TurnFinish, TurnStart, TurnState
from continuum_server.policy.limits import Count, Range, Window
from continuum_server.policy.rules.program_fcfs import ProgramFcfs
from continuum_server.policy.tool_statistics import UNKNOWN_TOOL, ToolStatistics, export_statistics, import_statistics


@dataclass(frozen=True, slots=True)
class ContinuumOptions(Options):
    """Options of ``continuum``."""

    cold_samples: Count = 100
    """K: with at most this many samples in all, tool times are assumed to be exponential; with at most this many of a
    tool, the samples of all tools are used."""
    delay_window: Window = 100
    """T is the mean queueing delay of this many returning turns."""
    sample_window: Window = 4096
    """Most recent tool times kept per tool; older ones are forgotten."""
    max_tools: Annotated[int, Range(1, 1_000_000)] = 256
    """Tools remembered; the API key with the most tools loses the tool that it did not call for longest."""
    statistics: str | None = None
    """Files of tool statistics from earlier runs to start from, separated by commas."""


def ttl_notes(delay_s: float, eta: float) -> Mapping[str, float]:
    """Return the estimates of the TTL formula that the record of a hold contains."""
    return {"delay_estimate_s": delay_s, "eta": eta}


class Continuum(ProgramFcfs):
    """KV is held for the tau that maximises P(tau, f) * (T * eta + C) - tau over the recorded times of the tool: the
    papers' v4 rule."""

    name: ClassVar[str] = "continuum"
    options_type: ClassVar[type] = ContinuumOptions
    gauges: ClassVar[Mapping[str, str]] = {
        "delay_estimate_seconds": "T: mean queueing delay of returning turns whose KV was evicted",
        "eta": "Memoryfulness of program lengths",
    }
    options: ContinuumOptions

    def __init__(self, machine: Machine, options: Options | None = None) -> None:
        super().__init__(machine, options)
        self.tools = ToolStatistics(self.options.cold_samples, self.options.sample_window, self.options.max_tools)
        self.delay = QueueDelay(self.options.delay_window)
        self.memory = Memoryfulness()

    def turn_arrived(self, turn: TurnState, now_s: float) -> None:
        self.tools.note_return(turn, now_s)
        self.predictions.returned(turn, now_s)

    def turn_started(self, start: TurnStart) -> None:
        if start.kv_was_evicted:
            self.delay.add(start.queued_s)

    def return_share(self, finish: TurnFinish) -> float:
        """Return the probability that the program goes on after such an answer."""
        return finish.return_share

    def turn_finished(self, finish: TurnFinish) -> Hold:
        delay_s = self.delay.mean_s
        rebuild_s = self.machine.rebuild_s(finish.kept_tokens, finish.stored)
        if self.tools.is_cold:
            eta, gain_s = 1.0, (delay_s + rebuild_s) * self.return_share(finish)
            ttl_s = cold_start_ttl(gain_s)
        else:
            eta = self.memory.eta
            gain_s = (delay_s * eta + rebuild_s) * self.return_share(finish)
            times = self.tools.times_for(finish.tool or UNKNOWN_TOOL, finish.turn.program.namespace)
            ttl_s = times.best_ttl(gain_s)
        return Hold(self.predictions.hold_s(finish.turn, finish.now_s, gain_s, ttl_s), notes=ttl_notes(delay_s, eta))

    def program_finished(self, program: ProgramState) -> None:
        self.memory.add(program.turns_finished)

    def state(self) -> dict[str, Any]:
        return {"delay_estimate_seconds": self.delay.mean_s, "eta": self.memory.eta}

    def tool_counts(self) -> Mapping[str, int]:
        return self.tools.counts()

    def export_statistics(self) -> dict[str, Any]:
        return export_statistics(self.tools, self.memory)

    def import_statistics(self, statistics: dict[str, Any]) -> None:
        import_statistics(statistics, self.tools, self.memory)
