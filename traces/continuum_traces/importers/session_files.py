"""Import the session files of agents that write one message after the other: Gemini CLI, Qwen Code, OpenCode, pi and
OpenClaw, Kimi CLI, Cline and its relatives, tau2. ``dialogue.py`` reads the messages; here is where each has them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from continuum_traces.grouped import grouped
from continuum_traces.importers.described import Imported, inner, listed
from continuum_traces.importers.dialogue import (
    AT,
    IDENT,
    Dialogue,
    Message,
    Placed,
    first,
    instant,
    read_dialogue,
    role_of,
    say_estimates,
)
from continuum_traces.importers.importer import Importer, Signs, Source
from continuum_traces.importers.timed_requests import programs_on_timeline
from continuum_traces.programs.assumptions import Assumptions
from continuum_traces.shell import first_program

FORKED = "what it shares with the session before counts as new input"


@dataclass(slots=True)
class Session:
    """What one file says of a session."""

    file: Source
    name: str
    parent: str | None = None
    messages: list[Placed] = field(default_factory=list)


# ------------------------------------------------------------------------------------- where each has its messages


def read_gemini_cli(source: Source) -> Iterator[Session]:
    """A session is a program, and the files of one session are one. A turn is a ``gemini`` message with ``tokens``."""
    session = Session(source, source.path.stem)
    for where, row in source.rows():
        if "sessionId" in row:
            session.name = str(row["sessionId"])
            session.parent = source.path.parent.name if row.get("kind") == "subagent" else None
        rows = [(f"{where}: messages[{n}]", each) for n, each in enumerate(listed(where, row, "messages", dict))]
        session.messages += [*rows, (where, row)] if "type" in row else rows
    yield session


def read_qwen_code(source: Source) -> Iterator[Session]:
    """A session is a program. A turn is an ``assistant`` line with ``usageMetadata``."""
    session = Session(source, source.path.stem)
    for where, row in source.rows():
        session.name = str(row.get("sessionId") or session.name)
        if row.get("type") in ("user", "assistant", "tool_result"):
            session.messages.append((where, row))
    yield session


def read_pi(source: Source) -> Iterator[Session]:
    """A session is a program, its branches one after the other. A turn is an assistant's message."""
    session = Session(source, source.path.stem)
    for where, row in source.rows():
        if row.get("type") == "session":
            session.name = str(row.get("id") or session.name)
        if row.get("type") in ("message", "message_end"):  # the latter is printed, with the time at which it began
            message = inner(where, row, "message")
            times = {name: row[name] for name in ("id", "timestamp") if row.get(name) is not None}
            times = times or {"time": {"created": message.get("timestamp")}}
            session.messages.append((where, {**message, **times}))
    yield session


def read_tau2(source: Source) -> Iterator[Session]:
    """A simulation is a program: the agent's side of it. The simulated user's requests are left out."""
    for where, run in source.rows("simulations"):
        for number, each in enumerate(listed(where, run, "simulations", dict)):
            place = f"{where}: simulations[{number}]"
            parts = (each.get("task_id"), each.get("trial"))
            name = str(each.get("id") or "/".join(str(part) for part in parts if part is not None) or place)
            messages = listed(place, each, "messages", dict)
            yield Session(source, name, None, [(f"{place}: messages[{n}]", m) for n, m in enumerate(messages)])


def read_kimi(source: Source) -> Iterator[Session]:
    """A session (``wire.jsonl``) is a program, and so is each of its sub-agents. A turn is a step, with the
    ``token_usage`` of its status."""
    main = source.path.parent.name
    sessions, steps = {main: Session(source, main)}, dict[str, dict[str, Any]]()
    for where, row in source.rows():
        event, at, name = inner(where, row, "message"), row.get("timestamp"), main
        kind, payload = str(event.get("type")), inner(where, event, "payload")
        while kind == "SubagentEvent":
            call = first(payload, ("parent_tool_call_id", "task_tool_call_id"))
            parent, name = name, str(payload.get("agent_id") or f"{name}/{call}")
            sessions.setdefault(name, Session(source, name, parent))
            event = inner(where, payload, "event")
            kind, payload = str(event.get("type")), inner(where, event, "payload")
        session, step = sessions[name], steps.get(name, {})
        if kind == "StepBegin":
            steps[name] = {"role": "assistant", "time": {"created": at}, "content": [], "tool_calls": []}
            session.messages.append((where, steps[name]))
        elif kind == "TurnBegin":
            session.messages.append((where, {"role": "user", "timestamp": at, "content": payload.get("user_input")}))
        elif kind == "ToolResult":
            told = {"role": "tool", "tool_call_id": payload.get("tool_call_id"), "timestamp": at}
            session.messages.append((where, {**told, "content": json.dumps(payload.get("return_value"))}))
        elif step and kind in ("ContentPart", "ToolCall", "StatusUpdate"):
            step["time"]["completed"] = at
            step["content"] += [payload] if kind == "ContentPart" else []
            step["tool_calls"] += [payload] if kind == "ToolCall" else []
            step |= {"usage": payload["token_usage"]} if payload.get("token_usage") else {}
            step |= {"id": payload["message_id"]} if payload.get("message_id") else {}
    yield from sessions.values()


