"""TensorRT-LLM: a fraction of what is free after weights, activations and communication holds the cache.

What a process takes beside weights, activations and cache is measured.

[args] NVIDIA/TensorRT-LLM tensorrt_llm/llmapi/llm_args.py `KvCacheConfig`, `BuildConfig`; from 1.0 on the PyTorch
backend is the default, before a TensorRT engine is built
[blocks] tensorrt_llm/_torch/pyexecutor/py_executor_creator.py: blocks of 64 tokens for latent attention on Hopper;
tensorrt_llm/_torch/pyexecutor/resource_manager.py `KVCacheManager.calculate_max_num_blocks`: all ranks take the fewest
tokens of any
[creator] NVIDIA/TensorRT-LLM tensorrt_llm/_torch/pyexecutor/_util.py `configure_kv_cache_capacity`: everything the
driver shows in use beyond PyTorch's live tensors counts against the cache: context, NCCL, graphs, what the allocator
cannot give back; NVIDIA/TensorRT-LLM tensorrt_llm/_torch/pyexecutor/_util.py
`KvCacheCreator.configure_kv_cache_capacity`: a forward of max_num_tokens runs first, and the cache takes a fraction of
what its peak leaves; a size given in bytes or tokens lowers it. Where an input processor has `get_dummy_prompt`, that
forward reads an image too (`_create_dummy_mm_context_request`)
[decoder] cpp/tensorrt_llm/runtime/gptDecoderBatched.cpp: buffers of max_batch_size x vocabulary
[share] cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp `BlockManager::calculateWindowSizeToShare`: windows share the
bytes by window times bytes of a token
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from vramcast.domain.device import Gpu
from vramcast.domain.job import Phase, RankProgram
from vramcast.domain.model import Attention, MultiLatentAttention
from vramcast.domain.program import Alloc, Basis, Category, Program, Tensor, TensorsOf, extent
from vramcast.domain.serving import Budget, Deployment, ServeJob, ServingRank, Version
from vramcast.engines.serving.checks import check_degrees
from vramcast.engines.serving.rank import draft_mixers, dtype_of, forward_step, job_formats, layout_of, load_program
from vramcast.engines.serving.requests import ALLOW_LONG, FLAG, Known, refuse_encoders, sees, typed_options
from vramcast.engines.serving.stages import Contents, Pools, Stage, contents_of, even_stages, fewest_tokens
from vramcast.engines.serving.weights import total
from vramcast.errors import Note, joined
from vramcast.units import GIB

PYTORCH_SINCE: Final[Version] = (1, 0)

DEFAULT_FRACTION: Final = 0.9
"""`free_gpu_memory_fraction` [args]."""

DEFAULT_TOKENS: Final = 8192
"""`max_num_tokens` [args]."""

DEFAULT_SEQUENCES: Final = 2048
"""`max_batch_size` [args]."""

PYTORCH_BLOCK: Final = 32
BUILT_BLOCK: Final = 64
OLD_BUILT_BLOCK: Final = 128
"""Tokens of a block: of the PyTorch backend, of builds from 0.9 on, of older ones [args]."""

HOPPER: Final = 90

EXPERTS_BY: Final = ("AUTO", "CUTLASS", "TRTLLM")
"""Libraries of the products of experts without buffers of their own. AUTO is CUTLASS but for gpt-oss, of whose format
one kernel was measured [tensorrt_llm/_torch/model_config.py `resolve_moe_backend`]."""

OPTIONS: Final[dict[str, Known]] = {
    ALLOW_LONG: FLAG,  # TLLM_ALLOW_LONG_MAX_MODEL_LEN
    "attention-dp-timeout-iters": Known(int, least=0, most=1 << 16),  # steps of waiting until every rank has a prompt
    "batch-wait-timeout-iters": Known(int, least=0, most=1 << 16),  # steps that prompts wait for more of them
    "batch-wait-max-tokens-ratio": Known(float, least=0, most=1),  # of max_num_tokens: as many wait no longer
    "max-tokens": Known(int),  # KvCacheConfig.max_tokens
    "moe-backend": Known(str, choices=EXPERTS_BY, about="experts"),  # MoeConfig.backend
    # KvCacheConfig.max_attention_window as the network has them; else all at full length
    "sliding-windows": Known(bool, about="windows"),
}
"""Engine options and what their values may be."""


class Settings(NamedTuple):
    """One deployment's settings, every default filled in."""

    pytorch: bool  # else a TensorRT engine
    fraction: float
    tokens: int  # of the step that is run before the cache is sized
    sequences: int
    block_tokens: int
    kv_dtype: str  # "auto": as activations
    windows: bool  # sliding windows have blocks of their own
    max_tokens: int | None


