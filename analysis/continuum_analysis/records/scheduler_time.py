"""The processor time of the scheduler, which the virtual engine measures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from continuum_traces.json_io import read_as
from continuum_traces.records.run_dir import SCHEDULER_TIME


@dataclass(frozen=True, slots=True)
class RecordedSchedulerTime:
    """Processor seconds in vLLM's ``schedule`` and ``update_from_output``, policy included, summed over replicas."""

    calls: int
    total_s: float
    longest_s: float


def read_scheduler_time(path: Path) -> RecordedSchedulerTime | None:
    """Read the scheduler time of a run; None if it was not measured.

    Raises:
        RunDirError: a fault in the file.
    """
    file = path / SCHEDULER_TIME
    if not file.exists():
        return None
    return read_as(RecordedSchedulerTime, file)
