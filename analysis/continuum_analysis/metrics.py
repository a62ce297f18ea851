"""The table of metrics, each with its unit and formula. ``docs/metrics.md`` is written from it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Literal

import numpy as np
from continuum_traces.grouped import grouped
from continuum_traces.programs.stats import slowest_tenth_share
from continuum_traces.records.run_dir import MANIFEST, read_manifest
from continuum_traces.schema import Manifest

from continuum_analysis.records.backlog import growth_of_backlog
from continuum_analysis.records.facts import RunFacts, facts_of
from continuum_analysis.records.generator import errors_by_kind, send_lateness_s
from continuum_analysis.records.percentiles import TokenGaps, percentile
from continuum_analysis.records.reading import read_run
from continuum_analysis.records.scheduler_time import read_scheduler_time
from continuum_analysis.records.timeline import FAILED, ProgramTimes

Value = float | int | None
Compute = Callable[[RunFacts], Value]
Values = Callable[[RunFacts], "Sequence[float | None] | TokenGaps"]


Better = Literal["lower", "higher", "neither"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of a run, declared once: tables, reports and docs/metrics.md read it here."""

    name: str
    unit: str
    """``share``: between 0 and 1, and tables write it in percent; empty: a number."""
    digits: int
    """Digits after the decimal point in tables; of a share, of its percentage."""
    better: Better
    formula: str
    compute: Compute

    def text(self, value: float) -> str:
        """Write a value as tables show it."""
        return f"{value:.{self.digits}{'%' if self.unit == 'share' else 'f'}}"


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
KEY = "key"
KEYED = re.compile("([0-9a-f]{16}):")
"""How ids begin in the record of a server with several API keys."""


def group_of(program: ProgramTimes, by: str) -> str:
    """Return the program's group: the size of its first prompt, the digest of its API key, or the value of its
    metadata named ``by``."""
    if by == KEY and by not in program.metadata:
        named = KEYED.match(program.program_id)
        return named[1] if named else "other"
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


def _metric(unit: str, digits: int, better: Better) -> Callable[[Compute], Compute]:
    """Declare the decorated function as a metric. Its name is the metric's, and its docstring the formula."""

    def declare(compute: Compute) -> Compute:
        _metrics.append(Metric(compute.__name__, unit, digits, better, _formula(compute), compute))
        return compute

    return declare


def _formula(function: Callable[..., object]) -> str:
    return " ".join((function.__doc__ or "").split())


WORDS = {
    "mean": "mean",
    "p25": "25th percentile",
    "p50": "median",
    "p90": "90th percentile",
    "p95": "95th percentile",
    "p99": "99th percentile",
    "min": "smallest",
    "max": "largest",
}
"""The statistics that metrics of distributions have, in words."""
PERCENTILES = ("p50", "p90", "p95", "p99")
SAME = "of the same"
"""End of the formula of each statistic of a distribution but the first."""


def _distribution(unit: str, digits: int, *statistics: str, better: Better = "lower") -> Callable[[Values], Values]:
    """Declare metrics of the values that the decorated function returns: those of ``jct`` are ``jct_mean_s``,
    ``jct_p95_s`` and so on. Its docstring says what the values are."""

    def declare(values: Values) -> Values:
        for statistic in statistics:
            name = "_".join(filter(None, (values.__name__, statistic, unit if unit == "s" else "")))
            words = f"{WORDS[statistic]} {_formula(values) if statistic == statistics[0] else SAME}"
            _metrics.append(Metric(name, unit, digits, better, words, partial(_statistic_in, statistic, values)))
        return values

    return declare


def _statistic_in(statistic: str, values: Values, facts: RunFacts) -> Value:
    measured = values(facts)
    return measured.statistic(statistic) if isinstance(measured, TokenGaps) else statistic_of(statistic, measured)


def statistic_of(statistic: str, values: Iterable[float | None]) -> float | None:
    """Return one of ``WORDS`` of the values that are known; None without such values.

    Infinite values are those of what did not end: only percentiles count them. A percentile that is infinite is None.
    """
    ordered = np.sort([value for value in values if value is not None])
    if statistic.startswith("p"):
        quantile = percentile(ordered, float(statistic[1:])) if len(ordered) else inf
        return quantile if quantile < inf else None
    ordered = ordered[ordered < inf]
    return float(getattr(ordered, statistic)()) if len(ordered) else None


