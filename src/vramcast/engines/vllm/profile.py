"""The step vLLM profiles before it sizes the cache: images, a forward of the largest batch, the sampler.

Symbols:  S sequences   V vocabulary   T batched tokens   H hidden   F feed-forward width of one rank

[profile] vllm-project/vllm vllm/v1/worker/gpu_model_runner.py `profile_run`: the dummy images and the encoder's
outputs stay alive beside the forward of the decoder
[sampler] vllm-project/vllm vllm/v1/sample/sampler.py, ops/topk_topp_sampler.py: logits in fp32, their softmax,
exponential noise; since 0.21 FlashInfer masks a copy instead and draws from its softmax, as many tensors
[triton] vllm/v1/sample/ops/topk_topp_triton.py: a row of V fp32 per multiprocessor, kept from the first call on
[sort] pytorch aten/src/ATen/native/cuda/Sort.cu `segmented_sort_pairs`: sorted values, 64-bit indices and their copy,
a second buffer of both for the radix sort, beside the logits and their fp32 copy: 38 B
[runner 2] vllm/v1/worker/gpu/sample/sampler.py: where nothing is asked for, it draws from the 16-bit logits; counts of
output tokens are kept for every sequence (penalties.py)
[runner] vllm-project/vllm vllm/v1/worker/gpu_model_runner.py `profile_run`, `_dummy_sampler_run`, and for V0
vllm/worker/model_runner.py `profile_run`: what the encoder is fed and what it returns stays alive beside the forward;
logits are those of every rank, whatever the tensor parallelism
[experts] vllm/model_executor/layers/fused_moe/fused_moe.py `TritonExperts.workspace_shapes`, modular_kernel.py
`_allocate_buffers`: two workspaces, kept, the first of which takes the output too; before 0.14 `fused_experts_impl`
[deepgemm] deep_gemm_moe.py: rows of every expert are rounded up to blocks
[bnb] vllm/model_executor/layers/quantization/bitsandbytes.py `_apply_4bit_weight`: a matrix is unpacked for its
product
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final

from msgspec import Struct

from vramcast.blocks.parameters.layer import layer_parameters
from vramcast.domain.model import MLP, Model, MoE
from vramcast.domain.program import Alloc, Category, Free, Node, Program, Tensor, transient
from vramcast.domain.serving import ServeJob, Version
from vramcast.engines.serving.rank import expert_degrees, shares_experts
from vramcast.engines.serving.requests import generates
from vramcast.engines.serving.stages import HIDDEN_COPIES, Stage, inner_width
from vramcast.engines.vllm.images import CROSSED, encoder_moments, encoder_tensors, images_of, step_tensor
from vramcast.engines.vllm.settings import Settings
from vramcast.errors import Note
from vramcast.states.storage import is_linear
from vramcast.units import FP32, MIB, ceil_div

SAMPLER: Final = "vllm-project/vllm vllm/v1/sample/sampler.py"


SORT_BYTES: Final = 38.4
"""Bytes per sequence and vocabulary entry while the vocabulary is sorted (to 0.16); 38 are tensors [sort], the rest is
fitted on 15 start-up logs of 0.6 to 0.16: within 4 %, 11 of them within 1 %."""

SORTS_UNTIL: Final[Version] = (0, 17)
"""First version that truncates with a Triton kernel instead of a sort [triton]."""

FLASHINFER_SINCE: Final[Version] = (0, 21)
"""FlashInfer's sampler is the default from then on [vllm/envs.py VLLM_USE_FLASHINFER_SAMPLER]."""

MULTIPROCESSORS: Final = 132
"""Rows of the Triton kernel's buffer, as on H100; cards have 40 to 148, which moves a peak by 3 % at most."""

Sizes = Iterator[tuple[str, int, str]]


def sampler_tensors(model: Model, settings: Settings, *, sequences: int) -> Iterator[Tensor]:
    """Tensors alive while the profiled step draws tokens.

    Args:
        sequences: that tokens are drawn for
    """
    h, width = model.hidden, settings.width
    yield step_tensor("final hidden states", settings.batched_tokens * h * width, source=SAMPLER)
    yield step_tensor("hidden states of the last tokens", sequences * h * width, source=SAMPLER)
    for name, num_bytes, formula in drawn(model.vocab, settings, sequences=sequences):
        yield step_tensor(name, num_bytes, formula, source=SAMPLER)
    if not settings.runner_2 and settings.version >= SORTS_UNTIL:
        yield step_tensor("cuBLAS workspace", settings.blas_workspace, source=SAMPLER)


