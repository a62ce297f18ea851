"""Attention in steps that compute prompt chunks, by the kernel that vLLM runs on a GPU.

With FlashAttention-3 (Hopper) and the TRT-LLM kernels (data centre Blackwell), a mixed step takes about as long as its
parts alone. So their times are sums of the source's times, less the fixed time of launches that the parts share.

With FlashAttention-2 (Ampere, Ada, consumer Blackwell) it takes longer. FlashAttention-2 cuts every request into tiles
of 64 queries of one head, and a thread block loops over all of a tile's KV. In a step with decodes only, it splits the
KV over many blocks, and reads it once for all query heads of a KV head. With a prompt chunk in the step it does
neither: each decode is one tile per query head, a tile with a single query takes as long as a full tile, and one block
computes a whole long context. ``TileModel`` computes these times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import get_args

import msgspec

from continuum_server import defaults
from continuum_server.step_times.model import PrefillChunk
from continuum_server.step_times.specs import Gpu, Model

BANDS = get_args(defaults.Band)
TILE_QUERIES = 64
HALF_TILE = 64
"""Tokens that a causal tile computes beyond its half of the chunk, because it computes whole columns of 128 keys."""
KV_HEAD_BYTES = 2 * 2 * 128
"""Bytes of one token's keys and values in one KV head of dimension 128, in bf16."""


@dataclass(frozen=True, slots=True)
class TileModel:
    """Times of FlashAttention-2 on one GPU. The defaults were fitted to two cards together."""

    multiprocessors: int
    tile_token_us: float
    """Time of a tile over one token of KV, alone on a multiprocessor, with head dimension 128."""
    kv_tb_s: float
    """Memory bandwidth that decodes reach."""
    cache_mb: float
    """Size of the L2 cache."""
    blocks_each: int = 1
    """Number of thread blocks that can share a multiprocessor."""
    alone: float = 1.0
    """Time of a block that is alone on a multiprocessor, relative to its share of a full multiprocessor: from 1 (as
    fast as several blocks together) to ``blocks_each`` (no faster than beside other blocks)."""
    scale: float = 1.0
    tile_us: float = 4.8
    launch_us: float = 1.8
    tail: float = 0.55
    """Share of the longest tile's time during which the last blocks run alone."""
    miss_from: float = 0.48
    """Size of one KV head's KV, as a share of L2, above which other query heads of the group begin to miss L2."""
    miss_over: float = 1.17
    """By how much of L2 this size must grow until all other query heads miss."""
    power: float = 3.7
    """Arithmetic and reading overlap: together they take (a^power + r^power)^(1/power)."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """The attention kernel of a GPU, and the origin of its times."""

    name: str
    basis: str
    tiles: dict[str, TileModel] | None = None
    """Tile models by the names in ``BANDS``. None: mixed steps are sums of their parts."""
    one_launch: bool = False
    """Chunks and decodes of a step run in one launch, whose fixed time counts once."""


KERNELS = msgspec.json.decode(files(__package__).joinpath("kernels.json").read_bytes(), type=dict[str, Kernel])
"""By the names of ``specs.GPUS``.

