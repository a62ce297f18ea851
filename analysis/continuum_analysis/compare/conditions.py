"""Conditions under which a comparison fails, such as ``jct_mean_ratio > 1.05``.

``METRIC`` is the metric's mean over seeds. ``METRIC_ratio`` is the metric divided by the baseline's, paired by seed.
The unit at the end of a metric's name may be left out. Both have 95% intervals, and a condition holds only if the whole
interval is beyond the limit, or with ``--point-estimate`` if the estimate is. ``min(METRIC)`` and ``max(METRIC)`` are
the lowest and the highest seed.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from continuum_traces.names import near

from continuum_analysis.compare.intervals import Interval, ratio_by_seed
from continuum_analysis.compare.runs import Run
from continuum_analysis.compare.summary import compare_to, mean_of
from continuum_analysis.records.timeline import AnalysisError

RATIO = "_ratio"
ENDINGS = ("_s", "_bytes")
JCT_MEAN = "jct_mean_s"
_OPERATORS: Mapping[str, Callable[[float, float], bool]]
_OPERATORS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_OVER_SEEDS: Mapping[str | None, Callable[[Iterable[float]], float]] = {"min": min, "max": max}
_CONDITION = re.compile(
    r"(?:(?P<arm>.+):)?(?P<expression>\s*(?P<term>(?P<over>min|max)\((?P<seeds_of>\w+)\)|(?P<metric>\w+))"
    r"\s*(?P<sign>[<>]=?)\s*(?P<limit>[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?)\s*)"
)
"""An arm's name may be MODULE:CLASS."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The runs to which a condition applies, and the runs with which they are compared."""

    name: str
    runs: Sequence[Run]
    base: Sequence[Run]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a condition for a pair."""

    condition: str
    pair: Pair
    failed: bool
    """True if the condition holds."""
    compared: str
    """The values that the condition compares, with their intervals, as text."""

    @property
    def text(self) -> str:
        return f"{'FAILED' if self.failed else 'ok'}: {self.pair.name}: {self.condition}: {self.compared}"


class Condition:
    """A parsed condition.

    Args:
        text: METRIC, ``min(METRIC)`` or ``max(METRIC)``, a comparison and a number. ``ARM: METRIC > 1`` applies to one
            arm.
        only_estimates: compare estimates without their intervals.

    Raises:
        AnalysisError: the text has another form.
    """

    def __init__(self, text: str, only_estimates: bool = False) -> None:
        parsed = _CONDITION.fullmatch(text)
        if parsed is None:
            forms = "METRIC, min(METRIC) or max(METRIC), then <, <=, > or >=, then a number"
            raise AnalysisError(f"--fail-if {text}: expected {forms}, such as 'jct_mean_ratio > 1.05'")
        self.text = text
        self.arm = parsed["arm"].strip() if parsed["arm"] else None
        self.expression = parsed["expression"].strip()
        self._term, self._metric = parsed["term"], parsed["seeds_of"] or parsed["metric"]
        self._over_seeds = _OVER_SEEDS.get(parsed["over"])
        self._sign, self._limit = parsed["sign"], float(parsed["limit"])
        self._only_estimates = only_estimates

    def apply(self, pair: Pair) -> Outcome:
        """Evaluate the condition for a pair.

        Raises:
            AnalysisError: a metric does not exist, has no value in these runs, or has no interval.
        """
        value = self._value(pair)
        low, high = value.bounds or (value.mean, value.mean)
        failed = _OPERATORS[self._sign](low if self._sign.startswith(">") else high, self._limit)
        return Outcome(self.expression, pair, failed, f"{self._term} {value.text('{:.6g}'.format)}")

    def _value(self, pair: Pair) -> Interval:
        if self._over_seeds is None:
            interval = _interval(self._metric, pair)
        else:
            seeds = _by_seed(self._metric, pair.runs).values()
            interval = Interval(self._over_seeds(seeds)) if seeds else None
        if interval is None:
            raise AnalysisError(f"--fail-if {self.text}: {self._term}: {_no_value(self._metric, pair)}")
        if interval.bounds is None and self._over_seeds is None and not self._only_estimates:
            why = f"no interval for {pair.name}: give runs of --seeds 3 or more, or --point-estimate"
            raise AnalysisError(f"--fail-if {self.text}: {self._term}: {why}")
        return Interval(interval.mean) if self._only_estimates else interval


def _no_value(name: str, pair: Pair) -> str:
    """Say why a metric cannot be compared: it does not exist, or these runs have no value of it."""
    values = pair.runs[0].metrics.values
    if _metric(name, pair.runs) is None and _metric(name.removesuffix(RATIO), pair.runs) is None:
        return f"no such metric; {near(name.removesuffix(RATIO), values)}docs/metrics.md lists them"
    return f"no value of it for {pair.name}"


def _interval(name: str, pair: Pair) -> Interval | None:
    if not name.endswith(RATIO) or _metric(name, pair.runs) is not None:
        return mean_of(_metric(name, pair.runs) or name, list(_by_seed(name, pair.runs).values()))
    return _ratio(name.removesuffix(RATIO), pair)


def _ratio(name: str, pair: Pair) -> Interval | None:
    """Return this arm's metric / the baseline's. The ratio of mean JCTs uses the programs that finished under both."""
    if _metric(name, pair.runs) == JCT_MEAN:
        comparison = compare_to(pair.base, pair.runs)
        if comparison is not None and comparison.finished[0] < comparison.finished[1]:
            finished = "{} programs, the other side {}".format(*comparison.finished)
            raise AnalysisError(
                f"--fail-if {name}{RATIO}: {pair.name} finished {finished}: no ratio of their times is fair"
            )
        return None if comparison is None else comparison.jct_ratio
    return ratio_by_seed(_by_seed(name, pair.runs), _by_seed(name, pair.base))


def _metric(name: str, runs: Sequence[Run]) -> str | None:
    """Return the full name of a metric whose unit may be left out; None if there is no such metric."""
    return next((full for full in (name, *(name + unit for unit in ENDINGS)) if full in runs[0].metrics.values), None)


def _by_seed(name: str, runs: Sequence[Run]) -> dict[int, float]:
    full = _metric(name, runs)
    values = {run.manifest.seed: run.metrics.values[full] for run in runs if full is not None}
    return {seed: float(value) for seed, value in values.items() if value is not None}
