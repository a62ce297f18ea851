"""The cause of the cache hit or miss of each returning turn, derived from the records alone.

A returning turn is any turn of a program but its first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd

from continuum_traces.schema import KvPool, Manifest

from continuum_analysis.records.timeline import FAILED, PinTimes, ProgramTimes, TurnTimes, pinned_tokens

CAUSES = {
    "pinned": "hit: its pin was held until it was scheduled",
    "cached": "hit: no pin held it then, but no other request had taken the blocks yet",
    "reloaded": "hit: its KV came back from a lower tier",
    "found": "hit: only the client recorded this turn; the server's records would say what kept the KV",
    "elsewhere": "miss: the turn before ran on another replica",
    "state": "miss: its pin held until it was scheduled, but the window or state at which its prompt goes on was gone",
    "expired": "miss: its pin expired before it returned",
    "pressure": "miss: its pin was given up because another request needed the room",
    "dropped": "miss: its pin ended in another way before it was scheduled (a request aborted, a cache reset)",
    "guard": "miss: not pinned, because the pinned share of the KV pool was at its limit",
    "no tool": "miss: not pinned, and the turn before named no tool",
    "ttl 0": "miss: not pinned, because the policy chose a TTL of 0 (or a limit that is not in the records refused it)",
    "no pins": "miss: nothing held it, because this run pins nothing",
    "failed before": "miss: the turn before ended in an abort or an error, and such turns are not pinned",
    "overlap": "miss: it arrived while the previous turn was still running",
    "left": "miss: its prompt differs early from the one before, and nothing behind that place can be reused",
    "rewritten": "miss: its prompt is shorter than the one before, so the history was rewritten",
    "unknown": "miss: the records do not say why (the client's records alone, or a file of the preview)",
}
"""Every cause with its sentence, hits first."""

HITS = ("pinned", "cached", "reloaded", "found")

DIFFERENT_HITS = 3
"""The block size is derived from recorded hits if they have at least this many different numbers of tokens."""
USUAL_BLOCK_TOKENS = 16
"""vLLM's default; assumed where nothing says the block size."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the engine that are needed to explain misses."""

    block_tokens: int = 1
    """Tokens of a KV block; hits come in whole blocks."""
    pinned_tokens: float | None = None
    """Tokens that pins may hold at once; None if the manifest does not give it, and with several replicas, each of
    which has its own limit."""


@dataclass(frozen=True, slots=True)
class Return:
    """A returning turn, the tokens that it could have found in the cache, and the cause of its hit or miss."""

    program_id: str
    turn: TurnTimes
    before: TurnTimes
    pin: PinTimes | None
    cause: str
    """One of ``CAUSES``."""
    reusable_tokens: int
    """Prompt tokens that a cache of unlimited size would have contained, in whole blocks."""
    late_s: float | None
    """Seconds from the pin's end to the turn's arrival; None unless the cause is ``expired``."""

    @property
    def hit(self) -> bool:
        return self.cause in HITS

    @property
    def lost_tokens(self) -> int:
        """Reusable tokens that had to be computed again."""
        return max(0, self.reusable_tokens - (self.turn.hit_tokens or 0))

    @property
    def tool_s(self) -> float | None:
        """Seconds from the finish of the turn before to the arrival of this turn."""
        return None if self.before.finish_s is None else self.turn.arrive_s - self.before.finish_s


def limits_of(manifest: Manifest | None, programs: Sequence[ProgramTimes] = ()) -> Limits:
    """Return the limits that a manifest gives. If it gives no block size (some servers, files of the preview), the
    block size is derived from the recorded hits."""
    manifest = manifest or Manifest()
    options, capacity = manifest.engine_options, manifest.hardware.kv_capacity or KvPool()
    block = options.block_size or capacity.block_size or _block_of_hits(programs)
    share, tokens = options.max_pinned_share, capacity.tokens
    if (options.replicas or 1) > 1:
        return Limits(block)
    return Limits(block, share * tokens if share is not None and tokens else None)


def _block_of_hits(programs: Sequence[ProgramTimes]) -> int:
    """Return the largest number of tokens of which every hit is a multiple, since hits come in whole blocks.

    This is at least the block size, so that no hit counts as a miss. For a server that caches single tokens it is 1.
    """
    hits = {turn.hit_tokens for program in programs for turn in program.turns if turn.hit_tokens}
    return gcd(*hits) if len(hits) >= DIFFERENT_HITS else USUAL_BLOCK_TOKENS


