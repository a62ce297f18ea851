"""Prints what tool events gain (``POST /continuum/programs/{id}/events``).

    python benchmarks/tool_events.py [--seeds 0,1,2,3,4] [--programs 24]

SWE-bench agents arrive at 0.13 programs/s at a modelled H100 under ``working-set``, in virtual time, through vLLM's
scheduler and the plugin's own handling of events. Their clients send none of them, or some:

``started``    right after the answer, with the exact seconds that the tool will take
``finished``   when the tool has ended. The agent sends its next request later, where the table says so.
"""

from __future__ import annotations

import argparse
import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from statistics import fmean
from typing import ClassVar

from commands import show
from continuum_analysis.compare.intervals import interval_text, mean_interval, ratio_interval
from continuum_analysis.compare.words import markdown
from continuum_bench.options.run import ArrivalOptions, TraceOptions
from continuum_bench.workload.workload import load_workload
from continuum_server.policy.base import Options
from continuum_server.policy.facts import Hold, Machine, Orders, Step, ToolEvent, TurnFinish
from continuum_server.policy.rules.working_set import WorkingSet
from continuum_server.virtual.config import EngineConfig, shape_of, times_of
from continuum_server.virtual.engine import build_engine, settings_of
from continuum_traces.grouped import grouped
from continuum_traces.playing.conversation import Job
from continuum_traces.schema import Program, TurnRecord

READS_S = 0.05
"""Seconds from an answer until its tool has started and the client has said so."""


@dataclass(frozen=True, slots=True)
class Sends:
    """Which events clients send."""

    started: bool = False
    finished: bool = False


class Told(WorkingSet):
    """``working-set``, which lets events arrive at their times."""

    name: ClassVar[str] = "working-set-told"

    def __init__(self, machine: Machine, options: Options | None = None) -> None:
        super().__init__(machine, options)
        self.sends = Sends()
        self.programs: dict[str, Program] = {}
        self.tell: Callable[[str, str | None, ToolEvent], object] = lambda program, key, event: None
        self._due: list[tuple[float, int, str, ToolEvent]] = []
        self._numbers = count()

    def turn_finished(self, finish: TurnFinish) -> Hold:
        turn, name = finish.turn, finish.turn.program.name
        tool = self.programs[name].turns[turn.index].slowest_tool
        if tool is not None and self.sends.started:
            self._later(finish.now_s + READS_S, name, ToolEvent(max(0.0, tool.end_s - READS_S)))
        if tool is not None and self.sends.finished:
            self._later(finish.now_s + max(READS_S, tool.end_s), name, ToolEvent())
        return super().turn_finished(finish)

    def _later(self, at_s: float, name: str, event: ToolEvent) -> None:
        heapq.heappush(self._due, (at_s, next(self._numbers), name, event))

    def step(self, step: Step) -> Orders:
        while self._due and self._due[0][0] <= step.now_s:
            _, _, name, event = heapq.heappop(self._due)
            self.tell(name, None, event)
        return super().step(step)

    def next_event_s(self) -> float | None:
        instants = [super().next_event_s() or math.inf, self._due[0][0] if self._due else math.inf]
        return min(instants) if min(instants) < math.inf else None


WORKLOADS = {
    "10 s or 40 s, equally often": ("bimodal:0.5:10:40", 0.0),
    "the same; the next request comes 5 s after the tool's end": ("bimodal:0.5:10:40", 5.0),
    "0.5 s, every fifth 60 s": ("bimodal:0.8:0.5:60", 0.0),
}
"""What a tool takes (``--tool-times``), and the seconds from its end until the next request."""
ARMS = {
    "no events": Sends(),
    "started": Sends(started=True),
    "finished": Sends(finished=True),
    "both": Sends(started=True, finished=True),
}


def jobs_of(tool_times: str, late_s: float, programs: int, seed: int) -> list[Job]:
    options = TraceOptions(num_programs=programs)
    jobs = load_workload("swebench", options, ArrivalOptions(0.13, tool_times=tool_times)).jobs(seed)
    return [replace(job, program=_late(job.program, late_s)) for job in jobs]


def _late(program: Program, seconds: float) -> Program:
    turns = tuple(replace(turn, gap_overhead_s=turn.gap_overhead_s + seconds) for turn in program.turns)
    return replace(program, turns=turns)


def mean_jct_s(jobs: Sequence[Job], sends: Sends) -> float:
    config, turns = EngineConfig(), list[TurnRecord]()
    settings = settings_of(config, "tool_events:Told", {})
    engine = build_engine(shape_of(config), times_of(config), settings, jobs, turns.append)
    policy = engine.scheduler.table.policy
    policy.sends, policy.tell = sends, engine.scheduler.tool_event
    policy.programs = {job.program_id: job.program for job in jobs}
    engine.play(jobs)
    assert not engine.close()
    assert not engine.scheduler.wall.errors
    programs = grouped((turn.program_id, turn) for turn in turns).values()
    return fmean(max(turn.finish_s or 0.0 for turn in of) - min(turn.due_s for turn in of) for of in programs)


def rows(programs: int, seeds: Sequence[int]) -> Iterator[list[str]]:
    for title, (tool_times, late_s) in WORKLOADS.items():
        times = {
            arm: [mean_jct_s(jobs_of(tool_times, late_s, programs, seed), sends) for seed in seeds]
            for arm, sends in ARMS.items()
        }
        base, *others = times
        ratios = [ratio_interval(times[arm], times[base]) for arm in others]
        yield [
            title,
            interval_text(mean_interval(times[base]), "{:.0f}".format),
            *(interval_text(ratio, "{:.3f}".format) for ratio in ratios),
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=lambda text: [int(part) for part in text.split(",")], default=[0, 1, 2, 3, 4])
    parser.add_argument("--programs", type=int, default=24)
    options = parser.parse_args()
    base, *others = ARMS
    heads = ["a tool takes", f"JCT with {base}, s", *(f"{arm}, to it" for arm in others)]
    show(markdown(heads, rows(options.programs, options.seeds)))


if __name__ == "__main__":
    main()
