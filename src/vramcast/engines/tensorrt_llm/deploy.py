"""One TensorRT-LLM deployment: weights, the step that is run before the cache is sized, blocks.

[creator] NVIDIA/TensorRT-LLM tensorrt_llm/_torch/pyexecutor/_util.py `KvCacheCreator.configure_kv_cache_capacity`: a
forward of max_num_tokens runs first, and the cache takes a fraction of what its peak leaves; a size given in bytes or
tokens lowers it
[blocks] tensorrt_llm/_torch/pyexecutor/resource_manager.py `KVCacheManager.calculate_max_num_blocks`: all ranks take
the fewest tokens of any
[share] cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp `BlockManager::calculateWindowSizeToShare`: windows share the
bytes by window times bytes of a token
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.domain.job import Phase
from vramcast.domain.model import Attention
from vramcast.domain.program import Alloc, Category, Program, Tensor, extent
from vramcast.domain.rank import RankProgram
from vramcast.domain.serving import Budget, Deployment, ServeJob, ServingRank
from vramcast.engines.serving.checks import check_degrees
from vramcast.engines.serving.choices import refuse_encoders
from vramcast.engines.serving.corrected import corrected
from vramcast.engines.serving.drafts import draft_mixers
from vramcast.engines.serving.forward import logits, transient, widest_moment
from vramcast.engines.serving.pools import Contents, Pools, contents_of, fewest_tokens
from vramcast.engines.serving.rank import WIDTHS, dtype_of, job_formats, layout_of, load_program
from vramcast.engines.serving.stages import Stage, even_stages
from vramcast.engines.serving.weights import total
from vramcast.engines.tensorrt_llm.process import beside, decoder
from vramcast.engines.tensorrt_llm.settings import Settings, settings_of

SOURCE: Final = "NVIDIA/TensorRT-LLM tensorrt_llm/_torch/pyexecutor/_util.py"

LOGITS_SEQUENCES: Final = 64
"""Sequences whose logits a prefill step of max_num_tokens has at once; more do not end in one step."""


class _Worker(NamedTuple):
    """What one pipeline stage's ranks find when they start."""

    stage: Stage
    weights: Program
    step: Program  # run before the cache is sized
    beside: tuple[Tensor, ...]
    free: int  # after them [bytes]
    left: int  # for the cache [bytes]
    blocks: Pools


def deploy(job: ServeJob) -> Deployment:
    """The ranks of a TensorRT-LLM deployment.

    Engine options: `settings.OPTIONS`.

    Raises: InvalidSpec for degrees that do not divide, Unsupported for networks that are not modelled
    """
    check_degrees(job)
    refuse_encoders(job)
    settings = settings_of(job)
    workers = [_worker(job, settings, stage) for stage in even_stages(job.model.num_layers, job.plan.pp)]
    tokens = fewest_tokens(worker.blocks for worker in workers)
    return Deployment(
        ranks=tuple(_rank(job, settings, worker, _shortened(worker.blocks, tokens)) for worker in workers),
        assumptions=tuple(_assumptions(job, settings)),
    )


def _assumptions(job: ServeJob, settings: Settings) -> Iterator[str]:
    yield "the PyTorch backend" if settings.pytorch else "a built TensorRT engine"
    mixers = [layer.mixer for layer in job.model.main.layers]
    if not settings.windows and any(isinstance(mixer, Attention) and mixer.window for mixer in mixers):
        yield "sliding windows are kept at full length, unless --engine-option sliding-windows=true"


