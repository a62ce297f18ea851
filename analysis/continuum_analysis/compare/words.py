"""A summary as text: its tables, and the sentences of its verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from continuum_analysis.compare.intervals import Comparison, Interval, interval_text, number_text
from continuum_analysis.compare.summary import ArmSummary, Summary
from continuum_analysis.metrics import BY_NAME
from continuum_analysis.records.misses import Return, cause_rows

SAME_TO_THE_EYE = 0.01
"""A ratio whose interval is within this distance of 1 is called equal."""


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table whose cells are text."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> Iterator[str]:
        """Yield the lines of the table in Markdown."""
        yield "| " + " | ".join(self.headings) + " |"
        yield "|" + "---|" * len(self.headings)
        for row in self.rows:
            yield "| " + " | ".join(row) + " |"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table with a row for each arm."""

    metric: str
    """A metric, or ``jct_ratio``."""
    heading: str
    form: Callable[[float], str]
    is_main: bool = False
    """Whether the column always has its intervals; the others have them where there is room."""

    def value(self, arm: ArmSummary) -> Interval | None:
        return arm.jct_ratio if self.metric == JCT_RATIO.metric else arm.metrics.get(self.metric)

    def cell(self, arm: ArmSummary, with_interval: bool = False) -> str:
        value = self.value(arm)
        shown = value if with_interval or self.is_main or value is None else Interval(value.mean)
        note = " overloaded" if self.metric == THROUGHPUT and arm.overloaded else ""
        return interval_text(shown, self.form) + note


def metric_column(name: str, heading: str | None = None, is_main: bool = False) -> Column:
    """Return the column of a metric, with the digits of its declaration."""
    return Column(name, heading or name, BY_NAME[name].text, is_main)


THROUGHPUT = "throughput_jobs_per_s"
JCT_RATIO = Column("jct_ratio", "JCT to", "{:.2f}".format, is_main=True)
HITS = (metric_column("prefix_hit_ratio", "prefix hit"), metric_column("pin_hit_ratio", "pin hit"))
COLUMNS = (
    metric_column("jct_mean_s", "JCT mean, s", is_main=True),
    *(metric_column(f"jct_p{q}_s", f"P{q}") for q in (50, 90, 95, 99)),
    metric_column(THROUGHPUT, "finished/s"),
    metric_column("bubble_mean_s", "bubble, s"),
    *HITS,
)
"""The columns of the summary's table."""
TURN_COLUMNS = (
    metric_column("turn_mean_s", "turn mean, s", is_main=True),
    metric_column("turn_p95_s", "P95"),
    metric_column("ttft_p50_s", "TTFT P50, s"),
    *(metric_column(f"ttft_p{q}_s", f"P{q}") for q in (90, 99)),
    metric_column("turn_slowdown_p50", "slowdown P50"),
    metric_column("turn_slowdown_p95", "P95"),
    metric_column("throughput_output_tokens_per_s", "tokens/s"),
    *HITS,
)
"""The columns instead of ``COLUMNS`` if people think between turns: their JCT is mostly their own time."""
REPLICA_COLUMNS = (
    metric_column("returns_elsewhere_share", "elsewhere"),
    metric_column("replica_busiest", "busiest"),
)
"""Columns that are shown if there are several replicas."""
FINISHED = metric_column("programs_finished_share", "finished")
"""Shown if some program did not finish."""
WAITING = (metric_column("turns_waiting", "waiting"), metric_column("longest_waiting_s", "longest, s"))
"""Shown if some turn waited for its first token when the run ended."""


def columns(summaries: Iterable[Summary]) -> tuple[Column, ...]:
    """Return the columns of a table of these summaries. The heading of the last column names their baselines.

    Where people think between turns (``Workload.thinking``) the columns are about turns, not about programs.
    """
    seen = list(summaries)
    arms = [arm for summary in seen for arm in summary.arms.values()]
    replicas = [column for column in REPLICA_COLUMNS if any(column.value(arm) is not None for arm in arms)]
    waiting = [column for column in WAITING if any(column.value(arm) for arm in arms if arm.mean("turns_waiting"))]
    if any(summary.manifest.workload.thinking for summary in seen):
        return (*waiting, *TURN_COLUMNS, *replicas)
    finished = [FINISHED] if any((arm.mean("programs_finished_share") or 0.0) < 1 for arm in arms) else []
    return (*finished, *waiting, *COLUMNS, *replicas, ratio_column(summary.baseline for summary in seen))


def ratio_column(baselines: Iterable[str]) -> Column:
    """Return the column of ratios to the baselines, which its heading names."""
    return replace(JCT_RATIO, heading=f"JCT to {' or '.join(dict.fromkeys(baselines))}")


