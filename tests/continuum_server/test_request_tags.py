"""Any tag in any form: the request that reaches vLLM is valid, says what the client said, and loses nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from continuum_server.foreign_ids import ROWS
from continuum_server.vllm_plugin import request_tags
from continuum_server.vllm_plugin.request_tags import (
    ANYBODY,
    BODY_FIELDS,
    CLIENT_KEY,
    LONGEST_XARGS,
    NAMESPACE_KEY,
    SOURCE_KEY,
    WEAK_KEY,
    WEIGHT_KEY,
    Caller,
    UnreadableBody,
    normalize_tags,
    read_caller,
)
from continuum_traces.wire import PROGRAM_ID_ALIASES, TAG_NAMES, tags_from_xargs
from hypothesis import given
from hypothesis import strategies as st

odd = st.sampled_from([float("nan"), float("inf"), -1, "\ud800", "", 10**400])
anything = st.recursive(
    odd | st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
tag_names = st.sampled_from((*TAG_NAMES, *PROGRAM_ID_ALIASES))


MINE = Caller("a" * 16, "b" * 16)
OURS = {CLIENT_KEY: "a" * 16, NAMESPACE_KEY: "b" * 16}


def sent(
    body: dict[str, Any], headers: dict[str, str] | None = None, caller: Caller | None = ANYBODY, nested: bool = False
) -> dict[str, Any]:
    """What vLLM reads, without members that are null."""
    found = json.loads(normalize_tags(json.dumps(body).encode(), headers or {}, caller, nested).body)
    return {name: value for name, value in found.items() if value is not None}


@pytest.mark.parametrize(
    "body",
    [
        b'{ "model": "m",  "prompt": "say \\"program\\"" }',
        b'{"vllm_xargs": {"program_id": "p", "is_last_step": 1, "other": [1, 2]}}',
        *(b"", b"not json", b"[1]", b'"vllm_xargs"', b'{"vllm_xargs": '),  # for vLLM to refuse
    ],
)
def test_without_tags_that_must_change_a_body_is_not_touched(body: bytes) -> None:
    assert normalize_tags(body, {}).body is body


@pytest.mark.parametrize(
    ("body", "headers", "tags"),
    [
        ({}, {"x-dynamo-session-final": "true"}, {"is_last_step": 1}),
        (  # the preview's fields
            {"job_id": "j", "is_last_step": True, "this_func_call": "ls", "last_func_call": None},
            {"x-session-id": "header"},
            {"program_id": "j", "is_last_step": 1, "this_func_call": "ls"},
        ),
        ({"job_id": "body", "vllm_xargs": {"program_id": "xargs"}}, {"x-session-id": "h"}, {"program_id": "xargs"}),
        ({"vllm_xargs": {"is_last_step": False}}, {}, {"is_last_step": 0}),
    ],
)
def test_tags_are_read_where_they_are(body: dict[str, Any], headers: dict[str, str], tags: dict[str, Any]) -> None:
    """xargs outweigh the body's fields, which outweigh headers."""
    found = normalize_tags(json.dumps({"prompt": "x", **body}).encode(), headers)
    assert json.loads(found.body) == {"prompt": "x", **body, "vllm_xargs": tags}
    assert json.dumps(json.loads(found.body)["vllm_xargs"]) == json.dumps(tags)  # a boolean becomes a number
    assert found.rejected == ()


DEEP = '{"a":[' * 3000 + "1" + "]}" * 3000
HUGE = "9" * 5000


def test_tags_inside_sampling_parameters() -> None:
    extra = {"job_id": "j", "kv_transfer_params": {"a": [None]}, CLIENT_KEY: ["x"]}
    body = {"token_ids": [1], "sampling_params": {"max_tokens": 2, "extra_args": extra}, "vllm_xargs": {"kv_ttl_s": 3}}
    found = sent(body, {"x-dynamo-session-final": "1"}, MINE, nested=True)
    tags = {"program_id": "j", "kv_ttl_s": 3.0, "is_last_step": 1, "kv_transfer_params": {"a": [None]}, **OURS}
    assert found == {"token_ids": [1], "sampling_params": {"max_tokens": 2, "extra_args": tags}}
    assert sent({"sampling_params": 5}, {"x-session-id": "p"}, MINE, nested=True) == {"sampling_params": 5}


