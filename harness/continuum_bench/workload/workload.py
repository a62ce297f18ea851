"""A workload: programs of a trace, when they arrive, and how long their tools take."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from continuum_traces.conversation import Job

from continuum_bench.errors import BenchError
from continuum_bench.options.declare import MOST_S
from continuum_bench.options.run import ArrivalOptions, RunOptions, TraceOptions
from continuum_bench.show import print_notice
from continuum_bench.workload.arrivals import arrival_times, uses_rate
from continuum_bench.workload.hints import NONE, hint_error, with_hints
from continuum_bench.workload.load import LoadedTrace, load_trace
from continuum_bench.workload.tool_times import RECORDED, tool_times


@dataclass(frozen=True, slots=True)
class Workload:
    """The programs and how they arrive. ``jobs`` draws the arrivals of a seed."""

    trace: LoadedTrace
    arrivals: ArrivalOptions

    @property
    def repeats(self) -> bool:
        """Whether some programs are played more than once."""
        return self.trace.number > len(self.trace.programs)

    @property
    def facts(self) -> dict[str, Any]:
        """The manifest's part about the workload."""
        given = self.arrivals
        return {
            **self.trace.facts,
            **({"jps": given.jps} if uses_rate(given.arrivals) else {}),
            "arrivals": given.arrivals,
            **({"tool_times": given.tool_times} if given.tool_times != RECORDED else {}),
            **({"hints": given.hints, "hint_error": given.hint_error} if given.hints != NONE else {}),
            "last_step": "known when the last request is sent (replay)",
            "skipped": [str(problem) for problem in self.trace.skipped],
        }

    def jobs(self, seed: int) -> list[Job]:
        """The programs in random order (``recorded``: in the trace's order), equal for all policies of a seed."""
        rng, programs = np.random.default_rng(seed), self.trace.programs
        order = [i % len(programs) for i in range(self.trace.number)]
        if not self.arrivals.arrivals.startswith("recorded"):
            rng.shuffle(order)
        times = arrival_times(self.arrivals.arrivals)(rng, self.arrivals.jps, [programs[i] for i in order])
        played: dict[int, int] = {}
        jobs = []
        for index, arrival_s in zip(order, times, strict=True):
            salt = played.get(index, 0)
            played[index] = salt + 1
            jobs.append(Job(programs[index], float(arrival_s), salt))
        if self.arrivals.tool_times != RECORDED:
            jobs = self._with_tool_times(jobs, seed)
        return jobs if self.arrivals.hints == NONE else self._with_hints(jobs, seed)

    def _with_tool_times(self, jobs: list[Job], seed: int) -> list[Job]:
        """The same jobs with other tool times, in the order of their arrival."""
        ordered = sorted(jobs, key=lambda job: job.arrival_s)
        change = tool_times(self.arrivals.tool_times)
        changed = change(random.Random(seed), [job.program for job in ordered])
        return [replace(job, program=program) for job, program in zip(ordered, changed, strict=True)]

    def _with_hints(self, jobs: list[Job], seed: int) -> list[Job]:
        """The same jobs with hints, in the order of their arrival."""
        ordered = sorted(jobs, key=lambda job: job.arrival_s)
        return with_hints(ordered, self.arrivals.hints, hint_error(self.arrivals.hint_error), seed)


def load_workload(name: str, options: TraceOptions, arrivals: ArrivalOptions, context_tokens: int = 131072) -> Workload:
    """The workload that the options ask for, checked before anything runs; arguments as ``load_trace``.

    Raises:
        BenchError: as ``load_trace``; recorded arrivals that the trace does not hold, or other tool times for a trace
            without tools.
        TraceError: a fault in the file.
    """
    arrival_times(arrivals.arrivals)  # refuses a wrong form before a file is read
    tool_times(arrivals.tool_times)
    hint_error(arrivals.hint_error)
    trace = load_trace(name, options, context_tokens)
    if arrivals.tool_times != RECORDED and not any(turn.tool_calls for p in trace.programs for turn in p.turns):
        raise BenchError(f"--tool-times {arrivals.tool_times}: the programs call no tools")
    workload = Workload(trace, arrivals)
    _check_span(workload.jobs(0))  # refuses also a trace without recorded arrivals
    return workload


def _check_span(jobs: list[Job]) -> None:
    """Raises:
    BenchError: the run would take longer than ``MOST_S``.
    """
    span_s = max(job.arrival_s + sum(turn.gap_s for turn in job.program.turns) for job in jobs)
    if not span_s <= MOST_S:
        raise BenchError(f"the arrivals and tool times of a run take {span_s:g} s; they may take {MOST_S:,.0f} s")


def workload_of(name: str, options: RunOptions, context_tokens: int) -> Workload:
    """The workload of a command, the same on every engine. Programs that are left out are named on stderr.

    Raises:
        BenchError, TraceError: as ``load_workload``.
    """
    named = options.traces.name.split(".")[0] if options.traces else name
    workload = load_workload(named, options.group(TraceOptions), options.group(ArrivalOptions), context_tokens)
    for problem in workload.trace.skipped:
        print_notice(f"skipped: {problem}")
    return workload
