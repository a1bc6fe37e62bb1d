"""The serving engines: what is true of each of them as a whole. What a job decides stands in the engine's modules.

Another engine is one row here and one package with `deploy(job)`; a newer version is its number in `newest`, and a line
where something changed with it.

[vllm] vllm/config/model.py `_get_and_verify_max_len`; blocks: 0.6.6 engine/arg_utils.py and config.py
`CacheConfig._verify_args`, 0.11.0 to 0.17.0 config/cache.py `BlockSize` with v1/attention/backends/flash_attn.py
`get_kv_cache_shape`, 0.18.0 v1/attention/backend.py `supports_block_size`; drafts: 0.6.6 spec_decode_worker.py
`_vocab_size`, 0.11.0 to 0.14.0 config/speculative.py `__post_init__` "not supported yet", 0.15.0
`verify_equal_vocab_size_if_draft_model`; adapters: 0.7.3, 0.8.0 and 0.11.0 config/lora.py `possible_max_ranks`, 0.11.1
`MaxLoRARanks`; cards: docs.vllm.ai getting_started/installation/gpu: v0.14 asks for compute capability 7.0, v0.31 for
7.5; AMD gfx90a, gfx942, gfx950, gfx110x; formats: model_executor/layers/quantization `get_min_capability` in the wheels
0.6.6, 0.11.0 to 0.14.0 and 0.19.0: Marlin reads compressed-tensors on Turing from 0.12 on, FP8 and 4-bit floats from
0.14 on; caches: v1/attention/backends/flashinfer.py and triton_attn.py at 0.19.0: below 7.5 only Triton is left, which
cannot compile e4m3 there
[vllm] and [sglang] layers/quantization/gguf.py `DEQUANT_TYPES`; transformers reads GGUF back into 16 bits
(modeling_gguf_pytorch_utils.py), TensorRT-LLM does not read it
[sglang] srt/configs/model_config.py `_derive_context_length`; `speculative_algorithm` in the wheels 0.4.1 to 0.5.3;
docs.sglang.ai start/install: SM75 and later, AMD Instinct; srt/layers/quantization `get_min_capability` at 0.5.9
[trtllm] _torch/pyexecutor/model_engine.py `_init_max_seq_len`, of the PyTorch backend, builds only warn; docs
advanced/kv-cache-reuse "tokens_per_block must be a power of 2"; nvidia.github.io/TensorRT-LLM 0.18.2 and 1.x
reference/support-matrix: SM80 and later, FP8 from Ada, FP4 from Blackwell
[llama.cpp] tools/server, "the slot context ... capping"
[tgi] text-generation-inference docs/source/supported_models.md and installation_*: compute capability 7.5, older cards
at one's own risk; server/text_generation_server/layers/fp8.py, attention/kv_cache.py
[lmdeploy] docs/en/get_started/installation.md, supported_models: V100 and later; lmdeploy/messages.py `quant_policy`
[transformers] generation/utils.py `_validate_generated_length`; quantizers/quantizer_finegrained_fp8.py and
quantizer_mxfp4.py `validate_environment` at 4.57: older cards are refused or read the weights back into 16 bits
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from vramcast.domain.serving import Version

ALWAYS: Final[Version] = (0,)

INSTINCT: Final = ("gfx90a", "gfx942", "gfx950")
RADEON: Final = ("gfx1100", "gfx1101", "gfx1200", "gfx1201")

OLDER_AMD: Final = ("gfx906", "gfx908", "gfx1030", "gfx1031", "gfx1032", "gfx1034", "gfx1102", "gfx1151")
"""Those that llama.cpp has kernels for beside them [ggml/src/ggml-cuda/common.cuh GGML_CUDA_CC_*]."""


class Beyond(Struct, frozen=True):
    """What an engine does with sequences longer than the network was trained with."""

    said: str
    way_out: str = ""  # variable that makes it take them; without one it takes them by itself
    since: Version = ALWAYS  # older versions only warn


class Blocks(Struct, frozen=True):
    """Sizes that a block of the cache can have since a version [tokens]."""

    since: Version
    takes: Callable[[int], bool]
    wanted: str


class Releases(Struct, frozen=True):
    """Releases from one on, up to another that is not among them."""

    since: Version
    until: Version = (1 << 16,)


class Support(Struct, frozen=True):
    """Cards that one range of versions of an engine runs on."""

    since: Version
    oldest_sm: int  # compute capability x 10 of NVIDIA's cards
    amd: tuple[str, ...] = ()
    others: bool = False  # cards of other vendors too
    ported: bool = False  # other vendors have builds or plugins of theirs


OldestSm = tuple[tuple[Version, Mapping[str, int]], ...]
"""Since a version, newest first: beginning of a format's name -> oldest compute capability x 10 with a kernel."""


