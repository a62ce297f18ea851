"""The data that all packages exchange: programs and turns, tags, records, manifests.

Frozen dataclasses, standard library only. Units are in the names: ``_s`` is seconds, ``_tokens`` is tokens.
docs/trace-format.md describes how each is written to a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

TRACE_SCHEMA = "continuum-trace"
TRACE_VERSION = 1
RECORD_SCHEMA = "continuum-records"
RECORD_VERSION = 1

MAX_PROGRAM_ID_CHARS = 256
MAX_TURN_ID_CHARS = 64

Metadata = Mapping[str, str | int | float]
"""What a user notes about a program; ``lines.metadata_fault`` limits it."""

_MILLISECONDS = re.compile(r"\d+(\.\d+)?(e[+-]\d\d)?")
"""A gap of ``TurnRecord.token_gaps_ms``."""


# --------------------------------------------------------------------------------------------- traces


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool run by the agent between two turns."""

    name: str
    """Key of the tool: the program that a shell command runs, or the name of the function."""
    duration_s: float | None = None
    """Seconds that the tool took; None: not recorded."""
    start_s: float = 0.0
    """Seconds from the turn's finish to this tool's start. Parallel calls all start at 0; serial calls start when the
    call before them ends."""
    command: str | None = None
    """The command or the arguments; recorded only if the user asked for text."""
    digest: str | None = None
    """Digest of the arguments: equal calls have equal digests."""

    @property
    def end_s(self) -> float:
        """Seconds from the turn's finish to this tool's end; an unknown duration counts as 0."""
        return self.start_s + (self.duration_s or 0.0)


@dataclass(frozen=True, slots=True)
class Turn:
    """One request to the model, and the tools that run after it.

    The prompt of turn i+1 is the prompt of turn i, then ``carried_tokens`` of turn i's output, then
    ``new_input_tokens`` of turn i+1. If the agent rewrote its history, turn i+1 begins with the first
    ``kept_tokens`` of that context instead of all of it.
    """

    new_input_tokens: int
    """Prompt tokens that are not in the previous context: the task's text, the output of tools."""
    output_tokens: int
    """Tokens that the model generated, reasoning included; at least 1."""
    carried_tokens: int | None = None
    """Number of output tokens, counted from the end, that the next prompt repeats; None: all of them."""
    kept_tokens: int | None = None
    """Leading tokens of the previous context with which this prompt begins; None: all of them."""
    tool_calls: tuple[ToolCall, ...] = ()
    gap_overhead_s: float = 0.0
    """Seconds of the gap to the next turn in which no tool ran (the agent's own work, the network)."""
    text: str | None = None
    """The model's answer; recorded only if the user asked for text."""
    cached_tokens: int | None = None
    """Prompt tokens that were cached, as the recording server reported."""
    ttft_s: float | None = None
    llm_s: float | None = None
    """Seconds from the request to the last token, as recorded; a replay does not use them."""

    @property
    def carried(self) -> int:
        return self.output_tokens if self.carried_tokens is None else self.carried_tokens

    @property
    def gap_s(self) -> float:
        """Seconds from this turn's finish to the next turn's arrival; unknown durations count as 0."""
        return (self.slowest_tool.end_s if self.slowest_tool is not None else 0.0) + self.gap_overhead_s

    @property
    def slowest_tool(self) -> ToolCall | None:
        """The tool call that ends last, for which the next turn waits; None: the turn calls no tool."""
        return max(self.tool_calls, key=lambda call: call.end_s, default=None)


