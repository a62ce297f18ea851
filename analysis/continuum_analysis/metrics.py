"""What is measured: one table of metrics, each with its unit and formula. ``docs/metrics.md`` is written from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from continuum_analysis.timeline import PinTimes, ProgramTimes, TurnTimes, read_run

Value = float | int | None


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run's records, sorted out once for all metrics."""

    programs: tuple[ProgramTimes, ...]
    """Finished ones, in order of arrival."""
    unfinished: tuple[str, ...]
    turns: tuple[TurnTimes, ...]
    pins: tuple[PinTimes, ...]
    gaps: tuple[float, ...]
    """Seconds between a turn's finish and the next one's arrival."""

    @property
    def wall_s(self) -> float:
        if not self.programs:
            return 0.0
        return max(p.finish_s for p in self.programs) - min(p.arrive_s for p in self.programs)


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    unit: str
    formula: str
    compute: Callable[[RunFacts], Value]


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """The metrics of one run, and what else a report shows of it."""

    values: dict[str, Value]
    pins_by_ending: dict[str, int]
    unfinished: tuple[str, ...]
    facts: RunFacts


def facts_of(programs: Sequence[ProgramTimes]) -> RunFacts:
    done = tuple(p for p in programs if p.finished)
    return RunFacts(
        programs=done,
        unfinished=tuple(p.program_id for p in programs if not p.finished),
        turns=tuple(turn for p in done for turn in p.turns),
        pins=tuple(pin for p in programs for pin in p.pins),
        gaps=tuple(
            after.arrive_s - before.finish_s
            for p in done
            for before, after in zip(p.turns, p.turns[1:], strict=False)
            if before.finish_s is not None
        ),
    )


def analyze_run(path: Path) -> RunMetrics:
    """All metrics of a run directory (or of a directory or file in the preview's format)."""
    return measure(facts_of(read_run(path)))


def measure(facts: RunFacts) -> RunMetrics:
    values = {metric.name: metric.compute(facts) for metric in METRICS}
    endings = Counter(pin.reason for pin in facts.pins)
    return RunMetrics(values, dict(sorted(endings.items())), facts.unfinished, facts)


def _jct(statistic: Callable[[Any], Any]) -> Callable[[RunFacts], Value]:
    return lambda facts: _number(statistic, [p.jct_s for p in facts.programs])


def _percentile(q: float) -> Callable[[Any], Any]:
    return lambda values: np.percentile(values, q)


def _number(statistic: Callable[[Any], Any], values: Sequence[float]) -> Value:
    return float(statistic(values)) if len(values) else None


def _per(amount: float, seconds: float) -> Value:
    return amount / seconds if seconds > 0 else None


def _ratio(part: float, whole: float) -> Value:
    return part / whole if whole else None


def _ttft(facts: RunFacts) -> list[float]:
    return [t.first_token_s - t.arrive_s for t in facts.turns if t.first_token_s is not None]


def _tpot(facts: RunFacts) -> list[float]:
    return [
        (t.finish_s - t.first_token_s) / (t.output_tokens - 1)
        for t in facts.turns
        if t.first_token_s is not None and t.finish_s is not None and t.output_tokens > 1
    ]


