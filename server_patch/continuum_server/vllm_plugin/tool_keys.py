"""The key under which the times of an output's tools are recorded. The functions never raise an exception.

The key is the function's name or, for a function that runs a shell command, the command's first program (as in clients
and importers). Several calls have one key, which lists their keys, because the recorded time is that of the slowest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from continuum_traces.shell import MAX_CHARS, first_program

from continuum_server.policy.tool_calls import Call, read_calls, read_openai

_MAX_CALLS = 16


def tool_key(text: str, hint: str | None = None, first_word: bool = False) -> str | None:
    """Return the key of the calls in an output; ``hint`` if it calls no tool."""
    return calls_key(read_calls(text), first_word) or hint


def openai_key(tool_calls: Any, first_word: bool = False) -> str | None:
    """Return the key of a response's ``tool_calls``, which are objects or dictionaries."""
    return calls_key(read_openai(tool_calls), first_word)


def tools_key(names: Iterable[str]) -> str | None:
    """Return one key for several tools that run at the same time."""
    keys = sorted({name.strip()[:MAX_CHARS] for name in names if isinstance(name, str) and name.strip()})
    return "+".join(keys[:_MAX_CALLS]) or None


def calls_key(calls: Sequence[Call], first_word: bool = False) -> str | None:
    return tools_key(_call_key(call, first_word) for call in calls[:_MAX_CALLS])


def _call_key(call: Call, first_word: bool) -> str:
    program = first_program(call.command, first_word) if call.command is not None else None
    return program or call.name