class ServingEngine(Struct, frozen=True):
    """One row of `SERVING`. Where versions differ, the newest stands first."""

    module: str  # imported when asked for
    oldest: Version  # that its facts cover
    newest: Version
    default: Version  # assumed when none is named
    reads: frozenset[str]  # fields of the plan that it looks at: anything else that is not its default is refused
    limit: str = ""  # of its settings: how many sequences one copy runs at once
    step: str = ""  # of its settings: tokens of prompts that one forward takes
    runs_pipelines: bool = False  # of diffusion; the others run language models
    is_ggml: bool = False
    usual_fraction: float = 0.9  # of the card for weights and cache, or for the cache, where nobody says it
    splits: bool = False  # over tensor and pipeline ranks; the others put layers on one card after the other
    whole_fp8_blocks: bool = False  # weights in blocks of FP8 are refused where a rank would have part of one
    copies_share_experts: bool = False  # data-parallel ranks hold one set of them, asked or not
    divides_dense: bool = False  # data-parallel ranks that share experts divide dense blocks and the head, too
    spread_by: str = "tp"  # the degree that GPUs beyond the first go to, where nobody says
    formats: tuple[str, ...] = ()  # of weights, that it loads, the most precise first
    gguf: frozenset[str] = frozenset()  # types of ggml that it has kernels for, by name or by `GgmlType.source`
    kv_dtypes: tuple[str, ...] = ()  # of its cache; () it checks its own
    beyond: Beyond = Beyond("")
    blocks: tuple[Blocks, ...] = ()
    lora_ranks: tuple[tuple[Version, tuple[int, ...]], ...] = ()  # largest ranks that it can be started with
    drafts: Mapping[str, tuple[Releases, ...]] = {}  # kind -> releases that have it; others are in all of them
    same_vocabulary: bool = False  # a draft whose vocabulary has another size is refused
    support: tuple[Support, ...] = ()
    format_sm: OldestSm = ()
    cache_sm: OldestSm = ()


_ANY: Final = frozenset(("tp", "weights", "kv_dtype"))
_SERVER: Final = _ANY | {
    "pp", "dp", "attention_dp", "expert_parallel", "dtype", "memory_fraction", "cache_bytes", "max_sequences",
    "batched_tokens", "block_tokens", "lora_slots", "lora_rank", "draft", "prefix_caching",
}
_GGML: Final = _ANY | {"v_dtype", "max_sequences", "micro_batch", "gpu_layers", "attention"}

_SERVER_FORMATS: Final = ("bf16", "fp8", "int8", "awq-int4", "gptq-int3", "gptq-int2")
_GGML_FORMATS: Final = "bf16", "q8_0", "q6_k", "q5_k", "q4_k", "iq4_xs", "q3_k", "iq3_xxs", "q2_k", "iq2_xxs", "iq1_s",
_SERVER_GGUF: Final = frozenset(
    (
        "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q8_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq1_m", "iq1_s",
        "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs", "iq4_nl",
    )
)
_GGML_CARDS: Final = (Support(ALWAYS, 50, INSTINCT + RADEON + OLDER_AMD, others=True),)
_RANKS: Final = (8, 16, 32, 64, 128, 256)
_MARLIN: Final = {"int8-bnb": 70, "int8": 75, "awq": 75, "nf4": 70, "gptq": 60}
NEVER: Final = Releases((1 << 16,))

