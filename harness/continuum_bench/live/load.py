"""What a load generator is told, what it plays, and what it counts."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from continuum_traces.schema import Program

from continuum_bench.options.run import LiveOptions
from continuum_client.dialects import Dialect

Prompts = Literal["tokens", "text"]


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How to play."""

    base_url: str
    """Up to and including /v1."""
    model: str
    dialect: Dialect
    prompts: Prompts = "tokens"
    api_key: str | None = field(default=None, repr=False)
    salt: str = ""
    """Part of every fresh token's seed: runs with different salts share no prefix in the server's cache."""
    retries: int = LiveOptions.retries
    backoff_s: float = 0.5
    """Before the first retry, doubled for each further one, up to a quarter more by chance; ``Retry-After`` counts
    where it asks for more."""
    request_limit_s: float = LiveOptions.request_limit_s
    """A request that takes longer has failed with kind ``timeout``."""
    program_limit_s: float | None = None
    """A program that takes longer is given up and counted as failed."""
    time_limit_s: float | None = None
    """After so long the run stops: programs under way stay unfinished, others do not start."""
    release: bool = False
    """Tell the server of programs that were given up, so that it holds nothing for them."""


@dataclass(slots=True)
class LoadCounters:
    """What the generator did; written to engine.json."""

    requests: int = 0
    retries: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    """Failed tries by kind, the ones that a retry made good included; programs over a limit."""
    programs_done: int = 0
    programs_failed: int = 0
    programs_stopped: int = 0
    """Under way when the run was stopped."""
    loop_lag_s: array[float] = field(default_factory=lambda: array("d"))
    """How late the event loop woke up, probed all along: answers are read that late at worst."""

    def add(self, other: LoadCounters) -> None:
        """Another process's counts."""
        for name in ("requests", "retries", "programs_done", "programs_failed", "programs_stopped"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.errors += other.errors
        self.loop_lag_s.extend(other.loop_lag_s)


@dataclass(frozen=True, slots=True)
class Lanes:
    """Fixed concurrency: so many programs at a time, the next starts when one ends."""

    number: int
    ramp_s: float = 0.0
    """The first programs start evenly over this time."""


@dataclass(frozen=True, slots=True)
class LivePlay:
    """One program on its way."""

    program: Program
    program_id: str
    arrival_s: float
    number: int
    counted: bool = True
    again: bool = False
    """A resumed run plays it anew: what the server holds of the first attempt is let go before the run starts."""
