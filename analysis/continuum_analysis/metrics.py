"""The table of metrics, each with its unit and formula. ``docs/metrics.md`` is written from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path

import numpy as np
from continuum_traces.grouped import grouped
from continuum_traces.run_dir import MANIFEST, read_manifest
from continuum_traces.schema import Manifest
from continuum_traces.stats import slowest_tenth_share

from continuum_analysis.records.facts import RunFacts, facts_of
from continuum_analysis.records.generator import client_records, errors_by_kind, send_lateness_s
from continuum_analysis.records.misses import reusable_tokens
from continuum_analysis.records.percentiles import percentile
from continuum_analysis.records.reading import read_run
from continuum_analysis.records.scheduler_time import read_scheduler_time
from continuum_analysis.records.timeline import FAILED, ProgramTimes, TurnTimes

Value = float | int | None
Compute = Callable[[RunFacts], Value]
Values = Callable[[RunFacts], Sequence[float | None]]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of a run: docs/metrics.md lists them."""

    name: str
    unit: str
    formula: str
    compute: Compute


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
    groups = grouped((group_of(program, by), program) for program in everyone)
    return {
        name: measure(facts_of(programs, manifest, measured.facts.scheduler_time))
        for name, programs in sorted(groups.items())
    }


def completion_times(path: Path) -> dict[str, float]:
    """Return the JCT in seconds of each finished program of a run directory, by program id."""
    return {program.program_id: program.jct_s for program in read_run(path) if program.finished}


def measure(facts: RunFacts) -> RunMetrics:
    """Compute every metric of a run."""
    values = {metric.name: metric.compute(facts) for metric in METRICS}
    endings = Counter(pin.reason for pin in facts.pins)
    return RunMetrics(values, dict(sorted(endings.items())), errors_by_kind(facts), facts)


# ------------------------------------------------------------------------------------------- the table of metrics

_metrics: list[Metric] = []


def _metric(unit: str = "") -> Callable[[Compute], Compute]:
    """Add the decorated function to ``METRICS``. Its name is the metric's name, and its docstring the formula."""

    def add(compute: Compute) -> Compute:
        _metrics.append(Metric(compute.__name__, unit, " ".join((compute.__doc__ or "").split()), compute))
        return compute

    return add


WORDS = {
    "mean": "mean",
    "p50": "median",
    "p90": "90th percentile",
    "p95": "95th percentile",
    "p99": "99th percentile",
    "min": "smallest",
    "max": "largest",
}
"""The statistics that metrics of distributions have, in words."""


def _distribution(*statistics: str) -> Callable[[Values], Values]:
    """Add metrics of the values that the decorated function returns: those of ``jct_s`` are ``jct_mean_s``,
    ``jct_p95_s`` and so on. Its docstring says what the values are, in the formula of the first."""

    def add(values: Values) -> Values:
        name = values.__name__.removesuffix("_s")
        unit = "s" if name != values.__name__ else ""
        for statistic in statistics:
            what = " ".join((values.__doc__ or "").split()) if statistic == statistics[0] else "of the same"
            full_name = "_".join(filter(None, (name, statistic, unit)))
            compute = partial(_statistic_in, statistic, values)
            _metrics.append(Metric(full_name, unit, f"{WORDS[statistic]} {what}", compute))
        return values

    return add


def _statistic_in(statistic: str, values: Values, facts: RunFacts) -> Value:
    return statistic_of(statistic, values(facts))


def statistic_of(statistic: str, values: Iterable[float | None]) -> float | None:
    """Return one of ``WORDS`` of the values that are known; None without such values.

    Infinite values are those of what did not end: only percentiles count them. A percentile that is infinite is None.
    """
    known = np.sort([value for value in values if value is not None])
    if statistic.startswith("p"):
        found = percentile(known, float(statistic[1:])) if len(known) else inf
        return found if found < inf else None
    known = known[known < inf]
    return float(getattr(known, statistic)()) if len(known) else None


def _ratio(part: float, whole: float) -> Value:
    return part / whole if whole else None


def _rate(amount: Value, facts: RunFacts, seconds: float = 1.0) -> Value:
    """Return an amount per ``seconds`` of wall time."""
    return None if amount is None or facts.wall_s <= 0 else seconds * amount / facts.wall_s


def _per_gpu(rate: Value, facts: RunFacts) -> Value:
    """Return the rate per GPU; None if no manifest gives the number of GPUs."""
    return None if rate is None or facts.gpus is None else rate / facts.gpus


PERCENTILES = ("p50", "p90", "p95", "p99")