def read_cline(source: Source) -> Iterator[Session]:
    """A task's folder (``ui_messages.json``) is a program. A turn is an ``api_req_started`` with ``tokensIn``; its
    tools run until the next."""
    head = source.path.with_name("history_item.json")
    parent = _json(head.read_text()).get("parentTaskId") if head.is_file() else None
    session, request = Session(source, source.path.parent.name, parent), dict[str, Any]()
    for where, row in source.rows():
        kind, said, at = row.get("say") or row.get("ask"), _json(row.get("text")), row.get("ts")
        if kind == "api_req_started":
            if request.get("tool_calls"):
                results = [{"id": call["id"]} for call in request["tool_calls"]]
                session.messages.append((where, {"role": "tool", "timestamp": at, "tool_results": results}))
            usage = {**said, "prompt_tokens": said.get("tokensIn") if said.get("apiProtocol") == "openai" else None}
            times = {"created": at, "completed": None}
            request = {"role": "assistant", "time": times, "usage": usage, "tool_calls": []}
            session.messages.append((where, request))
        elif request and kind in ("tool", "command", "use_mcp_server", "browser_action_launch", "text"):
            request["time"]["completed"] = at if not request["tool_calls"] else request["time"]["completed"]
            if kind != "text":
                name = said.get("tool") or said.get("toolName") or first_program(str(row.get("text"))) or kind
                request["tool_calls"].append({"id": where, "name": name, "arguments": row.get("text")})
    yield session


def _json(text: Any) -> Mapping[str, Any]:
    with suppress(ValueError, RecursionError, TypeError):
        value = json.loads(text)
        return value if isinstance(value, dict) else {}
    return {}


def read_opencode(source: Source) -> Iterator[tuple[Source, str, Message]]:
    """A session is a program; ``parentID`` names the session that started it. A turn is a message of the assistant, or
    each of its steps if it has several. It is read from an export, or from the files of OpenCode's storage."""
    for where, row in source.rows():
        if "messages" in row:
            session = inner(where, row, "info")
            yield source, where, {"id": source.path.stem, **session}
            for number, message in enumerate(listed(where, row, "messages", dict)):
                place = f"{where}: messages[{number}]"
                yield source, place, {"sessionID": session.get("id"), **_flat(place, message)}
        else:
            yield source, where, _flat(where, row) if "info" in row else row


def _flat(where: str, message: Message) -> Message:
    """Return a message without its envelope, with its parts."""
    return {"role": "user", **inner(where, message, "info"), "parts": listed(where, message, "parts", dict)}


def _opencode_sessions(rows: Iterable[tuple[Source, str, Message]]) -> Iterator[Session]:
    rows = list(rows)
    parts = grouped((str(row["messageID"]), row) for _, _, row in rows if "messageID" in row)
    messages = [each for each in rows if "role" in each[2]]
    heads = {str(row["id"]): row for _, _, row in rows if "role" not in row and "messageID" not in row and "id" in row}
    groups = grouped((str(each[2].get("sessionID")), each) for each in messages)
    for name, group in groups.items():
        parent = heads.get(name, {}).get("parentID")
        session = Session(group[0][0], name, str(parent) if parent else None)
        group.sort(key=lambda each: instant(each[2], AT) or 0.0)
        for _, where, row in group:
            beside = sorted(parts.get(str(row.get("id")), ()), key=lambda part: str(part.get("id")))
            session.messages += [(where, each) for each in _steps(where, row, [*row.get("parts", ()), *beside])]
        yield session


def _steps(where: str, message: Message, parts: Sequence[Message]) -> Iterator[Message]:
    """Yield a message for each of its requests: each step with token counts, if there are several."""
    steps: list[list[Message]] = [[]]
    for part in parts:
        steps[-1].append(part)
        if part.get("type") == "step-finish" and part.get("tokens"):
            steps.append([])
    steps = steps[:-1] if len(steps) > 2 else [list(parts)]
    times = inner(where, message, "time")
    for number, step in enumerate(steps):
        tokens = step[-1].get("tokens") if len(steps) > 1 else message.get("tokens")
        starts = [start for part in step if (start := first(part, ("state.time.start",))) is not None]
        last = times.get("completed") if number == len(steps) - 1 else None
        ends = [each for each in (last, max(starts, default=None)) if each is not None]
        created = times.get("created") if number == 0 else None
        at = {"created": created, "completed": min(ends, default=None)}
        yield {**message, "id": f"{message.get('id')}/{number}", "time": at, "tokens": tokens, "parts": step}


# ------------------------------------------------------------------------------------------------- what they share


def _joined(sessions: Iterable[Session]) -> list[Session]:
    """Return the sessions, those with the same id as one: of messages with the same id the latest counts."""
    joined: dict[str, Session] = {}
    for each in sessions:
        one = joined.setdefault(each.name, Session(each.file, each.name))
        one.parent, one.messages = one.parent or each.parent, one.messages + each.messages
    for each in joined.values():
        named = ((str(first(placed[1], IDENT) or (n,)), placed) for n, placed in enumerate(each.messages))
        each.messages = list(dict(named).values())
    return list(joined.values())


