"""Arrival times: the rate that was asked for, the burstiness that was asked for, and nothing drawn twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from continuum_bench.errors import BenchError
from continuum_bench.options.run import ArrivalOptions, TraceOptions
from continuum_bench.workload.arrivals import arrival_times
from continuum_bench.workload.load import load_trace
from continuum_bench.workload.window import in_window
from continuum_bench.workload.workload import load_workload
from continuum_traces.playing.conversation import Job
from continuum_traces.programs.jsonl import write_programs
from continuum_traces.schema import Program, Turn


def programs(count: int, spacing_s: float | None = None) -> list[Program]:
    return [
        Program(f"p{i}", (Turn(1, 1),), arrival_s=None if spacing_s is None else i * spacing_s) for i in range(count)
    ]


@pytest.mark.parametrize(
    ("spec", "variation"), [("poisson", 1.0), ("constant", 0.0), ("gamma:0.5", 0.5), ("gamma:3", 3.0)]
)
def test_rate_and_burstiness(spec: str, variation: float) -> None:
    times = arrival_times(spec)(np.random.default_rng(1), 0.25, programs(20_000))
    gaps = np.diff(times)
    assert np.all(gaps >= 0)
    assert gaps.mean() == pytest.approx(4.0, rel=0.06)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, abs=0.1 * max(1.0, variation))


def test_a_ramp_grows() -> None:
    gaps = np.diff(arrival_times("ramp:4")(np.random.default_rng(1), 1.0, programs(10_000)))
    assert gaps[:1000].mean() == pytest.approx(1 / 0.44, rel=0.15)
    assert gaps[-1000:].mean() == pytest.approx(1 / 3.8, rel=0.15)


@pytest.mark.parametrize(
    ("spec", "times"),
    [("recorded", [0.0, 1.0, 1.5]), ("recorded:4", [0.0, 5.0, 7.5]), ("recorded:0.5", [0.0, 40.0, 60.0])],
)
def test_recorded_offsets_begin_with_the_first_and_are_scaled(spec: str, times: list[float]) -> None:
    """To a rate of 2/s without a number (two gaps in a second), else so many times as fast."""
    instants = zip(programs(4), (7.0, 27.0, 37.0, 37.0), strict=True)
    recorded = [replace(program, arrival_s=at_s) for program, at_s in instants]
    assert list(arrival_times(spec)(np.random.default_rng(1), 2.0, recorded)) == pytest.approx([*times, times[-1]])


def test_a_trace_is_read_once_whatever_the_rate_and_again_once_it_changed(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write_programs(path, programs(3))
    options = TraceOptions(traces=path)
    slow, fast = (load_workload("replay", options, ArrivalOptions(jps)) for jps in (0.1, 2.0))
    assert slow.facts.name == "trace"
    assert slow.trace.programs[0] is fast.trace.programs[0]
    assert load_trace("trace", replace(options, num_programs=2)).programs[0] is slow.trace.programs[0]
    write_programs(path, programs(4))
    assert load_trace("trace", options).number == 4
    assert load_trace("trace", options).facts.sha256 != slow.facts.sha256


@pytest.mark.parametrize(
    ("warm_up", "cool_down", "counted"),
    [
        *(("0", "0", [10, 20, 30, 40]), ("10s", "0", [10, 20, 30, 40]), ("10.1s", "0", [20, 30, 40])),
        *(("0", "9.9s", [10, 20, 30]), ("0", "10s", [10, 20, 30]), ("0", "10.1s", [10, 20])),
        *(("1", "2", [20]), ("11s", "1", [20, 30]), ("2", "2", None), ("41s", "0", None), ("x", "0", None)),
    ],
)
def test_who_counts_between_warm_up_and_cool_down(warm_up: str, cool_down: str, counted: list[int] | None) -> None:
    """Seconds from the first instant, and before the last arrival; or so many programs."""
    jobs = [Job(program, at_s) for program, at_s in zip(programs(4), (30.0, 10.0, 40.0, 20.0), strict=True)]
    if counted is None:
        with pytest.raises(BenchError, match="--warm-up"):
            in_window(jobs, ArrivalOptions(warm_up=warm_up, cool_down=cool_down))
    else:
        kept = in_window(jobs, ArrivalOptions(warm_up=warm_up, cool_down=cool_down))
        assert [replace(job, counted=True) for job in kept] == jobs
        assert sorted(job.arrival_s for job in kept if job.counted) == counted
    closed = in_window(jobs, ArrivalOptions(arrivals="concurrency:2", warm_up="41s", cool_down="1"))
    assert [job.counted for job in closed] == [True, True, False, True]  # seconds are of turns there
