"""The arguments and the return values of a policy's hooks: programs, turns, holds and the machine."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Annotated, Any

from continuum_traces.schema import Tags

from continuum_server.policy.history import LastPrompt
from continuum_server.policy.limits import Range, check_fields

if TYPE_CHECKING:
    from continuum_server.policy.hints import OpenPrediction
    from continuum_server.policy.order import Place
    from continuum_server.policy.returns import OpenAnswer


@dataclass(slots=True, eq=False)
class ProgramState:
    """One program, as the scheduler knows it."""

    program_id: str
    """Unique among all programs. Several programs may have the same ``name`` (``policy.programs``)."""
    arrival_s: float
    """When its first request arrived."""
    sequence: int
    """Its position in program order: the number of its first request among all requests in order of arrival."""
    name: str = ""
    """The program id that the client sent, as records contain it."""
    namespace: str | None = None
    """Digest of the API key to which the client's program id belongs; None if the server has fewer than two keys."""
    id_key: str = ""
    """``name`` and ``namespace`` as one key."""
    turns_arrived: int = 0
    turns_finished: int = 0
    turn: TurnState | None = None
    """The program's turn that waits or runs. A program never has two."""
    last_finish_s: float | None = None
    last_tool: str | None = None
    context_tokens: int = 0
    """Prompt plus output of the last finished turn, in tokens."""
    prompt_tokens: int = 0
    """Prompt of the last finished turn. The next prompt repeats it, if the agent only appends to its history."""
    hit_share: float | None = None
    """Share of the prompt of the turn that started last whose KV was found; None: no turn has started."""
    recognised_by: str = "tag"
    """How its requests are recognised: ``tag``, ``header:NAME``, ``body:NAME``, ``prompt``; empty: not at all."""
    family: ProgramState | None = None
    """The root of the family: the oldest ancestor that was known when the program arrived. None: the program itself."""
    served_s: float = 0.0
    """Running time of the longest chain of finished turns. Only the value of a family's root is kept up to date."""
    waited_s: float = 0.0
    """Time that finished turns waited. Only the value of a family's root is kept up to date."""
    ended: bool = False
    """The program has finished or was forgotten. The next request with its id starts a new program."""
    last_prompt: LastPrompt = field(default_factory=LastPrompt)
    """Hashes and samples of the program's latest prompt, to recognise its next one."""
    policy_state: Any = None
    """The policy's own data about this program."""
    answer: OpenAnswer | None = None
    """The last answer, if it is not yet known whether another turn follows (``returns.Returns``)."""
    prediction: OpenPrediction | None = None
    """What ``hints.Predictions`` knows of the time since its last turn; None: the policy asked for no hold."""

    @property
    def root(self) -> ProgramState:
        return self.family or self


@dataclass(slots=True, eq=False)
class TurnState:
    """One turn's request, from its arrival to its finish."""

    program: ProgramState
    index: int
    """Turn number within the program, from 0."""
    request_id: str
    arrival_s: float
    prompt_tokens: int
    sequence: int
    """Number of the request among all requests in order of arrival."""
    tags: Tags = field(default_factory=Tags)
    """What the client says of the turn. A ``ToolEvent`` while it runs changes the predicted times."""
    priority: int = 0
    """The smallest comes first, whatever the policy says. Above 0: work in the background."""
    start_s: float | None = None
    preemptions: int = 0
    tagged: bool = True
    """False if nothing tells to which program the request belongs. It is then treated as a program of one turn."""
    running: bool = False
    """The turn is in the batch now."""
    gone: bool = False
    """The turn left the engine: it finished, was aborted or failed."""
    one_off: bool = False
    """The turn continues no conversation (``policy.one_offs``)."""
    overdue: bool = False
    """The turn runs next regardless of the policy: it waited for ``Guards.max_overtake_s``, or no request ran."""
    blocks: Sequence[Hashable] | None = None
    """A hash for each full block of its context. Each hash identifies the prefix up to its block. None: unknown."""
    since_s: float = 0.0
    """When the turn last began to wait or to run."""
    served_s: float = 0.0
    """Time in the batch, up to ``since_s``."""
    waited_s: float = 0.0
    """Time in the queue, up to ``since_s``."""
    chain_s: float = 0.0
    """``served_s`` of its family's root when the turn arrived."""
    place: Place | None = None
    """Its place in the order, which it keeps from its first start on; None: ``Order.place`` finds it."""
    policy_state: Any = None
    """The policy's own data about this turn."""

    def served(self, now_s: float) -> float:
        return self.served_s + (now_s - self.since_s if self.running else 0.0)

    def waited(self, now_s: float) -> float:
        return self.waited_s + (0.0 if self.running else now_s - self.since_s)

    client: str | None = None
    """Digest of the request's API key, for limits per client."""
    weight: float = 1.0
    """Weight of this key among the keys that share the engine (``policy.tenants``)."""
    prompt: Hashable = None
    """A value that is equal for equal prompts."""
    compacted: bool = False
    """The agent wrote its history anew, so that the KV of the last turn is of no use."""
    repeated_tokens: int = 0
    """Number of its first prompt tokens that certainly were in the program's last prompt too."""


