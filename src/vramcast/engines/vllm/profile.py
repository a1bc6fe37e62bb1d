"""The step vLLM profiles before it sizes the cache: images, a forward of the largest batch, the sampler.

Symbols:  S sequences   V vocabulary   T batched tokens   H hidden   F feed-forward width of one rank

[profile] vllm-project/vllm vllm/v1/worker/gpu_model_runner.py `profile_run`: the dummy images and the encoder's
outputs stay alive beside the forward of the decoder
[budget] vllm/v1/core/encoder_cache_manager.py `compute_mm_encoder_budget`, vllm/multimodal/encoder_budget.py
`MultiModalBudget._get_max_items`: at least one batch, at least one image
[video] vllm/model_executor/models/qwen2_vl.py `Qwen2VLProcessingInfo.get_num_frames_with_most_features`
[vit] vllm/model_executor/models/qwen2_5_vl.py `Qwen2_5_VisionAttention.forward`, `apply_rotary_pos_emb_vision`
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

from collections.abc import Iterable, Iterator
from itertools import chain
from math import prod
from typing import Final, NamedTuple

from vramcast.blocks.parameters import layer_parameters
from vramcast.domain.device import Gpu
from vramcast.domain.model import MLP, Model, MoE, Stack
from vramcast.domain.program import Alloc, Category, Free, Node, Program, Tensor
from vramcast.domain.serving import ServePlan, Version
from vramcast.engines.serving.requests import generates
from vramcast.engines.serving.stages import Stage
from vramcast.engines.vllm.settings import Settings
from vramcast.states.storage import is_linear
from vramcast.units import MIB, ceil_div

RUNNER: Final = "vllm-project/vllm vllm/v1/worker/gpu_model_runner.py `profile_run`"
SAMPLER: Final = "vllm-project/vllm vllm/v1/sample/sampler.py"


class LargestImage(NamedTuple):
    """What a family's processor makes of the largest image it takes."""

    patches: int  # that the encoder reads
    merged: int  # patches that become one token of the decoder


LARGEST: Final[dict[str, LargestImage]] = {
    "gemma3": LargestImage(64 * 64, 16),  # 896 pixels, pooled 4 x 4
    "gemma4": LargestImage(280 * 9, 9),  # 280 tokens, pooled 3 x 3
    "mistral3": LargestImage(110 * 110, 4),  # 1,540 pixels
    "llava": LargestImage(24 * 24, 1),  # 336 pixels
    "llama4": LargestImage(17 * 24 * 24, 4),  # sixteen tiles and the whole
    "llava_next": LargestImage(11 * 27 * 27, 1),  # ten tiles and the whole, 384 pixels each
    "qwen2_vl": LargestImage(256 * 256, 4),  # 12,845,056 pixels
    "qwen2_5_vl": LargestImage(256 * 256, 4),
    "qwen3_vl": LargestImage(256 * 256, 4),  # 16,777,216 pixels
    "qwen3_vl_moe": LargestImage(256 * 256, 4),
    "qwen3_5": LargestImage(256 * 256, 4),
    "qwen3_5_moe": LargestImage(256 * 256, 4),
}
"""Family -> its largest image; sizes as in the checkpoints' preprocessor configs [transformers image processors]."""

ROTATING: Final = frozenset(family for family in LARGEST if family.startswith("qwen"))
"""Families whose encoder rotates queries and keys in PyTorch."""

LONG_IMAGES_SINCE: Final[Version] = (0, 7)
"""Before, a start-up with images longer than the context failed, so they were made smaller [qwen2_vl.py]."""

VIDEO: Final = frozenset(("qwen2_vl", "qwen2_5_vl"))
"""Families profiled with the longest video that the context holds: pairs of frames as large as the largest image."""

VIDEO_PAIRS: Final[tuple[tuple[Version, int], ...]] = (((0, 10), 7), ((0, 0), 8))
"""Version -> most pairs of frames [video]."""

ENCODER_COPIES: Final = 4
"""Tensors of patches x width alive while an encoder's feed-forward block is widest."""

ROTARY_COPIES: Final[tuple[tuple[Version, int], ...]] = (((0, 11), 9), ((0, 0), 16))
"""Version -> tensors of patches x width alive while queries and keys rotate: states and normed states, queries, keys
and values twice over; until 0.10 the rotation was eager and in fp32 where no FlashAttention was at hand [vit]."""


