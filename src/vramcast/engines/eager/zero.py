"""What one rank keeps, gathers and buffers under DeepSpeed's ZeRO: programs around eager model code.

Symbols:  N data-parallel ranks   P weights that learn   F frozen weights

[ZeRO] Rajbhandari et al., arXiv:1910.02054
[Z2] deepspeed runtime/zero/stage_1_and_2.py `DeepSpeedZeroOptimizer`: flat 16-bit weights, fp32 partition, two bucket
buffers while backward runs, the partition's gradients beside the accumulated ones, flattened and upcast for the step.
[Z3] deepspeed runtime/zero/stage3.py `DeepSpeedZeroOptimizer_Stage3` and partitioned_param_coordinator.py: weights are
gathered per submodule and kept while their next use is less than max_reuse_distance away.
[F16] deepspeed runtime/fp16/fused_optimizer.py `FP16_Optimizer`, unfused_optimizer.py: stage 0 in 16 bits, bf16 too;
all gradients are cast to fp32 and, for the fused Adam, laid end to end. runtime/engine.py
`buffered_allreduce_fallback`: half a thousand million elements are reduced at once; in fp32 the optimizer steps the
weights themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from vramcast.domain.job import Job, Phase, Shards
from vramcast.domain.program import Alloc, Category, Free, Loop, Node, Program, Tensor, TensorsOf, transient
from vramcast.engines.eager.completions import answered, own_answers, student_of, taught, with_answers
from vramcast.engines.eager.graphs import run_parts
from vramcast.engines.eager.passes import Gathered, evaluation, free_gradients, inference, passes
from vramcast.engines.eager.preference import Rated, renamed, whole_reference
from vramcast.engines.eager.question import recipe_of
from vramcast.engines.eager.recipe import Recipe, elements, parts, sharded, whole
from vramcast.errors import Unsupported
from vramcast.operators.lowering import WeightGradients
from vramcast.states.optimizers import OptimizerRule
from vramcast.states.steps import Weight, weight_program
from vramcast.units import FP32, FP64, ceil_div

MOST_SUB_GROUPS: Final = 1 << 16
"""Of one rank: each is three blocks, and DeepSpeed makes a 7B model's in one to eight."""


class Zero(Struct, frozen=True):
    """Settings of ZeRO, with DeepSpeed's defaults. Buckets count elements."""

    shards: Shards
    ranks: int
    optimizer: OptimizerRule
    reduce_bucket: int = 500_000_000
    overlap: bool = True
    sub_group: int = 1_000_000_000
    reuse_distance: int = 1_000_000_000
    prefetch_bucket: int = 50_000_000
    persistence: int = 100_000
    grad_accum: int = 1
    width: int = 2  # bytes of a weight and of a gradient
    master: int = FP32  # bytes of an element of what the optimizer steps, and of its states
    gradient_width: int = 2  # bytes of an accumulated gradient
    offload_optimizer: bool = False
    offload_parameters: bool = False
    fused: bool = True  # its own Adam, which steps flat groups
    step_copies: int = 0  # of what is stepped at once, beside it: PyTorch's own Adam
    loads_whole: bool = False  # every rank loads all of a packed base before it is partitioned
    hidden: tuple[int, int] = (0, 1)  # of what learns, elements of hidden matrices, and all
    workspaces: Program = ()  # of cuBLAS


def zero_phases(recipe: Recipe, zero: Zero, compared: Rated | None = None) -> Mapping[Phase, Program]:
    """Load, first step, step, evaluation of one rank under ZeRO 1, 2 or 3."""
    found = parts(recipe, leaves=False)
    held, constants = tuple(sharded(found)), weight_program(whole(found))
    zero = replace(zero, hidden=_hidden_elements(held))
    everything = zero.shards is Shards.EVERYTHING
    before = transient(_tensor("base before it is partitioned", _total_bytes(held, zero), Category.TEMPORARIES))
    load = (*constants, *(before if everything and zero.loads_whole else ()),
            *(_partitioned_load(held, zero) if everything else _flat_load(held, zero)))
    beside, between = ((), ()) if compared is None else _reference(compared, zero)
    step = _step(recipe, held, zero, between)
    return {
        Phase.LOAD: (*load, *beside),
        Phase.FIRST_STEP: (*zero.workspaces, *step),
        Phase.STEP: step,
        Phase.EVALUATION: evaluation(recipe),
        Phase.CHECKPOINT: _consolidated(held, zero) if everything else (),
    }


