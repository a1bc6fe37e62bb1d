"""One TensorRT-LLM deployment: weights, the step that is run before the cache is sized, blocks.

[creator] NVIDIA/TensorRT-LLM tensorrt_llm/_torch/pyexecutor/_util.py `KvCacheCreator`: a forward of max_num_tokens
runs first, and the cache takes a fraction of what is then free
[blocks] tensorrt_llm/_torch/pyexecutor/resource_manager.py `KVCacheManager`: blocks of 32 tokens
"""

from __future__ import annotations

from typing import Final, NamedTuple

from vramcast.domain.device import Gpu
from vramcast.domain.job import Phase
from vramcast.domain.program import Alloc, Basis, Category, Tensor, extent
from vramcast.domain.rank import RankProgram
from vramcast.domain.serving import Budget, Deployment, ServeJob, ServingRank
from vramcast.engines.serving.checks import check_degrees
from vramcast.engines.serving.corrected import corrected
from vramcast.engines.serving.drafts import draft_mixers
from vramcast.engines.serving.forward import logits, transient, widest_moment
from vramcast.engines.serving.pools import Contents, Pools, contents_of
from vramcast.engines.serving.rank import WIDTHS, dtype_of, job_formats, kv_dtype_of, layout_of, load_program
from vramcast.engines.serving.stages import Stage, even_stages
from vramcast.engines.serving.weights import total
from vramcast.units import GIB

SOURCE: Final = "NVIDIA/TensorRT-LLM tensorrt_llm/_torch/pyexecutor/_util.py"

DEFAULT_FRACTION: Final = 0.9
DEFAULT_TOKENS: Final = 8192
DEFAULT_SEQUENCES: Final = 2048
"""free_gpu_memory_fraction, max_num_tokens and max_batch_size [tensorrt_llm/llmapi/llm_args.py]."""

BLOCK_TOKENS: Final = 32
LOGITS_SEQUENCES: Final = 64
"""Sequences whose logits a prefill step of max_num_tokens has at once; more do not end in one step."""


class Runtime(NamedTuple):
    """What a process holds beside weights and activations [GiB], context not included."""

    alone: float
    pair: float  # two ranks: NCCL, custom all-reduce and their workspaces
    per_doubling: float  # for each further doubling


RUNTIMES: Final[dict[str, Runtime]] = {
    "Hopper": Runtime(1.9, 3.1, 0.85),
    "Blackwell": Runtime(3.8, 5.0, 0.9),
}
"""Generation -> libraries, workspaces, graphs and communication. Fitted on 37 runs of Llama-3.1-8B and Qwen3-32B-FP8
on H100 and GB300, 1 to 4 ranks: the runs allow +-0.4 GiB."""

PADDED_SCALES: Final = 0.03
"""Share of block-quantised weights that their rearranged scales and padding add, fitted on the same runs."""


def deploy(job: ServeJob) -> Deployment:
    """The ranks of a TensorRT-LLM deployment.

    Raises: InvalidSpec for degrees that do not divide
    """
    check_degrees(job)
    ranks = [_rank(job, stage) for stage in even_stages(job.model.num_layers, job.plan.pp)]
    return Deployment(ranks=tuple(ranks), assumptions=("the PyTorch backend; a TensorRT build differs by its engine",))


def _rank(job: ServeJob, stage: Stage) -> ServingRank:
    model, plan, gpu = job.model, job.plan, job.cluster.gpu
    layout, formats = layout_of(job, vocab_divisor=1), job_formats(job)
    weights = load_program(job, stage, layout, formats)
    width = WIDTHS[dtype_of(model, plan.dtype)]
    tokens = plan.batched_tokens or DEFAULT_TOKENS
    step = transient(*widest_moment(
        model, stage, tokens=tokens, tp=plan.tp, experts_divided=layout.etp, width=width, source=SOURCE
    ))
    if stage.last:
        sequences = min(plan.max_sequences or DEFAULT_SEQUENCES, LOGITS_SEQUENCES)
        step += transient(*logits(model, sequences=sequences, width=width, source=SOURCE))
    step = corrected(job, step)
    beside = (_runtime(plan.tp, gpu), _padding(total(weights), formats.quantised))
    taken = total(weights) + extent(step).peak + sum(t.num_bytes for t in beside) + (gpu.context_bytes or 0)
    free = gpu.visible_bytes - taken
    share = round((plan.memory_fraction or DEFAULT_FRACTION) * free)
    left = plan.cache_bytes if plan.cache_bytes is not None else share
    cache = _blocks(job, stage, max(0, left), tokens)
    kept = Tensor(name="blocks", num_bytes=cache.num_bytes, category=Category.CACHE, source=SOURCE)
    program = RankProgram(
        role=stage.role,
        count=plan.tp * plan.dp,
        phases={Phase.LOAD: weights, Phase.SERVING: (Alloc(kept), *step)},
        outside=beside,
    )
    return ServingRank(
        program=program,
        cache=cache,
        budget=Budget(plan.memory_fraction or DEFAULT_FRACTION, free) if free > 0 else None,
        startup={"weights": total(weights), "activation peak": extent(step).peak, "KV cache": left},
    )


def _runtime(tp: int, gpu: Gpu) -> Tensor:
    row = RUNTIMES.get(gpu.arch.split()[0], RUNTIMES["Hopper"])
    gib = row.alone if tp == 1 else row.pair + row.per_doubling * (tp.bit_length() - 2)
    return Tensor(
        name="libraries, workspaces, graphs", num_bytes=round(gib * GIB), category=Category.WORKSPACES, owner="process",
        basis=Basis.MEASURED, formula=f"tp={tp}, {gpu.arch}", source="37 runs on H100 and GB300; docs/serving.md",
    )


def _padding(weight_bytes: int, quantised: str) -> Tensor:
    blocks = quantised in ("fp8-block", "nvfp4", "mxfp4")
    return Tensor(
        name="rearranged scales", num_bytes=round(PADDED_SCALES * weight_bytes) if blocks else 0,
        category=Category.WEIGHTS, owner="beside the checkpoint", basis=Basis.MEASURED,
        formula=f"{PADDED_SCALES} x {weight_bytes:,} B", source="37 runs on H100 and GB300; docs/serving.md",
    )


def _blocks(job: ServeJob, stage: Stage, num_bytes: int, step_tokens: int) -> Pools:
    mixers = (*(layer.mixer for layer in stage.layers(job.model)), *(draft_mixers(job) if stage.last else ()))
    contents = contents_of(mixers, tp=job.plan.tp, kv_dtype=kv_dtype_of(job))
    page = job.plan.block_tokens or BLOCK_TOKENS
    states = (job.plan.max_sequences or job.requests.concurrency) if contents.state_bytes else 0
    left = max(0, num_bytes - states * contents.state_bytes)
    ratio = _window_ratio(contents, job.context, step_tokens)
    per_token = contents.full_token_bytes + ratio * contents.window_token_bytes
    tokens = int(left / per_token) // page * page if per_token else 0
    return Pools(
        contents=contents,
        full_tokens=tokens,
        window_tokens=int(ratio * tokens) // page * page if contents.window_token_bytes else 0,
        states=states,
        page_tokens=page,
        in_flight=step_tokens,
        logged="tokens",
    )


def _window_ratio(contents: Contents, context: int, step_tokens: int) -> float:
    """Window tokens for each of full attention: pools are divided so that both serve as many longest sequences."""
    if not contents.full_token_bytes:
        return 1.0
    return min(context, contents.window + step_tokens) / context if contents.window_token_bytes else 0.0
