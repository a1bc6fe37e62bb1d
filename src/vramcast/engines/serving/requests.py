"""What a load can be of a network and an engine: lengths, images, blocks of the cache, drafts.

[vllm] vllm/config/model.py `_get_and_verify_max_len`; blocks: 0.6.6 engine/arg_utils.py and config.py
`CacheConfig._verify_args`, 0.11.0 to 0.17.0 config/cache.py `BlockSize` with v1/attention/backends/flash_attn.py
`get_kv_cache_shape`, 0.18.0 v1/attention/backend.py `supports_block_size`; drafts: 0.6.6 spec_decode_worker.py
`_vocab_size`, 0.11.0 to 0.14.0 config/speculative.py `__post_init__` "not supported yet", 0.15.0
`verify_equal_vocab_size_if_draft_model`; adapters: 0.7.3, 0.8.0 and 0.11.0 config/lora.py `possible_max_ranks`, 0.11.1
`MaxLoRARanks`
[sglang] srt/configs/model_config.py `_derive_context_length`; srt/server_args.py at 0.5.9 "chunked_prefill_size must be
divisible by page_size", `speculative_algorithm` in the wheels 0.4.1 to 0.5.3
[trtllm] _torch/pyexecutor/model_engine.py `_init_max_seq_len`, of the PyTorch backend, builds only warn; docs
advanced/kv-cache-reuse "tokens_per_block must be a power of 2"
[llama.cpp] tools/server, "the slot context ... capping"; common/speculative.cpp `SPEC_VOCAB_MAX_SIZE_DIFFERENCE`
[transformers] generation/utils.py `_validate_generated_length`
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from vramcast.blocks.lengths import known_positions, reads_images
from vramcast.domain.model import Attention, Head, MultiLatentAttention
from vramcast.domain.serving import PipelineJob, Requests, ServeJob, ServePlan, Version
from vramcast.domain.version import last_patch, named
from vramcast.errors import InvalidSpec, Unsupported

OF_PICTURES: Final = ("height", "width", "frames")
"""Fields of the load that only pipelines generate by."""

ALLOW_LONG: Final = "allow-long"
"""Engine option: sequences longer than the network was trained with, which the engine takes when told so."""


STRETCHED: Final = "gemma3"
"""Beginning of the families whose context counts the scaling of their rotary table already [vllm]."""


class Beyond(NamedTuple):
    """What an engine does with sequences longer than the network was trained with."""

    said: str
    way_out: str = ""  # variable that makes it take them; without one it takes them by itself
    since: Version = (0,)  # older versions only warn


BEYOND: Final[dict[str, Beyond]] = {
    "vllm": Beyond("vLLM refuses such a --max-model-len", "VLLM_ALLOW_LONG_MAX_MODEL_LEN"),
    "sglang": Beyond("SGLang refuses such a --context-length", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"),
    "tensorrt-llm": Beyond("TensorRT-LLM cuts max_seq_len to that", "TLLM_ALLOW_LONG_MAX_MODEL_LEN", since=(1,)),
    "llama.cpp": Beyond("llama-server cuts every slot to that"),
    "ik_llama.cpp": Beyond("its context is allocated nevertheless"),
    "transformers": Beyond("transformers only warns"),
}
"""Engine -> what it does then."""


def way_out(engine: str) -> str:
    """The variable that makes an engine take longer sequences; it is set to 1.

    >>> way_out("tensorrt-llm")
    'TLLM_ALLOW_LONG_MAX_MODEL_LEN'
    """
    return BEYOND[engine].way_out


class Blocks(NamedTuple):
    """Sizes that a block of the cache can have since a version [tokens]."""

    since: Version
    takes: Callable[[int], bool]
    wanted: str


BLOCKS: Final[dict[str, tuple[Blocks, ...]]] = {
    "vllm": (
        Blocks((0, 18), lambda size: size % 16 == 0, "a multiple of 16"),
        Blocks((0, 11, 1), lambda size: size in (16, 32, 64, 128, 256), "16, 32, 64, 128 or 256"),
        Blocks((0, 8), lambda size: size in (16, 32, 64, 128), "16, 32, 64 or 128"),
        Blocks((0,), lambda size: size in (8, 16, 32), "8, 16 or 32"),
    ),
    "tensorrt-llm": (Blocks((0,), lambda size: size & (size - 1) == 0, "a power of two"),),
}
"""Engine -> sizes, newest first; SGLang's pages divide the tokens of its prefill steps."""

RANKS: Final = (8, 16, 32, 64, 128, 256)

LORA_RANKS: Final[dict[str, tuple[tuple[Version, tuple[int, ...]], ...]]] = {
    "vllm": (
        ((0, 11, 1), (1, *RANKS, 320, 512)), ((0, 8), (*RANKS, 320, 512)), ((0,), RANKS),
    ),
}
"""Engine -> since a version, largest ranks of adapters that it can be started with."""

SAME_VOCABULARY: Final = ("vllm",)
"""Engines that refuse a draft whose vocabulary has another size."""

PADDING: Final = 128
"""By how many rows vocabularies of equal tokens may differ elsewhere: families pad them differently, and llama.cpp
allows as many [llama.cpp]. SGLang checks nothing and answers nonsense [github.com/sgl-project/sglang/issues/24051]."""


class Releases(NamedTuple):
    """Releases from one on, up to another that is not among them."""

    since: Version
    until: Version = (1 << 16,)