# ------------------------------------------------------------------------------------------------- the metrics


@_distribution("mean", *PERCENTILES, "min", "max")
def jct_s(f: RunFacts) -> list[float]:
    """over finished programs of the last turn's finish - the instant its first turn was due, on the client's clock
    (without `turns.jsonl`, the scheduler's, from the first arrival). In percentiles a program that did not finish
    counts as slower than all others (null if the percentile is such a program)"""
    return [p.jct_s for p in f.programs] + [inf] * (len(f.everyone) - len(f.programs))


@_metric()
def programs(f: RunFacts) -> Value:
    """all programs: finished, failed and unfinished"""
    return len(f.everyone)


@_metric()
def programs_finished_share(f: RunFacts) -> Value:
    """finished programs / all programs"""
    return _ratio(len(f.programs), len(f.everyone))


@_metric()
def programs_finished(f: RunFacts) -> Value:
    """programs whose turns all ended, the last one with an answer"""
    return len(f.programs)


@_metric()
def programs_unfinished(f: RunFacts) -> Value:
    """programs with a turn that did not end or was still to come"""
    return len(f.unfinished)


@_metric()
def programs_failed(f: RunFacts) -> Value:
    """programs whose last turn ended in an abort or an error; in no mean"""
    return len(f.failed)


@_metric()
def turns_failed(f: RunFacts) -> Value:
    """turns of any program that ended in an abort or an error"""
    return sum(turn.status in FAILED for program in f.everyone for turn in program.turns)


@_metric("s")
def wall_s(f: RunFacts) -> Value:
    """last event - first arrival, all programs, on the same clock"""
    return f.wall_s


@_metric("1/s")
def throughput_jobs_per_s(f: RunFacts) -> Value:
    """finished programs / wall"""
    return _rate(len(f.programs), f)


def _due_s(f: RunFacts) -> list[float]:
    return [p.arrive_s if p.due_s is None else p.due_s for p in f.programs]


def _middle_rate(instants_s: Sequence[float]) -> Value:
    quarter_s, three_quarters_s = np.percentile(instants_s, (25, 75)) if instants_s else (0.0, 0.0)
    return _ratio((len(instants_s) - 1) / 2, float(three_quarters_s - quarter_s))


@_metric("1/s")
def offered_jobs_per_s(f: RunFacts) -> Value:
    """half of (finished programs - 1) / the time between the first and the third quartile of their arrivals"""
    return _middle_rate(_due_s(f))


@_metric("1/s")
def served_jobs_per_s(f: RunFacts) -> Value:
    """the same of their ends: the rate while programs arrive and leave, without the start and the end of a run"""
    return _middle_rate([p.finish_s for p in f.programs])


@_metric()
def jct_growth(f: RunFacts) -> Value:
    """seconds by which the JCT grows for each second of arrivals (least squares over finished programs): near 0 unless
    the queue grows; null with fewer than ten programs"""
    due_s = _due_s(f)
    if len(due_s) < 10 or min(due_s) == max(due_s):
        return None
    return float(np.polyfit(due_s, [p.jct_s for p in f.programs], 1)[0])


GROWING, WAITING = 0.1, 0.2


def is_overloaded(values: Mapping[str, Value]) -> bool:
    """Return whether the queue grows: by these metrics the JCT grows by more than ``GROWING`` seconds a second, and
    programs spend more than ``WAITING`` of it in the queue."""
    growth, waited_s, jct_s = (values[name] for name in ("jct_growth", "bubble_mean_s", "jct_mean_s"))
    return (growth or 0.0) > GROWING and (waited_s is None or waited_s > WAITING * (jct_s or 0.0))


@_metric("1/h")
def throughput_jobs_per_hour_per_gpu(f: RunFacts) -> Value:
    """finished programs / wall / GPUs (tensor parallel * replicas, from the manifest)"""
    return _per_gpu(_rate(len(f.programs), f, 3600.0), f)


@_metric("1/min")
def throughput_steps_per_min(f: RunFacts) -> Value:
    """turns of finished programs / wall"""
    return _rate(len(f.turns), f, 60.0)


@_metric("1/s")
def throughput_output_tokens_per_s(f: RunFacts) -> Value:
    """generated tokens / wall"""
    return _rate(sum(turn.output_tokens for turn in f.turns) or None, f)  # the preview's files have no counts


@_metric("1/s")
def throughput_output_tokens_per_s_per_gpu(f: RunFacts) -> Value:
    """the same / GPUs"""
    return _per_gpu(throughput_output_tokens_per_s(f), f)


