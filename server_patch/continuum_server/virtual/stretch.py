"""Event skipping: several engine steps, in which nothing can happen, are taken in one scheduler call.

In such a stretch every running request generates one token per step, and no prompt is computed. A run with stretches
writes the same files as a run without.

With one KV cache group the scheduler takes all steps of the stretch in one call, as if they were accepted draft tokens.
With several groups the order of steps matters, because a request frees blocks while it decodes: those that its window
has passed, or the state before the last. So ``Stretches.skip`` goes from step to step, and calls vLLM's
``allocate_slots`` in those in which a request takes, caches or frees a block; the scheduler takes only the last step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import AttentionSpec

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
        groups = scheduler.kv_cache_config.kv_cache_groups
        self.by_groups = len(groups) > 1
        """Whether a stretch is taken by ``skip``."""
        self._acts = sorted({act for group in groups for act in _acts(group.kv_cache_spec)}) if self.by_groups else []
        self._most_new = len(groups)

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
        steps = self._steps_of_tokens(running)
        if not self.by_groups:
            steps = self._fit_blocks(running, steps)
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

    def skip(self, steps: int, outputs: Sequence[Sequence[int]]) -> int:
        """Take at most so many decode steps without a call of ``schedule``; return how many were taken.

        It is fewer if blocks run out, or if a waiting request may fit because more blocks are free than before. Some
        requests then have the blocks of one more step, which the scheduler finds when it takes that step.

        Args:
            outputs: the whole answer of each running request, in the scheduler's order.
        """
        running: Sequence[Any] = self._scheduler.running
        starts = [(request.num_computed_tokens, request.num_output_tokens) for request in running]
        waits, free = self._waits(), free_block_count(self._scheduler)

        def advance(index: int, step: int) -> None:
            """Let the request have computed ``step`` steps."""
            request, (computed, generated) = running[index], starts[index]
            new = outputs[index][request.num_output_tokens : generated + step]
            if new:
                request.append_output_token_ids(list(new))
            request.num_computed_tokens = computed + step

        taken = steps
        for step, acting in groupby(self._acting(steps, [computed for computed, _ in starts]), itemgetter(0)):
            for _, index in acting:
                if free_block_count(self._scheduler) < self._most_new:
                    taken = step
                    break
                advance(index, step)
                self._scheduler.kv_cache_manager.allocate_slots(running[index], 1)
            if taken == step or (waits and free_block_count(self._scheduler) > free):
                taken = step
                break
        for index in range(len(running)):
            advance(index, taken)
        return taken

    def _acting(self, steps: int, computed: Sequence[int]) -> list[tuple[int, int]]:
        """Return (step, index of a running request) where its blocks change, in the order of vLLM's scheduler.

        In the first step they may change because the scheduler's last call computed a chunk of a prompt.
        """
        acting = {(0, index) for index in range(len(computed))}
        acting |= {
            (step, index)
            for index, tokens in enumerate(computed)
            for size, rest in self._acts
            for step in range((rest - tokens) % size, steps, size)
        }
        return sorted(acting)

    def _until(self, news_s: float, now_s: float, steps_s: list[float]) -> list[float]:
        """Return the steps that start before ``news_s`` and not after the next deadline of a pin or of the policy."""
        deadline_s = self._scheduler.table.next_deadline_s()
        for number, seconds in enumerate(steps_s):
            if news_s <= now_s or (deadline_s is not None and deadline_s < now_s):
                return steps_s[:number]
            now_s += seconds
        return steps_s


def _acts(spec: Any) -> Iterator[tuple[int, int]]:
    """Yield (block size, remainder): with such a number of computed tokens, a step changes the request's blocks.

    The step takes a block for its token, or caches the block that its token fills. In a group with
    a sliding window it frees the block that left the window, in one with states the block of the previous state.
    """
    size = spec.block_size
    yield size, 0
    yield size, size - 1
    window = getattr(spec, "sliding_window", None)
    if window is not None:
        yield size, (window - 1) % size
    if not isinstance(spec, AttentionSpec):
        yield size, 1


def plan_steps(scheduler: Scheduler, steps: int) -> None:
    """Let the next call of ``schedule`` schedule ``steps`` steps: each running request gets a token per step."""
    for request in scheduler.running if steps > 1 else ():
        request.spec_token_ids = [0] * (steps - 1)


def draft_tokens(scheduler: Scheduler, drafts: int) -> None:
    """Let the next call of ``schedule`` schedule so many drafted tokens for each request that decodes."""
    for request in scheduler.running:
        if request.num_output_tokens and request.num_computed_tokens >= request.num_tokens - 1:
            request.spec_token_ids = [0] * drafts


def hash_computed_blocks(scheduler: Scheduler) -> None:
    """Hash the running requests' full blocks now. vLLM would hash them when it allocates their next step."""
    for request in scheduler.running:
        scheduler.kv_cache_manager.cache_blocks(request, request.num_computed_tokens)