def arm_table(
    summaries: Mapping[float | None, Summary],
    shown: Sequence[Column] = (),
    with_jps: bool = False,
    with_intervals: bool = False,
) -> TextTable:
    """Return a table with one row for each load and arm; a dash means no value.

    Args:
        summaries: the summaries by load.
        shown: the columns; empty: those of ``columns``.
        with_jps: whether the first column is the load.
        with_intervals: whether all columns have their intervals.
    """
    shown = shown or columns(summaries.values())
    rows = [
        [*([f"{jps:g}"] if with_jps else []), name, *(column.cell(arm, with_intervals) for column in shown)]
        for jps, summary in summaries.items()
        for name, arm in summary.arms.items()
    ]
    return TextTable([*(["JPS"] if with_jps else []), "policy", *(column.heading for column in shown)], rows)


def load_line(summary: Summary) -> str:
    """Say at which rate programs arrived and finished, and under which policies unfinished work grew; empty in a closed
    loop, and for records that do not give the rate."""
    offered = summary.manifest.workload.jps
    finished = {name: arm.mean(THROUGHPUT) for name, arm in summary.arms.items()}
    if offered is None or None in finished.values():
        return ""
    overloaded = [name for name, arm in summary.arms.items() if arm.overloaded]
    rates = ", ".join(f"{name} {rate:.2g}" for name, rate in finished.items())
    growing = f"; overloaded under {', '.join(overloaded)}: JCT grows with --num-programs" if overloaded else ""
    return f"offered {offered:g} programs/s; finished {rates} from the first arrival to the last end{growing}"


def cause_table(returns: Sequence[Return]) -> TextTable:
    """Return a table of the causes of hits and misses, with one row for each cause."""
    headings = ("cause", "turns", "share", "tokens again", "mean wait, s", "late, median s", "meaning")
    rows = []
    for row in cause_rows(returns):
        seconds = (number_text(value, "{:.2f}") for value in (row.wait_mean_s, row.late_p50_s))
        rows.append((row.cause, str(row.turns), f"{row.share:.1%}", f"{row.lost_tokens:,}", *seconds, row.meaning))
    return TextTable(headings, rows)


def verdict(summary: Summary) -> str:
    """Return both parts of ``verdict_parts`` as one text."""
    return " ".join(verdict_parts(summary)).strip()


def fastest(summary: Summary) -> str | None:
    """Return the arm, baseline excluded, with the lowest ratio to the baseline; None if no other arm can be compared
    with it, or all others finished fewer programs."""
    return next((name for name in summary.ranked if name != summary.baseline), None)


def verdict_parts(summary: Summary) -> tuple[str, str]:
    """Return the verdict in two parts: how many programs finished if not all did, and the fastest policy compared with
    the baseline; then the next best policy, the programs that became slower and the tail of the TTFT."""
    if summary.manifest.workload.thinking:
        return _waiting(summary) + _turns_verdict(summary), ""
    counted, best = _waiting(summary) + _finished(summary), fastest(summary)
    comparison = summary.arms[best].comparison if best is not None else None
    if best is None or comparison is None:
        compared = any(arm.comparison for name, arm in summary.arms.items() if name != summary.baseline)
        none = "" if compared else "No comparison: there are no two policies on the same arrivals."
        return f"{counted}{none}".strip(), ""
    ratios = [arm.jct_ratio for arm in summary.arms.values() if arm.jct_ratio]
    if len(ratios) > 2 and all(ratio.bounds is None and abs(ratio.mean - 1) < SAME_TO_THE_EYE for ratio in ratios):
        same = f"mean JCT {_seconds(comparison.jct_means_s[1])}, on {_no_interval(comparison)}"
        return f"{counted}All policies are equal to within 1% here: {same}.", ""
    rest = f"{_next_best(summary, best)}{_cost(summary, comparison)}{_tail(summary, best)}"
    return counted + _against_baseline(summary, best, comparison), rest


def _turns_verdict(summary: Summary) -> str:
    """Name the arm with the shortest time per turn."""
    times = {name: time for name, arm in summary.arms.items() if (time := arm.metrics["turn_mean_s"]) is not None}
    if len(times) < 2:
        return ""
    best = min(times, key=lambda name: times[name].mean)
    shown = "; ".join(f"{name} {times[name].text('{:.2f} s'.format)}" for name in dict.fromkeys([best, *times]))
    few = "" if times[best].bounds else " Too few seeds for an interval; run with --seeds 5."
    return f"Mean time per turn was shortest under {best}: {shown}.{few}"


def _waiting(summary: Summary) -> str:
    """Say how many turns waited for their first token at the end under each policy; empty if none did."""
    waits = {
        name: (number, longest_s)
        for name, arm in summary.arms.items()
        if (number := arm.mean("turns_waiting")) and (longest_s := arm.mean("longest_waiting_s")) is not None
    }
    if not waits:
        return ""
    counts = ", ".join(f"{name} {number:.3g} (the longest for {_seconds(s)})" for name, (number, s) in waits.items())
    return f"Requests without a first token when the runs ended, which count with their wait so far: {counts}. "


