"""Changed tool times: the statistics that were asked for, equal for every policy, part of the workload's identity."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from continuum_bench.options.run import ArrivalOptions, TraceOptions
from continuum_bench.workload.load import LoadedTrace
from continuum_bench.workload.tool_times import tool_times
from continuum_bench.workload.workload import JobSource, load_workload
from continuum_traces.playing.conversation import Job
from continuum_traces.programs.synth import bundled, scale_lengths
from continuum_traces.schema import Program, ToolCall, Turn, Workload

SPECS = ["constant:30", "bimodal:0.8:0.5:60", "shift:10", "hang:0.15", "hang:0.3:600"]
PARALLEL = (ToolCall("ls", 0.5), ToolCall("pytest", 3.0, start_s=0.5))
TURNS = (Turn(100, 10, tool_calls=PARALLEL, gap_overhead_s=0.25), Turn(10, 10), Turn(10, 10, tool_calls=PARALLEL))


def swebench(programs: int, tool_times: str = "recorded", **options: Any) -> JobSource:
    trace = TraceOptions(num_programs=programs, **options)
    return load_workload("swebench", trace, ArrivalOptions(0.1, tool_times=tool_times))


def programs(count: int) -> list[Program]:
    return [Program(f"p{i}", (*TURNS, Turn(10, 5))) for i in range(count)]


def changed(spec: str, count: int, seed: int = 0) -> list[Program]:
    return tool_times(spec)(random.Random(seed), programs(count))


def gaps(program: Program) -> list[float]:
    return [turn.gap_s for turn in program.turns[:-1]]


def test_constant_leaves_names_overhead_and_turns_without_tools() -> None:
    (program,) = changed("constant:30", 1)
    assert gaps(program) == [30.25, 0.0, 30.0]
    assert [call.name for call in program.turns[0].tool_calls] == ["pytest"]


def test_bimodal_is_a_mixture_of_the_two_times() -> None:
    times = [turn.tool_calls[0].duration_s for p in changed("bimodal:0.8:0.5:60", 2000) for turn in p.turns[:3:2]]
    assert set(times) == {0.5, 60.0}
    assert times.count(0.5) / len(times) == pytest.approx(0.8, abs=0.02)
    both = [gaps(program)[2] > 1 for program in changed("bimodal:0.5:0.5:60", 2000) if gaps(program)[0] > 1]
    assert sum(both) / len(both) == pytest.approx(0.5, abs=0.05)  # turn by turn, not program by program


def test_a_shift_begins_with_the_middle_program() -> None:
    after = changed("shift:10", 5)
    assert [gaps(program) for program in after[:2]] == [[3.75, 0.0, 3.5]] * 2
    assert [gaps(program) for program in after[2:]] == [[35.25, 0.0, 35.0]] * 3
    assert [call.start_s for call in after[2].turns[0].tool_calls] == [0.0, 5.0]
    unknown = Program("p", (Turn(1, 1, tool_calls=(ToolCall("ls"),)), Turn(1, 1)))
    assert tool_times("shift:10")(random.Random(0), [unknown]) == [unknown]


@pytest.mark.parametrize(("spec", "share", "seconds"), [("hang:0.15", 0.15, 3600.0), ("hang:0.3:600", 0.3, 600.0)])
def test_a_share_of_programs_hangs_once(spec: str, share: float, seconds: float) -> None:
    after = changed(spec, 4000)
    hanging = [[index for index, gap in enumerate(gaps(program)) if gap >= seconds] for program in after]
    assert sum(map(bool, hanging)) / len(after) == pytest.approx(share, abs=0.02)
    assert {len(found) for found in hanging} == {0, 1}
    where = [found[0] for found in hanging if found]
    assert set(where) == {0, 2}  # a turn without tools cannot hang, nor the last one
    assert where.count(0) / len(where) == pytest.approx(0.5, abs=0.06)
    spared = [program for program, found in zip(after, hanging, strict=True) if not found]
    assert all(gaps(program) == [3.75, 0.0, 3.5] for program in spared)
    assert tool_times("hang:1")(random.Random(0), [Program("p", (Turn(1, 1),))])[0].turns == (Turn(1, 1),)


@pytest.mark.parametrize("spec", SPECS)
def test_plays_rest_on_the_seed_alone(spec: str) -> None:
    workload = swebench(130, spec)
    plays, others = workload.jobs(3), workload.jobs(4)
    assert plays == workload.jobs(3)

    def without_tools(jobs: Sequence[Job]) -> list[object]:
        return [(j.program.program_id, j.arrival_s, j.salt, j.program.prompt_tokens()) for j in jobs]

    assert without_tools(plays) == without_tools(swebench(130).jobs(3))
    if not spec.startswith("constant"):
        by_name = [{job.program.program_id: gaps(job.program) for job in jobs} for jobs in (plays, others)]
        assert by_name[0] != by_name[1]


def test_a_shared_prefix_comes_before_lengths_as_they_are_scaled() -> None:
    plain, behind = swebench(3, length_scale=0.5), swebench(3, "shift:2", length_scale=0.5, shared_prefix=18_000)
    names = ("length_scale", "shared_prefix")
    facts = [(each.facts.tool_times, *map(each.facts.more.get, names)) for each in (plain, behind)]
    assert facts == [(None, 0.5, None), ("shift:2", 0.5, 18_000)]
    for one, other in zip(plain.trace.programs, behind.trace.programs, strict=True):
        assert other.prompt_tokens() == [tokens + 18_000 for tokens in one.prompt_tokens()]
        assert other.shared_prefix_tokens == one.shared_prefix_tokens + 18_000


def test_middle_of_the_run_is_by_arrival_where_the_trace_is_not_in_order() -> None:
    trace = [replace(program, arrival_s=10.0 - i) for i, program in enumerate(programs(4))]
    arrivals = ArrivalOptions(arrivals="recorded:1", tool_times="shift:10")
    mixed = JobSource(LoadedTrace(tuple(trace), 4, Workload()), arrivals)
    late = {job.program.program_id for job in mixed.jobs(0) if gaps(job.program)[0] > 4}
    assert late == {"p0", "p1"}


def test_scaled_lengths() -> None:
    program = next(iter(bundled("swebench")))
    short = scale_lengths(program, 0.1)
    assert short.final_context_tokens == pytest.approx(program.final_context_tokens / 10, rel=0.02)
    assert len(short.turns) == len(program.turns)
    assert gaps(short) == gaps(program)
    assert all(turn.new_input_tokens >= 1 and turn.output_tokens >= 1 for turn in scale_lengths(program, 1e-9).turns)
