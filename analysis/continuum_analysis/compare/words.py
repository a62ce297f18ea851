"""A summary as text: its tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from continuum_analysis.compare.intervals import Interval, interval_text, number_text
from continuum_analysis.compare.summary import ArmSummary, Summary
from continuum_analysis.metrics import BY_NAME
from continuum_analysis.records.misses import Return, cause_rows


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table whose cells are text."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> Iterator[str]:
        """Yield the lines of the table in Markdown."""
        yield from markdown(self.headings, self.rows)


def markdown(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yield the lines of a table in Markdown, each as soon as its row is there."""
    yield f"| {' | '.join(headings)} |"
    yield "|" + "---|" * len(headings)
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"


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


def cause_table(returns: Sequence[Return]) -> TextTable:
    """Return a table of the causes of hits and misses, with one row for each cause."""
    headings = ("cause", "turns", "share", "tokens again", "mean wait, s", "late, median s", "meaning")
    rows = []
    for row in cause_rows(returns):
        seconds = (number_text(value, "{:.2f}") for value in (row.wait_mean_s, row.late_p50_s))
        rows.append((row.cause, str(row.turns), f"{row.share:.1%}", f"{row.lost_tokens:,}", *seconds, row.meaning))
    return TextTable(headings, rows)