@_metric("s")
def bubble_mean_s(f: RunFacts) -> Value:
    """mean over programs of the time their turns waited in the queue, re-queueing included"""
    return statistic_of("mean", [program.bubble_s for program in f.programs])


@_metric("s")
def bubble_per_turn_s(f: RunFacts) -> Value:
    """mean over turns of the queue wait: first scheduled - arrival, of all its tries"""
    return statistic_of("mean", [turn.wait_s for turn in f.turns])


@_distribution("p95")
def queue_wait_s(f: RunFacts) -> list[float | None]:
    """of the queue wait over turns"""
    return [turn.wait_s for turn in f.turns]


@_distribution("mean", *PERCENTILES, "max")
def admit_wait_s(f: RunFacts) -> list[float | None]:
    """over finished programs of the queue wait of their first turn, the wait to be admitted"""
    return [program.admit_wait_s for program in f.programs]


@_metric("s")
def requeue_mean_s(f: RunFacts) -> Value:
    """mean over programs of the time waited after preemptions"""
    return statistic_of("mean", [program.requeue_s for program in f.programs])


@_metric()
def prefix_hit_ratio(f: RunFacts) -> Value:
    """prompt tokens found in cache / prompt tokens, over all turns"""
    known = [(turn.hit_tokens, turn.prompt_tokens) for turn in f.turns if turn.hit_tokens is not None]
    return _ratio(sum(hit for hit, _ in known), sum(prompt for _, prompt in known))


@_metric()
def prefix_hit_ratio_ideal(f: RunFacts) -> Value:
    """the same with a cache of unlimited size: tokens that a replay recorded as sent before; in other runs the prompt
    of the turn before"""
    pairs = [pair for p in f.programs for pair in zip(p.turns, [None, *p.turns], strict=False)]
    known = [(turn, before) for turn, before in pairs if turn.hit_tokens is not None]
    ideal = sum(reusable_tokens(turn, before, f.block_tokens) for turn, before in known)
    return _ratio(ideal, sum(turn.prompt_tokens for turn, _ in known))


@_metric()
def returns_missed_share(f: RunFacts) -> Value:
    """returning turns (all but a program's first) that found less in the cache than they could have, by more than a
    block / returning turns; `analyze --misses` shows the causes"""
    return _ratio(sum(not returned.hit for returned in f.returns), len(f.returns))


@_metric()
def prefill_repeated_tokens(f: RunFacts) -> Value:
    """prompt tokens that were in the cache before and that returning turns had to compute again"""
    return sum(returned.lost_tokens for returned in f.returns) if f.returns else None


@_metric()
def returns_elsewhere_share(f: RunFacts) -> Value:
    """returning turns that went to another replica than the turn before / returning turns; null with one replica"""
    moved = [returned.turn.replica != returned.before.replica for returned in f.returns]
    return _ratio(sum(moved), len(moved)) if f.replicas > 1 else None


@_metric()
def replica_busiest(f: RunFacts) -> Value:
    """turns of the replica with the most turns / mean over all replicas (1: all are alike); null with one replica"""
    turns = Counter(turn.replica for program in f.everyone for turn in program.turns)
    return max(turns.values()) * f.replicas / turns.total() if f.replicas > 1 and turns else None


@_metric()
def pins(f: RunFacts) -> Value:
    """pins of a finished turn's KV"""
    return len(f.pins)


@_metric()
def pin_hit_ratio(f: RunFacts) -> Value:
    """pins that ended because the program's next turn was scheduled (in the preview's files: arrived during the pin) /
    pins"""
    return _ratio(sum(pin.reason == "hit" for pin in f.pins), len(f.pins))


@_metric("s")
def pin_duration_mean_s(f: RunFacts) -> Value:
    """mean time from pin to unpin"""
    return statistic_of("mean", [pin.until_s - pin.since_s for pin in f.pins if pin.until_s is not None])


@_metric()
def preemptions(f: RunFacts) -> Value:
    """preemptions of running turns by vLLM"""
    return sum(turn.preemptions for turn in f.turns)


def _reloaded(f: RunFacts) -> list[TurnTimes]:
    return [turn for turn in f.turns if turn.reload_bytes]


@_metric()
def reloads(f: RunFacts) -> Value:
    """turns for which KV was loaded from a lower tier"""
    return len(_reloaded(f))


@_metric("bytes")
def reload_bytes(f: RunFacts) -> Value:
    """bytes of KV that these turns loaded; null without reloads"""
    return sum(turn.reload_bytes for turn in _reloaded(f)) or None