def _mean(values: Iterable[float | None]) -> Value:
    return statistic_of("mean", values)


def _ratio(part: float, whole: float) -> Value:
    return part / whole if whole else None


def _per_s(f: RunFacts, amount: float | None) -> Value:
    """Return an amount of finished work per second of the run."""
    return None if amount is None or f.run_s <= 0 else amount / f.run_s


# ------------------------------------------------------------------------------------------------- the metrics


@_distribution("s", 1, "mean", *PERCENTILES, "min", "max")
def jct(f: RunFacts) -> list[float]:
    """over finished programs of the time from when the first turn was due until the last turn finished, on the client's
    clock. Without `turns.jsonl` it is the scheduler's clock, from the first arrival. Percentiles count unfinished
    programs as the slowest. A percentile that would be the time of an unfinished program is null"""
    return [p.jct_s for p in f.programs] + [inf] * (len(f.everyone) - len(f.programs))


@_metric("", 0, "neither")
def programs(f: RunFacts) -> Value:
    """finished, failed and unfinished programs"""
    return len(f.everyone)


@_metric("", 0, "higher")
def programs_finished(f: RunFacts) -> Value:
    """programs whose turns all ended, the last one with an answer"""
    return len(f.programs)


@_metric("share", 0, "higher")
def programs_finished_share(f: RunFacts) -> Value:
    """finished programs / all programs"""
    return _ratio(len(f.programs), len(f.everyone))


@_metric("", 0, "lower")
def programs_failed(f: RunFacts) -> Value:
    """programs whose last turn ended in an abort or an error. No mean JCT includes them"""
    return len(f.failed)


@_metric("", 0, "lower")
def turns_failed(f: RunFacts) -> Value:
    """turns of any program that ended in an abort or an error"""
    return sum(turn.status in FAILED for program in f.everyone for turn in program.turns)


@_metric("", 0, "lower")
def turns_waiting(f: RunFacts) -> Value:
    """turns without a first token when the run ended"""
    return len(f.waiting)


@_metric("s", 1, "lower")
def longest_waiting_s(f: RunFacts) -> Value:
    """the longest wait so far of a turn without a first token; null if there is none"""
    return statistic_of("max", [turn.left_in_queue_s if turn.left_s is None else turn.left_s for turn in f.waiting])


@_metric("s", 1, "lower")
def wall_s(f: RunFacts) -> Value:
    """time from the first arrival to the last event, without warm-up and cool-down, on the clock of the JCTs"""
    return f.wall_s


@_metric("1/s", 4, "higher")
def throughput_jobs_per_s(f: RunFacts) -> Value:
    """finished programs / run time. The run time is from the first arrival to the last event, warm-up and cool-down
    included. In a closed loop with a warm-up or cool-down, both are those of the window between them"""
    return _per_s(f, len(f.done_programs))


@_metric("1/min", 1, "higher")
def throughput_steps_per_min(f: RunFacts) -> Value:
    """turns that got an answer / run time (see `throughput_jobs_per_s`)"""
    return _per_s(f, 60.0 * len(f.done_turns))


@_metric("1/s", 2, "higher")
def throughput_requests_per_s(f: RunFacts) -> Value:
    """turns that got an answer / run time, per second"""
    return _per_s(f, len(f.done_turns))


@_metric("1/h", 2, "higher")
def jobs_per_h_per_agent(f: RunFacts) -> Value:
    """finished programs / hours between programs' first requests and their ends, summed over programs"""
    alive_s = sum(f.in_window_s(program) for program in f.machine)
    return 3600 * len(f.done_programs) / alive_s if alive_s else None


@_metric("1/h", 1, "higher")
def jobs_per_h_per_gpu(f: RunFacts) -> Value:
    """finished programs per hour of run time / GPUs"""
    rate = throughput_jobs_per_s(f)
    return None if rate is None or f.gpus is None else 3600 * rate / f.gpus


