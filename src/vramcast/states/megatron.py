"""Weights, gradient buffers and optimizer states of Megatron-Core on one rank.

[DDP] Megatron-LM megatron/core/distributed/param_and_grad_buffer.py: one contiguous buffer per dtype and group.
[DO] megatron/core/optimizer/distrib_optimizer.py: fp32 main parameters and moments of this rank's slice of the buffer.
[PA] megatron/core/optimizer/optimizer_config.py `use_precision_aware_optimizer`, `store_param_remainders`: FusedAdam of
TransformerEngine keeps the low 16 bits of the fp32 weights as int16 and reads bf16 gradients as they are.
[TE] TransformerEngine transformer_engine/pytorch/optimizers/fused_adam.py `FusedAdam.step`, `get_unscaled_state`:
moments that are not fp32 are copied to fp32, all of a parameter group before its kernel runs; bf16 ones are read as
they are since 2.14 (`fuse_unscale`).
[hybrid] megatron/core/optimizer/cpu_offloading/hybrid_optimizer.py `_get_sub_optimizer_param_groups`
[layer_wise] megatron/core/optimizer/layer_wise_optimizer.py `allgather_params`
[F16] megatron/core/optimizer/optimizer.py, Float16OptimizerWithFloat16Params: full fp32 copies, one per weight.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import lcm
from typing import Final, NamedTuple

from vramcast.domain.program import Alloc, Category, Free, Loop, Node, Tensor
from vramcast.units import ceil_div, round_up

PARAMETER_ALIGNMENT: Final = 64
"""Each weight starts at a multiple of this in the buffer [elements] (param_layout.py, pad_param_start)."""


class Weight(NamedTuple):
    """One weight tensor as this rank holds it, and how many equal ones there are."""

    owner: str
    path: str
    elements: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    expert: bool = False
    matrix: bool = True  # two-dimensional and no embedding: what Muon orthogonalises
    decays: bool = True  # of two dimensions or more: its parameter group has weight decay


class StateRules(NamedTuple):
    """How states are kept."""

    weight_bytes: int  # per element of a weight
    gradient_bytes: int  # per element of the gradient buffer
    distributed: bool  # states divided over the data-parallel group
    dense_ranks: int  # ranks that divide the states of dense weights
    expert_ranks: int
    moments: int  # fp32 moments per element: 2 Adam, 1 momentum, 0 plain
    muon: bool = False
    gathers_lists: bool = False  # of Muon: weights of all ranks are gathered beside the model's [layer_wise]
    gradients_divided: bool = False  # Megatron FSDP
    weights_divided: bool = False
    main_parameters: bool = True
    on_gpu: float = 1.0  # part of the states that is not offloaded to the host
    precision_aware: bool = False  # [PA]: 16-bit weights keep only the other 16 bits of fp32, gradients are not copied
    moment_bytes: int = 4  # per element of a moment
    copied_bytes: int = 0  # per element [TE]: states that are copied to fp32 while a parameter group is stepped
    main_in_fp16: bool = False  # of [PA]: whole weights, in place of remainders


class States(NamedTuple):
    """Allocation nodes by the moment they appear."""

    load: tuple[Node, ...]  # weights, gradient buffers, fp32 main parameters
    first_step: tuple[Node, ...]  # moments, and fp32 gradients kept between steps
    num_elements: int
    update: tuple[Node, ...] = ()  # what a step of the optimizer makes and frees


def buffer_elements(weights: Iterable[Weight], *, ranks: int, distributed: bool) -> int:
    """Elements of a contiguous buffer with the padding of the distributed optimizer."""
    if not distributed:
        return sum(weight.elements * weight.count for weight in weights)
    used = sum(round_up(weight.elements, PARAMETER_ALIGNMENT) * weight.count for weight in weights)
    return round_up(used, lcm(ranks, 128))


class _Load:
    """What happens while a run starts, in three waves: the model is built weight by weight, the buffers are made and
    the weights move into them, the optimizer clones its fp32 copies [DDP, DO]."""

    def __init__(self) -> None:
        self.model: list[Node] = []
        self.buffers: list[Node] = []
        self.optimizer: list[Node] = []

    def program(self) -> tuple[Node, ...]:
        return (*self.model, *self.buffers, *self.optimizer)


def states(weights: Sequence[Weight], rules: StateRules, *, frozen: Sequence[Weight] = ()) -> States:
    """All persistent tensors of one rank's weights; frozen ones are in no buffer and have no states."""
    load = _Load()
    load.model.extend(_grouped(frozen, rules.weight_bytes, Category.WEIGHTS, "frozen", "weight"))
    first: list[Node] = []
    update: list[Node] = []
    total = 0
    for expert in (False, True):
        group = [weight for weight in weights if weight.expert is expert]
        if group:
            ranks = rules.expert_ranks if expert else rules.dense_ranks
            total += _group(group, rules, ranks, "experts" if expert else "dense", load, first, update)
    return States(load.program(), tuple(first), total, tuple(update))


