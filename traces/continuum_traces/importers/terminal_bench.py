"""Import Terminal-Bench trajectories (``trajectory.json``, the ATIF format of its harness): one file per run.

A turn is a step of the agent with token counts. All its keystrokes are typed into one shell and count as one tool. The
tool's key is the first program that the keystrokes run, and its time is the wait that the agent asked for, because the
harness waits for that time. The times of other tools are not recorded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, TypeGuard

from continuum_traces.importers.importer import Importer, Signs, Source
from continuum_traces.importers.usage import (
    UNKNOWN,
    Imported,
    RequestUsage,
    inner,
    listed,
    number,
    usage_of,
)
from continuum_traces.lines import digest
from continuum_traces.schema import Program, ToolCall
from continuum_traces.shell import first_program

SHELL = "bash"
MAX_WAIT_S = 60.0
"""The longest time for which the harness waits for one command."""

Object = Mapping[str, Any]


def read_terminal_bench(file: Source) -> Iterator[Imported]:
    """Terminal-Bench's ``trajectory.json``: one trajectory.

    Raises:
        TraceError: the file has a fault. The message names file and field.
    """
    data = file.object("steps")
    steps = listed(str(file), data, "steps", dict)
    model = inner(str(file), data, "agent").get("model_name")
    name = data.get("session_id") or data.get("trajectory_id") or file.path.parent.name
    requests = list(_requests(str(file), steps))
    yield Imported(Program(str(name), (), "terminal-bench", model), requests, _opening(steps))


def _opening(steps: Sequence[Object]) -> tuple[str, ...]:
    """Return the messages before the model's first answer."""
    asked = takewhile(lambda step: step.get("source") != "agent", steps)
    return tuple(str(step.get("message") or "") for step in asked)


def _requests(file: str, steps: Sequence[Object]) -> Iterator[RequestUsage]:
    for index, step in enumerate(steps):
        where = f"{file}: steps[{index}]"
        metrics = inner(where, step, "metrics")
        if step.get("source") == "agent" and not step.get("is_copied_context"):
            yield usage_of(where, metrics, _calls(where, step))


def _calls(where: str, step: Object) -> Iterator[ToolCall]:
    asked = listed(where, step, "tool_calls", dict)
    arguments = [call.get("arguments") for call in asked]
    typed: list[Object] = [argument for argument in arguments if _is_typed(argument)]
    if not asked:
        typed = list(typed_commands(str(step.get("message") or "")))
    if typed:
        text = keystrokes(typed)
        waits = [min(float(number(where, command, "duration", 0)), MAX_WAIT_S) for command in typed]
        yield ToolCall(first_program(text) or SHELL, sum(waits), digest=digest(text))
    for call, argument in zip(asked, arguments, strict=True):
        if not _is_typed(argument):
            name = str(call.get("function_name") or UNKNOWN)
            yield ToolCall(name, digest=digest(json.dumps(argument, sort_keys=True)))


def _is_typed(arguments: Any) -> TypeGuard[Object]:
    return isinstance(arguments, dict) and "keystrokes" in arguments


def keystrokes(commands: Sequence[Object]) -> str:
    """Return the keystrokes of the commands, one line per command."""
    return "".join(f"{command['keystrokes']}\n" for command in commands)


def typed_commands(text: str) -> Iterator[Object]:
    """Yield the commands of an answer ``{"commands": [{"keystrokes": ...}]}``, which may stand between other text."""
    start, end = text.find("{"), text.rfind("}")
    try:
        answer = json.loads(text[start : end + 1], strict=False)
    except (ValueError, RecursionError):
        return
    commands = answer.get("commands") if isinstance(answer, dict) else None
    for command in commands if isinstance(commands, list) else ():
        if isinstance(command, dict) and isinstance(command.get("keystrokes"), str):
            yield command


IMPORTERS = (
    Importer(
        "terminal-bench",
        read_terminal_bench,
        (
            Signs(
                {"schema_version": str, "steps": list, "steps.source": str},
                more=("agent", "session_id", "final_metrics"),
            ),
        ),
    ),
)
