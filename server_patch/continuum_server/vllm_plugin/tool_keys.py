"""The key under which an output's tool times are recorded (SPEC 6). Nothing in here raises, whatever the text.

A function's name, or, where the function runs a shell command, the first real program of the command, by the reader of
shell that clients and importers use too. An output of several calls has the set of their keys as its key: its recorded
times are those of the slowest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from continuum_traces.shell import MAX_CHARS, first_program

from continuum_server.policy.tool_calls import Call, read_calls, read_openai

_MAX_CALLS = 16


def tool_key(text: str, hint: str | None = None, first_word: bool = False) -> str | None:
    """The key of what an output calls; ``hint`` where it names nothing; None where neither does."""
    return calls_key(read_calls(text), first_word) or hint


def openai_key(tool_calls: Any, first_word: bool = False) -> str | None:
    """The key of a response's ``tool_calls``, as objects or as dictionaries."""
    return calls_key(read_openai(tool_calls), first_word)


def tools_key(names: Iterable[str]) -> str | None:
    """One key for several tools that run at once."""
    found = sorted({name.strip()[:MAX_CHARS] for name in names if isinstance(name, str) and name.strip()})
    return "+".join(found[:_MAX_CALLS]) or None


def calls_key(calls: Sequence[Call], first_word: bool = False) -> str | None:
    return tools_key(_call_key(call, first_word) for call in calls[:_MAX_CALLS])


def _call_key(call: Call, first_word: bool) -> str:
    program = first_program(call.command, first_word) if call.command is not None else None
    return program or call.name
