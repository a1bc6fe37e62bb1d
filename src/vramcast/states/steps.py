"""Programs of weights, states, and optimizer steps, from a list of weights.

[clip] pytorch torch/nn/utils/clip_grad.py `clip_grad_norm_`: one scalar per gradient, then in-place products; gradients
that are DTensors or half precision are not copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from vramcast.domain.model import Parameter
from vramcast.domain.program import Alloc, Category, Free, Loop, Node, Program, Tensor
from vramcast.states.optimizers import OptimizerRule, Shape, elements


class Weight(Struct, frozen=True):
    """Equal weight tensors as one rank stores them."""

    owner: str
    path: str
    shape: Shape
    repeats: int = 1
    width: int = 4  # bytes of one stored element
    learns: bool = True
    gradient_width: int | None = None  # None: as `width`
    source: str = ""
    kind: str = ""  # "embedding", "head", "matrix", "norm" ...; empty: not known

    @property
    def elements(self) -> int:
        return elements(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.elements * self.width

    @property
    def gradient_bytes(self) -> int:
        """Of one tensor's gradient; 0 when it does not learn."""
        return self.elements * (self.gradient_width or self.width) if self.learns else 0


def kind_of(parameter: Parameter) -> str:
    """What an optimizer may tell apart: a parameter's kind, and "head" for the output projection."""
    return "head" if parameter.kind == "matrix" and parameter.path.startswith("head.") else parameter.kind


def repeat(count: int, *nodes: Node, label: str = "") -> Node:
    """One node alone, or a loop."""
    return nodes[0] if count == 1 and len(nodes) == 1 else Loop(count, nodes, label)


def weight_tensor(weight: Weight) -> Tensor:
    return Tensor(
        name=weight.path, num_bytes=weight.num_bytes, category=Category.WEIGHTS, owner=weight.owner,
        formula=f"{weight.elements:,} x {weight.width} B", source=weight.source,
    )


def weight_program(weights: Iterable[Weight]) -> Program:
    return tuple(repeat(weight.repeats, Alloc(weight_tensor(weight)), label=weight.path) for weight in weights)


def state_program(weights: Iterable[Weight], rule: OptimizerRule) -> Program:
    """All states of weights that learn come to life, as in the first step."""
    nodes: list[Node] = []
    for weight in weights:
        if not weight.learns:
            continue
        made = tuple(
            Alloc(
                Tensor(
                    name=f"{state.name} of {weight.path}", num_bytes=state.num_bytes, category=Category.OPTIMIZER,
                    owner=weight.owner, formula=f"of {' x '.join(map(str, weight.shape))}", source=rule.source,
                )
            )
            for state in rule.state_tensors(weight.shape, width=weight.width, kind=weight.kind)
        )
        if made:
            nodes.append(repeat(weight.repeats, *made, label=weight.path))
    return tuple(nodes)


def step_program(weights: Sequence[Weight], rule: OptimizerRule, *, kernel: str = "foreach") -> Program:
    """Temporaries of one optimizer step: of all weights at once, or of the largest alone.

    Weights that follow another rule are stepped by an optimizer of their own, behind the others.
    """
    by_rule: dict[OptimizerRule, list[Weight]] = {}
    for weight in weights:
        if weight.learns:
            by_rule.setdefault(rule.rule_of(weight.shape, weight.kind), []).append(weight)
    return tuple(node for own, held in by_rule.items() for node in _stepped(held, own, kernel))


def _stepped(weights: Sequence[Weight], rule: OptimizerRule, kernel: str) -> Program:
    made = [(weight, _temporaries(weight, rule, kernel)) for weight in weights]
    if rule.steps_together(kernel):
        born = tuple(repeat(weight.repeats, *map(Alloc, tensors)) for weight, tensors in made if tensors)
        died = tuple(repeat(weight.repeats, *map(Free, tensors)) for weight, tensors in made if tensors)
        return born + died
    largest = max(_looped(made, rule), key=lambda tensors: sum(t.num_bytes for t in tensors), default=())
    return (*map(Alloc, largest), *map(Free, largest))


def _looped(made: Sequence[tuple[Weight, tuple[Tensor, ...]]], rule: OptimizerRule) -> Iterator[tuple[Tensor, ...]]:
    """Each weight's temporaries, and what variables hold of the weight before it: an equal one where it repeats."""
    before: tuple[Tensor, ...] = ()
    for weight, tensors in made:
        yield tensors + (tensors if weight.repeats > 1 else before)[: rule.carried]
        before = tensors


def _temporaries(weight: Weight, rule: OptimizerRule, kernel: str) -> tuple[Tensor, ...]:
    width = weight.gradient_width or weight.width
    sizes = rule.temporaries(weight.shape, width=width, kernel=kernel, kind=weight.kind)
    return tuple(
        Tensor(
            name=f"optimizer temporary {index} of {weight.path}", num_bytes=size, category=Category.TEMPORARIES,
            owner=weight.owner, source=rule.source,
        )
        for index, size in enumerate(sizes)
    )


def clip_program(weights: Sequence[Weight]) -> Program:
    """clip_grad_norm_: one fp32 norm per gradient, stacked [clip]."""
    count = sum(weight.repeats for weight in weights if weight.learns)
    norm = Tensor(name="gradient norm", num_bytes=4, category=Category.TEMPORARIES, owner="clip_grad_norm")
    stacked = Tensor(name="gradient norms", num_bytes=4 * count, category=Category.TEMPORARIES, owner="clip_grad_norm")
    return (Loop(count, (Alloc(norm),)), Alloc(stacked), Loop(count, (Free(norm),)), Free(stacked)) if count else ()
