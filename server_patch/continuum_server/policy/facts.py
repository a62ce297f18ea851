"""What a policy is told and what it answers. Pure data: seconds, tokens, names."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from math import inf


@dataclass(slots=True, eq=False)
class ProgramState:
    """What the scheduler remembers of one program between its turns."""

    program_id: str
    """Unique among all programs. The id that a client gives, ``name``, may stand for several (``policy.programs``)."""
    arrival_s: float
    """When its first request arrived."""
    sequence: int
    """Number of its first request among all requests in order of arrival: program order, without ties."""
    name: str = ""
    """The id that the client gives, as records have it."""
    namespace: str | None = None
    """Digest of the API key that its id belongs to; None if the server has fewer than two keys."""
    id_key: str = ""
    """``name`` within its namespace."""
    turns_arrived: int = 0
    turns_finished: int = 0
    in_engine: list[TurnState] = field(default_factory=list)
    """Turns of the program that wait or run."""
    last_finish_s: float | None = None
    last_tool: str | None = None
    context_tokens: int = 0
    """Prompt plus output of the last finished turn."""
    prompt_tokens: int = 0
    """Prompt of the last finished turn. The next prompt repeats it, if the agent only appends to its history."""
    parent_id: str | None = None
    family: ProgramState | None = None
    """The oldest ancestor known when the program arrived (a sub-agent's caller's caller); None: the program itself."""
    served_s: float = 0.0
    """Model time of the longest chain of finished turns; for a family, the value of its root counts."""
    waited_s: float = 0.0
    """Time that finished turns waited; for a family, the value of its root counts."""
    ended: bool = False
    """Finished or forgotten: the next request of its id starts a new program."""
    family_requests: int = 0
    """Requests in the engine of all programs whose root this program is, its own included."""
    last_prompt_tokens: int = 0
    """Prompt tokens of the turn that arrived last."""
    mark: tuple[int, Hashable] | None = None
    """Index and hash of a block of that prompt; only a prompt that repeats it continues this program."""
    shared_blocks: int | None = None
    """Leading blocks of its first prompt that were cached already, so other programs have them too. None: not scheduled
    yet."""
    policy_state: object = None
    """What the policy keeps about this program; the policy alone knows its type."""
    told: object = None
    """What ``hints.Predictions`` keeps about its predictions."""
    wisher: object = None
    """What ``hints.Wishes`` keeps about its wishes."""

    @property
    def root(self) -> ProgramState:
        return self.family or self

    @property
    def requests_in_engine(self) -> int:
        return len(self.in_engine)


@dataclass(frozen=True, slots=True)
class Span:
    """A number that a client gives; the ends are equal if it gives one."""

    low: float
    high: float


@dataclass(slots=True, eq=False)
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
    """The tool that the client expects to run after this turn."""
    tool_hint_s: float | None = None
    tool_hint_p90_s: float | None = None
    ttl_wish_s: float | None = None
    this_func_call: str | None = None
    ran: str | None = None
    """The tool that ran before this turn, as the client says."""
    ran_s: float | None = None
    """Seconds that it took, as the client says."""
    start_s: float | None = None
    preemptions: int = 0
    tagged: bool = True
    """False if the request names no program: it is treated as a program of one turn."""
    running: bool = False
    """The turn is in the batch now."""
    gone: bool = False
    """The turn left the engine: finished, aborted or failed."""
    overdue: bool = False
    """The turn runs next, whatever the policy says: it waited for ``Guards.max_overtake_s``, or the engine was idle."""
    blocks: Sequence[Hashable] | None = None
    """A hash for each full block of its context; a hash stands for the prefix up to its block. None: unknown."""
    since_s: float = 0.0
    """When the turn last began to wait or to run."""
    served_s: float = 0.0
    """Time in the batch, up to ``since_s``."""
    waited_s: float = 0.0
    """Time in the queue, up to ``since_s``."""
    chain_s: float = 0.0
    """Model time of its family when the turn arrived."""
    policy_state: object = None
    """What the policy keeps about this turn; the policy alone knows its type."""

    def served(self, now_s: float) -> float:
        return self.served_s + (now_s - self.since_s if self.running else 0.0)

    def waited(self, now_s: float) -> float:
        return self.waited_s + (0.0 if self.running else now_s - self.since_s)

    client: str | None = None
    """Digest of the request's API key, for limits per client."""
    turn_id: str | None = None
    """The id that the client gives the turn; a retry has the same id."""
    prompt: Hashable = None
    """Equal for equal prompts."""
    task: str | None = None
    """Names what the program does: the same for the next run of the same task. None: unknown."""
    remaining_turns: Span | None = None
    """Turns that the client expects after this one."""
    remaining_tokens: Span | None = None
    """Tokens that it expects them to generate."""


