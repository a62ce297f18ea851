"""Step times interpolated from a committed table of measured kernels.

A step takes shared(tokens) + each chunk's attention + decode attention(batch, mean context) + overhead. The time of
matrix multiplications depends only on the number of tokens, the time of attention on each request's context. A chunk
behind a prefix takes prefill(prefix + chunk, prefix) - shared(chunk); ``mixed_step_latency`` of aiconfigurator-core,
from which the tables come, gives up to 17 times too little.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec

from continuum_server.step_times.attention import MixedAttention
from continuum_server.step_times.model import (
    CHUNK_SLACK_TOKENS,
    PrefillChunk,
    Provenance,
    StepTimes,
    StepTimesError,
    check_range,
)
from continuum_server.step_times.specs import Gpu, Model

FORMAT = "continuum-step-times/2"

THROUGH_HOST_US, THROUGH_HOST_GB_S = 20.0, 15.2
PEER_US, PEER_GB_S = 4.0, 36.0
"""NVIDIA measured all-reduces between two RTX PRO 6000 twice (aiconfigurator-core 0.12, custom_allreduce_perf of vLLM
0.19.0 and 0.24.0): 20 us and 15.2 GB/s, and 4 us and 36 GB/s. The tables contain the second measurement. We interpret
the first one as an exchange through the host's memory, without peer-to-peer access. Step times use it, because it is
the slower one, and closer to the one server that was checked (docs/results/trust.md)."""
SLOW_LINK = (
    "all-reduces through the host's memory, 20 us and 15.2 GB/s as NVIDIA measured with vLLM 0.19.0; with peer-to-peer "
    "access they take 4 us and 36 GB/s"
)


@dataclass(frozen=True, slots=True)
class SlowLink:
    """The time that all-reduces take in addition to a table's times."""

    step_ms: float
    token_ms: float


def slow_link(gpu: Gpu, model: Model, tensor_parallel: int) -> SlowLink | None:
    """Return the additional time of all-reduces; None: the table's times are used."""
    if gpu.name != "rtx-pro-6000" or tensor_parallel == 1:
        return None
    moved = 2 * 2 * model.hidden * (tensor_parallel - 1) / tensor_parallel
    all_reduces = 2 * model.layers
    return SlowLink(
        all_reduces * (THROUGH_HOST_US - PEER_US) / 1e3,
        all_reduces * moved * (1.0 / THROUGH_HOST_GB_S - 1.0 / PEER_GB_S) / 1e6,
    )


@dataclass(frozen=True, slots=True)
class Table:
    """Grids in tokens, and times in ms. Two-dimensional tables have a row for each point of their first axis."""

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


def table_from_json(data: Mapping[str, Any]) -> Table:
    """Convert a parsed file to a table.

    Raises:
        StepTimesError: the file has another format.
    """
    if data.get("format") != FORMAT:
        raise StepTimesError(f"step-time table of format {data.get('format')!r}; this version reads {FORMAT!r}")
    return msgspec.convert(data, Table)


class _Line:
    """A function of an integer that is linear between grid points."""

    __slots__ = ("end", "grid", "slopes", "values")

    def __init__(self, grid: Sequence[int], values: Sequence[float]) -> None:
        self.grid = list(grid)
        self.values = list(values)
        cells = range(len(grid) - 1)
        self.slopes = [(values[i + 1] - values[i]) / (grid[i + 1] - grid[i]) for i in cells]
        self.end = len(grid) - 1

    def at(self, x: float) -> float:
        index = bisect_right(self.grid, x, 1, self.end) - 1
        return self.values[index] + self.slopes[index] * (x - self.grid[index])