def drawn(vocab: int, settings: Settings, *, sequences: int) -> Sizes:
    """Logits and what is made of them: name, bytes and formula."""
    per, width = Note("{:,} sequences x {:,}", sequences, vocab), settings.width
    if settings.runner_2:
        yield "logits", sequences * vocab * width, Note("{} x {} B", per, width)
        return
    flashinfer = uses_flashinfer(settings)
    if settings.version < SORTS_UNTIL and not flashinfer:
        yield "sampler.sort", int(SORT_BYTES * sequences * vocab), Note("{} B x {}", SORT_BYTES, per)
        return
    yield "logits", sequences * vocab * width, Note("{} x {} B", per, width)
    third = "masked logits" if flashinfer else "exponential noise"
    for name in ("logits in fp32", "probabilities", third):
        yield f"sampler.{name}", sequences * vocab * FP32, Note("{} x {} B", per, FP32)
    if not flashinfer:
        rows = min(sequences, MULTIPROCESSORS)
        yield "sampler.candidates", rows * vocab * FP32, Note("{} multiprocessors x {:,} x {} B", rows, vocab, FP32)


def uses_flashinfer(settings: Settings) -> bool:
    """Whether FlashInfer draws the tokens."""
    chosen = settings.options.flashinfer_sampler
    return settings.v1 and (settings.version >= FLASHINFER_SINCE if chosen is None else chosen)


