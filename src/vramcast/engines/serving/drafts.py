"""Speculative decoding: weights of what proposes tokens, and the layers it adds to the cache.

[EAGLE] Li et al., arXiv:2401.15077: one decoder layer behind a 2 H x H projection; EAGLE-3, arXiv:2503.01840: 3 H x H,
queries, keys and values of 2 H, and a head of its own over a shortened vocabulary. Embedding and head are the target's.
[MTP] DeepSeek-V3, arXiv:2412.19437, section 2.2: the checkpoint's own modules.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vramcast.blocks.parameters import layer_parameters, mtp_parameters
from vramcast.domain.model import Attention, Layer, Mixer, Model, MultiLatentAttention, Parameter
from vramcast.domain.program import Category, Tensor
from vramcast.domain.serving import Draft, ServeJob
from vramcast.engines.serving.stages import Stage, even_stages
from vramcast.engines.serving.weights import Formats, formats_of, weight_tensors
from vramcast.errors import InvalidSpec
from vramcast.parallel.layout import Layout
from vramcast.states.storage import format_of
from vramcast.states.weights import local_shape

EAGLE3_VOCAB: Final = 32_000
"""Rows of an EAGLE-3 head as published drafts have it."""

MTP_AS_STORED: Final = ("fp8-block",)
"""Formats that checkpoints store their own multi-token-prediction modules in as well: DeepSeek V3 is 688.59 GB, the sum
with the module in FP8 but for its projection and its copies of embedding and head; all in 16 bits it were 700 GB
[model.safetensors.index.json of deepseek-ai/DeepSeek-V3]."""

MTP_WHOLE: Final = ("mtp.projection", "mtp.head")
"""Of a module, in 16 bits whatever the rest is in."""

EAGLE: Final = ("eagle", "eagle3")


def draft_weights(job: ServeJob, stage: Stage, layout: Layout) -> Iterator[tuple[Tensor, int]]:
    """Weights that the draft adds to the last stage's ranks, divided as the target's are.

    Args:
        job: the question
        stage: layers of the rank
        layout: degrees of parallelism of the target

    Raises: InvalidSpec when the model has no modules of the kind asked for
    """
    draft = job.plan.draft
    if draft is None or not stage.last or draft.kind == "ngram":
        return
    if draft.model is not None:
        formats = formats_of(draft.model, weights=None, dtype=job.plan.dtype)
        whole = even_stages(draft.model.num_layers, 1)[0]
        yield from weight_tensors(
            draft.model, layout=layout, formats=formats, stage=whole, category=Category.DRAFT
        )
        return
    formats = formats_of(job.model, weights=job.plan.weights, dtype=job.plan.dtype)
    for parameter in _own_parameters(job.model, draft):
        yield _tensor(parameter, layout, formats), 1


def draft_mixers(job: ServeJob) -> tuple[Mixer | None, ...]:
    """Mixers of draft layers whose keys and values share the target's cache."""
    draft, model = job.plan.draft, job.model
    if draft is None:
        return ()
    if draft.model is not None:
        return tuple(layer.mixer for layer in draft.model.main.layers)
    if draft.kind in EAGLE:
        return (draft_layer(model).mixer,)
    if draft.kind == "mtp":
        return tuple(layer.mixer for layer in model.mtp_layers)
    return ()


def draft_layer(model: Model) -> Layer:
    """The target's last attention layer: what EAGLE drafts are made like."""
    attending = [layer for layer in model.main.layers if isinstance(layer.mixer, (Attention, MultiLatentAttention))]
    if not attending:
        raise InvalidSpec(f"draft: {model.name} has no attention layer an EAGLE draft could be like; use ngram")
    return attending[-1]


def _own_parameters(model: Model, draft: Draft) -> Iterator[Parameter]:
    h = model.hidden
    if draft.kind == "mtp":
        modules = mtp_parameters(model)
        if not modules:
            raise InvalidSpec(f"draft=mtp: {model.name} has no multi-token-prediction modules; use eagle or ngram")
        for module in modules:
            yield from module
        return
    if draft.kind == "medusa":
        for index in range(draft.tokens):
            yield Parameter(path=f"medusa.{index}.block", shape=(h, h))
            yield Parameter(path=f"medusa.{index}.head", shape=(model.vocab, h), kind="embedding")
        return
    inputs = 3 if draft.kind == "eagle3" else 2
    yield Parameter(path="draft.projection", shape=(h, inputs * h))
    yield from layer_parameters(draft_layer(model), hidden=h)
    if draft.kind == "eagle3":
        for name in ("q", "k", "v"):  # these read embedding and states side by side: as wide again
            yield from (p for p in layer_parameters(draft_layer(model), hidden=h) if p.path == f"attention.{name}")
        yield Parameter(path="draft.head", shape=(min(EAGLE3_VOCAB, model.vocab), h), kind="embedding")


def _tensor(parameter: Parameter, layout: Layout, formats: Formats) -> Tensor:
    shape, stored = local_shape(parameter, layout), _stored(parameter, formats)
    return Tensor(
        name=parameter.path,
        num_bytes=format_of(stored).num_bytes(shape),
        category=Category.DRAFT,
        owner="draft",
        formula=f"{' x '.join(f'{size:,}' for size in shape)} in {stored}",
        source="the draft's tensors; docs/serving.md",
    )


def _stored(parameter: Parameter, formats: Formats) -> str:
    """The format of one weight of a draft: 16 bits, unless the checkpoint quantised its own modules."""
    own = parameter.path.startswith("mtp.") and parameter.path not in MTP_WHOLE
    return formats.of(parameter) if own and formats.quantised in MTP_AS_STORED else formats.whole
