"""The load generator's settings, programs and counters."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Literal

from continuum_traces.playing.conversation import Job
from continuum_traces.wire.answers import Answer

from continuum_bench.options.run import LiveOptions
from continuum_bench.workload.workload import JobSource
from continuum_client.dialects import Dialect

Prompts = Literal["tokens", "text"]


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The server, and the settings of the load generator."""

    base_url: str
    """Up to and including /v1."""
    model: str
    dialect: Dialect
    prompts: Prompts = "tokens"
    api_key: str | None = field(default=None, repr=False)
    salt: str = ""
    """Part of the seed of every new token: runs with different salts share no prefix in the server's cache."""
    retries: int = LiveOptions.retries
    backoff_s: float = 0.5
    """Seconds before the first retry, doubled for each further retry. Up to a quarter is added at random. A longer
    ``Retry-After`` takes precedence."""
    request_limit_s: float = LiveOptions.request_limit_s
    """A request that takes longer fails with kind ``timeout``."""
    program_limit_s: float | None = None
    """A program that takes longer is given up and counted as failed."""
    time_limit_s: float | None = None
    """The run stops after this many seconds. Running programs stay unfinished and no further program starts."""
    max_idle_all_s: float | None = None
    """The longest time without an open request, as in ``Timers``."""
    token_times: bool = False
    """Read every chunk immediately, and record the gaps between tokens."""
    release: bool = False
    """Tell the server which programs were given up, so that it releases their KV cache."""


@dataclass(slots=True)
class LoadCounters:
    """Counters of the load generator, which are written to engine.json."""

    requests: int = 0
    retries: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    """Failed tries by kind, including those with a successful retry; and programs over a limit."""
    programs_done: int = 0
    programs_failed: int = 0
    programs_stopped: int = 0
    """Programs that were running when the run was stopped."""
    short_answers: int = 0
    """Answers that ended before the length that was asked for; they count as failed tries."""
    missing_tokens: int = 0
    """The tokens that short answers lack."""
    prompt_tokens: int = 0
    """By the server's count, of the turns for which it says one."""
    trace_prompt_tokens: int = 0
    """The prompt tokens of the same turns in the trace."""
    output_tokens: int = 0
    trace_output_tokens: int = 0
    uncounted_turns: int = 0
    """Turns without the server's token counts."""
    unplaced_turns: int = 0
    """Turns of --token-times for which the server does not say how many tokens each chunk has."""
    skipped_s: float = 0.0
    """Idle seconds that were skipped."""
    plugin_errors: int = 0
    """Exceptions in the server's policy during the run, which only the main process counts."""

    def count(self, answer: Answer, prompt_tokens: int, output_tokens: int) -> None:
        """Count a turn that has these lengths in the trace."""
        if answer.prompt_tokens is None or answer.output_tokens is None:
            self.uncounted_turns += 1
            return
        self.prompt_tokens += answer.prompt_tokens
        self.output_tokens += answer.output_tokens
        self.trace_prompt_tokens += prompt_tokens
        self.trace_output_tokens += output_tokens

    def add(self, other: LoadCounters) -> None:
        """Add another process's counters."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


@dataclass(frozen=True, slots=True)
class LivePlay:
    """One program to play."""

    job: Job
    number: int
    """Its place in the order of arrivals."""


def plays_of(workload: JobSource, seed: int) -> list[LivePlay]:
    """Return the programs that are played for one seed, in order of arrival. Equal arguments give equal programs."""
    jobs = sorted(workload.jobs(seed), key=lambda job: job.arrival_s)
    return [LivePlay(job, number) for number, job in enumerate(jobs)]