class Images(NamedTuple):
    """The images of one profiled batch."""

    images: int
    patches: int  # of all
    tokens: int  # of all, as the decoder reads them


def images_of(model: Model, settings: Settings) -> Images | None:
    """What the profile feeds the encoder; None for models that do not see, or whose processor is not known."""
    largest = LARGEST.get(model.family)
    if largest is None or vision_tower(model) is None:
        return None
    films = model.family in VIDEO and settings.options.videos != 0
    if settings.options.images == 0 and not films:
        return None
    scale = _pairs(settings) if films else 1
    patches, tokens = scale * largest.patches, scale * largest.patches // largest.merged
    if settings.version < LONG_IMAGES_SINCE and tokens > settings.context:
        tokens = settings.context
        return Images(1, tokens * largest.merged, tokens)
    budget = max(settings.batched_tokens, tokens)
    count = max(1, min(budget // tokens, settings.max_sequences))
    return Images(count, count * patches, count * tokens)


def _pairs(settings: Settings) -> int:
    """Pairs of frames of the video that is profiled; V0 takes an image."""
    if not settings.v1:
        return 1
    frame = LARGEST["qwen2_vl"].patches // LARGEST["qwen2_vl"].merged
    most = next(pairs for since, pairs in VIDEO_PAIRS if settings.version >= since)
    return max(1, min(most, settings.context // frame))


def unknown_images(model: Model, settings: Settings) -> Iterator[str]:
    """What is to be said of a network that sees and whose largest image is not known."""
    if vision_tower(model) is not None and model.family not in LARGEST and settings.options.images != 0:
        yield (
            f"{model.name} reads images, and how large vLLM's largest is here is not known: what its encoder takes "
            "when vLLM starts is not counted and makes the cache smaller, or the start fail; --engine-option images=0 "
            "and videos=0, vLLM's --limit-mm-per-prompt, leave images out"
        )


def vision_tower(model: Model) -> Stack | None:
    """The stack that reads pixels."""
    return next((stack for stack in model.stacks[:-1] if stack.vision is not None and stack.vision.patch), None)


def encoder_tensors(model: Model, settings: Settings, stage: Stage) -> Iterator[Tensor]:
    """What stays alive of the images while the decoder is profiled."""
    images, tower = images_of(model, settings), vision_tower(model)
    if images is None or tower is None or tower.vision is None or not stage.first:
        return
    pixels = prod(tower.vision.patch) * tower.vision.in_channels
    yield _tensor("pixels", images.patches * pixels * settings.width,
                  f"{images.images} images, {images.patches:,} patches x {pixels} x {settings.width} B")
    yield _tensor("outputs", images.tokens * model.hidden * settings.width,
                  f"{images.tokens:,} tokens x {model.hidden:,} x {settings.width} B", Category.ENCODER)


def encoder_layer(model: Model, settings: Settings, stage: Stage, *, tp: int) -> Iterator[Tensor]:
    """The widest moment of the encoder's widest layer, of which every rank has a part, or its share of the images
    [vllm/model_executor/models/vision.py `run_dp_sharded_vision_model`]."""
    images, tower = images_of(model, settings), vision_tower(model)
    if images is None or tower is None or not stage.first:
        return
    if settings.options.mm_encoder_tp_mode == "data":
        share = ceil_div(images.images, tp)
        images, tp = images._replace(images=share, patches=images.patches // images.images * share), 1
    layer = tower.runs[0].layer
    inner = layer.channel.width // tp if isinstance(layer.channel, MLP) else 0
    copies = 3 if isinstance(layer.channel, MLP) and layer.channel.gated else 2
    rotating = next(copies for since, copies in ROTARY_COPIES if settings.version >= since)
    if model.family in ROTATING and rotating * tower.hidden > ENCODER_COPIES * tower.hidden + copies * inner:
        yield _hidden(rotating, images, tower, settings)
        return
    yield _tensor("encoder.mlp", copies * images.patches * inner * settings.width,
                  f"{copies} x {images.patches:,} patches x {inner:,} x {settings.width} B")
    yield _hidden(ENCODER_COPIES, images, tower, settings)


def _hidden(copies: int, images: Images, tower: Stack, settings: Settings) -> Tensor:
    return _tensor("encoder.hidden states", copies * images.patches * tower.hidden * settings.width,
                   f"{copies} x {images.patches:,} patches x {tower.hidden:,} x {settings.width} B")


FP32: Final = 4

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
    yield _tensor("final hidden states", settings.batched_tokens * h * width, source=SAMPLER)
    yield _tensor("hidden states of the last tokens", sequences * h * width, source=SAMPLER)
    for name, num_bytes, formula in drawn(model.vocab, settings, sequences=sequences):
        yield _tensor(name, num_bytes, formula, source=SAMPLER)
    if not settings.runner_2 and settings.version >= SORTS_UNTIL:
        yield _tensor("cuBLAS workspace", settings.blas_workspace, source=SAMPLER)


def drawn(vocab: int, settings: Settings, *, sequences: int) -> Sizes:
    """Logits and what is made of them: name, bytes and formula."""
    per, width = f"{sequences:,} sequences x {vocab:,}", settings.width
    if settings.runner_2:
        yield "logits", sequences * vocab * width, f"{per} x {width} B"
        return
    flashinfer = uses_flashinfer(settings)
    if settings.version < SORTS_UNTIL and not flashinfer:
        yield "sampler.sort", int(SORT_BYTES * sequences * vocab), f"{SORT_BYTES} B x {per}"
        return
    yield "logits", sequences * vocab * width, f"{per} x {width} B"
    third = "masked logits" if flashinfer else "exponential noise"
    for name in ("logits in fp32", "probabilities", third):
        yield f"sampler.{name}", sequences * vocab * FP32, f"{per} x {FP32} B"
    if not flashinfer:
        rows = min(sequences, MULTIPROCESSORS)
        yield "sampler.candidates", rows * vocab * FP32, f"{rows} multiprocessors x {vocab:,} x {FP32} B"


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
        category=Category.WORKSPACES, owner="sampler", formula=f"{sequences:,} sequences x {vocab:,} x (4 B + 1 bit)",
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


HIDDEN_COPIES: Final = 4
"""Tensors of T x H alive while the widest layer runs: residuals before and after, attention output, normed states."""

HANDED_ON: Final = 3
"""Tensors of T x H at the end of a stage that is not the last: states and residual that go out, and the states'
source. One log of two stages (0.19): 1.10 GiB."""

FORWARD_BUFFERS: Final = 12 * MIB
"""Positions, token ids and workspaces of matrix products beside them. Two forward-bound logs of 0.19 and one of two
stages leave 11.9 to 12.1 MB."""

UNPACKED: Final = ("nf4", "nf4-dq")
"""Formats whose matrices are unpacked into 16 bits for a product [bnb]."""


def profiled_step(
    model: Model, settings: Settings, stage: Stage, *, plan: ServePlan, gpu: Gpu, eight_bit: bool, quantised: str
) -> Program:
    """The step whose peak vLLM subtracts from the cache.

    Args:
        eight_bit: whether activations are quantised to 8 bits before each product
        quantised: format of the weights
    """
    tp = plan.tp
    rows = expert_rows(plan, settings, gpu, quantised)
    workspaces = tuple(_expert_workspaces(model, settings, stage, plan, rows))
    keeps = settings.version >= WORKSPACES_KEPT_SINCE
    kept = [*encoder_tensors(model, settings, stage), *(workspaces if keeps else ())]
    nodes: list[Node] = [Alloc(tensor) for tensor in kept]
    nodes += _transient(encoder_layer(model, settings, stage, tp=tp))
    forward = _forward(model, settings, stage, tp=tp, eight_bit=eight_bit)
    unpacked = _unpacked(model, settings, stage, tp, quantised)
    sent = () if stage.last else _handed_on(model, settings)
    nodes += _transient(chain(forward, unpacked, sent, () if keeps else workspaces))
    if stage.last and generates(model):
        nodes += _transient(sampler_tensors(model, settings, sequences=_sampled(model, settings)))
    return (*nodes, *(Free(tensor) for tensor in kept))


def _transient(tensors: Iterable[Tensor]) -> Iterator[Node]:
    alive = tuple(tensors)
    yield from map(Alloc, alive)
    yield from map(Free, alive)


def _sampled(model: Model, settings: Settings) -> int:
    """Sequences whose logits are drawn from: V0 fills its batch with as few as hold the largest images [runner]."""
    images = images_of(model, settings)
    if settings.v1 or images is None:
        return settings.max_sequences
    return max(1, min(settings.max_sequences, settings.batched_tokens // (images.tokens // images.images)))


def _forward(model: Model, settings: Settings, stage: Stage, *, tp: int, eight_bit: bool) -> Iterator[Tensor]:
    """The widest moment of the widest layer: up projections and their product beside the residual stream."""
    tokens, width = settings.batched_tokens, settings.width
    inner = max((inner_width(run.layer.channel, tp) for run in stage.runs(model)), default=0)
    yield _tensor("hidden states", HIDDEN_COPIES * tokens * model.hidden * width,
                  f"{HIDDEN_COPIES} x {tokens:,} tokens x {model.hidden:,} x {width} B")
    yield _tensor("buffers of the step", FORWARD_BUFFERS)
    yield _tensor("mlp.gate_up", 2 * tokens * inner * width, f"2 x {tokens:,} tokens x {inner:,} x {width} B")
    yield _tensor("mlp.product", tokens * inner * width, f"{tokens:,} tokens x {inner:,} x {width} B")
    if eight_bit:
        yield _tensor("mlp.product in 8 bits", tokens * inner, f"{tokens:,} tokens x {inner:,} B")


def inner_width(channel: MLP | MoE | None, tp: int) -> int:
    """Width of the dense part of a layer's channel mixer on one rank."""
    match channel:
        case MLP():
            return ceil_div(channel.width, tp)
        case MoE():
            return ceil_div(channel.shared_width, tp)
        case None:
            return 0


def _unpacked(model: Model, settings: Settings, stage: Stage, tp: int, quantised: str) -> Iterator[Tensor]:
    num_bytes = unpacked_bytes(model, settings, stage, tp=tp, quantised=quantised)
    if num_bytes:
        yield _tensor("unpacked matrix", num_bytes, f"{num_bytes // settings.width:,} x {settings.width} B")


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
    yield _tensor("sent to the next stage", size)


class Rows(NamedTuple):
    """How many rows the experts of a rank are given."""

    tokens: int
    padding: int  # for each expert
    workspaces: bool  # False: kernels bring their own


def expert_rows(plan: ServePlan, settings: Settings, gpu: Gpu, quantised: str) -> Rows:
    """Rows before they are copied for every expert a token goes to.

    Ranks that share whole experts read the tokens of all data-parallel copies [all2all.py `AgRsAll2AllManager`].
    """
    blocks = quantised == "fp8-block" and (gpu.sm or 0) >= DEEPGEMM_FROM
    return Rows(
        tokens=settings.batched_tokens * (plan.dp if plan.expert_parallel else 1),
        padding=EXPERT_BLOCK - 1 if blocks else 0,
        workspaces=quantised != "mxfp4" or gpu.sm not in PACKED_KERNELS,
    )


def _expert_workspaces(
    model: Model, settings: Settings, stage: Stage, plan: ServePlan, given: Rows
) -> Iterator[Tensor]:
    """The largest layer's workspaces; all layers use the same ones."""
    layers = [run.layer.channel for run in stage.runs(model) if isinstance(run.layer.channel, MoE)]
    if not layers or not given.workspaces:
        return
    moe = max(layers, key=lambda channel: channel.top_k * channel.expert.width)
    width, h = settings.width, moe.latent_width or model.hidden
    local = ceil_div(moe.num_experts, plan.tp * plan.dp if plan.expert_parallel else 1)
    inner = ceil_div(moe.expert.width, 1 if plan.expert_parallel else plan.tp)
    rows, up = given.tokens * moe.top_k + local * given.padding, (2 if moe.expert.gated else 1) * inner
    yield _tensor("experts.up or down", rows * max(up, h) * width, f"{rows:,} rows x {max(up, h):,} x {width} B")
    if settings.version >= WORKSPACES_KEPT_SINCE:
        other = max(inner, h)
        yield _tensor("experts.product or output", rows * other * width, f"{rows:,} rows x {other:,} x {width} B")
        return
    yield _tensor("experts.product", rows * inner * width, f"{rows:,} rows x {inner:,} x {width} B")
    yield _tensor("experts.output", given.tokens * h * width, f"{given.tokens:,} tokens x {h:,} x {width} B")


def _tensor(
    name: str, num_bytes: int, formula: str = "", category: Category = Category.ACTIVATIONS, source: str = RUNNER
) -> Tensor:
    return Tensor(
        name=name, num_bytes=num_bytes, category=category, owner="profiled step", formula=formula, source=source
    )