def _slowest_share(gaps: Sequence[float]) -> Value:
    ordered = sorted(gaps)
    return _ratio(sum(ordered[len(ordered) - len(ordered) // 10 :]), sum(ordered))


def _fresh(facts: RunFacts) -> int:
    return sum(t.prompt_tokens - t.hit_tokens + t.output_tokens for t in facts.turns)


METRICS: tuple[Metric, ...] = (
    Metric(
        "jct_mean_s",
        "s",
        "mean over finished programs of last turn's finish - first turn's arrival",
        _jct(np.mean),
    ),
    Metric("jct_p50_s", "s", "median of the same", _jct(np.median)),
    Metric("jct_p90_s", "s", "90th percentile, linear interpolation", _jct(_percentile(90))),
    Metric("jct_p95_s", "s", "95th percentile", _jct(_percentile(95))),
    Metric("jct_p99_s", "s", "99th percentile", _jct(_percentile(99))),
    Metric("jct_min_s", "s", "fastest program", _jct(np.min)),
    Metric("jct_max_s", "s", "slowest program", _jct(np.max)),
    Metric("programs_finished", "", "programs whose every turn finished", lambda f: len(f.programs)),
    Metric(
        "programs_unfinished",
        "",
        "programs with a turn that did not; in no other metric",
        lambda f: len(f.unfinished),
    ),
    Metric("wall_s", "s", "last finish - first arrival", lambda f: f.wall_s),
    Metric("throughput_jobs_per_s", "1/s", "finished programs / wall", lambda f: _per(len(f.programs), f.wall_s)),
    Metric(
        "throughput_steps_per_min",
        "1/min",
        "finished turns / wall",
        lambda f: _per(60 * len(f.turns), f.wall_s),
    ),
    Metric(
        "throughput_output_tokens_per_s",
        "1/s",
        "generated tokens / wall",
        lambda f: _per(sum(t.output_tokens for t in f.turns), f.wall_s),
    ),
    Metric(
        "throughput_fresh_tokens_per_s",
        "1/s",
        "(generated + prompt tokens not found in cache) / wall",
        lambda f: _per(_fresh(f), f.wall_s),
    ),
    Metric(
        "bubble_mean_s",
        "s",
        "mean over programs of the time their turns waited in the queue, re-queueing included",
        lambda f: _number(np.mean, [p.bubble_s for p in f.programs]),
    ),
    Metric(
        "bubble_per_turn_s",
        "s",
        "mean over turns of first scheduled - arrival",
        lambda f: _number(np.mean, [t.wait_s for t in f.turns]),
    ),
    Metric(
        "requeue_mean_s",
        "s",
        "mean over programs of the time waited after preemptions",
        lambda f: _number(np.mean, [sum(t.requeue_s for t in p.turns) for p in f.programs]),
    ),
    Metric(
        "prefix_hit_ratio",
        "",
        "prompt tokens found in cache / prompt tokens, over all turns",
        lambda f: _ratio(sum(t.hit_tokens for t in f.turns), sum(t.prompt_tokens for t in f.turns)),
    ),
    Metric(
        "prefill_saved_tokens",
        "",
        "prompt tokens found in cache",
        lambda f: sum(t.hit_tokens for t in f.turns),
    ),
    Metric("pins", "", "holds of a finished turn's KV", lambda f: len(f.pins)),
    Metric(
        "pin_hit_ratio",
        "",
        "pins that ended with the program's next turn being scheduled / pins",
        lambda f: _ratio(sum(p.reason == "hit" for p in f.pins), len(f.pins)),
    ),
    Metric(
        "pin_duration_mean_s",
        "s",
        "mean time from pin to unpin",
        lambda f: _number(np.mean, [p.until_s - p.since_s for p in f.pins if p.until_s is not None]),
    ),
    Metric("preemptions", "", "times a running turn lost its KV", lambda f: sum(t.preemptions for t in f.turns)),
    Metric(
        "ttft_mean_s",
        "s",
        "mean of first token - arrival, where recorded",
        lambda f: _number(np.mean, _ttft(f)),
    ),
    Metric("ttft_p95_s", "s", "95th percentile of the same", lambda f: _number(_percentile(95), _ttft(f))),
    Metric(
        "tpot_mean_s",
        "s",
        "mean of (finish - first token) / (output tokens - 1), where recorded",
        lambda f: _number(np.mean, _tpot(f)),
    ),
    Metric(
        "tool_time_slowest_tenth_share",
        "",
        "share of all time between turns that the slowest tenth of the gaps holds",
        lambda f: _slowest_share(f.gaps),
    ),
)