@_metric("", 1, "neither")
def effective_concurrency(f: RunFacts) -> Value:
    """seconds of turns that got an answer, from due to answered, summed / run time"""
    return _per_s(f, sum(turn.took_s or 0.0 for turn in f.done_turns) or None)


@_metric("1/s", 0, "higher")
def throughput_input_tokens_per_s(f: RunFacts) -> Value:
    """prompt tokens of turns that got an answer, from the cache or computed / run time"""
    return _per_s(f, sum(turn.prompt_tokens for turn in f.done_turns) or None)


@_metric("1/s", 0, "higher")
def throughput_output_tokens_per_s(f: RunFacts) -> Value:
    """generated tokens of turns that got an answer / run time"""
    return _per_s(f, sum(turn.output_tokens for turn in f.done_turns) or None)  # the preview's files have no counts


@_metric("1/s", 0, "higher")
def throughput_output_tokens_per_s_per_gpu(f: RunFacts) -> Value:
    """output tokens per second / GPUs (tensor parallel * replicas)"""
    rate = throughput_output_tokens_per_s(f)
    return None if rate is None or f.gpus is None else rate / f.gpus


@_metric("", 2, "lower")
def backlog_growth(f: RunFacts) -> Value:
    """turns by which unfinished work grows for each turn that arrives (all turns of a program arrive with it), by
    least squares from the first to the last arrival that counts; without a warm-up, after the first quarter of the
    programs. Near 0 unless work arrives faster than it is served; null with fewer than ten programs, and in a closed
    loop"""
    return growth_of_backlog(f)


@_metric("share", 0, "lower")
def queued_share(f: RunFacts) -> Value:
    """time that all turns waited in the queue / time from the programs' arrival to their end"""
    spans = [(p.bubble_s, p.seen_until_s - p.arrive_s) for p in f.machine if p.bubble_s is not None]
    return _ratio(sum(waited_s for waited_s, _ in spans), sum(inside_s for _, inside_s in spans))


GROWING, QUEUED, SLOWED = 0.1, 0.2, 2.0


def is_overloaded(values: Mapping[str, Value]) -> bool:
    """Return whether unfinished work grows, by these metrics of a run: by more than ``GROWING`` turns for each that
    arrives, while programs are held up.

    They are held up if they spend more than ``QUEUED`` of their time in the queue, or take more than ``SLOWED`` times
    as long as alone; where neither is known, growth alone decides. Without this condition a run whose arrivals end
    before its first programs do would be called overloaded.
    """
    bounds = {"queued_share": QUEUED, "slowdown_mean": SLOWED}
    held_up = [value > bound for name, bound in bounds.items() if (value := values[name]) is not None]
    return (values["backlog_growth"] or 0.0) > GROWING and (not held_up or any(held_up))


@_metric("s", 1, "lower")
def bubble_mean_s(f: RunFacts) -> Value:
    """mean over programs, finished or not, of the time that their turns waited in the queue, re-queueing included"""
    return _mean(program.bubble_s for program in f.begun)


@_metric("s", 2, "lower")
def bubble_per_turn_s(f: RunFacts) -> Value:
    """mean over turns of the queue wait: first scheduled - arrival, of all its tries, or wait so far"""
    return _mean(turn.wait_s for turn in f.requests)


@_distribution("s", 2, "p95")
def queue_wait(f: RunFacts) -> list[float | None]:
    """of turns' queue waits"""
    return [turn.wait_s for turn in f.requests]


@_distribution("s", 2, "mean", *PERCENTILES)
def admit_wait(f: RunFacts) -> list[float | None]:
    """over programs of the first turn's queue wait: the wait to be admitted"""
    firsts = {id(program.turns[0]) for program in f.machine}
    return [turn.wait_s for turn in f.requests if id(turn) in firsts]


@_metric("s", 1, "lower")
def requeue_mean_s(f: RunFacts) -> Value:
    """mean over programs of the time waited after preemptions"""
    return _mean(program.requeue_s for program in f.begun)


