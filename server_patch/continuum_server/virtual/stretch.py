"""Event skipping: several engine steps, in which nothing can happen, are taken in one scheduler call.

In such a stretch every decoding request generates one token per step, and at most one prompt is computed, with all
remaining tokens of each step. A run with stretches writes the same files as a run without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler

from continuum_server.step_times.model import PrefillChunk, StepTimes
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
        self._step_tokens = scheduler.max_num_scheduled_tokens

    def next(self, now_s: float, news_s: Callable[[], float], settled: bool, prompts: bool) -> list[float]:
        """Return the seconds of each step of the stretch that begins now; empty: the next step must be taken alone.

        In a stretch no running request finishes, no prompt is computed to its end, the pool has enough blocks, and no
        arrival, pin deadline or end of a transfer is before the start of the last step.

        Args:
            news_s: returns the time until which no arrival and no end of a transfer is possible.
            settled: the previous step started no waiting request. With fewer free blocks and the same batch, the next
                steps start none either. (Beside a prompt they never do, because it takes all remaining tokens.)
            prompts: whether a stretch may compute a prompt.
        """
        running: Sequence[Any] = self._scheduler.running
        prompt = running[-1] if running and running[-1].is_prefill_chunk else None
        decoding = running if prompt is None else running[:-1]
        if (prompt is None and self._waits() and not settled) or (prompt is not None and not prompts):
            return []
        steps, chunk = self._steps_of_tokens(decoding, prompt)
        if steps > 1:
            steps = self._fit_blocks(decoding, prompt, chunk, steps)
        if steps <= 1:
            return []
        steps_s = self._until(news_s(), now_s, self._steps_s(decoding, prompt, chunk, steps))
        return steps_s if len(steps_s) > 1 else []

    def _waits(self) -> bool:
        return any(bool(getattr(self._scheduler, name, ())) for name in ("waiting", *SET_ASIDE))

    def _steps_of_tokens(self, decoding: Sequence[Any], prompt: Any) -> tuple[int, int]:
        """Return the most steps before a request reaches its end, and the prompt's tokens in each step."""
        if any(request.is_prefill_chunk or not request.num_output_tokens for request in decoding):
            return 1, 0
        if prompt is None:
            if not decoding:
                return 1, 0
            most, chunk = self._step_tokens // len(decoding), 0
        else:
            chunk = self._step_tokens - len(decoding)
            if chunk <= 0:
                return 1, 0
            most = (prompt.num_tokens - prompt.num_computed_tokens - 1) // chunk
        left = [request.max_tokens - request.num_output_tokens - 1 for request in decoding]
        return min(self._max_steps, most, *left), chunk

    def _fit_blocks(self, decoding: Sequence[Any], prompt: Any, chunk: int, steps: int) -> int:
        """Halve the number of steps until the free blocks suffice."""
        free, size = free_block_count(self._scheduler), self._scheduler.block_size
        grows = [(request.num_computed_tokens, 1) for request in decoding]
        if prompt is not None:
            grows.append((prompt.num_computed_tokens, chunk))
        while steps > 1:
            wanted = sum(-(-(computed + steps * more) // size) - -(-computed // size) for computed, more in grows)
            if wanted <= free:
                break
            steps //= 2
        return steps

    def _steps_s(self, decoding: Sequence[Any], prompt: Any, chunk: int, steps: int) -> list[float]:
        decodes = len(decoding)
        context = sum(request.num_computed_tokens + 1 for request in decoding)
        if prompt is None:
            return self._times.decode_stretch_s(decodes, context, steps)
        done = prompt.num_computed_tokens
        return [
            self._times.step_s([PrefillChunk(chunk, done + step * chunk)], decodes, context + step * decodes)
            for step in range(steps)
        ]

    def _until(self, news_s: float, now_s: float, steps_s: list[float]) -> list[float]:
        """Return the steps that start before ``news_s`` and not after the next deadline of a pin or of the policy."""
        deadline_s = self._scheduler.table.next_deadline_s()
        for number, seconds in enumerate(steps_s):
            if news_s <= now_s or (deadline_s is not None and deadline_s < now_s):
                return steps_s[:number]
            now_s += seconds
        return steps_s


@contextmanager
def several_steps(scheduler: Scheduler, steps: int) -> Iterator[None]:
    """Let one call of ``schedule`` in this context schedule ``steps`` steps. With fewer than two, change nothing.

    Each decoding request gets a token per step. If a prompt is computed beside them, the batch's token limits are
    multiplied by the number of steps, and the prompt gets the remaining tokens.
    """
    config = scheduler.scheduler_config
    before = scheduler.max_num_scheduled_tokens, config.max_num_batched_tokens
    if steps > 1:
        decoding = [request for request in scheduler.running if not request.is_prefill_chunk]
        for request in decoding:
            request.spec_token_ids = [0] * (steps - 1)
        if len(decoding) < len(scheduler.running):
            scheduler.max_num_scheduled_tokens, config.max_num_batched_tokens = (steps * limit for limit in before)
    try:
        yield
    finally:
        scheduler.max_num_scheduled_tokens, config.max_num_batched_tokens = before


def hash_computed_blocks(scheduler: Scheduler) -> None:
    """Hash the running requests' full blocks now. vLLM would hash them when it allocates their next step."""
    for request in scheduler.running:
        scheduler.kv_cache_manager.cache_blocks(request, request.num_computed_tokens)
