"""From a trace file, or a bundled set, to the programs of a run. Every file is read once per process."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
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


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """Which programs the user asked for."""

    name: str
    traces: Path | None = None
    form: str | None = None
    num_programs: int | None = None
    turn_scale: int = 1
    length_scale: float = 1.0
    shared_prefix: int = 0
    reading: Reading = "context"
    skip_invalid: bool = False
    context_tokens: int = 131072


@dataclass(frozen=True, slots=True)
class LoadedTrace:
    """The programs to play, without the instants at which they arrive."""

    programs: tuple[Program, ...]
    number: int
    """Programs to play; the set is repeated where it holds fewer."""
    skipped: tuple[TooLong, ...]
    facts: dict[str, Any]
    """For the manifest."""


def load_trace(request: TraceRequest) -> LoadedTrace:
    """The programs asked for.

    Raises:
        BenchError: nothing left to run, numbers out of range, or a turn longer than the model's context.
        TraceError: a fault in the file.
    """
    _check(request)
    return _load(request, _version(request.traces))


@lru_cache(maxsize=32)
def _load(request: TraceRequest, version: object) -> LoadedTrace:
    read, sha256 = _read(request.name, request.traces, request.form, request.reading, version)
    programs = list(read)
    if request.length_scale != 1:
        programs = [scale_lengths(program, request.length_scale) for program in programs]
    if request.turn_scale > 1:
        programs = [scale_turns(program, request.turn_scale) for program in programs]
    if request.shared_prefix:
        programs = put_behind(programs, request.shared_prefix)
    kept, skipped = _fitting(programs, request)
    number = request.num_programs or len(kept)
    chosen = tuple(kept[:number])
    return LoadedTrace(chosen, number, skipped, _facts(request, chosen, number, sha256))


def _check(request: TraceRequest) -> None:
    if request.num_programs is not None and request.num_programs < 1:
        raise BenchError(f"--num-programs {request.num_programs}: must be at least 1")
    if request.turn_scale < 1:
        raise BenchError(f"--turn-scale {request.turn_scale}: must be at least 1")
    if not 0 < request.length_scale < np.inf:
        raise BenchError(f"--length-scale {request.length_scale:g}: must be above 0")
    if request.shared_prefix < 0:
        raise BenchError(f"--shared-prefix {request.shared_prefix}: must not be negative")


def _version(path: Path | None) -> object:
    """Differs once a file at or below ``path`` was written again."""
    files = [] if path is None else [path, *sorted(path.rglob("*"))] if path.is_dir() else [path]
    return tuple((file, file.stat().st_mtime_ns, file.stat().st_size) for file in files if file.is_file())


@lru_cache(maxsize=8)
def _read(
    name: str, traces: Path | None, form: str | None, reading: Reading, version: object
) -> tuple[tuple[Program, ...], str]:
    """Programs and the SHA-256 of the file they were read from (where there is no one file: of themselves)."""
    if traces is not None:
        programs = list(read_any(traces, form))
        content = repr(programs).encode() if traces.is_dir() else traces.read_bytes()
    elif name in BUNDLED and reading == "context":
        programs, content = list(bundled(name)), bundled_path(name).read_bytes()
    else:
        programs = synthesize(load_profile(name), 100, 2026, reading, 0.4 if name == "bfcl" else 1.0)
        content = repr(programs).encode()
    return tuple(programs), hashlib.sha256(content).hexdigest()


def _fitting(programs: Sequence[Program], request: TraceRequest) -> tuple[list[Program], tuple[TooLong, ...]]:
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


def _facts(request: TraceRequest, programs: Sequence[Program], number: int, sha256: str) -> dict[str, Any]:
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
    }