@_metric("share", 1, "higher")
def prefix_hit_ratio(f: RunFacts) -> Value:
    """prompt tokens found in cache / prompt tokens, over all turns"""
    pairs = [(turn.hit_tokens, turn.prompt_tokens) for turn in f.turns if turn.hit_tokens is not None]
    return _ratio(sum(hit for hit, _ in pairs), sum(prompt for _, prompt in pairs))


@_metric("share", 1, "neither")
def prefix_hit_ratio_in_theory(f: RunFacts) -> Value:
    """prompt tokens that an unlimited cache would hold / prompt tokens, over the same turns, of replays"""
    pairs = [(turn.client.reusable_tokens, turn.prompt_tokens) for turn in f.turns if turn.client is not None]
    known = [(tokens, prompt) for tokens, prompt in pairs if tokens is not None]
    return _ratio(sum(min(tokens, prompt) for tokens, prompt in known), sum(prompt for _, prompt in known))


@_distribution("share", 1, "mean", "p25", "p50", better="higher")
def program_hit_ratio(f: RunFacts) -> list[float | None]:
    """over programs of prompt tokens found in cache / prompt tokens"""
    return [_hit_ratio(program) for program in f.begun]


def _hit_ratio(program: ProgramTimes) -> float | None:
    pairs = [(turn.hit_tokens, turn.prompt_tokens) for turn in program.turns if turn.hit_tokens is not None]
    return _ratio(sum(hit for hit, _ in pairs), sum(prompt for _, prompt in pairs))


@_metric("", 0, "lower")
def prefill_repeated_tokens(f: RunFacts) -> Value:
    """prompt tokens that were in the cache before and were computed again"""
    return sum(returned.lost_tokens for returned in f.returns) if f.returns else None


@_metric("share", 0, "lower")
def returns_elsewhere_share(f: RunFacts) -> Value:
    """turns that went to another replica than the turn before / returning turns; null with one replica"""
    moved = [returned.turn.replica != returned.before.replica for returned in f.returns]
    return _ratio(sum(moved), len(moved)) if f.replicas > 1 else None


@_metric("", 2, "lower")
def replica_busiest(f: RunFacts) -> Value:
    """turns of the replica with the most turns / mean over all replicas; null with one replica"""
    turns = Counter(turn.replica for program in f.everyone for turn in program.turns)
    return max(turns.values()) * f.replicas / turns.total() if f.replicas > 1 and turns else None


@_metric("share", 1, "higher")
def pin_hit_ratio(f: RunFacts) -> Value:
    """pins that ended because the program's next turn was scheduled and found the KV (in the preview's files: arrived
    during the pin) / pins"""
    return _ratio(sum(pin.reason == "hit" for pin in f.pins), len(f.pins))


@_metric("s", 1, "neither")
def pin_duration_mean_s(f: RunFacts) -> Value:
    """mean time from pin to unpin"""
    return _mean(pin.until_s - pin.since_s for pin in f.pins if pin.until_s is not None)


@_metric("", 0, "lower")
def preemptions(f: RunFacts) -> Value:
    """preemptions of running turns by vLLM"""
    return sum(turn.preemptions for turn in f.turns)


@_metric("", 0, "neither")
def reloads(f: RunFacts) -> Value:
    """turns for which KV was loaded from a lower tier"""
    return sum(turn.reload_bytes > 0 for turn in f.turns)


@_distribution("s", 2, "mean", *PERCENTILES)
def ttft(f: RunFacts) -> list[float | None]:
    """over turns of first token - the instant at which the turn was due, on the client's clock, or wait so far"""
    return [turn.ttft_s for turn in f.requests]


@_distribution("s", 2, "p50", "p95")
def newcomer_ttft(f: RunFacts) -> list[float | None]:
    """over programs, finished or not, of the first turn's TTFT, or wait so far"""
    return [program.turns[0].ttft_s for program in f.begun]


@_distribution("s", 2, "mean", "p95")
def ttft_worst(f: RunFacts) -> list[float | None]:
    """over programs, finished or not, of the longest TTFT of a program's turns, or wait so far"""
    return [program.worst_ttft_s for program in f.begun]