class TableStepTimes(StepTimes):
    """``StepTimes`` from a ``Table``. Steps beyond its last grid points are refused, but for longer contexts.

    Args:
        longest: the model's context, in tokens. Beyond the table's, decode attention grows on along its last line, and
            a query-key pair of a chunk takes as long as at the table's end. None: the table's context.
        mixed: attention in steps with chunks; None: the sum of the table's times. A whole prompt alone in a step always
            has the table's time, which was measured.
        link: additional time of all-reduces that are slower than the table's.
        one_launch: chunks and decodes of a step run in one launch of the kernel.
    """

    def __init__(
        self,
        table: Table,
        provenance: Provenance,
        mixed: MixedAttention | None = None,
        link: SlowLink | None = None,
        one_launch: bool = False,
        longest: int | None = None,
    ) -> None:
        self._table = table
        self._longest = max(longest or 0, table.decode_context_tokens[-1])
        self.provenance = provenance
        self._mixed, self._link = mixed, link or SlowLink(0.0, 0.0)
        self._overhead_ms, self._request_ms = provenance.step_overhead_ms, provenance.request_overhead_ms
        self._shared_line = _Line(table.shared_tokens, table.shared_ms)
        self._fixed_ms, self._decode_line = cache(self._compute_fixed_ms), cache(self._make_decode_line)
        self._reading = self._decode_line(1)
        self._rates = [
            [ms / attended_pairs(tokens, prefix) for prefix, ms in zip(table.chunk_prefix_tokens, row, strict=True)]
            for tokens, row in zip(table.chunk_tokens, table.chunk_attention_ms, strict=True)
        ]
        self._prefixes, self._prefix_end = table.chunk_prefix_tokens, len(table.chunk_prefix_tokens) - 1
        self._rates_of = cache(self._find_rates)
        self._longest_chunk = table.chunk_tokens[-1]
        self._one_launch = one_launch
        self._launch_ms = min(map(min, table.chunk_attention_ms))

    def step_s(self, chunks: Sequence[PrefillChunk], decodes: int, decode_context_tokens: int) -> float:
        tokens, attention_ms = decodes, 0.0
        mixed = self._mixed if chunks and (decodes or len(chunks) > 1 or chunks[0].prefix_tokens) else None
        if decodes:
            line, mean = self._decode_line(decodes), decode_context_tokens / decodes
            if not 1 <= mean <= self._longest:
                check_range("mean decode context", mean, 1, self._longest)
            attention_ms = line.at(mean)
            if chunks:  # chunks' kernels run anyway, so decodes beside them save nothing of these
                attention_ms = max(attention_ms - self._launch_ms * self._one_launch, 0.0)
        for chunk_tokens, prefix in chunks:
            tokens += chunk_tokens
            if mixed is None:
                attention_ms += self._chunk_ms(chunk_tokens, prefix)
            else:
                self._check_chunk(chunk_tokens, prefix)
        if mixed is not None:
            attention_ms = mixed.ms(chunks, decodes, decode_context_tokens)
        elif len(chunks) > 1:
            attention_ms -= self._launch_ms * (len(chunks) - 1)
        return (self._fixed_ms(tokens) + self._request_ms * (decodes + len(chunks)) + attention_ms) / 1e3

    def decode_stretch_s(self, decodes: int, decode_context_tokens: int, steps: int) -> list[float]:
        line, fixed_ms = self._decode_line(decodes), self._fixed_ms(decodes) + self._request_ms * decodes
        contexts = range(decode_context_tokens, decode_context_tokens + steps * decodes, decodes)
        for context in (decode_context_tokens, *contexts[-1:]):
            check_range("mean decode context", context / decodes, 1, self._longest)
        return [(fixed_ms + line.at(context / decodes)) / 1e3 for context in contexts]

    def _compute_fixed_ms(self, tokens: int) -> float:
        """Return the time of a step with ``tokens`` tokens, without attention and with the overhead."""
        line = self._shared_line
        check_range("tokens in a step", tokens, line.grid[0], line.grid[-1])
        link_ms = self._link.step_ms + self._link.token_ms * tokens
        return self._overhead_ms + line.at(tokens) + link_ms

    def _chunk_ms(self, tokens: int, prefix: int) -> float:
        """Return the attention time of one chunk: its query-key pairs times the interpolated time per pair.

        A chunk behind a prefix, which no source measured, takes at least as long as a decode that reads the same KV.
        """
        self._check_chunk(tokens, prefix)
        low, high, u = self._rates_of(tokens)
        prefixes = self._prefixes
        j = bisect_right(prefixes, prefix, 1, self._prefix_end) - 1
        start = prefixes[j]
        v = min((prefix - start) / (prefixes[j + 1] - start), 1.0)
        below = low[j] + (low[j + 1] - low[j]) * v
        above = high[j] + (high[j + 1] - high[j]) * v
        pairs_ms: float = (below + (above - below) * u) * (tokens * (prefix + tokens / 2 + 256.0))
        if prefix:
            reading_ms = self._reading.at(prefix + tokens)
            if reading_ms > pairs_ms:
                return reading_ms
        return pairs_ms

    def _find_rates(self, tokens: int) -> tuple[list[float], list[float], float]:
        """Return the rates of the grid's next smaller and larger chunks, and the position between them."""
        i, u = _cell(self._table.chunk_tokens, tokens)
        return self._rates[i], self._rates[i + 1], u

    def _check_chunk(self, tokens: int, prefix: int) -> None:
        most, longest, end = self._longest_chunk, self._longest, self._longest + CHUNK_SLACK_TOKENS
        if 0 < tokens <= most and 0 <= prefix <= longest and tokens + prefix <= end:
            return
        check_range("chunk tokens", tokens, 1, most)
        check_range("prefix tokens", prefix, 0, longest)
        check_range("prefix + chunk tokens", prefix + tokens, 1, end)

    def _make_decode_line(self, batch: int) -> _Line:
        """Return the attention time of a batch size by the mean context."""
        table = self._table
        check_range("decoding requests", batch, 1, table.decode_batch[-1])
        i, u = _cell(table.decode_batch, batch)
        pair = zip(table.decode_attention_ms[i], table.decode_attention_ms[i + 1], strict=True)
        return _Line(table.decode_context_tokens, [a + (b - a) * u for a, b in pair])


def attended_pairs(tokens: int, prefix: int) -> float:
    """Query-key pairs of a causal chunk, and 256 pairs per token for the token's fixed cost."""
    return tokens * (prefix + tokens / 2 + 256.0)


def _cell(grid: Sequence[int], value: float) -> tuple[int, float]:
    """Index of the grid cell in which the value lies, and how far into the cell, from 0 to 1."""
    index = min(bisect_right(grid, value) - 1, len(grid) - 2)
    low = grid[index]
    return index, (value - low) / (grid[index + 1] - low)
