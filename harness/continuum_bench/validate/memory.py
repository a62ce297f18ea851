"""Estimates a server's number of KV blocks from its request log."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from continuum_bench.validate.served import Served

PLAYS = 3
"""Largest number of plays that refine an estimate."""
CLOSE = 0.004
"""Relative change of the estimate below which it is not refined further."""

INSTANTS = 1000
"""Number of instants of a run at which its requests are counted."""
LONG_S = 1.0
"""A request that has waited for this many seconds waits for memory, or for a place among the running requests."""
FEWEST = 0.2
"""Smallest share of the instants at which requests wait for memory."""
FLATTEST = 0.3
"""Largest spread of the held blocks while requests wait for memory (of 80% of the instants, relative to the median). If
requests wait for computation instead, the spread is larger, because the held blocks grow with every prompt."""
NEARLY_ALL = 0.95
"""Share of max_num_seqs. If more requests run, others may wait for a place instead of memory."""
PREEMPTED = 1.03
"""Estimated held blocks divided by the true pool size. A log does not show preemptions, so the estimate is too high.
Median of five modelled runs with a full pool (1.01 to 1.04)."""


def refined_blocks(
    served: Sequence[Served],
    max_num_seqs: int,
    block_size: int,
    play: Callable[[int], Sequence[Served] | None],
) -> int | None:
    """Estimate the number of KV blocks without the bias of ``blocks_of_a_full_pool``.

    The running requests do not hold all blocks of a full pool: prompts that are being computed hold blocks too, and
    some blocks stay free. That share depends on the lengths of the requests, so it is measured on the virtual engine:
    the result is a number of blocks for which the modelled requests give the same estimate as the log.

    Args:
        served: the requests of the log.
        max_num_seqs: largest number of requests that run at the same time.
        block_size: number of tokens in one KV block.
        play: returns the requests as an engine with this many blocks serves them; None: they do not fit.
    """
    seen = found = blocks_of_a_full_pool(served, max_num_seqs, block_size)
    for _ in range(PLAYS):
        modelled = play(found) if found else None
        shown = blocks_of_a_full_pool(modelled, max_num_seqs, block_size) if modelled else None
        if not (seen and found and shown):
            break
        before, found = found, round(found * seen / shown)
        if abs(found - before) <= CLOSE * before:
            break
    return found


def blocks_of_a_full_pool(served: Sequence[Served], max_num_seqs: int, block_size: int) -> int | None:
    """Estimate the number of KV blocks of a server whose pool was full; None: it was not full for long enough.

    The pool is full while requests wait and fewer than ``max_num_seqs`` run. The running requests then hold all blocks.
    Requests must not share prefixes.
    """
    times = np.asarray([(each.arrival_s, each.first_token_s, each.finish_s) for each in served])
    lengths = np.asarray([(each.prompt_tokens, each.output_tokens) for each in served])
    held = []
    for at_s in np.linspace(0.0, times.max(), INSTANTS):
        arrival, first, finish = times.T
        waiting, running = (arrival <= at_s) & (at_s < first), (first <= at_s) & (at_s < finish)
        longest_s = (at_s - arrival[waiting]).max(initial=0.0)
        if longest_s >= LONG_S and running.sum() < NEARLY_ALL * max_num_seqs:
            done = (at_s - first[running]) / (finish[running] - first[running])
            tokens = lengths[running, 0] + lengths[running, 1] * done
            held.append(np.ceil(tokens / block_size).sum())
    if len(held) < FEWEST * INSTANTS:
        return None
    low, median, high = np.quantile(held, (0.1, 0.5, 0.9))
    return round(float(median) / PREEMPTED) if high - low < FLATTEST * median else None
