"""Rank programs of torchtitan runs.

[titan] torchtitan train.py `train_step`, distributed/pipeline_parallel.py
[pipelining] pytorch torch/distributed/pipelining/stage.py, schedules.py: weights stay gathered and gradients add up
unsharded in the reduce dtype until the last micro-batch; the last stage keeps every micro-batch's output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from vramcast.blocks.parts import Sizes
from vramcast.domain.cublas import blas_workspaces
from vramcast.domain.job import Job, Phase, RankProgram
from vramcast.domain.model import Attention, Layer, Model
from vramcast.domain.program import Alloc, Category, Free, Loop, Node, Program, Tensor
from vramcast.engines import torchtitan
from vramcast.engines.torchtitan.model import Choices
from vramcast.engines.torchtitan.pieces import Pieces, Sharing, Span, pieces
from vramcast.engines.torchtitan.setting import (
    Setting,
    assumptions,
    facts_of,
    micro_batches_of,
    offloaded,
    read,
    runs_as_eager_code,
)
from vramcast.errors import InvalidSpec, Note, Unsupported
from vramcast.parallel.fsdp import (
    backward,
    copy_out,
    drop_inputs,
    forward,
    gather,
    release,
    scatter_accumulated,
    scattered,
    sharded_gradients,
)
from vramcast.parallel.layout import Slot, Slots, gpipe, interleaved, one_forward_one_backward
from vramcast.states.optimizers import OptimizerRule
from vramcast.states.steps import clip_program, state_program, step_program, weight_program

MOST_STAGES: Final = 64
"""Pipeline stages that are kept: a search looks at each with many numbers of micro-batches [count]."""


def ranks(job: Job) -> tuple[RankProgram, ...]:
    """Every rank role of a torchtitan run.

    Raises: Unsupported for combinations torchtitan or this model of it does not have.
    """
    setting = read(job)
    if runs_as_eager_code(job):
        return (torchtitan.automodel.whole_network(setting),)
    if job.plan.pp > 1:
        return tuple(_pipeline_ranks(setting, _spans(setting)))
    runs = tuple((run.count, run.layer) for run in job.model.main.runs)
    built = pieces_of(setting, Span(runs))
    return RankProgram(
        role="all", count=job.cluster.count, phases=phases_of(setting, built), alloc_conf=alloc_conf_of(setting),
        assumptions=assumptions(job),
    ),


def deciding_ranks(job: Job) -> tuple[RankProgram, ...]:
    """The roles one of which holds the most live memory: of stages with equal chunks the first holds the most
    micro-batches.

    Raises: as `ranks`
    """
    if job.plan.pp == 1:
        return ranks(job)
    setting = read(job)
    first: dict[tuple[Span, ...], int] = {}
    for stage, spans in _spans(setting).items():
        first.setdefault(spans, stage)
    return tuple(_pipeline_ranks(setting, {stage: spans for spans, stage in first.items()}))


def alloc_conf_of(setting: Setting) -> str:
    """What run_train.sh sets."""
    asked = setting.job.engine_options.get("expandable", setting.known.expandable)
    return "expandable_segments:True" if asked else ""


def pieces_of(setting: Setting, span: Span) -> Pieces:
    return pieces(
        setting.job.model, setting.sizes, setting.choices, setting.sharing, span=span,
        split_root=setting.known.split_root, reshard=setting.reshard,
    )


def phases_of(setting: Setting, built: Pieces) -> Mapping[Phase, Program]:
    """Load, first step and steady step without pipeline."""
    if setting.job.engine_options.get("cuda_graphs") is True:
        return _replayed_phases(setting, built)
    passes = _micro_batches(setting, built, gradients=False)
    update = _update(built, setting.rule, setting.kernel, on_host=offloaded(setting.job))
    return _finish(setting, update, passes)


def _replayed_phases(setting: Setting, built: Pieces) -> Mapping[Phase, Program]:
    """Forward and backward in a CUDA graph: the first step runs as ever, the next is captured in a pool of its own,
    and gradients, whose places the graph knows, are set to zero instead of freed [titan f84224af0
    distributed/cudagraph.py, trainer.py `zero_grad(set_to_none=...)`]. Leaves out what the graph's nodes take."""
    update = _update(built, setting.rule, setting.kernel, on_host=False)
    first, later = (_micro_batches(setting, built, gradients=held) for held in (False, True))
    kept = replace(update, zeroed=())
    return {**_finish(setting, kept, first), Phase.STEP: _finish(setting, kept, later)[Phase.STEP]}