def token_counts(model: Model, settings: Settings) -> Iterator[tuple[Tensor, int]]:
    """What the second runner keeps to penalise repetition: a count and a bit per sequence and entry [runner 2]."""
    if not settings.runner_2:
        return
    sequences, vocab = settings.max_sequences, model.vocab
    yield Tensor(
        name="counts of output tokens", num_bytes=sequences * (vocab * FP32 + vocab // 8),
        category=Category.WORKSPACES, owner="sampler", formula=Note(
            "{:,} sequences x {:,} x (4 B + 1 bit)", sequences, vocab
        ),
        source="vllm-project/vllm vllm/v1/worker/gpu/sample/penalties.py `PenaltiesState`",
    ), 1


WORKSPACES_KEPT_SINCE: Final[Version] = (0, 14)
"""Before, experts' workspaces were freed after each layer [unquantized_fused_moe_method.py]."""

EXPERT_BLOCK: Final = 128
"""Rows of a block of one expert's matrix product in FP8 blocks [deepgemm]."""

DEEPGEMM_FROM: Final = 90
"""Compute capability from which FP8 blocks are multiplied by DeepGEMM."""

PACKED_KERNELS: Final = (90, 100, 103)
"""Compute capabilities whose kernels for mxfp4 experts bring no workspace [fused_moe/gpt_oss_triton_kernels_moe.py]."""


HANDED_ON: Final = 3
"""Tensors of T x H at the end of a stage that is not the last: states and residual that go out, and the states'
source. One log of two stages (0.19): 1.10 GiB."""

FORWARD_BUFFERS: Final = 12 * MIB
"""Positions, token ids and workspaces of matrix products beside them. Two forward-bound logs of 0.19 and one of two
stages leave 11.9 to 12.1 MB."""

UNPACKED: Final = ("nf4", "nf4-dq")
"""Formats whose matrices are unpacked into 16 bits for a product [bnb]."""


def profiled_step(
    job: ServeJob, settings: Settings, stage: Stage, *, eight_bit: bool, quantised: str
) -> Program:
    """The step whose peak vLLM subtracts from the cache.

    Args:
        eight_bit: whether activations are quantised to 8 bits before each product
        quantised: format of the weights
    """
    model, tp = job.model, job.plan.tp
    workspaces = tuple(_expert_workspaces(job, settings, stage, expert_rows(job, settings, quantised)))
    keeps = settings.version >= WORKSPACES_KEPT_SINCE
    kept = [*encoder_tensors(model, settings, stage), *(workspaces if keeps else ())]
    nodes: list[Node] = [Alloc(tensor) for tensor in kept]
    nodes += chain.from_iterable(transient(*moment) for moment in encoder_moments(model, settings, stage, tp=tp))
    forward = _forward(model, settings, stage, tp=tp, eight_bit=eight_bit)
    unpacked = _unpacked(model, settings, stage, tp, quantised)
    sent = () if stage.last else _handed_on(model, settings)
    nodes += transient(*forward, *unpacked, *sent, *(() if keeps else workspaces))
    if stage.last and generates(model):
        nodes += transient(*sampler_tensors(model, settings, sequences=_sampled(model, settings)))
    return (*nodes, *(Free(tensor) for tensor in kept))


def _sampled(model: Model, settings: Settings) -> int:
    """Sequences whose logits are drawn from: V0 fills its batch with as few as hold the largest images [runner]."""
    images = images_of(model, settings)
    if settings.v1 or images is None or model.family == CROSSED:
        return settings.max_sequences
    return max(1, min(settings.max_sequences, settings.batched_tokens // (images.tokens // images.images)))


def _forward(model: Model, settings: Settings, stage: Stage, *, tp: int, eight_bit: bool) -> Iterator[Tensor]:
    """The widest moment of the widest layer: up projections and their product beside the residual stream."""
    tokens, width = settings.batched_tokens, settings.width
    inner = max((inner_width(run.layer.channel, tp) for run in stage.runs(model)), default=0)
    yield step_tensor("hidden states", HIDDEN_COPIES * tokens * model.hidden * width,
                  Note("{} x {:,} tokens x {:,} x {} B", HIDDEN_COPIES, tokens, model.hidden, width))
    yield step_tensor("buffers of the step", FORWARD_BUFFERS)
    yield step_tensor("mlp.gate_up", 2 * tokens * inner * width, Note(
        "2 x {:,} tokens x {:,} x {} B", tokens, inner, width
    ))
    yield step_tensor("mlp.product", tokens * inner * width, Note("{:,} tokens x {:,} x {} B", tokens, inner, width))
    if eight_bit:
        yield step_tensor("mlp.product in 8 bits", tokens * inner, Note("{:,} tokens x {:,} B", tokens, inner))


def _unpacked(model: Model, settings: Settings, stage: Stage, tp: int, quantised: str) -> Iterator[Tensor]:
    num_bytes = unpacked_bytes(model, settings, stage, tp=tp, quantised=quantised)
    if num_bytes:
        yield step_tensor("unpacked matrix", num_bytes, f"{num_bytes // settings.width:,} x {settings.width} B")


def unpacked_bytes(model: Model, settings: Settings, stage: Stage, *, tp: int, quantised: str) -> int:
    """The largest matrix in 16 bits: gate and up are one; 0 for formats that kernels multiply as they are."""
    if quantised not in UNPACKED:
        return 0
    gated = [_gate_up(run.layer.channel, model.hidden, tp) for run in stage.runs(model)]
    matrices = (
        parameter.elements // tp
        for run in stage.runs(model) for parameter in layer_parameters(run.layer, hidden=model.hidden)
        if is_linear(parameter) and not parameter.expert
    )
    return max(chain(gated, matrices), default=0) * settings.width


def _gate_up(channel: MLP | MoE | None, hidden: int, tp: int) -> int:
    gated = isinstance(channel, MLP) and channel.gated
    return (2 if gated else 1) * inner_width(channel, tp) * hidden


def _handed_on(model: Model, settings: Settings) -> Iterator[Tensor]:
    """Hidden states and residual that the next stage gets while their sender still holds its own."""
    size = HANDED_ON * settings.batched_tokens * model.hidden * settings.width
    yield step_tensor("sent to the next stage", size)


class Rows(Struct, frozen=True):
    """How many rows the experts of a rank are given."""

    tokens: int
    padding: int  # for each expert
    workspaces: bool  # False: kernels bring their own


def expert_rows(job: ServeJob, settings: Settings, quantised: str) -> Rows:
    """Rows before they are copied for every expert a token goes to.

    Ranks that share experts read the tokens of all data-parallel copies [all2all.py `AgRsAll2AllManager`].
    """
    gpu = job.cluster.gpu
    blocks = quantised == "fp8-block" and (gpu.sm or 0) >= DEEPGEMM_FROM
    return Rows(
        tokens=settings.batched_tokens * (job.plan.dp if shares_experts(job) else 1),
        padding=EXPERT_BLOCK - 1 if blocks else 0,
        workspaces=quantised != "mxfp4" or gpu.sm not in PACKED_KERNELS,
    )


def _expert_workspaces(job: ServeJob, settings: Settings, stage: Stage, given: Rows) -> Iterator[Tensor]:
    """The largest layer's workspaces; all layers use the same ones."""
    layers = [run.layer.channel for run in stage.runs(job.model) if isinstance(run.layer.channel, MoE)]
    if not layers or not given.workspaces:
        return
    moe = max(layers, key=lambda channel: channel.top_k * channel.expert.width)
    width, h, (ep, etp) = settings.width, moe.latent_width or job.model.hidden, expert_degrees(job)
    local, inner = ceil_div(moe.num_experts, ep), ceil_div(moe.expert.width, etp)
    rows, up = given.tokens * moe.top_k + local * given.padding, (2 if moe.expert.gated else 1) * inner
    yield step_tensor("experts.up or down", rows * max(up, h) * width, Note(
        "{:,} rows x {:,} x {} B", rows, max(up, h), width
    ))
    if settings.version >= WORKSPACES_KEPT_SINCE:
        other = max(inner, h)
        yield step_tensor("experts.product or output", rows * other * width, Note(
            "{:,} rows x {:,} x {} B", rows, other, width
        ))
        return
    yield step_tensor("experts.product", rows * inner * width, Note("{:,} rows x {:,} x {} B", rows, inner, width))
    yield step_tensor("experts.output", given.tokens * h * width, Note(
        "{:,} tokens x {:,} x {} B", given.tokens, h, width
    ))
