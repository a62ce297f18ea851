"""``compare --fail-if``: conditions under which a comparison fails, for CI."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from continuum_analysis.compare.conditions import Condition, Outcome, Pair
from continuum_analysis.compare.runs import Run, baseline_of, by_arm, by_load
from continuum_analysis.records.timeline import AnalysisError
from continuum_traces.names import which

from continuum_bench.options.reports import GateOptions
from continuum_bench.show import print_notice

CONDITION_HOLDS = 3
"""The exit code if a condition holds."""
Directories = Mapping[Path, Sequence[Run]]


def side_by_side(directories: Directories) -> bool:
    """Return whether two directories contain the same arm and seed, and so are two versions of one experiment."""
    seen = [{(run.arm, run.manifest.seed, run.manifest.workload.jps) for run in runs} for runs in directories.values()]
    return sum(map(len, seen)) > len(set().union(*seen))


def read_conditions(options: GateOptions) -> list[Condition]:
    """Parse the conditions of ``--fail-if``.

    Raises:
        AnalysisError: a text is no condition.
    """
    return [Condition(text, options.point_estimate) for text in options.fail_if or ()]


def apply_conditions(
    directories: Directories, conditions: Sequence[Condition], baseline: str | None
) -> Sequence[Outcome]:
    """Return the outcome of each condition for each arm.

    Directories that are versions of one experiment are compared with the first of them, other runs with the baseline.

    Raises:
        AnalysisError: a condition is about an arm or a metric that these runs do not have, or a policy raised.
    """
    if not conditions:
        return ()
    raised = [run for runs in directories.values() for run in runs if run.plugin_errors]
    if raised:
        raise AnalysisError(
            f"{raised[0].path}: the policy raised {raised[0].plugin_errors} exceptions during this run, which is "
            "therefore no result of the policy; mend the policy (the server's log names its fault) and run again"
        )
    pairs = list(_versions(directories) if side_by_side(directories) else _arms(directories, baseline))
    return [outcome for condition in conditions for outcome in _applied(condition, pairs)]


def conclude(outcomes: Sequence[Outcome]) -> int:
    """Print each outcome. Returns ``CONDITION_HOLDS`` if a condition holds, else 0."""
    for outcome in outcomes:
        print_notice(outcome.text)
    return CONDITION_HOLDS if any(outcome.failed for outcome in outcomes) else 0


def _applied(condition: Condition, pairs: Sequence[Pair]) -> list[Outcome]:
    chosen = [pair for pair in pairs if condition.arm in (None, pair.runs[0].arm)]
    if condition.arm is None:
        judged = [pair for pair in chosen if pair.runs is not pair.base]
        chosen = judged or chosen
    if not chosen:
        names = dict.fromkeys(pair.runs[0].arm for pair in pairs)
        raise AnalysisError(f"--fail-if {condition.text}: no run of {condition.arm}; {which(condition.arm, names)}")
    return [condition.apply(pair) for pair in chosen]


def _arms(directories: Directories, baseline: str | None) -> Iterator[Pair]:
    """Pair each arm with the baseline, at each load. The baseline is paired with itself."""
    loads = by_load([run for runs in directories.values() for run in runs])
    for jps, runs in loads.items():
        arms = by_arm(runs)
        base = arms[baseline_of(arms, baseline)]
        yield from (Pair(_name(arm, jps, loads), group, base) for arm, group in arms.items())


def _versions(directories: Directories) -> Iterator[Pair]:
    """Pair each arm of the later directories with the same arm of the first directory."""
    (first, *later) = directories
    loads = by_load([run for runs in directories.values() for run in runs])
    for path in later:
        for jps in loads:
            before, after = (by_arm(by_load(directories[each]).get(jps, ())) for each in (first, path))
            for arm, group in after.items():
                if arm not in before:
                    raise AnalysisError(f"{path}: {_name(arm, jps, loads)} has no counterpart in {first}")
                yield Pair(f"{_name(arm, jps, loads)} in {path}", group, before[arm])


def _name(arm: str, jps: float | None, loads: Mapping[float | None, object]) -> str:
    return arm if len(loads) == 1 else f"{arm} at {jps:g} programs/s"