def _consolidated(held: tuple[Weight, ...], zero: Zero) -> Program:
    """`_zero3_consolidated_16bit_state_dict` gathers one module at a time and copies it to the host."""
    largest = max(_bytes(weight, zero) for weight in held)
    return transient(_tensor("gathered for the checkpoint", largest, Category.COMMUNICATION))


def _bytes(weight: Weight, zero: Zero) -> int:
    """Of one weight while it computes: packed ones stay packed [bytes]."""
    return weight.num_bytes if weight.width == 1 else weight.elements * zero.width


def _total_bytes(held: tuple[Weight, ...], zero: Zero) -> int:
    return sum(_bytes(weight, zero) * weight.repeats for weight in held)


_tensor: Final = TensorsOf(owner="zero", source="deepspeed runtime/zero")
_stream_tensor: Final = TensorsOf(  # gathers run on a stream of their own, whose free blocks serve nothing else
    owner="zero", category=Category.COMMUNICATION, stream="allgather",
    source="deepspeed runtime/zero/partitioned_param_coordinator.py")


def _optimizer_nodes(partition: int, zero: Zero) -> list[Node]:
    """Master weights and moments of a partition; a zero gradient lives while DeepSpeed makes the states at start."""
    if zero.offload_optimizer:
        return []
    formula = f"{partition:,} x {zero.master} B"
    nodes: list[Node] = []
    if zero.shards not in (Shards.EVERYTHING, Shards.NOTHING) or zero.master != zero.width:
        name = "fp32 weights" if zero.master == FP32 else "master weights"
        nodes.append(Alloc(_tensor(name, partition * zero.master, Category.OPTIMIZER, formula)))
    gradient = _tensor("zero gradient", partition * zero.master, Category.TEMPORARIES)
    nodes.append(Alloc(gradient))
    nodes += [Alloc(_tensor(name, size, Category.OPTIMIZER, formula)) for name, size in _states(partition, zero)]
    return [*nodes, Free(gradient)]


def _hidden_elements(held: tuple[Weight, ...]) -> tuple[int, int]:
    learning = [weight for weight in held if weight.learns]
    hidden = (w.elements * w.repeats for w in learning if len(w.shape) > 1 and w.kind not in ("embedding", "head"))
    return sum(hidden), max(1, sum(weight.elements * weight.repeats for weight in learning))


def _states(partition: int, zero: Zero) -> Iterator[tuple[str, int]]:
    """States of a flat partition. Muon's hidden matrices are partitioned apart [DS] deepspeed/__init__.py
    `set_optimizer_flags`: two dimensions or more, and no "embed" or "lm_head" in the name."""
    rule = zero.optimizer
    if rule.compressed:
        yield "server_error", ceil_div(partition, zero.ranks) * FP32
    if not rule.hidden_only:
        yield from rule.state_tensors((partition,), width=zero.master)
        return
    matrices = partition * zero.hidden[0] // zero.hidden[1]
    yield from rule.state_tensors((matrices, 1), width=zero.master)
    yield from rule.state_tensors((partition - matrices,), width=zero.master)


def _flat_load(held: tuple[Weight, ...], zero: Zero) -> Program:
    learning = elements(held, learning_only=True)
    frozen = tuple(weight for weight in held if not weight.learns)
    flat = _tensor("flat weights", learning * zero.width, Category.WEIGHTS, f"{learning:,} x {zero.width} B")
    own = learning if zero.shards is Shards.NOTHING else ceil_div(learning, zero.ranks)
    return (*weight_program(frozen), Alloc(flat), *_optimizer_nodes(own, zero))