@dataclass(frozen=True, slots=True)
class Program:
    """One run of an agent."""

    program_id: str
    turns: tuple[Turn, ...]
    source: str = "unknown"
    """Where the program comes from: a dataset, a framework, or a profile."""
    model: str | None = None
    """The model that answered in the recording."""
    synthetic: bool = False
    arrival_s: float | None = None
    """Seconds from the start of the recording to the program's arrival."""
    parent_id: str | None = None
    """Id of the program that started this program."""
    parent_turn: int | None = None
    """Index of the parent's turn whose end starts this program; None: unknown, or no program started it."""
    parent_gap_s: float = 0.0
    """Seconds from that turn's finish to this program's start."""
    shared_prefix_id: str | None = None
    """Programs with the same id begin with the same tokens (a system prompt)."""
    shared_prefix_tokens: int = 0
    """The number of these tokens, part of the first ``new_input_tokens``. A shorter prefix is the beginning of a longer
    one."""
    metadata: Metadata | None = field(default=None, hash=False)
    """What the user noted about the program: at most 16 names (64 characters), each with a text (512) or a number.
    ``compare --by`` groups programs by it."""
    tagged: bool = True
    """False: its requests name no program, as those of clients that know nothing of Continuum."""

    @property
    def started_by(self) -> str | None:
        """Id of the program whose turn's end starts this program; None: it arrives by itself."""
        return None if self.parent_turn is None else self.parent_id

    def prompt_tokens(self) -> list[int]:
        """Return the length of each turn's prompt."""
        lengths: list[int] = []
        context = 0
        for turn in self.turns:
            kept = context if turn.kept_tokens is None else min(turn.kept_tokens, context)
            prompt = kept + turn.new_input_tokens
            lengths.append(prompt)
            context = prompt + turn.carried
        return lengths

    def reusable_tokens(self) -> list[int]:
        """Return how many leading tokens of each turn's prompt an unlimited cache would hold.

        They come from earlier turns or from the shared prefix. The output of a turn counts if the next prompt repeats
        all of it; it does not count if the next prompt repeats only its end.
        """
        reusable = [self.shared_prefix_tokens]
        for turn, after, prompt in zip(self.turns, self.turns[1:], self.prompt_tokens(), strict=False):
            common = prompt + (turn.output_tokens if turn.carried == turn.output_tokens else 0)
            reusable.append(common if after.kept_tokens is None else min(after.kept_tokens, common))
        return reusable

    @property
    def final_context_tokens(self) -> int:
        """Prompt plus output of the longest turn. The "context" reading counts these as the program's tokens."""
        return max(p + t.output_tokens for p, t in zip(self.prompt_tokens(), self.turns, strict=True))

    @property
    def cumulative_tokens(self) -> int:
        """Prompt plus output, summed over turns. The "cumulative" reading counts these as the program's tokens."""
        return sum(self.prompt_tokens()) + sum(turn.output_tokens for turn in self.turns)


# ----------------------------------------------------------------------------------------------- tags


@dataclass(slots=True)  # not frozen, as ``SchedulerEvent``
class Tags:
    """What a client tells the server about one request. Every field is optional; None means unknown."""

    program_id: str | None = None
    """The program to which this turn belongs. The KV cache of a request without a program id is never pinned."""
    is_last_step: bool | None = None
    """True: this is the program's last turn."""
    pred_tool: str | None = None
    """Name of the tool expected to run after this turn."""
    pred_tool_s: float | None = None
    """Seconds that tool is expected to take."""
    pred_tool_p90_s: float | None = None
    """Seconds within which that tool is expected to return with a probability of 0.9."""
    last_func_call: str | None = None
    """Name of the tool that ran before this turn."""
    last_tool_duration_s: float | None = None
    """Seconds that the tool before this turn took, measured by the client."""
    this_func_call: str | None = None
    """The tool that this turn's output calls. A replay sends it, because its output is not the model's own."""
    kv_ttl_s: float | None = None
    """Seconds for which the client asks for a soft hold: the turn's KV cache stays while nobody else wants it."""
    parent_id: str | None = None
    """Id of the program that started this program."""
    turn_id: str | None = None
    """The client's id of this turn: the same for every try of the turn, different for every other turn of the
    program."""


# -------------------------------------------------------------------------------------------- records

EventKind = Literal[
    "arrive",  # a turn entered the waiting queue
    "start",  # the turn was scheduled for the first time: prompt_tokens, hit_tokens
    "finish",  # the turn left the engine: output_tokens, tool, status
    "pin",  # the turn's KV cache is pinned: ttl_s, tokens
    "unpin",  # the pin ended: reason
    "preempt",  # the turn lost its KV cache while it ran
    "resume",  # the turn was scheduled again: prompt_tokens, hit_tokens
    # the turn's KV cache is loaded from a lower tier, before its start or resume: tokens, bytes (an estimate if there
    # are several KV cache groups)
    "reload",
]

