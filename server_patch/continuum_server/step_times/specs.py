"""GPUs and models as numbers: peaks and bandwidths from the vendors' data sheets, geometries from published configs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    memory_gib: float
    """As CUDA reports it, a little less than the label (taken from PyTorch's out-of-memory messages in public)."""
    bf16_tflops: float
    """Dense, without sparsity."""
    fp8_tflops: float
    """Dense; a GPU without fp8 units has its bf16 peak here (weights are then only stored in fp8)."""
    bandwidth_tb_s: float
    link_gb_s: float
    """To the other GPUs of the machine, in one direction: over NVLink, or else over PCIe."""
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder with grouped-query attention and gated MLPs, dense or with routed experts."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    """Width of a dense layer's MLP."""
    query_heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_context_tokens: int
    weight_bytes_each: float = 2.0
    """Bytes of a weight: 2 for bf16, 1 for fp8. KV is bf16 throughout."""
    tied_embeddings: bool = False
    extra_parameters: float = 0.0
    """Parameters that are in memory but not used for text (a vision tower)."""
    window_layers: int = 0
    """Layers that attend only to the last ``window_tokens``; their KV stops growing there."""
    window_tokens: int = 0
    experts: int = 0
    experts_used: int = 0
    """Routed experts that each token visits."""
    expert_width: int = 0
    shared_experts: int = 0
    dense_layers: int = 0
    """In a mixture of experts: the number of first layers that have no experts."""
    aliases: tuple[str, ...] = ()
    notes: str = ""

    @property
    def weight_bytes(self) -> int:
        return int(self.parameters * self.weight_bytes_each)

    @property
    def parameters(self) -> float:
        """All parameters but those of norms and biases."""
        embeddings = self.head_parameters * (1 if self.tied_embeddings else 2)
        return self.always_parameters + self.expert_parameters + embeddings + self.extra_parameters

    @property
    def head_parameters(self) -> int:
        """Parameters of the output layer, which is used once for each sampled token."""
        return self.vocab * self.hidden

    @property
    def always_parameters(self) -> int:
        """Parameters that every token uses: attention, dense MLPs, shared experts."""
        attention = 2 * self.hidden * (self.query_heads + self.kv_heads) * self.head_dim
        dense = self.dense_layers if self.experts else self.layers
        mlp = dense * self.intermediate + (self.layers - dense) * self.shared_experts * self.expert_width
        return self.layers * attention + 3 * self.hidden * mlp

    @property
    def expert_parameters(self) -> int:
        """Parameters of all routed experts."""
        return (self.layers - self.dense_layers) * self.experts * 3 * self.hidden * self.expert_width

    @property
    def kv_bytes_per_layer_token(self) -> int:
        """Keys and values of one layer, bf16."""
        return 2 * 2 * self.kv_heads * self.head_dim

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of the layers whose KV grows with the context."""
        return (self.layers - self.window_layers) * self.kv_bytes_per_layer_token

    @property
    def window_bytes_per_request(self) -> int:
        """KV of the window layers once their windows are full."""
        return self.window_layers * self.window_tokens * self.kv_bytes_per_layer_token


RTX_PRO_6000_EDITIONS = (
    "rtx-pro-6000-blackwell",
    "rtx-pro-6000-blackwell-server-edition",
    "rtx-pro-6000-blackwell-workstation-edition",
)
"""The peaks are those of aiconfigurator's ``rtx_pro_6000_server``: scaled to the 2,430 MHz that the card reported."""

GPUS = (
    Gpu("a100-80gb", 79.15, 312, 312, 2.039, 300, ("a100", "a100-sxm", "a100-sxm4-80gb")),
    Gpu("a100-40gb", 39.39, 312, 312, 1.555, 300, ("a100-sxm4-40gb",)),
    Gpu("h100-80gb", 79.1, 989, 1979, 3.35, 450, ("h100", "h100-sxm", "h100-80gb-hbm3")),
    Gpu("h200-141gb", 139.8, 989, 1979, 4.8, 450, ("h200", "h200-sxm")),
    Gpu("b200-180gb", 178.35, 2250, 4500, 7.7, 900, ("b200", "b200-sxm")),
    Gpu("l40s", 44.4, 362, 733, 0.864, 32, ("l40s-48gb",)),
    Gpu("rtx-pro-6000", 94.97, 467.8, 935.6, 1.792, 64, ("rtxpro6000", *RTX_PRO_6000_EDITIONS)),
    Gpu("rtx-4090", 23.64, 165.2, 330.3, 1.008, 32, ("rtx4090", "4090", "geforce-rtx-4090")),
)

MODELS = (
    Model(
        name="llama-3.1-8b",
        layers=32,
        hidden=4096,
        intermediate=14336,
        query_heads=32,
        kv_heads=8,
        head_dim=128,
        vocab=128256,
        max_context_tokens=131072,
    ),
    Model(
        name="llama-3.1-70b",
        layers=80,
        hidden=8192,
        intermediate=28672,
        query_heads=64,
        kv_heads=8,
        head_dim=128,
        vocab=128256,
        max_context_tokens=131072,
        aliases=("llama-3.3-70b",),
    ),
    Model(
        name="qwen3-8b",
        layers=36,
        hidden=4096,
        intermediate=12288,
        query_heads=32,
        kv_heads=8,
        head_dim=128,
        vocab=151936,
        max_context_tokens=40960,
    ),
    Model(
        name="qwen3-14b",
        layers=40,
        hidden=5120,
        intermediate=17408,
        query_heads=40,
        kv_heads=8,
        head_dim=128,
        vocab=151936,
        max_context_tokens=40960,
    ),
    Model(
        name="qwen3-32b",
        layers=64,
        hidden=5120,
        intermediate=25600,
        query_heads=64,
        kv_heads=8,
        head_dim=128,
        vocab=151936,
        max_context_tokens=40960,
    ),
    Model(
        name="gemma-3-12b",
        layers=48,
        hidden=3840,
        intermediate=15360,
        query_heads=16,
        kv_heads=8,
        head_dim=256,
        vocab=262208,
        max_context_tokens=131072,
        tied_embeddings=True,
        extra_parameters=0.42e9,
        window_layers=40,
        window_tokens=1024,
        notes="40 of 48 layers attend to a window of 1,024 tokens",
    ),
    Model(
        name="glm-4.5",
        layers=92,
        hidden=5120,
        intermediate=12288,
        query_heads=96,
        kv_heads=8,
        head_dim=128,
        vocab=151552,
        max_context_tokens=131072,
        weight_bytes_each=1.0,
        experts=160,
        experts_used=8,
        expert_width=1536,
        shared_experts=1,
        dense_layers=3,
        aliases=("glm-4.5-fp8",),
        notes="fp8 weights, bf16 KV; 8 of 160 experts a token, chosen evenly; no layer for multi-token prediction",
    ),
)