def _micro_batches(setting: Setting, built: Pieces, *, gradients: bool) -> Program:
    """All passes of a step, where sharded gradients are there before or not."""
    inputs = _inputs(setting)
    nodes: list[Node] = [*map(Alloc, inputs)]
    accumulation = setting.job.workload.grad_accum
    defers = accumulation > 1 and setting.job.engine_options.get("defers_sync") is True
    for first, times in ((True, 1), (False, accumulation - 1)):
        # offloaded gradients leave for the host as soon as they are reduced
        alone = first and not gradients and (defers or not offloaded(setting.job))
        passes = (*_forward(built), *_backward(built, first=alone, synchronise=not defers))
        if times:
            nodes.append(Loop(times, passes, label="micro-batches"))
    nodes += scatter_accumulated(built.stages) if defers else ()
    return (*nodes, *map(Free, inputs))


class Update(Struct, frozen=True):
    """What the optimizer step does behind the passes, and what it keeps: bodies that every run with it shares."""

    loaded: Program
    states: Program  # born in the first step
    temporaries: Program
    zeroed: Program


def _update(built: Pieces, rule: OptimizerRule, kernel: str, *, on_host: bool) -> Update:
    if on_host:
        return Update((), (), (), ())
    zeroed: list[Node] = [Loop(count, (Free(tensor),)) for tensor, count in sharded_gradients(built.stages)]
    if built.root is not None:
        zeroed.append(Free(built.root.reduce_output))
    temporaries = clip_program(built.weights) + step_program(built.weights, rule, kernel=kernel)
    states = state_program(built.weights, rule)
    return Update(weight_program(built.weights), _shared(states), _shared(temporaries), _shared(tuple(zeroed)))


def _shared(nodes: Program) -> Program:
    """As a body, which is read once wherever it stands."""
    return (Loop(1, nodes),) if nodes else ()


def _finish(setting: Setting, update: Update, passes: Program) -> dict[Phase, Program]:
    """The optimizer step behind the passes, with and without the birth of its states."""
    body, behind = _shared(passes), update.temporaries + update.zeroed
    return {
        Phase.LOAD: update.loaded + _buffers(setting),
        Phase.FIRST_STEP: body + update.states + behind,
        Phase.STEP: body + behind,
    }


def _buffers(setting: Setting) -> Program:
    """cuBLAS workspaces of the forward and of the autograd thread; the table of rotary frequencies."""
    dims = [run.layer.mixer.head_dim for run in setting.job.model.main.runs if isinstance(run.layer.mixer, Attention)]
    table = setting.job.workload.seq_len * (dims[0] if dims else 0) // 2 * 8
    frequencies = Tensor(name="rotary frequencies", num_bytes=table, category=Category.WEIGHTS, owner="decoder")
    return (*blas_workspaces(setting.job), Alloc(frequencies))


def _inputs(setting: Setting) -> tuple[Tensor, ...]:
    size = setting.job.workload.seq_len * setting.job.workload.micro_batch // setting.job.plan.cp * 8
    return tuple(
        Tensor(name=name, num_bytes=size, category=Category.INPUTS, owner="batch") for name in ("input_ids", "labels")
    )


def _forward(built: Pieces) -> Program:
    """One micro-batch forward, the root's own unit around it."""
    if built.root is None:
        return forward(built.stages)
    root = (built.root,)
    first = built.embedding.forward if built.embedding else ()
    last = built.head.forward if built.head else ()
    return (*gather(root), *copy_out(root), *first, *forward(built.stages, before=root), *last)


def _backward(built: Pieces, *, first: bool, synchronise: bool = True) -> Program:
    """One micro-batch backward."""
    if built.root is None:
        return (*built.loss_gradient, *backward(built.stages, first=first, synchronise=synchronise))
    nodes: list[Node] = [*built.loss_gradient]
    nodes += built.head.backward if built.head else ()
    nodes += backward(built.stages, first=first)
    nodes += built.embedding.backward if built.embedding else ()
    root = built.root
    nodes += [*release((root,)), Alloc(root.reduce_input), *map(Free, built.root_gradients), Alloc(root.reduce_output)]
    nodes += [] if first else [Free(root.reduce_output)]
    return (*nodes, *drop_inputs((root,)))


def _spans(setting: Setting) -> dict[int, tuple[Span, ...]]:
    """Chunks of every pipeline stage."""
    plan, model = setting.job.plan, setting.job.model
    layers = [run.layer for run in model.main.runs for _ in range(run.count)]
    count = plan.pp * plan.virtual_stages
    cuts = _cuts(setting.job, count)
    spans = [
        Span(_runs(layers[start:stop]), first=index == 0, last=index == count - 1)
        for index, (start, stop) in enumerate(pairwise(cuts))
    ]
    return {stage: tuple(spans[stage :: plan.pp]) for stage in range(plan.pp)}