UnpinReason = Literal["hit", "gone", "expired", "last", "pressure", "abort", "shutdown"]
"""``hit``: the next turn was scheduled. ``gone``: it was, but found less than was held, because its prompt goes on from
a place of which the model's window or state was not kept."""


@dataclass(slots=True)  # not frozen: that would take the engine five times as long, five times a turn
class SchedulerEvent:
    """One line of scheduler_timestamps.jsonl: an event in the scheduler, at ``t`` seconds on the scheduler's clock."""

    t: float
    event: EventKind
    program_id: str
    turn: int
    """Index of the turn within its program, from 0, in order of first arrival. Every try of a turn has the same index.
    For unpin: the turn whose KV cache was pinned."""
    request_id: str | None = None
    prompt_tokens: int | None = None
    hit_tokens: int | None = None
    """Prompt tokens that were in the prefix cache."""
    output_tokens: int | None = None
    tool: str | None = None
    """Key of the tool that the output calls."""
    status: str | None = None
    """How a turn ended: stop, length, abort, error."""
    ttl_s: float | None = None
    """Longest time the pin may last."""
    tokens: int | None = None
    """Tokens whose KV cache the pin holds."""
    reason: UnpinReason | None = None
    bytes: int | None = None
    delay_estimate_s: float | None = None
    """T of the TTL formula at the instant of the pin: the queueing delay that a return in time saves."""
    eta: float | None = None
    """eta of the TTL formula at the instant of the pin."""
    replica: int | None = None
    """Number (from 0) of the replica in which the event happened; ``turn`` then counts over all replicas."""
    turn_id: str | None = None
    """The turn id that the client sent; None for unpin."""
    recognised_by: str | None = None
    """How the server found an arriving request's program: tag, header:NAME, body:NAME or prompt; None: not at all."""
    root_id: str | None = None
    """The oldest known ancestor of an arriving request's program; None: the program is nobody's sub-program."""
    left_at: int | None = None
    """Where an arriving request's prompt differs from that of the turn before: number of leading tokens of both, to
    about 1/64. None: most of that prompt is repeated, or it is unknown."""


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One line of turns.jsonl: a turn as the client saw it. Instants are seconds on the client's clock."""

    program_id: str
    turn: int
    """The turn's number in the client's record: a load generator counts in the order of the trace, the SDK in the order
    in which calls end. The server counts in order of arrival; ``turn_id`` matches its turns with these."""
    due_s: float
    """The instant at which the turn should be sent. Latencies count from this instant (no coordinated omission)."""
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
    """The error that ended the program with this turn: its kind (http-429, connection, timeout ...), a colon, the
    details."""
    failed_tries: tuple[str, ...] = ()
    """Kinds of error of the turn's failed tries, in order."""
    turn_id: str | None = None
    """The turn id that was sent to the server with every try."""
    alone_s: float | None = None
    """Seconds that the turn takes on an empty engine, by the step times of the run; known only in virtual time."""
    token_gaps_ms: Mapping[str, int] | None = None
    """Gaps between two output tokens, in milliseconds to three significant digits, and how often each gap occurs; empty
    if all tokens came in one chunk. Otherwise recorded with --token-times, if it is known how many tokens each chunk
    has: the time since the chunk before is divided among them."""
    metadata: Metadata | None = None
    """The program's metadata; in the record of its first turn only."""
    started_by: str | None = None
    """Id of the program whose turn's end started this program, in the record of its first turn only; None: the program
    arrived by itself."""

    def __post_init__(self) -> None:
        for gap, count in (self.token_gaps_ms or {}).items():
            if not _MILLISECONDS.fullmatch(gap) or type(count) is not int or not 0 < count < 2**31:
                fault = f"{gap[:60]!r}: {str(count)[:60]!r}"
                raise ValueError(f"token_gaps_ms: {fault}: expected milliseconds and how often")