SERVING: Final[dict[str, ServingEngine]] = {
    "vllm": ServingEngine(
        "vramcast.engines.vllm", (0, 2), (0, 33), (0, 19), _SERVER | {"graphs", "dcp"}, "max_sequences",
        "batched_tokens", splits=True, copies_share_experts=True, whole_fp8_blocks=True,
        formats=_SERVER_FORMATS, gguf=_SERVER_GGUF,
        kv_dtypes=("auto", "bf16", "fp16", "fp32", "fp8", "fp8_e4m3", "fp8_e5m2"),
        beyond=Beyond("vLLM refuses such a --max-model-len", "VLLM_ALLOW_LONG_MAX_MODEL_LEN"),
        blocks=(
            Blocks((0, 18), lambda size: size % 16 == 0, "a multiple of 16"),
            Blocks((0, 11, 1), lambda size: size in (16, 32, 64, 128, 256), "16, 32, 64, 128 or 256"),
            Blocks((0, 8), lambda size: size in (16, 32, 64, 128), "16, 32, 64 or 128"),
            Blocks(ALWAYS, lambda size: size in (8, 16, 32), "8, 16 or 32"),
        ),
        lora_ranks=(((0, 11, 1), (1, *_RANKS, 320, 512)), ((0, 8), (*_RANKS, 320, 512)), (ALWAYS, _RANKS)),
        drafts={"model": (Releases(ALWAYS, (0, 11)), Releases((0, 15)))}, same_vocabulary=True,
        support=(
            Support((0, 31), 75, INSTINCT + RADEON, ported=True), Support(ALWAYS, 70, INSTINCT + RADEON, ported=True),
        ),
        format_sm=(
            ((0, 14), _MARLIN | {"fp8": 75, "nvfp4": 75, "mxfp4": 80, "int4": 75}),
            ((0, 12), _MARLIN | {"fp8": 80, "nvfp4": 80, "mxfp4": 80, "int4": 75}),
            (ALWAYS, _MARLIN | {"fp8": 80, "nvfp4": 80, "mxfp4": 80, "int4": 80}),
        ),
        cache_sm=(((0, 8), {"fp8": 75}),),
    ),
    "sglang": ServingEngine(
        "vramcast.engines.sglang", (0, 3), (0, 5, 23), (0, 5, 23), _SERVER | {"graphs"}, "max_running", "chunk",
        splits=True, whole_fp8_blocks=True, divides_dense=True,
        formats=_SERVER_FORMATS, gguf=_SERVER_GGUF,
        kv_dtypes=("auto", "bf16", "fp16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp4"),
        beyond=Beyond("SGLang refuses such a --context-length", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"),
        drafts={
            "eagle": (Releases((0, 4, 2)),), "mtp": (Releases((0, 4, 4)),), "eagle3": (Releases((0, 4, 5)),),
            "model": (Releases((0, 5, 2)),), "ngram": (Releases((0, 5, 3)),), "medusa": (NEVER,),
        },
        support=(Support(ALWAYS, 75, INSTINCT, ported=True),),
        format_sm=((ALWAYS, _MARLIN | {"fp8": 80, "nvfp4": 100, "mxfp4": 80, "int4": 80}),),
    ),
    "tensorrt-llm": ServingEngine(
        "vramcast.engines.tensorrt_llm", (0, 5), (1, 2), (1, 1), _SERVER, "sequences", "tokens", splits=True,
        formats=("bf16", "fp8", "int8", "nvfp4", "awq-int4"),
        kv_dtypes=("auto", "bf16", "fp16", "fp8", "int8", "nvfp4"),
        beyond=Beyond("TensorRT-LLM cuts max_seq_len to that", "TLLM_ALLOW_LONG_MAX_MODEL_LEN", since=(1,)),
        blocks=(Blocks(ALWAYS, lambda size: size & (size - 1) == 0, "a power of two"),),
        support=(Support((0, 18), 80), Support(ALWAYS, 70)),
        format_sm=((ALWAYS, {"fp8": 89, "nvfp4": 100}),), cache_sm=((ALWAYS, {"fp8": 89, "nvfp4": 100}),),
    ),
    "tgi": ServingEngine(
        "vramcast.engines.text_generation_inference", (2, 0), (3, 3, 7), (3, 3, 7),
        _ANY | {"dtype", "memory_fraction", "max_sequences", "batched_tokens", "prefix_caching", "graphs", "draft"},
        "", "tokens", splits=True, usual_fraction=1.0, formats=("bf16", "fp8", "int8", "nf4", "awq-int4"),
        kv_dtypes=("auto", "bf16", "fp16", "fp8", "fp8_e4m3", "fp8_e5m2"),
        beyond=Beyond("TGI cuts max-total-tokens to that", since=(3,)), support=(Support(ALWAYS, 70, INSTINCT),),
        drafts=dict.fromkeys(("model", "eagle", "eagle3", "mtp", "medusa"), (NEVER,)),
        format_sm=((ALWAYS, {"fp8": 80, "awq": 75}),), cache_sm=((ALWAYS, {"fp8": 80}),),
    ),
    "lmdeploy": ServingEngine(
        "vramcast.engines.lmdeploy", (0, 2, 1), (0, 16), (0, 16),
        _ANY | {"dp", "dtype", "memory_fraction", "max_sequences", "batched_tokens", "block_tokens", "prefix_caching",
                "graphs"},
        "sequences", "tokens", splits=True, usual_fraction=0.8, formats=("bf16", "fp8-block", "awq-int4"),
        kv_dtypes=("auto", "bf16", "fp16", "int8", "int4"), blocks=(Blocks(
            ALWAYS, lambda size: size & (size - 1) == 0, "a power of two"),),
        beyond=Beyond("LMDeploy takes such a --session-len"), support=(Support(ALWAYS, 70),),
        format_sm=((ALWAYS, {"fp8": 70, "awq": 70}),),
    ),
    "llama.cpp": ServingEngine(
        "vramcast.engines.llamacpp", (1000,), (9999,), (7000,), _GGML, "slots", "tokens", is_ggml=True,
        formats=_GGML_FORMATS, gguf=frozenset(("ggml",)),
        beyond=Beyond("llama-server cuts every slot to that"), support=_GGML_CARDS,
    ),
    "ik_llama.cpp": ServingEngine(
        "vramcast.engines.llamacpp", (3400,), (4060,), (3750,), _GGML, "slots", "tokens", is_ggml=True,
        formats=_GGML_FORMATS, gguf=frozenset(("ggml", "ik")),
        beyond=Beyond("its context is allocated nevertheless"), support=_GGML_CARDS,
    ),
    "transformers": ServingEngine(
        "vramcast.engines.transformers.deploy", (4, 30), (5, 23), (5, 23),
        _ANY | {"pp", "dtype", "attention", "offload", "draft", "lora_slots"}, spread_by="pp",
        formats=("bf16", "fp8", "int8-bnb", "nf4-dq", "awq-int4", "gptq-int3", "gptq-int2"),
        beyond=Beyond("transformers only warns"), support=(Support(ALWAYS, 50, INSTINCT + RADEON, ported=True),),
        format_sm=((ALWAYS, {"fp8": 89, "mxfp4": 75, "awq": 75}),),
    ),
    "diffusers": ServingEngine(
        "vramcast.engines.diffusers", (0, 20), (0, 42), (0, 35),
        frozenset(("weights", "dtype", "offload", "tiling", "slicing")), runs_pipelines=True,
    ),
    "stable-diffusion.cpp": ServingEngine(  # its versions count its commits
        "vramcast.engines.stable_diffusion_cpp", (134,), (243,), (211,),
        frozenset(("weights", "attention", "offload", "tiling")), runs_pipelines=True,
    ),
}
"""Engines by name, as they are offered."""
