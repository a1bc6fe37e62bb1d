"""A run of one pipeline rank: its weights, what lives through the run, load, first step, steady step.

Source: Megatron-LM megatron/core/models/gpt/gpt_layer_specs.py: one query-key-value weight, one gate-up weight.

[cuBLAS] pytorch aten/src/ATen/cuda/CublasHandlePool.cpp: one workspace per handle and stream; the autograd thread of
the device has a handle of its own.
[Buffer] Megatron-LM megatron/core/utils.py, GlobalMemoryBuffer.
"""

from __future__ import annotations

from itertools import groupby
from typing import Final

from vramcast.blocks.parameters.model import stack_parameters
from vramcast.domain.cublas import blas_workspace
from vramcast.domain.job import Job, Phase, RankProgram, Shards
from vramcast.domain.model import Layer, Mamba, MoE
from vramcast.domain.program import Alloc, Category, Free, Loop, Node, Program, Tensor
from vramcast.engines.megatron.chunk import Chunk, ChunkBuilder, ChunkPrograms, chunks_of
from vramcast.engines.megatron.options import COMPARED, Context, Options, copies_moments, learns_towers
from vramcast.engines.megatron.weights import (
    SAVED,
    embedding_weights,
    head_weights,
    layer_weights,
    owned_weights,
    prediction_weights,
    tower_weights,
)
from vramcast.errors import InvalidSpec, Note
from vramcast.parallel.layout import Slot, Slots, interleaved, one_forward_one_backward
from vramcast.states.megatron import StateRules, States, Weight, states
from vramcast.units import tensor_bytes


def _tensor(name: str, num_bytes: int, category: Category, source: str, formula: str = "") -> Tensor:
    return Tensor(name=name, num_bytes=num_bytes, category=category, owner="process", source=source, formula=formula)


TE_GEMM: Final = "TransformerEngine pytorch/cpp_extensions/gemm.py"
GROUPED_STREAMS: Final = 4


def workspaces(context: Context, chunks: list[Chunk]) -> list[Tensor]:
    """cuBLAS workspaces of PyTorch (forward and backward thread) and of TransformerEngine."""
    threads = ("forward", "backward") if _torch_products(context, chunks) else ()
    found = [
        blas_workspace(
            context.cublas_workspace_bytes, whose="{:,} B for its handle", name=f"cuBLAS workspace, {thread} thread"
        )
        for thread in threads
    ]
    if context.te:
        grouped = GROUPED_STREAMS if context.options.grouped_gemm and _layers(chunks, MoE) else 0
        names = [f"grouped cuBLAS workspace {index + 1}" for index in range(grouped)]
        found += [
            _tensor(name, context.te_workspace_bytes, Category.WORKSPACES, TE_GEMM)
            for name in ("TransformerEngine cuBLAS workspace", *names)
        ]
    return found


def _layers(chunks: list[Chunk], kind: type) -> list[Layer]:
    return [
        run.layer
        for chunk in chunks
        for run in chunk.runs
        if isinstance(run.layer.channel, kind) or isinstance(run.layer.mixer, kind)
    ]


def _torch_products(context: Context, chunks: list[Chunk]) -> bool:
    """Whether PyTorch itself multiplies matrices on this rank."""
    if not context.te or context.attention_kernel == "unfused" or any(chunk.head for chunk in chunks):
        return True
    return bool(_layers(chunks, MoE) or _layers(chunks, Mamba))


def buffers(context: Context, chunks: list[Chunk]) -> list[Tensor]:
    """Megatron's global memory buffer: gathered inputs, and scores of its own attention."""
    sizes = [0]
    hidden = context.model.hidden
    if context.sp and (not context.te or any(chunk.head for chunk in chunks)) and context.lora is None:
        sizes.append(context.tokens * hidden * context.element)
    if not context.te:
        for chunk in chunks:
            for run in chunk.runs:
                heads = getattr(run.layer.mixer, "num_heads", 0) // context.tp
                sizes.append(context.batch * heads * context.seq * context.seq * context.element)
    if not max(sizes):
        return []
    return [_tensor("global memory buffer", max(sizes), Category.COMMUNICATION, "Megatron-LM core/utils.py")]