@dataclass(frozen=True, slots=True)
class ArrivalRecord:
    """One line of arrivals.jsonl: a program that a load generator started."""

    program_id: str
    number: int
    """The program's place in the order of arrivals, from 0."""
    due_s: float
    """The instant at which the program should arrive, on the client's clock."""
    counted: bool = True
    """False in the warm-up and the cool-down: the program only makes load, and no metric counts it."""
    started_by: str | None = None
    """As in the record of the program's first turn."""


# ------------------------------------------------------------------------------------------- manifests
# They name what the analysis reads. All other facts are in ``more``, under the names that they have where they come
# from: an option under the name that declares it, what was computed under the name of its field. In a file, the entries
# of ``more`` stand beside the named fields, and fields that are None are left out.


CLOSED_LOOPS = ("concurrency", "steps")
"""Beginnings of ``Workload.arrivals`` of closed loops (``closed_loop.Lanes``)."""


REQUESTS = re.compile(r"([1-9]\d{0,5})r")
"""A warm-up that is a number of requests for each program at a time."""
LANES = "lanes"
"""A cool-down that begins when a program has ended and no next one can start."""

More = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Workload:
    """What was played, with every option of it that has another value than its default."""

    name: str | None = None
    sha256: str | None = None
    """Of the file, or of the programs if no single file holds them."""
    programs: int | None = None
    turns: int | None = None
    synthetic: bool | None = None
    jps: float | None = None
    """Programs per second; None: the arrivals need no rate."""
    arrivals: str | None = None
    tool_times: str | None = None
    """None: as recorded."""
    thinking: bool | None = None
    """Whether no tool runs in more than half of the time between turns: a person reads and writes."""
    time_limit_s: float | None = None
    """Seconds after which the run stops; None: when all programs have ended."""
    warm_up: str | None = None
    cool_down: str | None = None
    scenario: str | None = None
    """The public benchmark whose rules the run follows."""
    rules_broken: tuple[str, ...] | None = None
    """The rules of the scenario that the options break, a line each."""
    assumptions: tuple[str, ...] | None = None
    """What was assumed of the programs when they were imported, a line each."""
    more: More = field(default_factory=dict)

    @property
    def closed_loop(self) -> bool:
        """Whether programs start when others have ended."""
        return (self.arrivals or "").startswith(CLOSED_LOOPS)


@dataclass(frozen=True, slots=True)
class KvPool:
    """The KV pool of one replica."""

    num_blocks: int | None = None
    tokens: int | None = None
    block_size: int | None = None
    more: More = field(default_factory=dict)
    """The sizes from which it was computed, in bytes."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """The machine, real or modelled."""

    endpoint: str | None = None
    """What is known of a server's machine, in words."""
    gpu: str | None = None
    model: str | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    kv_capacity: KvPool | None = None
    more: More = field(default_factory=dict)
    """The source of modelled step times, the curves that a policy gets, the settings of an emulated GPU."""


@dataclass(frozen=True, slots=True)
class Engine:
    """How the engine, or the load on a server, was set."""

    replicas: int | None = None
    router: str | None = None
    profile: str | None = None
    """File of the measured step times."""
    offload: More | None = None
    """Memory tiers below the GPU."""
    max_num_seqs: int | None = None
    chunk_tokens: int | None = None
    block_size: int | None = None
    prefix_caching: bool | None = None
    max_pinned_share: float | None = None
    more: More = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that is needed to repeat a run. Written as manifest.json."""

    schema: str = RECORD_SCHEMA
    version: int = RECORD_VERSION
    created: str = ""
    """Time of creation, UTC, ISO 8601; empty in runs that write the same bytes each time."""
    command: tuple[str, ...] = ()
    continuum_version: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of Python, vLLM and other libraries that influence the results."""
    engine: str = ""
    """virtual, emulated, cpu, or the URL of a live server."""
    policy: str = ""
    policy_options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    workload: Workload = Workload()
    hardware: Hardware = Hardware()
    engine_options: Engine = Engine()
    modelled: tuple[str, ...] = ()
    """The parts that were modelled instead of run, in words."""
    notes: tuple[str, ...] = ()