def _finished(summary: Summary) -> str:
    """Say how many programs finished under each policy, and who is not ranked for that; empty if all finished."""
    comparisons = {name: arm.comparison for name, arm in summary.arms.items() if arm.comparison is not None}
    if all(comparison.finished[0] == comparison.programs[1] for comparison in comparisons.values()):
        return ""
    counts = ", ".join(f"{name} {each.finished[0]} of {each.programs[1]}" for name, each in comparisons.items())
    fewer = " and ".join(name for name in comparisons if name not in summary.ranked)
    return f"Programs that finished: {counts}. " + (f"Fewer finished under {fewer}: not ranked. " if fewer else "")


Outcome = Literal["equal", "open", "faster", "slower"]


def outcome(ratio: Interval) -> Outcome:
    """Judge a ratio of a policy's mean JCT to the baseline's by its interval, or by the estimate if it has none.

    ``equal``: the interval lies within 1% of 1. ``open``: it contains 1, so that the two cannot be told apart.
    """
    low, high = ratio.bounds or (ratio.mean, ratio.mean)
    if max(abs(low - 1), abs(high - 1)) < SAME_TO_THE_EYE:
        return "equal"
    if low <= 1.0 <= high:
        return "open"
    return "faster" if ratio.mean < 1 else "slower"


def _against_baseline(summary: Summary, name: str, comparison: Comparison) -> str:
    baseline, ratio = summary.baseline, comparison.jct_ratio
    facts = "mean JCT {} against {}".format(*map(_seconds, comparison.jct_means_s))
    took = f"its programs took {ratio.mean:.2f} times as long as under {baseline}"
    if ratio.bounds is None:
        best = f", the best of {len(summary.arms)}" if len(summary.arms) > 2 else ""
        return f"{name}{best}: {took} ({facts}), on {_no_interval(comparison)}."
    interval = ratio.bounds_text("{:.2f}".format)
    text = f"{took} (95% interval {interval}, {len(comparison.seeds)} seeds, paired; {facts})"
    return f"{headline(outcome(ratio), name, baseline, len(summary.arms))}: {text}."


def headline(result: Outcome, name: str, baseline: str, policies: int, scope: str = "") -> str:
    """Say what a comparison with the baseline shows of the best policy.

    Args:
        policies: the number of policies, the baseline included, of which this one is the best.
        scope: where it is, such as `` on average``.
    """
    if policies > 2:
        words = {
            "faster": f"{name} was the fastest of {policies}{scope}",
            "slower": f"No policy was faster than {baseline}{scope}; the best of {policies} was {name}",
            "open": f"No policy can be told apart from {baseline}; the best of {policies}{scope} was {name}",
        }
    else:
        words = {
            "faster": f"{name} was faster than {baseline}{scope}",
            "slower": f"{name} was slower than {baseline}{scope}",
            "open": f"{name} and {baseline} cannot be told apart{scope}",
        }
    return words.get(result, f"{name} and {baseline} are equal to within 1%{scope or ' here'}")


def _next_best(summary: Summary, best: str) -> str:
    """Compare the fastest policy with the second, unless the second is the baseline."""
    if summary.runner_up is None or summary.runner_up[0] in (best, summary.baseline):
        return ""
    second, comparison = summary.runner_up
    if comparison.jct_ratio.bounds is None:
        return f"The next best was {second} ({_seconds(comparison.jct_means_s[1])}). "
    if outcome(comparison.jct_ratio) in ("equal", "open"):
        how = "It cannot be told apart from the next best"
    else:
        how = f"Its programs took {comparison.jct_ratio.mean:.2f} times as long as under the next best"
    return f"{how}, {second} ({comparison.jct_ratio.bounds_text('{:.2f}'.format)}). "


def _cost(summary: Summary, comparison: Comparison) -> str:
    """Say how many programs finished later than under the baseline, and how much later the most delayed one."""
    if comparison.later == 0:
        return f"No program finished later than under {summary.baseline}."
    share = f"{comparison.later:.0%}" if comparison.later >= 0.01 else "Fewer than 1%"
    worst = f"the worst-hit after {comparison.worst:.2f} times the time"
    if comparison.worst < 1 + SAME_TO_THE_EYE:
        worst = "none by more than 1%"
    return f"{share} of the programs finished later than under {summary.baseline}, {worst}."


def _tail(summary: Summary, best: str) -> str:
    """Compare the slowest first tokens with the baseline's."""
    own, base = (summary.arms[name].metrics.get("ttft_p99_s") for name in (best, summary.baseline))
    if own is None or base is None:
        return ""
    return f" TTFT P99: {_seconds(own.mean)} against {summary.baseline}'s {_seconds(base.mean)}."


def _no_interval(comparison: Comparison) -> str:
    if len(comparison.seeds) > 1:
        return f"{len(comparison.seeds)} seeds, too few for an interval; run with --seeds 5"
    return "one arrival sequence. One seed proves nothing; run with --seeds 5"


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 10 else f"{value:.2g} s"
