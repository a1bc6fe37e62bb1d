"""Weights of one rank of a deployment, packed and stored as an engine keeps them.

[marlin] vllm-project/vllm vllm/model_executor/layers/quantization/mxfp4.py `create_weights`, later
fused_moe/oracle/mxfp4.py `mxfp4_round_up_hidden_size_and_intermediate_size`
[triton] vllm/third_party/triton_kernels/tensor_details/layout_details/hopper_value.py, hopper_scale.py `swizzle_data`
[packed] vllm-project/vllm vllm/model_executor/layers/linear.py `QKVParallelLinear`, `MergedColumnParallelLinear`;
sgl-project/sglang python/sglang/srt/layers/linear.py has the same
[slack] pytorch c10/cuda/CUDACachingAllocator.cpp `get_allocation_size`, `should_split`: a large request gets a segment
of whole 2 MiB, and a remainder of up to 1 MiB stays with it

Exact bytes from a checkpoint's headers: each part of the network weighs what its tensors say.

The headers tell bytes, the network tells how they are divided: a part's tensors on one rank are the formula's share of
what the headers hold of that part. On one rank without pipeline stages the sum is the headers' own.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from vramcast.blocks.parameters.model import named_parameters
from vramcast.domain.model import (
    Attention,
    Layer,
    Model,
    MoE,
    MultiLatentAttention,
    Parameter,
    StoredTensor,
    StoredWeights,
)
from vramcast.domain.program import Alloc, Category, Loop, Program, Tensor
from vramcast.engines.serving.stages import Stage
from vramcast.errors import Note
from vramcast.parallel.layout import Layout
from vramcast.states.optimizers import local_shape
from vramcast.states.storage import format_for, format_of, is_expert
from vramcast.units import MIB, ceil_div, round_up

BLOCK = 32
"""Numbers that share a scale of one byte."""


class Packing(Struct, frozen=True):
    """One layout of the experts' two matrices: gate and up together, and down."""

    name: str
    hidden: int  # what the residual stream is rounded up to [channels]
    inner: int  # what the width of an expert on one rank is rounded up to [channels]
    values: tuple[int, int] = (1, 1)  # what packed inputs [bytes] and outputs of a matrix are padded to
    scales: int = 1  # what outputs are padded to where scales are laid out anew
    own_scales: bool = False  # scales as they were loaded stay beside those laid out anew [triton]
    bias_width: int = 2  # [bytes]


MARLIN = Packing("Marlin", 256, 128)


