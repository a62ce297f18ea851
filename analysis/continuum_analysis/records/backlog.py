"""The work that has arrived and is not done, in turns, and by how much it grows while programs arrive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from continuum_analysis.records.facts import RunFacts
from continuum_analysis.records.timeline import ProgramTimes

FEWEST_PROGRAMS = 10
INSTANTS = 201
"""Number of instants at which the backlog is read for the fit."""


def growth_of_backlog(facts: RunFacts) -> float | None:
    """Return the turns by which the backlog grows for each turn that arrives (see docs/metrics.md).

    A count of turns is used rather than one of programs: whatever the order of service, an engine that is always busy
    ends about as many turns in a time, while the programs that end in it differ widely (few under least attained
    service, which ends all at the same time).
    """
    window_s = _steady_s(facts)
    if window_s is None:
        return None
    arrivals = sorted(_arrivals(facts))
    arrived = np.cumsum([0.0, *(turns for _, turns in arrivals)])
    ends_s = np.sort([end_s for program in facts.machine for end_s in _ends_s(facts, program)])
    instants_s = np.linspace(*window_s, INSTANTS)
    begun = arrived[np.searchsorted([due_s for due_s, _ in arrivals], instants_s, "right")]
    left = begun - np.searchsorted(ends_s, instants_s, "right")
    return float(
        np.polyfit(instants_s - window_s[0], left, 1)[0] * (window_s[1] - window_s[0]) / (begun[-1] - begun[0])
    )


def _steady_s(facts: RunFacts) -> tuple[float, float] | None:
    """Return the instants between which the engine should be in a steady state; None if there are none.

    Without a warm-up, the first quarter of the programs fills the engine.
    """
    dues_s = _dues_s(facts, facts.everyone)
    if facts.closed_loop or len(dues_s) < FEWEST_PROGRAMS:
        return None
    warm = min(_dues_s(facts, facts.uncounted), default=dues_s[0]) < dues_s[0]
    since_s, until_s = dues_s[0 if warm else len(dues_s) // 4], dues_s[-1]
    return (since_s, until_s) if since_s < until_s else None


def _dues_s(facts: RunFacts, programs: Iterable[ProgramTimes]) -> Sequence[float]:
    return sorted(due_s for program in programs if (due_s := _due_s(facts, program)) is not None)


def _due_s(facts: RunFacts, program: ProgramTimes) -> float | None:
    if facts.clock == "client":
        return program.due_s
    return program.arrive_s if program.turns else program.due_from_arrival_s


def _arrivals(facts: RunFacts) -> Iterable[tuple[float, float]]:
    """Yield when each program was due, and its turns. An unfinished program has as many as others have in the mean, or
    those that were recorded if these are more."""
    programs = (*facts.everyone, *facts.uncounted)
    whole = [len(program.turns) for program in programs if program.finished]
    usual = float(np.mean(whole)) if whole else 1.0
    for program in programs:
        if (due_s := _due_s(facts, program)) is not None:
            turns = len(program.turns)
            yield due_s, max(turns, usual) if program.state == "unfinished" else turns


def _ends_s(facts: RunFacts, program: ProgramTimes) -> Iterable[float]:
    if facts.clock == "scheduler":
        return [turn.finish_s for turn in program.turns if turn.finish_s is not None]
    records = [turn.client for turn in program.turns if turn.client is not None]
    return [record.finish_s for record in records if record.finish_s is not None]
