"""What a policy is told, and what it answers. Pure data: seconds, tokens, names."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from math import inf


@dataclass(slots=True, eq=False)
class ProgramState:
    """What the scheduler remembers of one program between its turns."""

    program_id: str
    """Its own among all programs; a client's id, ``name``, may name several (``policy.programs``)."""
    arrival_s: float
    """When its first request arrived."""
    sequence: int
    """Arrival number of its first request among all requests: the order of SPEC 4, without ties."""
    name: str = ""
    """The client's id, as records have it."""
    namespace: str | None = None
    """The API key that its id belongs to, as a digest; None where the server has fewer than two keys."""
    id_key: str = ""
    """The client's id within its namespace."""
    turns_arrived: int = 0
    turns_finished: int = 0
    in_engine: list[TurnState] = field(default_factory=list)
    """Its turns that wait or run."""
    last_finish_s: float | None = None
    last_tool: str | None = None
    context_tokens: int = 0
    """Prompt plus output of the last finished turn."""
    prompt_tokens: int = 0
    """Prompt of the last finished turn: what the next one surely repeats, where history is only added to."""
    parent_id: str | None = None
    family: ProgramState | None = None
    """The oldest ancestor known when it arrived (a sub-agent's caller's caller); None: itself."""
    served_s: float = 0.0
    """Model time of the longest chain of finished turns; a family's is its root's."""
    waited_s: float = 0.0
    """Time its finished turns waited; a family's is its root's."""
    ended: bool = False
    """Finished or forgotten: its next request would start a new program."""
    family_requests: int = 0
    """Requests in the engine of all who have this program as their root, its own too."""
    last_prompt_tokens: int = 0
    """Prompt of the turn that arrived last."""
    mark: tuple[int, Hashable] | None = None
    """A block of that prompt, by index and hash, that a prompt must repeat to continue this program."""
    shared_blocks: int | None = None
    """Leading blocks of its first prompt that the cache held already: others have them too. None: not scheduled yet."""
    policy_state: object = None
    """What the policy keeps about this program; the policy alone knows its type."""

    @property
    def root(self) -> ProgramState:
        return self.family or self

    @property
    def requests_in_engine(self) -> int:
        return len(self.in_engine)


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
    tool_hint_s: float | None = None
    tool_hint_p90_s: float | None = None
    ttl_wish_s: float | None = None
    this_func_call: str | None = None
    start_s: float | None = None
    preemptions: int = 0
    tagged: bool = True
    """False for a request that names no program: it is its own program of one turn."""
    running: bool = False
    """In the batch now."""
    gone: bool = False
    """It left the engine, well or not."""
    overdue: bool = False
    """It is next, whatever the policy says: it waited for ``Guards.max_overtake_s``, or the engine stood idle."""
    blocks: Sequence[Hashable] | None = None
    """A hash for each full block of its context so far, each standing for the prefix up to its end; None: not known."""
    since_s: float = 0.0
    """When it last began to wait or to run."""
    served_s: float = 0.0
    """Time in the batch, up to ``since_s``."""
    waited_s: float = 0.0
    """Time in the queue, up to ``since_s``."""
    chain_s: float = 0.0
    """Its family's model time when it arrived."""
    policy_state: object = None
    """What the policy keeps about this turn; the policy alone knows its type."""

    def served(self, now_s: float) -> float:
        return self.served_s + (now_s - self.since_s if self.running else 0.0)

    def waited(self, now_s: float) -> float:
        return self.waited_s + (0.0 if self.running else now_s - self.since_s)

    client: str | None = None
    """Digest of the API key it came with, for limits per client."""
    turn_id: str | None = None
    """The client's name for the turn, the same for every try of it."""
    prompt: Hashable = None
    """Equal for equal prompts."""


@dataclass(frozen=True, slots=True)
class TurnStart:
    """A turn left the waiting queue for the first time."""

    turn: TurnState
    now_s: float
    hit_tokens: int
    kv_was_evicted: bool
    """Part of the last turn's prompt was no longer in GPU memory. Of its output many agents drop the reasoning, so that
    a next prompt that misses there has lost nothing."""
    kv_was_lost: bool = False
    """The same, and no tier below had it either."""
    reloaded_tokens: int = 0
    """Of the hit: brought back from a tier below GPU memory."""
    reload_s: float = 0.0
    """How long that took."""

    @property
    def queued_s(self) -> float:
        """Time it waited for its place; that of its KV's way back is not in it."""
        return self.now_s - self.turn.arrival_s - self.reload_s


