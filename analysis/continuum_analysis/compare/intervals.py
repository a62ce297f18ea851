"""Estimates with their 95% intervals: of one policy over seeds, and of two policies on the same arrivals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np
from scipy.special import stdtrit

from continuum_analysis.records.timeline import AnalysisError, ProgramTimes

CONFIDENCE = 0.95
SAME_INSTANT_S = 1e-3
ENOUGH_SEEDS = 3
"""With fewer seeds there is no 95% interval, which would be very wide; sweeps' tables show the value of each seed."""
NO_VALUE = "-"


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its 95% interval; ``low`` and ``high`` are None if the data give no interval."""

    mean: float
    low: float | None = None
    high: float | None = None
    seeds: tuple[float, ...] = field(default=(), compare=False)
    """The value of each seed, if the estimate is over seeds."""

    @property
    def bounds(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def spread(self) -> tuple[float, float]:
        """What a figure shows around the estimate: the interval; without one the range of the seeds; else nothing."""
        values = self.seeds or (self.mean,)
        return self.bounds or (min(values), max(values))

    def within(self, least: float, most: float) -> Interval:
        """Cut the interval to the range of possible values. Its coverage stays, since the true value is possible."""
        if self.low is None or self.high is None:
            return self
        return replace(self, low=max(least, self.low), high=min(most, self.high))

    def text(self, form: Callable[[float], str]) -> str:
        """Write ``1.5 (1.2 to 1.8)``, of two seeds ``1.5 (seeds 1.4, 1.6)``, and only the estimate if there is no
        interval or it has no width.

        Args:
            form: the function that writes a number, such as ``"{:.1f}".format``.
        """
        if len(self.seeds) in range(2, ENOUGH_SEEDS):
            return f"{form(self.mean)} (seeds {', '.join(map(form, self.seeds))})"
        if self.bounds is None or self.bounds[1] - self.bounds[0] < 1e-12:
            return form(self.mean)
        return f"{form(self.mean)} ({self.bounds_text(form)})"

    def bounds_text(self, form: Callable[[float], str]) -> str:
        """Write ``1.2 to 1.8``, or a dash if there is no interval."""
        return NO_VALUE if self.bounds is None else " to ".join(map(form, self.bounds))


def interval_text(interval: Interval | None, form: Callable[[float], str]) -> str:
    """Return ``Interval.text``, or a dash if there is no value."""
    return NO_VALUE if interval is None else interval.text(form)


def number_text(value: float | None, form: str) -> str:
    """Format a number with a format such as ``{:.1f}``; return a dash if there is no value."""
    return NO_VALUE if value is None else form.format(value)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A policy compared with the baseline, over the seeds that both ran."""

    seeds: tuple[int, ...]
    jct_ratio: Interval
    """This policy's mean JCT / the baseline's, over seeds; below 1, this policy is faster."""
    jct_means_s: tuple[float, float]
    """This policy's mean JCT and the baseline's, of the programs that finished under both."""
    difference_s: Interval
    """The baseline's mean JCT - this policy's."""
    effect: float | None
    """Hedges' g_z over seeds; positive if this policy is faster."""
    sooner: Interval
    """Share of programs that finished sooner under this policy, mean over seeds; ties (to 1 ms) count half."""
    later: float
    """Share of programs that finished more than 1 ms later under this policy, mean over seeds."""
    worst: float
    """The largest ratio of one program's JCT under this policy to its JCT under the baseline."""
    programs: tuple[int, int]
    """Programs that finished under both policies, and all that arrived, summed over the seeds."""
    finished: tuple[int, int]
    """Programs that finished under this policy, and under the baseline, summed over the seeds."""
    ends: tuple[int, int, int] = (0, 0, 0)
    """Programs that finished sooner under this policy, equally (to 1 ms) and later, summed over the seeds."""


def mean_interval(values: Sequence[float]) -> Interval:
    """Compute the mean of one value per seed, with an interval by Student's t if there are ``ENOUGH_SEEDS``."""
    array = np.asarray(values, dtype=float)
    mean, seeds = float(array.mean()), tuple(array.tolist())
    if len(array) < ENOUGH_SEEDS:
        return Interval(mean, seeds=seeds)
    half = _t(len(array)) * float(array.std(ddof=1)) / len(array) ** 0.5
    return Interval(mean, mean - half, mean + half, seeds)


