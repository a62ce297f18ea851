"""Tags on the wire: what is sent comes back, what is wrong is named and never raises."""

from __future__ import annotations

import math
from typing import Any

import pytest
from any_values import ids, json_values, tags
from continuum_server.foreign_ids import find_id
from continuum_traces.schema import Tags
from continuum_traces.wire import (
    ReadTags,
    read_program_id,
    read_turn_id,
    tags_from_headers,
    tags_from_xargs,
    tags_to_headers,
    tags_to_xargs,
)
from hypothesis import given
from hypothesis import strategies as st


@given(tags(st.none() | ids))
def test_xargs_round_trip(sent: Tags) -> None:
    xargs = tags_to_xargs(sent)
    assert all(type(value) in (str, int, float) for value in xargs.values())  # no bool, null or object on the wire
    read = tags_from_xargs(xargs)
    assert read.tags == sent
    assert read.rejected == ()


@given(tags(st.none() | ids))
def test_headers_carry_ids_and_end(sent: Tags) -> None:
    headers = {name.lower(): value for name, value in tags_to_headers(sent).items()}
    read, (found, _) = tags_from_headers(headers), find_id(headers, {})
    assert (found and found.program_id, read.tags.turn_id) == (sent.program_id, sent.turn_id)
    assert bool(read.tags.is_last_step) == bool(sent.is_last_step)


@given(
    st.dictionaries(st.sampled_from([*Tags.__dataclass_fields__, "job_id", "session_id"]), json_values()), json_values()
)
def test_reading_never_raises(xargs: dict[str, Any], session: Any) -> None:
    read = tags_from_xargs(xargs, session)
    for name in ("pred_tool_s", "pred_tool_p90_s", "last_tool_duration_s", "kv_ttl_s"):
        value = getattr(read.tags, name)
        assert value is None or (0 <= value <= 86_400 and math.isfinite(value))


@pytest.mark.parametrize(
    ("xargs", "session", "expected"),
    [
        ({"program_id": "a", "job_id": "b"}, "c", "a"),
        ({"job_id": "b"}, "c", "b"),
        ({}, "c", "c"),
        ({"program_id": ""}, "c", "c"),
        ({"program_id": 0}, None, "0"),
        ({}, None, None),
    ],
)
def test_program_id_comes_from_the_first_carrier(xargs: dict[str, Any], session: Any, expected: str | None) -> None:
    assert tags_from_xargs(xargs, session).tags.program_id == expected


@pytest.mark.parametrize(
    ("raw", "read"),
    [
        *(("x" * 256, "x" * 256), (2**64 - 1, str(2**64 - 1)), (1 - 2**64, str(1 - 2**64))),
        *((bad, None) for bad in ("", "x" * 257, 2**64, -(2**64), "a\nb", "\x00", 1.5, True, None, ["a"])),
    ],
)
def test_program_ids_are_text_of_256_characters_or_numbers(raw: Any, read: str | None) -> None:
    assert read_program_id(raw) == read


@pytest.mark.parametrize(("chars", "read"), [(127, 127), (128, 128), (129, 128), (4096, 128), (4097, None)])
def test_a_long_tool_s_name_is_cut_and_a_very_long_one_is_not_read(chars: int, read: int | None) -> None:
    found = tags_from_xargs({"pred_tool": "x" * chars})
    assert found == ReadTags(Tags(pred_tool=read and "x" * read), () if read else ("pred_tool",))


@pytest.mark.parametrize(
    ("raw", "read"),
    [("3-1f", "3-1f"), (7, "7"), ("x" * 64, "x" * 64), ("x" * 65, None), ("", None), ("a\nb", None), (1.5, None)],
)
def test_turn_ids_are_short_printable_text(raw: Any, read: str | None) -> None:
    assert read_turn_id(raw) == read
    found = tags_from_xargs({"turn_id": raw})
    assert (found.tags.turn_id, found.rejected) == (read, () if read else ("turn_id",))


def test_what_is_rejected_is_named() -> None:
    read = tags_from_xargs(
        {"program_id": "p", "is_last_step": "perhaps", "pred_tool_s": -1, "pred_tool": " ", "kv_ttl_s": "x"}
    )
    assert set(read.rejected) == {"is_last_step", "pred_tool_s", "pred_tool", "kv_ttl_s"}
    assert tags_from_xargs({"pred_tool": "x" * 5000, "kv_ttl_s": " " * 5000 + "1"}).rejected == (
        "pred_tool",
        "kv_ttl_s",
    )
    assert find_id({"x-session-id": "a\tb"}, {}) == (None, ("X-Session-ID",))
    assert tags_from_headers({"x-turn-id": "x" * 65}).rejected == ("X-Turn-ID",)
    assert tags_from_headers({"x-dynamo-session-final": "no"}).tags.is_last_step is False


def test_flags_as_text_and_hints_clipped() -> None:
    read = tags_from_xargs({"is_last_step": "TRUE", "pred_tool_s": 1e9, "last_func_call": "  pytest "})
    assert read.tags == Tags(is_last_step=True, pred_tool_s=86_400.0, last_func_call="pytest")
