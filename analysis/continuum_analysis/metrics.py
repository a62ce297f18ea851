"""The table of metrics, each with its unit and formula. ``docs/metrics.md`` is written from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np
from continuum_traces.run_dir import MANIFEST, read_manifest
from continuum_traces.schema import Manifest
from continuum_traces.stats import slowest_tenth_share

from continuum_analysis.records.facts import RunFacts, facts_of
from continuum_analysis.records.generator import client_records, errors_by_kind, send_lateness_s
from continuum_analysis.records.misses import reusable_tokens
from continuum_analysis.records.percentiles import percentile
from continuum_analysis.records.reading import read_run
from continuum_analysis.records.scheduler_time import RecordedSchedulerTime, read_scheduler_time
from continuum_analysis.records.timeline import FAILED, ProgramTimes, TurnTimes

Value = float | int | None


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    unit: str
    formula: str
    compute: Callable[[RunFacts], Value]


def is_share(metric: str) -> bool:
    """Return whether a metric of this name lies between 0 and 1."""
    return metric.endswith(("_share", "hit_ratio", "hit_ratio_ideal"))


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """The metrics of one run and the records behind them."""

    values: dict[str, Value]
    pins_by_ending: dict[str, int]
    errors_by_kind: dict[str, int]
    facts: RunFacts


def analyze_run(path: Path, alone_s: Mapping[str, float] | None = None) -> RunMetrics:
    """Compute all metrics of a run directory (or of a directory or file in the preview's format).

    Args:
        alone_s: the JCT in seconds of each program when it runs alone, by program id (see ``completion_times``).
    """
    manifest = read_manifest(path) if (path / MANIFEST).exists() else None
    programs = read_run(path)
    for program in programs:
        program.reference_s = (alone_s or {}).get(program.program_id)
    return measure(facts_of(programs, manifest, read_scheduler_time(path)))


SIZES = {1_000: "below 1K", 8_000: "1K to 8K", 64_000: "8K to 64K"}
"""Upper limits of a first prompt's size in tokens, and the names of the groups."""
FIRST_PROMPT = "first-prompt"


def group_of(program: ProgramTimes, by: str) -> str:
    """Return the program's group: the size of its first prompt, or the value of its metadata named ``by``."""
    if by != FIRST_PROMPT:
        return str(program.metadata.get(by, "other"))
    tokens = program.turns[0].prompt_tokens if program.turns else 0
    return next((name for limit, name in SIZES.items() if tokens < limit), "64K and more")


def by_group(measured: RunMetrics, by: str, manifest: Manifest) -> dict[str, RunMetrics]:
    """Return the metrics of each group of a run's programs (see ``group_of``), by name."""
    everyone = (*measured.facts.everyone, *measured.facts.uncounted)
    groups: dict[str, list[ProgramTimes]] = {}
    for program in everyone:
        groups.setdefault(group_of(program, by), []).append(program)
    return {
        name: measure(facts_of(programs, manifest, measured.facts.scheduler_time))
        for name, programs in sorted(groups.items())
    }


def completion_times(path: Path) -> dict[str, float]:
    """Return the JCT in seconds of each finished program of a run directory, by program id."""
    return {program.program_id: program.jct_s for program in read_run(path) if program.finished}


def measure(facts: RunFacts) -> RunMetrics:
    values = {metric.name: metric.compute(facts) for metric in METRICS}
    endings = Counter(pin.reason for pin in facts.pins)
    return RunMetrics(values, dict(sorted(endings.items())), errors_by_kind(facts), facts)


Compute = Callable[[RunFacts], Value]
Values = Callable[[RunFacts], Iterable[float | None]]


def _over(statistic: Callable[[np.ndarray], float], values: Values) -> Compute:
    """Return a metric's function: the statistic of all values that are not None, or None without such values."""

    def compute(facts: RunFacts) -> Value:
        known = np.sort([value for value in values(facts) if value is not None])
        found = float(statistic(known)) if len(known) else inf
        return found if found < inf else None

    return compute


def _mean(values: Values) -> Compute:
    return _over(np.mean, values)


def _of_programs(name: str) -> Values:
    return lambda facts: [getattr(program, name) for program in facts.programs]


def _of_turns(name: str) -> Values:
    return lambda facts: [getattr(turn, name) for turn in facts.turns]


_jcts, _worst_ttfts, _slowdowns = map(_of_programs, ("jct_s", "worst_ttft_s", "slowdown"))
_admit_waits = _of_programs("admit_wait_s")
_waits, _ttfts, _tpots = map(_of_turns, ("wait_s", "ttft_s", "tpot_s"))


def _all_jcts(facts: RunFacts) -> list[float]:
    """Return the JCTs of all programs, in which unfinished programs are slower than all others."""
    return [program.jct_s for program in facts.programs] + [inf] * (len(facts.everyone) - len(facts.programs))


def _percentile(q: float, values: Values) -> Compute:
    return _over(lambda known: percentile(known, q), values)


def _percentiles(name: str, values: Values | None, median: str = "median of the same") -> Iterator[Metric]:
    """Yield the metrics ``NAME_p50_s`` to ``NAME_p99_s``. Without ``values`` they are of the gaps between tokens."""
    for q in (50, 90, 95, 99):
        compute = _gap_percentile(q) if values is None else _percentile(q, values)
        yield Metric(f"{name}_p{q}_s", "s", median if q == 50 else f"{q}th percentile of the same", compute)


def _gap_percentile(q: float) -> Compute:
    return lambda facts: None if facts.token_gaps is None else facts.token_gaps.percentile_s(q)


def _ratio(part: float, whole: float) -> Value:
    return part / whole if whole else None


def _prefix_tokens(facts: RunFacts) -> tuple[int, int]:
    """Return the prompt tokens found in the cache, and all prompt tokens, of the turns whose hits were recorded."""
    known = [(t.hit_tokens, t.prompt_tokens) for t in facts.turns if t.hit_tokens is not None]
    return sum(hit for hit, _ in known), sum(prompt for _, prompt in known)


def _ideal_ratio(facts: RunFacts) -> Value:
    """Return the ratio for the same turns if the cache were of unlimited size."""
    pairs = [pair for p in facts.programs for pair in zip(p.turns, [None, *p.turns], strict=False)]
    known = [(turn, before) for turn, before in pairs if turn.hit_tokens is not None]
    ideal = sum(reusable_tokens(turn, before, facts.block_tokens) for turn, before in known)
    return _ratio(ideal, sum(turn.prompt_tokens for turn, _ in known))


def _missed(facts: RunFacts) -> Value:
    return _ratio(sum(not returned.hit for returned in facts.returns), len(facts.returns))


def _elsewhere(facts: RunFacts) -> Value:
    """Return the share of returning turns that another replica served; None with one replica."""
    moved = [returned.turn.replica != returned.before.replica for returned in facts.returns]
    return _ratio(sum(moved), len(moved)) if facts.replicas > 1 else None


def _busiest(facts: RunFacts) -> Value:
    """Return the turns of the busiest replica / the mean over replicas; None with one replica."""
    turns = Counter(turn.replica for program in facts.everyone for turn in program.turns)
    return max(turns.values()) * facts.replicas / turns.total() if facts.replicas > 1 and turns else None


def _scheduler(value: Callable[[RecordedSchedulerTime], Value]) -> Compute:
    return lambda facts: None if facts.scheduler_time is None else value(facts.scheduler_time)


def _per_gpu(rate: Compute) -> Compute:
    """Return a metric's function: the rate per GPU, or None if no manifest gives the number of GPUs."""

    def compute(facts: RunFacts) -> Value:
        value = rate(facts)
        return None if value is None or facts.gpus is None else value / facts.gpus

    return compute


def _reloads(facts: RunFacts) -> list[TurnTimes]:
    return [t for t in facts.turns if t.reload_bytes]


def _reload_times(facts: RunFacts) -> list[float | None]:
    """Return seconds from the first load to the start of each turn; loads after the start are not part of that wait."""
    spans = [(turn.reload_since_s, turn.start_s) for turn in _reloads(facts)]
    return [end_s - since_s for since_s, end_s in spans if since_s and end_s and end_s > since_s]


def _reused(facts: RunFacts) -> Value:
    return _prefix_tokens(facts)[0] if any(t.hit_tokens is not None for t in facts.turns) else None


def _output(facts: RunFacts) -> Value:
    """Return the number of output tokens; None if no turn has one (the preview's files)."""
    return sum(t.output_tokens for t in facts.turns) or None


def _rate(amount: Compute, seconds: float = 1.0) -> Compute:
    """Return a metric's function: an amount per ``seconds`` of wall time."""

    def compute(facts: RunFacts) -> Value:
        value = amount(facts)
        return None if value is None or facts.wall_s <= 0 else seconds * value / facts.wall_s

    return compute


def _token_gap_mean_s(facts: RunFacts) -> Value:
    """Return the mean gap between tokens. Without recorded gaps, it is computed from each turn's first and last token,
    and a turn counts as often as it has gaps."""
    if facts.token_gaps is not None:
        return facts.token_gaps.mean_s
    known = [(t.tpot_s, t.gaps_between_tokens) for t in facts.turns if t.tpot_s is not None]
    return _ratio(sum(tpot_s * gaps for tpot_s, gaps in known), sum(gaps for _, gaps in known))


def _tries_failed(facts: RunFacts) -> Value:
    records = client_records(facts)
    return sum(len(record.failed_tries) for record in records) if records else None


METRICS: tuple[Metric, ...] = (
    Metric(
        "jct_mean_s",
        "s",
        "mean over finished programs of last turn's finish - the instant its first turn was due, on the client's "
        "clock; without `turns.jsonl`, on the scheduler's clock from the first arrival",
        _mean(_jcts),
    ),
    *_percentiles(
        "jct",
        _all_jcts,
        "median over all programs; a program that did not finish counts as slower than all that did (null if the "
        "median is such a program)",
    ),
    Metric("jct_min_s", "s", "fastest finished program", _over(np.min, _jcts)),
    Metric("jct_max_s", "s", "slowest finished program", _over(np.max, _jcts)),
    Metric("programs", "", "all programs: finished, failed and unfinished", lambda f: len(f.everyone)),
    Metric(
        "programs_finished_share",
        "",
        "finished programs / all programs",
        lambda f: _ratio(len(f.programs), len(f.everyone)),
    ),
    Metric(
        "programs_finished",
        "",
        "programs whose turns all ended, the last one with an answer",
        lambda f: len(f.programs),
    ),
    Metric(
        "programs_unfinished",
        "",
        "programs with a turn that did not end or was still to come; counted in shares and percentiles, in no mean",
        lambda f: len(f.unfinished),
    ),
    Metric(
        "programs_failed",
        "",
        "programs whose last turn ended in an abort or an error; counted in shares and percentiles, in no mean",
        lambda f: len(f.failed),
    ),
    Metric(
        "turns_failed",
        "",
        "turns of any program that ended in an abort or an error",
        lambda f: sum(t.status in FAILED for p in f.everyone for t in p.turns),
    ),
    Metric("wall_s", "s", "last event - first arrival, all programs, on the same clock", lambda f: f.wall_s),
    Metric("throughput_jobs_per_s", "1/s", "finished programs / wall", _rate(lambda f: len(f.programs))),
    Metric(
        "throughput_jobs_per_hour_per_gpu",
        "1/h",
        "finished programs / wall / GPUs (tensor parallel * replicas, from the manifest)",
        _per_gpu(_rate(lambda f: len(f.programs), 3600.0)),
    ),
    Metric(
        "throughput_steps_per_min",
        "1/min",
        "turns of finished programs / wall",
        _rate(lambda f: len(f.turns), 60.0),
    ),
    Metric("throughput_output_tokens_per_s", "1/s", "generated tokens / wall", _rate(_output)),
    Metric("throughput_output_tokens_per_s_per_gpu", "1/s", "the same / GPUs", _per_gpu(_rate(_output))),
    Metric(
        "bubble_mean_s",
        "s",
        "mean over programs of the time their turns waited in the queue, re-queueing included",
        _mean(_of_programs("bubble_s")),
    ),
    Metric(
        "bubble_per_turn_s",
        "s",
        "mean over turns of the queue wait: first scheduled - arrival, of all its tries",
        _mean(_waits),
    ),
    Metric("queue_wait_p95_s", "s", "95th percentile of the queue wait over turns", _percentile(95, _waits)),
    Metric(
        "admit_wait_mean_s",
        "s",
        "mean over finished programs of the queue wait of their first turn, the wait to be admitted",
        _mean(_admit_waits),
    ),
    *_percentiles("admit_wait", _admit_waits),
    Metric("admit_wait_max_s", "s", "the longest of the same", _over(np.max, _admit_waits)),
    Metric(
        "requeue_mean_s",
        "s",
        "mean over programs of the time waited after preemptions",
        _mean(_of_programs("requeue_s")),
    ),
    Metric(
        "prefix_hit_ratio",
        "",
        "prompt tokens found in cache / prompt tokens, over all turns",
        lambda f: _ratio(*_prefix_tokens(f)),
    ),
    Metric(
        "prefix_hit_ratio_ideal",
        "",
        "the same with a cache of unlimited size, in whole blocks: tokens that a replay recorded as sent before; "
        "in other runs the prompt of the turn before, without the reply; never less than the actual hits",
        _ideal_ratio,
    ),
    Metric(
        "returns_missed_share",
        "",
        "returning turns (all turns of a program but its first) that found less in the cache than they could have, by "
        "more than a block / returning turns; `analyze --misses` shows the causes",
        _missed,
    ),
    Metric(
        "prefill_repeated_tokens",
        "",
        "prompt tokens that were in the cache before and that returning turns had to compute again",
        lambda f: sum(r.lost_tokens for r in f.returns) if f.returns else None,
    ),
    Metric(
        "returns_elsewhere_share",
        "",
        "returning turns that went to another replica than the turn before / returning turns; null with one replica",
        _elsewhere,
    ),
    Metric(
        "replica_busiest",
        "",
        "turns of the replica with the most turns / mean over all replicas (1: all are alike); null with one replica",
        _busiest,
    ),
    Metric("pins", "", "pins of a finished turn's KV", lambda f: len(f.pins)),
    Metric(
        "pin_hit_ratio",
        "",
        "pins that ended because the program's next turn was scheduled / pins; in the preview's files, which give no "
        "reasons, pins during which the next turn arrived / pins",
        lambda f: _ratio(sum(p.reason == "hit" for p in f.pins), len(f.pins)),
    ),
    Metric(
        "pin_duration_mean_s",
        "s",
        "mean time from pin to unpin",
        _mean(lambda f: [None if p.until_s is None else p.until_s - p.since_s for p in f.pins]),
    ),
    Metric("preemptions", "", "preemptions of running turns by vLLM", lambda f: sum(t.preemptions for t in f.turns)),
    Metric("reloads", "", "turns for which KV was loaded from a lower tier", lambda f: len(_reloads(f))),
    Metric(
        "reload_bytes",
        "bytes",
        "bytes of KV that these turns loaded; null without reloads",
        lambda f: sum(t.reload_bytes for t in _reloads(f)) or None,
    ),
    Metric(
        "reload_mean_s",
        "s",
        "mean time from the request for that KV to the turn's first start; it is part of the turn's queue wait",
        _mean(_reload_times),
    ),
    Metric(
        "ttft_mean_s",
        "s",
        "mean over turns of first token - the instant at which the turn was due, on the client's clock",
        _mean(_ttfts),
    ),
    *_percentiles("ttft", _ttfts),
    Metric(
        "ttft_worst_mean_s",
        "s",
        "mean over finished programs of the longest TTFT of a program's turns",
        _mean(_worst_ttfts),
    ),
    Metric("ttft_worst_p95_s", "s", "95th percentile of the same over programs", _percentile(95, _worst_ttfts)),
    Metric("ttft_worst_max_s", "s", "the longest TTFT of all", _over(np.max, _worst_ttfts)),
    Metric(
        "slowdown_mean",
        "",
        "mean over finished programs of JCT / JCT alone on an empty engine. Virtual runs record how long each turn "
        "takes alone (`alone_s` of `turns.jsonl`), to which the gaps between turns are added; other runs need a run of "
        "the same programs one at a time (`analyze --alone DIR`), and without such a run the metric is null. The value "
        "is below 1 if a program finds a prefix in the cache that other programs left there",
        _mean(_slowdowns),
    ),
    Metric("slowdown_p95", "", "95th percentile of the same over programs", _percentile(95, _slowdowns)),
    Metric("slowdown_max", "", "the largest of the same", _over(np.max, _slowdowns)),
    Metric(
        "tpot_mean_s",
        "s",
        "mean over turns of (finish - first token) / (output tokens - 1), on the client's clock",
        _mean(_tpots),
    ),
    *_percentiles("tpot", _tpots),
    Metric(
        "itl_mean_s",
        "s",
        "mean over the gaps between consecutive output tokens of all turns. Runs of `--token-times` record each gap "
        "(between chunks: a chunk of several tokens counts as one); in other runs the turns' sum of (finish - first "
        "token) / their sum of (output tokens - 1)",
        _token_gap_mean_s,
    ),
    *_percentiles(
        "itl",
        None,
        "median of the same gaps; null without `--token-times`, because other records have a turn's first and last "
        "token only",
    ),
    Metric("tries_failed", "", "requests that failed, also where a retry succeeded", _tries_failed),
    Metric(
        "send_lateness_p99_s",
        "s",
        "99th percentile over turns of (sent - due): the load generator's own lateness, which all times include; null "
        "in virtual time",
        lambda f: send_lateness_s(f, 99),
    ),
    Metric(
        "scheduler_time_per_call_s",
        "s",
        "processor time in vLLM's `schedule` and `update_from_output`, policy included / calls. The virtual engine "
        "combines many engine steps into one call where nothing new can happen, so that calls of different policies "
        "are not alike (`benchmarks/policy_cost.py` measures single steps). The time is measured on the machine that "
        "ran the virtual engine, not modelled; no other metric includes it, and equal runs differ. Null on servers",
        _scheduler(lambda took: _ratio(took.total_s, took.calls)),
    ),
    Metric(
        "scheduler_time_longest_s",
        "s",
        "the longest such call",
        _scheduler(lambda took: took.longest_s),
    ),
    Metric(
        "tool_time_slowest_tenth_share",
        "",
        "share of the total time between turns that the slowest tenth of the gaps takes; null for fewer than ten gaps",
        lambda f: slowest_tenth_share(f.gaps) if len(f.gaps) >= 10 else None,
    ),
)