def _without_repeats(sessions: Iterable[Session], assumptions: Assumptions) -> Iterator[Session]:
    """Yield the sessions with each answer in one of them only.

    A session that begins with all answers of another session continues it. A session that begins with some of them was
    forked from it.
    """
    owners: dict[tuple[str, float | None], Session] = {}
    kept: list[Session] = []
    for session in sorted(sessions, key=_span):
        keys = [_key(where, message) for where, message in session.messages]
        repeated = [n for n, key in enumerate(keys) if key in owners]
        owner = owners[keys[repeated[-1]]] if repeated else None  # type: ignore[index]
        if owner is not None:
            count = sum(role_of(session.messages[n][1], session.name) == "assistant" for n in repeated)
            assumptions.assume("answer", "repeated in another file: counted once", count, example=session.name)
            last = keys[repeated[-1]]
            session.messages = session.messages[repeated[-1] + 1 :]
            if last == next((key for at, m in reversed(owner.messages) if (key := _key(at, m))), None):
                owner.messages += session.messages
                owners.update((key, owner) for key in keys if key)
                continue
            session.parent = session.parent or owner.name
            assumptions.assume("forked session", FORKED, example=session.name)
        owners.update((key, session) for key in keys if key and key not in owners)
        kept.append(session)
    yield from kept


def _key(where: str, message: Message) -> tuple[str, float | None] | None:
    """Return what is equal for an answer in every file that has it; None: the message is no answer, or has no id."""
    ident, at_s = first(message, IDENT), instant(message, AT)
    return (str(ident), at_s) if ident and at_s is not None and role_of(message, where) == "assistant" else None


def _span(session: Session) -> tuple[float, float]:
    instants = [at_s for _, message in session.messages if (at_s := instant(message, AT)) is not None]
    return min(instants, default=0.0), max(instants, default=0.0)


Grouping = Callable[[Iterable[Any]], Iterable[Session]]


def _join(
    form: str, sessions_of: Grouping, one_agent: bool
) -> Callable[[Iterable[Any], Assumptions], Iterator[Imported]]:
    def join(parts: Iterable[Any], assumptions: Assumptions) -> Iterator[Imported]:
        dialogues: list[Dialogue] = []
        for each in _without_repeats(_joined(sessions_of(parts)), assumptions):
            file = Source(each.file.path, assumptions)
            dialogues.append(read_dialogue(file, each.name, each.messages, each.parent))
            say_estimates(file, dialogues[-1:])
        yield from programs_on_timeline([each.thread for each in dialogues], form, assumptions, one_agent)

    return join


def _importer(
    name: str,
    read: Callable[[Source], Iterator[Any]],
    *signs: Signs,
    sessions_of: Grouping = iter,
    one_agent: bool = True,
) -> Importer:
    return Importer(name, read, signs, _join(name, sessions_of, one_agent))


IMPORTERS = (
    _importer(
        "gemini-cli",
        read_gemini_cli,
        Signs({"sessionId": str, "projectHash": str}, ("messages", "messages.tokens", "startTime", "lastUpdated")),
    ),
    _importer(
        "qwen-code",
        read_qwen_code,
        Signs(
            {"sessionId": str, "uuid": str, "type": str, "message.parts": list},
            ("usageMetadata", "message.role", "parentUuid", "cwd", "version"),
        ),
    ),
    _importer(
        "opencode",
        read_opencode,
        Signs({"info.id": "ses*", "messages": list, "messages.info": dict}, ("messages.parts", "info.version")),
        Signs({"id": "ses*", "time": dict}, ("projectID", "directory", "version", "title")),
        Signs({"id": "msg*", "sessionID": str, "role": str}, ("time", "tokens", "modelID", "parts")),
        Signs({"info.id": "msg*", "info.sessionID": str, "parts": list}),
        Signs({"id": "prt*", "sessionID": str, "messageID": str}, ("type", "state", "tool")),
        sessions_of=_opencode_sessions,
    ),
    _importer(
        "pi",
        read_pi,
        Signs({"type": "session", "id": str, "cwd": str}, ("timestamp", "version", "parentSession")),
        Signs(
            {"type": "message", "id": str, "message.role": str, "timestamp": object},
            ("parentId", "message.usage", "message.content"),
        ),
    ),
    _importer(
        "kimi-cli",
        read_kimi,
        Signs({"timestamp": object, "message.type": str, "message.payload": dict}, ("message.payload.token_usage",)),
        Signs({"type": "metadata", "protocol_version": str}, file="wire.jsonl"),
    ),
    _importer("cline", read_cline, Signs({"ts": object, "type": "say", "say": str}, ("text", "partial"))),
    _importer(
        "tau2",
        read_tau2,
        Signs(
            {"simulations": list, "simulations.messages": list}, ("info", "tasks", "simulations.task_id", "timestamp")
        ),
        one_agent=False,
    ),
)
