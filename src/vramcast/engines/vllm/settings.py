"""What vLLM chooses where a question leaves it open, by version, card and network; its own options.

[args] vllm-project/vllm vllm/engine/arg_utils.py `EngineArgs.get_batch_defaults`, `_set_default_args_v0`
[sched] vllm/config/scheduler.py `SchedulerConfig.__post_init__`
[cache] vllm/config/cache.py `CacheConfig.gpu_memory_utilization`
[runner] vllm/config/vllm.py `VllmConfig.use_v2_model_runner`, `max_concurrent_batches` All read in the releases 0.2.0
to 0.33.0; a table's version is the first release that has the value.
[select] vllm-project/vllm vllm/model_executor/layers/quantization/mxfp4.py `get_mxfp4_backend`, since 0.18
fused_moe/oracle/mxfp4.py `select_mxfp4_moe_backend`, read in the wheels 0.11.0 to 0.33.0
[attention] vllm/platforms/cuda.py `get_attn_backend_cls`, since 0.11 `_get_backend_priorities`; what each asks of a
card: `supports_compute_capability` of vllm/v1/attention/backends/; read at 0.9.2 to 0.33.0
[triton] triton_kernels, which 0.11.1 requires beside torch 2.9 (images have it; wheels bring it since 0.12, as
vllm/third_party/triton_kernels). Its layout keeps the scales it was made of up to 0.24
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from vramcast.domain.cublas import workspace_bytes
from vramcast.domain.device import Gpu
from vramcast.domain.model import Attention, LinearAttention, Mamba, Model, MoE, MultiLatentAttention
from vramcast.domain.serving import ServeJob, Version
from vramcast.domain.version import last_patch
from vramcast.engines.serving.rank import WIDTHS, dtype_of, kv_dtype_of
from vramcast.engines.serving.requests import ALLOW_LONG, FLAG, Known, generates, sees, typed_options
from vramcast.engines.serving.weights import MARLIN, Packing
from vramcast.errors import InvalidSpec
from vramcast.timing.work import VLLM_AHEAD_SINCE
from vramcast.units import GIB


class Options(Struct, frozen=True):
    """Options beside the plan's; None leaves the choice to the version."""

    v1: bool | None = None  # VLLM_USE_V1: which of the two engines, 0.7 to 0.10
    offline: bool = False  # the `LLM` class instead of an API server: other default batches
    hybrid_manager: bool | None = None  # False: --disable-hybrid-kv-cache-manager
    language_model_only: bool = False  # towers are not loaded
    images: int | None = None  # --limit-mm-per-prompt image=N
    videos: int | None = None  # the same of videos
    graph_sizes: int | None = None  # batch sizes captured, where the user lists them
    largest_graph: int | None = None  # --max-cudagraph-capture-size
    mm_encoder_tp_mode: str = "weights"  # "data": towers are whole on every rank, which share the images
    graphs_in_budget: bool | None = None  # VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS
    flashinfer_sampler: bool | None = None  # VLLM_USE_FLASHINFER_SAMPLER
    mamba_ssm_cache_dtype: str = "auto"  # --mamba-ssm-cache-dtype: of recurrent states
    allow_long: bool = False  # VLLM_ALLOW_LONG_MAX_MODEL_LEN
    attention_backend: str | None = None  # --attention-backend, before 0.14 VLLM_ATTENTION_BACKEND
    chunked_prefill: bool | None = None  # --enable-chunked-prefill: whether prompts are cut where a step ends


LATENT_BACKENDS: Final = {
    "FLASHMLA": 90, "FLASH_ATTN_MLA": 90, "FLASHINFER_MLA": 100, "CUTLASS_MLA": 100, "TRITON_MLA": 0,
}
ATTENTION_BACKENDS: Final = {"FLASH_ATTN": 80, "FLASHINFER": 75, "TRITON_ATTN": 0, "XFORMERS": 70, **LATENT_BACKENDS}
"""Kernels of attention, those of latent attention apart -> the least compute capability that has them [attention]."""

BACKEND_ARGUMENT_SINCE: Final[Version] = (0, 14)
"""Before, a variable of the environment chose the kernels [vllm/engine/arg_utils.py]."""

FIRST_ENGINE_ALONE: Final = "XFORMERS"
"""Kernels for which 0.8 to 0.10 take the V0 engine [vllm/engine/arg_utils.py `_is_v1_supported_oracle`]."""

