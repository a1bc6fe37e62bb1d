"""Headers of GGUF files (versions 2 and 3), without reading a weight, and the Hugging Face config that says the same.

Every count and length is checked against what is left of the file and against a fixed bound before anything is
allocated. What a config says with a flag, a GGUF file says by having a tensor: biases, query/key norms, an output
projection of its own.
[format] ggml-org/ggml docs/gguf.md, also its "[llm]" section; llama.cpp gguf-py/gguf/constants.py at ef035f7
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, Protocol

from vramcast.domain.model import Noun, StoredTensor, StoredWeights
from vramcast.errors import Note, SourceError, UnknownName
from vramcast.sources.weights import LARGEST_ELEMENTS
from vramcast.states.ggml import TENSOR_TYPES
from vramcast.units import round_up

if TYPE_CHECKING:
    from pathlib import Path

SCALARS: Final[dict[int, str]] = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
"""Id of a metadata value -> its struct format."""

STRING: Final = 8
ARRAY: Final = 9


MAGIC: Final = b"GGUF"
MOST_VALUES: Final = 100_000
MOST_TENSORS: Final = 1_000_000
MOST_ELEMENTS: Final = 16_000_000  # of an array; vocabularies have a quarter of a million
KEPT_ELEMENTS: Final = 8_192  # of an array whose values are kept: layers, not tokens
MOST_DIMENSIONS: Final = 8
LONGEST_STRING: Final = 64 * 2**20
KEPT_STRING: Final = 4_096
LARGEST_HEADER: Final = 512 * 2**20
DEEPEST_ARRAY: Final = 4
DEFAULT_ALIGNMENT: Final = 32


class Skipped(Noun, frozen=True):
    """An array that was walked over, not kept."""

    count: int


class GgufHeader(Noun, frozen=True):
    """What a GGUF file says about itself."""

    version: int
    metadata: dict[str, Any]
    weights: StoredWeights

    @property
    def architecture(self) -> str:
        """`general.architecture`, "" when absent."""
        value = self.metadata.get("general.architecture")
        return value if isinstance(value, str) else ""


class _File(Protocol):
    def read(self, size: int, /) -> bytes: ...
    def seek(self, offset: int, whence: int = ..., /) -> int: ...
    def tell(self) -> int: ...


class _Reader:
    """Bounded reads of little- or big-endian values."""

    def __init__(self, file: _File, *, name: str, size: int) -> None:
        self._file, self.name, self._size, self._used = file, name, size, 0
        self._order = "<"

    def swap(self) -> None:
        """Read big-endian from here on."""
        self._order = ">"

    def error(self, problem: str) -> SourceError:
        """The error for this file."""
        return SourceError("{}: {}", self.name, problem)

    @property
    def position(self) -> int:
        """Bytes read or skipped."""
        return self._used

    def _take(self, size: int) -> None:
        self._used += size
        if self._used > self._size:
            raise self.error(Note("is cut short or lists more than its {} bytes hold", self._size))
        if self._used > LARGEST_HEADER:
            raise self.error(Note("has a header of more than {} bytes", LARGEST_HEADER))

    def bytes(self, size: int) -> bytes:
        """The next bytes."""
        self._take(size)
        data = self._file.read(size)
        if len(data) != size:
            raise self.error("is cut short")
        return data

    def skip(self, size: int) -> None:
        """Leave out the next bytes."""
        self._take(size)
        self._file.seek(size, 1)

    def scalar(self, code: str) -> Any:
        """The next value of a struct format."""
        layout = self._order + code
        return struct.unpack(layout, self.bytes(struct.calcsize(layout)))[0]

    def count(self, what: str, most: int) -> int:
        """The next 64-bit count, bounded."""
        value: int = self.scalar("Q")
        if value > most:
            raise self.error(Note("{} {} are more than the {} any model has", value, what, most))
        return value

    def string(self) -> str:
        """The next string; one longer than any name is cut."""
        length = self.count("bytes of a string", LONGEST_STRING)
        kept = self.bytes(min(length, KEPT_STRING))
        self.skip(length - len(kept))
        return kept.decode("utf-8", "replace")


def read_header(file: _File, *, name: str, size: int) -> GgufHeader:
    """The header of an open file.

    Args:
        file: positioned at its start
        size: of the whole file [bytes]

    Raises: SourceError naming the file
    """
    reader = _Reader(file, name=name, size=size)
    if size < 4 or reader.bytes(4) != MAGIC:
        raise reader.error("is no GGUF file, its first bytes are not 'GGUF'")
    version: int = reader.scalar("I")
    if version & 0xFFFF == 0:
        reader.swap()
        version = int.from_bytes(version.to_bytes(4, "little"), "big")
    if version not in (2, 3):
        raise reader.error(Note("is GGUF version {}, only 2 and 3 are read; convert it with llama.cpp", version))
    num_tensors = reader.count("tensors", MOST_TENSORS)
    num_values = reader.count("metadata values", MOST_VALUES)
    metadata: dict[str, Any] = {}
    for _ in range(num_values):
        key = reader.string()
        if key in metadata:
            raise reader.error(f"metadata key {key[:80]!r} stands twice")
        metadata[key] = _value(reader, reader.scalar("I"), depth=0)
    tensors = _tensors(reader, num_tensors, metadata, size)
    return GgufHeader(version=version, metadata=metadata, weights=StoredWeights(tensors=tensors))


def _value(reader: _Reader, kind: int, *, depth: int) -> Any:
    if kind in SCALARS:
        return reader.scalar(SCALARS[kind])
    if kind == STRING:
        return reader.string()
    if kind != ARRAY or depth >= DEEPEST_ARRAY:
        raise reader.error(Note("metadata type {} at depth {} is not part of the format", kind, depth))
    inner: int = reader.scalar("I")
    count = reader.count("elements of an array", MOST_ELEMENTS)
    if inner in SCALARS and count > KEPT_ELEMENTS:
        reader.skip(count * struct.calcsize("<" + SCALARS[inner]))
        return Skipped(count=count)
    kept = []
    for number in range(count):
        value = _value(reader, inner, depth=depth + 1)
        if number < KEPT_ELEMENTS:
            kept.append(value)
    return tuple(kept) if count <= KEPT_ELEMENTS else Skipped(count=count)


def _tensors(reader: _Reader, count: int, metadata: dict[str, Any], size: int) -> tuple[StoredTensor, ...]:
    found: list[tuple[StoredTensor, int]] = []
    for _ in range(count):
        found.append(_tensor(reader))
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 1 <= alignment <= 2**20 or alignment & (alignment - 1):
        raise reader.error(Note("general.alignment={!r} must be a power of two", alignment))
    start = round_up(reader.position, alignment)
    names, position = set(), 0
    for tensor, offset in sorted(found, key=lambda pair: pair[1]):
        if tensor.name in names:
            raise reader.error(f"tensor {tensor.name[:80]!r} stands twice")
        if offset % alignment or offset < position:
            raise reader.error(Note(
                "tensor {!r} at {} overlaps or is not aligned to {}", tensor.name[:80], offset, alignment
            ))
        names.add(tensor.name)
        position = offset + tensor.num_bytes
    if start + position > size and found:
        raise reader.error(Note("is cut short, its tensors end at {} of {} bytes", start + position, size))
    return tuple(tensor for tensor, _ in found)


def _tensor(reader: _Reader) -> tuple[StoredTensor, int]:
    name = reader.string()
    dimensions: int = reader.scalar("I")
    if dimensions > MOST_DIMENSIONS:
        raise reader.error(f"tensor {name[:80]!r} has {dimensions} dimensions, {MOST_DIMENSIONS} are possible")
    sizes = [int(reader.scalar("Q")) for _ in range(dimensions)]
    kind: int = reader.scalar("I")
    offset: int = reader.scalar("Q")
    if kind not in TENSOR_TYPES:
        raise reader.error(Note("tensor {!r} has type {}, which llama.cpp does not define", name[:80], kind))
    dtype, stored = TENSOR_TYPES[kind]
    # ggml lists the fastest dimension first
    tensor = StoredTensor(name=name, dtype=dtype, shape=tuple(reversed(sizes)), num_bytes=0)
    elements = tensor.elements
    if elements > LARGEST_ELEMENTS or (sizes and sizes[0] % stored.block):
        raise reader.error(Note("tensor {!r} of {} elements cannot be stored as {}", name[:80], elements, dtype))
    rows = elements // sizes[0] if sizes and sizes[0] else 0
    num_bytes = elements // stored.block * stored.block_bytes + rows * stored.row_bytes
    return StoredTensor(name=name, dtype=dtype, shape=tensor.shape, num_bytes=num_bytes), offset


def read_file(path: Path) -> GgufHeader:
    """The header of a local file; of a model split over several files, only the first one's.

    Raises: SourceError naming the file
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            return read_header(file, name=path.name, size=size)
    except OSError as error:
        raise SourceError("{}: cannot be read ({})", path, error.strerror) from error