def padding_bytes(moe: MoE, hidden: int, *, divided: int, experts: int, packing: Packing) -> int:
    """Bytes that the layout of one layer's experts takes beyond a checkpoint's.

    Args:
        hidden: width of the residual stream [channels]
        divided: ranks that share one expert's matrices
        experts: on this rank
    """
    inner, ups = ceil_div(moe.expert.width, divided), 2 if moe.expert.gated else 1
    h, f = round_up(hidden, packing.hidden), round_up(inner, packing.inner)
    rows, columns = packing.values
    packed = bare = 0
    for inputs, outputs, plain in ((h, ups * f, hidden * ups * inner), (f, h, inner * hidden)):
        packed += round_up(inputs // 2, rows) * round_up(outputs, columns)
        packed += ceil_div(inputs, BLOCK) * round_up(outputs, packing.scales)
        packed += ceil_div(inputs, BLOCK) * outputs * packing.own_scales
        bare += plain // 2 + plain // BLOCK
    if moe.expert.bias:
        packed += (ups * f + h) * packing.bias_width
        bare += (ups * inner + hidden) * 2
    return (packed - bare) * experts


CHECKPOINT_FORMATS: Final[dict[str, str]] = {
    "fp8": "fp8-block", "nvfp4": "nvfp4", "mxfp4": "mxfp4", "nf4": "nf4", "fp4": "nf4", "int8": "int8", "int4": "int4",
}
"""`Model.quantisation` -> key of FORMATS."""

EXPERT_FORMATS: Final[dict[tuple[str, str], str]] = {("deepseek_v4", "fp8-block"): "mxfp4"}
"""Family and format -> format of its routed experts [deepseek-ai/DeepSeek-V4-Flash model card: FP4 and FP8 mixed]."""

WHOLE_LATENT: Final = frozenset(("nvfp4",))
"""Formats whose published checkpoints leave latent attention in 16 bits [nvidia/DeepSeek-R1-FP4 hf_quant_config.json,
exclude_modules: self_attn]."""

PACKED: Final[dict[str, str]] = {
    "attention.q": "attention.qkv", "attention.k": "attention.qkv", "attention.v": "attention.qkv",
    "attention.q_a": "attention.qkv_a", "attention.kv_a": "attention.qkv_a",
    "mlp.gate": "mlp.gate_up", "mlp.up": "mlp.gate_up",
    "moe.shared.gate": "moe.shared.gate_up", "moe.shared.up": "moe.shared.gate_up",
    "moe.experts.gate": "moe.experts.gate_up", "moe.experts.up": "moe.experts.gate_up",
}
"""Path of a weight -> of the tensor it is a part of; biases likewise."""

SOURCE: Final = "the checkpoint's tensors under the plan; docs/serving.md"

LARGE: Final = 10 * MIB
SEGMENT: Final = 2 * MIB
KEPT_REMAINDER: Final = MIB


class Formats(Struct, frozen=True):
    """How a checkpoint's weights are stored on the card."""

    quantised: str  # of what quantisers convert
    whole: str  # of everything else
    experts: str = ""  # of routed experts, where they differ
    attention: str = ""  # of what mixes tokens, where it differs
    left_whole: tuple[str, ...] | None = None  # see `states.storage.format_for`

    def of(self, parameter: Parameter) -> str:
        """The format of one weight of the decoder."""
        if self.attention and parameter.path.startswith("attention."):
            return self.attention
        if self.experts and is_expert(parameter):
            return self.experts
        return format_for(parameter, quantised=self.quantised, whole=self.whole, left_whole=self.left_whole)


def formats_of(model: Model, *, weights: str | None, dtype: str | None) -> Formats:
    """The formats a question names, else the checkpoint's own."""
    whole = dtype or (model.dtype if model.dtype in ("bf16", "fp16") else "bf16")
    weights = None if weights == model.quantisation else weights  # engines keep its blocks: FP8 is FP8 in blocks
    stated = weights or model.quantisation
    if stated is None:
        return Formats(whole, whole)
    quantised = stated if weights is not None else CHECKPOINT_FORMATS.get(stated, stated)
    latent = any(isinstance(run.layer.mixer, MultiLatentAttention) for run in model.main.runs)
    return Formats(
        quantised,
        whole,
        experts="" if weights is not None else EXPERT_FORMATS.get((model.family, quantised), ""),
        attention=whole if latent and quantised in WHOLE_LATENT else "",
    )


class _Part(Struct, frozen=True):
    """One or several weights in one tensor."""

    owner: str
    name: str
    num_bytes: int
    repeats: int
    formula: str


def weight_tensors(
    model: Model,
    *,
    layout: Layout,
    formats: Formats,
    stage: Stage,
    category: Category = Category.WEIGHTS,
    stored: StoredWeights | None = None,
    whole_towers: bool = False,
) -> Iterator[tuple[Tensor, int]]:
    """The weights of one rank with how many equal ones there are.

    Leaves out what no engine loads: a tied head's copy, rotary frequencies, multi-token-prediction modules.

    Args:
        formats: how weights are stored
        category: where the ledger lists them
        stored: headers of the checkpoint, which say the bytes of each part better than formats do
        whole_towers: towers are not divided: ranks share the images instead
    """
    parts = _parts(model, layout, formats, stage, whole_towers=whole_towers)
    if stored is not None:
        parts = _as_stored(parts, model, stored, formats)
    for part in _packed(parts):
        tensor = Tensor(
            name=part.name, num_bytes=block_bytes(part.num_bytes), category=category, owner=part.owner,
            formula=part.formula, source=SOURCE,
        )
        yield tensor, part.repeats


def _parts(
    model: Model, layout: Layout, formats: Formats, stage: Stage, *, whole_towers: bool = False
) -> Iterator[_Part]:
    staged = stage_of(model, stage)
    for owned in named_parameters(staged):
        owner, parameter, repeats = owned.owner, owned.parameter, owned.repeats
        if not on_stage(owner, model, stage):
            continue
        # quantisers leave the towers in front of the decoder as they are
        inside = not any(owner.startswith(stack.name) for stack in model.stacks[:-1])
        divided = Layout() if whole_towers and not inside else layout
        shape = local_shape(parameter, replace(divided.around(parameter), kv_heads=_kv_heads(staged, owner)))
        stored = formats.of(parameter) if inside else formats.whole
        sizes = " x ".join(f"{size:,}" for size in shape)
        chosen = format_of(stored)
        yield _Part(owner, parameter.path, chosen.data_bytes(shape), repeats, f"{sizes} in {stored}")
        if beside := chosen.side_bytes(shape):
            yield _Part(owner, f"{parameter.path}.scales", beside, repeats, f"{sizes} in {stored}")


def _as_stored(parts: Iterator[_Part], model: Model, stored: StoredWeights, formats: Formats) -> Iterator[_Part]:
    """The parts with the bytes that the headers give them."""
    from vramcast.engines.serving.weights import factors, part_of_owner

    whole = Stage(0, model.num_layers, first=True, last=True)
    formula = (
        (part_of_owner(part.owner, part.name, model), part.num_bytes * part.repeats)
        for part in _parts(model, Layout(), formats, whole)
    )
    scale = factors(model, stored, formula)
    for part in parts:
        top, bottom = scale.get(part_of_owner(part.owner, part.name, model), (1, 1))
        num_bytes = ceil_div(part.num_bytes * top, bottom)
        yield replace(part, num_bytes=num_bytes, formula=Note("{}, as its header says", part.formula))


def _packed(parts: Iterable[_Part]) -> Iterator[_Part]:
    """Parts of one tensor together, then equal tensors of all runs of a stack, in the order of the first."""
    equal: dict[tuple[str, str, int], _Part] = {}
    for part in _joined(parts):
        stack = part.owner.partition(".layers.")
        owner = f"{stack[0]}.layers" if stack[1] else part.owner
        key = (owner, part.name, part.num_bytes)
        before = equal.get(key)
        equal[key] = replace(part, owner=owner, repeats=part.repeats + (before.repeats if before else 0))
    return iter(equal.values())


def _joined(parts: Iterable[_Part]) -> Iterator[_Part]:
    joined: dict[tuple[str, str], _Part] = {}
    for part in parts:
        path, dot, kind = part.name.rpartition(".")
        stem, suffix = (path, dot + kind) if kind in ("bias", "scales") else (part.name, "")
        name = PACKED.get(stem, stem) + suffix
        before = joined.get((part.owner, name))
        if before is None:
            joined[part.owner, name] = replace(part, name=name)
        else:
            formula = f"{before.formula} + {part.formula}"
            joined[part.owner, name] = replace(before, num_bytes=before.num_bytes + part.num_bytes, formula=formula)
    return iter(joined.values())


def block_bytes(num_bytes: int) -> int:
    """What a weight takes of the caching allocator when it is loaded: large ones keep a small remainder [slack].

    >>> block_bytes(int(31.5 * 2**20)) // 2**20, block_bytes(int(24.5 * 2**20)) / 2**20
    (32, 24.5)
    """
    segment = round_up(num_bytes, SEGMENT)
    return segment if num_bytes >= LARGE and segment - num_bytes <= KEPT_REMAINDER else num_bytes


def stage_of(model: Model, stage: Stage) -> Model:
    """The network with only the layers of a stage in its main stack."""
    main = replace(model.main, runs=tuple(stage.runs(model)))
    return replace(model, stacks=(*model.stacks[:-1], main))


def on_stage(owner: str, model: Model, stage: Stage) -> bool:
    """Whether the weights of an owner lie on the ranks of a stage."""
    if owner.startswith(f"{model.main.name}.layers"):
        return True
    if owner in ("head", model.main.name):
        return stage.last
    # a tied embedding is the head's weight too, so the last stage holds a copy
    return stage.first or (owner == "embedding" and model.tied and stage.last)


def _kv_heads(model: Model, owner: str) -> int:
    """Key/value heads of the layers of an owner; 0 where it has none."""
    layer = _layer_of(model, owner)
    return layer.mixer.num_kv_heads if layer is not None and isinstance(layer.mixer, Attention) else 0


def _layer_of(model: Model, owner: str) -> Layer | None:
    stack_name, dot, span = owner.partition(".layers.")
    if not dot:
        return None
    first = int(span.partition("-")[0])
    stack = next(stack for stack in model.stacks if stack.name == stack_name)
    for run in stack.runs:
        if first < run.count:
            return run.layer
        first -= run.count
    return None


def loaded(tensors: Iterable[tuple[Tensor, int]]) -> Program:
    """The program that allocates weights and keeps them."""
    return tuple(Loop(repeats, (Alloc(tensor),), label="layers") for tensor, repeats in tensors)


def total(program: Program) -> int:
    """Bytes of what a load program leaves, unrounded [bytes]."""
    return sum(
        node.tensor.num_bytes if isinstance(node, Alloc) else node.count * total(node.body)
        for node in program
        if isinstance(node, (Alloc, Loop))
    )


class Part(StrEnum):
    """Parts of a network whose weights are stored and divided alike."""

    EMBEDDING = "embedding"
    HEAD = "head"
    EXPERTS = "experts"
    TOWERS = "towers"
    LAYERS = "layers"
    NONE = "none"  # stored, but no engine loads it


PATTERNS: Final[tuple[tuple[Part, re.Pattern[str]], ...]] = (
    (Part.NONE, re.compile(r"rotary_emb|inv_freq|rope_freqs|masked_bias|attn\.bias$|position_ids|(?:^|\.)mtp\.")),
    (Part.TOWERS, re.compile(r"visual|vision|image|audio|multi_modal|mm_projector|^v\.|^mm\.|^a\.|encoder\.block")),
    (Part.HEAD, re.compile(r"(?:^|\.)lm_head\.|^output\.weight|embed_out|(?:^|\.)score\.|classifier")),
    (Part.EMBEDDING, re.compile(r"embed_tokens|word_embeddings|(?:^|\.)wte\.|token_embd|tok_embeddings|^shared\.")),
    (Part.EXPERTS, re.compile(r"experts?\.|_exps\b|experts_")),
)
"""Part -> names of its tensors, of safetensors and GGUF; the first that fits, else the layers."""

SHARED_EXPERTS: Final = re.compile(r"shared_expert|_shexp\b")
LAYER: Final = re.compile(r"(?:layers|blk|h)\.(\d+)\.")


def part_of_stored(tensor: StoredTensor, model: Model) -> Part:
    """The part a stored tensor belongs to; modules beyond the last layer predict further tokens and are left out."""
    layer = LAYER.search(tensor.name)
    part = next((part for part, pattern in PATTERNS if pattern.search(tensor.name)), Part.LAYERS)
    if layer is not None and part in (Part.LAYERS, Part.EXPERTS) and int(layer[1]) >= model.num_layers:
        return Part.NONE
    if part is Part.EXPERTS and SHARED_EXPERTS.search(tensor.name):
        return Part.LAYERS
    return Part.NONE if part is Part.HEAD and model.tied else part


def part_of_owner(owner: str, path: str, model: Model) -> Part:
    """The part a weight of the network belongs to."""
    if any(owner.startswith(stack.name) for stack in model.stacks[:-1]):
        return Part.TOWERS
    if owner in ("embedding", "head"):
        return Part(owner)
    return Part.EXPERTS if path.startswith("moe.experts") else Part.LAYERS


Ratio = tuple[int, int]
"""Numerator and denominator."""


def factors(model: Model, weights: StoredWeights, formula: Iterable[tuple[Part, int]]) -> Mapping[Part, Ratio]:
    """What the headers hold of each part over what the formula gives the whole network.

    Args:
        weights: its headers
        formula: part and bytes of every weight of the whole network
    """
    expected: dict[Part, int] = defaultdict(int)
    for part, num_bytes in formula:
        expected[part] += num_bytes
    if not weights.tensors:
        whole = max(1, sum(expected.values()))
        return dict.fromkeys(expected, (weights.listed_bytes or whole, whole))
    stored: dict[Part, int] = defaultdict(int)
    for tensor in weights.tensors:
        stored[part_of_stored(tensor, model)] += tensor.num_bytes
    return {part: (stored[part] or size, size) for part, size in expected.items() if size}
