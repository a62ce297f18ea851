"""From a trace to jobs: which programs, how long, when they arrive."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from continuum_traces.importers.registry import read_any
from continuum_traces.jsonl import TooLong, too_long
from continuum_traces.schema import Program
from continuum_traces.synth import (
    BUNDLED,
    Reading,
    bundled,
    bundled_path,
    load_profile,
    put_behind,
    scale_lengths,
    scale_turns,
    synthesize,
)

from continuum_bench.errors import BenchError
from continuum_bench.options.run import WorkloadOptions
from continuum_bench.workload.arrivals import arrival_times, uses_rate
from continuum_bench.workload.tool_times import RECORDED, tool_times

__all__ = ["BenchError", "Play", "Workload", "WorkloadRequest", "arrivals", "load_workload"]


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """What the user asked for."""

    name: str
    traces: Path | None = None
    form: str | None = None
    num_programs: int | None = None
    jps: float = WorkloadOptions.jps
    turn_scale: int = 1
    length_scale: float = 1.0
    shared_prefix: int = 0
    reading: Reading = "context"
    skip_invalid: bool = False
    context_tokens: int = 131072
    arrivals: str = "poisson"
    tool_times: str = RECORDED


@dataclass(frozen=True, slots=True)
class Workload:
    programs: tuple[Program, ...]
    repeats: int
    """Times the set is played through to reach the number asked for."""
    skipped: tuple[TooLong, ...]
    facts: dict[str, Any]
    """What the manifest says."""


@dataclass(frozen=True, slots=True)
class Play:
    """One arrival: which program, when, and the salt that keeps repeats apart."""

    program: Program
    arrival_s: float
    salt: int


def load_workload(request: WorkloadRequest) -> Workload:
    """Programs for a run.

    Raises:
        BenchError: nothing left to run, numbers out of range, a turn longer than the model's context,
            recorded arrivals that the trace does not hold, or other tool times for a trace without tools.
        TraceError: a fault in the file.
    """
    _check(request)
    times = arrival_times(request.arrivals)  # refuse a wrong form before anything else
    tool_times(request.tool_times)
    programs, source = _read(request)
    if request.length_scale != 1:
        programs = [scale_lengths(program, request.length_scale) for program in programs]
    if request.turn_scale > 1:
        programs = [scale_turns(program, request.turn_scale) for program in programs]
    if request.shared_prefix:
        programs = put_behind(programs, request.shared_prefix)
    kept, skipped = _fitting(programs, request)
    number = request.num_programs or len(kept)
    repeats = -(-number // len(kept))
    chosen = kept[:number] if repeats == 1 else kept
    times(np.random.default_rng(0), request.jps, chosen)  # refuse a trace without the offsets that are asked for
    if request.tool_times != RECORDED and not any(turn.tool_calls for program in chosen for turn in program.turns):
        raise BenchError(f"--tool-times {request.tool_times}: the programs call no tools")
    return Workload(tuple(chosen), repeats, skipped, _facts(request, chosen, number, source, skipped))


def _check(request: WorkloadRequest) -> None:
    if not (request.jps > 0 and np.isfinite(request.jps)):
        raise BenchError(f"--jps {request.jps:g}: programs per second must be above 0")
    if request.num_programs is not None and request.num_programs < 1:
        raise BenchError(f"--num-programs {request.num_programs}: must be at least 1")
    if request.turn_scale < 1:
        raise BenchError(f"--turn-scale {request.turn_scale}: must be at least 1")
    if not 0 < request.length_scale < np.inf:
        raise BenchError(f"--length-scale {request.length_scale:g}: must be above 0")
    if request.shared_prefix < 0:
        raise BenchError(f"--shared-prefix {request.shared_prefix}: must not be negative")


def _read(request: WorkloadRequest) -> tuple[list[Program], str]:
    """Programs and the SHA-256 of the file they were read from (where there is no one file: of themselves)."""
    if request.traces is not None:
        programs = list(read_any(request.traces, request.form))
        content = repr(programs).encode() if request.traces.is_dir() else request.traces.read_bytes()
        return programs, hashlib.sha256(content).hexdigest()
    if request.name in BUNDLED and request.reading == "context":
        return list(bundled(request.name)), hashlib.sha256(bundled_path(request.name).read_bytes()).hexdigest()
    scale = 0.4 if request.name == "bfcl" else 1.0
    programs = synthesize(load_profile(request.name), 100, 2026, request.reading, scale)
    return programs, hashlib.sha256(repr(programs).encode()).hexdigest()


def _fitting(programs: Sequence[Program], request: WorkloadRequest) -> tuple[list[Program], tuple[TooLong, ...]]:
    kept, skipped = [], []
    for program in programs:
        problem = too_long(program, request.context_tokens)
        if problem is None:
            kept.append(program)
        elif request.skip_invalid:
            skipped.append(problem)
        else:
            raise BenchError(
                f"{problem}; the model's context is {request.context_tokens}. "
                "Leave such programs out with --skip-invalid"
            )
    if not kept:
        raise BenchError("no program left to run")
    return kept, tuple(skipped)


def _facts(
    request: WorkloadRequest, programs: Sequence[Program], number: int, sha256: str, skipped: tuple[TooLong, ...]
) -> dict[str, Any]:
    return {
        "name": request.name,
        "file": request.traces.name if request.traces else None,
        "sha256": sha256,
        "programs": number,
        "distinct_programs": len(programs),
        "turns": sum(len(programs[i % len(programs)].turns) for i in range(number)),
        "synthetic": any(program.synthetic for program in programs),
        "tokens_reading": request.reading,
        "turn_scale": request.turn_scale,
        **({"length_scale": request.length_scale} if request.length_scale != 1 else {}),
        **({"shared_prefix": request.shared_prefix} if request.shared_prefix else {}),
        **({"jps": request.jps} if uses_rate(request.arrivals) else {}),
        "arrivals": request.arrivals,
        **({"tool_times": request.tool_times} if request.tool_times != RECORDED else {}),
        "last_step": "known when the last request is sent (replay)",
        "skipped": [str(problem) for problem in skipped],
    }


def arrivals(workload: Workload, jps: float, seed: int) -> list[Play]:
    """The programs in a random order (recorded: their own); equal arguments give equal plays to all policies."""
    rng = np.random.default_rng(seed)
    number = int(workload.facts["programs"])
    order = [i % len(workload.programs) for i in range(number)]
    if not workload.facts["arrivals"].startswith("recorded"):
        rng.shuffle(order)
    times = arrival_times(workload.facts["arrivals"])(rng, jps, [workload.programs[i] for i in order])
    played: dict[int, int] = {}
    plays = []
    for index, arrival_s in zip(order, times, strict=True):
        salt = played.get(index, 0)
        played[index] = salt + 1
        plays.append(Play(replace(workload.programs[index]), float(arrival_s), salt))
    spec = workload.facts.get("tool_times", RECORDED)
    return plays if spec == RECORDED else _with_tool_times(plays, spec, seed)


def _with_tool_times(plays: list[Play], spec: str, seed: int) -> list[Play]:
    """The same plays with other tool times, in the order of their arrival."""
    ordered = sorted(plays, key=lambda play: play.arrival_s)
    changed = tool_times(spec)(random.Random(seed), [play.program for play in ordered])
    return [replace(play, program=program) for play, program in zip(ordered, changed, strict=True)]
