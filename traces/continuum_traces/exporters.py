"""Write programs in the formats of other load generators, so that these can run the same workloads.

Prompts are written as ids of blocks: prompts with equal leading blocks have equal leading ids.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from continuum_traces.conversation import open_turn
from continuum_traces.jsonl import TraceError
from continuum_traces.names import which
from continuum_traces.schema import Program, Turn

BLOCK_TOKENS = 512

Segment = tuple[Any, int]
"""A key that stands for a stretch of tokens, and their number."""


class _Ids:
    """Numbers the distinct prefixes."""

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}

    def of(self, key: Any) -> int:
        return self._known.setdefault(key, len(self._known))


class _Segments:
    """A program's context as stretches of tokens; equal stretches are equal tokens."""

    def __init__(self, program: Program) -> None:
        self._program_id = program.program_id
        self.context: list[Segment] = []
        if program.shared_prefix_id is not None:
            self.context = [(("shared", program.shared_prefix_id), program.shared_prefix_tokens)]

    def keep(self, tokens: int) -> None:
        self.context = _head(self.context, tokens)

    def add_input(self, index: int, turn: Turn, tokens: int) -> None:
        self.context = [*self.context, (("in", self._program_id, index), tokens)]

    def add_output(self, index: int, turn: Turn, answer: None) -> None:
        kind = "out" if turn.carried == turn.output_tokens else "answer"
        self.context = [*self.context, ((kind, self._program_id, index), turn.carried)]


def prompt_segments(program: Program) -> Iterator[list[Segment]]:
    """Each turn's prompt as stretches of tokens."""
    segments = _Segments(program)
    for index, turn in enumerate(program.turns):
        open_turn(segments, program, index)
        yield segments.context
        segments.add_output(index, turn, None)


def _head(segments: Sequence[Segment], tokens: int) -> list[Segment]:
    out: list[Segment] = []
    for key, size in segments:
        if tokens <= 0:
            break
        out.append((key, min(size, tokens)))
        tokens -= size
    return out


def block_hashes(segments: Sequence[Segment], ids: _Ids, block_tokens: int) -> list[int]:
    """Ids of the prompt's blocks; the last may be partly filled. An id covers all tokens up to its block's end."""
    hashes: list[int] = []
    prefix: Any = None
    room = block_tokens
    block: list[Segment] = []
    for key, size in segments:
        offset = 0
        while size > 0:
            take = min(size, room)
            block.append(((key, offset), take))
            offset, size, room = offset + take, size - take, room - take
            if room == 0:
                prefix = ids.of((prefix, tuple(block)))
                hashes.append(prefix)
                block, room = [], block_tokens
    return [*hashes, ids.of((prefix, tuple(block)))] if block else hashes


def agentic_mooncake_rows(programs: Iterable[Program], block_tokens: int = BLOCK_TOKENS) -> Iterator[dict[str, Any]]:
    """One row per request. First turns have a timestamp (ms); later ones wait for the turn before, tool and delay."""
    ids = _Ids()
    for program in programs:
        before: str | None = None
        waits = (0.0, 0.0)
        for index, (turn, prompt, segments) in enumerate(
            zip(program.turns, program.prompt_tokens(), prompt_segments(program), strict=True)
        ):
            request_id = f"{program.program_id}/{index}"
            row: dict[str, Any] = {
                "request_id": request_id,
                "session_id": program.program_id,
                "input_length": prompt,
                "output_length": turn.output_tokens,
                "hash_ids": block_hashes(segments, ids, block_tokens),
            }
            if before is None:
                row["timestamp"] = round((program.arrival_s or 0.0) * 1e3, 3)
            else:
                row |= {"wait_for": [before], "delay": waits[1], "tool_wait_ms": waits[0]}
            yield row
            tool_ms = (turn.gap_s - turn.gap_overhead_s) * 1e3
            before, waits = request_id, (round(tool_ms, 3), round(turn.gap_overhead_s * 1e3, 3))


def mooncake_rows(programs: Iterable[Program], block_tokens: int = BLOCK_TOKENS) -> Iterator[dict[str, Any]]:
    """Mooncake with sessions: a later turn has the delay (ms) since the turn before finished."""
    ids = _Ids()
    for program in programs:
        gap_ms: float | None = None
        for turn, prompt, segments in zip(
            program.turns, program.prompt_tokens(), prompt_segments(program), strict=True
        ):
            row: dict[str, Any] = {
                "session_id": program.program_id,
                "input_length": prompt,
                "output_length": turn.output_tokens,
                "hash_ids": block_hashes(segments, ids, block_tokens),
            }
            first = {"timestamp": round((program.arrival_s or 0.0) * 1e3, 3)}
            yield row | (first if gap_ms is None else {"delay": gap_ms})
            gap_ms = round(turn.gap_s * 1e3, 3)


def llmservingsim_rows(programs: Iterable[Program]) -> Iterator[dict[str, Any]]:
    """LLMServingSim sessions: lengths, and tool times in nanoseconds. The format cannot express prefixes."""
    for program in programs:
        pairs = zip(program.turns, program.prompt_tokens(), strict=True)
        yield {
            "session_id": program.program_id,
            "arrival_time_ns": round((program.arrival_s or 0.0) * 1e9),
            "sub_requests": [
                {
                    "input_toks": prompt,
                    "output_toks": turn.output_tokens,
                    "tool_duration_ns": round(turn.gap_s * 1e9),
                }
                for turn, prompt in pairs
            ],
        }


EXPORTERS: dict[str, Callable[[Iterable[Program]], Iterator[dict[str, Any]]]] = {
    "agentic-mooncake": agentic_mooncake_rows,
    "mooncake": mooncake_rows,
    "llmservingsim": llmservingsim_rows,
}


def export(path: Path, programs: Iterable[Program], form: str) -> int:
    """Write programs in another format; returns how many rows.

    Raises:
        TraceError: unknown format, or a file that cannot be written.
    """
    if form not in EXPORTERS:
        raise TraceError(f"no exporter {form!r}; {which(form, EXPORTERS)}")
    temporary = path.with_name(path.name + ".tmp")
    rows = 0
    try:
        with temporary.open("w", encoding="utf-8") as out:
            for row in EXPORTERS[form](programs):
                rows += 1
                out.write(json.dumps(row, separators=(",", ":")) + "\n")
        temporary.replace(path)
    except OSError as error:
        raise TraceError(f"{path}: cannot write: {error.strerror}") from error
    return rows
