"""GPUs and models: peaks and bandwidths from the vendors' data sheets, geometries from published configs."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

import msgspec


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    memory_gib: float
    """Memory as CUDA reports it, which is a little less than the label (from public PyTorch out-of-memory messages)."""
    bf16_tflops: float
    """Dense peak, without sparsity."""
    fp8_tflops: float
    """Dense peak. For a GPU without fp8 units it is the bf16 peak, because weights are then only stored in fp8."""
    bandwidth_tb_s: float
    link_gb_s: float
    """Bandwidth to the other GPUs of the machine in one direction, over NVLink or else over PCIe."""
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder with gated MLPs, dense or with routed experts, and grouped-query or multi-head latent attention (MLA).

    Step times, KV capacity, the virtual engine's scheduler and the emulated engine's model folder use this description.
    """

    name: str
    layers: int
    hidden: int
    intermediate: int
    """Width of a dense layer's MLP."""
    query_heads: int
    kv_heads: int
    """1 with MLA, because all query heads share one compressed vector."""
    head_dim: int
    """With MLA: the dimension of keys without rotation, and of values."""
    vocab: int
    max_context_tokens: int
    weight_bytes_each: float = 2.0
    """Bytes of a weight in attention and MLPs: 2 for bf16, 1 for fp8. Embeddings and output layer are always bf16."""
    expert_bytes_each: float | None = None
    """Bytes of a weight in routed experts; None: as other weights. MXFP4 has 4 bits, and a byte of scale per 32."""
    kv_bytes_each: float = 2.0
    """Bytes of each number in KV: 2 for bf16, 1 for fp8."""
    kv_lora_rank: int = 0
    """MLA: dimension of the compressed vector that one layer stores for a token; 0: no MLA."""
    q_lora_rank: int = 0
    rope_head_dim: int = 0
    """MLA: dimension of the rotated key, which is stored beside the compressed vector."""
    tied_embeddings: bool = False
    extra_parameters: float = 0.0
    """Number of parameters that are in memory but not used for text (a vision tower)."""
    window_layers: int = 0
    """Number of layers that attend only to the last ``window_tokens`` tokens. Their KV does not grow further."""
    window_tokens: int = 0
    experts: int = 0
    experts_used: int = 0
    """Number of routed experts that each token visits."""
    expert_width: int = 0
    shared_experts: int = 0
    dense_layers: int = 0
    """In a mixture of experts: number of first layers without experts."""
    architecture: str = "LlamaForCausalLM"
    """The architecture in config.json."""
    tables_of: str = ""
    """Another model with the same geometry, whose tables are used for this model too."""
    aliases: tuple[str, ...] = ()
    notes: str = ""

    @property
    def weight_bytes(self) -> int:
        """Bytes of all parameters except norms, biases and routers."""
        return int(self.layer_bytes + self.expert_bytes + EMBEDDING_BYTES * self.embedding_parameters)

    @property
    def layer_bytes(self) -> float:
        return self.always_parameters * self.weight_bytes_each

    @property
    def expert_bytes(self) -> float:
        """Bytes of all routed experts."""
        return self.expert_parameters * (self.expert_bytes_each or self.weight_bytes_each)

    @property
    def embedding_parameters(self) -> float:
        """Number of parameters that are not in layers: embeddings, output layer, vision tower."""
        return self.head_parameters * (1 if self.tied_embeddings else 2) + self.extra_parameters

    @property
    def head_parameters(self) -> int:
        """Number of parameters of the output layer, which is used once for each sampled token."""
        return self.vocab * self.hidden

    @property
    def always_parameters(self) -> int:
        """Number of parameters that every token uses: attention, dense MLPs, shared experts."""
        dense = self.dense_layers if self.experts else self.layers
        mlp = dense * self.intermediate + (self.layers - dense) * self.shared_experts * self.expert_width
        return self.layers * self.attention_parameters + 3 * self.hidden * mlp

    @property
    def attention_parameters(self) -> int:
        """Number of parameters of one layer's attention."""
        if not self.kv_lora_rank:
            return 2 * self.hidden * (self.query_heads + self.kv_heads) * self.head_dim
        queries = self.q_lora_rank * (self.hidden + self.query_heads * (self.head_dim + self.rope_head_dim))
        keys = self.hidden * (self.kv_lora_rank + self.rope_head_dim) + self.expansion_parameters
        return queries + keys + self.query_heads * self.head_dim * self.hidden

    @property
    def expansion_parameters(self) -> int:
        """MLA: number of parameters of one layer's matrix that expands compressed vectors to keys and values."""
        return self.kv_lora_rank * self.query_heads * 2 * self.head_dim

    @property
    def expert_parameters(self) -> int:
        """Number of parameters of all routed experts."""
        return (self.layers - self.dense_layers) * self.experts * 3 * self.hidden * self.expert_width

    @property
    def kv_bytes_per_layer_token(self) -> int:
        """Bytes of one token's keys and values in one layer. With MLA: of the compressed vector and the rotated key."""
        numbers = self.kv_lora_rank + self.rope_head_dim if self.kv_lora_rank else 2 * self.kv_heads * self.head_dim
        return int(numbers * self.kv_bytes_each)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token's keys and values in the layers whose KV grows with the context."""
        return (self.layers - self.window_layers) * self.kv_bytes_per_layer_token

    @property
    def window_bytes_per_request(self) -> int:
        """Bytes of a request's KV in the window layers when their windows are full."""
        return self.window_layers * self.window_tokens * self.kv_bytes_per_layer_token

    @property
    def bf16_head_dim(self) -> int:
        """The head dimension with which ``kv_heads`` heads in bf16 take as many bytes as the model's KV."""
        return self.kv_bytes_per_layer_token // (2 * 2 * self.kv_heads)

    @property
    def llama_hidden(self) -> int:
        """``hidden``, rounded up to a multiple of the number of heads, which transformers requires of a Llama."""
        return -(-self.hidden // self.query_heads) * self.query_heads

    def kv_copies(self, tensor_parallel: int) -> int:
        """Return the number of GPUs that store the same KV. vLLM copies KV heads if there are fewer than GPUs."""
        return max(1, tensor_parallel // self.kv_heads)


EMBEDDING_BYTES = 2.0
MXFP4_BYTES = 0.5 + 1 / 32

GPUS = msgspec.json.decode(files(__package__).joinpath("gpus.json").read_bytes(), type=tuple[Gpu, ...])
"""The peaks of the RTX PRO 6000 are those of aiconfigurator's ``rtx_pro_6000_server``, scaled to the card's reported
2,430 MHz."""

MODELS = msgspec.json.decode(files(__package__).joinpath("models.json").read_bytes(), type=tuple[Model, ...])
"""Numbers are those of each model's config.json on Hugging Face. They were read in the copies that aiconfigurator-core
0.12.0 bundles in model_configs; where it has none, in THUDM/slime's scripts/models (Qwen3-14B, GLM-4.5 and its Air),
transformers' Glm4MoeConfig (Air), LLMServingSim's model_config (Phi-mini-MoE), copies of config.json in public
repositories (Qwen2.5, phi-4, Llama-3.2-3B, Qwen3-4B), the model card (Qwen3-Coder-30B-A3B), xinference's list (the
context of GLM-4.6). Of Mistral-7B only the number of parameters was compared."""