def _worker(job: ServeJob, settings: Settings, stage: Stage) -> _Worker:
    plan, gpu = job.plan, job.cluster.gpu
    layout, formats = layout_of(job, vocab_divisor=1), job_formats(job)
    weights = load_program(job, stage, layout, formats)
    step = _step(job, settings, stage, layout.etp)
    outside = beside(
        gpu, tp=plan.tp, ranks=plan.num_ranks, weight_bytes=total(weights), quantised=formats.quantised,
        pytorch=settings.pytorch,
    )
    if not settings.pytorch:
        outside += (decoder(settings.sequences, job.model.vocab),)
    taken = total(weights) + extent(step).peak + sum(tensor.num_bytes for tensor in outside) + (gpu.context_bytes or 0)
    free = gpu.visible_bytes - taken
    share = round(settings.fraction * free)
    left = min(share, plan.cache_bytes) if plan.cache_bytes is not None else share
    return _Worker(stage, weights, step, outside, free, left, _blocks(job, settings, stage, max(0, left)))


def _step(job: ServeJob, settings: Settings, stage: Stage, experts_divided: int) -> Program:
    """A forward of max_num_tokens, then the logits of the sequences that end in it."""
    model, width = job.model, WIDTHS[dtype_of(job.model, job.plan.dtype)]
    step = transient(*widest_moment(
        model, stage, tokens=settings.tokens, tp=job.plan.tp, experts_divided=experts_divided, width=width,
        source=SOURCE,
    ))
    if stage.last:
        sequences = min(settings.sequences, LOGITS_SEQUENCES)
        step += transient(*logits(model, sequences=sequences, width=width, source=SOURCE))
    return corrected(job, step)


def _rank(job: ServeJob, settings: Settings, worker: _Worker, blocks: Pools) -> ServingRank:
    kept = Tensor(
        name="blocks", num_bytes=blocks.num_bytes, category=Category.CACHE, source=SOURCE,
        formula=", ".join(f"{count:,} {name}" for name, count in blocks.reported_tokens.items()),
    )
    program = RankProgram(
        role=worker.stage.role,
        count=job.plan.tp * job.plan.dp,
        phases={
            Phase.LOAD: worker.weights, Phase.WARM_UP: worker.step, Phase.SERVING: (Alloc(kept), *worker.step),
        },
        outside=worker.beside,
    )
    sized = worker.free > 0 and job.plan.cache_bytes is None
    return ServingRank(
        program=program,
        cache=blocks,
        budget=Budget(settings.fraction, worker.free) if sized else None,
        startup={
            "weights": total(worker.weights), "activation peak": extent(worker.step).peak, "KV cache": worker.left,
        },
    )


def _blocks(job: ServeJob, settings: Settings, stage: Stage, num_bytes: int) -> Pools:
    mixers = (*(layer.mixer for layer in stage.layers(job.model)), *(draft_mixers(job) if stage.last else ()))
    dtype = settings.kv_dtype if settings.kv_dtype != "auto" else dtype_of(job.model, job.plan.dtype)
    contents = contents_of(mixers, tp=job.plan.tp, kv_dtype=dtype, windows=settings.windows)
    page = settings.block_tokens
    states = (job.plan.max_sequences or job.requests.concurrency) if contents.state_bytes else 0
    left = max(0, num_bytes - states * contents.state_bytes)
    ratio = _window_ratio(contents, job.context)
    per_token = contents.full_token_bytes + ratio * contents.window_token_bytes
    tokens = int(left / per_token) if per_token else 0
    tokens = min(tokens, settings.max_tokens or tokens) // page * page
    return Pools(
        contents=contents,
        full_tokens=tokens,
        window_tokens=int(ratio * tokens) // page * page if contents.window_token_bytes else 0,
        states=states,
        page_tokens=page,
        logged="tokens",
    )


def _shortened(blocks: Pools, tokens: int) -> Pools:
    """The blocks of a stage that has to follow one with fewer tokens."""
    if not blocks.full_tokens:
        return blocks
    window = blocks.window_tokens * tokens // blocks.full_tokens // blocks.page_tokens * blocks.page_tokens
    return replace(blocks, full_tokens=tokens, window_tokens=window)


def _window_ratio(contents: Contents, context: int) -> float:
    """Window tokens for each of full attention [share]; the longest window is the whole context."""
    if not contents.full_token_bytes:
        return 1.0
    return min(context, contents.window) / context if contents.window_token_bytes else 0.0
