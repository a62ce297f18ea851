"""Whether runs of a scenario (``--scenario``) kept the rules of its benchmark, and why not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import isfinite
from typing import Any

from continuum_traces.schema import TurnRecord

from continuum_analysis.compare.runs import Run
from continuum_analysis.records.facts import RunFacts

LEAST_S = {"agentx": 900.0}
"""Seconds that a run must measure at least after its warm-up."""
MOST_FAILED = {"agentx": 0.10}
"""The largest share of failed requests; 0 where a benchmark names none."""
MOST_IDLE_S = {"agentx": 10.0}
"""The longest time without any request (``--max-idle-all-s``)."""
LATE_START_S = 0.1
"""A client's timer may be as late."""
LEAST_SERVED = {"agentx": 0.95}
"""The share of the measured time up to which tokens must come at least: a server that hangs is no result."""


def scenario_of(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Return the scenario's name, whether the runs are comparable, and the reasons if not; None: no scenario."""
    names = {name for run in runs if (name := run.manifest.workload.scenario) is not None}
    if len(names) != 1 or not runs:
        return None
    (name,) = names
    reasons = list(dict.fromkeys(reason for run in runs for reason in _reasons(name, run)))
    return {"name": name, "comparable": not reasons, "reasons": reasons}


def scenario_line(scenario: dict[str, Any]) -> str:
    """Write ``scenario_of`` as a line."""
    if scenario["comparable"]:
        return f"scenario {scenario['name']}: comparable: true"
    return f"scenario {scenario['name']}: comparable: false: {'; '.join(scenario['reasons'])}"


def _reasons(name: str, run: Run) -> Iterator[str]:
    yield from run.manifest.workload.rules_broken or ()
    facts = run.metrics.facts
    wall_s = facts.wall_s if isfinite(facts.wall_s) else 0.0  # the warm-up did not end
    if wall_s < (least_s := LEAST_S.get(name, 0.0)):
        yield f"only {wall_s:.0f} s were measured, {least_s:.0f} s are the least"
    turns = [turn for program in facts.machine for turn in program.turns if turn.ended]
    failed = sum(not turn.ended_well for turn in turns)
    if failed > MOST_FAILED.get(name, 0.0) * len(turns):
        yield f"{failed} of {len(turns)} requests failed"
    if name in MOST_IDLE_S and (idle_s := longest_idle_s(facts)) > MOST_IDLE_S[name] + LATE_START_S:
        yield f"no request ran for {idle_s:.0f} s; the benchmark's client shortens that to {MOST_IDLE_S[name]:.0f} s"
    if wall_s and (silent_s := _silent_s(facts)) > (1 - LEAST_SERVED.get(name, 0.0)) * wall_s:
        yield f"no token came in the last {silent_s:.0f} s"


def longest_idle_s(facts: RunFacts) -> float:
    """Return the longest time between two requests in which none was open, on the client's clock."""
    spans = sorted((r.due_s, r.finish_s) for r in _records(facts) if r.finish_s is not None)
    longest_s, until_s = 0.0, spans[0][1] if spans else 0.0
    for _, (due_s, finish_s) in pairwise(spans):
        longest_s, until_s = max(longest_s, due_s - until_s), max(until_s, finish_s)
    return longest_s


def _silent_s(facts: RunFacts) -> float:
    """Return the seconds from the last first token or end of an answer to the end of what is measured."""
    if facts.window_s is None:
        return 0.0
    tokens = [s for r in _records(facts) if not r.error for s in (r.first_token_s, r.finish_s) if s is not None]
    return max(0.0, facts.window_s[1] - max(tokens, default=facts.window_s[0]))


def _records(facts: RunFacts) -> list[TurnRecord]:
    return [turn.client for program in facts.machine for turn in program.turns if turn.client is not None]
