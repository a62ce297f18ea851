"""The future of requests, read from the trace. Bounds use it. A server cannot know it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from continuum_traces.playing.conversation import Job

from continuum_server.policy.facts import Machine
from continuum_server.policy.rules.bounds import Foreseeing, Future
from continuum_server.step_times.model import StepTimes
from continuum_server.virtual.alone import prefill_s
from continuum_server.vllm_plugin.scheduler import ProgramScheduler, ProgramSchedulerMixin


class ForeseeingScheduler(ProgramScheduler):
    """The plugin's scheduler for engines that know the trace and can run bounds."""

    knows_future = True


def show_future(scheduler: ProgramSchedulerMixin, jobs: Sequence[Job], times: StepTimes) -> None:
    """Show a bound the future of all requests of these jobs. Other policies are not shown it."""
    policy = scheduler.table.policy
    if isinstance(policy, Foreseeing):
        policy.oracle = {
            f"{number}/{index}": future
            for number, job in enumerate(jobs)
            for index, future in _futures(job, times, policy.machine)
        }


def _futures(job: Job, times: StepTimes, machine: Machine) -> Iterator[tuple[int, Future]]:
    """Yield the index and the future of each turn, the last turn first."""
    token_s = machine.decode.full_token_s(machine.kv_tokens) if machine.decode is not None else 0.0
    turns, prompts = job.program.turns, job.program.prompt_tokens()
    work_s = 0.0
    for index in reversed(range(len(turns))):
        turn, prompt, work_after_s = turns[index], prompts[index], work_s
        seconds = prefill_s(times, prompt, prompt - turn.new_input_tokens, machine.max_num_batched_tokens)
        context = prompt + turn.output_tokens // 2
        work_s += seconds + turn.output_tokens * context * token_s
        yield index, Future(turn.gap_s, work_s, work_after_s)
