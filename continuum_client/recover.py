"""Completes ``trace.jsonl`` after a process was killed: ``python -m continuum_client.recover DIR``.

A turn's line waits for what follows it, so a killed process leaves out the last turn of each open program. Its facts
are in ``turns.jsonl``; what was not there yet (tool times after it) is unknown. A ``Recorder`` that finds nobody else
writing does this by itself when it opens the directory.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from continuum_traces.lines import end_line, program_line, turn_line
from continuum_traces.run_dir import TURNS, read_turns
from continuum_traces.schema import Program, ToolCall, Turn, TurnRecord

from continuum_client.appender import Presence, SharedLines

TRACE = "trace.jsonl"


@dataclass(slots=True)
class _Known:
    """How far a program's trace goes."""

    turns: int = 0
    context_tokens: int = 0
    """Prompt and carried output of the last turn."""
    ended: bool = False


def add_missing_turns(directory: Path) -> int:
    """Append the turns that are recorded and not in the trace, and end programs that nobody goes on with.

    Call it only while nobody writes there. Returns how many turns were added.

    Raises:
        OSError, RunDirError: a file that cannot be read or written.
    """
    trace = directory / TRACE
    if not (directory / TURNS).exists() or not trace.exists():
        return 0
    shared = SharedLines(trace)  # mends a torn last line
    known: dict[str, _Known] = {}
    for line in _json_lines(trace):
        _learn(known, line)
    added = 0
    lines: list[dict[str, Any]] = []
    seen: dict[str, int] = {}
    for record in read_turns(directory):
        if record.error is not None or not record.prompt_tokens or record.output_tokens is None:
            continue
        program = known.setdefault(record.program_id, _Known())
        number = seen[record.program_id] = seen.get(record.program_id, 0) + 1
        if number > program.turns and not program.ended:
            lines += _missing(program, record)
            added += 1
    lines += [end_line(name) for name, program in known.items() if program.turns and not program.ended]
    if lines:
        shared.append(b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines))
    shared.close()
    return added


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def _learn(known: dict[str, _Known], line: dict[str, Any]) -> None:
    program = known.setdefault(line["program_id"], _Known()) if "program_id" in line else None
    if program is None:
        return
    if line["kind"] == "end":
        program.ended = True
    elif line["kind"] == "turn":
        program.turns += 1
        kept = min(line.get("kept_tokens", program.context_tokens), program.context_tokens)
        carried = line.get("carried_tokens", line["output_tokens"])
        program.context_tokens = kept + line["new_input_tokens"] + carried


def _missing(program: _Known, record: TurnRecord) -> list[dict[str, Any]]:
    """The lines of a turn known from turns.jsonl alone."""
    prompt, output = record.prompt_tokens or 0, max(1, record.output_tokens or 0)
    kept = min(program.context_tokens, prompt)
    turn = Turn(
        new_input_tokens=prompt - kept,
        output_tokens=output,
        kept_tokens=None if kept == program.context_tokens else kept,
        tool_calls=tuple(ToolCall(name) for name in record.tools),
        cached_tokens=record.cached_tokens,
        ttft_s=None if record.first_token_s is None else max(0.0, round(record.first_token_s - record.sent_s, 6)),
        llm_s=None if record.finish_s is None else max(0.0, round(record.finish_s - record.sent_s, 6)),
    )
    lines = [turn_line(record.program_id, program.turns, turn)]
    if program.turns == 0:
        lines.insert(0, program_line(Program(record.program_id, (), source="continuum_client", arrival_s=record.due_s)))
    program.turns += 1
    program.context_tokens = prompt + output
    return lines


def main(arguments: list[str]) -> int:
    """The command: 0 when the trace is complete, 2 for a wrong use or a directory in use."""
    if len(arguments) != 1 or not (Path(arguments[0]) / TURNS).exists():
        sys.stderr.write("usage: python -m continuum_client.recover DIR   (a directory with turns.jsonl)\n")
        return 2
    directory = Path(arguments[0])
    presence = Presence(directory / "writers.lock")
    if not presence.alone:
        sys.stderr.write(f"error: {directory}: a process is still writing here\n")
        return 2
    sys.stdout.write(f"{directory}: {add_missing_turns(directory)} turns added\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
