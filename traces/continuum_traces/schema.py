"""The data every part of Continuum exchanges: programs and turns, tags, records, manifests.

Plain frozen dataclasses, standard library only. Units are in the names: ``_s`` seconds, ``_tokens`` tokens.
docs/trace-format.md describes the file form of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

TRACE_SCHEMA = "continuum-trace"
TRACE_VERSION = 1
RECORD_SCHEMA = "continuum-records"
RECORD_VERSION = 1

MAX_PROGRAM_ID_CHARS = 256
MAX_TURN_ID_CHARS = 64


# --------------------------------------------------------------------------------------------- traces


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool run by the agent between two turns."""

    name: str
    """Key of the tool: the program a shell command runs, or the function called."""
    duration_s: float | None = None
    """Seconds the tool took; None: the source did not record it."""
    start_s: float = 0.0
    """Seconds between the turn's finish and this tool's start: 0 for parallel calls, sums for serial ones."""
    command: str | None = None
    """The command or the arguments; recorded only if the user asked for text."""
    digest: str | None = None
    """A digest of the arguments. Equal calls have equal digests."""

    @property
    def end_s(self) -> float:
        """Seconds between the turn's finish and this tool's end; an unknown duration counts 0."""
        return self.start_s + (self.duration_s or 0.0)


@dataclass(frozen=True, slots=True)
class Turn:
    """One LLM request and the tools run after it.

    The prompt of turn i+1 is the prompt of turn i, then ``carried_tokens`` of turn i's output, then
    ``new_input_tokens`` of turn i+1. If the agent rewrote its history, ``kept_tokens`` says how many leading
    tokens of that context it kept.
    """

    new_input_tokens: int
    """Prompt tokens not in the previous context: task text, tool output."""
    output_tokens: int
    """Tokens the model generated, reasoning included; at least 1."""
    carried_tokens: int | None = None
    """Output tokens (the last ones) repeated in the next prompt; None: all of them."""
    kept_tokens: int | None = None
    """Leading tokens of the previous context this prompt opens with; None: all of it."""
    tool_calls: tuple[ToolCall, ...] = ()
    gap_overhead_s: float = 0.0
    """Seconds of the gap to the next turn that no tool accounts for (agent's own work, network)."""
    text: str | None = None
    """The model's answer; recorded only if the user asked for text."""
    cached_tokens: int | None = None
    """Prompt tokens the recording server said it had cached."""
    ttft_s: float | None = None
    llm_s: float | None = None
    """Measured seconds from request to last token, as recorded; replay does not use it."""

    @property
    def carried(self) -> int:
        return self.output_tokens if self.carried_tokens is None else self.carried_tokens

    @property
    def gap_s(self) -> float:
        """Seconds from this turn's finish to the next turn's arrival; unknown durations count 0."""
        return (self.slowest_tool.end_s if self.slowest_tool is not None else 0.0) + self.gap_overhead_s

    @property
    def slowest_tool(self) -> ToolCall | None:
        """The tool call that ends last: the next turn waits for it. None: the turn calls no tool."""
        return max(self.tool_calls, key=lambda call: call.end_s, default=None)


