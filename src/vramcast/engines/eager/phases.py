"""The phases of a run in which every rank steps its own whole weights, of one model or of several.

[DPO] Rafailov et al., arXiv:2305.18290: policy and frozen reference read chosen and rejected answers as one batch.
[PPO] Ouyang et al., arXiv:2203.02155: policy, reference, reward model and a critic that learns; the last two score.
[GRPO] Shao et al., arXiv:2402.03300: policy and reference, no critic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from vramcast.domain.job import Job, Phase
from vramcast.domain.model import Attention, MultiLatentAttention, scorer
from vramcast.domain.program import Alloc, Category, Free, Loop, Node, Program, Tensor
from vramcast.engines.eager.graphs import Blocks, blocks
from vramcast.engines.eager.passes import Around, evaluation, free_gradients, inference, passes
from vramcast.engines.eager.recipe import Recipe, weights
from vramcast.engines.eager.trl import beta_of, generated_at_once
from vramcast.errors import Note
from vramcast.operators.lowering import WeightGradients
from vramcast.states.optimizers import OptimizerRule
from vramcast.states.steps import Weight, state_program, step_program, weight_program
from vramcast.units import FP32, MIB

BUCKET_BYTES: Final = 25 * MIB
"""DDP's bucket_cap_mb [pytorch torch/nn/parallel/distributed.py]."""


class Stepping(Struct, frozen=True):
    """How weights are updated."""

    optimizer: OptimizerRule
    kernel: str = "foreach"
    grad_accum: int = 1
    replicas: int = 1  # DDP ranks
    bucket_views: bool = False  # gradient_as_bucket_view
    workspaces: Program = ()  # of cuBLAS
    around: Around | None = None  # what happens around the parts of a micro-batch
    between: Program = ()  # what runs between forward and backward of a micro-batch


def plain_phases(recipe: Recipe, stepping: Stepping, *, generation: Program = ()) -> Mapping[Phase, Program]:
    """Load, first step, step, evaluation, checkpoint.

    Args:
        stepping: optimizer, accumulation, data parallelism
        generation: an evaluation that generates; runs after evaluation's forward
    """
    held = weights(recipe)
    load = weight_program(held)
    buckets = _buckets(held, stepping)
    built = blocks(recipe)  # one phase ends before the next begins, so they may share their tensors
    if stepping.optimizer.gradients_in_backward:
        _update_in_backward(built, recipe.sizes.numerics.gradient, stepping.optimizer)
    step, first = _steps(recipe, stepping, held, built)
    return {
        Phase.LOAD: load,
        Phase.FIRST_STEP: (*stepping.workspaces, *buckets, *first),
        Phase.STEP: step,
        Phase.EVALUATION: evaluation(recipe, built) + generation,
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
            formula=Note("{:,} B of gradients in buckets of 25 MiB", total), source="torch/nn/parallel/distributed.py",
        )
        for name, size in (("bucket", BUCKET_BYTES), ("last bucket", rest))
    )
    return (Loop(whole, (Alloc(bucket),)), Alloc(last))


def _steps(recipe: Recipe, stepping: Stepping, held: tuple[Weight, ...], built: Blocks) -> tuple[Program, Program]:
    """Micro-batches, optimizer, zero_grad(set_to_none=True): any step, and the first, which makes the states."""
    transient = stepping.optimizer.gradients_in_backward or (stepping.bucket_views and stepping.replicas > 1)
    policy = WeightGradients.TRANSIENT if transient else WeightGradients.KEPT
    first = passes(recipe, policy=policy, built=built, around=stepping.around, between=stepping.between)
    micro_batches: list[Node] = [*first.micro_batch]
    if stepping.grad_accum > 1:
        later = passes(
            recipe, policy=WeightGradients.TRANSIENT, built=built, around=stepping.around, between=stepping.between
        )
        micro_batches.append(Loop(stepping.grad_accum - 1, later.micro_batch, label="micro-batches"))
    update = () if stepping.optimizer.gradients_in_backward else stepped(held, stepping)
    end = (*update, *free_gradients(first.gradients))
    return (*micro_batches, *end), (*micro_batches, *state_program(held, stepping.optimizer), *end)