@dataclass(frozen=True, slots=True)
class Stored:
    """Leading tokens of a context that tiers below GPU memory hold, or are about to."""

    tokens: int
    deep_tokens: int = 0
    """Of these: not in DRAM, only below it."""


@dataclass(frozen=True, slots=True)
class TurnFinish:
    """A turn ended well."""

    turn: TurnState
    now_s: float
    context_tokens: int
    output_tokens: int
    tool: str | None
    """Key of the tool called next; None: the output names none."""
    stored: Stored | None = None
    """What tiers hold of it; None: there are none."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Keep a finished turn's KV for ``ttl_s`` seconds; 0 or less: do not."""

    ttl_s: float
    delay_estimate_s: float | None = None
    eta: float | None = None


NO_HOLD = Hold(0.0)


@dataclass(frozen=True, slots=True)
class Step:
    """The engine is about to schedule."""

    now_s: float
    batch_tokens: int
    """Context of all running requests together."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What a policy wants done before the engine schedules."""

    release: Sequence[ProgramState] = ()
    """Pins to let go."""
    rank_again: Sequence[TurnState] = ()
    """Waiting turns whose rank changed."""


NO_ORDERS = Orders()


@dataclass(frozen=True, slots=True)
class PrefillCurve:
    """Seconds to compute the KV of ``n`` tokens: ``a*n^2 + b*n + c`` (SPEC 3), from an offline profile."""

    a: float
    b: float
    c: float
    source: str = "unknown"

    def seconds(self, tokens: int) -> float:
        return (self.a * tokens + self.b) * tokens + self.c if tokens > 0 else 0.0

    def marginal_prefill_s(self, tokens: int) -> float:
        """Seconds that ``n`` tokens add to a step that is taken anyway: without ``c``."""
        return max(0.0, (self.a * tokens + self.b) * tokens)


@dataclass(frozen=True, slots=True)
class DecodeLine:
    """Seconds of a decode step: ``fixed_s + token_s * tokens``, of all contexts in the batch together."""

    fixed_s: float
    token_s: float

    def memory_worth(self, kv_tokens: int) -> float:
        """Relative gain in decoding speed per relative gain in memory, the pool full; 0 to 1."""
        whole_s = self.fixed_s + self.token_s * kv_tokens
        return self.fixed_s / whole_s if whole_s > 0.0 else 0.0

    def full_token_s(self, kv_tokens: int) -> float:
        """Seconds of a decode step for each token of context in it, the pool full."""
        return self.fixed_s / kv_tokens + self.token_s


@dataclass(frozen=True, slots=True)
class Machine:
    """What a policy may know of the machine it runs on."""

    prefill: PrefillCurve
    kv_tokens: int
    """Tokens the KV pool holds."""
    chunk_tokens: int = 2048
    """Tokens of one step at most."""
    swap_token_s: float | None = None
    """Seconds to bring one token's KV from DRAM to the GPU; None: there is no tier."""
    ssd_token_s: float = 0.0
    """Seconds to bring it from the tier below up to DRAM first."""
    tier_tokens: int = 0
    """Tokens that the tiers below GPU memory hold together."""
    decode: DecodeLine | None = None
    """None: not known."""
    notes: tuple[str, ...] = field(default=())
    block_size: int = 16
    """Tokens of a KV block."""

    def reload_s(self, stored: Stored | None) -> float:
        """Seconds to bring back what tiers hold, links idle; infinite where they hold nothing."""
        if stored is None or stored.tokens <= 0 or self.swap_token_s is None:
            return inf
        return stored.tokens * self.swap_token_s + stored.deep_tokens * self.ssd_token_s

    def rest_s(self, context_tokens: int, stored: Stored) -> float:
        """Seconds to compute the part of a context that tiers do not hold."""
        return self.prefill.seconds(context_tokens) - self.prefill.seconds(min(stored.tokens, context_tokens))

    def rebuild_s(self, context_tokens: int, stored: Stored | None = None) -> float:
        """C(r) of SPEC 3: seconds until a context's KV is back, computed again or reloaded, whichever is faster."""
        whole_s = self.prefill.seconds(context_tokens)
        if stored is None or stored.tokens <= 0:
            return whole_s
        return min(whole_s, self.reload_s(stored) + self.rest_s(context_tokens, stored))