def _partitioned_load(held: tuple[Weight, ...], zero: Zero) -> Program:
    learning, total = elements(held, learning_only=True), _total_bytes(held, zero)
    partition = ceil_div(learning, zero.ranks)
    nodes: list[Node] = []
    if not zero.offload_parameters:
        share = ceil_div(ceil_div(total, zero.width), zero.ranks) * zero.width
        formula = f"{total:,} B / {zero.ranks}"
        nodes.append(Alloc(_tensor("weight partition", share, Category.WEIGHTS, formula)))
    nodes.append(Alloc(_persistent(held, zero)))
    if not zero.offload_optimizer:
        gradient = partition * zero.gradient_width
        nodes.append(Alloc(_tensor("gradient partition", gradient, Category.GRADIENTS)))
    size = _sub_group(held, zero)
    whole, rest = divmod(partition, size)
    if whole > MOST_SUB_GROUPS:
        raise Unsupported(
            "sub_group_size={} cuts a rank's {} elements into more than {} sub-groups; use at least {}",
            size, partition, MOST_SUB_GROUPS, ceil_div(partition, MOST_SUB_GROUPS)
        )
    if whole:
        nodes.append(Loop(whole, tuple(_optimizer_nodes(size, zero)), label="sub-groups"))
    return (*nodes, *_optimizer_nodes(rest, zero))


def _persistent(held: tuple[Weight, ...], zero: Zero) -> Tensor:
    """Weights so small that every rank keeps them whole."""
    small = tuple(weight for weight in held if _bytes(weight, zero) <= zero.persistence * zero.width)
    return _tensor("persistent small weights", _total_bytes(small, zero), Category.WEIGHTS)


def _sub_group(held: tuple[Weight, ...], zero: Zero) -> int:
    """Elements of a rank that are stepped together; of size 0 every weight is a group of its own, the largest counts
    [Z3] `_create_fp16_sub_groups`."""
    largest = max((weight.elements for weight in held if weight.learns), default=1)
    return zero.sub_group or ceil_div(largest, zero.ranks)


def _step(recipe: Recipe, held: tuple[Weight, ...], zero: Zero, between: Program) -> Program:
    """Micro-batches, then the optimizer on this rank's partition."""
    if zero.shards is Shards.NOTHING:
        return _whole_step(recipe, held, zero, between)
    partition = ceil_div(elements(held, learning_only=True), zero.ranks)
    largest = max((weight.elements for weight in held if weight.learns), default=0)
    everything = zero.shards is Shards.EVERYTHING
    norm = ceil_div(largest, zero.ranks) if everything else largest
    last = (
        *transient(_tensor("gradient in fp64 for its norm", norm * FP64, Category.TEMPORARIES)),
        *_upcast(min(partition, _sub_group(held, zero)) if everything else partition, zero),
    )
    if everything:
        again = _gathered_micro_batch(recipe, zero, between)
        return (Loop(zero.grad_accum, again, label="micro-batches"), *last)
    divided = zero.shards is not Shards.OPTIMIZER
    kept = partition if divided else elements(held, learning_only=True)
    sums = _tensor("accumulated gradients", kept * zero.gradient_width, Category.GRADIENTS)
    nodes: list[Node] = [*_bucketed_micro_batch(recipe, zero, (Alloc(sums),), (), between)]
    if zero.grad_accum > 1:
        new = _tensor("gradients of the micro-batch", kept * zero.gradient_width, Category.GRADIENTS)
        again = _bucketed_micro_batch(recipe, zero, (Alloc(new),), (Free(new),), between)
        nodes.append(Loop(zero.grad_accum - 1, again, label="micro-batches"))
    return (*nodes, *last, Free(sums))


REDUCED_AT_ONCE: Final = 500_000_000
"""Elements [F16]."""


def _whole_step(recipe: Recipe, held: tuple[Weight, ...], zero: Zero, between: Program) -> Program:
    """Stage 0: gradients of every weight until all are reduced and cast [F16]."""
    learning = elements(held, learning_only=True)
    first = passes(recipe, policy=WeightGradients.KEPT, between=between)
    nodes: list[Node] = [*first.micro_batch]
    if zero.grad_accum > 1:
        later = passes(recipe, policy=WeightGradients.TRANSIENT, between=between)
        nodes.append(Loop(zero.grad_accum - 1, later.micro_batch, label="micro-batches"))
    if zero.ranks > 1:
        size = min(learning, REDUCED_AT_ONCE) * zero.width
        nodes += transient(_tensor("gradients reduced at once", size, Category.COMMUNICATION))
    gradients = free_gradients(first.gradients)
    exchanged = (*_compressed(held, zero), *_stepping(learning, zero))
    if zero.width == zero.master:
        return (*nodes, *exchanged, *gradients)
    wide = _tensor("fp32 gradients", learning * zero.master, Category.TEMPORARIES, f"{learning:,} x {zero.master} B")
    if not zero.fused:
        return (*nodes, Alloc(wide), *gradients, *exchanged, Free(wide))
    flat = _tensor("flattened fp32 gradients", learning * zero.master, Category.TEMPORARIES)
    return (*nodes, Alloc(wide), Alloc(flat), Free(wide), *gradients, *exchanged, Free(flat))


