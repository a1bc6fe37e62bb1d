"""What every GPU engine loads on a rank: weights, tables beside them, slots for adapters, drafts, corrections.

[rotary] vllm-project/vllm vllm/model_executor/layers/rotary_embedding/base.py `_compute_cos_sin_cache`: cosine and
sine of every position, one table for all layers that rotate alike; linear scaling lengthens it
(linear_scaling_rope.py)
[absorb] vllm/model_executor/layers/attention/mla_attention.py `process_weights_after_loading`: W_UK and W_UV in 16
bits
[lora] vllm-project/vllm vllm/lora/layers `create_lora_weights`: per projection A of rank x in and B of out x rank,
`max_loras` of each; A of column-parallel and B of row-parallel layers are not divided
[EAGLE] Li et al., arXiv:2401.15077: one decoder layer behind a 2 H x H projection; EAGLE-3, arXiv:2503.01840: 3 H x H,
queries, keys and values of 2 H, and a head of its own over a shortened vocabulary. Embedding and head are the
target's.
[flat] vllm/model_executor/layers/fused_moe/config.py `FusedMoEParallelConfig.make`: without expert parallelism experts
are divided over tensor- and data-parallel ranks together
[MTP] DeepSeek-V3, arXiv:2412.19437, section 2.2: the checkpoint's own modules. Their copies of embedding and head give
way to the target's: vllm/v1/spec_decode/llm_base_proposer.py "Detected MTP model. Sharing target model", the embedding
where there are no pipeline stages; sglang srt/models/deepseek_nextn.py `set_embed_and_head`
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from vramcast.blocks.parameters.layer import layer_parameters
from vramcast.blocks.parameters.model import mtp_parameters
from vramcast.domain.calibration import corrected_by, scaled
from vramcast.domain.model import Attention, Layer, Mixer, Model, MoE, MultiLatentAttention, Parameter, Split
from vramcast.domain.program import Category, Program, Tensor, transient
from vramcast.domain.serving import Draft, ServeJob
from vramcast.engines.serving.stages import Stage, even_stages, logits, widest_moment
from vramcast.engines.serving.table import SERVING
from vramcast.engines.serving.weights import (
    MARLIN,
    Formats,
    Packing,
    block_bytes,
    formats_of,
    loaded,
    padding_bytes,
    weight_tensors,
)
from vramcast.errors import InvalidSpec, Note
from vramcast.parallel.layout import Layout
from vramcast.states.optimizers import local_shape
from vramcast.states.storage import format_of, is_linear
from vramcast.units import ceil_div

OWN_LOCAL_TABLE: Final = frozenset(("gemma3", "gemma3_text", "gemma4", "gemma4_text"))
"""Families whose windowed layers rotate with another base than the others."""


def beside_weights(
    model: Model,
    stage: Stage,
    *,
    tp: int,
    experts_divided: int,
    local_experts: int,
    packing: Packing | None,
    width: int = 2,
    rotary_width: int | None = None,
) -> Iterator[tuple[Tensor, int]]:
    """Tensors that are loaded with the weights although no checkpoint holds them.

    Args:
        tp: ranks that share a layer's matrices
        experts_divided: ranks that share one expert's matrices
        local_experts: experts of one layer on this rank
        packing: how kernels lay the experts out; None: as the checkpoint does
        width: of an activation [bytes]
        rotary_width: of an element of a rotary table; None: as an activation [bytes]
    """
    for name, num_bytes, formula in _rotary_tables(model, rotary_width or width):
        yield _tensor(name, num_bytes, formula), 1
    for run in stage.runs(model):
        mixer, channel = run.layer.mixer, run.layer.channel
        if isinstance(mixer, MultiLatentAttention):
            elements = mixer.num_heads // tp * mixer.kv_lora_rank * (mixer.qk_nope_dim + mixer.v_head_dim)
            yield _tensor("absorbed W_UK and W_UV", elements * width, f"{elements:,} x {width} B"), run.count
        if isinstance(channel, MoE) and packing is not None:
            padding = padding_bytes(
                channel, model.hidden, divided=experts_divided, experts=local_experts, packing=packing
            )
            yield _tensor("experts.padding", padding, Note("as {} lays them out", packing.name)), run.count


def _rotary_tables(model: Model, width: int) -> Iterator[tuple[str, int, str]]:
    mixers = [run.layer.mixer for run in model.main.runs]
    if model.context is None:
        return
    widths = {(_rotary_width(mixer), _is_local(mixer)) for mixer in mixers if _rotary_width(mixer)}
    if model.family not in OWN_LOCAL_TABLE:
        widths = {(rotary, False) for rotary, _ in widths}
    for rotary, local in sorted(widths):
        positions = model.context if local else round(model.context * model.rope_scale)
        name = "rotary table" + (" of windowed layers" if local else "")
        yield name, positions * rotary * width, Note("{:,} positions x {} x {} B", positions, rotary, width)


def _rotary_width(mixer: Mixer | None) -> int:
    """Channels of a head that rotate."""
    if isinstance(mixer, MultiLatentAttention):
        return mixer.qk_rope_dim
    if isinstance(mixer, Attention) and mixer.rope:
        return int(mixer.head_dim * mixer.rope_fraction)
    return 0


def _is_local(mixer: Mixer | None) -> bool:
    return isinstance(mixer, Attention) and mixer.window is not None


def _tensor(name: str, num_bytes: int, formula: str) -> Tensor:
    return Tensor(
        name=name, num_bytes=block_bytes(num_bytes), category=Category.WEIGHTS, owner="beside the checkpoint",
        formula=formula, source="vllm-project/vllm vllm/model_executor/layers/; docs/serving.md",
    )


ADAPTER_BYTES = 2
"""Adapters are held in 16 bits."""


def adapter_slots(job: ServeJob, stage: Stage) -> Iterator[tuple[Tensor, int]]:
    """Both matrices of every adapted projection, with how many equal layers there are."""
    slots, rank = job.plan.lora_slots, job.plan.lora_rank
    if not slots:
        return
    for run in stage.runs(job.model):
        for parameter in _adapted(run.layer, job.model.hidden):
            out, inside = _local(parameter, run.layer, job.plan.tp)
            yield Tensor(
                name=parameter.path,
                num_bytes=slots * rank * (out + inside) * ADAPTER_BYTES,
                category=Category.ADAPTERS,
                owner="layers",
                formula=Note("{} slots x rank {} x ({:,} + {:,}) x {} B", slots, rank, inside, out, ADAPTER_BYTES),
                source="vllm-project/vllm vllm/lora/layers `create_lora_weights`",
            ), run.count


def _adapted(layer: Layer, hidden: int) -> Iterator[Parameter]:
    """Projections that engines adapt: those of attention and of dense feed-forward blocks."""
    for parameter in layer_parameters(layer, hidden=hidden):
        if is_linear(parameter) and not parameter.expert:
            yield parameter


def _local(parameter: Parameter, layer: Layer, tp: int) -> tuple[int, int]:
    """Rows of B and columns of A on one rank."""
    kv_heads = layer.mixer.num_kv_heads if isinstance(layer.mixer, Attention) else 0
    shape = local_shape(parameter, replace(Layout(tp=tp), kv_heads=kv_heads))
    if parameter.split is Split.ROW:
        return parameter.shape[0], parameter.shape[1] // tp
    return shape[0], shape[-1]


EAGLE3_VOCAB: Final = 32_000
"""Rows of an EAGLE-3 head as published drafts have it."""

MTP_AS_STORED: Final = ("fp8-block",)
"""Formats that checkpoints store their own multi-token-prediction modules in as well: DeepSeek V3 is 688.59 GB, the sum
with the module in FP8 but for its projection and its copies of embedding and head; all in 16 bits it were 700 GB
[model.safetensors.index.json of deepseek-ai/DeepSeek-V3]."""

MTP_WHOLE: Final = ("mtp.projection", "mtp.head")
"""Of a module, in 16 bits whatever the rest is in."""

EAGLE: Final = ("eagle", "eagle3")


def draft_weights(job: ServeJob, stage: Stage, layout: Layout) -> Iterator[tuple[Tensor, int]]:
    """Weights that the draft adds to the last stage's ranks, divided as the target's are.

    Args:
        layout: degrees of parallelism of the target

    Raises: InvalidSpec when the model has no modules of the kind asked for
    """
    draft = job.plan.draft
    if draft is None or not stage.last or draft.kind == "ngram":
        return
    if draft.model is not None:
        formats = formats_of(draft.model, weights=None, dtype=job.plan.dtype)
        whole = even_stages(draft.model.num_layers, 1)[0]
        yield from weight_tensors(
            draft.model, layout=layout, formats=formats, stage=whole, category=Category.DRAFT
        )
        return
    formats = formats_of(job.model, weights=job.plan.weights, dtype=job.plan.dtype)
    shared = ("mtp.head", "mtp.embedding")[: 2 if job.plan.pp == 1 else 1]
    for parameter in _own_parameters(job.model, draft):
        if parameter.path in shared:
            continue
        yield _draft_tensor(parameter, layout, formats), 1


def draft_mixers(job: ServeJob) -> tuple[Mixer | None, ...]:
    """Mixers of draft layers whose keys and values share the target's cache."""
    draft, model = job.plan.draft, job.model
    if draft is None:
        return ()
    if draft.model is not None:
        return tuple(layer.mixer for layer in draft.model.main.layers)
    if draft.kind in EAGLE:
        return (draft_layer(model).mixer,)
    if draft.kind == "mtp":
        return tuple(layer.mixer for layer in model.mtp_layers)
    return ()