@dataclass(frozen=True, slots=True)
class TurnStart:
    """A turn left the waiting queue for the first time."""

    turn: TurnState
    now_s: float
    hit_tokens: int
    kv_was_evicted: bool
    """A part of the prompt that the program's previous prompt had too was no longer in GPU memory. Only prompts are
    compared, because many agents remove the reasoning of their answers from the history."""
    reload_s: float = 0.0
    """Seconds that the reload took."""

    @property
    def queued_s(self) -> float:
        """Time that the turn waited to be scheduled, without the reload."""
        return self.now_s - self.turn.arrival_s - self.reload_s


@dataclass(frozen=True, slots=True)
class Stored:
    """How much of a context tiers hold or are about to hold: a number of leading tokens."""

    tokens: int
    deep_tokens: int = 0
    """Number of these tokens that are in the SSD tier only and not in DRAM."""


@dataclass(frozen=True, slots=True)
class TurnFinish:
    """A turn finished without an error."""

    turn: TurnState
    now_s: float
    context_tokens: int
    output_tokens: int
    tool: str | None
    """Key of the tool that the output calls, or else of the tool that the client expects; None: unknown."""
    stored: Stored | None = None
    """The part of the context that tiers hold; None: there are no tiers."""
    return_share: float = 1.0
    """Share of such answers after which their programs sent another turn (``policy.returns``)."""
    findable_tokens: int | None = None
    """Number of leading tokens that a next turn finds if the KV is held, where it is not the whole context."""

    @property
    def kept_tokens(self) -> int:
        """Number of leading tokens whose computation a hold saves."""
        return self.context_tokens if self.findable_tokens is None else self.findable_tokens


@dataclass(frozen=True, slots=True)
class ToolEvent:
    """What a client says of a program's tool while it runs, or when it has ended."""

    predicted_s: float | None = None
    """Seconds from now until the tool is expected to end; None: it has ended, and the next turn is about to come."""
    p90_s: float | None = None
    """The 90th percentile of these seconds; None: unknown."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A decision to hold a finished turn's KV for ``ttl_s`` seconds. 0 or less: not to hold it."""

    ttl_s: float
    soft_s: float = 0.0
    """Seconds after the turn until which the KV is kept as long as nobody else wants the memory (a soft hold)."""
    notes: Mapping[str, float] | None = None
    """Numbers that the record has of the hold: those of ``NOTES``. Others are left out."""


NOTES = ("delay_estimate_s", "eta")
"""Fields of ``SchedulerEvent`` for a hold's notes."""
NO_HOLD = Hold(0.0)


@dataclass(frozen=True, slots=True)
class Step:
    """The engine is about to schedule."""

    now_s: float
    batch_tokens: Callable[[], int]
    """Returns the sum of the context tokens of all running requests, which takes a loop over them."""


@dataclass(frozen=True, slots=True)
class Orders:
    """A policy's orders to the scheduler, which are carried out before the engine schedules."""

    release: Sequence[ProgramState] = ()
    """Programs whose pins are released."""
    rank_again: Sequence[TurnState] = ()
    """Waiting turns whose rank changed."""


NO_ORDERS = Orders()


Fitted = Annotated[float, Range(-1e12, 1e12)]
"""A number that comes from a fit, and may be negative."""


