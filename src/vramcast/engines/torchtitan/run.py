"""Rank programs of torchtitan runs.

[titan] torchtitan train.py `train_step`, distributed/pipeline_parallel.py
[pipelining] pytorch torch/distributed/pipelining/stage.py, schedules.py: weights stay gathered and gradients add up
unsharded in the reduce dtype until the last micro-batch; the last stage keeps every micro-batch's output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from vramcast.blocks.sizes import Sizes
from vramcast.domain.job import AttentionKernel, Job, Loss, Phase, Precision, Recompute, Shards, share
from vramcast.domain.model import Attention, Layer, MultiLatentAttention
from vramcast.domain.program import Alloc, Basis, Category, Free, Loop, Node, Program, Tensor
from vramcast.domain.rank import RankProgram
from vramcast.engines.torchtitan.facts import Facts, facts
from vramcast.engines.torchtitan.model import Choices
from vramcast.engines.torchtitan.pieces import Pieces, Sharing, Span, pieces
from vramcast.errors import Unsupported
from vramcast.operators.linear import Numerics
from vramcast.parallel.fsdp import (
    Fsdp,
    backward,
    copy_out,
    drop_inputs,
    forward,
    gather,
    release,
    sharded_gradients,
)
from vramcast.parallel.layout import Layout
from vramcast.parallel.pipeline import Slots, interleaved, one_forward_one_backward
from vramcast.states.optimizers import OptimizerRule, optimizer
from vramcast.states.steps import state_program, step_program, weight_program
from vramcast.units import MIB

CUBLAS_WORKSPACE: Final = 8_519_680
HOPPER_CUBLAS_WORKSPACE: Final = 32 * MIB
FIRST_HOPPER_SM: Final = 90
BF16: Final = Numerics(2, 2, 2, 2)


class Setting(NamedTuple):
    """A job as this engine reads it."""

    job: Job
    known: Facts
    sizes: Sizes
    choices: Choices
    sharing: Sharing
    reshard: str
    micro_batches: int  # of a pipeline step; 1 without pipeline
    rule: OptimizerRule
    kernel: str


def ranks(job: Job) -> tuple[RankProgram, ...]:
    """Every rank role of a torchtitan run.

    Raises: Unsupported for combinations torchtitan or this model of it does not have.
    """
    _check(job)
    setting = _setting(job)
    if job.plan.pp > 1:
        return tuple(_pipeline_ranks(setting))
    runs = tuple((run.count, run.layer) for run in job.model.main.runs)
    built = pieces_of(setting, Span(runs))
    return (
        RankProgram(
            role="all", count=job.cluster.count, phases=phases_of(setting, built), alloc_conf=alloc_conf_of(setting)
        ),
    )


def alloc_conf_of(setting: Setting) -> str:
    """What run_train.sh sets."""
    return "expandable_segments:True" if setting.known.expandable else ""


def _check(job: Job) -> None:
    plan = job.plan
    if plan.peft is not None:
        raise Unsupported("torchtitan trains all weights; use --engine torchtune or litgpt for adapters")
    if len(job.model.stacks) > 1:
        raise Unsupported("torchtitan's encoders are not modelled; use --engine pytorch for models of several stacks")
    for count, layer in ((run.count, run.layer) for run in job.model.main.runs):
        if count and layer.mixer is not None and not isinstance(layer.mixer, (Attention, MultiLatentAttention)):
            raise Unsupported(
                f"{type(layer.mixer).__name__} layers are not modelled for torchtitan; use --engine megatron"
            )
    if job.data_parallel * plan.cp == 1 or plan.shards is Shards.NOTHING:
        raise Unsupported("torchtitan is modelled with FSDP; use --shards everything on more GPUs, or --engine pytorch")
    if plan.shards is not Shards.EVERYTHING:
        raise Unsupported(f"torchtitan does not shard {plan.shards} only; use --shards everything")
    if plan.precision not in (Precision.MIXED_BF16, Precision.AMP_BF16, Precision.FP8):
        raise Unsupported(f"torchtitan trains fp32 weights in bf16, not in {plan.precision}; use mixed-bf16 or fp8")
    if plan.offload_parameters == "nvme" or plan.offload_optimizer == "nvme":
        raise Unsupported("torchtitan offloads to the host only; use --offload-optimizer cpu")
    if plan.pp > 1 and _offloaded(job):
        raise Unsupported("torchtitan's offload with pipeline parallelism is not modelled; use --pp 1")
    if plan.schedule in ("zero-bubble", "dualpipe", "gpipe"):
        raise Unsupported(f"torchtitan's {plan.schedule} schedule is not modelled; use 1f1b or interleaved")


def _setting(job: Job) -> Setting:
    plan, options = job.plan, job.engine_options
    known = facts(str(options.get("version", "")))
    micro_batches, samples = _micro_batches(job, known)
    data = job.data_parallel
    divided = data * plan.cp if plan.shards is not Shards.NOTHING else 1
    group = min(plan.shard_group or divided, divided)
    float8 = bool(options.get("float8", plan.precision is Precision.FP8))
    gathered = 1.0 if float8 and options.get("float8_all_gather", False) else 2.0
    expert_ranks = max(1, group * plan.tp // plan.ep)
    layout = Layout(tp=plan.tp, pp=plan.pp, cp=plan.cp, ep=plan.ep, etp=plan.etp or 1, dp=data, sequence_parallel=True)
    fsdp = Fsdp(group, side_streams=not _graph_trainer(job))
    return Setting(
        job, known, _sizes(job, known, samples), _choices(job, known, float8=float8),
        Sharing(layout, fsdp, fsdp._replace(ranks=expert_ranks), gathered), _reshard(job, known), micro_batches,
        optimizer(plan.optimizer), plan.optimizer_kernel or ("fused" if known.fused_optimizer else "foreach"),
    )


def _micro_batches(job: Job, known: Facts) -> tuple[int, int]:
    """Pipeline micro-batches and samples of each."""
    batch, plan = job.workload.micro_batch, job.plan
    if plan.pp == 1:
        return 1, batch
    given = int(job.engine_options.get("pipeline_microbatch_size", 0))
    if given or known.one_sample_microbatches:
        size = given or 1
        return share("pipeline_microbatch_size", batch, size, what="local batch"), size
    return plan.pp, share("pp", batch, plan.pp, what="local batch")


def _sizes(job: Job, known: Facts, samples: int) -> Sizes:
    plan = job.plan
    kernel = plan.attention if plan.attention is not AttentionKernel.EAGER else AttentionKernel.FLASH
    length = share("cp", job.workload.seq_len, plan.cp, what="seq_len")
    return Sizes(
        batch=samples, seq_len=length, hidden=job.model.hidden, numerics=BF16, attention=kernel,
        norm="compiled" if plan.compile else ("torch" if known.fused_norm else "huggingface"),
        activation="compiled" if plan.compile else "eager",
        rope="compiled" if plan.compile else "complex",
        grouped=known.grouped_attention, tp=plan.tp,
        sequence_parallel=plan.tp > 1,
    )


def _graph_trainer(job: Job) -> bool:
    """SimpleFSDP or the graph trainer: collectives are nodes of one traced graph [titan experiments/simple_fsdp]."""
    trainer = str(job.engine_options.get("trainer", "eager"))
    if trainer not in ("eager", "graph"):
        raise Unsupported(f"torchtitan has no trainer {trainer[:40]!r}; use eager or graph")
    return trainer == "graph"


def _choices(job: Job, known: Facts, *, float8: bool) -> Choices:
    plan = job.plan
    loss = "eager" if known.loss_casts else "model_fp32"
    if plan.loss in (Loss.CHUNKED, Loss.FUSED_LINEAR) or (plan.loss is None and known.chunked_loss):
        loss = "chunked"
    elif plan.loss in (Loss.COMPILED, Loss.FUSED) or (plan.loss is None and plan.compile and known.compiles_loss):
        loss = "compiled"
    graph = _graph_trainer(job)
    return Choices(
        plan.recompute, loss, known.frees_prediction, needed_only=plan.compile or graph,
        every_product=graph and known.graph_keeps_products, context_ranks=plan.cp,
        expert_ranks=plan.ep, fused_qkv=known.fused_qkv,
        abs_kept=float8 and not plan.compile and known.saves_abs and plan.recompute is Recompute.SELECTIVE,
    )


def _reshard(job: Job, known: Facts) -> str:
    """Which blocks free their weights after forward (`fsdp_reshard_after_forward`)."""
    policy = str(job.engine_options.get("reshard", "default" if job.plan.reshard_after_forward else "never"))
    if job.plan.shards is not Shards.EVERYTHING or (policy == "default" and job.plan.pp > 1):
        return "never"
    return policy if policy != "default" else ("blocks" if known.split_root else "last")


def pieces_of(setting: Setting, span: Span) -> Pieces:
    return pieces(
        setting.job.model, setting.sizes, setting.choices, setting.sharing, span=span,
        split_root=setting.known.split_root, reshard=setting.reshard,
    )


def phases_of(setting: Setting, built: Pieces) -> Mapping[Phase, Program]:
    """Load, first step and steady step without pipeline."""
    inputs = _inputs(setting)
    nodes: list[Node] = [*map(Alloc, inputs)]
    accumulation = setting.job.workload.grad_accum
    for first, times in ((True, 1), (False, accumulation - 1)):
        # offloaded gradients leave for the host as soon as they are reduced
        passes = (*_forward(built), *_backward(built, first=first and not _offloaded(setting.job)))
        if times:
            nodes.append(Loop(times, passes, label="micro-batches"))
    nodes += [*map(Free, inputs)]
    return _finish(setting, built, tuple(nodes))


def _finish(setting: Setting, built: Pieces, passes: Program) -> Mapping[Phase, Program]:
    """The optimizer step behind the passes, with and without the birth of its states."""
    offloaded = _offloaded(setting.job)
    temporaries = () if offloaded else step_program(built.weights, setting.rule, kernel=setting.kernel)
    states = () if offloaded else state_program(built.weights, setting.rule)
    zeroed: list[Node] = [Loop(count, (Free(tensor),)) for tensor, count in sharded_gradients(built.stages)]
    if built.root is not None:
        zeroed.append(Free(built.root.reduce_output))
    if offloaded:
        zeroed = []
    loaded = () if offloaded else weight_program(built.weights)
    return {
        Phase.LOAD: loaded + _buffers(setting),
        Phase.FIRST_STEP: (*passes, *states, *temporaries, *zeroed),
        Phase.STEP: (*passes, *temporaries, *zeroed),
    }


def _offloaded(job: Job) -> bool:
    """CPUOffloadPolicy: sharded weights, gradients and states live on the host together [titan `apply_fsdp`]."""
    return job.plan.offload_optimizer != "none" or job.plan.offload_parameters != "none"


def _buffers(setting: Setting) -> Program:
    """cuBLAS workspaces of the forward and of the autograd thread; the table of rotary frequencies."""
    sm = setting.job.cluster.gpu.sm or 0
    size = HOPPER_CUBLAS_WORKSPACE if sm >= FIRST_HOPPER_SM else CUBLAS_WORKSPACE
    workspace = Tensor(
        name="cuBLAS workspace", num_bytes=size, category=Category.WORKSPACES, owner="process", basis=Basis.FORMULA,
        source="pytorch aten/src/ATen/cuda/CublasHandlePool.cpp getChosenWorkspaceSize",
    )
    dims = [run.layer.mixer.head_dim for run in setting.job.model.main.runs if isinstance(run.layer.mixer, Attention)]
    table = setting.job.workload.seq_len * (dims[0] if dims else 0) // 2 * 8
    frequencies = Tensor(name="rotary frequencies", num_bytes=table, category=Category.WEIGHTS, owner="decoder")
    return (Alloc(workspace), Alloc(workspace), Alloc(frequencies))


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


def _backward(built: Pieces, *, first: bool) -> Program:
    """One micro-batch backward."""
    if built.root is None:
        return (*built.loss_gradient, *backward(built.stages, first=first))
    nodes: list[Node] = [*built.loss_gradient]
    nodes += built.head.backward if built.head else ()
    nodes += backward(built.stages, first=first)
    nodes += built.embedding.backward if built.embedding else ()
    root = built.root
    nodes += [*release((root,)), Alloc(root.reduce_input), *map(Free, built.root_gradients), Alloc(root.reduce_output)]
    nodes += [] if first else [Free(root.reduce_output)]
    return (*nodes, *drop_inputs((root,)))


def _pipeline_ranks(setting: Setting) -> Iterator[RankProgram]:
    """One role per pipeline stage."""
    plan, job = setting.job.plan, setting.job
    layers = [run.layer for run in job.model.main.runs for _ in range(run.count)]
    chunks = plan.virtual_stages
    cuts = _cuts(len(layers), plan.pp * chunks)
    known = setting.known._replace(split_root=True)  # units of their own or not: all weights stay gathered
    for stage in range(plan.pp):
        built = []
        for chunk in range(chunks):
            index = chunk * plan.pp + stage
            own = layers[cuts[index] : cuts[index + 1]]
            span = Span(_runs(own), first=index == 0, last=index == plan.pp * chunks - 1)
            built.append(pieces_of(setting._replace(known=known), span))
        slots = _slots(setting, stage)
        role = f"stage {stage + 1} of {plan.pp}"
        yield RankProgram(
            role=role, count=job.cluster.count // plan.pp, phases=_pipeline_phases(setting, built, slots),
            alloc_conf=alloc_conf_of(setting),
        )


def _cuts(layers: int, chunks: int) -> list[int]:
    """First layers of each chunk; the ends count as a layer each [titan `generate_llm_fqn_per_model_part`]."""
    total = layers + 2
    base, extra = divmod(total, chunks)
    if base < 1:
        raise Unsupported(f"{chunks} pipeline chunks are more than {layers} layers and two ends; use fewer stages")
    sizes = [base + (1 if index < extra else 0) for index in range(chunks)]
    sizes[0] -= 1
    sizes[-1] -= 1
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
    if plan.virtual_stages == 1:
        return one_forward_one_backward(stage=stage, stages=plan.pp, micro_batches=batches)
    return interleaved(
        stage=stage, stages=plan.pp, micro_batches=batches, chunks=plan.virtual_stages, group=min(plan.pp, batches)
    )


def _pipeline_phases(setting: Setting, built: list[Pieces], slots: Slots) -> Mapping[Phase, Program]:
    """Passes in schedule order; the reduction of all gradients behind them."""
    inputs = _inputs(setting)
    nodes: list[Node] = [*map(Alloc, inputs)]
    for piece in built:
        for stage in piece.stages:
            nodes.append(Loop(stage.repeats, (*gather(stage.units), *copy_out(stage.units),
                                              *(Free(u.gathered) for u in stage.units if u.shared))))
    buffers = tuple(tensor for piece in built for tensor in (*piece.received, *piece.returned))
    output = _kept_output(setting, built)
    begun: set[int] = set()
    order = (*slots.warmup, *(slot for _ in range(slots.repeats) for slot in slots.steady), *slots.cooldown)
    for slot in order:
        piece = built[slot.chunk]
        if slot.forward:
            nodes += [*_pass_forward(piece), *(map(Alloc, output) if piece.head else ())]
        else:
            nodes += _pass_backward(piece, first=slot.chunk not in begun)
            begun.add(slot.chunk)
    nodes += _pipeline_reduce(built)
    nodes += [Loop(setting.micro_batches, tuple(map(Free, output)))] if output else []
    nodes += [*map(Free, inputs)]
    merged = built[0]._replace(
        stages=tuple(stage for piece in built for stage in piece.stages),
        weights=tuple(weight for piece in built for weight in piece.weights),
    )
    phases = dict(_finish(setting, merged, tuple(nodes)))
    # receive buffers of every micro-batch are made once [pipelining `_prepare_forward_infra`]
    phases[Phase.LOAD] += (Loop(setting.micro_batches, tuple(map(Alloc, buffers)), label="receive buffers"),)
    return phases


def _kept_output(setting: Setting, built: list[Pieces]) -> tuple[Tensor, ...]:
    """The logits of each micro-batch on the last stage (`output_chunks`, merged after the step) [pipelining]."""
    if not built[-1].head or setting.known.drops_outputs:
        return ()
    size = setting.sizes.tokens * setting.job.model.vocab // setting.sizes.tp * setting.sizes.numerics.compute
    name = "logits kept for the merged output"
    return (Tensor(name=name, num_bytes=size, category=Category.ACTIVATIONS, owner="head"),)


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
                body += [Alloc(u.reduce_input), *map(Free, u.accumulated), Alloc(u.reduce_output), Free(u.reduce_input)]
            nodes.append(Loop(stage.repeats, tuple(body)))
    return tuple(nodes)


