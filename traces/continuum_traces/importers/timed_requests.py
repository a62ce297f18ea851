"""Requests whose source says when each was sent and answered, and when each tool ran: what agents' session files have
in common."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from continuum_traces.importers.described import UNKNOWN, Imported, RequestUsage
from continuum_traces.programs.assumptions import Assumptions
from continuum_traces.programs.lines import digest
from continuum_traces.schema import Program, ToolCall

NO_COUNTS = "without token counts: left out"
GROWN = "its text, and what the next prompt grew"
BEGUN = "with the count of its beginning: output estimated from its text, at most by what the next prompt grew"
SHARED = "shares of its first prompt what the provider had cached"


@dataclass(slots=True)
class TimedCall:
    """A tool call. Instants are seconds since 1970; None: not recorded."""

    name: str
    start_s: float | None = None
    """None: the tool starts when the turn ends."""
    end_s: float | None = None
    digest: str | None = None
    duration_s: float | None = None
    """How long it took, if the source says this and no instants."""


@dataclass(slots=True)
class AnsweredRequest:
    """One request with its answer, and the tools that the answer calls."""

    usage: RequestUsage
    """Without tools and times."""
    sent_s: float | None = None
    end_s: float | None = None
    calls: list[TimedCall] = field(default_factory=list)
    model: str | None = None
    compacted: bool = False
    """The history was compacted before it: it keeps of the prompt before what was cached."""
    begun: bool = False
    """Its output count may be the one with which its stream began: a lower bound."""
    text_tokens: int = 0
    """Its text without thoughts, by estimate; of use if ``begun``."""
    thought_tokens: int = 0
    """Its thoughts, as far as they are shown, by estimate; of use if ``begun``."""
    hidden: bool = False
    """It has thoughts that the source does not show."""
    asked_tokens: int = 0
    """What its prompt adds to the answer before, by estimate."""
    gap_s: float | None = None
    """Seconds until the next request, if the source says this and no instants."""


@dataclass(slots=True)
class Thread:
    """One conversation with the model: a program whose requests have instants."""

    name: str
    parent: str | None = None
    answers: list[AnsweredRequest] = field(default_factory=list)
    call: TimedCall | None = None
    """The parent's call that started it, if the source says which."""


def call_of(name: object, arguments: object, start_s: float | None = None, end_s: float | None = None) -> TimedCall:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, sort_keys=True)
    return TimedCall(str(name or UNKNOWN), start_s, end_s, digest(text) if arguments is not None else None)


def seconds(value: Any) -> float | None:
    """Return the instant of an ISO 8601 text, or of a number of seconds, milliseconds, microseconds or nanoseconds
    since 1970 (told apart by its size), in seconds since 1970; None: the value is neither."""
    try:
        instant = float(value)
    except (TypeError, ValueError, OverflowError):
        return _iso_seconds(value)
    for unit in (1.0, 1e3, 1e6, 1e9):
        if 0 <= instant < 1e10 * unit:
            return instant / unit
    return None