@_distribution("", 1, "mean", "p95")
def slowdown(f: RunFacts) -> list[float | None]:
    """over programs of JCT / the JCT that the program has alone on an empty engine. If a turn had no first token when
    the run ended: the program's time so far / the time that its turns up to this one take alone. Virtual runs record
    the times alone (`alone_s`). For other runs, play the programs one at a time too. Values below 1 mean that the
    program found KV that another one had left"""
    return [program.slowdown for program in f.begun]


@_distribution("s", 2, "mean", *PERCENTILES)
def turn(f: RunFacts) -> list[float | None]:
    """over turns of finish - the instant at which the turn was due, on the client's clock, or wait so far"""
    return [each.took_s for each in f.requests]


@_distribution("", 1, "p50", "p95")
def turn_slowdown(f: RunFacts) -> list[float | None]:
    """over turns of its time / its time alone on an empty engine; only of virtual runs"""
    return [turn.slowdown for turn in f.requests]


@_distribution("s", 4, "mean", *PERCENTILES)
def tpot(f: RunFacts) -> list[float | None]:
    """over turns of (finish - first token) / (output tokens - 1), on the client's clock; of turns whose tokens came in
    more than one chunk"""
    return [turn.tpot_s for turn in f.turns]


@_distribution("1/s", 1, "mean", "p25", "p50", better="higher")
def output_tokens_s(f: RunFacts) -> list[float | None]:
    """over turns of the output speed: (output tokens - 1) / (finish - first token), on the client's clock"""
    return [1 / turn.tpot_s if turn.tpot_s else None for turn in f.turns]


@_metric("1/s", 1, "higher")
def interactivity_tokens_per_s(f: RunFacts) -> Value:
    """1 / `itl_mean_s`: output tokens per second that a user of an agent sees"""
    gap_s = f.token_gaps.statistic("mean")
    return 1 / gap_s if gap_s else None


@_metric("", 2, "higher")
def jain_index(f: RunFacts) -> Value:
    """(sum of x)^2 / (programs * sum of x^2), x: output tokens of a program / seconds that its turns took, waits
    included. 1: all programs are equally fast"""
    speeds = [speed for program in f.begun if (speed := _speed(program)) is not None]
    return _ratio(sum(speeds) ** 2, len(speeds) * sum(speed * speed for speed in speeds))


def _speed(program: ProgramTimes) -> float | None:
    took_s = [turn.took_s for turn in program.turns if turn.took_s is not None]
    return _ratio(sum(turn.output_tokens for turn in program.turns), sum(took_s))


@_distribution("s", 4, "mean", *PERCENTILES)
def itl(f: RunFacts) -> TokenGaps:
    """over the gaps between consecutive output tokens of all turns. Percentiles need recorded gaps: the time between
    two chunks is divided among the tokens of the second. Without them the mean is the sum of (finish - first token) /
    the sum of (output tokens - 1)"""
    return f.token_gaps


@_metric("s", 3, "lower")
def send_lateness_p99_s(f: RunFacts) -> Value:
    """99th percentile over turns of (sent - due): the load generator's lateness, which all times include; null in
    virtual time"""
    return send_lateness_s(f, 99)


@_metric("s", 6, "lower")
def scheduler_time_per_call_s(f: RunFacts) -> Value:
    """processor time in vLLM's `schedule` and `update_from_output`, policy included / calls, each for one or many
    engine steps. It is measured, so equal runs differ; no other metric includes it. Null on servers"""
    return _ratio(f.scheduler_time.total_s, f.scheduler_time.calls) if f.scheduler_time else None


@_metric("share", 1, "neither")
def tool_time_slowest_tenth_share(f: RunFacts) -> Value:
    """share of the total time between turns that the slowest tenth of the gaps takes; null for fewer than ten gaps"""
    return slowest_tenth_share(f.gaps) if len(f.gaps) >= 10 else None


METRICS: tuple[Metric, ...] = tuple(_metrics)
BY_NAME: Mapping[str, Metric] = {metric.name: metric for metric in METRICS}


def is_share(name: str) -> bool:
    """Return whether a metric of this name, perhaps an SLO's, lies between 0 and 1."""
    return BY_NAME[name].unit == "share" if name in BY_NAME else name.endswith("_share")
