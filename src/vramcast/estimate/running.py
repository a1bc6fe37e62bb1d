"""How many sequences an engine runs at once, however many its cache would hold: the others wait; and what
a load itself needs of the cards, beside what the engine takes because it is there.

How a serving plan lies on its ranks where it is timed: degrees, and the formats that products are looked up in.

Speculative decoding of a serving plan that is timed: how many tokens a step comes to, and what the draft costs.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

from msgspec.structs import replace

from vramcast.domain.answer import LoadMemory, RankAnswer
from vramcast.domain.job import Phase
from vramcast.domain.model import Attention, MultiLatentAttention
from vramcast.domain.serving import ServeJob, ServingRank
from vramcast.engines.serving.rank import draft_layer, shares_experts
from vramcast.engines.serving.table import SERVING
from vramcast.engines.serving.weights import formats_of
from vramcast.errors import Note
from vramcast.states.storage import FORMATS
from vramcast.timing.steps import Accepted, Drafting, accepted
from vramcast.timing.work import Execution, Placement
from vramcast.units import ceil_div


def drafting_of(job: ServeJob) -> Drafting | None:
    """What a step has beside the target's forward; None without a draft, or with one that nobody measured."""
    found, draft = _accepted(job), job.plan.draft
    if found is None or draft is None:
        return None
    layers = job.model.mtp_layers if draft.kind == "mtp" else ()
    return Drafting(draft.tokens, found.mean, layers[-1] if layers else draft_layer(job.model))


def tokens_of_step(job: ServeJob) -> float:
    """Tokens that a sequence has more of after a step."""
    found = _accepted(job)
    return 1.0 if found is None else found.mean


def said_of_drafts(job: ServeJob) -> str:
    """How many proposals are taken to be accepted."""
    draft, found = job.plan.draft, _accepted(job)
    assert draft is not None
    if found is None:
        return "speed is that without speculative decoding: how many proposals are accepted is not known"
    return Note(
        "a step is taken to come to {:.2f} tokens with {} proposed: {:.2f} to {:.2f} by network and prompts, most on "
        "code", found.mean, draft.tokens, found.low, found.high
    )


def _accepted(job: ServeJob) -> Accepted | None:
    draft = job.plan.draft
    return None if draft is None else accepted(draft.kind, job.model.family, draft.tokens)


def placement_of(job: ServeJob, execution: Execution) -> Placement:
    """Degrees and formats of one rank. Engines without tensor parallelism put layers on cards one after the other."""
    plan = job.plan
    formats = formats_of(job.model, weights=plan.weights, dtype=plan.dtype)
    tp = plan.tp if execution.pipelined else 1
    auto = "f16" if SERVING[job.engine].is_ggml else formats.whole
    return Placement(
        quantised=_timed_format(_in_headers(job) or formats.quantised),
        whole=formats.whole,
        k_dtype=auto if plan.kv_dtype == "auto" else plan.kv_dtype,
        v_dtype=plan.v_dtype,
        tp=tp,
        ep=tp * plan.dp if plan.expert_parallel or shares_experts(job) else 1,
        dcp=plan.dcp,
        left_whole=_left_whole(job),
        experts_by=getattr(import_module(SERVING[job.engine].module), "experts_by", lambda _: "")(job),
    )


def _left_whole(job: ServeJob) -> tuple[str, ...] | None:
    if job.engine != "transformers":
        return None
    left: tuple[str, ...] | None = releases().left_whole(job.model.family, job.version)
    return left


def releases() -> Any:
    """What releases of transformers do; other engines do not load it."""
    return import_module("vramcast.engines.transformers.versions")


def _in_headers(job: ServeJob) -> str | None:
    """The block type that most bytes of a GGUF file are in; other headers say less than the config does."""
    if job.plan.weights is not None or job.weights is None:
        return None
    most = next(iter(job.weights.bytes_by_dtype), "")
    return most if most in FORMATS else None


def _timed_format(name: str) -> str:
    """A format of the table: a GGUF mix is timed as its most frequent block type ("q4_k_m" as "q4_k")."""
    if name in FORMATS:
        return name
    block = name.rpartition("_")[0]
    return block if block in FORMATS else name


def most_running(job: ServeJob) -> int | None:
    """Sequences that all copies run at once; None where the settings say nothing."""
    found = _setting(job, SERVING[job.engine].limit)
    return None if found is None else found * job.plan.dp


def prompt_step(job: ServeJob) -> int | None:
    """Tokens of prompts that one forward takes, as the engine settles it for the card; None where it cuts none."""
    return _setting(job, SERVING[job.engine].step)


def finds_its_own(job: ServeJob) -> bool:
    """Whether who was cut off finds blocks that it wrote and nobody took since [see timing.batching, cache]: in vLLM
    with prefix caching, of networks whose layers all keep every token."""
    settings: Any = import_module(SERVING[job.engine].module).settings_of(job)
    keeps = all(
        isinstance(mixer, Attention | MultiLatentAttention) and getattr(mixer, "window", None) is None
        for mixer in (run.layer.mixer for run in job.model.main.runs)
    )
    return keeps and getattr(settings, "prefix_caching", False)


def _setting(job: ServeJob, name: str) -> int | None:
    if not name:
        return None
    settings: Any = import_module(SERVING[job.engine].module).settings_of(job)
    found: int | None = getattr(settings, name)
    return found


def running_of(job: ServeJob) -> ServeJob:
    """The job with the sequences of its load that run at once."""
    limit = most_running(job)
    if limit is None or limit >= job.requests.concurrency:
        return job
    return replace(job, requests=replace(job.requests, concurrency=limit))


def waiting_caution(job: ServeJob) -> str | None:
    """What is to be said of a load of more sequences than run at once."""
    asked, limit = job.requests.concurrency, most_running(job)
    if limit is None or limit >= asked:
        return None
    return Note("{} runs {} of {} sequences at once, the others wait; raise --max-sequences", job.engine, limit, asked)


def load_memory(job: ServeJob, ranks: Iterable[tuple[ServingRank, RankAnswer]]) -> LoadMemory:
    """Bytes that the sequences in flight need, over all cards and on the fullest.

    Leaves out cards without a rank, and what a larger memory fraction or fewer sequences a step would change.

    Args:
        job: the question; its sequences are as long as its context
        ranks: each role of the deployment with its peaks
    """
    sequences = ceil_div(job.requests.concurrency, job.plan.dp)
    needed = [(rank.program.count, _needed_bytes(rank, answer, sequences, job.context)) for rank, answer in ranks]
    return LoadMemory(
        total_bytes=sum(count * num_bytes for count, num_bytes in needed),
        per_gpu_bytes=max(num_bytes for _, num_bytes in needed),
    )


def _needed_bytes(rank: ServingRank, answer: RankAnswer, sequences: int, context: int) -> int:
    """Of one rank, at the highest phase once the unused part of the pool is left out [bytes]."""
    cache = rank.cache
    unused = 0
    if cache is not None and not rank.grows:
        unused = max(0, cache.num_bytes - sequences * cache.sequence_bytes(context))
    return max(
        peak.device_bytes - (0 if name == Phase.LOAD.value else unused) for name, peak in answer.phases.items()
    )
