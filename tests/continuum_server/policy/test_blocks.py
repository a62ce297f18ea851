"""Distinct blocks against a recount of all blocks."""

from __future__ import annotations

from collections import Counter
from itertools import chain

from continuum_server.policy.blocks import DistinctBlocks
from hypothesis import given
from hypothesis import strategies as st

blocks = st.lists(st.integers(0, 12), unique=True, max_size=10)


@given(st.lists(blocks), st.data())
def test_distinct_blocks_as_a_recount(holders: list[list[int]], data: st.DataObject) -> None:
    distinct, held = DistinctBlocks(), list[list[int]]()
    for holder in holders:
        assert distinct.new(holder) == len(set(holder) - set(chain(*held)))
        distinct.add(holder)
        held.append(holder)
        if data.draw(st.booleans()):
            distinct.remove(held.pop(data.draw(st.integers(0, len(held) - 1))))
        counts = Counter(chain(*held))
        assert len(distinct) == len(counts)
        assert distinct.repeats == counts.total() - len(counts)
