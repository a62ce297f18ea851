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


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """The recurrent layers of Qwen3-Next, 3.5 and 3.6 (gated delta nets), with a state of constant size."""

    key_heads: int
    value_heads: int
    head_dim: int
    """Dimension of a head's keys and of its values. A value head's state is a square matrix of it."""
    conv_kernel: int = 4
    """Width of the convolution in front. Its last inputs are part of the state."""
    state_bytes_each: float = 4.0
    """Bytes of each number of the matrices: 4 for float32, 2 for bf16. The convolution's inputs are in bf16."""

    @property
    def conv_width(self) -> int:
        """Number of channels of the convolution: queries, keys and values."""
        return (2 * self.key_heads + self.value_heads) * self.head_dim

    @property
    def state_numbers(self) -> int:
        return self.value_heads * self.head_dim**2

    @property
    def state_bytes(self) -> int:
        """Bytes of one layer's state."""
        return int(self.state_numbers * self.state_bytes_each) + 2 * self.conv_width * (self.conv_kernel - 1)


@dataclass(frozen=True, slots=True)
class Indexer:
    """DeepSeek's sparse attention: an indexer scores all tokens, and attention reads the best ``top_k`` of them."""

    heads: int
    head_dim: int
    top_k: int
    layers: int
    """Number of layers with an indexer of their own. The others use the choice of a layer before."""

    @property
    def token_bytes(self) -> int:
        """Bytes of the key of one token in one layer: one byte for each number, and a float32 scale per 128."""
        return self.head_dim + 4 * self.head_dim // 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder with gated MLPs, dense or with routed experts. Its layers have grouped-query attention, multi-head
    latent attention (MLA), sliding windows or gated delta nets.

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
    state_layers: int = 0
    """Number of layers with a recurrent state (``delta``) in place of attention."""
    delta: DeltaNet | None = None
    indexer: Indexer | None = None
    output_gate: bool = False
    """The output of full attention is multiplied by a gate, whose matrix is as large as that of the queries."""
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
        attention = (self.layers - self.state_layers) * self.attention_parameters
        attention += self.state_layers * self.delta_parameters + self.indexer_parameters
        return attention + 3 * self.hidden * mlp

    @property
    def delta_parameters(self) -> int:
        """Number of parameters of one gated delta net, without its convolution."""
        if self.delta is None:
            return 0
        outputs = self.delta.value_heads * self.delta.head_dim
        return self.hidden * (self.delta.conv_width + 2 * outputs + 2 * self.delta.value_heads)

    @property
    def indexer_parameters(self) -> int:
        """Number of parameters of all indexers: queries from the latent vector, one key, and the heads' weights."""
        if self.indexer is None:
            return 0
        width = self.indexer.heads * self.indexer.head_dim
        each = self.q_lora_rank * width + self.hidden * (self.indexer.head_dim + self.indexer.heads)
        return self.indexer.layers * each

    @property
    def attention_parameters(self) -> int:
        """Number of parameters of one layer's attention."""
        if not self.kv_lora_rank:
            gate = self.query_heads if self.output_gate else 0
            return self.hidden * (2 * (self.query_heads + self.kv_heads) + gate) * self.head_dim
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
        """Bytes of one token's keys and values in the layers whose KV grows with the context, and of indexers' keys."""
        keys = self.indexer.layers * self.indexer.token_bytes if self.indexer is not None else 0
        return self.full_layers * self.kv_bytes_per_layer_token + keys

    @property
    def full_layers(self) -> int:
        """Number of layers that attend to the whole context."""
        return self.layers - self.window_layers - self.state_layers

    @property
    def state_bytes_per_layer(self) -> int:
        """Bytes of a request's state in one recurrent layer."""
        return self.delta.state_bytes if self.delta is not None else 0

    @property
    def layer_kinds(self) -> list[str]:
        """Return ``full``, ``window`` or ``state`` for each layer: full attention is the last layer of each period."""
        other, period = "state" if self.state_layers else "window", self.layers // self.full_layers
        return [other if (n + 1) % period else "full" for n in range(self.layers)]

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
