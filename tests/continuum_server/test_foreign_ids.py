"""Agents that name their conversations in their own way: the shape of each agent's requests, and what is read in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec.yaml
import pytest
from continuum_server.vllm_plugin.request_tags import normalize_tags, read_caller
from continuum_traces.foreign_ids import ROWS, find_id
from continuum_traces.wire import tags_from_xargs

U1 = "11111111-1111-4111-8111-111111111111"


class Shape(msgspec.Struct):
    """An agent's request, and what is read in it."""

    agent: str
    program: str
    source: str
    parent: str | None = None
    weak: bool = False
    headers: dict[str, str] = {}
    body: dict[str, Any] = {}


SHAPES = msgspec.yaml.decode(Path(__file__).with_name("foreign_ids.yaml").read_bytes(), type=list[Shape])


def passed_on(body: dict[str, Any], headers: dict[str, str], **how: Any) -> dict[str, Any]:
    """The xargs that vLLM receives."""
    return json.loads(normalize_tags(json.dumps(body).encode(), headers, **how).body).get("vllm_xargs") or {}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.agent)
def test_an_agent_s_request_names_its_conversation(shape: Shape) -> None:
    xargs = passed_on({"model": "m", **shape.body}, shape.headers)
    tags, caller = tags_from_xargs(xargs).tags, read_caller(xargs)
    read = (tags.program_id, tags.parent_id, caller.source, caller.weak, caller.rejected)
    assert read == (shape.program, shape.parent, shape.source, shape.weak, ())
    with_tags = passed_on({**shape.body, "vllm_xargs": {"program_id": "mine"}}, shape.headers)
    assert with_tags == {"program_id": "mine"}  # our tags count before any other id


def test_with_recognise_none_only_our_own_protocol_is_read() -> None:
    ours = {row.source for row in ROWS if row.ours}
    assert ours == {"header:x-session-id", "header:x-dynamo-session-id", "body:session_id"}
    assert {shape.source for shape in SHAPES} == {row.source for row in ROWS}
    for shape in SHAPES:
        read = passed_on(shape.body, shape.headers, ours_only=True)
        assert read.get("program_id") == (shape.program if shape.source in ours else None)


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