def ratio_interval(over: Sequence[float], under: Sequence[float]) -> Interval:
    """Compute the mean of ``over`` / the mean of ``under``, paired by position, with an interval on a log scale.

    The variance of the logarithm is the delta method's, the quantile Student's t. The bounds are positive and finite,
    and the inverse ratio has the reciprocal interval. How often it is wrong: docs/results/trust.md. (Fieller's
    interval agrees where the ratio is well known. Where it is not, Fieller's is very lopsided or has no end.)
    """
    top, bottom = np.asarray(over, dtype=float), np.asarray(under, dtype=float)
    a, b, seeds = float(top.mean()), float(bottom.mean()), tuple((top / bottom).tolist())
    if len(top) < ENOUGH_SEEDS:
        return Interval(a / b, seeds=seeds)
    deviation = float((top / a - bottom / b).std(ddof=1)) / len(top) ** 0.5
    factor = float(np.exp(_t(len(top)) * deviation))
    return Interval(a / b, a / b / factor, a / b * factor, seeds)


def ratio_by_seed(over: Mapping[int, float], under: Mapping[int, float]) -> Interval | None:
    """Compute ``ratio_interval`` over the seeds that both have; None if there are none, if a value is infinite, or if a
    value of ``under`` or all values of ``over`` are 0."""
    seeds = [seed for seed in over if seed in under]
    top, bottom = [over[seed] for seed in seeds], [under[seed] for seed in seeds]
    positive = seeds and 0 < sum(top) < inf and all(0 < value < inf for value in bottom)
    return ratio_interval(top, bottom) if positive else None


def _t(number: int) -> float:
    return float(stdtrit(number - 1, (1 + CONFIDENCE) / 2))


def standardized_difference(over: Sequence[float], under: Sequence[float]) -> float | None:
    """Compute Hedges' g_z over seeds: mean paired difference / its standard deviation, corrected for few pairs.

    None with one seed, or if the difference does not vary.
    """
    differences = np.asarray(over, dtype=float) - np.asarray(under, dtype=float)
    number = len(differences)
    if number < 2:
        return None
    spread = float(differences.std(ddof=1))
    if spread <= 1e-12 * max(1.0, float(np.abs(differences).max())):
        return None
    return float(differences.mean()) / spread * (1 - 3 / (4 * number - 5))


def sooner_equal_later(over: Sequence[float], under: Sequence[float]) -> tuple[int, int, int]:
    """Return how many programs finished sooner under the second policy, equally (to 1 ms) and later."""
    gains = np.subtract(over, under)
    sooner, later = int(np.sum(gains > SAME_INSTANT_S)), int(np.sum(gains < -SAME_INSTANT_S))
    return sooner, len(gains) - sooner - later, later


def paired_jcts(first: Sequence[ProgramTimes], second: Sequence[ProgramTimes]) -> tuple[list[float], list[float]]:
    """Return the JCTs in both runs of the programs that finished in both."""
    by_id = {program.program_id: program.jct_s for program in second}
    both = [(program.jct_s, by_id[program.program_id]) for program in first if program.program_id in by_id]
    return [jct for jct, _ in both], [jct for _, jct in both]


def check_same_arrivals(where: str, first: Sequence[ProgramTimes], second: Sequence[ProgramTimes]) -> None:
    """Check that two runs of a seed have the same programs, sent at the same instants.

    Only programs that arrive by themselves are compared. The others start when a turn ends, and turns' ends depend on
    the policy.

    Raises:
        AnalysisError: the message begins with ``where`` and names the first program that differs.
    """
    first, second = ([each for each in programs if each.started_by is None] for programs in (first, second))
    ids, other_ids = ({program.program_id for program in programs} for programs in (first, second))
    if alone := sorted(ids ^ other_ids):
        raise AnalysisError(f"{where} cannot be compared: program {alone[0]!r} is in one of them only")
    due_s, other_due_s = _from_first(first), _from_first(second)
    for program_id in filter(other_due_s.__contains__, due_s):
        if abs(due_s[program_id] - other_due_s[program_id]) > SAME_INSTANT_S:
            raise AnalysisError(
                f"{where} cannot be compared: program {program_id!r} arrives {due_s[program_id]:.3f} s after the first "
                f"one in one and {other_due_s[program_id]:.3f} s in the other"
            )


def _from_first(programs: Sequence[ProgramTimes]) -> dict[str, float]:
    """Return the instants relative to the first, since the clocks of two clients do not start together."""
    dues_s = {program.program_id: program.due_s for program in programs if program.due_s is not None}
    first_s = min(dues_s.values(), default=0.0)
    return {program_id: due_s - first_s for program_id, due_s in dues_s.items()}
