"""A job in torchtitan's terms: what it did when, groups, implementations; what is refused.

[titan] pytorch/torchtitan, path and commit at each fact; torchtitan config/job_config.py, distributed/parallel_dims.py
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from vramcast.blocks.parts import Dispatch, Sizes
from vramcast.domain.job import AttentionKernel, Job, Loss, Precision, Recompute, Shards, share
from vramcast.domain.model import Attention, LinearAttention, Mamba, MultiLatentAttention
from vramcast.domain.version import date_text
from vramcast.engines.torchtitan.model import Choices
from vramcast.engines.torchtitan.pieces import Sharing
from vramcast.errors import InvalidSpec, Unsupported
from vramcast.operators.linear import Numerics
from vramcast.parallel.fsdp import Fsdp
from vramcast.parallel.layout import Layout, uneven
from vramcast.states.optimizers import OptimizerRule, optimizer

BEGINNING: Final = ""
LATEST: Final = "2099-01-01"
STILL: Final = "9999-99"
"""Dates before and behind all others."""


class Facts(Struct, frozen=True):
    """The behaviours of one version, as `BEHAVIOURS` describes them."""

    expandable: bool
    loss_casts: bool
    frees_prediction: bool
    compiles_loss: bool
    fused_norm: bool
    fused_optimizer: bool
    split_root: bool
    grouped_attention: bool
    chunked_loss: bool
    saves_abs: bool
    one_sample_microbatches: bool
    graph_keeps_products: bool
    fused_qkv: bool
    drops_outputs: bool
    graph_chunked_loss: bool
    pairs_positions: bool
    folds_batch: bool
    keeps_exchanges: bool
    experts_in_order: bool
    fp32_gate: bool


BEHAVIOURS: Final[dict[str, tuple[str, str]]] = {
    # run_llama_train.sh sets expandable_segments:True [titan a5e57e4a9]
    "expandable": ("2024-10-22", STILL),
    # The loss function converts logits to fp32; before, the model's last line did [titan e10cb9494, train.py]
    "loss_casts": ("2024-10-22", STILL),
    # `del pred` before backward [titan e29b6b4d4, train.py]
    "frees_prediction": ("2024-06-12", STILL),
    # torch.compile covers the loss [titan bbb1b616e, components/loss.py]
    "compiles_loss": ("2025-04-02", STILL),
    # nn.RMSNorm instead of a norm written out in fp32 [titan a581e4fe8, models/norms.py]
    "fused_norm": ("2025-04-15", STILL),
    # optimizer.implementation = "fused" by default [titan config_manager.py]
    "fused_optimizer": ("2025-03-01", STILL),
    # Embedding and head are FSDP units of their own [titan 83e694105, parallelize.py `apply_fsdp`]
    "split_root": ("2025-07-28", STILL),
    # enable_gqa instead of repeat_kv [titan 2b0a4a30a, models/common/attention.py]
    "grouped_attention": ("2026-02-02", STILL),
    # ChunkedCELoss: the head runs chunk by chunk, forward and backward [titan 37fe579a2, components/loss.py]
    "chunked_loss": ("2026-05-01", STILL),
    # Selective recomputation kept abs(x) of every float8 cast [titan parallelize_llama.py `_save_list`]
    "saves_abs": (BEGINNING, "2025-02-06"),
    # Pipeline micro-batches hold one sample by default; before, there were as many as stages [titan 5e2033c75]
    "one_sample_microbatches": ("2025-04-07", STILL),
    # The graph trainer's default policy keeps every matrix product [titan 25b7e0675, experiments/graph_trainer]
    "graph_keeps_products": ("2026-03-24", STILL),
    # One product makes queries, keys and values [titan ad7a86533, models/common/attention.py `FusedQKVLinear`]
    "fused_qkv": ("2026-04-16", STILL),
    # schedule.step(return_outputs=False): the last stage keeps no logits [titan e5ef99aab, train.py]
    "drops_outputs": ("2025-10-22", STILL),
    # The graph trainer swapped the chunked loss for the whole one until then [titan e6ef9ba8a]
    "graph_chunked_loss": ("2026-06-16", STILL),
    # Positions had to divide by 2 even without context parallelism [titan 6204cdff9,
    # 565cb810c, parallel_dims.py `seq_len_divisor`]
    "pairs_positions": ("2025-07-14", "2026-06-25"),
    # The samples of a micro-batch are one sequence: their tokens together are divided [titan 73aed7f6c, trainer.py]
    "folds_batch": ("2026-08-20", STILL),
    # Selective recomputation keeps what comes out of all-to-alls [titan c4e229115, `_save_list`]
    "keeps_exchanges": ("2025-09-06", STILL),
    # Experts' rows were put back in order, turned into fp32 and multiplied by their scores; before and since, they are
    # scored in fp32 and added where their tokens are [titan models/common/moe.py, e1f7f318a to 8bc267dea]
    "experts_in_order": ("2025-11-21", "2026-04-06"),
    # The gate computed in fp32 under autocast [titan models/common/moe/moe.py, ab5ed59f8 to fe80b63cf]
    "fp32_gate": ("2026-03-04", "2026-04-02"),
}
"""Behaviour -> since when, and until when, torchtitan had it."""


def facts(version: str = "") -> Facts:
    """Behaviours of the version of a date ("2025-02-06"); the latest when none is given.

    Raises: InvalidSpec for anything that is not a date.
    """
    if version and not re.fullmatch(r"\d{4}-\d{2}(-\d{2})?", version):
        raise InvalidSpec("torchtitan version {!r} is no date; use a year and month, as in 2025-02", version[:40])
    date = version or LATEST
    return Facts(**{name: since <= date < until for name, (since, until) in BEHAVIOURS.items()})


OF_AUTOMODEL: Final = (Mamba, LinearAttention)
"""Mixers whose layers NeMo Automodel has beside torchtitan's ways of sharding."""