STATE_WIDTHS: Final = {"float32": 4, "float16": 2, "bfloat16": 2}
"""dtype of recurrent states, as vLLM names it -> bytes of an element."""

KNOWN: Final[dict[str, Known]] = {
    "v1": FLAG, "offline": FLAG, "hybrid-manager": FLAG,
    "language-model-only": Known(bool, about="towers"), "images": Known(int, least=0, most=1 << 16, about="towers"),
    "videos": Known(int, least=0, most=1 << 16, about="towers"),
    "graph-sizes": Known(int, most=1 << 16), "largest-graph": Known(int, most=1 << 16),
    "mm-encoder-tp-mode": Known(str, choices=("weights", "data"), about="towers"), "graphs-in-budget": FLAG,
    "flashinfer-sampler": FLAG, "chunked-prefill": FLAG,
    "attention-backend": Known(str, choices=tuple(ATTENTION_BACKENDS), about="attention"),
    "mamba-ssm-cache-dtype": Known(str, choices=("auto", *STATE_WIDTHS), about="states"), ALLOW_LONG: FLAG,
}
"""Option as users write it -> what its value may be."""


SHARES_IMAGES: Final = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "llama4")
"""Beginnings of the families whose towers can be whole on every rank, `supports_encoder_tp_data`; others stay divided
[vllm/config/model.py, wheels 0.11.0 to 0.33.0]."""

OF_TOWERS: Final = tuple(name for name, known in KNOWN.items() if known.about == "towers")


def options_of(job: ServeJob) -> Options:
    """The options of a job.

    Raises: UnknownName for an option that does not exist, InvalidSpec for a value that it cannot have
    """
    found: dict[str, Any] = {name.replace("-", "_"): value for name, value in typed_options(job, KNOWN).items()}
    if not job.model.family.startswith(SHARES_IMAGES):
        found.pop("mm_encoder_tp_mode", None)
    return Options(**found)


V1_SINCE: Final[Version] = (0, 8)
"""First version whose default is the V1 engine."""

V1_ALONE_SINCE: Final[Version] = (0, 11)
"""From then on there is no other."""

FLASHINFER_HEADS: Final = (64, 128, 256)
FLASHINFER_NOPE: Final = (64, 128, 192)
"""Widths of heads that FlashInfer's kernels are compiled for, of latent attention without those of positions
[attention] [vllm/v1/attention/backends/mla/flashinfer_mla.py `supports_combination`]."""

FLASHINFER_SINCE: Final[Version] = (0, 9)
FLASHINFER_LATENT_SINCE: Final[Version] = (0, 15)
FLASHINFER_WIDE_SINCE: Final[Version] = (0, 27)
"""They are the first on data-centre Blackwell, of latents CUTLASS's before; those for heads of 512, Turing's not."""

PRIORITIES_SINCE: Final[Version] = (0, 11, 1)
"""Kernels are asked in order whether they fit [attention]; before, FlashAttention's or none of FlashInfer's."""

V0_ONLY: Final = frozenset({"mllama"})
"""Families that only the V0 engine has, `SupportsV0Only` [vllm/model_executor/models/mllama.py]."""


class Batch(Struct, frozen=True):
    """Default batch of a class of cards."""

    sequences: int
    server_tokens: int  # API server
    offline_tokens: int  # `LLM` class


HUGE: Final = Batch(1024, 16384, 16384)
LARGE: Final = Batch(1024, 8192, 16384)
SMALL: Final = Batch(256, 2048, 8192)

HUGE_CARD: Final = 160 * GIB
LARGE_CARD: Final = 70 * GIB

HUGE_SINCE: Final[Version] = (0, 28)
A100_IS_SMALL_SINCE: Final[Version] = (0, 9)
GB10_IS_SMALL_SINCE: Final[Version] = (0, 33)
"""[args]; GB10 shares its memory with the host and has the compute of a small card."""

V0_SEQUENCES: Final = 256
V0_TOKENS: Final = 2048
V0_POOLING_TOKENS: Final = 32768
V0_IMAGE_TOKENS: Final = 5120
V0_CHUNKS_ABOVE: Final = 32768
V0_CHUNKS_SINCE: Final[Version] = (0, 5, 3)
V0_LATENT_WHOLE_SINCE: Final[Version] = (0, 8)
"""Unasked the V0 engine takes whole prompts, but where the context is longer than that, since then; not with latent
attention, since then [args]."""

