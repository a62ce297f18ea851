"""Parts of the client's tests: calls of either kind of client, agents, warnings, and what a record holds."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from continuum_traces.programs import jsonl
from continuum_traces.schema import Program
from fake_server import ASK

from continuum_client import ContinuumWarning, OpenAI

TOOLS: Any = [{"type": "function", "function": {"name": "pytest", "parameters": {"type": "object", "properties": {}}}}]


def ask(client: Any, **more: Any) -> Any:
    return client.chat.completions.create(**{**ASK, **more})


async def value(given: Any) -> Any:
    """What a client of either kind gave."""
    return await given if inspect.isawaitable(given) else given


async def items(stream: Any) -> list[Any]:
    return [item async for item in stream] if hasattr(stream, "__aiter__") else list(stream)


@asynccontextmanager
async def entered(manager: Any) -> AsyncIterator[Any]:
    if hasattr(manager, "__aenter__"):
        async with manager as inside:
            yield inside
    else:
        with manager as inside:
            yield inside


def ran(program: Any, *tools: str) -> None:
    """These tools run, and end at once."""
    for name in tools:
        with program.tool(name):
            pass


def agent(client: OpenAI, program_id: str, stream: bool = False, predict: bool = False) -> str:
    """Run an agent that runs ``grep`` and ``pytest``, as the fake model asks, and return the model's answer. With
    ``predict`` it also predicts its tools, and names its last step, in which it asks for a summary."""
    messages: list[Any] = [{"role": "user", "content": "fix it, please"}]
    options: dict[str, Any] = {"model": "m", "messages": messages, "tools": TOOLS}
    with client.program(program_id, output_tokens=300 if predict else None) as p:
        while True:
            if predict:
                p.predict("pytest", 1.5, p90=9)
            if stream:
                with client.chat.completions.stream(**options) as events:
                    reply = events.get_final_completion().choices[0].message
            else:
                reply = client.chat.completions.create(**options).choices[0].message
            messages.append(reply.model_dump(exclude_none=True, exclude={"parsed"}))
            for call in reply.tool_calls or ():
                with p.tool("run " + call.function.name):
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": "some output " * 20})
            if not reply.tool_calls:
                break
        if predict:
            p.last_step()
            list(client.completions.create(model="m", prompt="summary", stream=True))
    return str(reply.content)


def ours_of(work: Callable[[], object], match: str) -> list[str]:
    """Our warnings while ``work`` runs; each must match."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        work()
    ours = [str(one.message) for one in caught if issubclass(one.category, ContinuumWarning)]
    assert all(re.search(match, message) for message in ours), ours
    return ours


def trace_of(path: Path) -> dict[str, Program]:
    """The programs of a record, which is valid."""
    assert jsonl.validate(path / "trace.jsonl") == []
    return {program.program_id: program for program in jsonl.read_programs(path / "trace.jsonl")}


def turns_of(path: Path) -> dict[str, int]:
    """The number of turns of each program of a record."""
    return {name: len(program.turns) for name, program in trace_of(path).items()}