def _iso_seconds(value: Any) -> float | None:
    try:
        at = datetime.fromisoformat(str(value))
        return (at if at.tzinfo else at.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        return None


def programs_on_timeline(
    threads: Iterable[Thread], source: str, assumptions: Assumptions, one_agent: bool = False
) -> Iterator[Imported]:
    """Yield the threads as programs that arrive when their first requests were sent.

    Requests without a prompt count are left out, and noted.

    Args:
        threads: the conversations.
        source: the programs' source.
        assumptions: gets what was left out or assumed.
        one_agent: all are sessions of one agent. Those with the same model share as much of their first prompts as
            the provider had cached, as its system prompt and tools are the same.
    """
    threads = list(threads)
    for thread in threads:
        counted = [answer for answer in thread.answers if answer.usage.prompt_tokens]
        left_out = len(thread.answers) - len(counted)
        assumptions.assume("request", NO_COUNTS, left_out, example=thread.name)
        thread.answers = counted
        _complete(thread, assumptions)
    starts = [thread.answers[0].sent_s for thread in threads if thread.answers]
    start_s = min((at for at in starts if at is not None), default=0.0)
    by_name = {thread.name: thread for thread in threads}
    described: list[Imported] = []
    for thread in threads:
        model = _model(thread, assumptions)
        sent_s = next((answer.sent_s for answer in thread.answers), None)
        arrival_s = None if sent_s is None else round(sent_s - start_s, 6)
        turn, gap_s = _start(by_name.get(thread.parent or ""), sent_s, thread.call)
        started: dict[str, Any] = {"parent_id": thread.parent, "parent_turn": turn, "parent_gap_s": gap_s}
        program = Program(thread.name, (), source, model, arrival_s=arrival_s, **started)
        described.append(Imported(program, list(_requests(thread, assumptions))))
    yield from _sharing(described, assumptions) if one_agent else described


def _complete(thread: Thread, assumptions: Assumptions) -> None:
    """Estimate the outputs of which only the beginning is counted.

    The next prompt repeats the answer, and adds tool results or a question. So the answer is at most as long as the
    prompt grew. Without what was added, the growth is what the prompt repeats of the answer: the length of an answer
    whose thoughts are not shown. What the answer has beyond it counts as reasoning.
    """
    for answer, after in zip(thread.answers, [*thread.answers[1:], None], strict=False):
        if not answer.begun:
            continue
        usage, tokens, thoughts = answer.usage, answer.text_tokens, answer.thought_tokens
        grown = 0 if after is None or after.compacted else after.usage.prompt_tokens - usage.prompt_tokens
        room = max(0, grown - max(1, after.asked_tokens)) if after is not None else 0
        if grown > 0:
            tokens = min(max(tokens, room - thoughts if answer.hidden else 0), grown)
        output = max(usage.output_tokens, tokens + thoughts)
        left = max(0, output - room) if grown > 0 else 0
        answer.usage = replace(usage, output_tokens=output, reasoning_tokens=left, estimated={"output": GROWN})
        assumptions.assume("answer", BEGUN, example=thread.name)


def _start(parent: Thread | None, sent_s: float | None, call: TimedCall | None) -> tuple[int | None, float]:
    """Return the parent's last turn that ended before a request was sent, and the seconds between them.

    A request that was sent before the first turn ended follows that turn at once. A user, not the parent, starts what
    follows a last turn without tools: None. Without times, it is the turn with the call.
    """
    ends_s = [answer.end_s for answer in parent.answers] if parent is not None else []
    if sent_s is None or all(end_s is None for end_s in ends_s):
        calls = [answer.calls for answer in parent.answers] if parent is not None else []
        return next((turn for turn, each in enumerate(calls) if any(one is call for one in each)), None), 0.0
    ended = [(turn, end_s) for turn, end_s in enumerate(ends_s) if end_s is not None and end_s <= sent_s]
    turn, end_s = ended[-1] if ended else (0, sent_s)
    users = parent is not None and ended and turn == len(ends_s) - 1 and not parent.answers[turn].calls
    return (None, 0.0) if users else (turn, round(sent_s - end_s, 6))


def _sharing(described: Sequence[Imported], assumptions: Assumptions) -> Iterator[Imported]:
    """Yield the programs. Those with the same model that nobody started share what was cached of their first
    prompts."""
    cached = {
        each.program.program_id: each.requests[0].cached_tokens
        for each in described
        if each.requests and each.requests[0].cached_tokens and each.program.parent_id is None
    }
    models = Counter(each.program.model for each in described if each.program.program_id in cached)
    for each in described:
        tokens = cached.get(each.program.program_id)
        if tokens and models[each.program.model] > 1:
            assumptions.assume("session", SHARED, example=each.program.program_id)
            name = f"{each.program.source} {each.program.model}"
            yield replace(each, program=replace(each.program, shared_prefix_id=name, shared_prefix_tokens=tokens))
        else:
            yield each


def _model(thread: Thread, assumptions: Assumptions) -> str | None:
    """Return the model of most answers."""
    models = [answer.model for answer in thread.answers if answer.model]
    most = max(models, key=models.count, default=None)
    others = len(models) - models.count(most or "")
    assumptions.assume("turn", "by another model than most of its program's", others, example=thread.name)
    return most


def _requests(thread: Thread, assumptions: Assumptions) -> Iterator[RequestUsage]:
    """Yield the requests with their tools and the times between them.

    The gap behind a turn lasts until the next request is sent. A tool that still runs then counts until then.
    """
    following, before = [*thread.answers, None][1:], 0
    for answer, after in zip(thread.answers, following, strict=True):
        gap_s = answer.gap_s if after is None or answer.gap_s is not None else _between(answer.end_s, after.sent_s)
        if gap_s is not None and gap_s < 0.0:
            text = "sent before the answer before it ended: no time between them"
            assumptions.assume("request", text, int(gap_s < -1e-3), example=thread.name)
            gap_s = 0.0
        calls = tuple(_call(call, answer.end_s, gap_s) for call in answer.calls)
        unknown = after is not None and gap_s is None and all(call.duration_s is None for call in calls)
        assumptions.assume("gap", "of unknown length, taken as 0 s", int(unknown), example=thread.name)
        tools_s = max((call.end_s for call in calls), default=0.0)
        gap_overhead_s = max(0.0, round((gap_s or 0.0) - tools_s, 6))
        llm_s = _between(answer.sent_s, answer.end_s)
        llm_s = None if llm_s is None else max(0.0, llm_s)
        usage = replace(answer.usage, tool_calls=calls, gap_overhead_s=gap_overhead_s, llm_s=llm_s)
        if answer.compacted:
            usage = replace(usage, kept_tokens=min(usage.cached_tokens or 0, before, usage.prompt_tokens - 1))
        yield usage
        before = usage.prompt_tokens


def _call(call: TimedCall, turn_end_s: float | None, gap_s: float | None) -> ToolCall:
    """Return the part of a tool that runs behind its turn."""
    start_s = max(0.0, _between(turn_end_s, call.start_s) or 0.0)
    duration_s = call.duration_s
    if duration_s is None:
        duration_s = _between(call.start_s if start_s or turn_end_s is None else turn_end_s, call.end_s)
    if duration_s is not None:
        left_s = duration_s if gap_s is None else round(gap_s - start_s, 6)
        duration_s = max(0.0, min(duration_s, left_s))
    return ToolCall(call.name.strip() or UNKNOWN, duration_s, start_s, digest=call.digest)


def _between(start_s: float | None, end_s: float | None) -> float | None:
    return None if start_s is None or end_s is None else round(end_s - start_s, 6)