BF16: Final = Numerics(2, 2, 2, 2)


GRAPHS: Final = (
    "forward and backward are replayed from a CUDA graph, as torchtitan does since 2026-08 where "
    "training.disable_cuda_graphs is not set: gradients stay between steps; what the graph's nodes take is not counted"
)


class Setting(Struct, frozen=True):
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


def runs_as_eager_code(job: Job) -> bool:
    """Whether it is counted as eager code over these layers: parts of it are frozen."""
    return job.plan.peft is not None or len(job.model.stacks) > 1


def check(job: Job) -> None:
    """Raise Unsupported for what torchtitan, or this model of it, does not have."""
    plan = job.plan
    if plan.peft is not None and not job.engine_options.get("whole_experts"):
        raise Unsupported("torchtitan trains all weights; use --engine litgpt or huggingface for adapters")
    if len(job.model.stacks) > 1 and not job.engine_options.get("whole_experts"):
        raise Unsupported("torchtitan's encoders are not modelled; use --engine pytorch for models of several stacks")
    known = (Attention, MultiLatentAttention, *(OF_AUTOMODEL if job.engine_options.get("whole_experts") else ()))
    for layer in (run.layer for run in job.model.main.runs if run.count):
        if layer.mixer is not None and not isinstance(layer.mixer, known):
            raise Unsupported(
                "{} layers are not modelled for torchtitan; use --engine megatron", type(layer.mixer).__name__
            )
    if job.data_parallel * plan.cp == 1:
        raise Unsupported(
            "torchtitan is modelled with FSDP, which divides weights over two ranks or more; tp={} x pp={} leave one: "
            "use more GPUs, lower degrees, or --engine pytorch", plan.tp, plan.pp
        )
    if plan.shards is Shards.NOTHING:
        raise Unsupported("torchtitan is modelled with FSDP; use --shards everything, or --engine pytorch")
    if plan.shards is not Shards.EVERYTHING:
        raise Unsupported("torchtitan does not shard {} only; use --shards everything", plan.shards)
    if plan.precision not in (Precision.MIXED_BF16, Precision.AMP_BF16, Precision.BF16, Precision.FP8):
        raise Unsupported(
            "torchtitan trains fp32 or bf16 weights in bf16, not in {}; use mixed-bf16, bf16 or fp8", plan.precision
        )
    if plan.freeze and not runs_as_eager_code(job):
        raise Unsupported("freeze={} is not modelled for engine torchtitan; leave it out", plan.freeze)
    if runs_as_eager_code(job) and (plan.precision is not Precision.BF16 or max(plan.pp, plan.tp, plan.cp) > 1):
        raise Unsupported(
            "adapters and towers beside experts over ranks are modelled in bf16 without pp, tp and cp; leave them out")
    if job.engine_options.get("defers_sync") and plan.pp > 1:
        raise Unsupported("defers_sync is modelled without pipeline parallelism; use --pp 1")
    defers = bool(job.engine_options.get("defers_sync"))
    if job.engine_options.get("cuda_graphs") and (plan.pp > 1 or plan.ep > 1 or offloaded(job) or defers):
        raise Unsupported(
            "torchtitan's CUDA graphs are modelled without pipeline stages, divided experts, offload and defers_sync; "
            "leave cuda_graphs out (--training.disable_cuda_graphs)"
        )
    if plan.offload_parameters == "nvme" or plan.offload_optimizer == "nvme":
        raise Unsupported("torchtitan offloads to the host only; use --offload-optimizer cpu")
    if plan.pp > 1 and offloaded(job):
        raise Unsupported("torchtitan's offload with pipeline parallelism is not modelled; use --pp 1")


