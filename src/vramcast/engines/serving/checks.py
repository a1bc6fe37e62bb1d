"""Which cards an engine runs on and has kernels for, and the rules that plans of every engine obey.

[vllm] platforms/rocm.py `supported_quantization` has bitsandbytes from 0.12 on; v1/attention: no bf16 below Ampere
[transformers] flash-attn 2 is written for Ampere and later
[blocks] vllm layers/quantization/fp8.py `Fp8MoEMethod.create_weights`, utils/fp8_utils.py `validate_fp8_block_shape`;
sglang srt/layers/quantization/fp8.py: FP8 in blocks of 128 x 128 is loaded where every rank has whole blocks
"""

from __future__ import annotations

from typing import Final

from vramcast.domain.device import Gpu
from vramcast.domain.model import MLP, Attention, Head, MoE, MultiLatentAttention
from vramcast.domain.serving import PipelineJob, ServeJob, ServePlan, Version
from vramcast.domain.version import named
from vramcast.engines.serving.rank import attending_apart, expert_degrees, job_formats
from vramcast.engines.serving.requests import refuse_pipeline_requests, refuse_requests
from vramcast.engines.serving.table import SERVING, OldestSm, Support
from vramcast.errors import InvalidSpec, Note, UnknownName, Unsupported, listed
from vramcast.states.ggml import TYPES
from vramcast.states.storage import BITSANDBYTES, GGUF, KV_BITS, has_bitsandbytes, refuse_bitsandbytes

FLASH_SM: Final = 80
"""flash-attn 2."""


def support_of(engine: str, version: Version) -> Support | None:
    """What a version runs on; None where nothing is known to limit it."""
    return next((row for row in SERVING[engine].support if version >= row.since), None)


def runs_on(engine: str, version: Version, gpu: Gpu) -> bool:
    """Whether an engine runs on a card at all, its own releases that is."""
    support = support_of(engine, version)
    if support is None:
        return True
    if gpu.vendor == "NVIDIA":
        return (gpu.sm or 0) >= support.oldest_sm
    if gpu.vendor == "AMD":
        return gpu.compute_capability in support.amd
    return support.others and gpu.vendor != "Google"


def is_ported(engine: str, version: Version, gpu: Gpu) -> bool:
    """Whether it is the vendor of a card that makes an engine run there."""
    support = support_of(engine, version)
    return support is not None and support.ported and not gpu.unmodelled and gpu.vendor not in ("NVIDIA", "AMD")


def has_kernel(stored: str, gpu: Gpu, engine: str, version: Version) -> bool:
    """Whether products with weights of that format run on a card; of others than NVIDIA's, bitsandbytes is known of."""
    if stored in BITSANDBYTES and not has_bitsandbytes(gpu, engine, version):
        return False
    return gpu.sm is None or gpu.sm >= _oldest(SERVING[engine].format_sm, stored, version)


def _oldest(table: OldestSm, stored: str, version: Version) -> int:
    rows = next((row for since, row in table if version >= since), {})
    return next((sm for prefix, sm in rows.items() if stored.startswith(prefix)), 0)


def dtype_on(gpu: Gpu, dtype: str) -> str:
    """The dtype a model of that dtype runs in on a card."""
    return "fp16" if dtype == "bf16" and not gpu.has_bf16 else dtype


def refuse_card(job: ServeJob) -> None:
    """Raise Unsupported for a card that the engine does not run on, or on which it has no kernels for the plan."""
    if any(run.layer.beside for run in job.model.main.runs):
        raise Unsupported("layers with attention beside Mamba, as {} has them, are not modelled for serving; train "
                          "is", job.model.name)
    gpu, plan, engine = job.cluster.gpu, job.plan, job.engine
    if gpu.unmodelled and not runs_on(engine, job.version, gpu):
        raise Unsupported(
            "{} does not run on {}: {}; {}", named(engine, job.version), gpu.name, gpu.unmodelled, instead(job)
        )
    if not runs_on(engine, job.version, gpu) and not is_ported(engine, job.version, gpu):
        raise Unsupported("{} does not run on {}; {}", named(engine, job.version), gpu.name, instead(job))
    stored = plan.weights or job.model.quantisation or ""
    if stored in BITSANDBYTES:
        refuse_bitsandbytes(stored, gpu, engine, job.version)
    known = SERVING[engine]
    if stored in GGUF and not known.gguf & {stored, TYPES[stored].source}:
        able = "llama.cpp" if TYPES[stored].source in SERVING["llama.cpp"].gguf else "ik_llama.cpp"
        raise Unsupported(
            "{} has no kernels for weights={}, a type of GGUF; use --engine {}, or another format", engine, stored, able
        )
    for option, value, table in (("weights", stored, known.format_sm), ("kv-dtype", plan.kv_dtype, known.cache_sm)):
        oldest = _oldest(table, value, job.version)
        if gpu.sm is not None and gpu.sm < oldest:
            raise Unsupported(
                "{}={} needs compute capability {} under {}, and {} has {}; use a newer card or another format",
                option, value, _dotted(oldest), named(engine, job.version), gpu.name, gpu.compute_capability
            )
    if engine == "vllm" and plan.dtype == "bf16" and gpu.sm is not None and not gpu.has_bf16:
        raise Unsupported("vllm refuses dtype=bf16 on {}, which has no bf16; use --dtype fp16", gpu.name)
    if engine == "transformers" and plan.attention == "flash" and gpu.sm is not None and gpu.sm < FLASH_SM:
        raise Unsupported(
            "attention=flash needs compute capability {}, and {} has {}; use sdpa",
            _dotted(FLASH_SM), gpu.name, gpu.compute_capability
        )


