"""Write programs in the formats of other load generators, so that they can run the same workloads.

Prompts are written as ids of blocks of tokens: prompts with equal leading blocks have equal leading ids.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from continuum_traces.importers.dynamo import SCHEMA
from continuum_traces.importers.request_rows import WHOLE
from continuum_traces.playing.conversation import open_turn
from continuum_traces.programs.jsonl import compressed, replacing
from continuum_traces.programs.lines import encoded
from continuum_traces.schema import Program, Turn

MOONCAKE_BLOCK_TOKENS = 512
DYNAMO_BLOCK_TOKENS = 64

Segment = tuple[Any, int]
"""A key that stands for a sequence of tokens, and the number of these tokens. Equal keys stand for equal tokens."""

PrefixIds = dict[Any, int]
"""The id of each distinct prefix."""


class _Segments:
    """A program's context as segments; a ``Context`` of ``continuum_traces.playing.conversation``."""

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


def _prompts(program: Program) -> Iterator[tuple[Turn, int, list[Segment]]]:
    """Yield each turn, the number of tokens in its prompt, and the segments of the prompt."""
    segments = _Segments(program)
    for index, (turn, tokens) in enumerate(zip(program.turns, program.prompt_tokens(), strict=True)):
        open_turn(segments, program, index)
        yield turn, tokens, segments.context
        segments.add_output(index, turn, None)


def _head(segments: Sequence[Segment], tokens: int) -> list[Segment]:
    out: list[Segment] = []
    for key, size in segments:
        if tokens <= 0:
            break
        out.append((key, min(size, tokens)))
        tokens -= size
    return out


def block_hashes(segments: Sequence[Segment], ids: PrefixIds, block_tokens: int) -> list[int]:
    """Return the ids of the prompt's blocks, the last of which may be partly filled.

    Blocks with equal ids have equal tokens, and so have all blocks before them.
    """

    def id_of(block: list[Segment]) -> int:
        return ids.setdefault((prefix, tuple(block)), len(ids))

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
                prefix = id_of(block)
                hashes.append(prefix)
                block, room = [], block_tokens
    return [*hashes, id_of(block)] if block else hashes


def mooncake_rows(
    programs: Iterable[Program], agentic: bool = False, block_tokens: int = MOONCAKE_BLOCK_TOKENS
) -> Iterator[dict[str, Any]]:
    """One row per request, with its whole prompt and a session id. A first turn has a timestamp (ms), a later turn the
    ``delay`` (ms) since the turn before it finished.

    An ``agentic`` row names the request before it, and has the time of the tools apart from the delay.
    """
    ids: PrefixIds = {}
    for program in programs:
        after: dict[str, Any] = {"timestamp": _arrival_ms(program)}
        for index, (turn, prompt, segments) in enumerate(_prompts(program)):
            request_id = f"{program.program_id}/{index}"
            yield {
                **({"request_id": request_id} if agentic else {"context_mode": WHOLE}),
                "session_id": program.program_id,
                "input_length": prompt,
                "output_length": turn.output_tokens,
                "hash_ids": block_hashes(segments, ids, block_tokens),
                **after,
            }
            after = {"delay": round((turn.gap_overhead_s if agentic else turn.gap_s) * 1e3, 3)}
            if agentic:
                tools_s = turn.gap_s - turn.gap_overhead_s
                after |= {"wait_for": [request_id], "tool_wait_ms": round(tools_s * 1e3, 3)}


def _arrival_ms(program: Program) -> float:
    return round((program.arrival_s or 0.0) * 1e3, 3)


def dynamo_rows(programs: Iterable[Program], block_tokens: int = DYNAMO_BLOCK_TOKENS) -> Iterator[dict[str, Any]]:
    """NVIDIA Dynamo's request trace: a record per request, and a record per tool whose duration is known.

    Requests are received at whole milliseconds from 0. A request lasts as long as was recorded, or up to 1 ms longer,
    so that the gap behind it is exact.
    """
    ids: PrefixIds = {}
    for program in programs:
        context = {"session_id": program.program_id, "parent_session_id": program.parent_id}
        received_ms = round(_arrival_ms(program))
        for index, (turn, prompt, segments) in enumerate(_prompts(program)):
            gap_ms = turn.gap_s * 1e3
            next_ms = math.ceil(round(received_ms + max(1.0, (turn.llm_s or 0.0) * 1e3) + gap_ms, 3))
            answer = (("out", program.program_id, index), turn.output_tokens)
            end_ms, request_id = next_ms - gap_ms, f"{program.program_id}/{index}"
            calls = [(f"{request_id}/{n}", call) for n, call in enumerate(turn.tool_calls)]
            request = {
                "request_id": request_id,
                "model": program.model,
                "input_tokens": prompt,
                "output_tokens": turn.output_tokens,
                "cached_tokens": turn.cached_tokens,
                "request_received_ms": received_ms,
                "total_time_ms": round(end_ms - received_ms, 3),
                "replay": {
                    "trace_block_size": block_tokens,
                    "input_length": prompt,
                    "input_sequence_hashes": block_hashes(segments, ids, block_tokens),
                    "completion_sequence_hashes": block_hashes([*segments, answer], ids, block_tokens),
                },
                "finish_reason_metadata": {
                    "tool_calls": [
                        {"choice_index": 0, "tool_call_index": n, "id": call_id, "name": call.name}
                        for n, (call_id, call) in enumerate(calls)
                    ]
                },
            }
            yield _dynamo_record("request_end", end_ms, context, request=request)
            for call_id, call in calls:
                if call.duration_s is not None:
                    start_ms, duration_ms = end_ms + call.start_s * 1e3, call.duration_s * 1e3
                    tool = {
                        "tool_call_id": call_id,
                        "tool_class": call.name,
                        "started_at_unix_ms": round(start_ms),
                        "ended_at_unix_ms": round(start_ms + duration_ms),
                        "duration_ms": duration_ms,
                    }
                    yield _dynamo_record("tool_end", start_ms + duration_ms, context, tool=tool)
            received_ms = next_ms


def _dynamo_record(kind: str, end_ms: float, context: dict[str, Any], **content: dict[str, Any]) -> dict[str, Any]:
    """Return a record without the fields that are unknown."""
    record = {"schema": SCHEMA, "event_type": kind, "event_time_unix_ms": round(end_ms), "agent_context": context}
    parts = {part: {k: v for k, v in fields.items() if v is not None} for part, fields in content.items()}
    return {**record, "agent_context": {k: v for k, v in context.items() if v is not None}, **parts}


EXPORTERS: dict[str, Callable[[Iterable[Program]], Iterator[dict[str, Any]]]] = {
    "agentic-mooncake": partial(mooncake_rows, agentic=True),
    "mooncake": mooncake_rows,
    "dynamo": dynamo_rows,
}


def export(path: Path, programs: Iterable[Program], form: str) -> None:
    """Write programs in another format.

    Args:
        path: the file to write.
        programs: the programs.
        form: a key of ``EXPORTERS``.

    Raises:
        TraceError: the file cannot be written.
    """
    with replacing(path) as raw, compressed(raw, path) as out:
        out.writelines(map(encoded, EXPORTERS[form](programs)))