def inputs(context: Context) -> list[Tensor]:
    """Tokens, labels, positions (int64), loss mask (fp32) and attention mask of a micro-batch."""
    n, seq, whole = context.tokens, context.seq, context.job.workload.seq_len
    found = [_tensor(
        "tokens, labels, positions, loss mask", n * (8 + 8 + 8 + 4), Category.INPUTS,
        "Megatron-LM training/utils, get_batch_on_this_tp_rank", f"{n:,} x (8 + 8 + 8 + 4) B",
    )]
    if context.options.attention_mask:
        found.append(_tensor(
            "attention mask", context.batch * seq * whole, Category.INPUTS,
            "Megatron-LM core/datasets/gpt_dataset.py", f"{context.batch} x {seq:,} x {whole:,} B",
        ))
    return found


ASSUMPTIONS = ("every expert receives the same number of tokens",)

SAID: Final = {
    "dpo": "DPO as ms-swift runs it on Megatron: both answers of a pair in one forward, behind one without gradients "
    "of the reference, which is the model without its adapters, or a frozen copy in 16 bits",
    "kto": "KTO as ms-swift runs it on Megatron: an answer a sample, behind forwards without gradients of the "
    "reference, which is the model without its adapters, or a frozen copy in 16 bits",
    "reward": "both answers of a pair are rated in one forward",
}
"""[swift] modelscope/ms-swift 3602360a5 swift/megatron/trainers/{dpo,kto,reward}_trainer.py, rlhf_mixin.py: losses of
tokens are compared; forwards without gradients hold less than the one behind them."""

OF_TOWERS: Final = (
    "the tower is whole on every rank of the first stage and learns nothing: its pass keeps nothing for backward, and "
    "is not counted beside it"
)
"""[mcore] modelscope/mcore-bridge f020e479 src/mcore_bridge/model/{mm_gpt_model,mm_gpts/utils}.py"""


def rank_programs(context: Context) -> tuple[RankProgram, ...]:
    """Programs of all roles, first stage first."""
    builder = ChunkBuilder(context)
    pp = context.job.plan.pp
    each = context.job.cluster.count // pp
    stages = list(enumerate(chunks_of(context)))
    programs: list[RankProgram] = []
    cache: dict[Chunk, ChunkPrograms] = {}
    for stage, chunks in stages:
        for chunk in chunks:
            if chunk not in cache:
                cache[chunk] = builder.build(chunk)
        programs.append(_rank(context, builder, stage, chunks, [cache[chunk] for chunk in chunks], each))
    return tuple(programs)


def _rank(
    context: Context, builder: ChunkBuilder, stage: int, chunks: list[Chunk], programs: list[ChunkPrograms], count: int
) -> RankProgram:
    weights, learning = weights_of(context, chunks, stage), adapter_weights(context, builder, chunks)
    objective = context.job.workload.objective
    compared = objective in COMPARED
    there = any(chunk.embedding for chunk in chunks) and not learns_towers(context.job)
    towers = tower_weights(context.model) if there else []
    frozen = [*(weights if learning or compared else ()), *towers, *(towers if compared and not learning else ())]
    held = states(learning or weights, state_rules(context), frozen=frozen)
    slots = slots_of(context.job, stage, context.options.interleave_group, context.options.overlap_moe_comm)
    step = (*_step(context, slots, programs, chunks), *held.update)
    dummies = {key: tensor for chunk in chunks for key, tensor in builder.dummy_gradients(chunk).items()}
    lasting = [*workspaces(context, chunks), *buffers(context, chunks), *dummies.values()]
    first = (*_first_use(lasting, programs[0]), *step, *held.first_step)
    return RankProgram(
        role=_role(stage, context.job.plan.pp),
        count=count,
        phases={Phase.LOAD: held.load, Phase.FIRST_STEP: first, Phase.STEP: step},
        assumptions=(
            *(ASSUMPTIONS if context.job.plan.ep > 1 else ()), *_said_of_moments(context.options),
            *((SAID[objective],) if objective in SAID else ()), *((OF_TOWERS,) if towers else ()),
        ),
    )


def _said_of_moments(options: Options) -> tuple[str, ...]:
    if options.moments == "fp32" or options.te or not copies_moments(options):
        return ()
    return (
        "FusedAdam copies moments to fp32 while it steps them; bf16 ones no longer from TransformerEngine 2.14 on "
        "(--engine-option te=2.14)",
    )