def _group(
    group: list[Weight], rules: StateRules, ranks: int, label: str, load: _Load, first: list[Node], update: list[Node]
) -> int:
    elements = buffer_elements(group, ranks=ranks, distributed=rules.distributed)
    built = list(_grouped(group, rules.weight_bytes, Category.WEIGHTS, label, "weight"))
    load.model.extend(built)
    if rules.distributed:
        held = ceil_div(elements, ranks) if rules.weights_divided else elements
        load.buffers.append(Alloc(_tensor("parameter buffer", held, rules.weight_bytes, Category.WEIGHTS, label)))
    if rules.gradient_bytes:
        held = ceil_div(elements, ranks) if rules.gradients_divided else elements
        load.buffers.append(Alloc(_tensor("gradient buffer", held, rules.gradient_bytes, Category.GRADIENTS, label)))
    if rules.distributed:
        load.buffers.extend(_freed(built))  # each weight becomes a view of the buffer
    shards = list(_slices(group, elements, ranks)) if rules.distributed else group
    if rules.on_gpu:  # whole weights leave until the part that is to is gone: here that part of each [hybrid]
        shards = [weight._replace(elements=math.ceil(weight.elements * rules.on_gpu)) for weight in shards]
        _optimizer(shards, rules, label, load, first)
        if rules.gathers_lists and ranks > 1:
            gathered = _tensor("weights gathered by rank", elements, rules.weight_bytes, Category.TEMPORARIES, label)
            update += (Alloc(gathered), Free(gathered))
        if rules.copied_bytes:
            update += _copied_states(shards, rules, label)
    return elements


def _copied_states(shards: list[Weight], rules: StateRules, label: str) -> Iterator[Node]:
    """fp32 copies of the states of a parameter group [TE]: weights that decay, then those of one dimension."""
    for decays in (True, False):
        held = [weight for weight in shards if weight.decays is decays and not (rules.muon and weight.matrix)]
        copies = list(_grouped(held, rules.copied_bytes, Category.TEMPORARIES, label, "fp32 states"))
        yield from (*copies, *_freed(copies))


def _optimizer(shards: list[Weight], rules: StateRules, label: str, load: _Load, first: list[Node]) -> None:
    if rules.precision_aware and rules.weight_bytes == 2:
        name = "fp16 main parameter" if rules.main_in_fp16 else "remainder of main parameter"
        first.extend(_grouped(shards, 2, Category.OPTIMIZER, label, name))
    elif rules.main_parameters:
        copies = _grouped(shards, rules.weight_bytes, Category.TEMPORARIES, label, "clone before the cast to fp32")
        mains = _grouped(shards, 4, Category.OPTIMIZER, label, "fp32 main parameter")
        for copy, main in zip(copies, mains, strict=True):
            load.optimizer.append(_beside(main, copy))
    if rules.gradient_bytes == 2 and not rules.precision_aware:
        # gradients that are not fp32 are copied for the step and the copies live until they are zeroed
        first.extend(_grouped(shards, 4, Category.GRADIENTS, label, "fp32 main gradient"))
    for weight in shards:  # FusedAdam makes both moments of a weight before it comes to the next
        names = ("exp_avg", "exp_avg_sq")[: 1 if rules.muon and weight.matrix else rules.moments]
        moments = [
            next(_grouped([weight._replace(count=1)], rules.moment_bytes, Category.OPTIMIZER, label, name))
            for name in names
        ]
        if moments:
            first.append(Loop(weight.count, tuple(moments), label=weight.path))


def _freed(nodes: Iterable[Node]) -> Iterator[Node]:
    """Everything that `nodes` allocated, given back."""
    for node in nodes:
        if isinstance(node, Loop):
            yield Loop(node.count, tuple(_freed(node.body)), label=node.label)
        elif isinstance(node, Alloc):
            yield Free(node.tensor)


def _beside(kept: Node, temporary: Node) -> Node:
    """`kept` allocated while `temporary` is alive; both single tensors or loops of the same count."""
    if isinstance(kept, Loop) and isinstance(temporary, Loop):
        return Loop(kept.count, tuple(map(_beside_one, kept.body, temporary.body)), label=kept.label)
    return _beside_one(kept, temporary)


def _beside_one(kept: Node, temporary: Node) -> Node:
    return Loop(1, (temporary, kept, *_freed((temporary,))))


def _slices(group: list[Weight], elements: int, ranks: int) -> Iterator[Weight]:
    """The pieces of weights in the last rank's slice of the buffer, where weights lie in reverse order."""
    start = elements - elements // ranks
    position = 0
    for weight in reversed(group):
        size = round_up(weight.elements, PARAMETER_ALIGNMENT)
        first_kept = max(0, min(weight.count, (start - position) // size))
        position += first_kept * size
        left = weight.count - first_kept
        if left and position < start:
            yield weight._replace(elements=min(weight.elements, position + size - start), count=1)
            position += size
            left -= 1
        if left:
            yield weight._replace(count=left)
            position += left * size


def _grouped(weights: Iterable[Weight], element: int, category: Category, label: str, name: str) -> Iterator[Node]:
    sizes: Counter[tuple[str, int]] = Counter()
    for weight in weights:
        sizes[weight.path, weight.elements] += weight.count
    for (path, elements), count in sizes.items():
        node = Alloc(_tensor(f"{name} of {path}", elements, element, category, label))
        yield node if count == 1 else Loop(count, (node,), label=path)


def _tensor(name: str, elements: int, element: int, category: Category, owner: str) -> Tensor:
    return Tensor(
        name=name, num_bytes=elements * element, category=category, owner=owner, formula=f"{elements:,} x {element} B",
        source="Megatron-LM core/distributed, core/optimizer",
    )
