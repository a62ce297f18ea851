"""The plan of a live run: its programs, and their arrivals."""

from __future__ import annotations

from dataclasses import dataclass

from continuum_traces.closed_loop import Lanes

from continuum_bench.live.load import LivePlay
from continuum_bench.workload.workload import JobSource


@dataclass(frozen=True, slots=True)
class Plan:
    """The programs that are played for one seed."""

    plays: tuple[LivePlay, ...]
    """In order of arrival."""
    lanes: Lanes | None
    """A closed loop; None: programs arrive at their arrival times."""


def make_plan(workload: JobSource, seed: int) -> Plan:
    """Return the plan of one seed. Equal arguments give equal plans."""
    jobs = sorted(workload.jobs(seed), key=lambda job: job.arrival_s)
    return Plan(tuple(LivePlay(job, number) for number, job in enumerate(jobs)), workload.lanes)