def _first_use(lasting: list[Tensor], program: ChunkPrograms) -> Program:
    """Workspaces appear when a thread first needs them, between activations: the holes they leave stay."""
    late = [tensor for tensor in lasting if "backward" in tensor.name or "dummy" in tensor.name]
    early = [tensor for tensor in lasting if tensor not in late]
    return (*map(Alloc, early), *program.forward, *map(Alloc, late), *program.backward)


def _role(stage: int, pp: int) -> str:
    if pp == 1:
        return "all"
    return "first stage" if stage == 0 else "last stage" if stage == pp - 1 else Note("stage {} of {}", stage + 1, pp)


def slots_of(job: Job, stage: int, group: int, overlap: bool) -> Slots:
    """The schedule of one stage [core/pipeline_parallel/schedules.py, forward_backward_pipelining_with_interleaving].

    Raises: InvalidSpec where the micro-batches do not fill the groups
    """
    plan, micro = job.plan, job.workload.grad_accum
    if plan.virtual_stages == 1:
        return one_forward_one_backward(stage=stage, stages=plan.pp, micro_batches=micro)
    group = group or plan.pp
    if group < plan.pp or micro < group or 0 < micro % group < plan.pp:
        raise InvalidSpec(
            "grad-accum={}: interleaved stages take micro-batches in groups of {}, at least pp={}; use a multiple of "
            "{}, or --virtual-stages 1", micro, group, plan.pp, max(group, plan.pp)
        )
    return interleaved(
        stage=stage,
        stages=plan.pp,
        micro_batches=micro,
        chunks=plan.virtual_stages,
        group=group,
        overlap_extra=int(overlap),
    )


def _step(context: Context, slots: Slots, programs: list[ChunkPrograms], chunks: list[Chunk]) -> Program:
    """Micro-batches of one step in schedule order."""
    bodies = [_with_inputs(context, program, chunk) for program, chunk in zip(programs, chunks, strict=True)]
    steady = tuple(node for slot in slots.steady for node in _slot(slot, bodies))
    deferred = _deferred(context) if any(chunk.head for chunk in chunks) else []
    return (
        *map(Alloc, deferred),
        *_grouped(slots.warmup, bodies),
        *((Loop(slots.repeats, steady, label="micro-batches"),) if slots.repeats and steady else ()),
        *_grouped(slots.cooldown, bodies),
        *map(Free, deferred),
    )


def _deferred(context: Context) -> list[Tensor]:
    """Inputs and output gradients of the output projection, kept for the weight gradient at the end of the step.

    They pile up over the first micro-batches; here they live all step long, which is the same at the peak.
    Source: Megatron-LM core/pipeline_parallel/schedules.py, finish_embedding_wgrad_compute
    """
    count = min(context.options.defer_embedding_wgrad, context.job.workload.grad_accum)
    vocab, hidden, e = context.layout.local_vocab(context.model.vocab), context.model.hidden, context.element
    kept = (("output gradient", context.tokens, vocab), ("output projection input", context.tokens_between, hidden))
    return [
        Tensor(
            name=f"deferred {name}", num_bytes=rows * width * e, category=Category.ACTIVATIONS, owner="head",
            formula=f"{rows:,} x {width:,} x {e} B", source="Megatron-LM core/pipeline_parallel/schedules.py",
        )
        for _ in range(count)
        for name, rows, width in kept
    ]


def _with_inputs(context: Context, program: ChunkPrograms, chunk: Chunk) -> ChunkPrograms:
    """Tokens, labels and masks live from forward to backward where the chunk reads them."""
    if not (chunk.embedding or chunk.head):
        return program
    tensors = inputs(context)
    return ChunkPrograms(
        (*map(Alloc, tensors), *program.forward),
        (*program.backward, *map(Free, tensors)),
    )


def _slot(slot: Slot, bodies: list[ChunkPrograms]) -> Program:
    body = bodies[slot.chunk]
    return body.forward if slot.forward else body.backward


