"""Import OpenCode's sessions (``opencode export``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from continuum_traces.assumptions import Assumptions
from continuum_traces.importers.importer import Importer, Signs, Source
from continuum_traces.importers.timeline import (
    AnsweredRequest,
    Thread,
    TimedCall,
    call_of,
    programs_on_timeline,
    seconds,
)
from continuum_traces.importers.usage import (
    Imported,
    RequestUsage,
    count_of,
    inner,
    listed,
)

Part = Mapping[str, Any]


def read_opencode(source: Source) -> Iterator[Thread]:
    """A session is a program; ``parentID`` names the session that started it. A turn is a message of the assistant, or
    each of its steps if it has several.

    The prompt is ``input`` with what was read from and written to the provider's cache, the output is ``output`` and
    ``reasoning``, which counts as not repeated. Tools have their own times.
    """
    data = source.object("info", "messages")
    session = inner(str(source), data, "info")
    parent = session.get("parentID")
    thread = Thread(str(session.get("id") or source.path.stem), str(parent) if parent else None)
    for index, message in enumerate(listed(str(source), data, "messages", dict)):
        where = f"{source}: messages[{index}]"
        info = inner(where, message, "info")
        if info.get("role") == "assistant":
            thread.answers += _answers(where, info, listed(where, message, "parts", dict))
    yield thread


def _answers(where: str, info: Part, parts: Sequence[Part]) -> Iterator[AnsweredRequest]:
    """Yield the requests of one message."""
    steps: list[list[Part]] = [[]]
    for part in parts:
        steps[-1].append(part)
        if part.get("type") == "step-finish" and part.get("tokens"):
            steps.append([])
    steps = steps[:-1] if len(steps) > 2 else [list(parts)]
    times = inner(where, info, "time")
    for number_, step in enumerate(steps):
        calls = [_call(where, part) for part in step if part.get("type") == "tool"]
        starts = [call.start_s for call in calls if call.start_s is not None]
        completed_s = seconds(times.get("completed")) if number_ == len(steps) - 1 else None
        ends = [each for each in (completed_s, max(starts, default=None)) if each is not None]
        usage = _usage(where, inner(where, step[-1] if len(steps) > 1 else info, "tokens"))
        sent_s = seconds(times.get("created")) if number_ == 0 else None
        yield AnsweredRequest(usage, sent_s, min(ends, default=None), calls, str(info.get("modelID") or "") or None)


def _call(where: str, part: Part) -> TimedCall:
    state = inner(where, part, "state")
    times = inner(where, state, "time")
    return call_of(part.get("tool"), state.get("input"), seconds(times.get("start")), seconds(times.get("end")))


def _usage(where: str, tokens: Part) -> RequestUsage:
    cache = inner(where, tokens, "cache")
    read, write = (count_of(where, cache, name, 0) for name in ("read", "write"))
    prompt, output, reasoning = (count_of(where, tokens, name, 0) for name in ("input", "output", "reasoning"))
    return RequestUsage(prompt + read + write, output + reasoning, reasoning, cached_tokens=read)


def join_opencode(threads: Iterable[Thread], assumptions: Assumptions) -> Iterator[Imported]:
    yield from programs_on_timeline(threads, "opencode", assumptions, one_agent=True)


IMPORTERS = (
    Importer(
        "opencode",
        read_opencode,
        (Signs({"info.id": "ses*", "messages": list, "messages.info": dict}, ("messages.parts", "info.version")),),
        join_opencode,
    ),
)
