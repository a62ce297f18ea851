"""From tags to headers and bodies: nothing lost, nothing of the caller's overwritten, nothing that HTTP refuses."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from any_values import ids, json_values, tags
from continuum_server.foreign_ids import find_id
from continuum_traces.schema import Tags
from continuum_traces.wire import tags_from_headers, tags_from_xargs
from fake_server import EXTRA, refusal
from hypothesis import example, given
from hypothesis import strategies as st

from continuum_client.dialects import DIALECTS, cache_key
from continuum_client.endpoints import named_in
from continuum_client.errors import InvalidTag
from continuum_client.tagging import check_id, merged_body, tag_body, tag_headers

long_ids = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=256)
paths = st.sampled_from(["/chat/completions", "/completions", "/responses"])


@given(tags(ids), st.sampled_from(sorted(DIALECTS)), paths, st.none() | st.integers(1, 10_000))
def test_every_dialect_fits_its_servers_schema(sent: Tags, dialect: str, path: str, output_tokens: int | None) -> None:
    body = tag_body(sent, DIALECTS[dialect], path, output_tokens)
    for schema in EXTRA if dialect == "headers" else [dialect]:
        assert refusal(schema, path, {"model": "m", **body}) is None


@given(tags(ids))
def test_what_the_server_reads_is_what_was_sent(sent: Tags) -> None:
    assert tags_from_xargs(tag_body(sent, DIALECTS["vllm"])["vllm_xargs"]).tags == sent
    headers = {name.lower(): value for name, value in tag_headers(sent).items()}
    found, _ = find_id(headers, {})
    assert tags_from_headers(headers).tags.turn_id == sent.turn_id
    assert (found and found.program_id) == sent.program_id
    if found is not None and sent.parent_id != sent.program_id:
        assert found.parent_id == sent.parent_id
    for value in tag_headers(sent).values():
        value.encode("ascii")


bodies = st.dictionaries(st.sampled_from(["session_id", "vllm_xargs", "nvext", "top_k"]), json_values(), max_size=3)


@given(st.none() | bodies, tags(ids), st.sampled_from(sorted(DIALECTS)))
def test_the_callers_body_survives(theirs: dict[str, Any] | None, sent: Tags, dialect: str) -> None:
    merged = merged_body(theirs, tag_body(sent, DIALECTS[dialect], output_tokens=5), ["prompt_cache_key"])
    assert "prompt_cache_key" not in merged
    for name, value in (theirs or {}).items():
        kept = merged[name]
        assert kept == value or (isinstance(kept, dict) and value.items() <= kept.items())


@given(st.text(max_size=300))
def test_an_id_is_usable_or_refused(raw: str) -> None:
    try:
        checked = check_id(raw)
    except InvalidTag:
        return
    assert checked == raw
    assert 0 < len(raw.encode("ascii")) <= 256
    assert not any(ord(character) < 32 or ord(character) == 127 for character in raw)


@given(long_ids, long_ids)
@example("x" * 64, "x" * 65)
@example("x" * 100 + "1", "x" * 100 + "2")
def test_cache_keys_fit_and_differ(one: str, other: str) -> None:
    for program_id in (one, other):
        key = cache_key(program_id)
        assert len(key) <= 64
        assert key == program_id or len(program_id) > 64
    assert (cache_key(one) == cache_key(other)) == (one == other)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Unrecognized request argument supplied: session_id", ["session_id"]),
        ("Unsupported parameter(s): `session_id`, `vllm_xargs`", ["session_id", "vllm_xargs"]),
        ("[{'type': 'extra_forbidden', 'loc': ('body', 'vllm_xargs', 'program_id')}]", ["vllm_xargs", "program_id"]),
        ("my_session_id and session_ids and x-session_id", []),
        ("", []),
    ],
)
def test_complaints(text: str, expected: list[str]) -> None:
    assert named_in(text, ["session_id", "vllm_xargs", "program_id"]) == expected


def test_tagging_needs_no_openai() -> None:
    """A load generator shares these functions; importing openai would cost it more than all of them."""
    script = "import sys, continuum_client.tagging, continuum_client as c; c.headers; print('openai' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_sdk_needs_openai_and_nothing_else() -> None:
    """Whatever openai alone does not import is ours or the standard library's; OpenTelemetry, for one, is not."""
    script = """
import sys, openai
openai.OpenAI
before = set(sys.modules)
import continuum_client
from continuum_client import OpenAI, AsyncOpenAI, Recorder, wrap, headers, extra_body
new = {name.partition('.')[0] for name in set(sys.modules) - before}
print(sorted(new - set(sys.stdlib_module_names) - {'continuum_client', 'continuum_traces', '__mp_main__'}))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