def refuse_pipeline_card(job: PipelineJob) -> None:
    """The same of a diffusion pipeline."""
    gpu = job.cluster.gpu
    if gpu.unmodelled:
        raise Unsupported("{} does not run on {}: {}; use another card", job.engine, gpu.name, gpu.unmodelled)
    if job.plan.weights in BITSANDBYTES:
        refuse_bitsandbytes(job.plan.weights, job.cluster.gpu)


def ported_caution(job: ServeJob) -> str | None:
    """What is to be said where a card's vendor makes the engine run."""
    gpu = job.cluster.gpu
    if not is_ported(job.engine, job.version, gpu):
        return None
    return Note("{} runs on {} in {}'s own build: memory is that of its CUDA build", job.engine, gpu.name, gpu.vendor)


def unequal_caution(job: ServeJob) -> str | None:
    """What is to be said where an engine would give unequal cards unequal shares."""
    known, cards = SERVING[job.engine], len(job.cluster.cards)
    if not cards or known.splits:
        return None
    if known.is_ggml:
        even = ",".join("1" * cards)
        return Note(
            "{} splits layers by the memory that is free; here evenly, as --tensor-split {} does", job.engine, even
        )
    return Note(
        "{} places layers by the memory that is free; here evenly, as an equal max_memory of each card does",
        job.engine
    )


def instead(job: ServeJob) -> str:
    """What to take where an engine does not run on a card."""
    gpu = job.cluster.gpu
    others = [name for name, known in SERVING.items() if known.support and runs_on(name, known.support[0].since, gpu)]
    return Note("use --engine {}", listed(others)) if others else "use another card"


def _dotted(sm: int) -> str:
    """As NVIDIA writes a compute capability.

    >>> _dotted(75), _dotted(100)
    ('7.5', '10.0')
    """
    return f"{sm // 10}.{sm % 10}"


LARGEST_SUGGESTED = 64

BLOCKED: Final = "fp8-block"
FP8_BLOCK: Final = 128


def refuse_foreign_cache(job: ServeJob) -> None:
    """Raise InvalidSpec for a cache dtype that the job's engine does not have."""
    known = SERVING[job.engine].kv_dtypes
    if known and job.plan.kv_dtype not in known:
        if job.plan.kv_dtype not in KV_BITS:
            raise UnknownName.of("cache dtype", job.plan.kv_dtype, known)
        raise InvalidSpec("kv-dtype={} is none of {}'s; use {}", job.plan.kv_dtype, job.engine, ", ".join(known))


def refuse_ignored(job: ServeJob) -> None:
    """Raise Unsupported for a choice that the job's engine would not look at."""
    refuse_foreign_cache(job)
    if job.plan.draft is not None and job.model.head is not Head.LM:
        raise InvalidSpec("draft: {} generates no tokens that a draft could propose; leave it out", job.model.name)
    _refuse_unread(job)
    refuse_requests(job)
    refuse_card(job)


def refuse_ignored_of_pipeline(job: PipelineJob) -> None:
    """The same of a diffusion pipeline."""
    _refuse_unread(job)
    if job.engine == "stable-diffusion.cpp" and job.requests.concurrency > 1:
        raise Unsupported(
            "stable-diffusion.cpp generates one image after the other, not {} at once; leave concurrency out",
            job.requests.concurrency
        )
    refuse_pipeline_requests(job)
    refuse_pipeline_card(job)