V0_CHUNKS: Final[tuple[tuple[Version, int], ...]] = (((0, 6, 5), 2048), ((0, 4, 2), 512), ((0, 0), 768))
"""First version -> tokens of its steps where it cuts prompts [sched; wheels 0.4.1 to 0.8.5]."""

CHUNKS_ASKED_SINCE: Final[Version] = (0, 11, 1)
"""Before, the V1 engine cuts prompts whatever is asked [args `_set_default_args_v1`]."""

FRACTION_SINCE: Final[tuple[tuple[Version, float], ...]] = (((0, 20), 0.92), ((0, 0), 0.90))
"""Version -> default gpu_memory_utilization [cache]."""

GRAPHS_IN_BUDGET_SINCE: Final[Version] = (0, 20)
"""VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS is on by default [vllm/envs.py]."""

GRAPHS_LOGGED_SINCE: Final[Version] = (0, 27)
"""The activation peak logged holds the estimate for graphs too [vllm/v1/worker/gpu_worker.py]."""

RUNNER_2_SINCE: Final[Version] = (0, 29)
RUNNER_2_DENSE_SINCE: Final[Version] = (0, 25)
"""The second model runner: for every network, and before that for dense ones that are not hybrid [runner]."""

MAMBA_PREFIXES_SINCE: Final[Version] = (0, 26)
"""Prefix caching is the default for networks with recurrent layers too [vllm/config/model.py]."""

BLOCK_TOKENS: Final = 16

TORCH_SINCE: Final[tuple[tuple[Version, Version], ...]] = (
    ((0, 33), (2, 14)), ((0, 27), (2, 13)), ((0, 20), (2, 11)), ((0, 17), (2, 10)), ((0, 11), (2, 8)),
    ((0, 8), (2, 6)), ((0, 0), (2, 4)),
)
"""Version -> the torch that its wheels require, from that version on at least [metadata of the wheels]."""


class Settings(Struct, frozen=True):
    """One deployment's settings, every default filled in."""

    version: Version
    v1: bool
    context: int  # longest sequence [tokens]
    runner_2: bool  # the second model runner, which samples from 16-bit logits
    memory_fraction: float
    max_sequences: int
    batched_tokens: int
    block_tokens: int
    width: int  # of an activation [bytes]
    in_flight: int  # tokens that steps under way can write
    eager: bool  # no CUDA graphs
    prefix_caching: bool
    blas_workspace: int  # of cuBLAS [bytes]
    attention: str  # whose kernels attend
    chunks: bool  # a prompt may be cut where a step is full
    options: Options

    @property
    def graphs_in_budget(self) -> bool:
        """Whether the memory of CUDA graphs is taken off the cache."""
        by_default = self.version >= GRAPHS_IN_BUDGET_SINCE
        return self.v1 and (by_default if self.options.graphs_in_budget is None else self.options.graphs_in_budget)

    @property
    def graphs_logged(self) -> bool:
        """Whether the activation peak logged holds the graphs."""
        return self.v1 and self.version >= GRAPHS_LOGGED_SINCE


def settings_of(job: ServeJob) -> Settings:
    """The settings a job runs with.

    Raises: InvalidSpec for options that vLLM does not have
    """
    version = last_patch(job.version)
    plan, options = job.plan, options_of(job)
    backend = options.attention_backend
    first_alone = backend == FIRST_ENGINE_ALONE and version < V1_ALONE_SINCE
    default = version >= V1_SINCE and job.model.family not in V0_ONLY and not first_alone
    v1 = default if options.v1 is None else options.v1
    if v1 and job.model.family in V0_ONLY:
        raise InvalidSpec("vLLM's V1 engine has no {}; leave v1=true out", job.model.name)
    if v1 and backend == FIRST_ENGINE_ALONE:
        raise InvalidSpec("attention-backend {}: vLLM's V1 engine does not have it", backend)
    chunks = _chunks(job, options.chunked_prefill, v1=v1)
    sequences, tokens = _batch(job, options, v1=v1, chunks=chunks)
    if tokens < job.context and not chunks and generates(job.model):
        raise InvalidSpec(
            "batched-tokens={}: vLLM refuses steps shorter than the context of {:,} where it does not cut prompts; "
            "leave it out, or ask for chunked prefill", tokens, job.context
        )
    second = v1 and uses_runner_2(job.model, version)
    overlapped = v1 and version >= VLLM_AHEAD_SINCE
    batches = plan.pp + 1 if second and overlapped else max(2 if overlapped else 1, plan.pp)
    return Settings(
        version=version,
        v1=v1,
        context=job.context,
        runner_2=second,
        memory_fraction=plan.memory_fraction or next(value for since, value in FRACTION_SINCE if version >= since),
        max_sequences=sequences,
        batched_tokens=tokens,
        block_tokens=plan.block_tokens or BLOCK_TOKENS,
        width=WIDTHS[dtype_of(job.model, plan.dtype)],
        in_flight=tokens * (batches if version >= MAMBA_PREFIXES_SINCE else 1),
        eager=not plan.graphs,
        prefix_caching=_prefix_caching(job, v1=v1),
        blas_workspace=workspace_bytes(
            job.cluster.gpu.compute_capability, torch=next(torch for since, torch in TORCH_SINCE if version >= since)
        ),
        attention=attention_backend(job, backend),
        chunks=chunks,
        options=options,
    )


