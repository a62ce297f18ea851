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


def tool_key(text: str) -> str | None:
    """Return the key of the calls in an output; None if it calls no tool."""
    return _calls_key(read_calls(text))


def openai_key(tool_calls: Any) -> str | None:
    """Return the key of a response's ``tool_calls``, which are objects or dictionaries."""
    return _calls_key(read_openai(tool_calls))


def tools_key(names: Iterable[str]) -> str | None:
    """Return one key for several tools that run at the same time."""
    keys = sorted({name.strip()[:MAX_CHARS] for name in names if isinstance(name, str) and name.strip()})
    return "+".join(keys[:_MAX_CALLS]) or None


def _calls_key(calls: Sequence[Call]) -> str | None:
    return tools_key(first_program(call.command or "") or call.name for call in calls[:_MAX_CALLS])
