"""The verdict on runs that were compared: one sentence that says which policies were the fastest, and no more than the
intervals show. The terminal and the report print this text."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Literal

from continuum_traces.names import listed

from continuum_analysis.compare.intervals import ENOUGH_SEEDS, Interval
from continuum_analysis.compare.summary import Summary

TIE = 0.02
"""A ratio without an interval, which fewer than three seeds give, is a tie within this distance of 1."""
LITTLE = 0.01
"""A program that finished later by no more than this share is not called hit."""
MOST_NAMED = 4
"""So many policies are named if too few seeds show which was the fastest."""
MORE_SEEDS = "Five seeds give an interval."
Outcome = Literal["faster", "tie", "slower"]


@dataclass(frozen=True, slots=True)
class Standing:
    """A policy beside the baseline."""

    policy: str
    ratio: Interval
    """Its mean JCT / the baseline's."""
    outcome: Outcome


def outcome(ratio: Interval) -> Outcome:
    """Judge the ratio of a policy's value to another's, of which less is better.

    ``tie``: the interval covers 1; or there is none, and the ratio is within 2% of 1.
    """
    low, high = ratio.bounds or (ratio.mean - TIE, ratio.mean + TIE)
    if low <= 1.0 <= high:
        return "tie"
    return "faster" if ratio.mean < 1 else "slower"


def outcome_words(ratio: Interval) -> str:
    """Return the outcome in a table's words, which say so if no interval proves it."""
    return outcome(ratio) if ratio.bounds else f"{outcome(ratio)}, no proof"


def beside(summary: Summary, one: str, other: str) -> Outcome:
    """Judge one policy beside another that is no baseline; ``tie`` if no interval compares them."""
    comparison = summary.pairs.get((one, other)) or summary.pairs.get((other, one))
    if comparison is None or comparison.jct_ratio.bounds is None:
        return "tie"
    result = outcome(comparison.jct_ratio)
    turned: dict[Outcome, Outcome] = {"faster": "slower", "slower": "faster"}
    return result if (one, other) in summary.pairs else turned.get(result, result)


def verdict(summary: Summary) -> str:
    """Return both parts of ``verdict_parts`` as one text."""
    return " ".join(filter(None, verdict_parts(summary)))


def fastest(summary: Summary) -> str | None:
    """Return the policy that the verdict names first, baseline excluded; None if it names none."""
    named = _judged(summary)[1]
    return named[0].policy if named else None


def verdict_parts(summary: Summary) -> tuple[str, str]:
    """Return the sentence that says which policies were the fastest; then its intervals, what did not finish, and what
    the fastest policy cost."""
    sentence, named = _judged(summary)
    finished, waiting = _finished(summary, named), _waiting(summary)
    overloaded = [name for name, arm in summary.arms.items() if arm.overloaded]
    conditions = [f"more work arrived than {_who(overloaded, summary)} could finish"] if overloaded else []
    conditions += ["not all programs finished"] if finished else []
    conditions += ["requests still waited for a first token at the end"] if waiting else []
    first = f"{listed(conditions)}; " if conditions else ""
    first += "in a run of this length, " if overloaded else ""
    rest = [_intervals(summary, named), finished, waiting, _cost(summary, named)]
    return as_sentence(f"{first}{sentence}", summary.arms), " ".join(filter(None, rest))


def _who(policies: Sequence[str], summary: Summary) -> str:
    return "any policy" if len(policies) == len(summary.arms) > 1 else listed(policies)


def as_sentence(text: str, policies: Container[str]) -> str:
    """End a clause with a full stop, and begin it with a capital letter unless its first word is a policy."""
    return f"{text if text.partition(' ')[0].rstrip(',') in policies else text[0].upper() + text[1:]}."


def _judged(summary: Summary) -> tuple[str, Sequence[Standing]]:
    """Return the verdict without its conditions, and the policies whose ratios it names."""
    if summary.manifest.workload.thinking:
        return _turn_times(summary), []
    ranked = {name: summary.arms[name].comparison for name in summary.ranked if name != summary.baseline}
    compared = {name: each for name, each in ranked.items() if each is not None}
    if compared:
        standings = [Standing(name, each.jct_ratio, outcome(each.jct_ratio)) for name, each in compared.items()]
        seeds = min(len(each.seeds) for each in compared.values())
        return claim(standings, summary.baseline, seeds, lambda one, other: beside(summary, one, other))
    if len(summary.arms) == 1:
        mean_s = summary.arms[summary.baseline].mean("jct_mean_s")
        took = "no program finished" if mean_s is None else f"a program took {_seconds(mean_s)} in the mean"
        return f"under {summary.baseline} {took}; no other policy was played", []
    fewer = [name for name, arm in summary.arms.items() if arm.comparison and name != summary.baseline]
    if fewer:
        return f"no comparison: fewer programs finished under {listed(fewer)} than under {summary.baseline}", []
    return "no comparison: no program finished under two policies on the same arrivals", []


