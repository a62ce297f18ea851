"""Agents that name their conversations in their own way: the shape of each agent's requests, and what is read in it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from continuum_server.vllm_plugin.request_tags import normalize_tags, read_caller
from continuum_traces.foreign_ids import ROWS, find_id
from continuum_traces.wire import tags_from_xargs

U1, U2, U3 = (f"{digit * 8}-{digit * 4}-4{digit * 3}-8{digit * 3}-{digit * 12}" for digit in "123")

CODEX = {"originator": "codex_exec", "user-agent": "codex_exec/0.169.0", "session-id": U1, "x-client-request-id": U2}
CODEX_BODY = {"input": [], "store": False, "prompt_cache_key": U1}
CLAUDE = {"user-agent": "claude-cli/2.1.0 (external, sdk-cli)", "x-app": "cli", "x-claude-code-session-id": U1}
CLAUDE_USER = json.dumps({"device_id": "d" * 64, "account_uuid": "", "session_id": U1})
CLAUDE_BODY = {"messages": [], "max_tokens": 32000, "metadata": {"user_id": CLAUDE_USER}}

SHAPES: dict[str, tuple[dict[str, str], dict[str, Any], tuple[str, str | None, str, bool]]] = {
    "Claude Code": (CLAUDE, CLAUDE_BODY, (U1, None, "header:x-claude-code-session-id", True)),
    "Claude Code, sub-agent": (
        {**CLAUDE, "x-claude-code-agent-id": "a1b2c3"},
        CLAUDE_BODY,
        ("a1b2c3", U1, "header:x-claude-code-agent-id", False),
    ),
    "Claude Code, sub-agent of a sub-agent": (
        {**CLAUDE, "x-claude-code-agent-id": "a1b2c3", "x-claude-code-parent-agent-id": "d4e5f6"},
        CLAUDE_BODY,
        ("a1b2c3", "d4e5f6", "header:x-claude-code-agent-id", False),
    ),
    "Codex": ({**CODEX, "thread-id": U1}, CODEX_BODY, (U1, None, "header:thread-id", False)),
    "Codex, sub-agent": (
        {**CODEX, "thread-id": U3, "x-codex-parent-thread-id": U1, "x-openai-subagent": "collab_spawn"},
        CODEX_BODY,
        (U3, U1, "header:thread-id", False),
    ),
    "Codex without threads": (CODEX, CODEX_BODY, (U1, None, "header:session-id", True)),
    "DeepSeek harness": (
        {"x-deepseek-harness-user-id": U2, "x-deepseek-harness-session-id": f"session-{U1}"},
        {},
        (f"session-{U1}", None, "header:x-deepseek-harness-session-id", False),
    ),
    "OpenCode": (
        {"user-agent": "opencode/1.2.0", "x-session-affinity": "ses_1", "x-session-id": "ses_1"},
        {},
        ("ses_1", None, "header:x-session-id", False),
    ),
    "OpenCode, sub-agent": (
        {"x-session-affinity": "ses_2", "x-session-id": "ses_2", "x-parent-session-id": "ses_1"},
        {},
        ("ses_2", "ses_1", "header:x-session-id", False),
    ),
    "OpenCode before 1.2": (
        {"x-session-affinity": "ses_2", "x-parent-session-id": "ses_1"},
        {},
        ("ses_2", "ses_1", "header:x-session-affinity", False),
    ),
    "Goose": ({"agent-session-id": "20261124_1"}, {}, ("20261124_1", None, "header:agent-session-id", True)),
    "Open WebUI": (
        {"x-openwebui-user-id": U2, "x-openwebui-chat-id": U1},
        {},
        (U1, None, "header:x-openwebui-chat-id", True),
    ),
    "LiteLLM": ({"x-litellm-session-id": U1}, {}, (U1, None, "header:x-litellm-session-id", True)),
    "OpenHands SDK": ({}, {"prompt_cache_key": U1}, (U1, None, "body:prompt_cache_key", True)),
    "Anthropic's API": (
        {},
        {"metadata": {"user_id": f"user_{'f' * 64}_account__session_{U1}"}},
        (U1, None, "body:metadata.user_id", True),
    ),
    "Anthropic's API, JSON": ({}, CLAUDE_BODY, (U1, None, "body:metadata.user_id", True)),
    "SGLang's clients": ({}, {"session_id": "s1"}, ("s1", None, "body:session_id", False)),
    "our clients without vLLM's dialect": (
        {"x-session-id": "p1", "x-dynamo-session-id": "p1", "x-parent-session-id": "p0"},
        {},
        ("p1", "p0", "header:x-session-id", False),
    ),
    "Dynamo": (
        {"x-dynamo-session-id": "p1", "x-dynamo-parent-session-id": "p0"},
        {},
        ("p1", "p0", "header:x-dynamo-session-id", False),
    ),
}


def passed_on(body: dict[str, Any], headers: dict[str, str], **how: Any) -> dict[str, Any]:
    """The xargs that vLLM receives."""
    return json.loads(normalize_tags(json.dumps(body).encode(), headers, **how).body).get("vllm_xargs") or {}


@pytest.mark.parametrize(("headers", "body", "expected"), SHAPES.values(), ids=SHAPES)
def test_an_agent_s_request_names_its_conversation(
    headers: dict[str, str], body: dict[str, Any], expected: tuple[str, str | None, str, bool]
) -> None:
    xargs = passed_on({"model": "m", **body}, headers)
    tags, caller = tags_from_xargs(xargs).tags, read_caller(xargs)
    assert (tags.program_id, tags.parent_id, caller.source, caller.weak) == expected
    assert caller.rejected == ()
    with_tags = passed_on({**body, "vllm_xargs": {"program_id": "mine"}}, headers)
    assert with_tags == {"program_id": "mine"}  # our tags count before any other id


def test_every_row_is_the_shape_of_an_agent() -> None:
    assert {expected[2] for _, _, expected in SHAPES.values()} == {row.source for row in ROWS}


def test_with_recognise_none_only_our_own_protocol_is_read() -> None:
    ours = {row.source for row in ROWS if row.ours}
    assert ours == {"header:x-session-id", "header:x-dynamo-session-id", "body:session_id"}
    for headers, body, (program_id, _, source, _) in SHAPES.values():
        read = passed_on(body, headers, ours_only=True)
        assert read.get("program_id") == (program_id if source in ours else None)


@pytest.mark.parametrize("raw", ["", "x" * 257, "a\nb"])
def test_a_malformed_id_is_passed_over(raw: str) -> None:
    for row in ROWS:
        place = {row.header.lower(): raw} if row.header else {}
        found, rejected = find_id({"agent-session-id": "g", **place}, {} if row.header else {row.field: raw})
        if row.name != "agent-session-id":
            assert found is not None
            assert found.program_id == "g"
        assert rejected == ((row.name,) if row.ours else ())


@pytest.mark.parametrize("user", ["", "user-123", {"session_id": U1}, f"user_session_{U1[:-1]}", "x" * 5000, 5, None])
def test_a_user_without_a_session_is_no_conversation(user: Any) -> None:
    for body in ({"metadata": {"user_id": user}}, {"metadata": user}, {"prompt_cache_key": {"a": user}}):
        assert find_id({}, body) == (None, ())


def test_a_conversation_is_not_its_own_parent() -> None:
    found, _ = find_id({"thread-id": "t", "x-codex-parent-thread-id": "t"}, {})
    assert found is not None
    assert found.parent_id is None
