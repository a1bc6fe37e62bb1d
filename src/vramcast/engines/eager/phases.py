"""The phases of a run in which every rank steps its own whole weights: plain PyTorch, HF Trainer, DDP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from vramcast.domain.job import Phase
from vramcast.domain.program import Alloc, Category, Loop, Node, Program, Tensor
from vramcast.engines.eager.graphs import Blocks, blocks
from vramcast.engines.eager.passes import free_gradients, inference, passes
from vramcast.engines.eager.recipe import Recipe, weights
from vramcast.operators.lowering import WeightGradients
from vramcast.states.optimizers import OptimizerRule
from vramcast.states.steps import Weight, state_program, step_program, weight_program
from vramcast.units import MIB

BUCKET_BYTES: Final = 25 * MIB
"""DDP's bucket_cap_mb [pytorch torch/nn/parallel/distributed.py]."""


class Stepping(NamedTuple):
    """How weights are updated."""

    optimizer: OptimizerRule
    kernel: str = "foreach"
    grad_accum: int = 1
    replicas: int = 1  # DDP ranks
    bucket_views: bool = False  # gradient_as_bucket_view
    workspaces: Program = ()  # of cuBLAS


def plain_phases(recipe: Recipe, stepping: Stepping, *, generation: Program = ()) -> Mapping[Phase, Program]:
    """Load, first step, step, evaluation, checkpoint.

    Args:
        recipe: the model
        stepping: optimizer, accumulation, data parallelism
        generation: an evaluation that generates; runs after evaluation's forward
    """
    held = weights(recipe)
    load = weight_program(held)
    buckets = _buckets(held, stepping)
    built = blocks(recipe)  # one phase ends before the next begins, so they may share their tensors
    step, first = _steps(recipe, stepping, held, built)
    return {
        Phase.LOAD: load,
        Phase.FIRST_STEP: (*stepping.workspaces, *buckets, *first),
        Phase.STEP: step,
        Phase.EVALUATION: inference(recipe, built) + generation,
        Phase.CHECKPOINT: (),  # state dicts refer to the tensors that are there; they are copied to the host one by one
    }


def _buckets(held: tuple[Weight, ...], stepping: Stepping) -> Program:
    """DDP's flat buckets: they live as long as the wrapper, beside the gradients unless those are views."""
    if stepping.replicas == 1:
        return ()
    total = sum(weight.gradient_bytes * weight.repeats for weight in held)
    whole, rest = divmod(total, BUCKET_BYTES)
    bucket, last = (
        Tensor(
            name=name, num_bytes=size, category=Category.COMMUNICATION, owner="ddp",
            formula=f"{total:,} B of gradients in buckets of 25 MiB", source="torch/nn/parallel/distributed.py",
        )
        for name, size in (("bucket", BUCKET_BYTES), ("last bucket", rest))
    )
    return (Loop(whole, (Alloc(bucket),)), Alloc(last))


def _steps(recipe: Recipe, stepping: Stepping, held: tuple[Weight, ...], built: Blocks) -> tuple[Program, Program]:
    """Micro-batches, optimizer, zero_grad(set_to_none=True): any step, and the first, which makes the states."""
    views = stepping.bucket_views and stepping.replicas > 1
    policy = WeightGradients.TRANSIENT if views else WeightGradients.KEPT
    first = passes(recipe, policy=policy, built=built)
    micro_batches: list[Node] = [*first.micro_batch]
    if stepping.grad_accum > 1:
        later = passes(recipe, policy=WeightGradients.TRANSIENT, built=built)
        micro_batches.append(Loop(stepping.grad_accum - 1, later.micro_batch, label="micro-batches"))
    end = (*stepped(held, stepping), *free_gradients(first.gradients))
    return (*micro_batches, *end), (*micro_batches, *state_program(held, stepping.optimizer), *end)


def stepped(held: tuple[Weight, ...], stepping: Stepping) -> Program:
    """The optimizer's temporaries, one element type after the other [torch/utils/_foreach_utils.py]."""
    learning = [weight for weight in held if weight.learns]
    groups = [[w for w in learning if w.width == width] for width in dict.fromkeys(w.width for w in learning)]
    return tuple(node for group in groups for node in step_program(group, stepping.optimizer, kernel=stepping.kernel))
