"""Ids by which agents name their conversations in the headers and bodies of their requests. Pure functions.

``ROWS`` is the whole list. A request's id is that of the first row with a valid value. Ids follow the rules of program
ids (``wire.read_program_id``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from continuum_traces.wire import MAX_CHARS, SESSION_HEADERS, read_program_id

_SESSION_OF_USER = re.compile(r'(?:_session_|"session_id"\s*:\s*")([0-9a-fA-F-]{36})')


@dataclass(frozen=True, slots=True)
class ForeignId:
    """A place in a request where some agents put an id of their conversation."""

    agents: str
    header: str = ""
    field: str = ""
    """Path of a member of the body, with dots; used if ``header`` is empty."""
    parents: tuple[str, ...] = ()
    """Headers with the id of the conversation that began this one. The first valid one counts."""
    weak: bool = False
    """Several conversations can have the same id: those of one session's sub-agents and side requests, or those of
    different machines."""
    of_our_clients: bool = False
    """The id is part of our own protocol. It is always read, and a malformed one is reported."""
    read: Callable[[Any], str | None] = read_program_id

    @property
    def name(self) -> str:
        return self.header or self.field

    @property
    def source(self) -> str:
        """``header:NAME`` or ``body:NAME``."""
        return f"header:{self.header.lower()}" if self.header else f"body:{self.field}"


@dataclass(frozen=True, slots=True)
class FoundId:
    """The conversation of a request, as its agent named it."""

    program_id: str
    parent_id: str | None
    source: str
    weak: bool


def session_of_user(raw: Any) -> str | None:
    """Return the session in the ``user_id`` that Claude's clients send: JSON text with a ``session_id``, or
    ``user_..._session_UUID``."""
    session = _SESSION_OF_USER.search(raw) if isinstance(raw, str) and len(raw) <= MAX_CHARS else None
    return None if session is None else session[1]


CLAUDE_SESSION = "X-Claude-Code-Session-Id"
PARENT = ("X-Parent-Session-ID",)

ROWS = (
    ForeignId("our clients, vLLM", field="session_id", parents=PARENT, of_our_clients=True),
    ForeignId("our clients, OpenCode, Crush", header=SESSION_HEADERS[0], parents=PARENT, of_our_clients=True),
    ForeignId("Dynamo", header=SESSION_HEADERS[1], parents=("X-Dynamo-Parent-Session-ID",), of_our_clients=True),
    # A sub-agent of Claude Code has an id of its own beside the session's. Requests with the session's id alone are
    # those of the main agent, and side requests such as titles: hence weak.
    ForeignId(
        "Claude Code", header="X-Claude-Code-Agent-Id", parents=("X-Claude-Code-Parent-Agent-Id", CLAUDE_SESSION)
    ),
    ForeignId("Codex", header="thread-id", parents=("x-codex-parent-thread-id",)),
    ForeignId("DeepSeek harness", header="x-deepseek-harness-session-id"),
    ForeignId("OpenCode, Crush", header="x-session-affinity", parents=PARENT),
    ForeignId("Claude Code", header=CLAUDE_SESSION, weak=True),
    ForeignId("Codex", header="session-id", weak=True),
    ForeignId("Goose", header="agent-session-id", weak=True),
    ForeignId("Open WebUI", header="X-OpenWebUI-Chat-Id", weak=True),
    ForeignId("LiteLLM, OpenHands", header="x-litellm-session-id", weak=True),
    ForeignId("OpenHands, Kimi, users of openai", field="prompt_cache_key", weak=True),
    ForeignId("users of Anthropic's API", field="metadata.user_id", weak=True, read=session_of_user),
)
SOURCES = frozenset(row.source for row in ROWS)


def find_id(
    headers: Mapping[str, str], body: Mapping[str, Any], ours_only: bool = False
) -> tuple[FoundId | None, tuple[str, ...]]:
    """Return the conversation's id in a request, and the names of our own ids that are malformed.

    Args:
        headers: the headers by lower-case name.
        ours_only: read only the ids of our own protocol.
    """
    rejected: list[str] = []
    for row in ROWS:
        raw = headers.get(row.header.lower()) if row.header else _member(body, row.field)
        if raw is None or (ours_only and not row.of_our_clients):
            continue
        program_id = row.read(raw)
        if program_id is not None:
            return FoundId(program_id, _parent(row, program_id, headers), row.source, row.weak), tuple(rejected)
        if row.of_our_clients:
            rejected.append(row.name)
    return None, tuple(rejected)


def _member(body: Any, path: str) -> Any:
    for name in path.split("."):
        body = body.get(name) if isinstance(body, Mapping) else None
    return body


def _parent(row: ForeignId, program_id: str, headers: Mapping[str, str]) -> str | None:
    parents = (read_program_id(headers.get(name.lower())) for name in row.parents)
    parent_id = next((parent for parent in parents if parent is not None), None)
    return None if parent_id == program_id else parent_id
