"""Measures the processor time of vLLM's ``schedule`` and ``update_from_output``, including the policy's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput


class SchedulerStopwatch:
    """Measures each ``schedule`` together with the ``update_from_output`` that follows it.

    The times differ from run to run. So no decision may depend on them, and they are written to their own file.

    Args:
        clock: returns seconds. By default, this thread's processor time, which other processes hardly change.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self.calls = 0
        self.total_s = 0.0
        self.longest_s = 0.0
        self._clock = clock
        self._call_s = 0.0

    def schedule(self, scheduler: Scheduler) -> SchedulerOutput:
        began_s = self._clock()
        output = scheduler.schedule()
        self._call_s = self._clock() - began_s
        return output

    def update(self, scheduler: Scheduler, output: SchedulerOutput, result: ModelRunnerOutput) -> None:
        began_s = self._clock()
        scheduler.update_from_output(output, result)
        self._call_s += self._clock() - began_s
        self.calls += 1
        self.total_s += self._call_s
        self.longest_s = max(self.longest_s, self._call_s)


def facts_of(times: Iterable[SchedulerStopwatch]) -> dict[str, Any]:
    """Return the content of ``scheduler_time.json``: the times of all replicas together."""
    watches = list(times)
    return {
        "calls": sum(watch.calls for watch in watches),
        "total_s": sum(watch.total_s for watch in watches),
        "longest_s": max(watch.longest_s for watch in watches),
    }