def settings_of(job: ServeJob) -> Settings:
    """The settings a job runs with.

    Raises: InvalidSpec or UnknownName for a choice that TensorRT-LLM does not offer
    """
    plan, options = job.plan, typed_options(job, OPTIONS)
    limit = options.get("max-tokens")
    return Settings(
        pytorch=job.version >= PYTORCH_SINCE,
        fraction=plan.memory_fraction or DEFAULT_FRACTION,
        tokens=plan.batched_tokens or DEFAULT_TOKENS,
        sequences=plan.max_sequences or DEFAULT_SEQUENCES,
        block_tokens=plan.block_tokens or _block(job),
        kv_dtype=plan.kv_dtype,
        windows=bool(options.get("sliding-windows", False)),
        max_tokens=None if limit is None else int(limit),
    )


def experts_by(job: ServeJob) -> str:
    """What the name of a format ends with in tables of measured experts."""
    return "" if job.engine_options.get("moe-backend") == "TRTLLM" else "-cutlass"


def _block(job: ServeJob) -> int:
    if job.version < PYTORCH_SINCE:
        return BUILT_BLOCK if job.version >= (0, 9) else OLD_BUILT_BLOCK
    latent = any(isinstance(run.layer.mixer, MultiLatentAttention) for run in job.model.main.runs)
    return BUILT_BLOCK if latent and job.cluster.gpu.sm == HOPPER else PYTORCH_BLOCK


class Runtime(NamedTuple):
    """What is in use beyond live tensors, the CUDA context left out [GiB]."""

    alone: float  # libraries, workspaces and graphs of one rank
    pair: float  # NCCL and all-reduce workspaces of two ranks
    per_doubling: float  # for each further doubling
    scaled: float  # share of block-scaled weights that loading them leaves behind


RUNTIMES: Final[dict[str, Runtime]] = {
    "Hopper": Runtime(1.45, 1.4, 0.8, 0.02),
    "Blackwell": Runtime(2.5, 1.33, 0.77, 0.062),
}
"""Generation -> runtime of the PyTorch backend; other generations as Hopper. From 37 measured capacities of
Llama-3.1-8B (bf16) and Qwen3-32B-FP8 on H100 and GB300, 1 to 4 ranks, max_num_tokens 4096 and 8192: whole blocks and
whole sequences fix each number to 0.1 GiB on GB300, to 0.5 GiB for one H100. On Blackwell block scales are rounded to
powers of two while loading, through wider copies of the weights."""

BUILT_RUNTIME: Final = Runtime(0.0, 1.4, 0.8, 0.0)
"""Of a TensorRT engine: one start-up log on A100 leaves nothing beside context and activations."""

DECODER_BYTES: Final = 27
"""Bytes per sequence and vocabulary entry of a TensorRT runtime's buffers and decoder: logits, probabilities and their
sorting [decoder]; from a start-up log of Qwen2.5-0.5B with 2,048 sequences."""

BLOCK_SCALED: Final = ("fp8-block", "nvfp4", "mxfp4")


