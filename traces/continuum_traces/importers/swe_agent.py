"""Import SWE-agent's trajectories (``*.traj``)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from continuum_traces.importers.described import (
    CHARACTERS,
    ESTIMATED,
    Imported,
    RequestUsage,
    count_of,
    differing_totals,
    estimate_tokens,
    inner,
    listed,
    number,
)
from continuum_traces.importers.importer import Importer, Signs, Source
from continuum_traces.programs.lines import digest
from continuum_traces.schema import Program, ToolCall
from continuum_traces.shell import first_program

Message = Mapping[str, Any]


def read_swe_agent(source: Source) -> Iterator[Imported]:
    """One trajectory. A turn is an answer of the ``history``, and its tool the step's action with its
    ``execution_time``.

    Lengths are estimated from the text, and scaled so that they add up to ``tokens_sent`` and ``tokens_received``. A
    prompt is the step's ``query`` if the trajectory has it, or else all messages before.
    """
    data = source.object("trajectory", "history")
    steps, history = listed(str(source), data, "trajectory", dict), listed(str(source), data, "history", dict)
    stats = inner(str(source), inner(str(source), data, "info"), "model_stats")
    prompts, outputs, before = list[int](), list[int](), 0
    for message in history:
        size = estimate_tokens(_text(message))
        if message.get("role") == "assistant" and not message.get("is_demo"):
            step = steps[len(prompts)] if len(prompts) < len(steps) else {}
            query = step.get("query")
            prompts.append(estimate_tokens("".join(map(_text, query))) if isinstance(query, list) and query else before)
            outputs.append(size)
        before += size
    sent, received = (count_of(str(source), stats, name, 0) for name in ("tokens_sent", "tokens_received"))
    scaled = " and scaled to the trajectory's own sums" if sent and received else ""
    source.assume("program", ESTIMATED + scaled)
    rules = dict.fromkeys(("prompt", "output"), CHARACTERS + scaled)
    pairs = zip(_scaled(prompts, sent), _scaled(outputs, received), strict=True)
    requests = [
        RequestUsage(prompt, output, tool_calls=_calls(source, steps, number_), estimated=rules)
        for number_, (prompt, output) in enumerate(pairs)
    ]
    name = source.path.name.partition(".traj")[0]
    source.assumptions.add(*differing_totals(name, {"requests": stats.get("api_calls")}, requests))
    yield Imported(Program(name, (), "swe-agent"), requests)


def _text(message: Any) -> str:
    content, calls = message.get("content"), message.get("tool_calls")
    if isinstance(content, list):
        content = "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return str(content or "") + (json.dumps(calls) if calls else "")


def _scaled(lengths: Sequence[int], total: int) -> list[int]:
    """Return lengths in the same proportions whose sum is ``total``; 0: as they are. None becomes 0."""
    whole, done, so_far, scaled = sum(lengths), 0, 0, []
    for length in lengths:
        so_far += length
        end = round(total * so_far / whole) if total and whole else so_far
        scaled.append(max(1, end - done))
        done += scaled[-1]
    return scaled


def _calls(source: Source, steps: Sequence[Message], index: int) -> tuple[ToolCall, ...]:
    if index >= len(steps) or not str(steps[index].get("action") or "").strip():
        return ()
    step, action = steps[index], str(steps[index]["action"])
    timed = step.get("execution_time") is not None
    seconds = float(number(f"{source}: trajectory[{index}]", step, "execution_time")) if timed else None
    return (ToolCall(first_program(action) or action.split()[0][:64], seconds, digest=digest(action)),)


IMPORTERS = (
    Importer(
        "swe-agent",
        read_swe_agent,
        (
            Signs(
                {"trajectory": list, "history": list, "info": dict},
                ("environment", "trajectory.action", "trajectory.observation", "info.model_stats"),
            ),
        ),
    ),
)
