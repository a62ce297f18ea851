"""Loads the programs of a run from a trace file or a bundled set. A process reads each file once."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from continuum_traces.importers.registry import ImportLog, read_any
from continuum_traces.programs.assumptions import NO_DURATION, Assumption
from continuum_traces.programs.jsonl import too_long
from continuum_traces.programs.synth import (
    BUNDLED,
    Reading,
    bundled,
    bundled_path,
    compact,
    load_profile,
    put_behind,
    scale_lengths,
    scale_turns,
    synthesize,
)
from continuum_traces.schema import Program, Turn, Workload
from continuum_traces.typed import from_json

from continuum_bench.errors import BenchError
from continuum_bench.options.run import TraceOptions
from continuum_bench.show import print_notice
from continuum_bench.workload.agentperf import COMMAND, INSTALLED, installed_tasks


@dataclass(frozen=True, slots=True)
class LoadedTrace:
    """The programs to play. Their arrivals are drawn later, for each seed."""

    programs: tuple[Program, ...]
    number: int
    """Number of programs to play. If it exceeds that of ``programs``, they are repeated."""
    facts: Workload
    """The manifest's facts about the trace."""
    skipped: tuple[str, ...] = ()
    """Programs that are too long for the model, with the reason."""
    assumptions: tuple[Assumption, ...] = ()
    """What was assumed when the trace was imported, except tool times: these are an option of the run."""


def load_trace(name: str, options: TraceOptions, context_tokens: int = 131072) -> LoadedTrace:
    """Load the programs that the options ask for.

    Args:
        name: the name of the trace file, or swebench, bfcl or openhands.
        options: which programs.
        context_tokens: the model's longest context.

    Raises:
        BenchError: no program is left, or a turn is longer than the model's context.
        TraceError: the file is invalid.
    """
    traces, reading = _found(options.traces), cast(Reading, options.tokens_reading)
    read, sha256, assumptions = _read(name, traces, options.form, reading, _version(traces))
    programs = list(read)
    if options.length_scale != 1:
        programs = [scale_lengths(program, options.length_scale) for program in programs]
    if options.turn_scale > 1:
        programs = [scale_turns(program, options.turn_scale) for program in programs]
    if options.compact_at:
        programs = [compact(program, options.compact_at) for program in programs]
    if options.shared_prefix:
        programs = put_behind(programs, options.shared_prefix)
    if options.max_think_s is not None:
        programs = [_hurried(program, options.max_think_s) for program in programs]
    if options.max_idle_s is not None:
        parents = {(program.parent_id, program.parent_turn) for program in programs}
        programs = [_never_idle(program, options.max_idle_s, parents) for program in programs]
    kept, skipped = _fitting(programs, options.skip_invalid, context_tokens)
    number = options.num_programs or len(kept)
    chosen = tuple(kept[:number])
    facts = {**_facts(options, chosen, number), "name": name, "sha256": sha256, "skipped": skipped}
    return LoadedTrace(chosen, number, from_json(Workload, facts), skipped, assumptions)


def _found(path: Path | None) -> Path | None:
    """Return the path of the trace, for ``agentperf:default`` that of the installed tasks.

    Raises:
        BenchError: agentperf-local is not installed.
    """
    if str(path) != INSTALLED:
        return path
    tasks = installed_tasks()
    if tasks is None:
        raise BenchError(f"{INSTALLED}: {COMMAND} is not on the PATH; `uv tool install {COMMAND}` (Python 3.12)")
    return tasks


def _version(path: Path | None) -> object:
    """Return a value that changes when a file at or below ``path`` is written. It is part of the cache's key."""
    files = [] if path is None else [path, *sorted(path.rglob("*"))] if path.is_dir() else [path]
    return tuple((file, file.stat().st_mtime_ns, file.stat().st_size) for file in files if file.is_file())


@lru_cache(maxsize=8)
def _read(
    name: str, traces: Path | None, form: str | None, reading: Reading, version: object
) -> tuple[tuple[Program, ...], str, tuple[Assumption, ...]]:
    """Return the programs, the SHA-256 of their file, or of the programs themselves if no single file holds them, and
    what was assumed of them."""
    log = ImportLog(lambda each: print_notice(f"left out: {each}"))
    if traces is not None:
        programs = list(read_any(traces, form, log))
        content = repr(programs).encode() if traces.is_dir() else traces.read_bytes()
    elif name in BUNDLED and reading == "context":
        programs, content = list(bundled(name)), bundled_path(name).read_bytes()
    else:
        programs = synthesize(load_profile(name), 100, 2026, reading, 0.4 if name == "bfcl" else 1.0)
        content = repr(programs).encode()
    for line in log.further_left_out():
        print_notice(f"left out: {line}")
    assumptions = tuple(each for each in log.assumptions if each.text != NO_DURATION.text)
    if counts := log.truth.line():
        assumptions = (Assumption("trace", counts), *assumptions)
    return tuple(programs), hashlib.sha256(content).hexdigest(), assumptions


def _fitting(
    programs: Sequence[Program], skip_invalid: bool, context_tokens: int
) -> tuple[list[Program], tuple[str, ...]]:
    kept, skipped = [], []
    for program in programs:
        problem = too_long(program, context_tokens)
        if problem is None:
            kept.append(program)
        elif skip_invalid:
            skipped.append(problem)
        else:
            raise BenchError(
                f"{problem}; the model's context is {context_tokens}. Leave such programs out with --skip-invalid"
            )
    if not kept:
        raise BenchError("no program left to run")
    return kept, tuple(skipped)


def _hurried(program: Program, most_s: float) -> Program:
    """Return the program with at most ``most_s`` seconds without a tool between two turns."""
    turns = tuple(replace(turn, gap_overhead_s=min(turn.gap_overhead_s, most_s)) for turn in program.turns)
    return replace(program, turns=turns)


def _never_idle(program: Program, most_s: float, parents: Container[tuple[str | None, int | None]]) -> Program:
    """Return the program with at most ``most_s`` seconds between two turns, unless a sub-agent runs between them."""

    def shorter(index: int, turn: Turn) -> Turn:
        if turn.gap_s <= most_s or (program.program_id, index) in parents:
            return turn
        share = most_s / turn.gap_s
        calls = tuple(
            replace(
                call,
                duration_s=None if call.duration_s is None else call.duration_s * share,
                start_s=call.start_s * share,
            )
            for call in turn.tool_calls
        )
        return replace(turn, tool_calls=calls, gap_overhead_s=turn.gap_overhead_s * share)

    return replace(program, turns=tuple(shorter(index, turn) for index, turn in enumerate(program.turns)))


def _thinking(programs: Sequence[Program]) -> bool:
    """Return whether no tool runs in more than half of the time between turns."""
    turns = [turn for program in programs for turn in program.turns[:-1]]
    return sum(turn.gap_overhead_s for turn in turns) > 0.5 * sum(turn.gap_s for turn in turns)


def _facts(options: TraceOptions, programs: Sequence[Program], number: int) -> dict[str, Any]:
    return {
        "tokens_reading": options.tokens_reading,
        "turn_scale": options.turn_scale,
        **options.given(TraceOptions),
        "traces": None,  # its name and checksum
        "file": options.traces.name if options.traces else None,
        "num_programs": None,
        "programs": number,
        "distinct_programs": len(programs),
        "turns": sum(len(programs[i % len(programs)].turns) for i in range(number)),
        "synthetic": any(program.synthetic for program in programs),
        "thinking": _thinking(programs) or None,
    }