def runtime_of(gpu: Gpu, *, pytorch: bool) -> Runtime:
    """The row of a card."""
    if not pytorch:
        return BUILT_RUNTIME
    return RUNTIMES.get(gpu.arch.split()[0], RUNTIMES["Hopper"])


def beside(gpu: Gpu, *, tp: int, ranks: int, weight_bytes: int, quantised: str, pytorch: bool) -> tuple[Tensor, ...]:
    """Everything in use beyond live tensors, the CUDA context left out.

    Args:
        tp: ranks that reduce together
        ranks: of the whole deployment
        weight_bytes: of the rank
        quantised: format of its weights
        pytorch: the PyTorch backend, else a TensorRT engine
    """
    row = runtime_of(gpu, pytorch=pytorch)
    linked = row.pair + row.per_doubling * (tp.bit_length() - 2) if tp > 1 else row.pair if ranks > 1 else 0.0
    left = row.scaled * weight_bytes if quantised in BLOCK_SCALED else 0.0
    return (
        _tensor("libraries, workspaces, graphs", round(row.alone * GIB), Category.WORKSPACES, gpu.arch),
        _tensor("NCCL and all-reduce workspaces", round(linked * GIB), Category.COMMUNICATION, f"tp={tp}, {gpu.arch}"),
        _tensor("left by loading block scales", round(left), Category.WEIGHTS, f"{row.scaled} x {weight_bytes:,} B"),
    )


def decoder(sequences: int, vocab: int) -> Tensor:
    """Buffers of a TensorRT runtime for the logits of every sequence."""
    return Tensor(
        name="runtime buffers and decoder", num_bytes=DECODER_BYTES * sequences * vocab, category=Category.WORKSPACES,
        owner="process", basis=Basis.MEASURED, formula=Note(
            "{} B x {:,} sequences x {:,}", DECODER_BYTES, sequences, vocab
        ),
        source="github.com/NVIDIA/TensorRT-LLM/issues/1188: Qwen2.5-0.5B, 2,048 sequences",
    )


_tensor: Final = TensorsOf(owner="process", basis=Basis.MEASURED, source="37 runs on H100 and GB300; docs/serving.md")

SOURCE: Final = "NVIDIA/TensorRT-LLM tensorrt_llm/_torch/pyexecutor/_util.py"

LOGITS_SEQUENCES: Final = 64
"""Sequences whose logits a prefill step of max_num_tokens has at once; more do not end in one step."""


class _Worker(NamedTuple):
    """What one pipeline stage's ranks find when they start."""

    stage: Stage
    weights: Program
    step: Program  # run before the cache is sized
    beside: tuple[Tensor, ...]
    free: int  # after them [bytes]
    left: int  # for the cache [bytes]
    blocks: Pools


def deploy(job: ServeJob) -> Deployment:
    """The ranks of a TensorRT-LLM deployment.

    Engine options: `settings.OPTIONS`.

    Raises: InvalidSpec for degrees that do not divide, Unsupported for networks that are not modelled
    """
    check_degrees(job)
    refuse_encoders(job)
    settings = settings_of(job)
    workers = [_worker(job, settings, stage) for stage in even_stages(job.model.num_layers, job.plan.pp)]
    tokens = fewest_tokens(worker.blocks for worker in workers)
    return Deployment(
        ranks=tuple(_rank(job, settings, worker, worker.blocks.shortened(tokens)) for worker in workers),
        assumptions=tuple(_assumptions(job, settings)),
        cautions=tuple(_cautions(job, settings)),
    )


def _cautions(job: ServeJob, settings: Settings) -> Iterator[str]:
    if settings.pytorch and sees(job.model):
        yield Note(
            "{} reads images: TensorRT-LLM may run its encoder before it sizes the cache, and what that takes is "
            "not counted; the cache is smaller by it", job.model.name
        )