def _pipeline_ranks(setting: Setting, stages: Mapping[int, tuple[Span, ...]]) -> Iterator[RankProgram]:
    """One role per pipeline stage, of those given with their chunks."""
    plan, job = setting.job.plan, setting.job
    assumed = assumptions(job)
    for stage, spans in stages.items():
        built = _stage_of(
            job.model, setting.sizes, setting.choices, setting.sharing, setting.reshard, setting.rule, setting.kernel,
            spans, keeps_output=not setting.known.drops_outputs,
        )
        role = Note("stage {} of {}", stage + 1, plan.pp)
        yield RankProgram(
            role=role, count=job.cluster.count // plan.pp,
            phases=_pipeline_phases(setting, built, _slots(setting, stage)),
            alloc_conf=alloc_conf_of(setting), assumptions=assumed,
        )


class PipelineStage(Struct, frozen=True):
    """What a stage repeats for every micro-batch, and what it does once a step. Lists have an entry for each chunk."""

    gathered: Program
    forwards: list[Loop]
    firsts: list[Loop]  # backward of the first micro-batch
    laters: list[Loop]
    reduced: Program
    output: tuple[Tensor, ...]  # kept of every micro-batch
    buffers: tuple[Tensor, ...]  # received in every micro-batch
    update: Update
    turns: dict[tuple[tuple[Slot, ...], ...], tuple[Program, Program, Program]]  # of the schedules read so far


@lru_cache(maxsize=MOST_STAGES)
def _stage_of(
    model: Model, sizes: Sizes, choices: Choices, sharing: Sharing, reshard: str, rule: OptimizerRule, kernel: str,
    spans: tuple[Span, ...], *, keeps_output: bool,
) -> PipelineStage:
    """The same for every number of micro-batches, and for stages between the ends."""
    built = [  # units of their own or not: all weights stay gathered
        pieces(model, sizes, choices, sharing, span=span, split_root=True, reshard=reshard, place=chunk)
        for chunk, span in enumerate(spans)
    ]
    output: tuple[Tensor, ...] = ()
    if built[-1].head and keeps_output:  # `output_chunks`, merged after the step [pipelining]
        size = sizes.tokens * model.vocab // sizes.tp * sizes.numerics.compute
        name = "logits kept for the merged output"
        output = (Tensor(name=name, num_bytes=size, category=Category.ACTIVATIONS, owner="head"),)
    merged = replace(
        built[0], stages=tuple(stage for piece in built for stage in piece.stages),
        weights=tuple(weight for piece in built for weight in piece.weights),
    )
    firsts, laters = ([Loop(1, _pass_backward(piece, first=first)) for piece in built] for first in (True, False))
    return PipelineStage(
        gathered=_shared(tuple(
            Loop(stage.repeats, (*gather(stage.units), *copy_out(stage.units),
                                 *(Free(u.gathered) for u in stage.units if u.shared)))
            for stage in merged.stages
        )),
        forwards=[Loop(1, (*_pass_forward(piece), *(map(Alloc, output) if piece.head else ()))) for piece in built],
        firsts=firsts,
        laters=laters,
        reduced=_shared(_pipeline_reduce(built)),
        output=output,
        buffers=tuple(tensor for piece in built for tensor in (*piece.received, *piece.returned)),
        update=_update(merged, rule, kernel, on_host=False),
        turns={},
    )


def pipeline_micro_batches(job: Job) -> int:
    """Micro-batches that the pipeline cuts a local batch into."""
    return micro_batches_of(job, facts_of(job))[0]


def stage_layers(job: Job) -> tuple[int, ...]:
    """Layers of every pipeline rank."""
    stages, chunks = job.plan.pp, job.plan.virtual_stages
    cuts = _cuts(job, stages * chunks)
    pieces = [stop - start for start, stop in pairwise(cuts)]
    return tuple(sum(pieces[stage::stages]) for stage in range(stages))


def _cuts(job: Job, chunks: int) -> list[int]:
    """First layers of each chunk; the ends count as a layer each [titan `generate_llm_fqn_per_model_part`]."""
    layers, end = job.model.num_layers, int(job.engine_options.get("ends_count", True) is True)
    total = layers + 2 * end
    base, extra = divmod(total, chunks)
    if base < 1:
        raise Unsupported("{} pipeline chunks are more than {} layers and two ends; use fewer stages", chunks, layers)
    sizes = [base + (1 if index < extra else 0) for index in range(chunks)]
    sizes[0] -= end
    sizes[-1] -= end
    cuts = [0]
    for size in sizes:
        cuts.append(cuts[-1] + size)
    return cuts