MODEL_TYPES: Final[dict[str, str]] = {name: name for name in (
    "arcee", "baichuan", "bloom", "chatglm", "cohere2", "dots1", "ernie4_5", "exaone4", "falcon", "gemma", "gemma2",
    "glm4", "gpt2", "granite", "granitemoe", "internlm2", "llama", "minicpm", "mpt", "nemotron", "olmo", "olmo2",
    "olmoe", "phi3", "phimoe", "qwen", "qwen2", "qwen3", "seed_oss", "smollm3", "stablelm", "starcoder2",
)} | {
    "command-r": "cohere", "deepseek2": "deepseek_v2", "gemma3": "gemma3_text", "glm4moe": "glm4_moe",
    "gpt-oss": "gpt_oss", "gptneox": "gpt_neox", "hunyuan-dense": "hunyuan_v1_dense", "llama4": "llama4_text",
    "minimax-m2": "minimax_m2", "mistral3": "mistral", "phi2": "phi", "qwen2moe": "qwen2_moe",
    "qwen2vl": "qwen2_vl_text", "qwen3moe": "qwen3_moe", "qwen3next": "qwen3_next", "qwen3vl": "qwen3_vl_text",
    "qwen3vlmoe": "qwen3_vl_moe_text", "starcoder": "gpt_bigcode",
}
"""`general.architecture` -> `model_type`; a llama with experts is a mixtral, a deepseek2 by its router deepseek_v3."""