def draft_layer(model: Model) -> Layer:
    """The target's last attention layer: what EAGLE drafts are made like."""
    attending = [layer for layer in model.main.layers if isinstance(layer.mixer, (Attention, MultiLatentAttention))]
    if not attending:
        raise InvalidSpec("draft: {} has no attention layer an EAGLE draft could be like; use ngram", model.name)
    return attending[-1]


def _own_parameters(model: Model, draft: Draft) -> Iterator[Parameter]:
    h = model.hidden
    if draft.kind == "mtp":
        modules = mtp_parameters(model)
        if not modules:
            raise InvalidSpec("draft=mtp: {} has no multi-token-prediction modules; use eagle or ngram", model.name)
        for module in modules:
            yield from module
        return
    if draft.kind == "medusa":
        for index in range(draft.tokens):
            yield Parameter(path=f"medusa.{index}.block", shape=(h, h))
            yield Parameter(path=f"medusa.{index}.head", shape=(model.vocab, h), kind="embedding")
        return
    inputs = 3 if draft.kind == "eagle3" else 2
    yield Parameter(path="draft.projection", shape=(h, inputs * h))
    yield from layer_parameters(draft_layer(model), hidden=h)
    if draft.kind == "eagle3":
        for name in ("q", "k", "v"):  # these read embedding and states side by side: as wide again
            yield from (p for p in layer_parameters(draft_layer(model), hidden=h) if p.path == f"attention.{name}")
        yield Parameter(path="draft.head", shape=(min(EAGLE3_VOCAB, model.vocab), h), kind="embedding")


