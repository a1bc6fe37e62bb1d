"""What Megatron's FSDP gathers and does not reduce yet while the layers run.

Letters: u elements of a layer's weights on a rank   Q elements of gradients in flight   A elements gathered ahead

[FSDP] Megatron-LM at d98e8a64 megatron/core/distributed/fsdp/src/megatron_fsdp/megatron_fsdp.py: the size of a
communication, 2 u and at least 1e9 elements, is Q; half of it is A. param_and_grad_buffer.py `GradReducePipeline`: a
layer's whole gradients live until more than Q elements wait behind them, or until backward is over;
`AllGatherPipeline`: weights are gathered until A elements are ahead, a layer's are freed behind it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final, NamedTuple

from vramcast.domain.program import Alloc, Category, Free, Loop, Node, Program, Tensor
from vramcast.operators.lowering import Lowered

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
