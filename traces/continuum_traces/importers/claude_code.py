"""Import Claude Code's sessions (``~/.claude/projects/**/*.jsonl``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from continuum_traces.grouped import grouped
from continuum_traces.importers.described import Imported, RequestUsage, estimate_tokens, inner, number, usage_of
from continuum_traces.importers.importer import Importer, Signs, Source
from continuum_traces.importers.text_tokens import message_text, reasoning_tokens
from continuum_traces.importers.timed_requests import (
    AnsweredRequest,
    Thread,
    TimedCall,
    call_of,
    programs_on_timeline,
    seconds,
)
from continuum_traces.programs.assumptions import Assumptions

Line = Mapping[str, Any]


@dataclass(slots=True)
class _Event:
    """What a line says."""

    thread: tuple[str, ...]
    """The session, and in it the sub-agent."""
    at_s: float | None
    message_id: str = ""
    """Empty: the line is no answer."""
    usage: RequestUsage | None = None
    model: str = ""
    calls: dict[str, TimedCall] = field(default_factory=dict)
    """By id."""
    results: tuple[str, ...] = ()
    """The ids of the calls that ended."""
    agent: str = ""
    """The sub-agent whose result this is, or that was started."""
    agent_tokens: int | None = None
    """Tokens of the sub-agent's last request and answer, as its caller says."""
    compaction: bool = False
    stopped: bool | None = None
    """Whether the line has a reason why its answer stopped, and so its final counts; None: it has no such field."""
    tokens: int = 0
    """Its text without thoughts, by estimate."""
    thoughts: int = 0
    hidden: bool = False
    """It has thoughts that are not shown."""


def read_claude_code(source: Source) -> Iterator[list[_Event]]:
    """A session is a program, and so is each of its sub-agents.

    A turn is an answer of the model. Its lines, one for each block, share ``message.id`` and repeat the usage; the last
    one has the final counts. The prompt is ``input_tokens`` with what was read from and written to the provider's
    cache. A tool runs from the answer's last line to the line with its result, and a request is sent at the time of the
    line before its answer. Sub-agents are files of their own, or in older versions lines of the session that are marked
    ``isSidechain``; in what ``--output-format stream-json`` prints they have a ``parent_tool_use_id``. A resumed or
    forked session repeats the lines of another file: each answer counts once, and a session that another one repeats to
    its end is continued by it. With ``--include-partial-messages`` an answer's last count is in a ``message_delta``.
    """
    main, roots, events = source.path.stem, dict[str, str](), list[_Event]()
    begun: dict[object, Line] = {}
    for where, row in source.rows():
        main = str(row.get("sessionId") or row.get("session_id") or main)
        line = _streamed(where, row, begun)
        if line.get("type") in ("user", "assistant") or _cut(line):
            events.append(_event(where, line, _thread_of(line, roots)))
    for event in events:
        event.thread = main, *event.thread
    failed = sum(bool(event.message_id) and event.usage is None for event in events)
    source.assume("answer", "without token counts (an error of the API): left out", failed)
    yield events


def _streamed(where: str, line: Line, begun: dict[object, Line]) -> Line:
    """Return the end of a streamed answer as its line; others as they are. ``begun`` has the beginnings, by agent."""
    if line.get("type") != "stream_event":
        return line
    event, agent = inner(where, line, "event"), line.get("parent_tool_use_id")
    begun[agent] = inner(where, event, "message") or begun.get(agent, {})
    if "usage" not in event or not begun[agent]:
        return line
    message = {**begun[agent], **inner(where, event, "delta")}
    usage = {**inner(where, message, "usage"), **inner(where, event, "usage")}
    return {**line, "type": "assistant", "message": {**message, "usage": usage}}


def _cut(line: Line) -> bool:
    return line.get("subtype") == "compact_boundary"


def _thread_of(line: Line, roots: dict[str, str]) -> tuple[str, ...]:
    """Return the sub-agent of a line. ``roots`` has the first line of each older sub-agent, by its lines."""
    if line.get("parent_tool_use_id"):
        return (str(line["parent_tool_use_id"]),)
    if not line.get("isSidechain"):
        return ()
    own = str(line.get("uuid"))
    roots[own] = roots.get(str(line.get("parentUuid")), own)
    return (str(line.get("agentId") or roots[own]),)