def _draft_tensor(parameter: Parameter, layout: Layout, formats: Formats) -> Tensor:
    shape, stored = local_shape(parameter, layout.around(parameter)), _stored(parameter, formats)
    return Tensor(
        name=parameter.path,
        num_bytes=format_of(stored).num_bytes(shape),
        category=Category.DRAFT,
        owner="draft",
        formula=f"{' x '.join(f'{size:,}' for size in shape)} in {stored}",
        source="the draft's tensors; docs/serving.md",
    )


def _stored(parameter: Parameter, formats: Formats) -> str:
    """The format of one weight of a draft: 16 bits, unless the checkpoint quantised its own modules."""
    own = parameter.path.startswith("mtp.") and parameter.path not in MTP_WHOLE
    return formats.of(parameter) if own and formats.quantised in MTP_AS_STORED else formats.whole


def corrected(job: ServeJob, program: Program) -> Program:
    """The program with its tensors as large as the job's calibration says; what frees a tensor must be in it too."""
    if job.calibration is None:
        return program
    return corrected_by(job.calibration, program)


def corrected_tensor(job: ServeJob, tensor: Tensor) -> Tensor:
    """One tensor as large as the job's calibration says."""
    return tensor if job.calibration is None else scaled(job.calibration, tensor)


WIDTHS = {"fp32": 4, "bf16": 2, "fp16": 2}
"""Bytes of an activation."""


def dtype_of(model: Model, dtype: str | None) -> str:
    """What activations are computed in: fp32 checkpoints are served in 16 bits unless told otherwise."""
    return dtype or ("fp16" if model.dtype == "fp16" else "bf16")


