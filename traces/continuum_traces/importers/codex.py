"""Import Codex's sessions (``~/.codex/sessions/**/rollout-*.jsonl``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from continuum_traces.importers.described import (
    Imported,
    RequestUsage,
    count_of,
    inner,
)
from continuum_traces.importers.importer import Importer, Signs, Source
from continuum_traces.importers.timed_requests import (
    AnsweredRequest,
    Thread,
    TimedCall,
    call_of,
    programs_on_timeline,
    seconds,
)
from continuum_traces.programs.assumptions import Assumptions

COPIED_S = 1.0
"""A fork's file begins with its parent's lines, which are written within this time. No model answers as fast."""
_COUNTS = ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_output_tokens")

Counts = tuple[int, ...]


@dataclass(slots=True)
class _Rollout:
    """A thread while its file is read."""

    thread: Thread
    totals: list[Counts] = field(default_factory=list)
    """Behind each answer, all tokens of the thread so far."""
    total: Counts = (0,) * len(_COUNTS)
    asked_s: float | None = None
    answer: AnsweredRequest | None = None
    """The answer whose items are being read."""
    calls: dict[str, TimedCall] = field(default_factory=dict)
    model: str | None = None
    copied_until_s: float = 0.0
    missed: int = 0
    """Tokens of requests that are only in the totals."""
    aborted: int = 0
    compacted: bool = False


def read_codex(source: Source) -> Iterator[_Rollout]:
    """A thread is a program, and so is a sub-agent's (``parent_thread_id``).

    A turn is a ``token_count`` event whose totals differ from those before; ``last_token_usage`` has the counts of its
    request. The items of its answer are before it. A tool runs from the line of its call to that of its output, and a
    request is sent at the time of the last line before its answer that is no part of an answer. Reasoning counts as not
    repeated in the next prompt. The lines of another thread with which a fork begins do not count.
    """
    rollout = _Rollout(Thread(source.path.stem))
    named = False
    for where, row in source.rows():
        payload, at_s = inner(where, row, "payload"), seconds(row.get("timestamp"))
        if row.get("type") == "session_meta":
            name = str(payload.get("id") or payload.get("session_id") or source.path.stem)
            if not named:
                rollout.thread = Thread(name, _parent(payload))
            elif name != rollout.thread.name:
                rollout.copied_until_s = (at_s or 0.0) + COPIED_S
            named = True
        else:
            _read(rollout, f"{where}: payload", str(row.get("type")), payload, at_s)
    source.assume("token", "in the totals, but in no request of the file: left out", rollout.missed)
    source.assume("answer", "cut off by the user, without token counts: left out", rollout.aborted)
    yield rollout


def _parent(meta: Mapping[str, Any]) -> str | None:
    origin: Any = meta.get("source")
    for name in ("subagent", "thread_spawn"):
        origin = origin.get(name) if isinstance(origin, dict) else None
    spawned = origin.get("parent_thread_id") if isinstance(origin, dict) else None
    parent = meta.get("parent_thread_id") or spawned or meta.get("forked_from_id")
    return str(parent) if parent else None


def _read(rollout: _Rollout, where: str, row: str, payload: Mapping[str, Any], at_s: float | None) -> None:
    copied = at_s is not None and at_s <= rollout.copied_until_s
    kind = str(payload.get("type"))
    if row == "turn_context":
        rollout.model = payload.get("model") or rollout.model
    elif kind == "token_count":
        _count(rollout, where, inner(where, payload, "info"), at_s, copied)
    elif copied:
        return
    elif row == "compacted":
        rollout.compacted = True
    elif row == "response_item":
        _item(rollout, kind, payload, at_s)
    elif kind in ("user_message", "task_started"):
        rollout.asked_s = at_s
    elif kind == "turn_aborted":
        rollout.aborted += rollout.answer is not None
        rollout.answer = None


def _item(rollout: _Rollout, kind: str, item: Mapping[str, Any], at_s: float | None) -> None:
    """Read a part of the conversation: of a prompt, or of an answer."""
    if kind.endswith("_output") or (kind == "message" and item.get("role") != "assistant"):
        rollout.asked_s = at_s
        if item.get("call_id") in rollout.calls:
            rollout.calls[item["call_id"]].end_s = at_s
    elif kind != "ghost_snapshot":
        answer = rollout.answer = rollout.answer or AnsweredRequest(RequestUsage(0, 0), rollout.asked_s)
        answer.end_s = at_s
        if kind.endswith("_call") and item.get("call_id"):
            arguments = item.get("arguments") or item.get("input") or item.get("action")
            call = call_of(item.get("name") or kind.removesuffix("_call"), arguments, at_s)
            rollout.calls[item["call_id"]] = call
            answer.calls.append(call)


def _count(rollout: _Rollout, where: str, info: Mapping[str, Any], at_s: float | None, copied: bool) -> None:
    """Read a ``token_count`` event: a request has ended, unless the totals are those of the event before."""
    if not info:
        return
    last = _counts(f"{where}: info", info, "last_token_usage")
    if info.get("total_token_usage") is None:  # a repeated event has no answer before it
        counts, known = last, rollout.answer is not None or not rollout.thread.answers
        if copied or not known or not any(last):
            return
        rollout.total = tuple(before + now for before, now in zip(rollout.total, last, strict=True))
    else:
        counts, known = _grown(rollout, _counts(f"{where}: info", info, "total_token_usage"), last)
        if copied or not known:
            return
    answer = rollout.answer or AnsweredRequest(RequestUsage(0, 0), rollout.asked_s, at_s)
    prompt, cached, output, reasoning = counts
    answer.usage = RequestUsage(prompt, output, reasoning, cached_tokens=cached)
    answer.model, answer.compacted, rollout.compacted = rollout.model, rollout.compacted, False
    rollout.thread.answers.append(answer)
    rollout.totals.append(rollout.total)
    rollout.answer = None


def _grown(rollout: _Rollout, total: Counts, last: Counts) -> tuple[Counts, bool]:
    """Return the counts of the latest request, and whether it is one that the totals had not yet."""
    grown = tuple(now - before for now, before in zip(total, rollout.total, strict=True))
    begun, rollout.total = any(rollout.total), total
    counts = last if last[0] else grown
    if begun and any(grown):
        rollout.missed += max(0, grown[0] - counts[0]) + max(0, grown[2] - counts[2])
    return counts, any(grown)


def _counts(where: str, info: Mapping[str, Any], name: str) -> Counts:
    usage = inner(where, info, name)
    return tuple(count_of(f"{where}: {name}", usage, each, 0) for each in _COUNTS)


def _add_further(thread: _Rollout, other: _Rollout) -> bool:
    """Add the answers that only another file of the thread has: it was resumed there. Return whether there are any."""
    answers = [*zip(thread.totals, thread.thread.answers, strict=True)]
    further = [each for each in zip(other.totals, other.thread.answers, strict=True) if each[0] not in thread.totals]
    answers = sorted(answers + further, key=lambda each: each[1].end_s or 0.0)
    thread.totals, thread.thread.answers = [total for total, _ in answers], [answer for _, answer in answers]
    return bool(further)


def join_codex(rollouts: Iterable[_Rollout], assumptions: Assumptions) -> Iterator[Imported]:
    threads: dict[str, _Rollout] = {}
    for rollout in sorted(rollouts, key=lambda each: -len(each.totals)):
        first = threads.setdefault(rollout.thread.name, rollout)
        if first is not rollout and not _add_further(first, rollout):
            assumptions.assume("file", "of a thread that another file has in full: left out", example=first.thread.name)
    for rollout in threads.values():
        parent = threads.get(rollout.thread.parent or "")
        while parent is not None and rollout.totals and rollout.totals[0] in parent.totals:
            text = "repeated from the thread that was forked: counted once"
            assumptions.assume("request", text, example=rollout.thread.name)
            del rollout.totals[0], rollout.thread.answers[0]
    read = [rollout.thread for rollout in threads.values()]
    yield from programs_on_timeline(read, "codex", assumptions, one_agent=True)


IMPORTERS = (
    Importer(
        "codex",
        read_codex,
        (
            Signs(
                {"timestamp": str, "type": "session_meta", "payload.id": str}, ("payload.cwd", "payload.cli_version")
            ),
            Signs({"timestamp": str, "type": "event_msg", "payload.type": str}),
            Signs({"timestamp": str, "type": "response_item", "payload.type": str}),
            Signs({"id": str, "timestamp": str, "instructions": object}, without=("role", "messages")),
        ),
        join_codex,
    ),
)