``tile_token_us`` is the arithmetic of a tile over one token (4 x 64 queries x 128) times the multiprocessors, divided
by the rate that attention reaches on the card: 175.1 TFLOPS on the A100 and 188.5 on the L40S, by whole prompts. On the
RTX PRO 6000 and the RTX 4090 it was fitted. Decodes reach 78% of the bandwidth on the A100 and the RTX PRO 6000, 97% on
the other cards. A card that nobody measured is taken to reach the same shares of its own peak as a similar card does:
the RTX 3090 as the RTX 4090 (80% of peak arithmetic), the others as the L40S (52%). On Ampere a block takes 80 KB of
shared memory, so two fit a multiprocessor (``blocks_each``). How fast a single block is, is unknown (``alone`` in the
bands).
"""
_SUMS = "sums of separately computed prompts and decodes: no mixed step of this kernel was fitted"
_MLA = Kernel("MLA", _SUMS)
_SINKS = Kernel("Triton", f"{_SUMS}. FlashAttention-2 has no attention sinks; FlashInfer has them in some versions")
_OTHER = Kernel("other", _SUMS)


def kernel_of(gpu: Gpu, model: Model) -> Kernel:
    """Return the kernel of a pair, according to vLLM 0.32's list of backends for a GPU (``platforms/cuda.py``).

    Instead of FlashAttention-2, models with attention sinks (gpt-oss) and with fp8 KV get other kernels.
    """
    if model.kv_lora_rank:
        return _MLA
    kernel = KERNELS.get(gpu.name, _OTHER)
    if kernel.tiles and model.architecture == "GptOssForCausalLM":
        return _SINKS
    return _OTHER if kernel.tiles and model.kv_bytes_each < 2.0 else kernel


class MixedAttention:
    """Times of attention in steps with at least one chunk, in all layers of one GPU's share of the model."""

    def __init__(self, tiles: TileModel, model: Model, tensor_parallel: int) -> None:
        heads = max(model.query_heads / tensor_parallel, 1.0)
        kv_heads = max(model.kv_heads / tensor_parallel, 1.0)
        width = model.head_dim / 128
        self._growing_ms = model.full_layers * tiles.scale / 1e3
        self._window_ms = model.window_layers * tiles.scale / 1e3
        self._window = model.window_tokens
        self._heads, self._group = heads, heads / kv_heads
        self._tiles = tiles
        self._token_us = tiles.tile_token_us * width
        self._read_us = kv_heads * KV_HEAD_BYTES * width / (tiles.kv_tb_s * 1e6)
        self._footprint = KV_HEAD_BYTES * width / (tiles.cache_mb * 1e6)

    def ms(self, chunks: Sequence[PrefillChunk], decodes: int, decode_context_tokens: int) -> float:
        ms = self._growing_ms * self._layer_us(chunks, decodes, decode_context_tokens)
        if self._window_ms:
            window = self._window
            seen = [(tokens, min(prefix, window)) for tokens, prefix in chunks]
            ms += self._window_ms * self._layer_us(seen, decodes, min(decode_context_tokens, decodes * window))
        return ms

    def _layer_us(self, chunks: Sequence[tuple[int, int]], decodes: int, context: int) -> float:
        """Return the time of one layer. Blocks of tiles run on the multiprocessors, while decodes read their KV."""
        tiles, passed, longest, held = decodes, float(context), context / decodes if decodes else 0.0, context
        for tokens, prefix in chunks:
            rows = -(-tokens // TILE_QUERIES)
            tiles += rows
            passed += rows * (prefix + tokens / 2 + HALF_TILE)
            held += prefix + tokens
            if prefix + tokens > longest:
                longest = prefix + tokens
        model = self._tiles
        longest_us = longest * self._token_us + model.tile_us
        compute_us = longest_us * model.alone
        if tiles * self._heads > model.multiprocessors:
            work_us = tiles * model.tile_us + passed * self._token_us
            tail_us = model.tail * model.alone * longest_us
            compute_us = max(compute_us, work_us * self._heads / model.multiprocessors + tail_us)
        if not decodes:
            return model.launch_us + compute_us
        read_us = context * self._read_us * self._times_read(tiles, held)
        return float(model.launch_us + (compute_us**model.power + read_us**model.power) ** (1.0 / model.power))

    def _times_read(self, tiles: int, held: int) -> float:
        """Return how often the KV of a decode is read from memory. Heads of its group that run at the same time read it
        once. The others find it in L2 unless it was evicted."""
        missing = (held * self._footprint - self._tiles.miss_from) / self._tiles.miss_over
        if missing <= 0.0:
            return 1.0
        at_once = self._tiles.multiprocessors * self._tiles.blocks_each
        together = min(max(at_once / tiles, 1.0), self._group)
        return 1.0 + (self._group / together - 1.0) * min(missing, 1.0)
