"""The future of requests, read from the trace. Bounds use it. A server cannot know it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from continuum_traces.conversation import Job

from continuum_server.policy.facts import Machine
from continuum_server.step_times.model import StepTimes
from continuum_server.virtual.alone import prefill_s
from continuum_server.vllm_plugin.scheduler import ProgramScheduler


class ForeseeingScheduler(ProgramScheduler):
    """The plugin's scheduler for engines that know the trace and can run bounds."""

    knows_future = True


class TraceOracle:
    """The tool times and the remaining work of all requests of these jobs, by request id."""

    def __init__(self, jobs: Sequence[Job], times: StepTimes, machine: Machine) -> None:
        self._times = times
        self._max_num_batched_tokens = machine.max_num_batched_tokens
        self._token_s = machine.decode.full_token_s(machine.kv_tokens) if machine.decode is not None else 0.0
        self._tool_s: dict[str, float] = {}
        self._remaining_s: dict[str, float] = {}
        self._work_s: dict[str, float] = {}
        self._work_after_s: dict[str, float] = {}
        for number, job in enumerate(jobs):
            self._read(number, job)

    def tool_s(self, request_id: str) -> float:
        return self._tool_s[request_id]

    def remaining_s(self, request_id: str) -> float:
        return self._remaining_s[request_id]

    def work_s(self, request_id: str) -> float:
        return self._work_s[request_id]

    def work_after_s(self, request_id: str) -> float:
        return self._work_after_s[request_id]

    def _read(self, number: int, job: Job) -> None:
        turns, prompts = job.program.turns, job.program.prompt_tokens()
        left_s = work_s = 0.0
        for index in reversed(range(len(turns))):
            turn, prompt, name = turns[index], prompts[index], f"{number}/{index}"
            seconds = prefill_s(self._times, prompt, prompt - turn.new_input_tokens, self._max_num_batched_tokens)
            context = prompt + turn.output_tokens // 2
            self._work_after_s[name] = work_s
            work_s += seconds + turn.output_tokens * context * self._token_s
            left_s += seconds + turn.output_tokens * self._times.step_s((), 1, context)
            self._work_s[name], self._remaining_s[name] = work_s, left_s
            self._tool_s[name] = turn.gap_s


def show_future(scheduler: Any, jobs: Sequence[Job], times: StepTimes) -> None:
    """Set the oracle of a bound. Other policies get none."""
    policy = scheduler.table.policy
    if policy.label == "bound":
        policy.oracle = TraceOracle(jobs, times, policy.machine)