def claim(
    standings: Sequence[Standing], baseline: str, seeds: int, beside: Callable[[str, str], Outcome], scope: str = ""
) -> tuple[str, Sequence[Standing]]:
    """Return the clause that says which policies were the fastest, and the policies whose ratios it names.

    Args:
        standings: the policies beside the baseline, lowest ratio first, at least one.
        seeds: on which this rests.
        beside: judges one policy beside another.
        scope: ends the clause, such as `` on average over 3 points of the grid``; empty: there is one point.
    """
    if seeds < ENOUGH_SEEDS:
        named = standings[:MOST_NAMED]
        return f"{_times(named, baseline)}{scope} ({_few(seeds)})", named
    faster = [each for each in standings if each.outcome == "faster"]
    if not faster:
        named = [each for each in standings if each.outcome == "tie"]
        if named:
            numbers = listed(f"{each.ratio.mean:.2f}" for each in named)
            return f"{_tie(named)} with {baseline}{scope} (no difference shown): {numbers} of its time", named
        return f"{_times(standings, baseline)}{scope}", standings
    best = faster[0]
    level = [each for each in standings if each is not best and beside(best.policy, each.policy) == "tie"]
    named = [best, *(each for each in level if each in faster)]
    unsure = [each for each in level if each not in faster]
    text = f"{_times(named, baseline)}{scope}{', a tie' * (len(named) > 1)}"
    if unsure:
        return f"{text}; {_tie(unsure)} with {best.policy}", named
    return f"{text}, the least of {len(standings) + 1} policies" if len(standings) > len(named) else text, named


def _few(seeds: int) -> str:
    return "one seed: no proof" if seeds == 1 else f"{seeds} seeds: no proof"


def _tie(standings: Sequence[Standing]) -> str:
    return f"{listed(each.policy for each in standings)} {'tie' if len(standings) > 1 else 'ties'}"


def _times(standings: Sequence[Standing], baseline: str) -> str:
    """Return ``a took 0.54, b 0.61 of vllm's time``."""
    first, *rest = standings
    texts = [f"{first.policy} took {first.ratio.mean:.2f}", *(f"{each.policy} {each.ratio.mean:.2f}" for each in rest)]
    return f"{', '.join(texts)} of {baseline}'s time"


def _turn_times(summary: Summary) -> str:
    """Return the time per turn under each arm, shortest first, where people think between turns."""
    times = {name: time for name, arm in summary.arms.items() if (time := arm.metrics["turn_mean_s"]) is not None}
    if not times:
        return "no turn has a recorded time"
    shown = sorted(times, key=lambda name: times[name].mean)
    texts = (f"{times[name].text('{:.2f} s'.format)} under {name}" for name in shown)
    proof = f" ({_few(len(summary.seeds))})" if len(summary.seeds) < ENOUGH_SEEDS else ""
    return f"a turn took {listed(texts)} in the mean{proof}"


def _intervals(summary: Summary, named: Sequence[Standing]) -> str:
    """Return the intervals of the ratios that the sentence names."""
    if not named:
        return ""
    if any(each.ratio.bounds is None for each in named):
        return MORE_SEEDS
    bounds = listed(each.ratio.bounds_text("{:.2f}".format) for each in named)
    return f"95% interval{'s' * (len(named) > 1)} over {len(summary.seeds)} seeds: {bounds}."


def _finished(summary: Summary, named: Sequence[Standing]) -> str:
    """Say how many programs finished under each policy, and who is not ranked for that; empty if all finished."""
    comparisons = {name: arm.comparison for name, arm in summary.arms.items() if arm.comparison is not None}
    if all(comparison.finished[0] == comparison.programs[1] for comparison in comparisons.values()):
        return ""
    counts = ", ".join(f"{name} {each.finished[0]} of {each.programs[1]}" for name, each in comparisons.items())
    fewer = [name for name in comparisons if name not in summary.ranked]
    unranked = f" Fewer finished under {listed(fewer)}: not ranked." if named and fewer else ""
    return f"Programs that finished: {counts}.{unranked}"


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
    return f"Requests without a first token at the end, which count with their wait so far: {counts}."


def _cost(summary: Summary, named: Sequence[Standing]) -> str:
    """Say how many programs finished later than under the baseline, how much later the most delayed one, and how long
    the slowest first tokens took."""
    best = named[0].policy if named else summary.baseline
    comparison, baseline = summary.arms[best].comparison, summary.baseline
    if best == baseline or comparison is None:
        return ""
    if comparison.later == 0:
        late = f"no program finished later than under {baseline}"
    elif comparison.worst < 1 + LITTLE:
        late = f"no program finished more than 1% later than under {baseline}"
    else:
        share = f"{comparison.later:.0%}" if comparison.later >= 0.01 else "fewer than 1%"
        worst = f"the worst-hit after {comparison.worst:.2f} times the time"
        late = f"{share} of the programs finished later than under {baseline}, {worst}"
    ttft, base = (summary.arms[name].metrics.get("ttft_p99_s") for name in (best, baseline))
    tail = f" TTFT P99: {_seconds(ttft.mean)} against {baseline}'s {_seconds(base.mean)}." if ttft and base else ""
    return f"Under {best} {late}.{tail}"


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 10 else f"{value:.2g} s"