KEYS: Final[dict[str, str]] = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "context_length": "max_position_embeddings",
    "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "leading_dense_block_count": "first_k_dense_replace",
    "nextn_predict_layers": "num_nextn_predict_layers",
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "use_parallel_residual": "use_parallel_residual",
}
"""Metadata key behind the architecture's prefix -> config key."""

OWN_KEYS: Final[dict[str, dict[str, str]]] = {
    "deepseek2": {"expert_count": "n_routed_experts"},
    "dots1": {"expert_count": "n_routed_experts"},
    "glm4moe": {"expert_count": "n_routed_experts"},
    "qwen2moe": {"expert_count": "num_experts"},
    "qwen3moe": {"expert_count": "num_experts"},
    "qwen3vlmoe": {"expert_count": "num_experts"},
    "olmoe": {"expert_count": "num_experts"},
    "gpt-oss": {"expert_feed_forward_length": "intermediate_size"},
    "minimax-m2": {"expert_feed_forward_length": "intermediate_size"},
    "falcon": {"attention.head_count_kv": "num_kv_heads"},
    "chatglm": {"attention.head_count_kv": "multi_query_group_num"},
    "llama4": {
        "feed_forward_length": "intermediate_size_mlp",
        "expert_feed_forward_length": "intermediate_size",
        "interleave_moe_layer_step": "interleave_moe_layer_step",
    },
    "qwen3next": {
        "expert_count": "num_experts",
        "full_attention_interval": "full_attention_interval",
        "ssm.conv_kernel": "linear_conv_kernel_dim",
        "ssm.state_size": "linear_key_head_dim",
        "ssm.group_count": "linear_num_key_heads",
        "ssm.time_step_rank": "linear_num_value_heads",
        "ssm.inner_size": "linear_value_dim",
    },
}
"""Where an architecture's config says a thing under another name."""

FLAGS: Final[dict[str, tuple[str, ...]]] = {
    "attention_bias": ("attn_q.bias", "attn_qkv.bias"),
    "use_qkv_bias": ("attn_q.bias", "attn_qkv.bias"),
    "add_qkv_bias": ("attn_q.bias", "attn_qkv.bias"),
    "attention_out_bias": ("attn_output.bias",),
    "bias": ("attn_output.bias",),
    "use_bias": ("ffn_up.bias",),
    "mlp_bias": ("ffn_up.bias",),
    "use_qk_norm": ("attn_q_norm.weight",),
    "qk_layernorm": ("attn_q_norm.weight",),
    "new_decoder_architecture": ("attn_norm_2.weight",),
}
"""Config flag -> tensors of the first block; having one of them sets the flag."""