def _grouped(slots: tuple[Slot, ...], bodies: list[ChunkPrograms]) -> tuple[Node, ...]:
    return tuple(Loop(len(list(equal)), _slot(slot, bodies)) for slot, equal in groupby(slots))


def state_rules(context: Context) -> StateRules:
    """How this job keeps weights, gradients and optimizer states."""
    plan, options, layout = context.job.plan, context.options, context.layout
    distributed = context.distributed_optimizer
    moments = {"adam": 2, "sgd": 1, "muon": 2}[options.optimizer]
    return StateRules(
        weight_bytes=1 if options.fp8_param_gather and not options.fp8_transpose_cache else context.element,
        gradient_bytes=4 if context.fp32_gradients else 2,
        distributed=distributed,
        dense_ranks=max(1, layout.dp * layout.cp // options.optimizer_instances) if distributed else 1,
        expert_ranks=max(1, layout.expert_dp // options.optimizer_instances) if distributed else 1,
        moments=moments,
        muon=options.optimizer == "muon",
        gathers_lists=options.optimizer == "muon" and distributed and not options.param_layout,
        gradients_divided=plan.shards in (Shards.OPTIMIZER_AND_GRADIENTS, Shards.EVERYTHING),
        weights_divided=plan.shards is Shards.EVERYTHING,
        main_parameters=context.element != 4 or distributed,
        on_gpu=1.0 if plan.offload_optimizer == "none" else 1 - options.offload_fraction,
        precision_aware=options.precision_aware,
        moment_bytes=tensor_bytes(1, options.moments),
        copied_bytes=4 * (moments * copies_moments(options) + (options.main_params != "fp32")),
        main_in_fp16=options.main_params == "fp16",
    )


def weights_of(context: Context, chunks: list[Chunk], stage: int) -> list[Weight]:
    """Weight tensors of one pipeline rank, in the order the model registers them."""
    model, layout = context.model, context.layout
    found: list[Weight] = []
    for chunk in chunks:
        if chunk.embedding:
            found += owned_weights(embedding_weights(model), layout=layout, owner="embedding")
            found += tower_weights(model) if learns_towers(context.job) else ()
            if (stack := context.encoder) is not None:  # which shares the first stage with the embedding
                found += owned_weights(stack_parameters(stack), layout=layout, owner=stack.name)
                for run in stack.runs:
                    found += layer_weights(
                        run.layer, hidden=stack.hidden, layout=layout, owner=stack.name, count=run.count
                    )
        for run in chunk.runs:
            found += layer_weights(run.layer, hidden=model.hidden, layout=layout, owner="layers", count=run.count)
        if chunk.head and context.predictions:
            owned = context.predictions[: 1 if context.options.mtp_shared else None]
            found += prediction_weights(model, owned, layout, copied=not chunk.embedding)
        if chunk.head:
            found += owned_weights(head_weights(model, copied=not chunk.embedding), layout=layout, owner="head")
    return found


def adapter_weights(context: Context, builder: ChunkBuilder, chunks: list[Chunk]) -> list[Weight]:
    """Weights of adapters, which learn alone: those that the layers' tapes have gradients of, and copies of what is
    trained whole beside them [peft other.py `ModulesToSaveWrapper`]."""
    peft, model, layout = context.job.plan.peft, context.model, context.layout
    if context.lora is None or peft is None:
        return []
    chosen = {SAVED[name] for name in peft.modules_to_save}
    ends = [*(embedding_weights(model) if any(chunk.embedding for chunk in chunks) else ()),
            *(head_weights(model, copied=False) if any(chunk.head for chunk in chunks) else ())]
    whole = [parameter for parameter in ends if parameter.path in chosen]
    predicting = context.predictions if any(chunk.head for chunk in chunks) else ()
    for layer in predicting:
        builder.layer(layer, recomputed=False)
    layers = [(run.count, run.layer) for chunk in chunks for run in chunk.runs]
    layers += [(1, layer) for layer in predicting]
    return [*owned_weights(whole, layout=layout, owner="trained copy"), *(
        Weight("layers", weight.name.removesuffix(".weight gradient"), weight.num_bytes // context.element, count,
               expert=weight.name.startswith("experts."))
        for count, layer in layers for weight in builder.weight_gradients[layer]
    )]


__all__ = ["Category", "States", "rank_programs"]
