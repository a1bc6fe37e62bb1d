"""torchtune's distributed full fine-tuning: FSDP2 over 16-bit weights, blocks recomputed, chunked cross entropy.

[torchtune] meta-pytorch/torchtune recipes/full_finetune_distributed.py; torchtune/training/_distributed.py
`shard_model`: a unit per block, one of the rest; torchtune/modules/loss/ce_chunked_output_loss.py and
cross_entropy_loss.py; recipes/configs/*/*_full.yaml `loss` at every release
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from vramcast.blocks.sizes import Sizes
from vramcast.domain.job import AttentionKernel, Job, Loss, Precision, Shards
from vramcast.domain.model import MLP, Attention
from vramcast.domain.rank import RankProgram
from vramcast.domain.version import Version
from vramcast.engines.torchtitan.model import Choices
from vramcast.engines.torchtitan.pieces import Sharing, Span
from vramcast.engines.torchtitan.run import phases_of, pieces_of
from vramcast.engines.torchtitan.setting import Setting, facts
from vramcast.errors import Unsupported
from vramcast.operators.linear import Numerics
from vramcast.parallel.fsdp import Fsdp
from vramcast.parallel.layout import Layout
from vramcast.states.optimizers import optimizer
from vramcast.units import round_up

LOSSES: Final[tuple[tuple[Version, str], ...]] = (
    ((0, 7), "linear_chunked"),  # LinearCrossEntropyLoss, 9c06c8bda of 2025-04-30
    ((0, 3), "chunked_output"),  # CEWithChunkedOutputLoss
    ((0, 0), "model_fp32_shifted"),  # torch.nn.CrossEntropyLoss over the model's float logits
)
"""Which loss the recipes' configurations name, by the first release that does."""


def ranks(job: Job) -> tuple[RankProgram, ...]:
    """The one rank role of a torchtune run.

    Raises: Unsupported for recipes that are not modelled.
    """
    _check(job)
    asked, job = job.workload.seq_len, _padded(job)
    plan, workload, model = job.plan, job.workload, job.model
    group = min(plan.shard_group or job.data_parallel, job.data_parallel)
    fsdp = Fsdp(group, reduce_width=2)
    layout = Layout(tp=plan.tp, dp=job.data_parallel, sequence_parallel=plan.tp > 1)
    loss = _loss(job)
    sizes = Sizes(
        batch=workload.micro_batch, seq_len=workload.seq_len, hidden=model.hidden, numerics=Numerics(2, 2, 2, 2),
        attention=AttentionKernel.FLASH, norm="compiled" if plan.compile else "torch",
        activation="compiled" if plan.compile else "eager", rope="compiled" if plan.compile else "complex",
        grouped=False, tp=plan.tp, sequence_parallel=plan.tp > 1,
    )
    setting = Setting(
        job, facts(), sizes, Choices(plan.recompute, loss, loss != "model_fp32_shifted", needed_only=plan.compile),
        Sharing(layout, fsdp, fsdp, weight_width=2), "blocks" if plan.reshard_after_forward else "never", 1,
        optimizer(plan.optimizer), plan.optimizer_kernel or "fused",
    )
    runs = tuple((run.count, run.layer) for run in model.main.runs)
    split = bool(job.engine_options.get("split_root"))
    setting = setting._replace(known=setting.known._replace(split_root=split))
    phases = phases_of(setting, pieces_of(setting, Span(runs)))
    length = workload.seq_len
    padded = (f"samples are padded to {length} tokens, which tp={plan.tp} divides",) if length != asked else ()
    return (RankProgram(role="all", count=job.cluster.count, phases=phases, assumptions=(*_said(job), *padded)),)


def _padded(job: Job) -> Job:
    """Samples as long as the collator makes them, where tensor parallelism would not divide them.

    [torchtune] torchtune/data/_collate.py `padded_collate_sft`, training/_distributed.py `min_seq_len_divisor`
    """
    length = round_up(job.workload.seq_len, job.plan.tp)
    return replace(job, workload=replace(job.workload, seq_len=length))


def _said(job: Job) -> tuple[str, ...]:
    """Whose loss is counted where nobody names a version."""
    if job.engine_version is not None or job.plan.loss is not None:
        return ()
    return (
        "torchtune 0.7: head and loss run chunk by chunk; before, all logits were made first: "
        "--engine torchtune@0.6 counts them",
    )


def _loss(job: Job) -> str:
    """The loss that the recipe of the version names, or the one asked for.

    Raises: Unsupported for a loss that torchtune lacks.
    """
    version = job.engine_version or LOSSES[0][0]
    default = next(name for since, name in LOSSES if version >= since)
    asked = job.plan.loss
    if asked is None:
        return default
    if asked is Loss.EAGER:
        return "model_fp32" if version >= LOSSES[1][0] else default
    if asked is Loss.CHUNKED:
        return default if version >= LOSSES[1][0] else LOSSES[1][1]
    raise Unsupported(f"torchtune has no {asked} loss; use --loss chunked or eager")


def _check(job: Job) -> None:
    plan = job.plan
    if plan.peft is not None or job.data_parallel == 1 or plan.shards is not Shards.EVERYTHING:
        raise Unsupported(
            "torchtune is modelled for full fine-tuning with --shards everything on several GPUs; "
            "use --engine litgpt for adapters and --engine pytorch for one GPU"
        )
    if plan.pp * plan.cp * plan.ep > 1:
        raise Unsupported("torchtune has no pipeline, context or expert parallelism; use --engine torchtitan")
    if plan.precision not in (Precision.BF16, Precision.MIXED_BF16):
        raise Unsupported(f"torchtune trains bf16 weights in bf16, not in {plan.precision}; use bf16")
    if plan.offload_parameters == "nvme" or plan.offload_optimizer == "nvme":
        raise Unsupported("torchtune offloads to the host only; use --offload-optimizer cpu")
    if len(job.model.stacks) > 1:
        raise Unsupported("torchtune is modelled for text decoders; use --engine pytorch for models of several stacks")
    for layer in (run.layer for run in job.model.main.runs):
        if not isinstance(layer.mixer, Attention) or not isinstance(layer.channel, MLP):
            raise Unsupported("torchtune is modelled for dense attention models; use --engine megatron")
