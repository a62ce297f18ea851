"""Import the recorded tasks of agentperf-local (Artificial Analysis): one request a row, with the tools after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from shutil import which
from typing import Any

from continuum_traces.importers.importer import Importer, Signs, Source
from continuum_traces.importers.texts import message_text, message_tokens, prompt_head_tokens
from continuum_traces.importers.usage import (
    ESTIMATED,
    UNKNOWN,
    Imported,
    RequestUsage,
    first_of,
    listed,
    number,
    rows_by,
)
from continuum_traces.schema import Program, ToolCall

INSTALLED = "agentperf:default"
"""Stands for the recorded tasks that agentperf-local has within its package."""
COMMAND = "agentperf-local"
TASKS = "agentperf_local/data/replays/agentperf-default-v1/traces"


def read_agentperf(file: Source) -> Iterator[Imported]:
    """A task's requests, in order: ``recorded_prompt_tokens``, ``recorded_completion_tokens``,
    ``recorded_tool_calls_after`` (one after the other), ``simulated_tool_delay_ms_after``. Without recorded tokens,
    prompts are estimated from ``messages``."""
    for name, rows in rows_by("task_id", file.rows("task_id", "messages")).items():
        where, first = rows[0]
        requests = [_request(file, *row) for row in rows]
        messages = tuple(map(message_text, listed(where, first, "messages", dict)))
        yield Imported(Program(name, (), "agentperf"), requests, messages)


def _request(file: Source, where: str, row: Mapping[str, Any]) -> RequestUsage:
    prompt = first_of(where, row, "recorded_prompt_tokens")
    if prompt is None:
        file.assume("program", ESTIMATED)
        messages = listed(where, row, "messages", dict)
        prompt = prompt_head_tokens(row) + sum(message_tokens(message, file.assume) for message in messages)
    calls = tuple(_calls(where, row))
    model_ms = row.get("recorded_model_duration_ms")
    delay_s = number(where, row, "simulated_tool_delay_ms_after", 0) / 1e3
    return RequestUsage(
        prompt,
        first_of(where, row, "recorded_completion_tokens", "target_output_tokens") or 0,
        tool_calls=calls,
        gap_overhead_s=max(0.0, delay_s - max((call.end_s for call in calls), default=0.0)),
        llm_s=None if model_ms is None else number(where, row, "recorded_model_duration_ms") / 1e3,
    )


def _calls(where: str, row: Mapping[str, Any]) -> Iterator[ToolCall]:
    """Yield the tools in the order in which they ran, each after the one before."""
    start_s = 0.0
    for call in listed(where, row, "recorded_tool_calls_after", dict):
        seconds = number(where, call, "duration_ms", 0) / 1e3
        known = seconds if call.get("duration_ms") is not None else None
        yield ToolCall(str(call.get("tool_name") or UNKNOWN), known, start_s)
        start_s += seconds


def installed_tasks() -> Path | None:
    """Return the folder of the recorded tasks of the agentperf-local on the PATH; None: there is none."""
    script = which(COMMAND)
    if script is None:
        return None
    return next(Path(script).resolve().parents[1].glob(f"lib/python3*/site-packages/{TASKS}"), None)


IMPORTERS = (
    Importer(
        "agentperf",
        read_agentperf,
        (
            Signs(
                {"task_id": str, "messages": list, "recorded_tool_calls_after": list},
                more=(
                    *("turn_id", "conversation_idx", "recorded_prompt_tokens", "target_output_tokens", "messages.role"),
                    *("simulated_tool_delay_ms_after", "recorded_model_duration_ms"),
                ),
            ),
        ),
    ),
)