def _compressed(held: tuple[Weight, ...], zero: Zero) -> Program:
    """What the momentum's exchange in single bits makes, signs of a byte each among it: of one flat weight, or of the
    largest where each is stepped alone [onebit] in states/optimizers.py."""
    rule = zero.optimizer
    if not rule.compressed or zero.ranks == 1:
        return ()
    alone = rule.flat and zero.width == zero.master
    size = max(w.elements for w in held if w.learns) if alone else elements(held, learning_only=True)
    made = size * (rule.compressed * FP32 + 1)
    return transient(_tensor("momentum exchanged in single bits", made, Category.TEMPORARIES))


def _stepping(partition: int, zero: Zero) -> Program:
    """What PyTorch's own step makes beside the states."""
    if not zero.step_copies or zero.offload_optimizer:
        return ()
    return transient(_tensor("copies of the step", zero.step_copies * partition * zero.master, Category.TEMPORARIES))


def _upcast(partition: int, zero: Zero) -> Program:
    """Flattened gradients and their copy in the masters' type, which the fused Adam reads."""
    if zero.offload_optimizer:
        return ()
    flat = _tensor("flattened gradients", partition * zero.gradient_width, Category.TEMPORARIES)
    stepping = _stepping(partition, zero)
    if zero.gradient_width == zero.master:
        return (Alloc(flat), *stepping, Free(flat))
    wide = _tensor("fp32 gradients", partition * zero.master, Category.TEMPORARIES)
    return (Alloc(flat), Alloc(wide), Free(flat), *stepping, Free(wide))


def _bucketed_micro_batch(recipe: Recipe, zero: Zero, before: Program, after: Program, between: Program) -> Program:
    """Forward; backward between the bucket buffers, which die when it ends [Z2]."""
    one = passes(recipe, policy=WeightGradients.TRANSIENT, between=between)
    bucket = _tensor("reduce bucket", zero.reduce_bucket * zero.width, Category.COMMUNICATION)
    buckets = (bucket,) * (2 if zero.overlap else 1)
    return (*one.forward, *map(Alloc, buckets), *before, *one.backward, *after, *map(Free, buckets))


