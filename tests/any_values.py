"""Strategies of values that several tests draw: tags, and JSON."""

from __future__ import annotations

from typing import Any

from continuum_traces.schema import Tags
from hypothesis import strategies as st

ids = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=64)
tools = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=64)
seconds = st.floats(0, 86_400, allow_nan=False)


def tags(program_ids: st.SearchStrategy[str | None]) -> st.SearchStrategy[Tags]:
    """Any tags that a client may send, of such programs."""
    return st.builds(
        Tags,
        program_id=program_ids,
        is_last_step=st.none() | st.booleans(),
        **dict.fromkeys(("pred_tool", "last_func_call", "this_func_call"), st.none() | tools),
        **dict.fromkeys(("pred_tool_s", "pred_tool_p90_s", "last_tool_duration_s", "kv_ttl_s"), st.none() | seconds),
        **dict.fromkeys(("parent_id", "turn_id"), st.none() | ids),
    )


def json_values(**floats: Any) -> st.SearchStrategy[Any]:
    """Any JSON, small."""
    return st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(**floats) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    )
