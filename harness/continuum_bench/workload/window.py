"""Which programs count in the metrics: not the first ones (``--warm-up``), not the last ones (``--cool-down``).

An edge is a number of programs (``10``), in the order of their arrival, or a time (``60s``): the programs that arrive
within these seconds after the start, or before the last arrival. They are the same for all policies of a seed. In a
closed loop nobody knows in advance when a program starts; there the analysis leaves out the turns that are due in the
seconds after the start, or before the time limit (``continuum_analysis.records.facts``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from continuum_traces.conversation import Job
from continuum_traces.schema import LANES, REQUESTS

from continuum_bench.errors import BenchError
from continuum_bench.options.declare import MOST, number_in
from continuum_bench.options.run import ArrivalOptions
from continuum_bench.workload.arrivals import lanes_of


def in_window(jobs: Sequence[Job], given: ArrivalOptions) -> list[Job]:
    """Return the jobs in the same order. Those outside of the window do not count.

    Raises:
        BenchError: the window is invalid, or no program is left to count.
    """
    if (given.warm_up, given.cool_down) == ("0", "0"):
        return list(jobs)
    warm_up, cool_down = given.warm_up, given.cool_down
    closed = given.arrivals.startswith("concurrency")
    if not closed and (REQUESTS.fullmatch(warm_up) or cool_down == LANES):
        raise BenchError(f"--warm-up {warm_up}, --cool-down {cool_down}: requests and lanes need --concurrency")
    (warm, warm_is_time), (cool, cool_is_time) = read_warm_up(warm_up), read_cool_down(cool_down)
    if lanes_of(given.arrivals) is not None:
        if cool_is_time and given.time_limit_s is None:
            raise BenchError(f"--cool-down {given.cool_down}: seconds in a closed loop need --time-limit-s")
        warm, cool = (0 if warm_is_time else warm), (0 if cool_is_time else cool)
        warm_is_time = cool_is_time = False
    order = sorted(range(len(jobs)), key=lambda index: jobs[index].arrival_s)
    times_s = [jobs[index].arrival_s for index in order]
    first = sum(time_s < warm for time_s in times_s) if warm_is_time else int(warm)
    end = len(order) - (sum(time_s > times_s[-1] - cool for time_s in times_s) if cool_is_time else int(cool))
    if first >= end:
        raise BenchError(f"--warm-up {given.warm_up}, --cool-down {given.cool_down}: no program is left to count")
    counted = set(order[first:end])
    return [replace(job, counted=index in counted) for index, job in enumerate(jobs)]


def read_warm_up(text: str) -> tuple[float, bool]:
    """Read ``10`` (programs), ``60s``, or ``11r`` (requests of a closed loop, which leave out no whole program).

    Returns:
        The number of programs or seconds, and whether it means seconds.

    Raises:
        BenchError: the text has another form.
    """
    return (0.0, False) if REQUESTS.fullmatch(text) else _read_edge("--warm-up", text)


def read_cool_down(text: str) -> tuple[float, bool]:
    """Read ``10``, ``60s``, or ``lanes`` (of a closed loop, which leaves out no whole program), as ``read_warm_up``."""
    return (0.0, False) if text == LANES else _read_edge("--cool-down", text)


def _read_edge(option: str, text: str) -> tuple[float, bool]:
    seconds = text.endswith("s")
    number = number_in(text.removesuffix("s"))
    if not (0 <= number <= MOST and (seconds or number.is_integer())):
        raise BenchError(f"{option} {text}: expected a number of programs (10) or seconds (60s)")
    return number, seconds
