"""Estimates with their 95% intervals: of one policy over seeds, and of two policies on the same arrivals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import bootstrap
from scipy.stats import t as student

from continuum_analysis.records.timeline import AnalysisError, ProgramTimes

CONFIDENCE = 0.95
RESAMPLES = 4000
SAME_INSTANT_S = 1e-3


ENOUGH_SEEDS = 3
"""Of two seeds a 95% interval is so wide that tables show both seeds' values instead."""
NO_VALUE = "-"


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its 95% interval; low and high are None where the data cannot give one."""

    mean: float
    low: float | None = None
    high: float | None = None

    @property
    def bounds(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)

    def within(self, least: float, most: float) -> Interval:
        """The same estimate, the interval cut to what is possible. That costs no coverage: the truth lies inside."""
        if self.low is None or self.high is None:
            return self
        return Interval(self.mean, max(least, self.low), min(most, self.high))

    def inverse(self) -> Interval:
        """The same comparison the other way round: 1 / the estimate, with the reciprocal bounds."""
        low, high = self.bounds or (None, None)
        return Interval(1 / self.mean, 1 / high if high else None, 1 / low if low else None)

    def text(self, form: Callable[[float], str], seeds: Sequence[float] = ()) -> str:
        """``1.5 (1.2 to 1.8)``, or the estimate alone where there is no interval or it has no width.

        Args:
            form: writes one number, such as ``"{:.1f}".format``.
            seeds: each seed's value; two seeds are shown themselves, ``1.5 [1.4, 1.6]``.
        """
        if len(seeds) in range(2, ENOUGH_SEEDS):
            return f"{form(self.mean)} [{', '.join(map(form, seeds))}]"
        if self.bounds is None or self.bounds[1] - self.bounds[0] < 1e-12:
            return form(self.mean)
        return f"{form(self.mean)} ({self.bounds_text(form)})"

    def bounds_text(self, form: Callable[[float], str]) -> str:
        """``1.2 to 1.8``; a dash where there is no interval."""
        return NO_VALUE if self.bounds is None else " to ".join(map(form, self.bounds))


def interval_text(interval: Interval | None, form: Callable[[float], str], seeds: Sequence[float] = ()) -> str:
    """``Interval.text``; a dash where nothing was measured."""
    return NO_VALUE if interval is None else interval.text(form, seeds)


def number_text(value: float | None, form: str) -> str:
    """One number by a format such as ``{:.1f}``; a dash where nothing was measured."""
    return NO_VALUE if value is None else form.format(value)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A policy against the baseline, over the seeds both ran."""

    seeds: tuple[int, ...]
    ratio: Interval
    """Baseline's mean JCT / this policy's, over seeds."""
    difference_s: Interval
    """Baseline's mean JCT - this policy's."""
    ratio_within: Interval | None
    """With one seed only, from resampling programs. It holds for this arrival sequence and for no other."""
    ratio_resampled: Interval | None
    """With several seeds, from resampling them."""
    effect: float | None
    """Hedges' g_z over seeds, above 0 where this policy is faster."""
    sooner: Interval
    """Share of programs that finished sooner under this policy, over seeds."""
    later: float
    """Share of programs that finished later by more than 1 ms, over seeds."""
    worst: float
    """The largest ratio of one program's JCT under this policy to its JCT under the baseline."""
    programs: tuple[int, int]
    """Programs that finished under both policies, and all that arrived, summed over the seeds."""


def mean_interval(values: Sequence[float]) -> Interval:
    """Student's t over seeds."""
    array = np.asarray(values, dtype=float)
    mean = float(array.mean())
    if len(array) < 2:
        return Interval(mean)
    half = _t(len(array)) * float(array.std(ddof=1)) / len(array) ** 0.5
    return Interval(mean, mean - half, mean + half)


def ratio_interval(over: Sequence[float], under: Sequence[float]) -> Interval:
    """Mean of ``over`` / mean of ``under``, paired by position, with an interval that is symmetric on a log scale.

    The variance of the logarithm is the delta method's, the quantile Student's t. The bounds are positive and finite,
    and the inverse ratio has the reciprocal interval. How often it is wrong: docs/results/self-check.md. (Fieller's
    interval agrees where the ratio is well known. Where it is not, Fieller's is very lopsided or has no end.)
    """
    top, bottom = np.asarray(over, dtype=float), np.asarray(under, dtype=float)
    a, b = float(top.mean()), float(bottom.mean())
    if len(top) < 2:
        return Interval(a / b)
    deviation = float((top / a - bottom / b).std(ddof=1)) / len(top) ** 0.5
    factor = float(np.exp(_t(len(top)) * deviation))
    return Interval(a / b, a / b / factor, a / b * factor)


