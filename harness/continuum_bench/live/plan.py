"""The plan of a live run: its programs, their arrivals, and which of them count in the metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from continuum_traces.schema import Workload

from continuum_bench.errors import BenchError
from continuum_bench.live.load import LivePlay
from continuum_bench.options.declare import MOST
from continuum_bench.workload.arrivals import Lanes, lanes_of
from continuum_bench.workload.workload import JobSource


@dataclass(frozen=True, slots=True)
class Window:
    """The first and the last programs to arrive, which are played but do not count in the metrics.

    Each field is a number of programs (``10``) or a time (``60s``): the programs that arrive within these seconds after
    the start, or before the last arrival. They are the same for all policies of a seed.
    """

    warm_up: str = "0"
    cool_down: str = "0"

    def noted(self, facts: Workload) -> Workload:
        """Return a manifest's facts with the window, if not every program counts."""
        warm_up, cool_down = (None if each == "0" else each for each in (self.warm_up, self.cool_down))
        return replace(facts, warm_up=warm_up, cool_down=cool_down)


@dataclass(frozen=True, slots=True)
class Plan:
    """The programs that are played for one seed."""

    plays: tuple[LivePlay, ...]
    """In order of arrival."""
    lanes: Lanes | None
    """Fixed concurrency; None: programs arrive at their arrival times."""


def make_plan(workload: JobSource, seed: int, window: Window) -> Plan:
    """Return the plan of one seed. Equal arguments give equal plans.

    Raises:
        BenchError: the window is invalid, or no program is left to count.
    """
    lanes = lanes_of(workload.arrivals.arrivals)
    plays = [
        LivePlay(job.program, job.program_id, job.arrival_s, 0, hints=job.hints, sends=job.sends)
        for job in workload.jobs(seed)
    ]
    plays.sort(key=lambda play: play.arrival_s)
    first, end = _counted(window, [play.arrival_s for play in plays], lanes is None)
    if first >= end:
        raise BenchError(f"--warm-up {window.warm_up}, --cool-down {window.cool_down}: no program is left to count")
    numbered = (replace(play, number=n, counted=first <= n < end) for n, play in enumerate(plays))
    return Plan(tuple(numbered), lanes)


def _counted(window: Window, times_s: Sequence[float], open_loop: bool) -> tuple[int, int]:
    """Return the index of the first program that counts, and the index after the last one that counts."""
    warm, warm_is_time = read_edge("--warm-up", window.warm_up)
    cool, cool_is_time = read_edge("--cool-down", window.cool_down)
    if (warm_is_time or cool_is_time) and not open_loop:
        raise BenchError("--warm-up, --cool-down: with fixed concurrency give a number of programs, not seconds")
    first = sum(time_s < warm for time_s in times_s) if warm_is_time else int(warm)
    last = sum(time_s > times_s[-1] - cool for time_s in times_s) if cool_is_time else int(cool)
    return first, len(times_s) - last


def read_edge(option: str, text: str) -> tuple[float, bool]:
    """Read ``10`` (programs) or ``60s``. Returns the number, and whether it means seconds.

    Raises:
        BenchError: the text has another form.
    """
    seconds = text.endswith("s")
    try:
        number = float(text[:-1]) if seconds else float(int(text))
    except ValueError:
        number = -1.0
    if not 0 <= number <= MOST:
        raise BenchError(f"{option} {text}: expected a number of programs (10) or seconds (60s)")
    return number, seconds
