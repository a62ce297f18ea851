"""A workload: programs of a trace, when they arrive, and how long their tools take."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil

import numpy as np
from continuum_traces.grouped import grouped
from continuum_traces.playing.closed_loop import Lanes
from continuum_traces.playing.conversation import Job
from continuum_traces.playing.sub_programs import parents_of
from continuum_traces.programs.assumptions import Assumptions, of_parents, of_tool_times
from continuum_traces.schema import Program, Workload
from continuum_traces.typed import from_json, to_json

from continuum_bench.errors import BenchError
from continuum_bench.options.declare import MOST_S
from continuum_bench.options.run import ArrivalOptions, TraceOptions, uses_rate
from continuum_bench.options.scenarios import SCENARIOS
from continuum_bench.show import print_notice
from continuum_bench.workload.arrivals import arrival_times, lanes_of
from continuum_bench.workload.hints import hint_error, hint_kind, with_hints
from continuum_bench.workload.load import LoadedTrace, load_trace
from continuum_bench.workload.started import ALL as AT_THE_FIRST_TURN
from continuum_bench.workload.started import under_way
from continuum_bench.workload.tool_times import RECORDED, tool_times
from continuum_bench.workload.window import in_window

FASTEST_TOKEN_S = 1e-3
"""Seconds for a token of an answer, fewer than any engine needs: so many sessions are planned that none is missing."""
MOST_PROGRAMS = 100_000
"""As of ``--num-programs``."""


@dataclass(frozen=True, slots=True)
class JobSource:
    """The programs of a trace with the options of their arrivals. ``jobs`` draws the arrivals of a seed."""

    trace: LoadedTrace
    arrivals: ArrivalOptions

    @property
    def repeats(self) -> bool:
        """Return whether some programs are played more than once."""
        return self.trace.number > len(self.trace.programs)

    @property
    def facts(self) -> Workload:
        """Return the manifest's facts about the workload."""
        given = self.arrivals
        facts = {
            **to_json(self.trace.facts),
            **given.given(ArrivalOptions),
            "arrivals": given.arrivals,
            "jps": given.jps if uses_rate(given.arrivals) else None,
            "last_step": "known when the last request is sent (replay)" if given.tags == "full" else "never told",
            "assumptions": self.assumptions or None,
            "rules_broken": None if given.scenario is None else self.rules_broken,
        }
        return from_json(Workload, facts)

    @property
    def rules_broken(self) -> list[str]:
        """Return the rules of the scenario that the options break, a line each."""
        scenario = SCENARIOS[self.arrivals.scenario or ""]
        given = {**asdict(self.arrivals), **self.trace.facts.more}
        broken = [
            f"--{name.replace('_', '-')} is not {f'{value:g}' if isinstance(value, float) else value}"
            for name, value in scenario.exact.items()
            if given.get(name) != value
        ]
        whole = self.trace.number % len(self.trace.programs) == 0
        return [*broken, *([] if whole else ["not a multiple of the trace's programs"]), *scenario.cannot]

    @property
    def assumptions(self) -> list[str]:
        """Return what was assumed of the programs, a line each."""
        timed = self.arrivals.tool_times.startswith(("constant", "bimodal"))
        unknown = [] if timed else [of_tool_times(self.trace.programs)]
        return Assumptions([*self.trace.assumptions, *unknown, of_parents(self.trace.programs)]).lines()

    @property
    def lanes(self) -> Lanes | None:
        """Return the closed loop in which programs start; None: they arrive at their arrival times."""
        return lanes_of(self.arrivals.arrivals)

    def jobs(self, seed: int) -> list[Job]:
        """Return the programs in random order (``recorded``: the trace's order), equal for all policies of a seed.

        Only root programs arrive. Sub-programs are behind them and have the arrival of their root.
        """
        rng, programs = np.random.default_rng(seed), self.trace.programs
        parents, plays = parents_of(programs), Counter(i % len(programs) for i in range(self.trace.number))
        started = {child: min(plays[child], plays[parent]) for child, parent in parents.items()}
        repeats = (divmod(i, len(programs)) for i in range(self.trace.number))
        order = [index for repeat, index in repeats if repeat >= started.get(index, 0)]
        if not self.arrivals.arrivals.startswith("recorded"):
            rng.shuffle(order)
        times = arrival_times(self.arrivals.arrivals)(rng, self.arrivals.jps, [programs[i] for i in order])
        played = Counter(started)
        jobs: list[Job] = []
        for index, arrival_s in zip(order, times, strict=True):
            program = programs[index]
            if program.parent_turn is not None:
                program = replace(program, parent_turn=None)
            jobs.append(Job(program, float(arrival_s), played[index], sends=self.arrivals.tags))
            played[index] += 1
        if started:
            jobs += _sub_jobs(jobs, [(programs[child], number) for child, number in started.items()])
        if self.arrivals.start_within != AT_THE_FIRST_TURN and self.lanes is not None:
            jobs = under_way(jobs, self.lanes.number, self.arrivals.start_within, seed)
        return in_window(self._changed(jobs, seed), self.arrivals)

    def _changed(self, jobs: list[Job], seed: int) -> list[Job]:
        """Return the jobs with the tool times and hints of the options, in the order of their arrival."""
        change, kind = self.arrivals.tool_times, hint_kind(self.arrivals.hints)
        if change == RECORDED and kind is None:
            return jobs
        jobs = sorted(jobs, key=lambda job: job.arrival_s)
        if change != RECORDED:
            programs = tool_times(change)(random.Random(seed), [job.program for job in jobs])
            jobs = [replace(job, program=program) for job, program in zip(jobs, programs, strict=True)]
        return jobs if kind is None else with_hints(jobs, kind, hint_error(self.arrivals.hint_error), seed)