def read(job: Job) -> Setting:
    """The job in this engine's terms.

    Raises: Unsupported for combinations torchtitan or this model of it does not have.
    """
    check(job)
    plan, options = job.plan, job.engine_options
    known = facts_of(job)
    micro_batches, samples = micro_batches_of(job, known)
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
        Sharing(
            layout, fsdp, replace(fsdp, ranks=expert_ranks), gathered,
            weight_width=2 if plan.precision is Precision.BF16 else 4,  # training.dtype = "bfloat16"
            whole_experts=bool(options.get("whole_experts", False)),
        ), _reshard(job, known), micro_batches, optimizer(plan.optimizer),
        str(options.get("kernel") or plan.optimizer_kernel or ("fused" if known.fused_optimizer else "foreach")),
    )


def facts_of(job: Job) -> Facts:
    """What is true of the checkout that a job names."""
    known = facts(date_text(job.engine_version or ()) or str(job.engine_options.get("version", "")))
    return replace(known, drops_outputs=False) if job.engine_options.get("keeps_outputs") else known


def assumptions(job: Job) -> tuple[str, ...]:
    """Whose loss is counted where nobody names a version; what CUDA graphs add."""
    graphs = (GRAPHS,) if job.engine_options.get("cuda_graphs") else ()
    if job.engine_version is not None or "version" in job.engine_options or job.plan.loss is not None:
        return graphs
    return (
        *graphs,
        "torchtitan of today: head and loss run chunk by chunk, since 2026-05; before, all logits were made, in fp32: "
        "--engine torchtitan@2026-04 counts them",
    )


def micro_batches_of(job: Job, known: Facts) -> tuple[int, int]:
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
    length = share("cp", job.workload.seq_len, plan.cp, what="seq_len")
    _refuse_uneven(job, known, samples)
    return Sizes(
        batch=samples, seq_len=length, hidden=job.model.hidden, numerics=BF16, attention=AttentionKernel.FLASH,
        norm="compiled" if plan.compile else ("torch" if known.fused_norm else "huggingface"),
        activation="compiled" if plan.compile else "eager",
        rope="compiled" if plan.compile else "complex",
        grouped=known.grouped_attention, tp=plan.tp,
        sequence_parallel=plan.tp > 1,
        dispatch=Dispatch(
            ranks=plan.ep, row_ranks=plan.tp if plan.ep > 1 and (plan.etp or 1) == 1 else 1,
            in_order=known.experts_in_order, fp32_gate=known.fp32_gate,
        ),
    )


def _refuse_uneven(job: Job, known: Facts, samples: int) -> None:
    """Raise InvalidSpec where sequence and context parallelism would not divide the positions evenly.

    [titan] trainer.py "must be divisible by ..."; before 2025-06-23 such a run failed in its rotary embedding (#1306)
    """
    plan, length = job.plan, job.workload.seq_len
    halves = 2 if plan.cp > 1 or known.pairs_positions else 1
    divisor = plan.tp * plan.cp * halves
    tokens = length * samples if known.folds_batch else length
    if tokens % divisor:
        raise uneven("torchtitan", plan, f"seq-len={length}", length, divisor)


def _graph_trainer(job: Job) -> bool:
    """SimpleFSDP or the graph trainer: collectives are nodes of one traced graph [titan experiments/simple_fsdp]."""
    trainer = str(job.engine_options.get("trainer", "eager"))
    if trainer not in ("eager", "graph"):
        raise Unsupported("torchtitan has no trainer {!r}; use eager or graph", trainer[:40])
    return trainer == "graph"


def _choices(job: Job, known: Facts, *, float8: bool) -> Choices:
    plan = job.plan
    loss, graph = "eager" if known.loss_casts else "model_fp32", _graph_trainer(job)
    chunked = known.graph_chunked_loss if graph else known.chunked_loss
    if plan.loss in (Loss.CHUNKED, Loss.FUSED_LINEAR) or (plan.loss is None and chunked):
        loss = "chunked"
    elif plan.loss in (Loss.COMPILED, Loss.FUSED) or (plan.loss is None and plan.compile and known.compiles_loss):
        loss = "compiled"
    return Choices(
        plan.recompute, loss, known.frees_prediction, needed_only=plan.compile or graph,
        every_product=graph and known.graph_keeps_products, context_ranks=plan.cp,
        fused_qkv=known.fused_qkv,
        keeps_exchanges=known.keeps_exchanges, graph=graph,
        keeps_router=bool(job.engine_options.get("keeps_router", False)),
        abs_kept=float8 and not plan.compile and known.saves_abs and plan.recompute is Recompute.SELECTIVE,
    )


def _reshard(job: Job, known: Facts) -> str:
    """Which blocks free their weights after forward (`fsdp_reshard_after_forward`)."""
    policy = str(job.engine_options.get("reshard", "default" if job.plan.reshard_after_forward else "never"))
    if job.plan.shards is not Shards.EVERYTHING or (policy == "default" and job.plan.pp > 1):
        return "never"
    return policy if policy != "default" else ("blocks" if known.split_root else "last")


def offloaded(job: Job) -> bool:
    """CPUOffloadPolicy: sharded weights, gradients and states live on the host together [titan `apply_fsdp`]."""
    return job.plan.offload_optimizer != "none" or job.plan.offload_parameters != "none"