@dataclass(frozen=True, slots=True)
class Program:
    """One agent run."""

    program_id: str
    turns: tuple[Turn, ...]
    source: str = "unknown"
    """The program's origin: a dataset, a framework, or the name of a profile."""
    model: str | None = None
    """The model that answered in the recording."""
    synthetic: bool = False
    arrival_s: float | None = None
    """Arrival offset from the start of the recording."""
    parent_id: str | None = None
    """The program that started this one (a sub-agent's caller)."""
    shared_prefix_id: str | None = None
    """Programs with the same id open with the same tokens (a system prompt)."""
    shared_prefix_tokens: int = 0

    def prompt_tokens(self) -> list[int]:
        """Length of each turn's prompt."""
        lengths: list[int] = []
        context = 0
        for turn in self.turns:
            kept = context if turn.kept_tokens is None else min(turn.kept_tokens, context)
            prompt = kept + turn.new_input_tokens
            lengths.append(prompt)
            context = prompt + turn.carried
        return lengths

    def reusable_tokens(self) -> list[int]:
        """Leading tokens of each turn's prompt that a cache of unlimited size would hold, from earlier turns or the
        shared prefix. An output counts if the next prompt repeats all of it, not if it repeats its end only."""
        reusable = [self.shared_prefix_tokens]
        for turn, after, prompt in zip(self.turns, self.turns[1:], self.prompt_tokens(), strict=False):
            common = prompt + (turn.output_tokens if turn.carried == turn.output_tokens else 0)
            reusable.append(common if after.kept_tokens is None else min(after.kept_tokens, common))
        return reusable

    @property
    def final_context_tokens(self) -> int:
        """Prompt plus output of the longest turn: tokens per program in the "context" reading."""
        return max(p + t.output_tokens for p, t in zip(self.prompt_tokens(), self.turns, strict=True))

    @property
    def cumulative_tokens(self) -> int:
        """Prompt plus output, summed over turns: tokens per program in the "cumulative" reading."""
        return sum(self.prompt_tokens()) + sum(turn.output_tokens for turn in self.turns)


# ----------------------------------------------------------------------------------------------- tags


@dataclass(frozen=True, slots=True)
class Between:
    """A whole number that is not known exactly."""

    low: int
    high: int
    """At least ``low``."""


@dataclass(slots=True)  # not frozen, as ``SchedulerEvent``
class Tags:
    """What a client says about one request. Every field is optional; None means unknown."""

    program_id: str | None = None
    """The program to which this turn belongs. A request without a program id is never pinned."""
    is_last_step: bool | None = None
    """True: this is the program's last turn."""
    pred_tool: str | None = None
    """Name of the tool expected to run after this turn."""
    pred_tool_s: float | None = None
    """Seconds that tool is expected to take."""
    pred_tool_p90_s: float | None = None
    """Seconds within which the tool is expected to return with a probability of 0.9."""
    last_func_call: str | None = None
    """Name of the tool that ran before this turn."""
    last_tool_duration_s: float | None = None
    """Seconds that tool took, measured by the client."""
    this_func_call: str | None = None
    """The tool that this turn's output calls; for replays, whose output is not the model's own."""
    kv_ttl_s: float | None = None
    """Seconds the client wants this turn's KV held."""
    remaining_turns: int | Between | None = None
    """Turns of the program that the client expects after this one; read by ``working-set``."""
    remaining_tokens: int | Between | None = None
    """Tokens that the client expects the program to generate after this turn; read by ``working-set``."""
    task: str | None = None
    """Name of what the program does, the same for programs that do alike; read by ``working-set``."""
    parent_id: str | None = None
    """The program that started this one."""
    turn_id: str | None = None
    """The client's id of this turn: the same for every try of it, different for every other turn of the program."""


# -------------------------------------------------------------------------------------------- records

EventKind = Literal[
    "arrive",  # a turn entered the waiting queue
    "start",  # it was first scheduled: prompt_tokens, hit_tokens
    "finish",  # it left the engine: output_tokens, tool, status
    "pin",  # its KV is held: ttl_s, tokens
    "unpin",  # the hold ended: reason
    "preempt",  # it lost its KV while running
    "resume",  # it was scheduled again: prompt_tokens, hit_tokens
    "reload",  # its KV is being loaded from a lower tier, before its start or resume: tokens, bytes
]

UnpinReason = Literal["hit", "expired", "last", "pressure", "abort", "shutdown"]


