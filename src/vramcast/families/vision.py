"""Image encoders: ViT, CLIP, SigLIP.

Facts per family: transformers v5.23.0, src/transformers/models/<model_type>/modeling_*.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from vramcast.blocks.parameters.layer import linear, norm, prefixed
from vramcast.domain.model import MLP, Head, Layer, Model, Norm, Parameter, Run, Stack, VisionEmbedding
from vramcast.errors import InvalidSpec
from vramcast.families.assemble import attention_of, dtype_of, head_of, model_of, vision_stack
from vramcast.families.fields import Fields, defaults_of


def section_of(fields: Fields, key: str, family: str) -> Fields:
    """A nested config with the defaults of its own family; an absent one is all defaults."""
    inner = fields.section(key) or Fields({}, name=f"{fields.name}.{key}")
    return inner.renamed().behind(defaults_of(family))


def patches_of(fields: Fields) -> int:
    """Patches of a square image."""
    image, patch = fields.count("image_size"), fields.count("patch_size")
    if patch > image:
        raise fields.wrong("patch_size", "is more than image_size={}", image)
    return (image // patch) ** 2


def patch_embedding(
    fields: Fields, *, bias: bool, positions: bool = True, class_token: bool = False, pre_norm: bool = False
) -> VisionEmbedding:
    """Square patches, each with a learned position where there are any, and a class token before them."""
    channels, side = fields.count("num_channels", 3), fields.count("patch_size")
    return VisionEmbedding(
        in_channels=channels, patch=(side, side), bias=bias, class_token=class_token, pre_norm=pre_norm,
        positions=patches_of(fields) + class_token if positions else 0,
    )


def encoder_layer(fields: Fields, *, bias: bool = True) -> Layer:
    """A pre-norm transformer layer with biases, as image encoders use."""
    attention = attention_of(fields, fields.count("hidden_size"), qkv_bias=bias, out_bias=bias, rope=False)
    activation = fields.activation("hidden_act", fallback="gelu")
    mlp = MLP(width=fields.count("intermediate_size"), gated=False, activation=activation, bias=True)
    return Layer(mixer=attention, channel=mlp, norm=Norm.LAYER)


def vit_stack(fields: Fields) -> Stack:
    """ViT: a class token and a position per patch."""
    hidden, bias = fields.count("hidden_size"), fields.flag("qkv_bias", fallback=True)
    layers = (fields.layers(), encoder_layer(fields, bias=bias))
    return vision_stack(hidden, patch_embedding(fields, bias=True, class_token=True), layers, final_norm=Norm.LAYER)


def clip_vision_stack(fields: Fields, *, extra: tuple[Parameter, ...] = ()) -> Stack:
    """CLIP's image encoder: norms before and behind the layers, patches without a bias."""
    hidden, layers = fields.count("hidden_size"), (fields.layers(), encoder_layer(fields))
    patches = patch_embedding(fields, bias=False, class_token=True, pre_norm=True)
    return vision_stack(hidden, patches, layers, final_norm=Norm.LAYER, extra=extra)


def siglip_vision_stack(fields: Fields) -> Stack:
    """SigLIP's image encoder: no class token; a head of attention pooling unless switched off."""
    hidden = fields.count("hidden_size")
    extra: tuple[Parameter, ...] = ()
    if fields.flag("vision_use_head", fallback=True):
        inner = fields.count("intermediate_size")
        attention = linear("qkv", 3 * hidden, hidden, bias=True) + linear("out", hidden, hidden, bias=True)
        extra = (
            Parameter(path="pooling.probe", shape=(hidden,), kind="scalar"), *prefixed("pooling", attention),
            *norm("pooling.norm", Norm.LAYER, hidden), *linear("pooling.up", inner, hidden, bias=True),
            *linear("pooling.down", hidden, inner, bias=True),
        )
    layers = (fields.layers(), encoder_layer(fields))
    return vision_stack(hidden, patch_embedding(fields, bias=True), layers, final_norm=Norm.LAYER, extra=extra)


def _text_stack(fields: Fields, *, extra: tuple[Parameter, ...], causal: bool) -> Stack:
    return Stack(
        name="text", hidden=fields.count("hidden_size"), final_norm=Norm.LAYER, extra=extra, causal=causal,
        runs=(Run(count=fields.layers(), layer=encoder_layer(fields)),),
        positions=fields.count("max_position_embeddings"),
    )


def _without_head(fields: Fields, *stacks: Stack, **facts: Any) -> Model:
    return model_of(fields, stacks=stacks, head=Head.NONE, tied=False, dtype=dtype_of(fields, "fp32"), **facts)


def vit(fields: Fields) -> Model:
    """ViT with its classifier, or with the pooler of the bare model."""
    pooler = head_of(fields, Head.NONE) is Head.NONE
    return _without_head(fields, vit_stack(fields), vocab=0, pooler=pooler)


def clip(fields: Fields) -> Model:
    """CLIP: both towers, their projections to one space, and the temperature."""
    text = section_of(fields, "text_config", "clip_text_model")
    image = section_of(fields, "vision_config", "clip_vision_model")
    joint = fields.count("projection_dim", 512)
    temperature = Parameter(path="logit_scale", shape=(1,), kind="scalar")
    vision = clip_vision_stack(image, extra=linear("projection", joint, image.count("hidden_size")))
    words = _text_stack(text, extra=(*linear("projection", joint, text.count("hidden_size")), temperature), causal=True)
    return _without_head(fields, vision, words, vocab=text.count("vocab_size"))


def siglip(fields: Fields) -> Model:
    """SigLIP: both towers, a projection of the text, temperature and bias."""
    text = section_of(fields, "text_config", "siglip_text_model")
    image = section_of(fields, "vision_config", "siglip_vision_model")
    hidden = text.count("hidden_size")
    scalars = tuple(Parameter(path=name, shape=(1,), kind="scalar") for name in ("logit_scale", "logit_bias"))
    head = linear("projection", text.count("projection_size", hidden), hidden, bias=True)
    vision, words = siglip_vision_stack(image), _text_stack(text, extra=(*head, *scalars), causal=False)
    return _without_head(fields, vision, words, vocab=text.count("vocab_size"))


def clip_text(fields: Fields) -> Model:
    """CLIP's text encoder alone, as diffusion pipelines use it; with its projection where the class says so."""
    joint = any("WithProjection" in name for name in fields.words("architectures"))
    hidden = fields.count("hidden_size")
    extra = linear("projection", fields.count("projection_dim", hidden), hidden) if joint else ()
    return _without_head(fields, _text_stack(fields, extra=extra, causal=True))


def _alone(fields: Fields, *, stack: Callable[[Fields], Stack]) -> Model:
    return _without_head(fields, stack(fields), vocab=0)


TOWERS: Final[dict[str, Callable[[Fields], Stack]]] = {
    "clip_vision_model": clip_vision_stack,
    "siglip_vision_model": siglip_vision_stack,
}


def tower_of(fields: Fields, family: str) -> Stack:
    """The image encoder of a vision-language model, by the `model_type` of its section."""
    inner = section_of(fields, "vision_config", family)
    named = inner.word("model_type", family)
    if named not in TOWERS:
        raise InvalidSpec("vision model type {!r} of {} is none of {}", named, fields.name, ", ".join(TOWERS))
    return TOWERS[named](section_of(fields, "vision_config", named))


BUILDERS: Final[dict[str, Callable[[Fields], Model]]] = {
    "vit": vit, "clip": clip, "siglip": siglip, "clip_text_model": clip_text,
    **{family: partial(_alone, stack=stack) for family, stack in TOWERS.items()},
}