def attention_backend(job: ServeJob, asked: str | None) -> str:
    """The kernels of attention [attention].

    Raises: InvalidSpec for kernels of other networks or cards
    """
    model, gpu = job.model, job.cluster.gpu
    mixers = [run.layer.mixer for run in model.main.runs]
    latent = next((mixer for mixer in mixers if isinstance(mixer, MultiLatentAttention)), None)
    if asked is None and latent:
        if gpu.sm not in BLACKWELL or latent.indexer_heads:  # sparse: FlashMLA's on both
            return "FLASH_ATTN_MLA"
        fits = latent.qk_nope_dim in FLASHINFER_NOPE and last_patch(job.version) >= FLASHINFER_LATENT_SINCE
        return "FLASHINFER_MLA" if fits else "CUTLASS_MLA"
    if asked is None:
        return "FLASHINFER" if _takes_flashinfer(job) else "FLASH_ATTN"
    least = ATTENTION_BACKENDS[asked]
    if latent and asked not in LATENT_BACKENDS:
        raise InvalidSpec("attention-backend {}: {} attends by latents, which it does not read", asked, model.name)
    if asked in LATENT_BACKENDS and not latent:
        raise InvalidSpec("attention-backend {}: {} has no latents, which it reads", asked, model.name)
    if gpu.vendor != "NVIDIA" or (gpu.sm or least) < least:
        raise InvalidSpec("attention-backend {}: {} does not run it", asked, gpu.name)
    return asked


def _takes_flashinfer(job: ServeJob) -> bool:
    """Whether FlashInfer's kernels are the first that fit card, heads and cache: but on data-centre Blackwell they are
    second to FlashAttention's, which want Ampere and read caches in FP8 on Hopper alone [attention]."""
    sm, mixers = job.cluster.gpu.sm, [run.layer.mixer for run in job.model.main.runs]
    heads, version = [mixer for mixer in mixers if isinstance(mixer, Attention)], last_patch(job.version)
    wide = version >= FLASHINFER_WIDE_SINCE
    widths = (*FLASHINFER_HEADS, 512) if wide else FLASHINFER_HEADS
    if (
        not sm or not heads or not generates(job.model) or version < FLASHINFER_SINCE
        or any(one.head_dim not in widths or one.kv_norm for one in heads)  # DeepSeek V4's are FlashMLA's
    ):
        return False
    unfit = sm < ATTENTION_BACKENDS["FLASH_ATTN"] or (kv_dtype_of(job).startswith("fp8") and sm != HOPPER)
    second = unfit and sm >= (80 if wide else ATTENTION_BACKENDS["FLASHINFER"]) and not any(one.sinks for one in heads)
    return sm in BLACKWELL or (second and version >= PRIORITIES_SINCE)


def _batch(job: ServeJob, options: Options, *, v1: bool, chunks: bool) -> tuple[int, int]:
    """Sequences and tokens of the largest batch."""
    plan, model = job.plan, job.model
    if v1:
        batch = card_batch(job.cluster.gpu, job.version)
        sequences = plan.max_sequences or batch.sequences
        tokens = batch.offline_tokens if options.offline else batch.server_tokens
        if not (chunks and generates(model)):
            tokens = max(tokens, job.context)  # nothing that reads both ways is cut into chunks
    else:
        sequences = plan.max_sequences or V0_SEQUENCES
        cut = next(size for since, size in V0_CHUNKS if last_patch(job.version) >= since)
        tokens = cut if chunks else max(V0_TOKENS, job.context)
        tokens = max(tokens, V0_IMAGE_TOKENS if sees(model) else 0, V0_POOLING_TOKENS if not generates(model) else 0)
    tokens = plan.batched_tokens or min(tokens, sequences * job.context)
    return min(sequences, tokens), tokens


