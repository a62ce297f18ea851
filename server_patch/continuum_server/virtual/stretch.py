"""Event skipping: several engine steps, in which nothing can happen, are taken in one scheduler call.

In such a stretch every running request generates one token per step, and no prompt is computed. A run with stretches
writes the same files as a run without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler

from continuum_server.step_times.model import StepTimes
from continuum_server.vllm_plugin.scheduler import ProgramSchedulerMixin
from continuum_server.vllm_plugin.touch_points import SET_ASIDE, free_block_count


class Stretches:
    """Finds stretches for one scheduler.

    Args:
        scheduler: built for synchronous scheduling.
        times: seconds of a step.
        max_steps: length of the longest stretch; 1 disables event skipping.
    """

    def __init__(self, scheduler: ProgramSchedulerMixin, times: StepTimes, max_steps: int) -> None:
        self._scheduler = scheduler
        self._times = times
        self._max_steps = max_steps

    def next(self, now_s: float, news_s: Callable[[], float], settled: bool) -> list[float]:
        """Return the seconds of each step of the stretch that begins now; empty: the next step must be taken alone.

        In a stretch no running request finishes, the pool has enough blocks, and no arrival, pin deadline or end of a
        transfer is before the start of the last step.

        Args:
            news_s: returns the time until which no arrival and no end of a transfer is possible.
            settled: the previous step started no waiting request. With fewer free blocks and the same batch, the next
                steps start none either.
        """
        running: Sequence[Any] = self._scheduler.running
        if self._waits() and not settled:
            return []
        steps = self._fit_blocks(running, self._steps_of_tokens(running))
        if steps <= 1:
            return []
        context = sum(request.num_computed_tokens + 1 for request in running)
        steps_s = self._until(news_s(), now_s, self._times.decode_stretch_s(len(running), context, steps))
        return steps_s if len(steps_s) > 1 else []

    def _waits(self) -> bool:
        return any(bool(getattr(self._scheduler, name, ())) for name in ("waiting", *SET_ASIDE))

    def _steps_of_tokens(self, running: Sequence[Any]) -> int:
        """Return the most steps before a request reaches its end; 1 if a prompt is being computed."""
        if not running or any(request.is_prefill_chunk or not request.num_output_tokens for request in running):
            return 1
        left = [request.max_tokens - request.num_output_tokens - 1 for request in running]
        return int(min(self._max_steps, self._scheduler.max_num_scheduled_tokens // len(running), *left))

    def _fit_blocks(self, running: Sequence[Any], steps: int) -> int:
        """Halve the number of steps until the free blocks suffice."""
        free, size = free_block_count(self._scheduler), self._scheduler.block_size
        while steps > 1:
            computed = (request.num_computed_tokens for request in running)
            if sum(-(-(tokens + steps) // size) - -(-tokens // size) for tokens in computed) <= free:
                break
            steps //= 2
        return steps

    def _until(self, news_s: float, now_s: float, steps_s: list[float]) -> list[float]:
        """Return the steps that start before ``news_s`` and not after the next deadline of a pin or of the policy."""
        deadline_s = self._scheduler.table.next_deadline_s()
        for number, seconds in enumerate(steps_s):
            if news_s <= now_s or (deadline_s is not None and deadline_s < now_s):
                return steps_s[:number]
            now_s += seconds
        return steps_s


def plan_steps(scheduler: Scheduler, steps: int) -> None:
    """Let the next call of ``schedule`` schedule ``steps`` steps: each running request gets a token per step."""
    for request in scheduler.running if steps > 1 else ():
        request.spec_token_ids = [0] * (steps - 1)


def hash_computed_blocks(scheduler: Scheduler) -> None:
    """Hash the running requests' full blocks now. vLLM would hash them when it allocates their next step."""
    for request in scheduler.running:
        scheduler.kv_cache_manager.cache_blocks(request, request.num_computed_tokens)
