"""GPUs and models as numbers: peaks and bandwidths from the vendors' data sheets, geometries from published configs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    memory_gib: float
    """As the driver reports it, a little under the label."""
    bf16_tflops: float
    fp8_tflops: float
    bandwidth_tb_s: float
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    layers: int
    hidden: int
    query_heads: int
    kv_heads: int
    head_dim: int
    parameters: float
    active_parameters: float
    weight_bytes_each: float
    max_context_tokens: int
    kv_layers: int
    """Layers whose KV grows with the context (sliding-window layers do not)."""
    aliases: tuple[str, ...] = ()
    notes: str = ""

    @property
    def weight_bytes(self) -> int:
        return int(self.parameters * self.weight_bytes_each)

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values in bf16."""
        return 2 * 2 * self.kv_layers * self.kv_heads * self.head_dim


GPUS = (
    Gpu("a100-80gb", 79.15, 312, 312, 2.039, ("a100", "a100-sxm")),
    Gpu("a100-40gb", 39.39, 312, 312, 1.555),
    Gpu("h100-80gb", 79.10, 989, 1979, 3.35, ("h100", "h100-sxm")),
    Gpu("h200-141gb", 139.80, 989, 1979, 4.8, ("h200", "h200-sxm")),
    Gpu("b200-180gb", 178.35, 2250, 4500, 8.0, ("b200", "b200-sxm")),
    Gpu("l40s", 44.40, 362, 733, 0.864),
)

MODELS = (
    Model("llama-3.1-8b", 32, 4096, 32, 8, 128, 8.03e9, 8.03e9, 2.0, 131072, 32, ("llama-3-8b",)),
    Model("llama-3.1-70b", 80, 8192, 64, 8, 128, 70.6e9, 70.6e9, 2.0, 131072, 80, ("llama-3-70b",)),
    Model(
        "gemma-3-12b",
        48,
        3840,
        16,
        8,
        256,
        12.2e9,
        12.2e9,
        2.0,
        131072,
        8,
        notes="40 of 48 layers attend to a 1,024-token window; their constant KV is left out",
    ),
    Model("glm-4.5", 92, 5120, 96, 8, 128, 355e9, 32e9, 1.0, 131072, 92, notes="fp8 weights, 32B active of 355B"),
)