def _refuse_unread(job: ServeJob | PipelineJob) -> None:
    reads, default = SERVING[job.engine].reads, ServePlan()
    for name in ServePlan.__struct_fields__:
        value = getattr(job.plan, name)
        if name not in reads and value != getattr(default, name):
            shown = value if isinstance(value, (int, float, str)) else "given"
            raise Unsupported("{}={} says nothing to {}; leave it out", name.replace("_", "-"), shown, job.engine)


def check_degrees(job: ServeJob) -> None:
    """Raise InvalidSpec when a degree does not divide what it splits, naming those that would."""
    model, plan, apart = job.model, job.plan, attending_apart(job)
    for run in model.main.runs:
        mixer, channel = run.layer.mixer, run.layer.channel
        if isinstance(mixer, (Attention, MultiLatentAttention)):
            _divides("tp", plan.tp, mixer.num_heads, f"num_heads={mixer.num_heads} of {model.name}")
        if isinstance(mixer, Attention) and max(plan.tp, mixer.num_kv_heads) % min(plan.tp, mixer.num_kv_heads):
            _divides("tp", plan.tp, mixer.num_kv_heads, f"num_kv_heads={mixer.num_kv_heads} of {model.name}")
        if isinstance(channel, MLP):
            _divides("tp x dp" if apart > 1 else "tp", plan.tp * apart, channel.width,
                     f"ffn={channel.width} of {model.name}")
        if isinstance(channel, MoE):
            ep, etp = expert_degrees(job)
            width = channel.expert.width
            _divides("tp x dp", ep, channel.num_experts, f"num_experts={channel.num_experts} of {model.name}")
            _divides("tp x dp" if etp > plan.tp else "tp", etp, width, f"an expert's width={width} of {model.name}")
    if model.fp8_blocks and SERVING[job.engine].whole_fp8_blocks:
        _check_blocks(job)
    if not any(isinstance(run.layer.channel, MoE) for run in model.main.runs):
        if plan.expert_parallel:
            raise InvalidSpec("expert-parallel: {} has no experts to divide; leave it out", model.name)
        if plan.attention_dp and plan.dp > 1:
            raise Unsupported("attention-dp is not modelled for {}, which has no experts to share; leave it out",
                              model.name)
    if plan.pp > model.num_layers:
        raise InvalidSpec(
            "pp={} is more than the {} layers of {}; use fewer stages", plan.pp, model.num_layers, model.name
        )
    _divides("dcp", plan.dcp, plan.tp, f"tp={plan.tp}")


def _check_blocks(job: ServeJob) -> None:
    """Refuse feed-forward widths of which a rank has no whole blocks of FP8 [blocks]."""
    formats, (_, etp) = job_formats(job), expert_degrees(job)
    stored, dense = formats.experts or formats.quantised, job.plan.tp * attending_apart(job)
    for channel in (run.layer.channel for run in job.model.main.runs):
        if isinstance(channel, MoE):
            found = [(channel.expert.width, etp, stored), (channel.shared_width, dense, formats.quantised)]
        else:
            found = [(channel.width if channel is not None else 0, dense, formats.quantised)]
        for width, ranks, form in found:
            if form == BLOCKED and ranks > 1 and width // ranks % FP8_BLOCK:
                tp, copies = job.plan.tp, ranks // job.plan.tp  # copies that share the experts divide them, too
                ways = [f"--{name} {n}" for name, degree, others in (("tp", tp, copies), ("dp", copies, tp))
                        for n in range(1, degree) if degree % n == 0 and width // (n * others) % FP8_BLOCK == 0]
                raise InvalidSpec(
                    "{} of a feed-forward width of {} on each of {} ranks is no multiple of the {} that FP8 is stored "
                    "in blocks of, and {} does not load it; use {}", width // ranks, width, ranks, FP8_BLOCK,
                    job.engine, listed([*ways, "--expert-parallel"] if form is stored and isinstance(channel, MoE) and
                                       width == channel.expert.width else ways or ["--tp 1"]),
                )


def divides(job: ServeJob) -> bool:
    """Whether the plan's degrees divide everything they split."""
    try:
        check_degrees(job)
    except InvalidSpec:
        return False
    return True


def _divides(name: str, degree: int, size: int, what: str) -> None:
    if size % degree:
        good = [str(n) for n in range(1, LARGEST_SUGGESTED + 1) if size % n == 0]
        raise InvalidSpec("{}={} does not divide {}; use {}", name, degree, what, listed(good))