def _runs(layers: list[Layer]) -> tuple[tuple[int, Layer], ...]:
    runs: list[tuple[int, Layer]] = []
    for layer in layers:
        if runs and runs[-1][1] is layer:
            runs[-1] = (runs[-1][0] + 1, layer)
        else:
            runs.append((1, layer))
    return tuple(runs)


def _slots(setting: Setting, stage: int) -> Slots:
    plan, batches = setting.job.plan, setting.micro_batches
    if plan.schedule == "gpipe":
        return gpipe(micro_batches=batches)
    if plan.virtual_stages == 1:
        return one_forward_one_backward(stage=stage, stages=plan.pp, micro_batches=batches)
    rounds = max(1, batches // plan.pp)  # [pipelining ScheduleInterleaved1F1B]
    if batches % rounds:
        raise InvalidSpec(
            "micro-batch={} makes {} pipeline micro-batches, which interleaved stages do not divide into {} rounds; "
            "use a multiple of pp={}", setting.job.workload.micro_batch, batches, rounds, plan.pp
        )
    return interleaved(
        stage=stage, stages=plan.pp, micro_batches=batches, chunks=plan.virtual_stages, group=batches // rounds
    )


def _pipeline_phases(setting: Setting, built: PipelineStage, slots: Slots) -> Mapping[Phase, Program]:
    """Passes in schedule order; the reduction of all gradients behind them."""
    inputs, output = _inputs(setting), built.output
    dropped = (Loop(setting.micro_batches, tuple(map(Free, output))),) if output else ()
    passes = (*map(Alloc, inputs), *built.gathered, *_passes(built, slots), *built.reduced, *dropped)
    phases = _finish(setting, built.update, (*passes, *map(Free, inputs)))
    # receive buffers of every micro-batch are made once [pipelining `_prepare_forward_infra`]
    buffers = tuple(map(Alloc, built.buffers))
    phases[Phase.LOAD] += (Loop(setting.micro_batches, buffers, label="receive buffers"),)
    return phases


def _passes(built: PipelineStage, slots: Slots) -> Program:
    """All slots. Schedules of other numbers of micro-batches share their turns: the steady one comes more often."""
    turns = slots.warmup, slots.steady if slots.repeats else (), slots.cooldown
    if turns not in built.turns:
        built.turns[turns] = _turns(built, *turns)
    before, steady, behind = built.turns[turns]
    return (*before, *((Loop(slots.repeats - 1, steady, label="micro-batches"),) if slots.repeats else ()), *behind)


def _turns(built: PipelineStage, *turns: tuple[Slot, ...]) -> tuple[Program, Program, Program]:
    """Up to the end of the first steady turn, every further one, the rest; each chunk's first backward makes the
    gradients that later ones add to."""
    begun: set[int] = set()

    def run(turn: tuple[Slot, ...]) -> Iterator[Node]:
        for slot in turn:
            if slot.forward:
                yield built.forwards[slot.chunk]
            else:
                yield (built.laters if slot.chunk in begun else built.firsts)[slot.chunk]
                begun.add(slot.chunk)

    warmup, steady, cooldown = turns
    before = _shared((*run(warmup), *run(steady)))
    return before, tuple(run(steady)), _shared(tuple(run(cooldown)))


def _pass_forward(piece: Pieces) -> Program:
    return tuple(Loop(stage.repeats, stage.forward, label=stage.label) for stage in piece.stages)


def _pass_backward(piece: Pieces, *, first: bool) -> Program:
    """Backward of one micro-batch; what was received stays allocated for the next one, what is sent on dies."""
    nodes: list[Node] = [*piece.loss_gradient]
    for stage in reversed(piece.stages):
        kept = [Alloc(tensor) for u in stage.units for tensor in u.accumulated] if first else []
        body = (*stage.backward, *kept, *map(Free, stage.gradients))
        nodes.append(Loop(stage.repeats, body, label=stage.label))
    nodes += map(Alloc, (*piece.received, *piece.returned))
    if piece.received:
        nodes.append(Free(piece.gradient))
    if piece.returned:
        nodes.append(Free(piece.hidden))
    return tuple(nodes)


def _pipeline_reduce(built: list[Pieces]) -> Program:
    """Reduce-scatter of every unit's accumulated gradients; the gathered weights die."""
    nodes: list[Node] = []
    for piece in reversed(built):
        for stage in reversed(piece.stages):
            body: list[Node] = [*release(stage.units)]
            for u in stage.units:
                body += [Alloc(u.reduce_input), *map(Free, u.accumulated), *scattered((u,)), Free(u.reduce_input)]
            nodes.append(Loop(stage.repeats, tuple(body)))
    return tuple(nodes)