NEVER: Final = Releases((1 << 16,))
DRAFT_RELEASES: Final[dict[str, dict[str, tuple[Releases, ...]]]] = {
    "vllm": {"model": (Releases((0,), (0, 11)), Releases((0, 15)))},
    "sglang": {
        "eagle": (Releases((0, 4, 2)),), "mtp": (Releases((0, 4, 4)),), "eagle3": (Releases((0, 4, 5)),),
        "model": (Releases((0, 5, 2)),), "ngram": (Releases((0, 5, 3)),), "medusa": (NEVER,),
    },
}
"""Engine -> kind of a draft -> releases that have it; kinds that are not listed are in all of them."""


def refuse_requests(job: ServeJob) -> None:
    """Raise InvalidSpec for a load that the network cannot have, Unsupported for one that the engine does not take."""
    asked, usual, model = job.requests, Requests(), job.model
    for name in OF_PICTURES:
        if getattr(asked, name) != getattr(usual, name):
            raise InvalidSpec(f"{name}={getattr(asked, name)} says nothing about a language model; leave it out")
    if not reads_images(model) and (asked.images or asked.image_size is not None):
        raise InvalidSpec(f"{model.name} reads no images; leave image-size and images out")
    if asked.image_size is not None and job.engine != "transformers":
        raise Unsupported(f"image-size={asked.image_size} says nothing to {job.engine}; leave it out")
    if job.engine == "transformers" and asked.image_size is not None and not asked.images and model.head is Head.LM:
        raise InvalidSpec(f"image-size={asked.image_size} says nothing without images; add images, or leave it out")
    _refuse_cache(job)
    _refuse_lengths(job)
    _refuse_blocks(job)
    _refuse_adapters(job)
    _refuse_draft(job)


def refuse_pipeline_requests(job: PipelineJob) -> None:
    """The same of a diffusion pipeline."""
    if job.requests.frames > 1 and job.pipeline.frames == 1:
        raise InvalidSpec(f"{job.pipeline.name} generates images, no videos; leave frames out")


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
    beyond = BEYOND.get(job.engine)
    said = f"; {beyond.said}" if beyond is not None and not beyond.way_out else ""
    return f"context={job.context} is longer than the {limit} positions {job.model.name} was trained with{said}"


def _refuse_lengths(job: ServeJob) -> None:
    limit, beyond = longest(job), BEYOND.get(job.engine)
    learned = known_positions(job.model, job.model.main)
    if learned is not None and job.context > learned and job.engine == "transformers":
        raise InvalidSpec(f"context={job.context} is more than the {learned} positions that {job.model.name} learned")
    if _reads_encoder(job) or limit is None or beyond is None or not _refuses(beyond, job):
        return
    if job.context > limit:
        raise InvalidSpec(
            f"context={job.context} is longer than the {limit} positions {job.model.name} was trained with, and "
            f"{beyond.said}; use --context {limit}, or {beyond.way_out}=1 with --engine-option {ALLOW_LONG}=true"
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
            raise InvalidSpec(f"{given}: {job.model.name} keeps no keys and values; leave it out")


def _refuses(beyond: Beyond, job: ServeJob) -> bool:
    return bool(beyond.way_out) and job.version >= beyond.since and not job.engine_options.get(ALLOW_LONG)


def _reads_encoder(job: ServeJob) -> bool:
    """Whether every layer reads an encoder, for which engines have sentences of their own."""
    return len(job.model.stacks) > 1 and any(run.layer.cross_attention for run in job.model.main.runs)


def _refuse_blocks(job: ServeJob) -> None:
    size, engine = job.plan.block_tokens, job.engine
    if size is None:
        return
    row = next((row for row in BLOCKS.get(engine, ()) if last_patch(job.version) >= row.since), None)
    if row is not None and not row.takes(size):
        raise InvalidSpec(f"block-tokens={size} is no size of {engine}'s blocks; use {row.wanted}")


def _refuse_adapters(job: ServeJob) -> None:
    plan, engine = job.plan, job.engine
    if plan.lora_rank != ServePlan().lora_rank and not plan.lora_slots:
        raise InvalidSpec(f"lora-rank={plan.lora_rank} says nothing without lora-slots; add that, or leave it out")
    known = next((ranks for since, ranks in LORA_RANKS.get(engine, ()) if last_patch(job.version) >= since), None)
    if known is not None and plan.lora_rank not in known:
        raise InvalidSpec(
            f"lora-rank={plan.lora_rank} is no largest rank of {engine}; use {', '.join(map(str, known))}"
        )


def _refuse_draft(job: ServeJob) -> None:
    draft, model, engine = job.plan.draft, job.model, job.engine
    if draft is None:
        return
    releases = DRAFT_RELEASES.get(engine, {}).get(draft.kind, (Releases((0,)),))
    if not any(span.since <= last_patch(job.version) < span.until for span in releases):
        lacks = "takes no draft model" if draft.kind == "model" else f"has no draft={draft.kind}"
        raise Unsupported(f"{named(engine, job.version)} {lacks}; {_with_draft(engine, draft.kind)}")
    if draft.model is None:
        return
    if draft.model.head is not Head.LM:
        raise InvalidSpec(f"draft={draft.model.name} generates no tokens; use a language model")
    allowed = 0 if engine in SAME_VOCABULARY else PADDING
    if abs(draft.model.vocab - model.vocab) > allowed:
        raise InvalidSpec(
            f"draft={draft.model.name} has a vocabulary of {draft.model.vocab}, {model.name} one of {model.vocab}; "
            "use a draft with the same"
        )


def _with_draft(engine: str, kind: str) -> str:
    """What has a draft of a kind that a release lacks."""
    newest = DRAFT_RELEASES[engine][kind][-1]
    return "use another draft, or --engine vllm" if newest is NEVER else f"use {named(engine, newest.since)} or later"