@_metric("s")
def reload_mean_s(f: RunFacts) -> Value:
    """mean time from the request for that KV to the turn's first start; it is part of the turn's queue wait"""
    spans = [(turn.reload_since_s, turn.start_s) for turn in _reloaded(f)]
    # loads after the start are no such wait
    return statistic_of("mean", [end_s - since_s for since_s, end_s in spans if since_s and end_s and end_s > since_s])


@_distribution("mean", *PERCENTILES)
def ttft_s(f: RunFacts) -> list[float | None]:
    """over turns of first token - the instant at which the turn was due, on the client's clock"""
    return [turn.ttft_s for turn in f.turns]


@_distribution("mean", "p95", "max")
def ttft_worst_s(f: RunFacts) -> list[float | None]:
    """over finished programs of the longest TTFT of a program's turns"""
    return [program.worst_ttft_s for program in f.programs]


@_distribution("mean", "p95", "max")
def slowdown(f: RunFacts) -> list[float | None]:
    """over finished programs of JCT / JCT alone on an empty engine. Virtual runs record it (`alone_s` of `turns.jsonl`,
    plus the gaps); others need a run of the same programs one at a time (`analyze --alone DIR`), else null. It
    is below 1 if a program finds KV in the cache that another program left there"""
    return [program.slowdown for program in f.programs]


@_distribution("mean", *PERCENTILES)
def turn_s(f: RunFacts) -> list[float | None]:
    """over turns of finish - the instant at which the turn was due, on the client's clock"""
    return [turn.took_s for turn in f.turns]


@_distribution("mean", "p50", "p95")
def turn_slowdown(f: RunFacts) -> list[float | None]:
    """over turns of that time / the time that the turn takes alone on an empty engine; null unless the run is
    virtual"""
    return [turn.slowdown for turn in f.turns]


@_distribution("mean", *PERCENTILES)
def tpot_s(f: RunFacts) -> list[float | None]:
    """over turns of (finish - first token) / (output tokens - 1), on the client's clock"""
    return [turn.tpot_s for turn in f.turns]


@_metric("s")
def itl_mean_s(f: RunFacts) -> Value:
    """mean over the gaps between consecutive output tokens of all turns. Percentiles need `--token-times`
    (gaps between chunks). Without it the mean is the sum of (finish - first token) / that of (output tokens - 1)"""
    if f.token_gaps is not None:
        return f.token_gaps.mean_s
    known = [(turn.tpot_s, turn.gaps_between_tokens) for turn in f.turns if turn.tpot_s is not None]
    return _ratio(sum(tpot_s * gaps for tpot_s, gaps in known), sum(gaps for _, gaps in known))


def _gap_percentile_s(statistic: str, f: RunFacts) -> Value:
    return f.token_gaps.percentile_s(float(statistic[1:])) if f.token_gaps is not None else None


for _which in PERCENTILES:
    _metrics.append(Metric(f"itl_{_which}_s", "s", f"{WORDS[_which]} of the same", partial(_gap_percentile_s, _which)))


@_metric()
def tries_failed(f: RunFacts) -> Value:
    """requests that failed, also where a retry succeeded"""
    records = client_records(f)
    return sum(len(record.failed_tries) for record in records) if records else None


@_metric("s")
def send_lateness_p99_s(f: RunFacts) -> Value:
    """99th percentile over turns of (sent - due): the load generator's own lateness, which all times include; null in
    virtual time"""
    return send_lateness_s(f, 99)


@_metric("s")
def scheduler_time_per_call_s(f: RunFacts) -> Value:
    """processor time in vLLM's `schedule` and `update_from_output`, policy included / calls. Measured on the machine
    that ran the virtual engine, not modelled: equal runs differ, and no other metric includes it. One call may stand
    for many engine steps (`benchmarks/policy_cost.py` measures single ones). Null on servers"""
    return _ratio(f.scheduler_time.total_s, f.scheduler_time.calls) if f.scheduler_time else None


@_metric("s")
def scheduler_time_longest_s(f: RunFacts) -> Value:
    """the longest such call"""
    return f.scheduler_time.longest_s if f.scheduler_time else None


@_metric()
def tool_time_slowest_tenth_share(f: RunFacts) -> Value:
    """share of the total time between turns that the slowest tenth of the gaps takes; null for fewer than ten gaps"""
    return slowest_tenth_share(f.gaps) if len(f.gaps) >= 10 else None


METRICS: tuple[Metric, ...] = tuple(_metrics)