def _t(number: int) -> float:
    return float(student.ppf((1 + CONFIDENCE) / 2, number - 1))


def resampled_ratio(over: Sequence[float], under: Sequence[float]) -> Interval:
    """The same ratio, its interval from resampling pairs (``scipy.stats.bootstrap``: paired, percentile, fixed seed).

    For the programs of one seed it holds for that arrival sequence alone. For the means of several seeds it is an
    alternative to ``ratio_interval`` that is too narrow where seeds are few (docs/results/self-check.md).
    """
    top, bottom = np.asarray(over, dtype=float), np.asarray(under, dtype=float)
    estimate = float(top.mean() / bottom.mean())
    if len(top) < 2:
        return Interval(estimate)
    found = bootstrap(
        (top, bottom),
        lambda a, b, axis: a.mean(axis=axis) / b.mean(axis=axis),
        paired=True,
        vectorized=True,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Interval(estimate, float(found.low), float(found.high))


def standardized_difference(over: Sequence[float], under: Sequence[float]) -> float | None:
    """Effect size over seeds: mean paired difference / its standard deviation, corrected for few pairs (Hedges' g_z).

    None with one seed, or where the difference does not vary.
    """
    differences = np.asarray(over, dtype=float) - np.asarray(under, dtype=float)
    number = len(differences)
    if number < 2:
        return None
    spread = float(differences.std(ddof=1))
    if spread <= 1e-12 * max(1.0, float(np.abs(differences).max())):
        return None
    return float(differences.mean()) / spread * (1 - 3 / (4 * number - 5))


def share_sooner(over: Sequence[float], under: Sequence[float]) -> float:
    """Effect size over programs: the share that finished sooner under the second policy, ties (to 1 ms) half."""
    gain = np.asarray(over, dtype=float) - np.asarray(under, dtype=float)
    tied = np.abs(gain) <= SAME_INSTANT_S
    return float(np.mean(np.where(tied, 0.5, gain > 0)))


def share_later(over: Sequence[float], under: Sequence[float]) -> float:
    """The share of programs that finished later under the second policy, by more than 1 ms."""
    return float(np.mean(np.asarray(under, dtype=float) - np.asarray(over, dtype=float) > SAME_INSTANT_S))


def paired_jcts(ours: Sequence[ProgramTimes], theirs: Sequence[ProgramTimes]) -> tuple[list[float], list[float]]:
    """Completion times of the programs that finished in both runs."""
    by_id = {program.program_id: program.jct_s for program in theirs}
    both = [(program.jct_s, by_id[program.program_id]) for program in ours if program.program_id in by_id]
    return [jct for jct, _ in both], [jct for _, jct in both]


def check_same_arrivals(
    where: str, ours: Sequence[ProgramTimes], theirs: Sequence[ProgramTimes], closed_loop: bool = False
) -> None:
    """Refuse two runs of a seed whose programs are not the same, or were not sent at the same instants.

    With fixed concurrency (``closed_loop``) the instants are the server's doing and are not compared.

    Raises:
        AnalysisError: naming ``where`` and the first program that differs.
    """
    mine, other = ({p.program_id: p.due_s for p in programs} for programs in (ours, theirs))
    alone = sorted(set(mine) ^ set(other))
    if alone:
        raise AnalysisError(f"{where} cannot be compared: program {alone[0]!r} is in one of them only")
    if closed_loop:
        return
    offsets = _from_first(mine), _from_first(other)
    for program_id, due_s in offsets[0].items():
        if program_id in offsets[1] and abs(due_s - offsets[1][program_id]) > SAME_INSTANT_S:
            raise AnalysisError(
                f"{where} cannot be compared: program {program_id!r} arrives {due_s:.3f} s after the first one in one "
                f"and {offsets[1][program_id]:.3f} s in the other"
            )


def _from_first(due: dict[str, float | None]) -> dict[str, float]:
    """Recorded instants relative to the first one, since the clocks of two clients do not start together."""
    known = {program_id: due_s for program_id, due_s in due.items() if due_s is not None}
    first = min(known.values(), default=0.0)
    return {program_id: due_s - first for program_id, due_s in known.items()}
