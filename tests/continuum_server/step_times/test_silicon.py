"""The closed loop that plays measured rows."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

import pytest
from continuum_server.step_times.model import PrefillChunk
from nano import PlainTimes
from step_times_silicon import CHUNK_BUDGET_TOKENS, GROUPS, WAVES, Row, modelled_tpot_ms, silicon_rows

needs_source = pytest.mark.skipif(
    importlib.util.find_spec("aiconfigurator_core") is None, reason="aiconfigurator-core is not installed"
)


class Counting(PlainTimes):
    """10 ms a decode step, 25 ms where a prompt is computed; remembers what it was asked."""

    def __init__(self) -> None:
        self.prompt_tokens = self.decoded = 0
        self.contexts: list[tuple[int, int]] = []

    def step_s(self, chunks: Sequence[PrefillChunk], decodes: int, decode_context_tokens: int) -> float:
        assert sum(chunk.tokens for chunk in chunks) + decodes <= CHUNK_BUDGET_TOKENS
        self.prompt_tokens += sum(chunk.tokens for chunk in chunks)
        self.decoded += decodes
        self.contexts.append((decodes, decode_context_tokens))
        return 0.025 if chunks else 0.010


@pytest.mark.parametrize("clients", [1, 3, 40])
def test_every_token_is_computed_once(clients: int) -> None:
    times = Counting()
    tpot_ms = modelled_tpot_ms(times, Row(1000, 20, clients, 1, 1.0))
    assert times.prompt_tokens == WAVES * clients * 1000
    assert times.decoded == WAVES * clients * 19
    assert 10.0 <= tpot_ms <= (25.0 if clients > 1 else 10.000001)  # one client alone decodes undisturbed
    assert all(1001 * n <= context <= 1020 * n for n, context in times.contexts)


@needs_source
def test_rows_of_the_groups_exist() -> None:
    """Of 0.12.0; the counts that docs/results/step-times.md gives."""
    assert [len(silicon_rows(group)) for group in GROUPS] == [177, 90, 45, 60, 60, 72, 72, 46, 21]