@pytest.mark.parametrize("value", [DEEP, HUGE], ids=["deep", "huge"])
@pytest.mark.parametrize(
    "text",
    [
        '{"vllm_xargs": {"program_id": VALUE}}',
        '{"vllm_xargs": VALUE, "vllm_xargs": {"continuum_client": "ffffffffffffffff"}}',
        '{"other": VALUE, "job_id": "j"}',
        "[VALUE]",
    ],
)
def test_what_python_s_parser_refuses_never_reaches_vllm(text: str, value: str) -> None:
    """Otherwise a parser that reads further than ours would see tags that nobody checked."""
    with pytest.raises(UnreadableBody, match=r"nested too deep|digits"):
        normalize_tags(text.replace("VALUE", value).encode(), {}, MINE)


def test_the_caller_is_read_by_type() -> None:
    assert read_caller(OURS) == MINE
    bad: list[Any] = ["A" * 16, "a" * 15, "a" * 16 + "\n", ["a"], {"a": 1}, 5, None, True]
    for value in bad:
        assert read_caller({CLIENT_KEY: value, NAMESPACE_KEY: value}) == Caller(None, None, (CLIENT_KEY, NAMESPACE_KEY))
        assert read_caller({SOURCE_KEY: value, WEAK_KEY: [value]}).rejected == (SOURCE_KEY, WEAK_KEY)
    for value in (0.0, -1.0, float("inf"), float("nan"), 0, "1", True, None):
        assert read_caller({WEIGHT_KEY: value}) == Caller(rejected=(WEIGHT_KEY,))
    assert read_caller({WEIGHT_KEY: 1e-9}) == Caller(weight=1e-9)
    assert read_caller({SOURCE_KEY: "header:thread-id", WEAK_KEY: 1}) == Caller(source="header:thread-id", weak=True)
    assert read_caller({}) == ANYBODY


FORGED = (
    "",
    r'"vllm\u005fxargs": {"continuum\u005fclient": "ffffffffffffffff", "continuum_n\u0061mespace": "f", "x": 1}',
    '"vllm_xargs": {"continuum_source": "header:thread-id", "continuum_weak": 1, "continuum_client": ["a"]}',
    '"vllm_xargs": {}, "vllm_xargs": {"continuum_client": 1, "continuum_client": "ffffffffffffffff", "x": 1}',
)
"""Members with which a client says who it is, as no encoder writes them: escapes, and equal names."""
FOUND = {("", False), *((row.source, row.weak) for row in ROWS if row.source != "header:thread-id")}
places = st.sampled_from(
    [
        *(*BODY_FIELDS, "session_id", "prompt_cache_key", "metadata", "vllm_xargs", "sampling_params", "extra_args"),
        *(CLIENT_KEY, NAMESPACE_KEY, SOURCE_KEY, WEAK_KEY),
    ]
)
members = st.dictionaries(tag_names | places | st.text(), anything, max_size=6)
carriers = st.fixed_dictionaries({}, optional=dict.fromkeys(["vllm_xargs", "sampling_params"], members | anything))


