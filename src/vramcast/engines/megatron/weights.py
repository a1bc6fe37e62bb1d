"""Weight tensors as one rank holds them, and which linears have adapters: Megatron-Bridge's, NeMo's, mcore-bridge's.

[gpt] Megatron-LM megatron/core/models/gpt/gpt_layer_specs.py: one query-key-value weight, one gate-up weight.
[Bridge] NVIDIA-NeMo/Megatron-Bridge at 067f987d src/megatron/bridge/peft/lora.py `LoRA.transform`: all weights are
frozen, adapters are of the model's 16 bits and in the buffers of the distributed optimizer. So are mcore-bridge's
[swift megatron/utils/megatron_lm_utils.py `wrap_model`: Float16Module casts whatever PEFT made].

What Megatron's FSDP gathers and does not reduce yet while the layers run.

Letters: u elements of a layer's weights on a rank   Q elements of gradients in flight   A elements gathered ahead

[FSDP] Megatron-LM at d98e8a64 megatron/core/distributed/fsdp/src/megatron_fsdp/megatron_fsdp.py: the size of a
communication, 2 u and at least 1e9 elements, is Q; half of it is A. param_and_grad_buffer.py `GradReducePipeline`: a
layer's whole gradients live until more than Q elements wait behind them, or until backward is over;
`AllGatherPipeline`: weights are gathered until A elements are ahead, a layer's are freed behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.blocks.parameters.layer import layer_parameters
from vramcast.blocks.parameters.model import (
    embedding_parameters,
    head_parameters,
    mtp_parameters,
    named_parameters,
    stack_parameters,
)
from vramcast.blocks.parameters.targets import matrices, parts_of
from vramcast.domain.job import Job, Peft, Precision
from vramcast.domain.model import Attention, Layer, Model, MoE, Parameter, Split
from vramcast.domain.program import Alloc, Category, Free, Loop, Node, Program, Tensor
from vramcast.errors import Unsupported
from vramcast.operators.lowering import Lowered
from vramcast.operators.transformer_engine import Lora
from vramcast.parallel.layout import Layout
from vramcast.states.megatron import Weight

OF_DELTA: Final = tuple(f"linear_attention.{name}" for name in ("q", "k", "v", "gate", "beta", "decay"))

_PACKED = {
    "attention.q": "attention.qkv", "attention.k": "attention.qkv", "attention.v": "attention.qkv",
    "attention.q.bias": "attention.qkv.bias", "attention.k.bias": "attention.qkv.bias",
    "attention.v.bias": "attention.qkv.bias", "mlp.gate": "mlp.up", "mlp.gate.bias": "mlp.up.bias",
    "moe.experts.gate": "moe.experts.up", "moe.shared.gate": "moe.shared.up",
    "cross.attention.k": "cross.attention.kv", "cross.attention.v": "cross.attention.kv",
    **dict.fromkeys(OF_DELTA, "linear_attention.in"),
}


def layer_weights(layer: Layer, *, hidden: int, layout: Layout, owner: str, count: int) -> list[Weight]:
    """Weights of `count` equal layers on one rank."""
    kv_heads = layer.mixer.num_kv_heads if isinstance(layer.mixer, Attention) else 0
    local = replace(layout, kv_heads=kv_heads)
    experts = layout.local_experts(layer.channel.num_experts) if isinstance(layer.channel, MoE) else 1
    found = list(_local(layer_parameters(layer, hidden=hidden), local, owner))
    return [
        weight._replace(count=count * experts, elements=weight.elements // experts)
        if weight.expert
        else weight._replace(count=count)
        for weight in found
    ]


def owned_weights(parameters: Iterable[Parameter], *, layout: Layout, owner: str) -> list[Weight]:
    """Weights outside the layers on one rank."""
    return list(_local(parameters, layout, owner))


def _local(parameters: Iterable[Parameter], layout: Layout, owner: str) -> Iterator[Weight]:
    packed: dict[str, Weight] = {}
    for parameter in parameters:
        if not parameter.trainable:
            continue
        path = _PACKED.get(parameter.path, parameter.path)
        elements = layout.local_elements(parameter)
        if path in packed:
            elements += packed[path].elements
        matrix = len(parameter.shape) >= 2 and parameter.kind != "embedding" and "output" not in path
        decays = len(parameter.shape) - int(parameter.expert) >= 2
        packed[path] = Weight(owner, path, elements, 1, parameter.expert, matrix, decays)
    yield from packed.values()


def embedding_weights(model: Model) -> tuple[Parameter, ...]:
    """The embedding's, of tokens and of positions."""
    owned = [parameter for parameter in stack_parameters(model.main) if parameter.path.startswith("embedding")]
    return (*embedding_parameters(model), *owned)


