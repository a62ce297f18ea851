"""Requests that ask to keep their KV, in the words of several APIs, and values that change nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from continuum_server.retention import HINTS, MOST_PARTS, read_retention, seconds_of
from continuum_server.vllm_plugin.request_tags import normalize_tags, read_caller
from continuum_traces.wire import tags_from_xargs

DAY = 86_400.0
CLAUDE = {
    "system": [
        {"type": "text", "text": "You are an agent."},
        {"type": "text", "text": "Rules.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
    ],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]},
    ],
}
SENT: list[tuple[str, dict[str, Any], float]] = [
    ("cache_control", CLAUDE, 3600.0),
    ("cache_control", {"messages": CLAUDE["messages"]}, 300.0),
    ("cache_control", {"cache_control": {"type": "ephemeral", "ttl": "5m"}}, 300.0),
    ("cache_control", {"tools": [{"name": "Bash", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]}, 3600.0),
    ("prompt_cache_retention", {"prompt_cache_retention": "24h"}, DAY),
    ("prompt_cache_retention", {"prompt_cache_retention": "in_memory"}, 300.0),
    ("prompt_cache_options.ttl", {"prompt_cache_options": {"mode": "implicit", "ttl": "30m"}}, 1800.0),
    ("kv_hints", {"kv_hints": {"protocol_version": "0.1", "actions": [{"type": "kv.retain", "duration": 60}]}}, 60.0),
    ("kv_hints", {"kv_hints": {"actions": [{"type": "kv.retain", "parameters": {"duration_s": 7}}]}}, 7.0),
    ("retention_seconds", {"retention_seconds": 90}, 90.0),
    ("kv_cache_ttl_seconds", {"kv_cache_ttl_seconds": 45.5}, 45.5),
    ("nvext.cache_control", {"nvext": {"cache_control": {"type": "ephemeral", "ttl": "1h"}}}, 3600.0),
]


def passed_on(body: dict[str, Any]) -> dict[str, Any]:
    return json.loads(normalize_tags(json.dumps(body).encode(), {}).body).get("vllm_xargs") or {}


@pytest.mark.parametrize(("name", "body", "seconds"), SENT)
def test_a_hint_asks_for_a_soft_hold(name: str, body: dict[str, Any], seconds: float) -> None:
    assert name in {hint.name for hint in HINTS}
    xargs = passed_on(body)
    assert tags_from_xargs(xargs).tags.kv_ttl_s == seconds
    assert read_caller(xargs).ignored == ()
    assert passed_on({**body, "vllm_xargs": {"kv_ttl_s": 3}})["kv_ttl_s"] == 3  # ours counts first
    if name in ("retention_seconds", "kv_cache_ttl_seconds", "prompt_cache_retention"):
        assert passed_on({"vllm_xargs": body})["kv_ttl_s"] == seconds


def test_every_hint_that_does_something_is_sent_here() -> None:
    assert {hint.name for hint in HINTS} - {name for name, _, _ in SENT} == {"nvext.agent_hints"}


HOSTILE = [-1, -1e300, True, [], {}, [60], "", "-5m", "5 years", "1h" * 40, "nan", float("inf"), float("nan")]


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("name", ["retention_seconds", "kv_cache_ttl_seconds", "prompt_cache_retention"])
def test_a_value_that_cannot_be_read_asks_for_nothing_and_is_named(name: str, value: Any) -> None:
    xargs = passed_on({name: value})
    assert "kv_ttl_s" not in xargs
    assert read_caller(xargs).ignored == (name,)


@pytest.mark.parametrize(
    ("raw", "seconds"),
    [(0, 0.0), (10**12, DAY), (10**400, DAY), (DAY, DAY), (DAY + 1, DAY), ("1500ms", 1.5), ("365d", DAY), ("7", 7.0)],
)
def test_a_time_is_at_most_a_day(raw: Any, seconds: float) -> None:
    assert seconds_of(raw) == seconds


@pytest.mark.parametrize(
    "body",
    [
        {"cache_control": "1h"},
        {"cache_control": {"type": "persistent", "ttl": "1h"}},
        {"system": [{"cache_control": {"type": "ephemeral", "ttl": ["1h"]}}]},
        {"kv_hints": [1]},
        {"kv_hints": {"actions": [{"type": "kv.fetch"}]}},
        {"nvext": {"agent_hints": {"priority": 5}}},
    ],
)
def test_what_asks_for_something_else_is_named(body: dict[str, Any]) -> None:
    read = read_retention(body)
    assert read.seconds is None
    assert len(read.ignored) == 1
    assert read_caller(passed_on(body)).ignored == read.ignored


def test_a_client_cannot_name_ignored_hints_itself() -> None:
    xargs = passed_on({"vllm_xargs": {"continuum_ignored": "nvext.agent_hints"}})
    assert "continuum_ignored" not in xargs
    assert read_caller({"continuum_ignored": "x"}).rejected == ("continuum_ignored",)


def test_the_search_in_a_prompt_is_bounded() -> None:
    marked = {"role": "user", "content": [{"type": "text", "cache_control": {"type": "ephemeral"}}]}
    plain = {"role": "user", "content": "hi"}
    assert read_retention({"messages": [marked, *[plain] * (MOST_PARTS - 1)]}).seconds == 300.0
    assert read_retention({"messages": [marked, *[plain] * MOST_PARTS]}).seconds is None
