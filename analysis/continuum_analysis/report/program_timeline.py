"""Programs on a time axis with queue, prefill, decode, tool and pin: the data that report.js draws."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from continuum_analysis.compare.runs import Run
from continuum_analysis.records.misses import CAUSES, Return
from continuum_analysis.records.timeline import PinTimes, ProgramTimes, TurnTimes
from continuum_analysis.report.figure_kit import Groups, shown_runs

MOST_TURNS = 10_000
"""At most this many turns of all policies are in the page, so that it stays below 1.5 MB. With more turns, the page
contains only every second, third ... program, and says so."""


def timeline_data(groups: Groups, cast: Sequence[str] = ()) -> dict[str, Any]:
    """Return the data for report.js, with times in whole milliseconds: for each policy the programs of one run, and for
    the film the two policies of ``cast`` with three programs."""
    runs = list(shown_runs(groups).values())
    turns = sum(len(program.turns) for run in runs for program in run.metrics.facts.machine)
    step = max(1, -(-turns // MOST_TURNS))
    tools = sorted({turn.tool or "" for run in runs for p in run.metrics.facts.machine for turn in p.turns})
    return {
        "causes": [*CAUSES, "first sight"],
        "tools": tools,
        "step": step,
        "film": _film(cast, {run.arm: run.metrics.facts.machine[::step] for run in runs}),
        "runs": [_run_data(run, step, {tool: number for number, tool in enumerate(tools)}) for run in runs],
    }


def _film(cast: Sequence[str], programs: Mapping[str, Sequence[ProgramTimes]]) -> dict[str, Any]:
    """Return the policies of the film and three programs by the time that they saved: the median and the extremes."""
    shown = [policy for policy in cast if policy in programs] or list(programs)[:2]
    times = [{p.program_id: p.jct_s for p in programs[policy] if p.finished} for policy in shown]
    saved = {name: jct_s - times[-1][name] for name, jct_s in times[0].items() if name in times[-1]} if times else {}
    ranked = sorted(saved, key=lambda name: saved[name])
    if not ranked:
        return {"policies": shown, "programs": []}
    picked = {"typical": ranked[len(ranked) // 2], "gained most": ranked[-1], "lost most": ranked[0]}
    if len(times) < 2 or saved[ranked[0]] >= 0:
        picked["gained least"] = picked.pop("lost most")
    return {"policies": shown, "programs": [[why, name] for why, name in picked.items()]}


def _run_data(run: Run, step: int, tools: dict[str, int]) -> dict[str, Any]:
    programs = run.metrics.facts.machine
    start_s = programs[0].arrive_s
    why = {(returned.program_id, returned.turn.index): returned for returned in run.metrics.facts.returns}
    return {
        "policy": run.arm,
        "seed": run.manifest.seed,
        "total": len(programs),
        "end": _ms(max(p.finish_s for p in programs) - start_s),
        "programs": [
            [p.program_id, p.state, _ms(p.arrive_s - start_s), _ms(p.jct_s), _ms(p.bubble_s), _turns(p, why, tools)]
            for p in programs[::step]
        ],
    }


def _turns(
    program: ProgramTimes, why: dict[tuple[str, int], Return], tools: dict[str, int]
) -> list[list[int | list[int]]]:
    pins = {pin.turn: pin for pin in program.pins}
    order = {cause: number for number, cause in enumerate(CAUSES)}
    rows = []
    for turn in program.turns:
        returned, pin = why.get((program.program_id, turn.index)), pins.get(turn.index)
        cause = order[returned.cause] if returned else (len(order) if turn.index == 0 else -1)
        tokens = [turn.prompt_tokens, -1 if turn.hit_tokens is None else turn.hit_tokens, turn.output_tokens]
        row: list[int | list[int]] = [*_phases(program, turn), *tokens, tools[turn.tool or ""], cause]
        row += _pin(pin, program.finish_s)
        waits = [*turn.requeues, *turn.earlier_waits, *(pair for try_ in turn.earlier for pair in try_.requeues)]
        if waits:
            row.append([_ms(t - program.arrive_s) for pair in waits for t in pair])
        if turn.again_s is not None:
            row.append(_ms(turn.again_s - turn.arrive_s))
        rows.append(row)
    return rows


def _phases(program: ProgramTimes, turn: TurnTimes) -> list[int]:
    """Return the turn's first arrival, counted from the program's, then the queue, prefill and decode times of its last
    try; -1 means not recorded."""
    first_s, finish_s = turn.first_token_s, turn.finish_s
    start_s = turn.last_arrive_s if turn.start_s is None else turn.start_s
    wait_s = None if turn.start_s is None else start_s - turn.last_arrive_s
    prefill = -1 if first_s is None else _ms(first_s - start_s)
    decode = -1 if finish_s is None else _ms(finish_s - (start_s if first_s is None else first_s))
    return [_ms(turn.arrive_s - program.arrive_s), _ms(wait_s), prefill, decode]


def _pin(pin: PinTimes | None, end_s: float) -> list[int]:
    if pin is None:
        return [-1, -1]
    until_s = end_s if pin.until_s is None else pin.until_s
    return [_ms(until_s - pin.since_s), _ms(pin.ttl_s)]


def _ms(seconds: float | None) -> int:
    return -1 if seconds is None else round(seconds * 1000)


def timeline_json(groups: Groups, cast: Sequence[str] = ()) -> str:
    """Return the data as JSON for a script element."""
    return json.dumps(timeline_data(groups, cast), separators=(",", ":")).replace("<", "\\u003c")
