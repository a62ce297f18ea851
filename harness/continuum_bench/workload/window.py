"""Which programs count in the metrics: not the first ones (``--warm-up``), not the last ones (``--cool-down``).

An edge is a number of programs (``10``), in the order of their arrival, or a time (``60s``): the programs that arrive
within these seconds after the start, or before the last arrival. They are the same for all policies of a seed. In a
closed loop nobody knows in advance when a program starts; there the analysis leaves out the turns that are due in the
seconds after the start, or before the time limit (``continuum_analysis.records.facts``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from continuum_traces.playing.conversation import Job
from continuum_traces.schema import LANES

from continuum_bench.errors import BenchError
from continuum_bench.options.forms import COOL_DOWN, WARM_UP
from continuum_bench.options.run import ArrivalOptions
from continuum_bench.workload.arrivals import lanes_of


def in_window(jobs: Sequence[Job], given: ArrivalOptions) -> list[Job]:
    """Return the jobs in the same order. Those outside of the window do not count.

    Raises:
        BenchError: the window is invalid, or no program is left to count.
    """
    if (given.warm_up, given.cool_down) == ("0", "0"):
        return list(jobs)
    (warm_by, warm), (cool_by, cool) = WARM_UP.read(given.warm_up), COOL_DOWN.read(given.cool_down)
    if not given.arrivals.startswith("concurrency") and (warm_by == "Nr" or cool_by == LANES):
        words = f"--warm-up {given.warm_up}, --cool-down {given.cool_down}"
        raise BenchError(f"{words}: requests and lanes need --concurrency")
    arrive = lanes_of(given.arrivals) is None
    if not arrive and cool_by == "Ns" and given.time_limit_s is None:
        raise BenchError(f"--cool-down {given.cool_down}: seconds in a closed loop need --time-limit-s")
    order = sorted(range(len(jobs)), key=lambda index: jobs[index].arrival_s)
    times_s = [jobs[index].arrival_s for index in order]
    first, end = 0, len(order)
    if warm_by == "N":
        first = warm[0]
    elif arrive:
        first = sum(time_s < warm[0] for time_s in times_s)
    if cool_by == "N":
        end -= cool[0]
    elif arrive:
        end -= sum(time_s > times_s[-1] - cool[0] for time_s in times_s)
    if first >= end:
        raise BenchError(f"--warm-up {given.warm_up}, --cool-down {given.cool_down}: no program is left to count")
    counted = set(order[first:end])
    return [replace(job, counted=index in counted) for index, job in enumerate(jobs)]
