"""``continuum-v1``: the rule of the paper's first version (arXiv 2511.02230v1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from continuum_server.policy.base import Options
from continuum_server.policy.estimate import Moments
from continuum_server.policy.facts import Hold, Machine, ProgramState, TurnFinish, TurnState
from continuum_server.policy.limits import Count, Factor, Range, Seconds
from continuum_server.policy.rules.program_fcfs import ProgramFcfs
from continuum_server.policy.tool_statistics import UNKNOWN_TOOL, ToolSamples


@dataclass(frozen=True, slots=True)
class ContinuumV1Options(Options):
    """Options of ``continuum-v1``."""

    default_ttl_s: Seconds = 2.0
    """T_default: the TTL of an average tool, and the bound assumed before there are samples."""
    min_samples: Count = 100
    """N: samples of all tools before their bound is used, and samples of one tool before its own bound is used."""
    delta: Annotated[float, Range(1e-12, 1.0, above=True, below=True)] = 0.05
    """The bound holds with probability 1 - delta."""
    longest_tool_s: Seconds = 10.0
    """b: the longest tool time the bound allows for."""
    turn_weight: Factor = 0.1
    """alpha: how much a workload of many turns lengthens the TTL."""


class ContinuumV1(ProgramFcfs):
    """KV is held for T_default^2 / a Bernstein bound of the tool's mean time, and longer if programs have many
    turns."""

    name: ClassVar[str] = "continuum-v1"
    options_type: ClassVar[type] = ContinuumV1Options
    options: ContinuumV1Options

    def __init__(self, machine: Machine, options: Options | None = None) -> None:
        super().__init__(machine, options)
        self.tools = ToolSamples(Moments)
        self.turns_of_programs = Moments()

    def turn_arrived(self, turn: TurnState, now_s: float) -> None:
        self.tools.note_return(turn, now_s)

    def turn_finished(self, finish: TurnFinish) -> Hold:
        options, bound_s = self.options, self.bound_s(finish.tool or UNKNOWN_TOOL, finish.turn.program.namespace)
        if bound_s <= 0.0:
            return Hold(math.inf)
        scale = 1.0 + options.turn_weight * self.turns_of_programs.mean
        return Hold(options.default_ttl_s**2 / bound_s * scale)

    def bound_s(self, tool: str, key: str | None = None) -> float:
        """Return B(r, f). With probability 1 - delta the mean time of ``tool`` is not above it."""
        options, samples = self.options, self.tools.get(tool, key)
        if self.tools.all.count < options.min_samples:
            return options.default_ttl_s
        if samples is not None and samples.count >= max(1, options.min_samples):
            return bernstein_bound(samples, options.delta, options.longest_tool_s)
        return bernstein_bound(self.tools.all, options.delta, options.longest_tool_s)

    def program_finished(self, program: ProgramState) -> None:
        self.turns_of_programs.add(program.turns_finished)


def bernstein_bound(samples: Moments, delta: float, longest: float) -> float:
    """Return the empirical Bernstein bound of samples that are at most ``longest``.

    With probability 1 - delta, the mean of their distribution is below the bound.
    """
    if samples.count == 0:
        return 0.0
    log = math.log(3.0 / delta)
    return samples.mean + math.sqrt(2.0 * samples.variance * log / samples.count) + 3.0 * longest * log / samples.count
