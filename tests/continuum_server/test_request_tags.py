"""Any tag in any form: the request that reaches vLLM is valid, says what the client said, and loses nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from continuum_server.vllm_plugin.request_tags import CLIENT_KEY, hints_to_xargs, tag_body
from continuum_traces.wire import PROGRAM_ID_ALIASES, TAG_NAMES, tags_from_xargs
from hypothesis import given
from hypothesis import strategies as st

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
tag_names = st.sampled_from((*TAG_NAMES, *PROGRAM_ID_ALIASES))


def sent(body: dict[str, Any], headers: dict[str, str] | None = None, client: str | None = None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(tag_body(json.dumps(body).encode(), headers or {}, client).body)
    return found


def is_object(body: bytes) -> bool:
    try:
        return isinstance(json.loads(body), dict)
    except ValueError:
        return False


def test_an_untagged_request_is_not_touched() -> None:
    body = b'{ "model": "m",  "prompt": "say \\"program\\"" }'
    assert tag_body(body, {}).body is body


def test_clean_xargs_are_not_touched() -> None:
    body = json.dumps({"vllm_xargs": {"program_id": "p", "is_last_step": 1, "other": [1, 2]}}).encode()
    assert tag_body(body, {}).body is body


@pytest.mark.parametrize("header", ["x-session-id", "x-dynamo-session-id"])
def test_a_session_header_names_the_program(header: str) -> None:
    assert sent({"prompt": "x"}, {header: "p1"}) == {"vllm_xargs": {"program_id": "p1"}, "prompt": "x"}


def test_the_final_header_is_the_last_step() -> None:
    headers = {"x-session-id": "p1", "x-dynamo-session-final": "true"}
    assert sent({}, headers) == {"vllm_xargs": {"program_id": "p1", "is_last_step": 1}}


def test_the_previews_body_fields_work() -> None:
    body = {"prompt": "x", "job_id": "j", "is_last_step": True, "this_func_call": "ls", "last_func_call": None}
    assert sent(body)["vllm_xargs"] == {"program_id": "j", "is_last_step": 1, "this_func_call": "ls"}


def test_xargs_outweigh_body_outweighs_headers() -> None:
    body = {"job_id": "body", "vllm_xargs": {"program_id": "xargs"}}
    assert sent(body, {"x-session-id": "header"})["vllm_xargs"]["program_id"] == "xargs"
    assert sent({"job_id": "body"}, {"x-session-id": "header"})["vllm_xargs"]["program_id"] == "body"


def test_the_client_key_cannot_be_forged() -> None:
    assert sent({"vllm_xargs": {CLIENT_KEY: "other"}}, client="mine")["vllm_xargs"] == {CLIENT_KEY: "mine"}
    assert "vllm_xargs" not in sent({"vllm_xargs": {CLIENT_KEY: "other"}})


def test_what_vllm_would_refuse_is_dropped_and_named() -> None:
    body = {
        "vllm_xargs": {"program_id": "p", "is_last_step": "maybe", "pred_tool_s": -1, "odd": None, "deep": {"a": 1}}
    }
    tagged = tag_body(json.dumps(body).encode(), {})
    assert json.loads(tagged.body) == {"vllm_xargs": {"program_id": "p"}}
    assert sorted(tagged.rejected) == ["deep", "is_last_step", "odd", "pred_tool_s"]


def test_a_boolean_becomes_a_number() -> None:
    assert b'"is_last_step":0' in tag_body(b'{"vllm_xargs": {"is_last_step": false}}', {}).body


@pytest.mark.parametrize("body", [b"", b"not json", b"[1]", b'"vllm_xargs"', b'{"vllm_xargs": '])
def test_what_is_no_object_is_left_for_vllm_to_refuse(body: bytes) -> None:
    assert tag_body(body, {}).body == body
    assert not is_object(tag_body(body, {"x-session-id": "p"}).body)


@given(
    st.dictionaries(tag_names | st.text(max_size=6), anything, max_size=6) | anything,
    st.dictionaries(tag_names, anything, max_size=4),
    st.dictionaries(st.sampled_from(["x-session-id", "x-dynamo-session-id", "x-dynamo-session-final"]), st.text()),
)
def test_no_tag_can_make_a_request_invalid(xargs: Any, fields: dict[str, Any], headers: dict[str, str]) -> None:
    body = {"prompt": [1, 2], "max_tokens": 3, **fields, "vllm_xargs": xargs}
    found = sent(body, headers)
    clean = found.pop("vllm_xargs", {})
    session_id = found.pop("session_id", None)
    assert session_id is None or isinstance(session_id, str)  # vLLM's own field, of that type
    fields.pop("session_id", None)
    assert found == {"prompt": [1, 2], "max_tokens": 3, **fields}
    for value in clean.values():  # what vLLM's schema takes
        items = value if isinstance(value, list) else [value]
        assert all(isinstance(item, str | int | float) and not isinstance(item, bool) for item in items)
    assert tags_from_xargs(clean).rejected == ()


@pytest.mark.parametrize(
    ("payload", "seconds"),
    [
        ({"ttl_s": 3}, 3.0),
        ({"ttl_seconds": 2.5}, 2.5),
        ({"directives": [{"start": 0, "end": None, "priority": 70, "duration": 9}, {"covers_output": True}]}, 9.0),
        ({"directives": [{"priority": 0, "duration": 9}]}, 0.0),
    ],
)
def test_kv_retain_is_an_explicit_ttl(payload: dict[str, Any], seconds: float) -> None:
    action = {"action_id": "1", "action_type": "kv.retain", "action_version": "1.0", "payload": payload}
    body = {"prompt": "x", "kv_hints": {"actions": [action]}}
    assert sent(body) == {"prompt": "x", "vllm_xargs": {"kv_ttl_s": seconds}}


@given(anything)
def test_hints_of_any_shape_are_read_or_ignored(envelope: Any) -> None:
    assert set(hints_to_xargs(envelope)) <= {"kv_ttl_s"}
