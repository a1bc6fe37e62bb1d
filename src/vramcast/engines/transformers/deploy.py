"""One batch on one or several GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from vramcast.domain.device import FALLBACK_CONTEXT_BYTES
from vramcast.domain.job import Phase
from vramcast.domain.program import extent
from vramcast.domain.rank import RankProgram
from vramcast.domain.serving import Deployment, ServeJob, ServingRank
from vramcast.engines.serving.stages import Stage
from vramcast.engines.transformers.placement import placed
from vramcast.engines.transformers.program import phases, workspace
from vramcast.engines.transformers.room import Room
from vramcast.engines.transformers.settings import Settings, generates, settings_of
from vramcast.engines.transformers.versions import left_sentences, left_whole
from vramcast.states.storage import BITSANDBYTES


def deploy(job: ServeJob) -> Deployment:
    """The GPUs of a run, each with its layers.

    `engine_options`: "cache" (dynamic, static, quantized, offloaded), "beams" (count), "padded" (bool).
    """
    settings = settings_of(job)
    split = placed(job.model, settings.formats, job.plan.pp)
    ranks = (_rank(job, settings, stage, f"GPU {index}") for index, stage in enumerate(split))
    return Deployment(ranks=tuple(ranks), assumptions=tuple(_assumptions(job)))


def _rank(job: ServeJob, settings: Settings, stage: Stage, role: str) -> ServingRank:
    model = job.model
    as_stored = job.plan.weights is None and job.plan.dtype is None
    found = phases(model, settings, stage, job.weights if as_stored else None)
    program = RankProgram(role="all" if stage.first and stage.last else role, count=1, phases=found)
    if not generates(model):
        return ServingRank(program=program)
    gpu = job.cluster.gpu
    context = gpu.context_bytes or FALLBACK_CONTEXT_BYTES
    fixed = extent(found[Phase.LOAD]).net + workspace(settings).block_bytes + context
    room = Room(
        num_bytes=max(0, gpu.visible_bytes - fixed), model=model, settings=settings, stage=stage, context=job.context
    )
    return ServingRank(program=program, cache=room, grows=True)


def _assumptions(job: ServeJob) -> Iterator[str]:
    yield "all sequences are one batch, equally long and without padding"
    if generates(job.model):
        yield "what growing caches leave free in PyTorch's allocator is given back before the card is full"
    if job.plan.pp > 1:
        yield 'layers lie on the GPUs as device_map="auto" balances them'
    if job.plan.weights in BITSANDBYTES:
        yield from left_sentences(job.model, left_whole(job.model.family, job.version), job.version)
