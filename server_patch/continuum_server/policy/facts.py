"""What a policy is told, and what it answers. Pure data: seconds, tokens, names."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class ProgramState:
    """What the scheduler remembers of one program between its turns."""

    program_id: str
    arrival_s: float
    """When its first request arrived."""
    sequence: int
    """Arrival number among programs: the order of SPEC 4, without ties."""
    turns_arrived: int = 0
    turns_finished: int = 0
    requests_in_engine: int = 0
    last_finish_s: float | None = None
    last_tool: str | None = None
    context_tokens: int = 0
    """Prompt plus output of the last finished turn."""
    parent_id: str | None = None


@dataclass(slots=True)
class TurnState:
    """One request from its arrival to its finish."""

    program: ProgramState
    index: int
    """Turn number within the program, from 0."""
    request_id: str
    arrival_s: float
    prompt_tokens: int
    sequence: int
    """Arrival number among requests."""
    is_last: bool = False
    tool_hint: str | None = None
    tool_hint_s: float | None = None
    tool_hint_p90_s: float | None = None
    ttl_wish_s: float | None = None
    this_func_call: str | None = None
    start_s: float | None = None
    preemptions: int = 0
    tagged: bool = True
    """False for a request that names no program: it is its own program of one turn."""


@dataclass(frozen=True, slots=True)
class TurnStart:
    """A turn left the waiting queue for the first time."""

    turn: TurnState
    now_s: float
    hit_tokens: int
    kv_was_evicted: bool
    """The program had a context and part of it was no longer in GPU memory."""


@dataclass(frozen=True, slots=True)
class TurnFinish:
    """A turn ended well."""

    turn: TurnState
    now_s: float
    context_tokens: int
    output_tokens: int
    tool: str | None
    """Key of the tool called next; None: the output names none."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Keep a finished turn's KV for ``ttl_s`` seconds; 0 or less: do not."""

    ttl_s: float
    delay_estimate_s: float | None = None
    eta: float | None = None


NO_HOLD = Hold(0.0)


@dataclass(frozen=True, slots=True)
class PrefillCurve:
    """Seconds to compute the KV of ``n`` tokens: ``a*n^2 + b*n + c`` (SPEC 3), from an offline profile."""

    a: float
    b: float
    c: float
    source: str = "unknown"

    def seconds(self, tokens: int) -> float:
        return (self.a * tokens + self.b) * tokens + self.c if tokens > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Machine:
    """What a policy may know of the machine it runs on."""

    prefill: PrefillCurve
    kv_tokens: int
    """Tokens the KV pool holds."""
    notes: tuple[str, ...] = field(default=())
