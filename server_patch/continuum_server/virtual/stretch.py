"""Event skipping: engine steps in which nothing can happen, taken in one scheduler call.

In such a stretch every decoding request generates one token a step, and at most one prompt is computed with all that
is left of each step's tokens. Nothing of it can be seen from outside: a run with stretches writes what a run step by
step writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from continuum_server.step_times.model import PrefillChunk, StepTimes
from continuum_server.vllm_plugin.scheduler import ProgramSchedulerMixin
from continuum_server.vllm_plugin.touch_points import free_block_count, has_set_aside


class Stretches:
    """Finds stretches for one scheduler.

    Args:
        scheduler: built for synchronous scheduling.
        times: seconds of a step.
        max_steps: longest stretch; 1 turns event skipping off.
    """

    def __init__(self, scheduler: ProgramSchedulerMixin, times: StepTimes, max_steps: int) -> None:
        self._scheduler = scheduler
        self._times = times
        self._max_steps = max_steps
        self._step_tokens = scheduler.max_num_scheduled_tokens

    def next(self, now_s: float, news_s: Callable[[], float], settled: bool, prompts: bool) -> list[float]:
        """Seconds of each step of the stretch that begins now; empty where the next step must be taken alone.

        None of the running requests finishes in a stretch, no prompt is computed to its end, the pool has the blocks,
        and no arrival, pin deadline or end of a transfer falls before the last step starts.

        Args:
            news_s: the instant before which nothing comes from outside the scheduler.
            settled: the step before passed over every request that waits. With fewer free blocks and the same batch
                they stay where they are. Beside a prompt they are not looked at: it takes all of a step's tokens.
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
        return bool(self._scheduler.waiting) or has_set_aside(self._scheduler)

    def _steps_of_tokens(self, decoding: Sequence[Any], prompt: Any) -> tuple[int, int]:
        """The most steps before a request reaches its end, and the prompt's tokens in each of them."""
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
        """The most steps, halving, for which the free blocks suffice."""
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
        """The steps that start before the news and not after the next deadline of a pin or of the policy."""
        deadline_s = self._scheduler.table.next_deadline_s()
        for number, seconds in enumerate(steps_s):
            if news_s <= now_s or (deadline_s is not None and deadline_s < now_s):
                return steps_s[:number]
            now_s += seconds
        return steps_s
