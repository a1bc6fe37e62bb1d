"""Optimizer states and the temporaries of a step, for weights that are separate tensors.

[torch] pytorch torch/optim/adamw.py `_multi_tensor_adamw`: the square root of exp_avg_sq is a new list of tensors;
`_single_tensor_adamw` makes it one weight at a time; the fused kernel makes nothing.
[bnb] bitsandbytes/optim/optimizer.py: 8-bit states, one fp32 constant per block of 256 elements; weights below 4,096
elements keep fp32 states; paged states live in unified memory and come to the GPU when needed.
[adafactor] Shazeer and Stern, arXiv:1804.04235: row and column means instead of a full second moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from vramcast.domain.program import Alloc, Category, Free, Loop, Node, Program, Tensor
from vramcast.engines.eager.recipe import Weight
from vramcast.errors import UnknownName
from vramcast.units import ceil_div

SMALLEST_8BIT: Final = 4096
BLOCK_8BIT: Final = 256


class Optimizer(NamedTuple):
    """What one optimizer keeps per weight, and makes while it steps."""

    moments: tuple[str, ...]
    width: int | None = None  # bytes of a state element; None: as the weight
    foreach_temporaries: int = 0  # copies of all weights alive at once
    loop_temporaries: int = 1  # copies of one weight alive at once
    eight_bit: bool = False
    factored: bool = False  # the last moment keeps rows and columns only


OPTIMIZERS: Final[dict[str, Optimizer]] = {
    "adamw": Optimizer(("exp_avg", "exp_avg_sq"), foreach_temporaries=1, loop_temporaries=1),
    "adam": Optimizer(("exp_avg", "exp_avg_sq"), foreach_temporaries=1, loop_temporaries=1),
    "sgd": Optimizer(()),
    "sgd-momentum": Optimizer(("momentum_buffer",)),
    "adagrad": Optimizer(("sum",), foreach_temporaries=1),
    "rmsprop": Optimizer(("square_avg",), foreach_temporaries=1),
    "lion": Optimizer(("exp_avg",)),
    "adamw-8bit": Optimizer(("state1", "state2"), width=1, eight_bit=True, loop_temporaries=0),
    "lion-8bit": Optimizer(("state1",), width=1, eight_bit=True, loop_temporaries=0),
    "adafactor": Optimizer(("exp_avg_sq",), width=4, factored=True, loop_temporaries=2),
}
"""Optimizers by name. `paged-` before a name keeps the same states in unified memory."""


def optimizer(name: str) -> Optimizer:
    """The rules of an optimizer.

    Raises: UnknownName with the nearest names
    """
    found = OPTIMIZERS.get(name.removeprefix("paged-"))
    if found is None:
        raise UnknownName.of("optimizer", name, OPTIMIZERS)
    return found


def looped(count: int, *nodes: Node) -> Node:
    """One node, or a loop around them."""
    return nodes[0] if count == 1 and len(nodes) == 1 else Loop(count, nodes)


def weight_nodes(weights: Iterable[Weight]) -> Program:
    """The weights as a model loader allocates them."""
    return tuple(looped(weight.count, Alloc(weight_tensor(weight))) for weight in weights)


def weight_tensor(weight: Weight) -> Tensor:
    """One weight."""
    return Tensor(
        name=weight.path, num_bytes=weight.elements * weight.width, category=Category.WEIGHTS, owner=weight.owner,
        formula=f"{weight.elements:,} x {weight.width} B",
    )


def state_nodes(weights: Iterable[Weight], rules: Optimizer) -> Program:
    """States of every weight that learns, in the order of the first step."""
    return tuple(
        looped(weight.count, Alloc(tensor)) for weight in weights if weight.learns for tensor in _states(weight, rules)
    )


def _states(weight: Weight, rules: Optimizer) -> Iterator[Tensor]:
    width = weight.width if rules.width is None else rules.width
    small = rules.eight_bit and weight.elements < SMALLEST_8BIT
    for index, name in enumerate(rules.moments):
        elements = weight.elements
        if rules.factored and index == len(rules.moments) - 1 and weight.matrix:
            elements = 2 * ceil_div(weight.elements, 1024)
        size = elements * (4 if small else width)
        yield _tensor(weight, name, size)
        if rules.eight_bit and not small:
            yield _tensor(weight, f"{name} block constants", ceil_div(elements, BLOCK_8BIT) * 4)


def _tensor(weight: Weight, name: str, size: int) -> Tensor:
    return Tensor(
        name=f"{name} of {weight.path}", num_bytes=size, category=Category.OPTIMIZER, owner=weight.owner,
        formula=f"{weight.elements:,} elements",
    )


def step_nodes(weights: Iterable[Weight], rules: Optimizer, *, kernel: str = "foreach") -> Program:
    """Temporaries of one optimizer step."""
    learning = [weight for weight in weights if weight.learns]
    if kernel == "fused" or not learning:
        return ()
    if kernel == "loop" or rules.foreach_temporaries == 0:
        largest = max(learning, key=lambda weight: weight.elements)
        tensors = [_temporary(largest, index) for index in range(rules.loop_temporaries)]
        return (*map(Alloc, tensors), *map(Free, tensors))
    groups = [[w for w in learning if w.width == width] for width in dict.fromkeys(w.width for w in learning)]
    return _foreach_temporaries(groups, rules.foreach_temporaries)


def _foreach_temporaries(groups: list[list[Weight]], copies: int) -> Program:
    """Lists of temporaries, one element type after the other; a list dies when the next type's takes its name."""
    nodes: list[Node] = []
    held: list[list[Node]] = []
    for group in groups:
        made = [[(w.count, _temporary(w, index)) for w in group] for index in range(copies)]
        for index, tensors in enumerate(made):
            nodes += [looped(count, Alloc(tensor)) for count, tensor in tensors]
            if held:
                nodes += held[index]
        held = [[looped(count, Free(tensor)) for count, tensor in tensors] for tensors in made]
    return (*nodes, *(node for freed in held for node in freed))


def _temporary(weight: Weight, index: int) -> Tensor:
    return Tensor(
        name=f"optimizer temporary {index} of {weight.path}", num_bytes=weight.elements * weight.width,
        category=Category.TEMPORARIES, owner="optimizer",
    )