def _assumptions(job: ServeJob, settings: Settings) -> Iterator[str]:
    yield "the PyTorch backend" if settings.pytorch else "a built TensorRT engine"
    mixers = [layer.mixer for layer in job.model.main.layers]
    if not settings.windows and any(isinstance(mixer, Attention) and mixer.window for mixer in mixers):
        yield "sliding windows are kept at full length, unless --engine-option sliding-windows=true"


def _worker(job: ServeJob, settings: Settings, stage: Stage) -> _Worker:
    plan, gpu = job.plan, job.cluster.gpu
    layout, formats = layout_of(job, vocab_divisor=1), job_formats(job)
    weights = load_program(job, stage, layout, formats)
    sequences = min(settings.sequences, LOGITS_SEQUENCES)
    step = forward_step(job, stage, tokens=settings.tokens, sequences=sequences, source=SOURCE)
    outside = beside(
        gpu, tp=plan.tp, ranks=plan.num_ranks, weight_bytes=total(weights), quantised=formats.quantised,
        pytorch=settings.pytorch,
    )
    if not settings.pytorch:
        outside += (decoder(settings.sequences, job.model.vocab),)
    taken = total(weights) + extent(step).peak + sum(tensor.num_bytes for tensor in outside) + (gpu.context_bytes or 0)
    free = gpu.free_bytes - taken
    share = round(settings.fraction * free)
    left = min(share, plan.cache_bytes) if plan.cache_bytes is not None else share
    return _Worker(stage, weights, step, outside, free, left, _blocks(job, settings, stage, max(0, left)))


def _rank(job: ServeJob, settings: Settings, worker: _Worker, blocks: Pools) -> ServingRank:
    kept = Tensor(
        name="blocks", num_bytes=blocks.num_bytes, category=Category.CACHE, source=SOURCE,
        formula=joined(", ", (Note("{:,} " + name, count) for name, count in blocks.reported_tokens.items())),
    )
    program = RankProgram(
        role=worker.stage.role,
        count=job.plan.tp * job.plan.dp,
        phases={
            Phase.LOAD: worker.weights, Phase.WARM_UP: worker.step, Phase.SERVING: (Alloc(kept), *worker.step),
        },
        outside=worker.beside,
    )
    sized = worker.free > 0 and job.plan.cache_bytes is None
    return ServingRank(
        program=program,
        cache=blocks,
        budget=Budget(settings.fraction, worker.free) if sized else None,
        startup={
            "weights": total(worker.weights), "activation peak": extent(worker.step).peak, "KV cache": worker.left,
        },
    )


def _blocks(job: ServeJob, settings: Settings, stage: Stage, num_bytes: int) -> Pools:
    mixers = (*(layer.mixer for layer in stage.layers(job.model)), *(draft_mixers(job) if stage.last else ()))
    dtype = settings.kv_dtype if settings.kv_dtype != "auto" else dtype_of(job.model, job.plan.dtype)
    contents = contents_of(mixers, tp=job.plan.tp, kv_dtype=dtype, windows=settings.windows)
    page = settings.block_tokens
    states = (job.plan.max_sequences or job.requests.concurrency) if contents.state_bytes else 0
    left = max(0, num_bytes - states * contents.state_bytes)
    ratio = _window_ratio(contents, job.context)
    per_token = contents.full_token_bytes + ratio * contents.window_token_bytes
    tokens = int(left / per_token) if per_token else 0
    tokens = min(tokens, settings.max_tokens or tokens) // page * page
    return Pools(
        contents=contents,
        full_tokens=tokens,
        window_tokens=int(ratio * tokens) // page * page if contents.window_token_bytes else 0,
        states=states,
        page_tokens=page,
        logged="tokens",
    )


def _window_ratio(contents: Contents, context: int) -> float:
    """Window tokens for each of full attention [share]; the longest window is the whole context."""
    if not contents.full_token_bytes:
        return 1.0
    return min(context, contents.window) / context if contents.window_token_bytes else 0.0