@dataclass(frozen=True, slots=True)
class PrefillCurve:
    """Seconds to compute the KV of ``n`` tokens: ``a*n^2 + b*n + c``, from an offline profile."""

    a: Fitted
    b: Fitted
    c: Fitted
    source: str = "unknown"

    def __post_init__(self) -> None:
        check_fields(self)

    def seconds(self, tokens: int) -> float:
        return (self.a * tokens + self.b) * tokens + self.c if tokens > 0 else 0.0

    def marginal_prefill_s(self, tokens: int) -> float:
        """Return the seconds that the tokens add to a step that runs anyway, which is ``seconds`` without ``c``."""
        return max(0.0, (self.a * tokens + self.b) * tokens)


USUAL_PREFILL = PrefillCurve(1.5e-9, 5.5e-5, 0.0, "Llama-3.1-8B on an A100")
"""Prefill times if no profile was measured. Recomputation is never free."""


@dataclass(frozen=True, slots=True)
class DecodeLine:
    """Seconds of a decode step: ``fixed_s + token_s * tokens``, where ``tokens`` is the context of the whole batch."""

    fixed_s: Fitted
    token_s: Fitted

    def __post_init__(self) -> None:
        check_fields(self)

    def memory_worth(self, kv_tokens: int) -> float:
        """Return the relative gain in decoding speed per relative gain in memory while the pool is full: 0 to 1."""
        whole_s = self.fixed_s + self.token_s * kv_tokens
        return self.fixed_s / whole_s if whole_s > 0.0 else 0.0

    def full_token_s(self, kv_tokens: int) -> float:
        """Return the seconds of a decode step per token of context while the pool is full."""
        return self.fixed_s / kv_tokens + self.token_s


@dataclass(frozen=True, slots=True)
class Footprint:
    """How many blocks of the KV pool a context takes in each KV cache group of the model."""

    groups: tuple[tuple[int, int | None], ...]
    """Tokens of a block, and the most blocks of one context: a window or a state ends growing; None: it never does."""
    block_tokens: float
    """Tokens of ``Machine.kv_tokens`` for each block of the pool."""

    def blocks(self, tokens: int) -> int:
        wanted = ((-(-tokens // size), limit) for size, limit in self.groups)
        return sum(blocks if limit is None else min(blocks, limit) for blocks, limit in wanted)


@dataclass(slots=True)
class Machine:
    """The machine on which the engine runs."""

    prefill: PrefillCurve
    """``USUAL_PREFILL`` if the one given is 0."""
    kv_tokens: int
    """Number of tokens that the KV pool holds."""
    max_num_batched_tokens: int = 2048
    """Largest number of tokens in one step."""
    swap_token_s: float | None = None
    """Seconds to load one token's KV from DRAM to the GPU, learned while the engine runs; None: there is no tier."""
    ssd_token_s: float = 0.0
    """Seconds to load one token's KV from the SSD to DRAM."""
    decode: DecodeLine | None = None
    """Seconds of decode steps; None: unknown."""
    block_size: int = 16
    """Tokens of a KV block."""
    footprint: Footprint | None = None
    """What contexts take of the pool; None: in proportion to their length."""

    def __post_init__(self) -> None:
        if self.prefill.seconds(1) <= 0.0:
            object.__setattr__(self, "prefill", USUAL_PREFILL)

    def room(self, tokens: int) -> float:
        """Return how many of ``kv_tokens`` a context takes. With windows or states, short contexts take more than they
        have tokens."""
        return tokens if self.footprint is None else self.footprint.blocks(tokens) * self.footprint.block_tokens

    def reload_s(self, stored: Stored | None) -> float:
        """Return the seconds to load the stored tokens while the links are idle; infinite if none are stored."""
        if stored is None or stored.tokens <= 0 or self.swap_token_s is None:
            return inf
        return stored.tokens * self.swap_token_s + stored.deep_tokens * self.ssd_token_s

    def rest_s(self, context_tokens: int, stored: Stored) -> float:
        """Return the seconds to compute the part of a context that tiers do not hold."""
        return self.prefill.seconds(context_tokens) - self.prefill.seconds(min(stored.tokens, context_tokens))

    def rebuild_s(self, context_tokens: int, stored: Stored | None = None) -> float:
        """Return the papers' C(r): the seconds to recompute or reload a context's KV, whichever is faster."""
        whole_s = self.prefill.seconds(context_tokens)
        if stored is None or stored.tokens <= 0:
            return whole_s
        return min(whole_s, self.reload_s(stored) + self.rest_s(context_tokens, stored))