@dataclass(slots=True)  # not frozen: that would take the engine five times as long, five times a turn
class SchedulerEvent:
    """One line of scheduler_timestamps.jsonl: an event in the scheduler, at ``t`` seconds on the scheduler's clock."""

    t: float
    event: EventKind
    program_id: str
    turn: int
    """Index of the turn within its program, from 0, in order of first arrival. Every try of a turn has the same index.
    For unpin: the turn whose KV was held."""
    request_id: str | None = None
    prompt_tokens: int | None = None
    hit_tokens: int | None = None
    """Prompt tokens found in the cache."""
    output_tokens: int | None = None
    tool: str | None = None
    """Key of the tool that the output calls."""
    status: str | None = None
    """How a turn ended: stop, length, abort, error."""
    ttl_s: float | None = None
    """Longest time the pin may last."""
    tokens: int | None = None
    """KV tokens held by a pin."""
    reason: UnpinReason | None = None
    bytes: int | None = None
    delay_estimate_s: float | None = None
    """T of the TTL formula when the pin was decided: the queueing delay that a return in time saves."""
    eta: float | None = None
    """eta of the TTL formula when the pin was decided."""
    replica: int | None = None
    """Number of the replica (from 0) in which the event happened; ``turn`` then counts over all replicas."""
    turn_id: str | None = None
    """The turn id that the client sent; None for unpin."""


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One line of turns.jsonl: a turn as its client saw it. Instants are seconds on the client's clock."""

    program_id: str
    turn: int
    """The turn's number in the client's record: a load generator counts in the order of the trace, the SDK in the order
    in which calls end. The server counts in order of arrival; ``turn_id`` matches its turns with these."""
    due_s: float
    """The instant at which the turn should be sent. Latencies count from here (no coordinated omission)."""
    sent_s: float
    first_token_s: float | None = None
    finish_s: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reusable_tokens: int | None = None
    """Prompt tokens that a cache of unlimited size would have held; known only in replays."""
    tools: tuple[str, ...] = ()
    gap_s: float | None = None
    """Seconds until the program's next turn is due; None after the last."""
    is_last: bool = False
    error: str | None = None
    """Why the program ended with this turn: a kind (http-429, connection, timeout ...), a colon, the details."""
    failed_tries: tuple[str, ...] = ()
    """Kinds of error of the turn's failed tries, in order."""
    turn_id: str | None = None
    """The turn id that was sent to the server with every try."""
    alone_s: float | None = None
    """Seconds that the turn takes on an empty engine, by the step times of the run; known only in virtual time."""
    token_gaps_ms: Mapping[str, int] | None = None
    """Milliseconds between two chunks of the answer with output tokens, to three significant digits, and how often each
    occurs; recorded with --token-times."""


@dataclass(frozen=True, slots=True)
class ArrivalRecord:
    """One line of arrivals.jsonl: a program that a load generator started."""

    program_id: str
    number: int
    """The program's place in the order of play, from 0."""
    due_s: float
    """The instant at which the program should arrive, on the client's clock."""
    counted: bool = True
    """False in the warm-up and the cool-down: the program is load, and no metric counts it."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that is needed to repeat a run. Written as manifest.json."""

    schema: str = RECORD_SCHEMA
    version: int = RECORD_VERSION
    created: str = ""
    """UTC, ISO 8601; empty if equal runs must write equal bytes."""
    command: tuple[str, ...] = ()
    continuum_version: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of Python, vLLM and other libraries that influence the results."""
    engine: str = ""
    """virtual, emulated, cpu, or the URL of a live server."""
    policy: str = ""
    policy_options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    workload: dict[str, Any] = field(default_factory=dict)
    """name, path, sha256, programs, turns, synthetic, tokens_reading, jps, arrivals."""
    hardware: dict[str, Any] = field(default_factory=dict)
    """gpu, model, tensor_parallel, KV capacity and how it was computed, step times' provenance."""
    engine_options: dict[str, Any] = field(default_factory=dict)
    """max_num_seqs, chunk size, block size, and the like."""
    modelled: tuple[str, ...] = ()
    """What was modelled and not run, in words."""
    notes: tuple[str, ...] = ()
