"""The rules published before v4: ``continuum-v1`` (arXiv v1) and ``continuum-fixed`` (the authors' preview)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from continuum_server.policy.base import Options
from continuum_server.policy.estimate import Moments
from continuum_server.policy.facts import NO_HOLD, Hold, Machine, ProgramState, TurnFinish, TurnState
from continuum_server.policy.limits import Count, Factor, Range, Seconds
from continuum_server.policy.order import ProgramFcfs
from continuum_server.policy.rules.ttl import UNKNOWN_TOOL
from continuum_server.policy.tool_statistics import ByTool


class MeanToolTimes(ProgramFcfs):
    """Program order, and the moments of each tool's times."""

    def __init__(self, machine: Machine, options: object | None = None) -> None:
        super().__init__(machine, options)
        self.all_tools = Moments()
        self.by_tool = ByTool(Moments)

    def turn_arrived(self, turn: TurnState, now_s: float) -> None:
        program = turn.program
        if program.last_finish_s is not None:
            gap_s = now_s - program.last_finish_s
            self.all_tools.add(gap_s)
            self.by_tool.of(program.last_tool or UNKNOWN_TOOL).add(gap_s)


@dataclass(frozen=True, slots=True)
class ContinuumV1Options(Options):
    """Options of ``continuum-v1``."""

    default_ttl_s: Seconds = 2.0
    """T_default: the TTL of an average tool, and the bound assumed before there are samples."""
    min_samples: Count = 100
    """N: samples in all before the pooled bound is used, of a tool before its own is."""
    delta: Annotated[float, Range(1e-12, 1.0, above=True, below=True)] = 0.05
    """The bound holds with probability 1 - delta."""
    longest_tool_s: Seconds = 10.0
    """b: the longest tool time the bound allows for."""
    turn_weight: Factor = 0.1
    """alpha: how much a workload of many turns lengthens the TTL."""


class ContinuumV1(MeanToolTimes):
    """T_default^2 over a Bernstein bound of the tool's mean time, longer where programs have many turns."""

    name: ClassVar[str] = "continuum-v1"
    options_type: ClassVar[type] = ContinuumV1Options
    options: ContinuumV1Options

    def __init__(self, machine: Machine, options: object | None = None) -> None:
        super().__init__(machine, options)
        self.turns_of_programs = Moments()

    def turn_finished(self, finish: TurnFinish) -> Hold:
        options, bound_s = self.options, self.bound_s(finish.tool or UNKNOWN_TOOL)
        if bound_s <= 0.0:
            return Hold(math.inf)
        scale = 1.0 + options.turn_weight * self.turns_of_programs.mean
        return Hold(options.default_ttl_s**2 / bound_s * scale)

    def bound_s(self, tool: str) -> float:
        """B(r, f): what the mean time of ``tool`` stays under, with probability 1 - delta."""
        options, own = self.options, self.by_tool.get(tool)
        if self.all_tools.count < options.min_samples:
            return options.default_ttl_s
        if own is not None and own.count >= max(1, options.min_samples):
            return bernstein_bound(own, options.delta, options.longest_tool_s)
        return bernstein_bound(self.all_tools, options.delta, options.longest_tool_s)

    def program_finished(self, program: ProgramState) -> None:
        self.turns_of_programs.add(program.turns_finished)


def bernstein_bound(samples: Moments, delta: float, longest: float) -> float:
    """Empirical Bernstein: with probability 1 - delta the mean of values up to ``longest`` is not above this."""
    if samples.count == 0:
        return 0.0
    log = math.log(3.0 / delta)
    return samples.mean + math.sqrt(2.0 * samples.variance * log / samples.count) + 3.0 * longest * log / samples.count


@dataclass(frozen=True, slots=True)
class ContinuumFixedOptions(Options):
    """Options of ``continuum-fixed``."""

    ttl_s: Seconds = 2.0
    """Seconds a turn is held."""
    longest_mean_s: Seconds = 2.0
    """Tools whose mean time is above this are not waited for."""


class ContinuumFixed(MeanToolTimes):
    """The preview's rule: no tool, no pin; a tool unknown or of at most 2 s in the mean, 2 s; a slower one, none."""

    name: ClassVar[str] = "continuum-fixed"
    options_type: ClassVar[type] = ContinuumFixedOptions
    options: ContinuumFixedOptions

    def turn_finished(self, finish: TurnFinish) -> Hold:
        if finish.tool is None:
            return NO_HOLD
        known = self.by_tool.get(finish.tool)
        if known is not None and known.mean > self.options.longest_mean_s:
            return NO_HOLD
        return Hold(self.options.ttl_s)
