"""Agents that name their conversations in their own way: the shape of each agent's requests, and what is read in it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec.yaml
import pytest
from continuum_server.foreign_ids import ROWS, find_id, operators_rows
from continuum_server.vllm_plugin.request_tags import normalize_tags, read_caller
from continuum_traces.schema import Tags
from continuum_traces.wire import tags_from_xargs

from continuum_client.tagging import tag_headers

PAGE = Path(__file__).resolve().parents[2] / "docs" / "server" / "several-engines.md"
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
    lower = {name.lower(): value for name, value in headers.items()}
    return json.loads(normalize_tags(json.dumps(body).encode(), lower, **how).body).get("vllm_xargs") or {}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.agent)
def test_an_agent_s_request_names_its_conversation(shape: Shape) -> None:
    xargs = passed_on({"model": "m", **shape.body}, shape.headers)
    tags, caller = tags_from_xargs(xargs).tags, read_caller(xargs)
    read = (tags.program_id, tags.parent_id, caller.source, caller.weak, caller.rejected)
    assert read == (shape.program, shape.parent, shape.source, shape.weak, ())
    with_tags = passed_on({**shape.body, "vllm_xargs": {"program_id": "mine"}}, shape.headers)
    assert with_tags == {"program_id": "mine"}  # our tags count before any other id


LLM_D = ("x-claude-code-session-id", "x-session-affinity", "session-id", "session_id")
"""What llm-d-router's plugin ``agent-identity`` reads by itself, by its documentation of August 2026."""


NOT_IN_LLM_D = ("header:baggage", "header:x-*-session-id")
"""It takes whole headers of known names. It gets those of aiperf and of gateways for each request, too."""


def key_in_llm_d(headers: Mapping[str, str]) -> str | None:
    """What llm-d-router keeps at one server, with the plugins of docs/server/several-engines.md, by its documentation:
    the first of the headers that is there and not empty."""
    (block,) = re.findall(r"^```yaml\n(plugins:.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    identity, affinity = msgspec.yaml.decode(block)["plugins"]
    assert (identity["type"], affinity["type"]) == ("agent-identity", "session-affinity-filter")
    assert affinity["parameters"]["strategy"] == "session_id"
    assert affinity["parameters"]["sessionIdConfig"]["sources"] == [{"attribute": "agent-identity"}]
    names = (*identity["parameters"]["additionalSessionHeaders"], *LLM_D)
    there = {name.lower(): value.strip() for name, value in headers.items()}
    return next((there[name] for name in names if there.get(name)), None)


def test_llm_d_keeps_what_names_itself_in_a_header() -> None:
    """The program, or the session whose sub-agents all go to the server of the main agent."""
    assert key_in_llm_d(tag_headers(Tags("mine", parent_id="main", turn_id="1-a"))) == "mine"
    for shape in SHAPES:
        in_header = shape.source.startswith("header:") and shape.source not in NOT_IN_LLM_D
        assert (key_in_llm_d(shape.headers) is not None) == in_header, shape.agent
        if in_header and shape.parent is None:
            assert key_in_llm_d(shape.headers) == shape.program
    apart = {shape.agent for shape in SHAPES if shape.parent and key_in_llm_d(shape.headers) == shape.program}
    ours = "our clients without vLLM's dialect"
    assert apart == {"OpenCode, sub-agent", "OpenCode before 1.2", ours, "Dynamo"}, "not always with their parents"


def test_with_recognise_none_only_our_own_protocol_is_read() -> None:
    ours = {row.source for row in ROWS if row.of_our_clients}
    assert ours == {"header:x-session-id", "header:x-dynamo-session-id", "body:session_id"}
    assert {shape.source for shape in SHAPES} == {row.source for row in ROWS}
    for shape in SHAPES:
        read = passed_on(shape.body, shape.headers, ours_only=True)
        assert read.get("program_id") == (shape.program if shape.source in ours else None)


@pytest.mark.parametrize("raw", ["", "x" * 257, "a\nb"])
def test_a_malformed_id_is_passed_over(raw: str) -> None:
    for row in ROWS:
        place = {row.header.lower(): raw, "user-agent": row.user_agent} if row.header else {}
        found, rejected = find_id({"agent-session-id": "g", **place}, {} if row.header else {row.field: raw})
        if row.name != "agent-session-id":
            assert found is not None
            assert found.program_id == "g"
        assert rejected == ((row.name,) if row.of_our_clients else ())


def test_a_correlation_id_is_aiperfs_only() -> None:
    """Gateways make one up for each request."""
    for agent in ("", "python-httpx/0.28", "notaiperf/1"):
        assert find_id({"x-correlation-id": U1, "user-agent": agent}, {}) == (None, ())
    found, _ = find_id({"x-correlation-id": U1, "user-agent": "AIPerf/2.0"}, {})
    assert found is not None
    assert (found.program_id, found.weak) == (U1, False)


def test_the_operators_header_counts_first() -> None:
    how: dict[str, Any] = {"operators": operators_rows(["X-Acme-Job", "X-Other"])}
    headers = {"x-session-id": "s", "x-acme-job": "job-7"}
    xargs = passed_on({}, headers, **how)
    assert (xargs["program_id"], read_caller(xargs).source) == ("job-7", "header:x-acme-job")
    assert passed_on({}, headers, ours_only=True, **how)["program_id"] == "job-7"
    assert passed_on({}, {"x-session-id": "s", "x-acme-job": "a\nb"}, **how)["program_id"] == "s"
    assert passed_on({"vllm_xargs": {"program_id": "mine"}}, headers, **how) == {"program_id": "mine"}


@pytest.mark.parametrize(
    "raw", ["", "gen_ai.conversation.id", "gen_ai.conversation.id=", "gen_ai.conversation.idx=1", ",;=,", "x" * 5000]
)
def test_baggage_without_a_conversation(raw: str) -> None:
    assert find_id({"baggage": raw}, {}) == (None, ())


@pytest.mark.parametrize("user", ["", "user-123", {"session_id": U1}, f"user_session_{U1[:-1]}", "x" * 5000, 5, None])
def test_a_user_without_a_session_is_no_conversation(user: Any) -> None:
    for body in ({"metadata": {"user_id": user}}, {"metadata": [user]}, {"prompt_cache_key": {"a": user}}):
        assert find_id({}, body) == (None, ())


def test_a_conversation_is_not_its_own_parent() -> None:
    found, _ = find_id({"thread-id": "t", "x-codex-parent-thread-id": "t"}, {})
    assert found is not None
    assert found.parent_id is None
