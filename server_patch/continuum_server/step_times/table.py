"""Step times interpolated from a committed table of measured kernels.

A step is  shared(all its tokens) + sum of each chunk's attention + decode attention(batch, mean context) + overhead:
matrix multiplications see only how many tokens there are, attention sees each request's context.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from continuum_server.step_times.model import OutOfRange, PrefillChunk, Provenance

FORMAT = "continuum-step-times/1"


@dataclass(frozen=True, slots=True)
class Table:
    """Grids in tokens, times in ms; rows of the two-dimensional tables follow their first axis."""

    shared_tokens: tuple[int, ...]
    shared_ms: tuple[float, ...]
    chunk_tokens: tuple[int, ...]
    chunk_prefix_tokens: tuple[int, ...]
    chunk_attention_ms: tuple[tuple[float, ...], ...]
    """[chunk][prefix]."""
    decode_batch: tuple[int, ...]
    decode_context_tokens: tuple[int, ...]
    decode_attention_ms: tuple[tuple[float, ...], ...]
    """[batch][mean context]."""


def table_from_json(data: dict[str, Any]) -> Table:
    def rows(name: str) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(row) for row in data[name])

    return Table(
        shared_tokens=tuple(data["shared_tokens"]),
        shared_ms=tuple(data["shared_ms"]),
        chunk_tokens=tuple(data["chunk_tokens"]),
        chunk_prefix_tokens=tuple(data["chunk_prefix_tokens"]),
        chunk_attention_ms=rows("chunk_attention_ms"),
        decode_batch=tuple(data["decode_batch"]),
        decode_context_tokens=tuple(data["decode_context_tokens"]),
        decode_attention_ms=rows("decode_attention_ms"),
    )


class TableStepTimes:
    """``StepTimes`` of a ``Table``. Linear in tokens between grid points, never beyond the last one."""

    def __init__(self, table: Table, provenance: Provenance) -> None:
        self._table = table
        self._provenance = provenance
        self._overhead_ms = provenance.step_overhead_ms
        self._shared: dict[int, float] = {}
        self._decode_rows: dict[int, list[float]] = {}
        self._contexts = table.decode_context_tokens

    @property
    def provenance(self) -> Provenance:
        return self._provenance

    def step_s(self, chunks: Sequence[PrefillChunk], decodes: int, decode_context_tokens: int) -> float:
        tokens, total_ms = decodes, self._overhead_ms
        for chunk in chunks:
            tokens += chunk.tokens
            total_ms += self._chunk_ms(chunk.tokens, chunk.prefix_tokens)
        if decodes:
            total_ms += self._decode_ms(decodes, decode_context_tokens)
        return (total_ms + self._shared_ms(tokens)) / 1e3

    def decode_stretch_s(self, decodes: int, decode_context_tokens: int, steps: int) -> list[float]:
        return [self.step_s((), decodes, decode_context_tokens + i * decodes) for i in range(steps)]

    def prefill_s(self, tokens: int, prefix_tokens: int = 0) -> float:
        return self.step_s((PrefillChunk(tokens, prefix_tokens),), 0, 0)

    def _shared_ms(self, tokens: int) -> float:
        found = self._shared.get(tokens)
        if found is None:
            grid = self._table.shared_tokens
            _check("tokens in a step", tokens, grid[0], grid[-1])
            found = self._shared[tokens] = _line(grid, self._table.shared_ms, tokens)
        return found

    def _chunk_ms(self, tokens: int, prefix: int) -> float:
        """Attention of one chunk. Bilinear in time per attended pair, which varies slowly, then times the pairs."""
        table = self._table
        _check("chunk tokens", tokens, 1, table.chunk_tokens[-1])
        _check("prefix tokens", prefix, 0, table.chunk_prefix_tokens[-1])
        i, u = _place(table.chunk_tokens, tokens)
        j, v = _place(table.chunk_prefix_tokens, prefix)
        rate = 0.0
        for row, weight_row in ((i, 1.0 - u), (i + 1, u)):
            for column, weight in ((j, (1.0 - v) * weight_row), (j + 1, v * weight_row)):
                if weight:
                    pairs = attended_pairs(table.chunk_tokens[row], table.chunk_prefix_tokens[column])
                    rate += weight * table.chunk_attention_ms[row][column] / pairs
        return rate * attended_pairs(tokens, prefix)

    def _decode_ms(self, batch: int, context_sum: int) -> float:
        row = self._decode_rows.get(batch)
        if row is None:
            row = self._decode_rows[batch] = self._make_decode_row(batch)
        mean = context_sum / batch
        contexts = self._contexts
        _check("mean decode context", mean, 1, contexts[-1])
        return _line(contexts, row, mean)

    def _make_decode_row(self, batch: int) -> list[float]:
        table = self._table
        _check("decoding requests", batch, 1, table.decode_batch[-1])
        i, u = _place(table.decode_batch, batch)
        low, high = table.decode_attention_ms[i], table.decode_attention_ms[i + 1]
        return [a + (b - a) * u for a, b in zip(low, high, strict=True)]


def attended_pairs(tokens: int, prefix: int) -> float:
    """Query-key pairs of a causal chunk, plus a constant per token that stands for its fixed cost."""
    return tokens * (prefix + tokens / 2 + 256.0)


def _check(what: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise OutOfRange(f"{what} = {value:g}; these step times cover {low:g} to {high:g}")


def _place(grid: Sequence[int], value: float) -> tuple[int, float]:
    """Index of the cell and the fraction into it."""
    index = min(max(bisect_right(grid, value) - 1, 0), len(grid) - 2)
    low, high = grid[index], grid[index + 1]
    return index, min(max((value - low) / (high - low), 0.0), 1.0)


def _line(grid: Sequence[int], values: Sequence[float], value: float) -> float:
    index = bisect_right(grid, value) - 1
    if index >= len(grid) - 1:
        return values[-1]
    if index < 0:
        return values[0]
    low = grid[index]
    below = values[index]
    return below + (values[index + 1] - below) * ((value - low) / (grid[index + 1] - low))


def log_grid(first: int, last: int, points: int) -> tuple[int, ...]:
    """Distinct integers spread evenly in the logarithm, ends included."""
    ratio = math.log(last / first)
    return tuple(sorted({round(first * math.exp(ratio * i / (points - 1))) for i in range(points)}))