def _update_in_backward(built: Blocks, width: int, rule: OptimizerRule) -> None:
    """Each weight is stepped as soon as its gradient is there, beside it, and the gradient dies [lomo].

    Args:
        built: graphs, whose operators get the update's temporaries
        width: of a gradient's element [bytes]
    """
    for _, graph in built.counted():
        for operator in graph.operators:
            for tensor in operator.gradients_left:
                sizes = list(rule.temporaries((tensor.num_bytes // width,), width=width))
                if sizes and width < FP32 and rule.wide_temporaries:  # its fp32 copy takes the gradient's place
                    sizes[0] -= tensor.num_bytes
                operator.backward_temporaries = (
                    *operator.backward_temporaries,
                    *(graph.tensor(f"update of {operator.name}", n) for n in sizes),
                )


def stepped(held: tuple[Weight, ...], stepping: Stepping) -> Program:
    """The optimizer's temporaries, one element type after the other [torch/utils/_foreach_utils.py]."""
    learning = [weight for weight in held if weight.learns]
    groups = [[w for w in learning if w.width == width] for width in dict.fromkeys(w.width for w in learning)]
    return tuple(node for group in groups for node in step_program(group, stepping.optimizer, kernel=stepping.kernel))


FROZEN_COPIES: Final[dict[str, tuple[str, ...]]] = {
    "dpo": ("reference",),
    "grpo": ("reference",),
    "ppo": ("reference", "reward model"),
}
"""Models of the policy's size that only run forward."""


def all_phases(job: Job, recipe: Recipe, stepping: Stepping) -> Mapping[Phase, Program]:
    """The phases of a run in which every rank keeps everything, with all its models."""
    objective = job.workload.objective
    completion = job.workload.completion_len
    length = recipe.sizes.seq_len + (0 if objective in ("ppo", "grpo") else completion)  # they learn from it as well
    sequences = recipe.sizes.batch * generated_at_once(job) if completion else 0
    generation = key_value_cache(recipe, sequences, length)
    phases = dict(plain_phases(recipe, stepping, generation=generation))
    if objective not in FROZEN_COPIES:
        return phases
    copies = FROZEN_COPIES[objective] if objective != "grpo" or beta_of(job) else ()
    if recipe.sizes.adapter is not None:
        # the reference is the policy with its adapter switched off
        copies = tuple(name for name in copies if name != "reference")
    frozen = replace(recipe, sizes=replace(recipe.sizes, frozen=True, adapter=None), learning=())
    load = list(phases[Phase.LOAD])
    before: Program = generation if objective in ("ppo", "grpo") else ()
    for name in copies:
        copied = frozen if name == "reference" else replace(frozen, model=scorer(frozen.model))
        load += weight_program(replace(weight, owner=f"{name}.{weight.owner}") for weight in weights(copied))
        before += inference(copied)
    if objective == "ppo":
        critic = plain_phases(replace(recipe, model=scorer(recipe.model)), stepping)
        load += critic[Phase.LOAD]
        phases[Phase.FIRST_STEP] += critic[Phase.FIRST_STEP]
        phases[Phase.STEP] += critic[Phase.STEP]
    phases[Phase.LOAD] = tuple(load)
    phases[Phase.FIRST_STEP] = before + phases[Phase.FIRST_STEP]
    phases[Phase.STEP] = before + phases[Phase.STEP]
    return phases


def key_value_cache(recipe: Recipe, sequences: int, length: int) -> Program:
    """Keys and values of prompt and completion, grown by concatenation [transformers cache_utils.py `DynamicLayer`].

    While one layer's tensors grow, the old ones live beside the new.

    Args:
        recipe: the network and its sizes
        sequences: that are generated together [count]
        length: of prompt and completion [tokens]
    """
    if not sequences:
        return ()
    sizes = recipe.sizes
    nodes: list[Loop] = []
    freed: list[Loop] = []
    for run in recipe.model.main.runs:
        width = cache_width(run.layer.mixer)
        if not width:
            continue
        tensor = Tensor(
            name="keys or values", num_bytes=sequences * length * width * sizes.numerics.compute // 2,
            category=Category.ACTIVATIONS, owner="generation.cache",
            formula=f"{sequences} x {length} x {width // 2} x {sizes.numerics.compute} B",
        )
        nodes.append(Loop(2 * run.count, (Alloc(tensor),)))
        freed.append(Loop(2 * run.count, (Free(tensor),)))
        grown = (Alloc(tensor), Free(tensor))
    return (*nodes, *grown, *freed) if nodes else ()


def cache_width(mixer: object) -> int:
    """Elements one layer caches per token; 0 when it keeps a state of fixed size."""
    if isinstance(mixer, Attention):
        return mixer.num_kv_heads * (mixer.head_dim + (mixer.v_head_dim or mixer.head_dim))
    if isinstance(mixer, MultiLatentAttention):
        return mixer.num_heads * (mixer.qk_nope_dim + mixer.qk_rope_dim + mixer.v_head_dim)
    return 0