def tower_weights(model: Model) -> list[Weight]:
    """Of stacks that see and what follows them: whole on every rank of the first stage, and frozen."""
    towers = {stack.name for stack in model.stacks[:-1] if stack.vision is not None}
    return [
        Weight(owned.owner, owned.parameter.path, owned.parameter.elements, owned.repeats)
        for owned in named_parameters(model) if owned.owner.partition(".")[0] in towers
    ]


def head_weights(model: Model, *, copied: bool) -> tuple[Parameter, ...]:
    """Final norm and output projection; a tied one is a copy where the embedding lives on another stage."""
    norms = [parameter for parameter in stack_parameters(model.main) if parameter.path.startswith("final_norm")]
    found = [*norms, *head_parameters(model)]
    if model.tied and copied:
        shape = (model.vocab, model.hidden)
        found.append(Parameter(path="head.output, tied copy", shape=shape, split=Split.VOCAB, kind="embedding"))
    return tuple(found)


def prediction_weights(model: Model, layers: tuple[Layer, ...], layout: Layout, *, copied: bool) -> list[Weight]:
    """Of modules that predict further tokens: their layers, and around them two norms, a product divided by rows and
    another norm; an untied embedding that lives on another stage is copied beside them."""
    found: list[Weight] = []
    for parameters, layer in zip(mtp_parameters(replace(model, mtp_layers=layers)), layers, strict=True):
        around = [replace(one, split=Split.COLUMN) if one.path == "mtp.projection" else one for one in parameters
                  if one.path.startswith(AROUND)]
        found += owned_weights(around, layout=layout, owner="mtp")
        found += layer_weights(layer, hidden=model.hidden, layout=layout, owner="mtp", count=1)
    if copied and not model.tied:
        found += owned_weights(embedding_parameters(model), layout=layout, owner="copied for mtp")
    return found


AROUND: Final = ("mtp.embedding_norm", "mtp.hidden_norm", "mtp.projection", "mtp.final_norm")

QUERIES: Final = ("attention.q", "attention.k", "attention.v")

PRODUCTS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "attention.qkv": ("linear_qkv", QUERIES),
    "attention.q": ("linear_q_proj", ("attention.q",)),
    "attention.q_down": ("linear_q_down_proj", ("attention.q_a",)),
    "attention.q_up": ("linear_q_up_proj", ("attention.q_b",)),
    "attention.kv_down": ("linear_kv_down_proj", ("attention.kv_a",)),
    "attention.kv_up": ("linear_kv_up_proj", ("attention.kv_b",)),
    "attention.out": ("linear_proj", ("attention.out",)),
    "mlp.up": ("linear_fc1", ("mlp.gate", "mlp.up")),
    "mlp.down": ("linear_fc2", ("mlp.down",)),
    "experts.up": ("linear_fc1 of the experts", ("moe.experts.gate", "moe.experts.up")),
    "experts.down": ("linear_fc2 of the experts", ("moe.experts.down",)),
    "shared_expert.up": ("linear_fc1 of the shared experts", ("moe.shared.gate", "moe.shared.up")),
    "shared_expert.down": ("linear_fc2 of the shared experts", ("moe.shared.down",)),
    "mamba.in": ("in_proj", ("mamba.in",)),
    "mamba.out": ("out_proj", ("mamba.out",)),
    "linear_attention.in": ("in_proj", OF_DELTA),
    "linear_attention.out": ("out_proj", ("linear_attention.out",)),
}
"""Product on the tape -> Megatron's module, and the weights that it makes at once."""


SAVED: Final = {"embedding": "embedding.tokens", "head": "head.output"}
"""What may be trained whole beside adapters, in a copy that PEFT makes -> its weight."""


def check_adapters(job: Job, fsdp: bool) -> None:
    """Raise Unsupported for adapters that Megatron-Bridge does not make, or that are not modelled."""
    plan, peft = job.plan, job.plan.peft
    assert peft is not None
    if peft.method != "lora":
        raise Unsupported(
            "--peft {} is not modelled for megatron, which has lora here; use --engine huggingface or unsloth",
            peft.method
        )
    if peft.base != "full":
        raise Unsupported(
            "Megatron's frozen weights are not packed, as --base-weights {} asks; use --engine huggingface or unsloth",
            peft.base
        )
    if peft.trainable_parameters or not SAVED.keys() >= set(peft.modules_to_save):
        raise Unsupported(
            "modules trained whole beside adapters are not modelled for megatron; use --engine huggingface or unsloth"
        )
    if plan.precision is Precision.FP8 or fsdp or plan.shards == "everything":
        raise Unsupported(
            "adapters are modelled for megatron in 16 bits, with a distributed optimizer or without; leave out fp8 and "
            "Megatron's FSDP"
        )
    if any(stack.vision is None for stack in job.model.stacks[:-1]) or not job.model.main.causal:
        raise Unsupported(
            "{}: adapters are modelled for Megatron's decoders; use --engine huggingface or unsloth", job.model.name
        )
    if any("layers." in target for target in peft.targets):
        raise Unsupported(
            "adapters in some of the layers are not modelled for megatron; use --engine huggingface or unsloth"
        )


