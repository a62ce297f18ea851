"""Distinct blocks and contexts against a recount of all blocks."""

from __future__ import annotations

from collections import Counter
from itertools import chain

from continuum_server.policy.blocks import Contexts, DistinctBlocks
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
        assert all((block in distinct) == (counts[block] > 0) for block in range(13))
        assert all(distinct.shared(block) == (counts[block] > 1) for block in range(13))


def context(branches: str) -> list[str]:
    """Block hashes of a context: each stands for the prefix up to its block."""
    return [branches[: end + 1] for end in range(len(branches))]


changes = st.lists(st.tuples(st.sampled_from("pqr"), st.none() | st.text("ab", max_size=6)), max_size=20)


@given(changes, st.text("ab", max_size=7))
def test_contexts_as_a_recount(puts: list[tuple[str, str | None]], newcomer: str) -> None:
    contexts, known = Contexts(), dict[str, list[str]]()
    for name, branches in puts:
        if branches is None:
            contexts.drop(name)
            known.pop(name, None)
        else:
            known[name] = context(branches)
            contexts.put(name, known[name])
        counts = Counter(chain(*known.values()))
        assert contexts.repeats == counts.total() - len(counts)
        assert contexts.common(context(newcomer)) == sum(block in counts for block in context(newcomer))
        assert all(contexts.shared(each) == sum(counts[block] > 1 for block in known[each]) for each in known)
