"""Pins: whose KV is held after a turn, until when, and how much memory that takes.

Only the identities of blocks are known here. The scheduler owns the blocks, and tells when it holds or releases them.

A *soft* pin is a hold that its client asked for (``kv_ttl_s``). It is placed behind everybody (``policy.order``), so
any request may take its memory, and all soft pins together keep at most as many blocks as are free. It counts in no
limit.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from continuum_server.policy.blocks import DistinctBlocks
from continuum_server.policy.facts import NO_HOLD, Hold, ProgramState, TurnState

SPARE = 64
"""Number of entries of ended and moved pins that the heap of deadlines may always have."""


@dataclass(slots=True)
class Pin:
    """A finished turn's KV that is held for its program's next turn."""

    program: ProgramState
    turn_index: int
    since_s: float
    deadline_s: float
    tokens: float
    """Tokens of the KV pool in its blocks, shared or not."""
    blocks: Sequence[Hashable] = ()
    client: str = ""
    kept_tokens: int = 0
    """Tokens of the context that the program's next turn can find in these blocks."""
    soft_until_s: float = -math.inf
    """Until when the KV is kept as a soft pin after the deadline."""
    soft: bool = False
    """Anybody may have the memory."""
    priority: float = 0.0
    """``TurnState.priority`` of the turn that ended."""