def _gathered_micro_batch(recipe: Recipe, zero: Zero, between: Program) -> Program:
    """Forward and backward with every block's weights gathered around it [Z3]."""
    bucket = _tensor("reduce bucket", zero.reduce_bucket * zero.width, Category.COMMUNICATION)
    one = passes(recipe, policy=WeightGradients.TRANSIENT, gathered=_gathered(recipe, zero), between=between)
    if zero.ranks == 1:
        return (*one.forward, Alloc(bucket), *one.backward, Free(bucket))
    held = tuple(sharded(parts(recipe, leaves=False)))
    total = _total_bytes(held, zero)
    # what backward will use again within the reuse distance stays gathered from forward on: half the distance
    kept = _stream_tensor("weights kept for backward", min(total, zero.reuse_distance // 2 * zero.width))
    # the weight that fills the bucket is fetched whole
    largest = max(_bytes(weight, zero) for weight in held if ".layers." in weight.owner)
    prefetched = _stream_tensor("prefetched weights", min(total, zero.prefetch_bucket * zero.width + largest))
    return (
        Alloc(prefetched), *one.forward, Alloc(kept), Alloc(bucket), Free(kept), *one.backward,
        Free(bucket), Free(prefetched),
    )


def _reference(compared: Rated, zero: Zero) -> tuple[Program, Program]:
    """What the reference of a preference loss adds: its load, and what runs between forward and backward.

    Partitioned under ZeRO-3; else whole, without ZeRO [TRL models/utils.py `prepare_deepspeed`].
    """
    recipe = compared.reference
    if recipe is None or zero.shards is not Shards.EVERYTHING or zero.ranks == 1:
        whole_load, forward = whole_reference(compared, cached=False)
        return whole_load, compared.between(forward)
    load = frozen_load(recipe, zero) if compared.own else ()
    load, forward = renamed(load, rating_pass(recipe, zero), prefix=compared.name)
    return load, compared.between(forward)


def frozen_load(recipe: Recipe, zero: Zero) -> Program:
    """A network that only rates: under ZeRO-3 its partition, nothing where that waits on the host; else all of it."""
    held = tuple(sharded(parts(recipe, leaves=False)))
    if zero.shards is not Shards.EVERYTHING or zero.ranks == 1:
        return weight_program(held)
    if zero.offload_parameters:
        return ()
    share = ceil_div(_total_bytes(held, zero), zero.ranks)
    return Alloc(_tensor("weight partition", share, Category.WEIGHTS)), Alloc(_persistent(held, zero))


def rating_pass(recipe: Recipe, zero: Zero) -> Program:
    """Forward without autograd; under ZeRO-3 one layer computes, and what is ahead of it has been fetched: the flat
    buffer is copied out of."""
    gathered = _gathered(recipe, zero) if zero.shards is Shards.EVERYTHING else None
    if gathered is None:
        return inference(recipe)
    layer = max(gathered.layers, key=lambda tensor: tensor.num_bytes)
    ahead = _stream_tensor("prefetched weights", zero.prefetch_bucket * zero.width + layer.num_bytes)
    around = (ahead, layer, layer)
    return (*map(Alloc, around), *inference(recipe), *map(Free, around))


def answered_phases(job: Job, recipe: Recipe, zero: Zero) -> tuple[Mapping[Phase, Program], str]:
    """GRPO and RLOO: under ZeRO-3 all weights are gathered while answers are written [TRL `ds3_gather_for_generation`,
    on unasked], and the policy that rates takes no more than its own step. A server is sent one weight after the other,
    or all of them where adapters are merged [TRL vllm_generation.py `sync_weights`]."""
    found = answered(job, recipe)
    load, rating = _reference(found.reference, zero)
    before = (*found.generation, *rating, *found.own)
    if zero.shards is Shards.EVERYTHING and zero.ranks > 1 and not job.engine_options.get("handed_over"):
        before = (*_with_all_weights(job, recipe, zero, found.generation), *rating)
    return with_answers(zero_phases(recipe, zero, found.looked_at), load, before), found.said


def _with_all_weights(job: Job, recipe: Recipe, zero: Zero, generation: Program) -> Program:
    """Answers written between weights that every rank gathers, or a server's that they are sent to."""
    weights = tuple(sharded(parts(recipe, leaves=False)))
    whole = generation or job.plan.peft is not None
    at_once = _total_bytes(weights, zero) if whole else max(_bytes(weight, zero) for weight in weights)
    name = f"weights gathered {'to write answers' if generation else 'for the server'}"
    gathered = _tensor(name, at_once, Category.COMMUNICATION)
    return (Alloc(gathered), *generation, Free(gathered))


def taught_phases(job: Job, recipe: Recipe, zero: Zero) -> Mapping[Phase, Program]:
    """A teacher's answers behind the student's, which may have written what both read."""
    written = own_answers(job, recipe)
    if written and zero.shards is Shards.EVERYTHING and zero.ranks > 1:
        written = _with_all_weights(job, recipe, zero, written)
    compared = taught(recipe, recipe_of(student_of(job), narrow=zero.width < FP32))
    return with_answers(zero_phases(recipe, zero, compared), (), written)


def _gathered(recipe: Recipe, zero: Zero) -> Gathered | None:
    """Full weights of each block; with one rank the partition is the weight."""
    if zero.ranks == 1:
        return None
    sums: dict[str, int] = {}
    for weight in sharded(parts(recipe, leaves=False)):
        sums[weight.owner] = sums.get(weight.owner, 0) + _bytes(weight, zero)
    stack = recipe.model.main
    runs = [size for owner, size in sums.items() if owner.startswith(f"{stack.name}.layers.")]
    tied = sums.get("embedding", 0)
    return Gathered(
        _stream_tensor("gathered embedding", tied),
        tuple(_stream_tensor("gathered layer", runs[index]) for index, _, _ in run_parts(stack, recipe)),
        _stream_tensor("gathered head", sums.get("head", 0) or tied),
    )


