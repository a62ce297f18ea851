"""Complete ``trace.jsonl`` after a process was killed: ``python -m continuum_client.recover DIR``.

The line of a turn in the trace also describes the gap after the turn, so it is written when the next turn ends. If a
process is killed, the last turn of each open program is missing. Its facts are in ``turns.jsonl``, except for the tools
after it, which stay unknown. A ``Recorder`` that opens a directory does the same if no other process writes to it.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from continuum_traces.lines import encoded, end_line, program_line, turn_line
from continuum_traces.run_dir import TURNS, RunDirError, read_turns
from continuum_traces.schema import Program, ToolCall, Turn, TurnRecord

from continuum_client.appender import Presence, SharedLines
from continuum_client.turns import since

TRACE = "trace.jsonl"
WRITERS = "writers.lock"
"""The file that is locked by all processes that write to the directory."""


@dataclass(slots=True)
class _Known:
    """The part of a program that is in the trace."""

    turns: int = 0
    context_tokens: int = 0
    """Tokens of the last turn's prompt, and of its output as far as the next prompt repeats it."""
    ended: bool = False


def add_missing_turns(directory: Path) -> int:
    """Add to the trace the turns of ``turns.jsonl`` that it lacks, and the end of each program.

    No other process may write to the directory at the same time.

    Returns:
        The number of turns that were added.

    Raises:
        OSError: a file cannot be read or written.
        RunDirError: a file has a fault; the message names its line.
    """
    trace = directory / TRACE
    if not (directory / TURNS).exists() or not trace.exists():
        return 0
    shared = SharedLines(trace)  # cuts off an incomplete last line
    known: dict[str, _Known] = {}
    with trace.open("rb") as written:
        for number, line in enumerate(written, 1):
            try:
                _learn(known, json.loads(line))
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                raise RunDirError(
                    f"{trace}:{number}: no line of a trace ({error}); take the file from a copy"
                ) from error
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
        shared.append(b"".join(map(encoded, lines)))
    shared.close()
    return added


def _learn(known: dict[str, _Known], line: dict[str, Any]) -> None:
    """Read one line of the trace."""
    if "program_id" not in line:
        return
    program = known.setdefault(line["program_id"], _Known())
    if line["kind"] == "end":
        program.ended = True
    elif line["kind"] == "turn":
        program.turns += 1
        kept = min(line.get("kept_tokens", program.context_tokens), program.context_tokens)
        carried = line.get("carried_tokens", line["output_tokens"])
        program.context_tokens = kept + line["new_input_tokens"] + carried


def _missing(program: _Known, record: TurnRecord) -> list[dict[str, Any]]:
    """Return the trace's lines for a turn that is only in turns.jsonl."""
    prompt, output = record.prompt_tokens or 0, max(1, record.output_tokens or 0)
    kept = min(program.context_tokens, prompt)
    turn = Turn(
        new_input_tokens=prompt - kept,
        output_tokens=output,
        kept_tokens=None if kept == program.context_tokens else kept,
        tool_calls=tuple(ToolCall(name) for name in record.tools),
        cached_tokens=record.cached_tokens,
        ttft_s=since(record.sent_s, record.first_token_s),
        llm_s=since(record.sent_s, record.finish_s),
    )
    lines = [turn_line(record.program_id, program.turns, turn)]
    if program.turns == 0:
        lines.insert(0, program_line(Program(record.program_id, (), source="continuum_client", arrival_s=record.due_s)))
    program.turns += 1
    program.context_tokens = prompt + output
    return lines


def main(arguments: list[str]) -> int:
    """Run the command. Exit status: 0, the trace is complete; 2, it cannot be completed, for a reason that is told."""
    if len(arguments) != 1 or not (Path(arguments[0]) / TURNS).exists():
        sys.stderr.write("usage: python -m continuum_client.recover DIR   (DIR contains turns.jsonl)\n")
        return 2
    directory = Path(arguments[0])
    presence = Presence(directory / WRITERS)
    if not presence.alone:
        sys.stderr.write(f"error: {directory}: another process is still writing to it\n")
        return 2
    try:
        sys.stdout.write(f"{directory}: {add_missing_turns(directory)} turns added\n")
    except (OSError, RunDirError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