SIGMOID: Final = 2
"""`expert_gating_func` of DeepSeek-V3's router."""


def config_of(header: GgufHeader, *, name: str) -> dict[str, Any]:
    """The config that describes the same network.

    Leaves out how weights are packed; a model of per-layer sizes is described by its widest layer.

    Raises: UnknownName for an architecture that is not mapped, SourceError where sizes are missing
    """
    architecture = header.architecture
    if architecture not in MODEL_TYPES:
        raise UnknownName.of("GGUF architecture", architecture, MODEL_TYPES)
    config: dict[str, Any] = {"model_type": MODEL_TYPES[architecture]}
    for key, target in (KEYS | OWN_KEYS.get(architecture, {})).items():
        value = header.metadata.get(f"{architecture}.{key}")
        if isinstance(value, tuple) and value and all(isinstance(item, int) for item in value):
            value = max(value)
        if isinstance(value, int):
            config[target] = value
    tensors = {tensor.name for tensor in header.weights.tensors}
    for flag, endings in FLAGS.items():
        config[flag] = any(f"blk.0.{ending}" in tensors for ending in endings)
    config["vocab_size"] = _vocabulary(header, name)
    config["lm_head_bias"] = "output.bias" in tensors
    config["tie_word_embeddings"] = "output.weight" not in tensors
    config["architectures"] = ["ForCausalLM"]
    _adjust(config, header, tensors)
    return config


def _adjust(config: dict[str, Any], header: GgufHeader, tensors: set[str]) -> None:
    """What one key cannot say."""
    architecture = header.architecture
    if architecture == "llama" and config.get("num_local_experts"):
        config["model_type"] = "mixtral"
    elif architecture == "deepseek2":
        _latent(config, header, tensors)
    elif architecture == "falcon":
        config |= {"parallel_attn": True, "multi_query": config.get("num_kv_heads") == 1, "bias": False}
    elif architecture == "starcoder":
        config["multi_query"] = config.get("num_key_value_heads") == 1
    elif architecture == "chatglm":
        config["multi_query_attention"] = True
    elif architecture == "qwen3next":
        heads = config.get("linear_num_value_heads") or 1
        config["linear_value_head_dim"] = config.pop("linear_value_dim", 0) // heads
    future = config.get("num_nextn_predict_layers", 0)
    if isinstance(future, int) and 0 < future < config.get("num_hidden_layers", 0):
        config["num_hidden_layers"] -= future  # block_count counts prediction modules too
    else:
        config["num_nextn_predict_layers"] = 0


def _latent(config: dict[str, Any], header: GgufHeader, tensors: set[str]) -> None:
    """DeepSeek's attention: newer files store the compressed lengths and name those of a head apart."""

    def size(key: str) -> int:
        value = header.metadata.get(f"deepseek2.{key}")
        return value if isinstance(value, int) else 0

    if size("expert_gating_func") == SIGMOID or any("exp_probs_b" in tensor for tensor in tensors):
        config["model_type"] = "deepseek_v3"
    rope = size("rope.dimension_count")
    config.pop("head_dim", None)
    config["num_key_value_heads"] = config.get("num_attention_heads")
    config["qk_rope_head_dim"] = rope
    config["qk_nope_head_dim"] = max((size("attention.key_length_mla") or size("attention.key_length")) - rope, 0)
    config["v_head_dim"] = size("attention.value_length_mla") or size("attention.value_length")
    config.setdefault("q_lora_rank", None)


def _vocabulary(header: GgufHeader, name: str) -> int:
    for tensor in header.weights.tensors:
        if tensor.name == "token_embd.weight" and len(tensor.shape) == 2:
            return tensor.shape[0]
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Skipped):
        return tokens.count
    if isinstance(tokens, tuple) and tokens:
        return len(tokens)
    raise SourceError("{}: neither an embedding tensor nor a token list tells the vocabulary", name)
