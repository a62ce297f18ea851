"""Conditions under which a comparison fails, such as ``jct_mean_ratio > 1.05 or programs_failed > 0``.

``METRIC`` is the metric's mean over seeds. ``METRIC_ratio`` is the metric divided by the baseline's, paired by seed.
The unit at the end of a metric's name may be left out. Both have 95% intervals, and a condition holds only if the whole
interval is beyond the limit, or with ``--point-estimate`` if the estimate is. ``min(METRIC)`` and ``max(METRIC)`` are
the lowest and the highest seed.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from continuum_traces.names import near
from continuum_traces.typed import LARGEST

from continuum_analysis.compare.intervals import Interval, mean_interval, ratio_by_seed
from continuum_analysis.compare.runs import Run
from continuum_analysis.compare.summary import compare_to
from continuum_analysis.metrics import is_share
from continuum_analysis.records.timeline import AnalysisError

RATIO = "_ratio"
UNITS = ("_s", "_bytes")
JCT_MEAN = "jct_mean_s"
_LOW, _HIGH = 0, 1
_OPERATORS: Mapping[type[ast.cmpop], tuple[Callable[[float, float], bool], int]] = {
    ast.Gt: (operator.gt, _LOW),
    ast.GtE: (operator.ge, _LOW),
    ast.Lt: (operator.lt, _HIGH),
    ast.LtE: (operator.le, _HIGH),
}
"""Each comparison, and the end of the interval that it is applied to."""


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
    found: str
    """The values that the condition compares, with their intervals, as text."""

    @property
    def text(self) -> str:
        return f"{'FAILED' if self.failed else 'ok'}: {self.pair.name}: {self.condition}: {self.found}"


class Condition:
    """A parsed condition.

    Args:
        text: a Python expression of comparisons, ``and``, ``or`` and brackets. ``ARM: EXPRESSION`` applies to one arm.
        only_estimates: compare estimates without their intervals.

    Raises:
        AnalysisError: the text is not such an expression.
    """

    def __init__(self, text: str, only_estimates: bool = False) -> None:
        self.text = text
        self._only_estimates = only_estimates
        arm, colon, rest = text.rpartition(":")  # an arm's name may be MODULE:CLASS
        self.arm = arm.strip() if colon else None
        self.expression = (rest if colon else text).strip()
        try:
            self._tree = ast.parse(self.expression, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise AnalysisError(f"--fail-if {text}: not an expression such as 'jct_mean_ratio > 1.05'") from error
        self._check(self._tree)

    def _check(self, node: ast.expr) -> None:
        if isinstance(node, ast.BoolOp):
            for value in node.values:
                self._check(value)
        elif not isinstance(node, ast.Compare) or len(node.ops) != 1 or type(node.ops[0]) not in _OPERATORS:
            raise self._error(node, "expected a comparison with <, <=, > or >=, and, or")
        elif _term(node.left) is None or _number(node.comparators[0]) is None:
            raise self._error(node, "expected METRIC, min(METRIC) or max(METRIC), and a number on the right")

    def _error(self, node: ast.expr, why: str) -> AnalysisError:
        return AnalysisError(f"--fail-if {self.text}: {ast.unparse(node)}: {why}")

    def apply(self, pair: Pair) -> Outcome:
        """Evaluate the condition for a pair.

        Raises:
            AnalysisError: a metric does not exist, has no value in these runs, or has no interval.
        """
        values: dict[str, str] = {}
        failed = self._holds(self._tree, pair, values)
        return Outcome(self.expression, pair, failed, ", ".join(f"{name} {value}" for name, value in values.items()))

    def _holds(self, node: Any, pair: Pair, values: dict[str, str]) -> bool:
        """Evaluate an expression, and add the text of each of its values to ``values``."""
        if isinstance(node, ast.BoolOp):
            results = [self._holds(part, pair, values) for part in node.values]  # all parts, so that none is left out
            return any(results) if isinstance(node.op, ast.Or) else all(results)
        limit, (compare, end) = _number(node.comparators[0]), _OPERATORS[type(node.ops[0])]
        value = self._value(node.left, pair)
        values[ast.unparse(node.left)] = value.text("{:.6g}".format)
        assert limit is not None
        return compare((value.bounds or (value.mean, value.mean))[end], limit)

    def _value(self, term: ast.expr, pair: Pair) -> Interval:
        over_seeds, metric = _term(term) or (None, "")
        if over_seeds is None:
            interval = _interval(metric, pair)
        else:
            seeds = _by_seed(metric, pair.runs).values()
            interval = Interval(over_seeds(seeds)) if seeds else None
        if interval is None:
            raise self._error(term, _no_value(metric, pair))
        if interval.bounds is None and over_seeds is None and not self._only_estimates:
            why = f"no interval for {pair.name}: give runs of --seeds 3 or more, or --point-estimate"
            raise self._error(term, why)
        return Interval(interval.mean) if self._only_estimates else interval


def _term(node: ast.expr) -> tuple[Callable[[Iterable[float]], float] | None, str] | None:
    """Return ``min``, ``max`` or None, and the name of the metric; None if the expression is something else."""
    match node:
        case ast.Name(id=name):
            return None, name
        case ast.Call(func=ast.Name(id="min"), args=[ast.Name(id=name)]):
            return min, name
        case ast.Call(func=ast.Name(id="max"), args=[ast.Name(id=name)]):
            return max, name
    return None


def _no_value(name: str, pair: Pair) -> str:
    """Say why a metric cannot be compared: it does not exist, or these runs have no value of it."""
    known = pair.runs[0].metrics.values
    if _metric(name, pair.runs) is None and _metric(name.removesuffix(RATIO), pair.runs) is None:
        return f"no such metric; {near(name.removesuffix(RATIO), known)}docs/metrics.md lists them"
    return f"no value of it for {pair.name}"


def _number(node: ast.expr) -> float | None:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return float(value) if type(value) in (int, float) and abs(value) < LARGEST else None


def _interval(name: str, pair: Pair) -> Interval | None:
    if not name.endswith(RATIO) or _metric(name, pair.runs) is not None:
        seeds = _by_seed(name, pair.runs)
        top = 1.0 if is_share(_metric(name, pair.runs) or name) else float("inf")
        return mean_interval(list(seeds.values())).within(0.0, top) if seeds else None
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
    return next((full for full in (name, *(name + unit for unit in UNITS)) if full in runs[0].metrics.values), None)


def _by_seed(name: str, runs: Sequence[Run]) -> dict[int, float]:
    full = _metric(name, runs)
    values = {run.manifest.seed: run.metrics.values[full] for run in runs if full is not None}
    return {seed: float(value) for seed, value in values.items() if value is not None}
