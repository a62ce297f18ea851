"""Measures the processor time of vLLM's ``schedule`` and ``update_from_output``, with the policy in them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput


class SchedulerStopwatch:
    """Times each ``schedule`` together with the ``update_from_output`` that follows it.

    These times are measured, so they differ from run to run: no decision may depend on them, and they have a file of
    their own.

    Args:
        clock: seconds; by default this thread's processor time, so that other work on the machine counts little.
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
    """The times of all replicas together, as ``scheduler_time.json`` has them."""
    seen = list(times)
    return {
        "calls": sum(one.calls for one in seen),
        "total_s": sum(one.total_s for one in seen),
        "longest_s": max(one.longest_s for one in seen),
    }
