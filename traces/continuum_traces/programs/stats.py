"""Compute statistics of a set of programs: turns, tool times, tokens in both readings, tails, tools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from continuum_traces.grouped import grouped
from continuum_traces.programs.jsonl import TraceError
from continuum_traces.schema import Program


@dataclass(frozen=True, slots=True)
class MeanStd:
    mean: float
    std: float


@dataclass(frozen=True, slots=True)
class ToolStats:
    """The times (ms) of one tool, over its calls with a known duration."""

    name: str
    calls: int
    share_of_time: float
    mean_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    slowest_tenth_share: float
    """Share of the tool's time that the slowest tenth of its calls takes."""


@dataclass(frozen=True, slots=True)
class TraceStats:
    programs: int
    turns_total: int
    synthetic: bool
    sources: tuple[str, ...]
    """Where the programs come from, and how they were read."""
    turns: MeanStd
    gap_ms: MeanStd
    """Time between two turns: tools and overhead."""
    tokens_context: MeanStd
    """Tokens per program: its final context."""
    tokens_cumulative: MeanStd
    """Tokens per program: prompts and outputs, summed over turns."""
    output_tokens: MeanStd
    """Tokens per turn."""
    slowest_tenth_share: float
    """Share of the time between turns that the slowest tenth of the gaps takes."""
    longest_context_tokens: int
    sharing_a_prefix: int
    """Programs that share a prefix with another program."""
    shared_prefix_tokens: float
    """Mean length of the prefixes of these programs; 0 if there are none."""
    unknown_durations: int
    """Tool calls with an unknown duration, which counts as 0 in gaps."""
    tools: tuple[ToolStats, ...]
    """The tools, by their share of the time, largest first."""


@dataclass(frozen=True, slots=True)
class Published:
    """A row of Table 2 of arXiv 2511.02230 v4. The paper does not say which reading its tokens have."""

    turns: MeanStd
    gap_ms: MeanStd
    tokens: MeanStd
    slowest_tool: str
    slowest_tenth_share: float
    played_scale: float = 1.0
    """The papers play these lengths multiplied by this, and so do we."""


TABLE_2: dict[str, Published] = {
    "swebench": Published(MeanStd(10.9, 2.1), MeanStd(925, 3550), MeanStd(70126, 19732), "cd", 0.941),
    "bfcl": Published(MeanStd(6.3, 2.3), MeanStd(1923, 2133), MeanStd(93256, 68687), "fetch_url", 0.525, 0.4),
}


def trace_stats(programs: Iterable[Program]) -> TraceStats:
    """Compute the statistics of a set of programs.

    Raises:
        TraceError: the set is empty.
    """
    kept = list(programs)
    if not kept:
        raise TraceError("no programs in it (a source without token counts gives none)")
    gaps = [turn.gap_s * 1e3 for program in kept for turn in program.turns[:-1]]
    shared = _shared_tokens(kept)
    calls = [call for program in kept for turn in program.turns for call in turn.tool_calls]
    return TraceStats(
        programs=len(kept),
        turns_total=sum(len(p.turns) for p in kept),
        synthetic=any(p.synthetic for p in kept),
        sources=tuple(dict.fromkeys(p.source for p in kept)),
        turns=_mean_std([len(p.turns) for p in kept]),
        gap_ms=_mean_std(gaps),
        tokens_context=_mean_std([p.final_context_tokens for p in kept]),
        tokens_cumulative=_mean_std([p.cumulative_tokens for p in kept]),
        output_tokens=_mean_std([t.output_tokens for p in kept for t in p.turns]),
        slowest_tenth_share=slowest_tenth_share(gaps),
        longest_context_tokens=max(p.final_context_tokens for p in kept),
        sharing_a_prefix=len(shared),
        shared_prefix_tokens=_mean_std(shared).mean,
        unknown_durations=sum(call.duration_s is None for call in calls),
        tools=tool_stats([(call.name, call.duration_s * 1e3) for call in calls if call.duration_s is not None]),
    )


def _shared_tokens(programs: Sequence[Program]) -> list[int]:
    """Return the lengths of the shared prefixes of the programs that share one with another program."""
    users = Counter(program.shared_prefix_id for program in programs)
    return [p.shared_prefix_tokens for p in programs if p.shared_prefix_tokens and users[p.shared_prefix_id] > 1]


def slowest_tenth_share(values: Sequence[float]) -> float:
    """Return the sum of the largest tenth of the values as a share of the sum of all; 0 for fewer than ten values."""
    ordered = np.sort(np.asarray(values, dtype=float))
    total = float(ordered.sum())
    return float(ordered[len(ordered) - len(ordered) // 10 :].sum()) / total if total > 0 else 0.0


def _mean_std(values: Sequence[float]) -> MeanStd:
    array = np.asarray(values if len(values) else [0.0], dtype=float)
    return MeanStd(float(array.mean()), float(array.std()))


def tool_stats(calls: Sequence[tuple[str, float]]) -> tuple[ToolStats, ...]:
    """Describe the times (ms) of calls by the name of their tool; the tool with the longest time comes first."""
    total = sum(ms for _, ms in calls) or 1.0
    rows = [_tool(name, np.asarray(values), total) for name, values in grouped(calls).items()]
    return tuple(sorted(rows, key=lambda row: -row.share_of_time))


def _tool(name: str, ms: np.ndarray[tuple[int], np.dtype[np.float64]], total: float) -> ToolStats:
    p50, p90, p99 = np.percentile(ms, [50, 90, 99]).tolist()
    share, slowest = float(ms.sum()) / total, slowest_tenth_share(ms.tolist())
    return ToolStats(name, len(ms), share, float(ms.mean()), p50, p90, p99, slowest)