def _event(where: str, line: Line, thread: tuple[str, ...]) -> _Event:
    message = inner(where, line, "message")
    event = _Event(thread, seconds(line.get("timestamp")), compaction=_cut(line))
    event.tokens, event.thoughts = estimate_tokens(message_text(message)), reasoning_tokens(message)
    if line.get("type") == "assistant":
        usage, event.model = inner(where, message, "usage"), str(message.get("model") or "")
        event.message_id = str(message.get("id") or line.get("uuid"))
        if usage and event.model != "<synthetic>" and not line.get("isApiErrorMessage"):
            event.usage = usage_of(f"{where}: message: usage", usage)
        event.stopped = bool(message["stop_reason"]) if "stop_reason" in message else None
        event.hidden = any(
            not block.get("thinking") for kind in ("thinking", "redacted_thinking") for block in _blocks(message, kind)
        )
        event.calls = {str(b.get("id")): call_of(b.get("name"), b.get("input")) for b in _blocks(message, "tool_use")}
    elif line.get("type") == "user":
        event.results = tuple(str(block.get("tool_use_id")) for block in _blocks(message, "tool_result"))
        result = line.get("toolUseResult")
        if isinstance(result, dict) and result.get("agentId"):
            event.agent = str(result["agentId"])
            tokens = number(f"{where}: toolUseResult", result, "totalTokens", 0)
            event.agent_tokens = int(tokens) or None
    return event


def _blocks(message: Line, kind: str) -> Iterator[Line]:
    content = message.get("content")
    for block in content if isinstance(content, list) else ():
        if isinstance(block, dict) and block.get("type") == kind:
            yield block


def join_claude_code(files: Iterable[list[_Event]], assumptions: Assumptions) -> Iterator[Imported]:
    sessions = _Sessions(assumptions)
    for events in sorted(files, key=_order):
        for thread, part in grouped((event.thread, event) for event in events).items():
            sessions.add(thread, part)
    sessions.check()
    yield from programs_on_timeline(sessions.threads.values(), "claude-code", assumptions, one_agent=True)


def _order(events: list[_Event]) -> tuple[bool, float, float]:
    """Return the order of files: sessions before sub-agents, a file before those that repeat and continue it."""
    instants = [event.at_s for event in events if event.at_s is not None]
    least, most = min(instants, default=inf), max(instants, default=inf)
    return all(len(event.thread) > 1 for event in events), least, most