def reusable_tokens(turn: TurnTimes, before: TurnTimes | None, block_tokens: int) -> int:
    """Return the prompt tokens that a cache of unlimited size would have contained, in whole blocks.

    A replay's client records the number. In other runs it is the prompt of the turn before, without the reply that the
    agent repeats. If the prompt is shorter than that, the agent rewrote its history, and only the actual hits count.
    The number is never less than the actual hits.
    """
    hits = turn.hit_tokens or 0
    reusable = _recorded_reusable(turn)
    if reusable is None:
        if before is None or turn.prompt_tokens < before.prompt_tokens:
            return hits
        reusable = before.prompt_tokens
    at_most = max(0, min(reusable, turn.prompt_tokens - 1))  # an engine always computes the last prompt token
    return max(hits, at_most // block_tokens * block_tokens)


def _recorded_reusable(turn: TurnTimes) -> int | None:
    return turn.client.reusable_tokens if turn.client else None


def explain(programs: Sequence[ProgramTimes], limits: Limits) -> list[Return]:
    """Return every returning turn whose cache hits were recorded, in order of arrival within each program."""
    held = _PinnedTokens(programs)
    return [returned for program in programs for returned in _returns(program, limits, held)]


def _returns(program: ProgramTimes, limits: Limits, held: _PinnedTokens) -> Iterator[Return]:
    pins = {pin.turn: pin for pin in program.pins}
    for before, turn in pairwise(program.turns):
        if turn.hit_tokens is None:
            continue
        pin = pins.get(before.index)
        reusable = reusable_tokens(turn, before, limits.block_tokens)
        whole = turn.hit_tokens >= reusable - limits.block_tokens
        cause = _why_hit(turn, pin) if whole else _why_missed(turn, before, pin, limits, held)
        if whole and turn.prompt_tokens < before.prompt_tokens and _recorded_reusable(turn) is None:
            cause = "rewritten"
        late_s = turn.arrive_s - pin.until_s if pin and pin.until_s is not None and cause == "expired" else None
        yield Return(program.program_id, turn, before, pin, cause, reusable, late_s)


def _why_hit(turn: TurnTimes, pin: PinTimes | None) -> str:
    if turn.reload_bytes:
        return "reloaded"
    if turn.start_s is None:
        return "found"
    return "pinned" if pin is not None and pin.reason == "hit" else "cached"


def _why_missed(turn: TurnTimes, before: TurnTimes, pin: PinTimes | None, limits: Limits, held: _PinnedTokens) -> str:
    if turn.replica != before.replica:
        return "elsewhere"
    if turn.left_at is not None:
        return "left"
    if pin is not None and pin.reason == "hit" and turn.earlier:
        return "dropped"  # an earlier try took the pin over, and its KV was freed when that try ended
    if pin is not None:
        told = held.native or pin.reason != "hit"  # the preview's pins may have ended while the turn waited
        return _ENDINGS.get(pin.reason, "unknown") if told else "unknown"
    if turn.start_s is None:
        return "unknown"
    if before.finish_s is None or turn.arrive_s < before.finish_s:
        return "overlap"
    if not held.any:
        return "no pins"
    return _why_not_pinned(before, before.finish_s, limits, held) if held.native else "unknown"


def _why_not_pinned(before: TurnTimes, finish_s: float, limits: Limits, held: _PinnedTokens) -> str:
    if before.status in FAILED:
        return "failed before"
    if before.tool is None:
        return "no tool"
    if limits.pinned_tokens is not None:
        wanted = held.before(finish_s) + before.prompt_tokens + before.output_tokens
        if wanted > limits.pinned_tokens:
            return "guard"
    return "ttl 0"


_ENDINGS = {
    "expired": "expired",
    "pressure": "pressure",
    "abort": "dropped",
    "shutdown": "dropped",
    "last": "dropped",
    "gone": "state",
    "hit": "rewritten",
}
"""Causes by the reason why the pin ended. A turn that took over its pin but found fewer tokens than the pin held had
changed its prompt."""


class _PinnedTokens:
    """Tokens in pins at any instant of a run."""

    def __init__(self, programs: Sequence[ProgramTimes]) -> None:
        self.native = any(turn.status is not None for program in programs for turn in program.turns)
        """False for the preview's records, which do not say how a turn ended."""
        self._times, self._totals = pinned_tokens(programs)
        self.any = bool(self._times)

    def before(self, instant_s: float) -> int:
        """Return the tokens in pins before the pins that begin or end at that instant."""
        return self._totals[bisect_left(self._times, instant_s)]


def count_causes(returns: Sequence[Return]) -> dict[str, int]:
    """Count each cause, in the order of ``CAUSES``; causes that do not occur are left out."""
    counts = Counter(returned.cause for returned in returns)
    return {cause: counts[cause] for cause in CAUSES if counts[cause]}


@dataclass(frozen=True, slots=True)
class CauseRow:
    """The returning turns of one cause."""

    cause: str
    turns: int
    share: float
    """The share of all returning turns."""
    lost_tokens: int
    """Reusable prompt tokens that had to be computed again."""
    wait_mean_s: float | None
    late_p50_s: float | None
    """The median of ``Return.late_s``."""
    meaning: str


def cause_rows(returns: Sequence[Return]) -> list[CauseRow]:
    """Return one row for each cause that occurs."""
    rows = []
    for cause, turns in count_causes(returns).items():
        these = [returned for returned in returns if returned.cause == cause]
        waits = [returned.turn.wait_s for returned in these if returned.turn.wait_s is not None]
        late = sorted(returned.late_s for returned in these if returned.late_s is not None)
        wait_mean_s, late_p50_s = sum(waits) / len(waits) if waits else None, late[len(late) // 2] if late else None
        lost = sum(returned.lost_tokens for returned in these)
        meaning = CAUSES[cause] + (_example(these) if cause == "left" else "")
        rows.append(CauseRow(cause, turns, turns / len(returns), lost, wait_mean_s, late_p50_s, meaning))
    return rows


def _example(returns: Sequence[Return]) -> str:
    """Return where the prompt is that differs from the longest one before it."""
    worst = max(returns, key=lambda returned: returned.before.prompt_tokens)
    turn, before = worst.turn.index, worst.before
    place = f"at token {worst.turn.left_at:,} of {before.prompt_tokens:,}"
    return f" ({worst.program_id}: turn {turn} differs from turn {before.index} {place})"