@given(
    st.builds(dict.__or__, members, carriers) | anything,
    st.sampled_from(FORGED),
    st.dictionaries(st.sampled_from(["x-session-id", "session-id", "x-dynamo-session-final"]), st.text()),
    st.booleans(),
    st.booleans(),
    st.sampled_from([ANYBODY, MINE, None]),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32"]),
)
def test_what_comes_out_is_the_same_json_but_for_tags_and_these_are_valid(
    data: Any, said: str, headers: dict[str, str], ascii_only: bool, nested: bool, caller: Caller | None, encoding: str
) -> None:
    text = json.dumps(data, ensure_ascii=ascii_only, indent=2)
    if isinstance(data, dict) and said:
        text = f"{text[:-1]}{',' if data else ''} {said}}}"
        data = json.loads(text)
    tagged = normalize_tags(text.encode(encoding, "surrogatepass"), headers, caller, nested)
    found = json.loads(tagged.body)
    if not isinstance(data, dict):
        assert same(found, data)
        return
    tag_fields = {"vllm_xargs", "sampling_params", "session_id"}
    assert same(*({k: v for k, v in each.items() if k not in tag_fields} for each in (found, data)))
    session_id = found.get("session_id") or ""
    assert isinstance(session_id, str)  # vLLM's own field, of that type
    assert "\ud800" not in session_id
    parameters, before = found.get("sampling_params"), data.get("sampling_params")
    if isinstance(before, dict) and nested:
        assert same(*({k: v for k, v in each.items() if k != "extra_args"} for each in (parameters, before)))
    else:
        assert same(parameters, before)
    carrier = (parameters if isinstance(before, dict) else {}).get("extra_args") if nested else found.get("vllm_xargs")
    xargs = carrier or {}
    ours = {} if caller is not MINE or (nested and not isinstance(before, dict)) else OURS
    assert {key: value for key, value in xargs.items() if key in (CLIENT_KEY, NAMESPACE_KEY)} == ours
    reads = read_caller(xargs)
    assert ((reads.source, reads.weak) in FOUND, reads.rejected) == (True, ())  # found here, not said by the client
    assert tags_from_xargs(xargs).rejected == ()
    assert caller is not None or not {*TAG_NAMES, SOURCE_KEY, WEAK_KEY} & set(xargs)
    assert all(type(xargs[name]) in (str, int, float) for name in set(TAG_NAMES) & set(xargs))  # what vLLM takes
    inner = before.get("extra_args") if nested and isinstance(before, dict) else None
    kept = {} if nested and not isinstance(before, dict) else {**others(inner), **others(data.get("vllm_xargs"))}
    assert same(others(xargs), kept)  # what is no tag is left to vLLM


def others(xargs: Any) -> dict[str, Any]:
    ours = {*TAG_NAMES, *PROGRAM_ID_ALIASES, CLIENT_KEY, NAMESPACE_KEY, SOURCE_KEY, WEAK_KEY}
    return {name: value for name, value in xargs.items() if name not in ours} if isinstance(xargs, dict) else {}


def same(one: Any, other: Any) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


BIG = {
    "list": {"vllm_xargs": {"program_id": "p", "a": [1] * 1_000_000}},
    "texts": {"vllm_xargs": {f"k{number}": "x" * 40_000 for number in range(250)}},
    "tags": {"vllm_xargs": dict.fromkeys(TAG_NAMES, "1," * 1_000_000), **dict.fromkeys(BODY_FIELDS, "1," * 1_000_000)},
    "parameters": {"sampling_params": [{"b": 1}] * 100_000},
    "prompt": {"prompt": [1] * 100_000},
}


@pytest.mark.parametrize("body", BIG.values(), ids=BIG)
def test_the_work_does_not_grow_with_the_body(body: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside one parse: few values are read, and little is written again."""
    data, read, written, dumps = json.dumps(body).encode(), [], [], json.dumps
    monkeypatch.setattr(request_tags, "tags_from_xargs", lambda xargs: read.append(xargs) or tags_from_xargs(xargs))
    monkeypatch.setattr(json, "dumps", lambda *each, **how: written.append(dumps(*each, **how)) or written[-1])
    tagged = normalize_tags(data, {"x-session-id": "p"}, MINE)
    assert len(read) <= 2
    assert sum(map(len, written)) <= 2 * LONGEST_XARGS
    assert tagged.body[: len(data) - 1] == data[:-1]  # the rest of the body is not written again
    assert json.loads(tagged.body)["vllm_xargs"]["program_id"] == "p"
