"""One vLLM deployment: weights, profiled step, pool, graphs, per pipeline stage."""

from __future__ import annotations

from typing import Final

from vramcast.domain.job import Phase
from vramcast.domain.model import Attention, Model, MultiLatentAttention
from vramcast.domain.program import Alloc, Basis, Category, Program, Tensor, extent
from vramcast.domain.rank import RankProgram
from vramcast.domain.serving import Deployment, ServeJob, ServingRank
from vramcast.engines.serving.stages import Stage, even_stages
from vramcast.engines.serving.weights import formats_of, loaded, total, weight_tensors
from vramcast.engines.vllm.activation import profiled_step
from vramcast.engines.vllm.defaults import Settings, settings_of
from vramcast.engines.vllm.pool import BlockPool, LayerGroup
from vramcast.parallel.layout import Layout
from vramcast.states.cache import token_bytes
from vramcast.units import GIB

SOURCE: Final = "vllm-project/vllm v1/worker/gpu_worker.py `determine_available_memory`"

VOCAB_MULTIPLE: Final = 64
"""vLLM pads embeddings to a multiple of this [vllm/model_executor/layers/vocab_parallel_embedding.py]."""


def deploy(job: ServeJob) -> Deployment:
    """The ranks of a vLLM deployment."""
    settings = settings_of(job)
    found = [_rank(job, settings, stage) for stage in even_stages(job.model.num_layers, job.plan.pp)]
    return Deployment(ranks=tuple(found))


def _rank(job: ServeJob, settings: Settings, stage: Stage) -> ServingRank:
    model, plan = job.model, job.plan
    layout = Layout(
        tp=plan.tp,
        ep=plan.tp * plan.dp if plan.expert_parallel else 1,
        etp=1 if plan.expert_parallel else plan.tp,
        vocab_divisor=VOCAB_MULTIPLE,
    )
    formats = formats_of(model, weights=plan.weights, dtype=plan.dtype)
    weights = loaded(weight_tensors(model, layout=layout, formats=formats, stage=stage))
    step = profiled_step(model, settings, stage, tp=plan.tp)
    beside = _non_torch(job)
    budget = int(settings.memory_fraction * job.cluster.gpu.visible_bytes)
    pool_bytes = budget - total(weights) - extent(step).peak - beside.num_bytes
    cache = _pool(job, settings, stage, pool_bytes)
    graphs = Tensor(
        name="captured graphs", num_bytes=int(0.9 * GIB) if plan.graphs else 0, category=Category.GRAPHS,
        basis=Basis.ASSUMED, source=SOURCE, stream="graphs",
    )
    kept = Tensor(name="pool", num_bytes=cache.num_bytes, category=Category.CACHE, source=SOURCE)
    serving: Program = (Alloc(kept), Alloc(graphs), *step)
    program = RankProgram(
        role=stage.role,
        count=plan.tp * plan.dp,
        phases={Phase.LOAD: weights, Phase.SERVING: serving},
        outside=(beside,),
    )
    return ServingRank(program=program, cache=cache, beside_budget_bytes=graphs.num_bytes)


def _non_torch(job: ServeJob) -> Tensor:
    """What the profile finds in use beside torch's memory: NCCL, custom all-reduce, kernels' own."""
    gib = 0.25 if job.plan.tp == 1 else 2.1
    return Tensor(
        name="not torch's", num_bytes=int(gib * GIB), category=Category.COMMUNICATION, owner="process",
        basis=Basis.MEASURED, source="start-up logs of v0.19 on H100",
    )


def _pool(job: ServeJob, settings: Settings, stage: Stage, pool_bytes: int) -> BlockPool:
    model = job.model
    mixers = [layer.mixer for layer in stage.layers(model)]
    paged = [mixer for mixer in mixers if isinstance(mixer, (Attention, MultiLatentAttention))]
    per_token = max((token_bytes(mixer, tp=job.plan.tp, k_dtype=_kv_dtype(job, model)) for mixer in paged), default=1)
    page = per_token * settings.block_tokens
    group = LayerGroup(kind="full", layers=max(1, len(paged)))
    return BlockPool(
        blocks=max(0, pool_bytes) // (page * group.layers),
        block_tokens=settings.block_tokens,
        page_bytes=page,
        groups=(group,),
        in_flight=settings.batched_tokens,
        max_model_len=job.context,
    )


def _kv_dtype(job: ServeJob, model: Model) -> str:
    """FP8 weights do not imply an FP8 cache: "auto" is the dtype of activations."""
    if job.plan.kv_dtype != "auto":
        return job.plan.kv_dtype
    return job.plan.dtype or ("fp32" if model.dtype == "fp32" else "bf16")