class _Sessions:
    def __init__(self, assumptions: Assumptions) -> None:
        self.threads: dict[tuple[str, ...], Thread] = {}
        self._assumptions = assumptions
        self._owners: dict[str, Thread] = {}
        """The thread of each message id."""
        self._continued: dict[tuple[str, ...], Thread] = {}
        self._answers: dict[str, AnsweredRequest] = {}
        self._stopped: set[str] = set()
        """The message ids with a final count."""
        self._calls: dict[tuple[str, str], TimedCall] = {}
        """By the thread and the call's id."""
        self._callers: dict[str, Thread] = {}
        self._agent_tokens: dict[str, int] = {}

    def add(self, name: tuple[str, ...], events: list[_Event]) -> None:
        """Add the lines of a thread in one file, without those at their beginning that an earlier file has."""
        repeated = [number for number, event in enumerate(events) if event.message_id in self._owners]
        own = events[repeated[-1] + 1 :] if repeated else events
        repeats = len({events[number].message_id for number in repeated})
        self._assumptions.assume("answer", "repeated in another file: counted once", repeats, example=name[-1])
        if not repeated or any(event.usage for event in own):
            self._read(self._thread(name, events[repeated[-1]].message_id if repeated else ""), own)

    def _thread(self, name: tuple[str, ...], repeated: str) -> Thread:
        owner = self._owners.get(repeated)
        if owner is not None and len(name) == 1 and owner.answers[-1] is self._answers[repeated]:
            self._continued[name] = owner
        if name in self._continued:
            return self._continued[name]
        parent = None
        if len(name) > 1:
            session = self._continued.get(name[:1])
            parent = session.name if session is not None else name[0]
        elif owner is not None:
            parent = owner.name
            text = "what it shares with the session before counts as new input"
            self._assumptions.assume("forked session", text, int(name not in self.threads), example=name[-1])
        return self.threads.setdefault(name, Thread(name[-1], parent))

    def _read(self, thread: Thread, events: list[_Event]) -> None:
        asked_s, compacted, asked = None, False, 0
        for event in events:
            if event.usage is not None:
                new = AnsweredRequest(event.usage, asked_s, model=event.model, compacted=compacted, asked_tokens=asked)
                self._answer(thread, event, new)
                asked_s, compacted, asked = None, False, 0
            elif not event.message_id and not event.compaction:
                asked_s = event.at_s if event.at_s is not None else asked_s
                asked += event.tokens
            compacted = compacted or event.compaction
            for call_id in event.results:
                if (thread.name, call_id) in self._calls:
                    self._calls[thread.name, call_id].end_s = event.at_s
            if event.agent:
                self._callers[event.agent] = thread
            if event.agent_tokens:
                self._agent_tokens[event.agent] = event.agent_tokens
        compactions = sum(event.compaction for event in events)
        text = "its own request is not in the file, and left out"
        self._assumptions.assume("compaction", text, compactions, example=thread.name)

    def _answer(self, thread: Thread, event: _Event, new: AnsweredRequest) -> None:
        """Add what a line says of an answer: of a ``new`` one, or of the one that it continues."""
        answer = self._answers.setdefault(event.message_id, new)
        if answer is new:
            self._owners[event.message_id] = thread
            thread.answers.append(answer)
        if new.usage.output_tokens >= answer.usage.output_tokens:
            answer.usage = replace(new.usage, response_id=event.message_id)
        self._stop(answer, event)
        answer.end_s = event.at_s if event.at_s is not None else answer.end_s
        for call_id, call in event.calls.items():
            if (thread.name, call_id) not in self._calls:
                self._calls[thread.name, call_id] = call
                answer.calls.append(call)

    def _stop(self, answer: AnsweredRequest, event: _Event) -> None:
        """Note whether the answer's count is final. A file without reasons to stop has final counts, unless its text is
        longer."""
        answer.text_tokens += event.tokens
        answer.thought_tokens += event.thoughts
        answer.hidden = answer.hidden or event.hidden
        if event.stopped:
            self._stopped.add(event.message_id)
        longer = answer.text_tokens + answer.thought_tokens > 2 * answer.usage.output_tokens
        answer.begun = event.message_id not in self._stopped and (event.stopped is not None or longer)

    def check(self) -> None:
        """Note the sub-agents that have no file, and those that ended with other counts than their callers say."""
        agents = {thread.name: thread for name, thread in self.threads.items() if len(name) > 1}
        for name, caller in self._callers.items():
            if name in agents:
                agents[name].parent = caller.name
        for key, call in self._calls.items():
            if key in self.threads:  # a sub-agent that is named as the call that started it
                self.threads[key].call = call
        missing = sorted(set(self._callers) - set(agents))
        text = "its file is missing: left out"
        self._assumptions.assume("sub-agent", text, len(missing), example=next(iter(missing), ""))
        for name, tokens in self._agent_tokens.items():
            answers = agents[name].answers if name in agents else []
            if answers and answers[-1].usage.prompt_tokens + answers[-1].usage.output_tokens != tokens:
                text = "its last request has other token counts than its caller says"
                self._assumptions.assume("sub-agent", text, example=name)


_MORE = ("parentUuid", "isSidechain", "cwd", "parent_tool_use_id", "message.content")
IMPORTERS = (
    Importer(
        "claude-code",
        read_claude_code,
        (
            Signs({"sessionId": str, "uuid": str, "message": dict, "type": "user"}, _MORE),
            Signs({"sessionId": str, "uuid": str, "message.usage": dict, "type": "assistant"}, _MORE),
            Signs({"session_id": str, "message.usage": dict, "type": "assistant"}, _MORE),
        ),
        join_claude_code,
    ),
)
