"""Goodput of each policy at each point: the mean over seeds, and its ratio to vllm's goodput, paired by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

from continuum_traces.grouped import grouped

from continuum_analysis.compare.intervals import Interval, interval_text, mean_interval, ratio_by_seed
from continuum_analysis.compare.runs import BASELINES
from continuum_analysis.compare.words import TextTable
from continuum_analysis.plots.arm_styles import arm_styles
from continuum_analysis.plots.panels import Bar, Panel
from continuum_analysis.sweep.tables import point_text


@dataclass(frozen=True, slots=True)
class Bracket:
    """The result of one search, for one policy, point and seed: the limit lies between two rates."""

    axes: Mapping[str, Any]
    policy: str
    seed: int
    low: float
    """The highest rate that was sustained; 0: none was."""
    high: float
    """The lowest rate that was not sustained; infinite: every rate that was tried was sustained."""
    complete: bool = True
    """False if the search was cut short."""

    @property
    def jps(self) -> float:
        """The highest rate that was sustained; infinite if the search found no upper end."""
        return self.low if self.complete and self.high < inf else inf

    @property
    def text(self) -> str:
        if self.jps < inf:
            return f"{self.low:.4g}"
        end = f"at least {self.low:.4g}" if self.low else "no rate sustained yet"
        return end if self.high == inf else f"{end}, below {self.high:.4g}"


@dataclass(frozen=True, slots=True)
class Goodput:
    """A policy's goodput at one point."""

    axes: Mapping[str, Any]
    policy: str
    jps: Interval | None
    """None if for some seed the search found no rate that was too high, or was cut short."""
    by_seed: tuple[float, ...]
    to_vllm: Interval | None
    """None if ``jps`` is None, or if vllm's goodput was 0 because it sustained no rate."""
    texts: tuple[str, ...]
    """What is known of each seed, in words."""


def summarize_goodput(results: Sequence[Bracket]) -> list[Goodput]:
    rows = []
    for here in grouped((tuple(map(str, result.axes.items())), result) for result in results).values():
        base = {result.seed: result.jps for result in here if result.policy in BASELINES}
        rows += [_row(arm, base) for arm in grouped((result.policy, result) for result in here).values()]
    return rows


def _row(arm: Sequence[Bracket], base: Mapping[int, float]) -> Goodput:
    rates = tuple(result.jps for result in arm)
    ratio = ratio_by_seed({result.seed: result.jps for result in arm}, base)
    mean = mean_interval(rates) if all(map(isfinite, rates)) else None
    return Goodput(arm[0].axes, arm[0].policy, mean, rates, ratio, tuple(result.text for result in arm))


def goodput_table(rows: Sequence[Goodput]) -> TextTable:
    headings = ["point", "policy", "goodput, programs/s", "by seed", "ratio to vllm"]
    return TextTable(headings, [_cells(row) for row in rows])


def _cells(row: Goodput) -> list[str]:
    return [
        _point(row.axes),
        row.policy,
        "no upper end found" if row.jps is None else row.jps.text("{:.4f}".format),
        "; ".join(row.texts) if row.jps is None else ", ".join(row.texts),
        interval_text(row.to_vllm, "{:.2f}".format),
    ]


def _point(axes: Mapping[str, Any]) -> str:
    limit = axes.get("limit", inf)
    within = f", P95 slowdown at most {limit:g}" if limit < inf else ""
    return f"{point_text(axes, [name for name in axes if name != 'limit'])}: unfinished work does not grow{within}"


def goodput_panel(rows: Sequence[Goodput]) -> Panel:
    """Return a panel with a group of bars for each point and a bar for each policy."""
    looks = arm_styles(row.policy for row in rows)
    bars = [
        Bar(_point(row.axes), row.policy, looks[row.policy], row.jps.mean, *row.jps.spread)
        for row in rows
        if row.jps is not None
    ]
    return Panel("", "goodput, programs per second", "", bars=bars)