def _sub_jobs(roots: Sequence[Job], children: Sequence[tuple[Program, int]]) -> Iterator[Job]:
    """Yield the jobs of sub-programs, each behind its parent.

    Args:
        roots: the jobs of programs that nobody starts.
        children: each sub-program, and how often it is played by its parent.
    """
    by_parent = grouped((program.parent_id or "", (program, number)) for program, number in children)
    queue = deque(roots)
    while queue:
        parent = queue.popleft()
        for program, number in by_parent.get(parent.program.program_id, ()):
            if parent.salt < number:
                child = replace(parent, program=replace(program, parent_id=parent.program_id))
                queue.append(child)
                yield child


def load_workload(
    name: str,
    options: TraceOptions,
    arrivals: ArrivalOptions,
    context_tokens: int = 131072,
    say: Callable[[str], None] = print_notice,
) -> JobSource:
    """Load and check a workload. Programs that the model cannot hold are left out, each with a line on stderr.

    Args:
        name: swebench, bfcl or openhands; a trace file has its own name.
        options: which programs.
        arrivals: when they arrive, and their tools and hints.
        context_tokens: the model's longest context.
        say: prints what was skipped and assumed.

    Raises:
        BenchError: as ``load_trace``; or the trace lacks the recorded arrivals or tools that the options need.
        TraceError: the file is invalid.
    """
    if arrivals.start_within != AT_THE_FIRST_TURN and not arrivals.arrivals.startswith("concurrency"):
        raise BenchError(f"--start-within {arrivals.start_within}: needs --concurrency")
    trace = load_trace(options.traces.name.split(".")[0] if options.traces else name, options, context_tokens)
    if options.num_programs is None and (number := _number_until_limit(trace.programs, arrivals)):
        trace = load_trace(trace.facts.name or name, replace(options, num_programs=number), context_tokens)
    for problem in trace.skipped:
        say(f"skipped: {problem}")
    if arrivals.tool_times != RECORDED and not any(turn.tool_calls for p in trace.programs for turn in p.turns):
        raise BenchError(f"--tool-times {arrivals.tool_times}: the programs call no tools")
    workload = JobSource(trace, arrivals)
    for line in workload.assumptions:
        say(f"assumed: {line}")
    _check_span(workload.jobs(0))  # a trace without recorded arrivals is refused here
    return workload


def _number_until_limit(programs: Sequence[Program], arrivals: ArrivalOptions) -> int | None:
    """Return a number of programs, a multiple of these, that cannot all end before the time limit of a scenario whose
    sessions are repeated; None: it has none."""
    lanes = lanes_of(arrivals.arrivals)
    if arrivals.scenario is None or not SCENARIOS[arrivals.scenario].repeats or lanes is None:
        return None
    parents = parents_of(programs)
    turns = [turn for place, program in enumerate(programs) if place not in parents for turn in program.turns]
    once_s = sum(turn.gap_s + max(1, turn.output_tokens) * FASTEST_TOKEN_S for turn in turns)
    plays = ceil(lanes.number * (arrivals.time_limit_s or 0.0) / once_s) + 2  # the first ones begin inside
    return len(programs) * min(plays, max(1, MOST_PROGRAMS // len(programs)))


def _check_span(jobs: list[Job]) -> None:
    """Check the length of a run.

    Raises:
        BenchError: the run would take longer than ``MOST_S``.
    """
    gaps_s = (job.program.parent_gap_s + sum(turn.gap_s for turn in job.program.turns) for job in jobs)
    span_s = max(job.arrival_s + gap_s for job, gap_s in zip(jobs, gaps_s, strict=True))
    if not span_s <= MOST_S:
        raise BenchError(f"the arrivals and tool times of a run take {span_s:g} s; they may take {MOST_S:,.0f} s")
