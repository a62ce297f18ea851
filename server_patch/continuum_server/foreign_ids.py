"""Ids by which agents name their conversations in the headers and bodies of their requests. Pure functions.

``ROWS`` is the whole list, from which the table in docs/server/untagged.md is written. A request's id is that of the
first row with a valid value. Ids follow the rules of program ids (``wire.read_program_id``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from continuum_traces.wire import MAX_CHARS, SESSION_HEADERS, read_program_id

ANY = "*"
"""In the name of a header: any text, as in ``x-*-session-id``."""
_SESSION_OF_USER = re.compile(r'(?:_session_|"session_id"\s*:\s*")([0-9a-fA-F-]{36})')


@dataclass(frozen=True, slots=True)
class ForeignId:
    """A place in a request where some agents put an id of their conversation."""

    agents: str
    header: str = ""
    """Name of a header; ``*`` in it stands for any text without ``parent``."""
    field: str = ""
    """Path of a member of the body, with dots; used if ``header`` is empty."""
    parents: tuple[str, ...] = ()
    """Headers with the id of the conversation that began this one. The first valid one counts."""
    weak: bool = False
    """Several conversations can have the same id: those of one session's sub-agents and side requests, or those of
    different machines."""
    user_agent: str = ""
    """The header ``User-Agent`` of these agents begins so. Others send something else under this name."""
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


def conversation_in_baggage(raw: Any) -> str | None:
    """Return ``gen_ai.conversation.id`` in OpenTelemetry's header ``baggage``.

    It has pairs with commas between them, each with properties behind semicolons.
    """
    if not isinstance(raw, str) or len(raw) > MAX_CHARS:
        return None
    pairs = (member.split(";")[0].partition("=") for member in raw.split(","))
    values = (unquote(value.strip()) for name, _, value in pairs if name.strip() == "gen_ai.conversation.id")
    return next(filter(None, map(read_program_id, values)), None)


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
    ForeignId("OpenCode at its own provider", header="x-opencode-session", parents=PARENT),
    ForeignId("clients of xAI", header="x-grok-conv-id"),
    # aiperf names each conversation so. Others, and gateways, make up an id for each request.
    ForeignId("aiperf, agentx-harness", header="X-Correlation-ID", user_agent="aiperf/"),
    ForeignId("Claude Code", header=CLAUDE_SESSION, weak=True),
    ForeignId("Codex", header="session-id", weak=True),
    ForeignId("older Codex", header="session_id", weak=True),
    ForeignId("Goose", header="agent-session-id", weak=True),
    ForeignId("Hermes Agent", header="X-Hermes-Session-Id", weak=True),
    ForeignId("Open WebUI", header="X-OpenWebUI-Chat-Id", weak=True),
    ForeignId("AIBrix", header="x-aibrix-session-key", weak=True),
    ForeignId("SGLang's gateway, slime, miles", header="X-SMG-Routing-Key", weak=True),
    ForeignId("LiteLLM, OpenHands", header="x-litellm-session-id", weak=True),
    ForeignId("LiteLLM", header="x-litellm-trace-id", weak=True),
    ForeignId("Helicone", header="Helicone-Session-Id", weak=True),
    ForeignId("others", header="x-*-session-id", weak=True),
    ForeignId("OpenTelemetry", header="baggage", weak=True, read=conversation_in_baggage),
    ForeignId("OpenHands, Kimi, users of openai", field="prompt_cache_key", weak=True),
    ForeignId("users of openai", field="metadata.session_id", weak=True),
    ForeignId("users of Anthropic's API", field="metadata.user_id", weak=True, read=session_of_user),
)
SESSIONS = frozenset(row.source for row in ROWS if row.source != "body:prompt_cache_key")
"""Sources of ids that are of one session or conversation. That of a cache's key may be a whole company's."""
_SOURCE = re.compile(r"header:[a-z0-9_.*-]{1,128}")


def is_source(value: Any) -> bool:
    """Whether a value is the source of an id in a row, or in a header that the operator named."""
    return isinstance(value, str) and (value in SESSIONS or value == "body:prompt_cache_key" or _is_header(value))


def _is_header(value: str) -> bool:
    return _SOURCE.fullmatch(value) is not None


def operators_rows(headers: Sequence[str]) -> tuple[ForeignId, ...]:
    """Return the rows of headers that the operator named (``serve --session-header``)."""
    return tuple(ForeignId("the operator's", header=name) for name in headers)


def find_id(
    headers: Mapping[str, str],
    body: Mapping[str, Any],
    ours_only: bool = False,
    operators: tuple[ForeignId, ...] = (),
) -> tuple[FoundId | None, tuple[str, ...]]:
    """Return the conversation's id in a request, and the names of our own ids that are malformed.

    Args:
        headers: the headers by lower-case name.
        ours_only: read only the ids of our own protocol and of the operator's headers.
        operators: the rows of the headers that the operator named, which count first.
    """
    rejected: list[str] = []
    for row in (*operators, *ROWS):
        if ours_only and not (row.of_our_clients or row in operators):
            continue
        raw = _header(headers, row) if row.header else _member(body, row.field)
        if raw is None:
            continue
        program_id = row.read(raw)
        if program_id is not None:
            return FoundId(program_id, _parent(row, program_id, headers), row.source, row.weak), tuple(rejected)
        if row.of_our_clients:
            rejected.append(row.name)
    return None, tuple(rejected)


def _header(headers: Mapping[str, str], row: ForeignId) -> str | None:
    if row.user_agent and not headers.get("user-agent", "").lower().startswith(row.user_agent):
        return None
    name = row.header.lower()
    if ANY not in name:
        return headers.get(name)
    start, end = name.split(ANY)
    fitting = (key for key in headers if key.startswith(start) and key.endswith(end) and len(key) > len(name) - 1)
    return next((headers[key] for key in sorted(fitting) if "parent" not in key), None)


def _member(body: Any, path: str) -> Any:
    for name in path.split("."):
        body = body.get(name) if isinstance(body, Mapping) else None
    return body


def _parent(row: ForeignId, program_id: str, headers: Mapping[str, str]) -> str | None:
    parents = (read_program_id(headers.get(name.lower())) for name in row.parents)
    parent_id = next((parent for parent in parents if parent is not None), None)
    return None if parent_id == program_id else parent_id