def shares_experts(job: ServeJob) -> bool:
    """Whether data-parallel ranks attend apart and hold one set of experts together.

    SGLang's `--enable-dp-attention`, TensorRT-LLM's `enable_attention_dp`; vLLM's ranks of one server always do [flat].
    """
    plan = job.plan
    asked = plan.expert_parallel or plan.attention_dp or SERVING[job.engine].copies_share_experts
    return plan.dp > 1 and asked and any(isinstance(run.layer.channel, MoE) for run in job.model.main.runs)


def expert_degrees(job: ServeJob) -> tuple[int, int]:
    """Over how many ranks whole experts are spread, and how many divide one."""
    ranks = job.plan.tp * (job.plan.dp if shares_experts(job) else 1)
    return (ranks, 1) if job.plan.expert_parallel else (1, ranks)


def attending_apart(job: ServeJob) -> int:
    """Copies of attention that divide the dense feed-forward blocks, shared experts and the head together."""
    return job.plan.dp if SERVING[job.engine].divides_dense and shares_experts(job) else 1


def gathered(job: ServeJob) -> int:
    """Data-parallel ranks whose tokens pass through the experts of each: whole experts meet their share of them."""
    return job.plan.dp if shares_experts(job) and not job.plan.expert_parallel else 1


def forward_step(job: ServeJob, stage: Stage, *, tokens: int, source: str, sequences: int = 0) -> Program:
    """A forward of so many tokens; behind the last stage the logits of so many sequences.

    Args:
        source: where the engine's forward is written
    """
    model, width = job.model, WIDTHS[dtype_of(job.model, job.plan.dtype)]
    step = transient(*widest_moment(
        model, stage, tokens=tokens, tp=job.plan.tp, experts_divided=expert_degrees(job)[1], width=width,
        source=source, gathered=gathered(job),
    ))
    if stage.last and sequences:
        step += transient(
            *logits(model, sequences=sequences, width=width, source=source, copies=attending_apart(job))
        )
    return corrected(job, step)


def layout_of(job: ServeJob, *, vocab_divisor: int) -> Layout:
    """Degrees of parallelism."""
    ep, etp = expert_degrees(job)
    return Layout(tp=job.plan.tp, ep=ep, etp=etp, vocab_divisor=vocab_divisor, apart=attending_apart(job))


def load_program(
    job: ServeJob, stage: Stage, layout: Layout, formats: Formats, *, rotary_width: int | None = None,
    packing: Packing = MARLIN, whole_towers: bool = False,
) -> Program:
    """Everything that is there before the cache is sized, as large as the job's calibration says.

    Args:
        formats: how weights are stored
        rotary_width: bytes of an element of rotary tables; None: as activations
        packing: how mxfp4 experts are laid out
        whole_towers: towers are whole on every rank
    """
    stored = job.weights if job.plan.weights is None else None
    weights = weight_tensors(
        job.model, layout=layout, formats=formats, stage=stage, stored=stored, whole_towers=whole_towers
    )
    program = (
        *loaded(weights),
        *loaded(_tables(job, stage, layout, rotary_width, packing if formats.quantised == "mxfp4" else None)),
        *loaded(adapter_slots(job, stage)),
        *loaded(draft_weights(job, stage, layout)),
    )
    return corrected(job, program)


def _tables(
    job: ServeJob, stage: Stage, layout: Layout, rotary_width: int | None, packing: Packing | None
) -> Iterator[tuple[Tensor, int]]:
    channels = [run.layer.channel for run in stage.runs(job.model)]
    experts = max((channel.num_experts for channel in channels if isinstance(channel, MoE)), default=0)
    return beside_weights(
        job.model, stage, tp=layout.tp, experts_divided=layout.etp, local_experts=ceil_div(experts, layout.ep),
        packing=packing, width=WIDTHS[dtype_of(job.model, job.plan.dtype)], rotary_width=rotary_width,
    )


def job_formats(job: ServeJob) -> Formats:
    """How the job's weights are stored."""
    return formats_of(job.model, weights=job.plan.weights, dtype=job.plan.dtype)


def kv_dtype_of(job: ServeJob) -> str:
    """FP8 weights do not imply an FP8 cache: "auto" is the dtype of activations."""
    return job.plan.kv_dtype if job.plan.kv_dtype != "auto" else dtype_of(job.model, job.plan.dtype)
