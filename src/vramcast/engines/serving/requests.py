"""What a load can be of a network and an engine: networks, options, lengths, images, blocks, drafts.

[vllm] vllm/config/model.py `_get_and_verify_max_len`
[sglang] srt/server_args.py at 0.5.9 "chunked_prefill_size must be divisible by page_size"
[llama.cpp] common/speculative.cpp `SPEC_VOCAB_MAX_SIZE_DIFFERENCE`
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from vramcast.blocks.lengths import check_images, known_positions, reads_images
from vramcast.domain.model import Attention, Head, LinearAttention, Mamba, Model, MoE, MultiLatentAttention
from vramcast.domain.serving import PipelineJob, Requests, ServeJob, ServePlan
from vramcast.domain.version import last_patch, named
from vramcast.engines.serving.table import ALWAYS, NEVER, SERVING, Beyond, Releases
from vramcast.errors import InvalidSpec, Note, UnknownName, Unsupported

Value = int | float | bool | str


def generates(model: Model) -> bool:
    """Whether answers are written token by token; encoders, embedding models and classifiers run once."""
    return model.head is Head.LM and model.main.causal


def sees(model: Model) -> bool:
    """Whether a tower reads images."""
    return any(stack.vision is not None for stack in model.stacks[:-1])


def refuse_encoders(job: ServeJob) -> None:
    """Raise Unsupported for networks whose every layer reads an encoder."""
    if len(job.model.stacks) > 1 and any(layer.cross_attention for layer in job.model.main.layers):
        raise Unsupported("{} reads an encoder in every layer; use engine transformers", job.model.name)


def refuse_other_caches(job: ServeJob) -> None:
    """Raise Unsupported for networks with layers that keep anything but keys and values."""
    if any(not isinstance(run.layer.mixer, Attention) for run in job.model.main.runs):
        raise Unsupported(
            "{} has layers whose cache is not that of attention, which is not modelled for {}; use --engine vllm",
            job.model.name, job.engine
        )


class Known(Struct, frozen=True):
    """An engine option: what its value may be, and what a network must have for it to say anything."""

    kind: type[Value]
    least: float = 1
    most: float = 1 << 40
    choices: tuple[str, ...] = ()
    about: str = ""  # key of PARTS


FLAG: Final = Known(bool)

PARTS: Final[dict[str, tuple[Callable[[Model], bool], str]]] = {
    "experts": (lambda model: any(isinstance(layer.channel, MoE) for layer in model.main.layers), "experts"),
    "windows": (lambda model: any(getattr(layer.mixer, "window", None) for layer in model.main.layers),
                "sliding windows"),
    "states": (lambda model: any(isinstance(layer.mixer, (Mamba, LinearAttention)) for layer in model.main.layers),
               "recurrent states"),
    "towers": (lambda model: len(model.stacks) > 1, "towers beside its language model"),
    "attention": (lambda model: any(isinstance(layer.mixer, (Attention, MultiLatentAttention))
                                    for layer in model.main.layers), "layers of attention"),
    "latents": (lambda model: any(isinstance(layer.mixer, MultiLatentAttention) for layer in model.main.layers),
                "latent attention"),
}
"""What an option can be about -> whether a network has it, and its name."""


def typed_options(job: ServeJob | PipelineJob, known: Mapping[str, Known]) -> dict[str, Value]:
    """The job's engine options, each known, of its type and about something that the network has.

    Raises: UnknownName for another option, InvalidSpec for a value that it cannot have or a network it says nothing of
    """
    found: dict[str, Value] = {}
    for name, value in job.engine_options.items():
        if name not in known:
            raise UnknownName.of(Note("{} option", job.engine), name, known)
        found[name] = _typed(name, value, known[name])
        if known[name].about and isinstance(job, ServeJob):
            has, what = PARTS[known[name].about]
            if found[name] and not has(job.model):
                raise InvalidSpec("engine-option {}: {} has no {}; leave it out", name, job.model.name, what)
    return found


def _typed(name: str, value: object, known: Known) -> Value:
    kind, text = known.kind, str(value)
    if kind is str and (not known.choices or text in known.choices):
        return text
    if kind is bool and isinstance(value, bool):
        return value
    if kind in (int, float) and not isinstance(value, bool):
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if known.least <= number <= known.most and (kind is float or number.is_integer()):
            return kind(number)
    raise InvalidSpec("engine-option {}={} must be {}", name, text[:40], _wanted(known))


def _wanted(known: Known) -> str:
    if known.choices:
        return Note("one of {}", ", ".join(known.choices))
    if known.kind is bool:
        return "true or false"
    number = "a whole number" if known.kind is int else "a number"
    return f"{number} from {known.least:g} to {known.most:,.0f}"


OF_PICTURES: Final = ("height", "width", "frames")
"""Fields of the load that only pipelines generate by."""

ALLOW_LONG: Final = "allow-long"
"""Engine option: sequences longer than the network was trained with, which the engine takes when told so."""


STRETCHED: Final = "gemma3"
"""Beginning of the families whose context counts the scaling of their rotary table already [vllm]."""


def way_out(engine: str) -> str:
    """The variable that makes an engine take longer sequences; it is set to 1.

    >>> way_out("tensorrt-llm")
    'TLLM_ALLOW_LONG_MAX_MODEL_LEN'
    """
    return SERVING[engine].beyond.way_out


VARIABLES: Final[Mapping[str, Mapping[str, str]]] = {
    "vllm": {"v1": "VLLM_USE_V1", "graphs-in-budget": "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS",
             "flashinfer-sampler": "VLLM_USE_FLASHINFER_SAMPLER"},
}
"""Engine -> options that are variables of the environment."""


def variables_of(engine: str) -> dict[str, str]:
    """Options of an engine that are variables of the environment, with those.

    >>> variables_of("tensorrt-llm")
    {'allow-long': 'TLLM_ALLOW_LONG_MAX_MODEL_LEN'}
    """
    beyond = way_out(engine)
    return {**VARIABLES.get(engine, {}), **({ALLOW_LONG: beyond} if beyond else {})}


PADDING: Final = 128
"""By how many rows vocabularies of equal tokens may differ elsewhere: families pad them differently, and llama.cpp
allows as many [llama.cpp]. SGLang checks nothing and answers nonsense [github.com/sgl-project/sglang/issues/24051]."""


def refuse_requests(job: ServeJob) -> None:
    """Raise InvalidSpec for a load that the network cannot have, Unsupported for one that the engine does not take."""
    asked, usual, model = job.requests, Requests(), job.model
    for name in OF_PICTURES:
        if getattr(asked, name) != getattr(usual, name):
            raise InvalidSpec("{}={} says nothing about a language model; leave it out", name, getattr(asked, name))
    if not reads_images(model) and (asked.images or asked.image_size is not None):
        raise InvalidSpec("{} reads no images; leave image-size and images out", model.name)
    if asked.image_size is not None and job.engine != "transformers":
        raise Unsupported("image-size={} says nothing to {}; leave it out", asked.image_size, job.engine)
    if job.engine == "transformers" and asked.image_size is not None and not asked.images and model.head is Head.LM:
        raise InvalidSpec("image-size={} says nothing without images; add images, or leave it out", asked.image_size)
    if job.engine == "transformers":
        check_images(model, asked.images, asked.image_size, context=asked.context, input_len=asked.input_len)
    _refuse_cache(job)
    _refuse_lengths(job)
    _refuse_blocks(job)
    _refuse_adapters(job)
    _refuse_draft(job)


def refuse_pipeline_requests(job: PipelineJob) -> None:
    """The same of a diffusion pipeline."""
    if job.requests.frames > 1 and job.pipeline.frames == 1:
        raise InvalidSpec("{} generates images, no videos; leave frames out", job.pipeline.name)


def longest(job: ServeJob) -> int | None:
    """Positions that the network was trained with, interpolated ones included; None where nothing limits them."""
    model = job.model
    if model.context is None:
        return None
    return model.context if model.family.startswith(STRETCHED) else round(model.context * model.rope_scale)


def length_caution(job: ServeJob) -> str | None:
    """What is to be said of sequences that are longer than the network was trained with."""
    limit = longest(job)
    if limit is None or job.context <= limit:
        return None
    beyond = SERVING[job.engine].beyond
    trained = Note("context={} is longer than the {} positions {} was trained with", job.context, limit, job.model.name)
    return trained if beyond.way_out else Note("{}; {}", trained, beyond.said)


def _refuse_lengths(job: ServeJob) -> None:
    limit, beyond = longest(job), SERVING[job.engine].beyond
    learned = known_positions(job.model, job.model.main)
    if learned is not None and job.context > learned and job.engine == "transformers":
        raise InvalidSpec(
            "context={} is more than the {} positions that {} learned", job.context, learned, job.model.name
        )
    if _reads_encoder(job) or limit is None or not _refuses(beyond, job):
        return
    if job.context > limit:
        raise InvalidSpec(
            "context={} is longer than the {} positions {} was trained with, and {}; use --context {}, or {}=1 with "
            "--engine-option {}=true",
            job.context, limit, job.model.name, beyond.said, limit, beyond.way_out, ALLOW_LONG
        )


def _refuse_cache(job: ServeJob) -> None:
    """Refuse a dtype of keys and values of a network without any."""
    mixers = (layer.mixer for stack in job.model.stacks for layer in stack.layers)
    if any(isinstance(mixer, (Attention, MultiLatentAttention)) for mixer in mixers):
        return
    for name in ("kv_dtype", "v_dtype"):
        value = getattr(job.plan, name)
        if value not in (None, "auto"):
            given = f"{name.replace('_', '-')}={value}"
            raise InvalidSpec("{}: {} keeps no keys and values; leave it out", given, job.model.name)


def _refuses(beyond: Beyond, job: ServeJob) -> bool:
    return bool(beyond.way_out) and job.version >= beyond.since and not job.engine_options.get(ALLOW_LONG)


def _reads_encoder(job: ServeJob) -> bool:
    """Whether every layer reads an encoder, for which engines have sentences of their own."""
    return len(job.model.stacks) > 1 and any(run.layer.cross_attention for run in job.model.main.runs)


def _refuse_blocks(job: ServeJob) -> None:
    size, engine = job.plan.block_tokens, job.engine
    if size is None:
        return
    row = next((row for row in SERVING[engine].blocks if last_patch(job.version) >= row.since), None)
    if row is not None and not row.takes(size):
        raise InvalidSpec("block-tokens={} is no size of {}'s blocks; use {}", size, engine, row.wanted)


def _refuse_adapters(job: ServeJob) -> None:
    plan, engine = job.plan, job.engine
    if plan.lora_rank != ServePlan().lora_rank and not plan.lora_slots:
        raise InvalidSpec("lora-rank={} says nothing without lora-slots; add that, or leave it out", plan.lora_rank)
    known = next((ranks for since, ranks in SERVING[engine].lora_ranks if last_patch(job.version) >= since), None)
    if known is not None and plan.lora_rank not in known:
        raise InvalidSpec(
            "lora-rank={} is no largest rank of {}; use {}", plan.lora_rank, engine, ", ".join(map(str, known))
        )


def _refuse_draft(job: ServeJob) -> None:
    draft, model, engine = job.plan.draft, job.model, job.engine
    if draft is None:
        return
    releases = SERVING[engine].drafts.get(draft.kind, (Releases(ALWAYS),))
    if not any(span.since <= last_patch(job.version) < span.until for span in releases):
        release, instead = named(engine, job.version), _with_draft(engine, draft.kind)
        if draft.kind == "model":
            raise Unsupported("{} takes no draft model; {}", release, instead)
        raise Unsupported("{} has no draft={}; {}", release, draft.kind, instead)
    if draft.model is None:
        return
    if draft.model.head is not Head.LM:
        raise InvalidSpec("draft={} generates no tokens; use a language model", draft.model.name)
    allowed = 0 if SERVING[engine].same_vocabulary else PADDING
    if abs(draft.model.vocab - model.vocab) > allowed:
        raise InvalidSpec(
            "draft={} has a vocabulary of {}, {} one of {}; use a draft with the same",
            draft.model.name, draft.model.vocab, model.name, model.vocab
        )


def _with_draft(engine: str, kind: str) -> str:
    """What has a draft of a kind that a release lacks."""
    newest = SERVING[engine].drafts[kind][-1]
    if newest == NEVER:
        return "use another draft, or --engine vllm"
    return Note("use {} or later", named(engine, newest.since))
