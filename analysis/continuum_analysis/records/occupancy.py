"""Tokens of pins (recorded) and of running turns (derived) in the KV pool over time. The rest of the pool is free, or
contains KV that can be evicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from continuum_analysis.records.timeline import ProgramTimes, TurnTimes, pinned_tokens

SAMPLES = 500
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Tokens at evenly spaced instants; ``times_s`` counts from the first arrival."""

    times_s: Array
    running: Array
    """Tokens of running turns: the part of the prompt already computed, then the output. Derived, not recorded."""
    pinned: Array
    """Tokens in pins, as recorded."""


def occupancy(programs: Sequence[ProgramTimes], instants: int = SAMPLES) -> Occupancy:
    """Compute the tokens in the pool. A prefix that programs share counts once for each program.

    Args:
        programs: programs with turns, at least one.
        instants: how many.
    """
    start_s, end_s = min(p.arrive_s for p in programs), max(p.finish_s for p in programs)
    times = np.linspace(start_s, end_s, instants)
    running = np.zeros(instants)
    for turn in (turn for program in programs for turn in program.turns):
        _add_turn(times, running, turn, end_s)
    return Occupancy(times - start_s, running, _pinned(times, programs))


def _add_turn(times: Array, running: Array, turn: TurnTimes, end_s: float) -> None:
    """Add the tokens of a turn. They grow from the tokens found in the cache to the whole prompt at the first token (if
    that was recorded), then to prompt and output at the finish."""
    if turn.start_s is None:
        return
    finish_s = end_s if turn.finish_s is None else turn.finish_s
    span = slice(*np.searchsorted(times, (turn.start_s, finish_s)))
    if span.start == span.stop:
        return
    levels = [(turn.start_s, turn.hit_tokens or 0), (finish_s, turn.prompt_tokens + turn.output_tokens)]
    if turn.first_token_s is not None:
        levels.insert(1, (turn.first_token_s, turn.prompt_tokens))
    held = np.interp(times[span], [t for t, _ in levels], [tokens for _, tokens in levels])
    for since_s, until_s in turn.requeues:  # a preempted turn holds nothing
        held[(times[span] >= since_s) & (times[span] < until_s)] = 0.0
    running[span] += held


def _pinned(times: Array, programs: Sequence[ProgramTimes]) -> Array:
    instants, totals = pinned_tokens(programs)
    return np.asarray(totals, dtype=float)[np.searchsorted(instants, times, side="right")]