@dataclass(frozen=True, slots=True)
class TurnStart:
    """A turn left the waiting queue for the first time."""

    turn: TurnState
    now_s: float
    hit_tokens: int
    kv_was_evicted: bool
    """Part of the previous turn's prompt was no longer in GPU memory. Its output does not count: many agents drop the
    reasoning from their history, so a miss there says nothing."""
    kv_was_lost: bool = False
    """``kv_was_evicted``, and no tier below had that part either."""
    reloaded_tokens: int = 0
    """Tokens of the hit that were reloaded from a tier below GPU memory."""
    reload_s: float = 0.0
    """Seconds that the reload took."""

    @property
    def queued_s(self) -> float:
        """Time the turn waited to be scheduled, without the reload."""
        return self.now_s - self.turn.arrival_s - self.reload_s


@dataclass(frozen=True, slots=True)
class Stored:
    """Leading tokens of a context that tiers below GPU memory hold or are about to hold."""

    tokens: int
    deep_tokens: int = 0
    """Tokens of these that are not in DRAM, only in the tier below it (SSD)."""


@dataclass(frozen=True, slots=True)
class TurnFinish:
    """A turn ended well."""

    turn: TurnState
    now_s: float
    context_tokens: int
    output_tokens: int
    tool: str | None
    """Key of the tool that the output calls, or that its client expects if the output names none; None: unknown."""
    stored: Stored | None = None
    """What tiers hold of the context; None: there are no tiers."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Keep a finished turn's KV for ``ttl_s`` seconds; 0 or less: do not."""

    ttl_s: float
    delay_estimate_s: float | None = None
    eta: float | None = None
    worth_s: float | None = None
    """Seconds of holding that cost as much as losing the KV; None: the policy does not know."""


NO_HOLD = Hold(0.0)


@dataclass(frozen=True, slots=True)
class Step:
    """The engine is about to schedule."""

    now_s: float
    batch_tokens: int
    """Context tokens of all running requests together; 0 unless the policy ``wants_batch``."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What a policy wants done before the engine schedules."""

    release: Sequence[ProgramState] = ()
    """Programs whose pins are released."""
    rank_again: Sequence[TurnState] = ()
    """Waiting turns whose rank changed."""


NO_ORDERS = Orders()


@dataclass(frozen=True, slots=True)
class PrefillCurve:
    """Seconds to compute the KV of ``n`` tokens: ``a*n^2 + b*n + c``, from an offline profile."""

    a: float
    b: float
    c: float
    source: str = "unknown"

    def seconds(self, tokens: int) -> float:
        return (self.a * tokens + self.b) * tokens + self.c if tokens > 0 else 0.0

    def marginal_prefill_s(self, tokens: int) -> float:
        """Seconds that the tokens add to a step that runs anyway: without ``c``."""
        return max(0.0, (self.a * tokens + self.b) * tokens)


@dataclass(frozen=True, slots=True)
class DecodeLine:
    """Seconds of a decode step: ``fixed_s + token_s * tokens``, with the context tokens of the whole batch."""

    fixed_s: float
    token_s: float

    def memory_worth(self, kv_tokens: int) -> float:
        """Relative gain in decoding speed per relative gain in memory while the pool is full; 0 to 1."""
        whole_s = self.fixed_s + self.token_s * kv_tokens
        return self.fixed_s / whole_s if whole_s > 0.0 else 0.0

    def full_token_s(self, kv_tokens: int) -> float:
        """Seconds of a decode step per token of context while the pool is full."""
        return self.fixed_s / kv_tokens + self.token_s


@dataclass(frozen=True, slots=True)
class Machine:
    """What a policy may know of the machine it runs on."""

    prefill: PrefillCurve
    kv_tokens: int
    """Tokens the KV pool holds."""
    max_num_batched_tokens: int = 2048
    """Largest number of tokens in one step."""
    swap_token_s: float | None = None
    """Seconds to load one token's KV from DRAM to the GPU; None: there is no tier."""
    ssd_token_s: float = 0.0
    """Seconds to load one token's KV from the SSD to DRAM first."""
    decode: DecodeLine | None = None
    """Seconds of decode steps; None: unknown."""
    notes: tuple[str, ...] = field(default=())
    block_size: int = 16
    """Tokens of a KV block."""

    def reload_s(self, stored: Stored | None) -> float:
        """Seconds to load what tiers hold while the links are idle; infinite if they hold nothing."""
        if stored is None or stored.tokens <= 0 or self.swap_token_s is None:
            return inf
        return stored.tokens * self.swap_token_s + stored.deep_tokens * self.ssd_token_s

    def rest_s(self, context_tokens: int, stored: Stored) -> float:
        """Seconds to compute the part of a context that tiers do not hold."""
        return self.prefill.seconds(context_tokens) - self.prefill.seconds(min(stored.tokens, context_tokens))

    def rebuild_s(self, context_tokens: int, stored: Stored | None = None) -> float:
        """C(r) of the papers: seconds to recompute or reload a context's KV, whichever is faster."""
        whole_s = self.prefill.seconds(context_tokens)
        if stored is None or stored.tokens <= 0:
            return whole_s
        return min(whole_s, self.reload_s(stored) + self.rest_s(context_tokens, stored))