def lora_of(job: Job, layout: Layout, of_mcore_bridge: bool) -> Lora | None:
    """The adapters of a job.

    Raises: Unsupported for a part of a product that Megatron makes at once, and for what mcore-bridge refuses
    """
    peft = job.plan.peft
    if peft is None:
        return None
    products = frozenset(_products(job, peft))
    if of_mcore_bridge and layout.etp > 1 and any(name.startswith("experts.") for name in products):
        raise Unsupported("mcore-bridge has no adapters of experts that ranks divide; use --etp 1")
    return Lora(peft.rank, products, peft.dropout, layout.tp, layout.etp, of_mcore_bridge)


def _products(job: Job, peft: Peft) -> list[str]:
    main = job.model.main
    has = {path for run in main.runs for path in matrices(run.layer, main.hidden)}
    wanted = {part for target in peft.targets for part in parts_of(target.removeprefix(f"{main.name}."))}
    found, covered = [], set[str]()
    for product, (module, parts) in PRODUCTS.items():
        there = has.intersection(parts)
        if product == "attention.q" and "attention.k" in has:
            continue
        if not there & wanted or (product == "attention.qkv" and "attention.k" not in has):
            continue
        if missing := sorted(there - wanted):
            raise Unsupported(
                "Megatron's LoRA corrects {} as a whole; add {} to --lora-targets", module, ", ".join(missing)
            )
        found.append(product)
        covered |= there
    if others := sorted(wanted - covered):
        raise Unsupported("adapters on {} are not modelled for megatron; leave them out", ", ".join(others))
    return found


LEAST: Final = 1_000_000_000
"""Elements of a communication at the least [FSDP]."""

SOURCE: Final = "Megatron-LM core/distributed/fsdp/src/megatron_fsdp"


class Widths(NamedTuple):
    """Bytes of an element."""

    weight: int  # 0: weights are not divided
    gradient: int


def tensors_of(elements: int, widths: Widths, owner: str) -> tuple[Tensor, Tensor]:
    """The gathered weights of a unit, and its gradients before they are reduced."""
    return (
        _tensor("gathered weights", elements, widths.weight, Category.WEIGHTS, owner),
        _tensor("gradients before they are reduced", elements, widths.gradient, Category.GRADIENTS, owner),
    )


def repeated(lowered: Lowered, count: int, elements: int, widths: Widths) -> tuple[Program, Program]:
    """Forward and backward of equal layers, with what is gathered ahead of them and what waits behind them.

    Args:
        lowered: one layer
        count: how many there are
        elements: of its weights on this rank, u
        widths: bytes of an element
    """
    weight, gradient = tensors_of(elements, widths, "layers")
    whole = max(LEAST, 2 * elements)
    gathered = min(count, 1 + -(-(whole // 2) // elements)) if widths.weight else 0
    waiting = min(count, whole // elements + 1)  # behind the one at work
    last = count - gathered  # layers behind which nothing is left to gather
    ahead: Node = Loop(gathered, (Alloc(weight),), label="gathered ahead")
    forward = [ahead] if gathered else []
    backward = [ahead] if gathered else []
    for start, stop in pairwise(sorted({0, last, count})):
        freed = (Free(weight),) if start >= last else ()
        forward.append(Loop(stop - start, (*lowered.forward, *freed)))
    for start, stop in pairwise(sorted({0, waiting, last, count})):
        reduced = (Free(gradient),) if start >= waiting else ()
        freed = (Free(weight),) if start >= last else ()
        backward.append(Loop(stop - start, (Alloc(gradient), *lowered.backward, *reduced, *freed)))
    return tuple(forward), (*backward, Loop(waiting, (Free(gradient),), label="reduced"))


def around(forward: Program, backward: Program, ends: tuple[int, ...], widths: Widths) -> tuple[Program, Program]:
    """A micro-batch with what is no layer: gathered from its first use to the end, reduced when backward is over.

    Args:
        forward: of the micro-batch
        backward: of the micro-batch
        ends: elements of the embedding and of the head, where the chunk has them
        widths: bytes of an element
    """
    tensors = [tensors_of(elements, widths, "ends") for elements in ends if elements]
    gathered = [weight for weight, _ in tensors if widths.weight]
    gradients = [gradient for _, gradient in tensors]
    return (
        (*map(Alloc, gathered), *forward),
        (*map(Alloc, gradients), *backward, *map(Free, gradients), *map(Free, gathered)),
    )


def _tensor(name: str, elements: int, width: int, category: Category, owner: str) -> Tensor:
    return Tensor(name=name, num_bytes=elements * width, category=category, owner=owner,
                  formula=f"{elements:,} x {width} B", source=SOURCE)