def card_batch(gpu: Gpu, version: Version) -> Batch:
    """The class of a card [args]."""
    if version >= HUGE_SINCE and gpu.visible_bytes >= HUGE_CARD:
        return HUGE
    small = (version >= A100_IS_SMALL_SINCE and gpu.name.startswith("a100")) or (
        version >= GB10_IS_SMALL_SINCE and gpu.sm == 121
    )
    return LARGE if gpu.visible_bytes >= LARGE_CARD and not small else SMALL


def _chunks(job: ServeJob, asked: bool | None, *, v1: bool) -> bool:
    """Whether prompts are cut into chunks."""
    version = last_patch(job.version)
    if v1:
        return asked is not False or version < CHUNKS_ASKED_SINCE
    if asked is not None:
        return asked
    if job.plan.batched_tokens and job.plan.batched_tokens < job.context:
        return True  # the only way to have such steps
    plain = not (sees(job.model) or job.plan.lora_slots or job.plan.draft)
    mixers = [run.layer.mixer for run in job.model.main.runs]
    windows = any(isinstance(mixer, Attention) and mixer.window for mixer in mixers)
    latent = version >= V0_LATENT_WHOLE_SINCE and any(isinstance(mixer, MultiLatentAttention) for mixer in mixers)
    unasked = version >= V0_CHUNKS_SINCE and job.context > V0_CHUNKS_ABOVE
    return unasked and plain and not windows and not latent and generates(job.model)


def _prefix_caching(job: ServeJob, *, v1: bool) -> bool:
    if job.plan.prefix_caching is not None:
        return job.plan.prefix_caching
    return v1 and (job.version >= MAMBA_PREFIXES_SINCE or not is_recurrent(job.model))


def uses_runner_2(model: Model, version: Version) -> bool:
    """Whether the second model runner is the default."""
    if version >= RUNNER_2_SINCE:
        return True
    dense = not is_recurrent(model) and not any(isinstance(run.layer.channel, MoE) for run in model.main.runs)
    return version >= RUNNER_2_DENSE_SINCE and dense and generates(model)


def is_recurrent(model: Model) -> bool:
    """Whether any layer keeps a state instead of keys and values."""
    return any(isinstance(run.layer.mixer, (Mamba, LinearAttention)) for run in model.main.runs)


HOPPER: Final = 90
BLACKWELL: Final = (100, 103)

TRITON: Final[tuple[tuple[Version, Packing], ...]] = (
    ((0, 25), Packing("Triton", 1, 64, values=(32, 16), scales=256, bias_width=4)),
    ((0, 22), Packing("Triton", 1, 64, values=(32, 16), scales=256, own_scales=True, bias_width=4)),
    ((0, 17), Packing("Triton", 1, 64, values=(64, 64), scales=256, own_scales=True, bias_width=4)),
    ((0, 11, 1), Packing("Triton", 1, 64, values=(32, 16), scales=256, own_scales=True, bias_width=4)),
)
FLASHINFER: Final[tuple[tuple[Version, Packing], ...]] = (
    ((0, 27), Packing("FlashInfer", 256, 128, bias_width=4)),
    ((0, 10, 1), Packing("FlashInfer", 256, 256, bias_width=4)),
)
ROCM: Final = Packing("Triton", 256, 256, bias_width=4)
"""Layouts by the first version that has them; Marlin's is that of other cards, versions and adapters [select]."""

WITH_BIASES: Final = frozenset({"gpt_oss"})
"""Families whose activation Triton's and FlashInfer's kernels were written for."""


def packing_of(model: Model, gpu: Gpu, version: Version, *, adapters: bool) -> Packing:
    """The layout of a network's mxfp4 experts.

    Args:
        adapters: whether there are slots for them
    """
    if model.family not in WITH_BIASES or adapters:
        return MARLIN
    if gpu.vendor == "AMD":
        return ROCM
    table = TRITON if gpu.sm == HOPPER else FLASHINFER if gpu.sm in BLACKWELL else ()
    return next((packing for since, packing in table if version >= since), MARLIN)