class Pins(Mapping[str, Pin]):
    """Each program's pin, firm or soft, by ``ProgramState.program_id``.

    Args:
        block_tokens: number of tokens of the KV pool per block of it.
        max_tokens: number of tokens that firm pins may hold. A block that several share counts once.
        max_ttl_s: longest hold.
        max_per_client: number of firm pins of one API key; None: no limit.
    """

    def __init__(self, block_tokens: float, max_tokens: float, max_ttl_s: float, max_per_client: int | None) -> None:
        self.soft_tokens: float = 0
        """Tokens in the blocks of all soft pins. A block that several share counts several times."""
        self._block_tokens = block_tokens
        self._max_tokens = max_tokens
        self._max_ttl_s = max_ttl_s
        self._max_per_client = max_per_client
        self._pins: dict[str, Pin] = {}
        self._blocks = DistinctBlocks()
        self._of_client: Counter[str] = Counter()
        self.tokens_of: defaultdict[str | None, float] = defaultdict(int)
        """Tokens in the firm pins of each API key (``ProgramState.namespace``). Each pin counts in full."""
        self._deadlines: list[tuple[float, int, Pin]] = []
        """A heap. Entries of pins that have ended are skipped."""
        self._ties = count()

    def __getitem__(self, program_id: str) -> Pin:
        return self._pins[program_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pins)

    def __len__(self) -> int:
        return len(self._pins)

    @property
    def tokens(self) -> float:
        """Tokens of the KV pool in the blocks of all firm pins. A block that several pins share counts once."""
        return len(self._blocks) * self._block_tokens

    @property
    def block_count(self) -> int:
        return len(self._blocks)

    @property
    def kept_tokens(self) -> int:
        """Tokens of contexts that firm pins keep. Where several pins share a part of their blocks, it counts once."""
        blocks = len(self._blocks) + self._blocks.repeats
        kept = sum(pin.kept_tokens for pin in self._pins.values() if not pin.soft)
        return kept * len(self._blocks) // max(1, blocks)

    def firm(self, program: ProgramState) -> Pin | None:
        """Return the program's pin; None: it has none, or a soft one."""
        pin = self._pins.get(program.program_id)
        return None if pin is None or pin.soft else pin

    @property
    def soft(self) -> list[Pin]:
        """The soft pins, the oldest first."""
        return [pin for pin in self._pins.values() if pin.soft]

    # ------------------------------------------------------------------------------ begin and end

    def allowed(
        self, hold: Hold, soft_s: float, blocks: Callable[[], Sequence[Hashable]], client: str | None
    ) -> Hold | None:
        """Return the hold within the limits; None: no hold.

        Args:
            soft_s: seconds of the soft hold that the client asks for.
            blocks: see ``ProgramTable.finish``.
        """
        pinned = self._allowed_pin(hold, blocks, client)
        soft_s = min(soft_s, self._max_ttl_s)
        return pinned if soft_s <= (pinned or NO_HOLD).ttl_s else replace(pinned or NO_HOLD, soft_s=soft_s)

    def _allowed_pin(self, hold: Hold, blocks: Callable[[], Sequence[Hashable]], client: str | None) -> Hold | None:
        ttl_s = min(hold.ttl_s, self._max_ttl_s)
        if ttl_s <= 0.0:
            return None
        room, wanted = self._max_tokens - self.tokens, blocks()
        if len(wanted) * self._block_tokens > room and self._blocks.new(wanted) * self._block_tokens > room:
            return None
        if self._max_per_client is not None and self._of_client[client or ""] >= self._max_per_client:
            return None
        return hold if ttl_s == hold.ttl_s else replace(hold, ttl_s=ttl_s)

    def add(
        self, turn: TurnState, now_s: float, hold: Hold, blocks: Sequence[Hashable], kept_tokens: int | None = None
    ) -> Pin:
        """Add a pin for these blocks, which the scheduler holds. The program must have none.

        Args:
            kept_tokens: tokens of the context that the next turn can find in them; None: all of the blocks' tokens.
        """
        tokens, soft_until_s = len(blocks) * self._block_tokens, now_s + hold.soft_s
        kept = int(tokens) if kept_tokens is None else kept_tokens
        ends_s, client = now_s + hold.ttl_s, turn.client or ""
        held = (turn.program, turn.index, now_s, ends_s, tokens, blocks, client, kept, soft_until_s)
        pin = Pin(*held, priority=float(turn.priority))
        self._pins[turn.program.program_id] = pin
        if hold.ttl_s > 0.0:
            self._count(pin, 1)
            heapq.heappush(self._deadlines, (pin.deadline_s, next(self._ties), pin))
        else:
            self._keep_softly(pin)
        return pin

    def move(self, pin: Pin, ttl_s: float) -> None:
        """Let a firm pin end ``ttl_s`` seconds after it began, within the longest hold."""
        pin.deadline_s = pin.since_s + min(ttl_s, self._max_ttl_s)
        if len(self._deadlines) > 2 * len(self._pins) + SPARE:  # a client may move a pin as often as it likes
            self._deadlines = [(other.deadline_s, next(self._ties), other) for other in self._pins.values()]
            heapq.heapify(self._deadlines)
        else:
            heapq.heappush(self._deadlines, (pin.deadline_s, next(self._ties), pin))

    def soften(self, pin: Pin) -> None:
        """Continue a firm pin as a soft one."""
        self._count(pin, -1)
        self._keep_softly(pin)

    def _keep_softly(self, pin: Pin) -> None:
        pin.soft, pin.deadline_s, pin.blocks = True, pin.soft_until_s, ()
        self.soft_tokens += pin.tokens
        heapq.heappush(self._deadlines, (pin.deadline_s, next(self._ties), pin))

    def end(self, program_id: str) -> Pin | None:
        """End the program's pin. Return it, if it was firm."""
        pin = self._pins.pop(program_id, None)
        if pin is None:
            return None
        if pin.soft:
            self.soft_tokens -= pin.tokens
            return None
        self._count(pin, -1)
        pin.blocks = ()  # the pin stays in ``_deadlines`` for a while
        return pin

    def _count(self, pin: Pin, sign: int) -> None:
        """Add a firm pin to the limits, or remove it."""
        (self._blocks.add if sign > 0 else self._blocks.remove)(pin.blocks)
        self.tokens_of[pin.program.namespace] += sign * pin.tokens
        self._of_client[pin.client] += sign
        if not self._of_client[pin.client]:
            del self._of_client[pin.client]

    # -------------------------------------------------------------------------------------- time

    def expired(self, now_s: float) -> list[Pin]:
        """Return the pins past their deadline. None expires while a request waits for its KV."""
        out: list[Pin] = []
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] < now_s:
            pin = heapq.heappop(deadlines)[2]
            if self._is_current(pin) and pin.deadline_s < now_s and pin.program.turn is None:
                out.append(pin)
        return out

    def next_expiry_s(self) -> float | None:
        """Return the earliest time after which ``expired`` may return another pin; None: there is no pin."""
        deadlines = self._deadlines
        while deadlines and not self._is_current(deadlines[0][2]):
            heapq.heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def _is_current(self, pin: Pin) -> bool:
        return self._pins.get(pin.program.program_id) is pin
