"""Image encoders: ViT, CLIP, SigLIP.

Facts per family: transformers v5.23.0, src/transformers/models/<model_type>/modeling_*.py.

Image encoders in front of decoders that other families describe: Kimi's, GLM's, Step's, InternVL's and others'.

Facts per encoder: transformers v5.23.0, src/transformers/models/<model_type>/modeling_*.py; [Kimi-VL]
moonshotai/Kimi-VL-A3B-Instruct modeling_kimi_vl.py, whose encoder and projector Kimi K2.5 has, too.
Of models whose code lies beside their weights:
[GLM-4V] zai-org/glm-4v-9b visual.py `EVA2CLIPModel`, `GLU`
[Qwen-VL] Qwen/Qwen-VL visual.py `VisionTransformer`, `Resampler`
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal

from msgspec.structs import replace

from vramcast.blocks.parameters.layer import linear, norm, prefixed, vector
from vramcast.domain.model import MLP, Attention, Head, Layer, Model, Norm, Parameter, Run, Stack, VisionEmbedding
from vramcast.errors import InvalidSpec, Unsupported
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
    fields: Fields, *, bias: bool, class_token: bool = False, pre_norm: bool = False
) -> VisionEmbedding:
    """Square patches, each with a learned position, and a class token before them where there is one."""
    channels, side = fields.count("num_channels", 3), fields.count("patch_size")
    return VisionEmbedding(
        in_channels=channels, patch=(side, side), bias=bias, class_token=class_token, pre_norm=pre_norm,
        positions=patches_of(fields) + class_token,
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


KIMI_NAMES: Final = {
    "vt_hidden_size": "hidden_size", "vt_intermediate_size": "intermediate_size",
    "vt_num_attention_heads": "num_attention_heads", "vt_num_hidden_layers": "num_hidden_layers",
    "init_pos_emb_height": "pos_emb_height", "init_pos_emb_width": "pos_emb_width",
}
"""Keys of the published file -> those of transformers."""


def _attention(fields: Fields, hidden: int, **facts: Any) -> Attention:
    heads = fields.count("num_attention_heads")
    head_dim = fields.share("hidden_size", hidden, "num_attention_heads", heads)
    return Attention(num_heads=heads, num_kv_heads=heads, head_dim=head_dim, **facts)


def _convolution(path: str, outputs: int, inputs: int, side: int) -> tuple[Parameter, ...]:
    return (Parameter(path=path, shape=(outputs, inputs, side, side), kind="conv"), vector(f"{path}.bias", outputs))


def kimi_tower(fields: Fields, text: Model) -> Stack:
    """MoonViT: a learned grid of positions beside rotary ones, 2 x 2 merging, two linears."""
    inner = section_of(fields, "vision_config", "kimi_k25_vision")
    inner = inner.over({new: inner.get(old) for old, new in KIMI_NAMES.items() if inner.has(old)})
    hidden, patch = inner.count("hidden_size"), inner.count("patch_size")
    width = inner.count("intermediate_size")
    layer = Layer(
        mixer=_attention(inner, hidden, qkv_bias=True, out_bias=True),
        channel=MLP(width=width, gated=False, activation="gelu_pytorch_tanh", bias=True), norm=Norm.LAYER,
    )
    positions = inner.count("pos_emb_height", 64) * inner.count("pos_emb_width", 64)
    patches = VisionEmbedding(in_channels=3, patch=(patch, patch), bias=True, positions=positions)
    joined = 4 * hidden
    return vision_stack(
        hidden, patches, (inner.layers(), layer), final_norm=Norm.LAYER, projector_norm_dim=hidden,
        projector_norm=Norm.LAYER, projector=((joined, joined, True), (joined, text.hidden, True)),
    )


def glm_tower(fields: Fields, text: Model) -> Stack:
    """GLM-4.1V's and its successors': gated blocks, a convolution that merges 2 x 2, a gated projection."""
    del text
    inner = section_of(fields, "vision_config", "glm4v_vision")
    hidden, out, patch = inner.count("hidden_size"), inner.count("out_hidden_size"), inner.count("patch_size")
    layer = Layer(
        mixer=_attention(inner, hidden, qkv_bias=inner.flag("attention_bias")),
        channel=MLP(width=out, gated=True, activation=inner.activation("hidden_act", fallback="silu")),
    )
    patches = VisionEmbedding(
        in_channels=inner.count("in_channels", 3), patch=(inner.count("temporal_patch_size", 2), patch, patch),
        bias=True, positions=patches_of(inner),
    )
    width = inner.count("intermediate_size")
    extra = (
        *norm("post_conv_norm", Norm.RMS, hidden),
        *_convolution("downsample", out, hidden, inner.count("spatial_merge_size", 2)),
        *linear("projector.gate", width, out),
    )
    return vision_stack(
        hidden, patches, (inner.layers("depth"), layer), final_norm=Norm.RMS, projector_norm_dim=out,
        projector_norm=Norm.LAYER, projector=((out, out, False), (out, width, False), (width, out, False)), extra=extra,
    )


def step_tower(fields: Fields, text: Model) -> Stack:
    """Step 3.7's: layers scaled by learned vectors, two convolutions that merge 4 x 4, one linear."""
    inner = section_of(fields, "vision_config", "step3p7_vision")
    hidden, patch = inner.count("hidden_size"), inner.count("patch_size")
    width = inner.multiple("mlp_ratio", 8960 / 1536, of=hidden)
    layer = Layer(
        mixer=_attention(inner, hidden, qkv_bias=True, out_bias=True),
        channel=MLP(width=width, gated=False, activation="quick_gelu", bias=True), norm=Norm.LAYER,
        extra=(vector("scale.mixer", hidden), vector("scale.channel", hidden)),
    )
    patches = VisionEmbedding(
        in_channels=inner.count("num_channels", 3), patch=(patch, patch), bias=False, positions=patches_of(inner),
        pre_norm=True,
    )
    merging = (
        *_convolution("downsample.0", 2 * hidden, hidden, 3), *_convolution("downsample.1", 4 * hidden, 2 * hidden, 3)
    )
    return vision_stack(
        hidden, patches, (inner.layers(), layer), projector=((4 * hidden, text.hidden, False),), extra=merging
    )


def idefics_tower(fields: Fields, text: Model) -> Stack:
    """SmolVLM's and Idefics 3's: SigLIP without its pooling head, `scale_factor` squared patches in one token."""
    inner = section_of(fields, "vision_config", "idefics3_vision").over({"vision_use_head": False})
    tower = siglip_vision_stack(inner)
    return replace(tower, projector=((tower.hidden * fields.count("scale_factor", 2) ** 2, text.hidden, False),))


def intern_tower(fields: Fields, text: Model) -> Stack:
    """InternVL's: layers scaled by learned vectors, 2 x 2 patches in one token behind a norm, two linears."""
    inner = section_of(fields, "vision_config", "internvl_vision")
    sides = {key: inner.naturals(key) for key in ("image_size", "patch_size") if isinstance(inner.get(key), list)}
    inner = inner.over({key: side[0] for key, side in sides.items() if side})
    if inner.flag("use_qk_norm") or inner.flag("qk_normalization"):
        raise Unsupported("the image encoder of {} norms its queries, which is not modelled", fields.name)
    hidden = inner.count("hidden_size")
    layer = encoder_layer(inner, bias=inner.flag("attention_bias", fallback=inner.flag("qkv_bias")))
    attention = replace(layer.mixer, out_bias=True) if isinstance(layer.mixer, Attention) else layer.mixer
    layer = replace(layer, mixer=attention, extra=(vector("scale.mixer", hidden), vector("scale.channel", hidden)))
    patches = patch_embedding(inner, bias=True, class_token=True)
    joined = 4 * hidden
    return vision_stack(
        hidden, patches, (inner.layers(), layer), projector_norm_dim=joined, projector_norm=Norm.LAYER,
        projector=((joined, text.hidden, True), (text.hidden, text.hidden, True)),
    )


def lfm_tower(fields: Fields, text: Model) -> Stack:
    """LFM2-VL's: SigLIP 2 over patches of any image, 2 x 2 of them in one token, two linears."""
    inner = section_of(fields, "vision_config", "siglip2_vision")
    hidden, patch = inner.count("hidden_size"), inner.count("patch_size")
    patches = VisionEmbedding(
        in_channels=inner.count("num_channels", 3), patch=(patch, patch), bias=True,
        positions=inner.count("num_patches"),
    )
    joined, width = hidden * fields.count("downsample_factor", 2) ** 2, fields.count("projector_hidden_size", 2560)
    bias = fields.flag("projector_bias", fallback=True)
    return vision_stack(
        hidden, patches, (inner.layers(), encoder_layer(inner)), final_norm=Norm.LAYER,
        projector=((joined, width, bias), (width, text.hidden, bias)),
        projector_norm_dim=joined if fields.flag("projector_use_layernorm", fallback=True) else 0,
        projector_norm=Norm.LAYER,
    )


def muse_tower(fields: Fields, text: Model) -> Stack:
    """Muse Glimmer's: norms before and behind its layers, 2 x 2 patches in one token, three linears without biases."""
    inner = section_of(fields, "vision_config", "muse_glimmer_vision")
    hidden, patch = inner.count("hidden_size"), inner.count("patch_size")
    layer = Layer(
        mixer=_attention(inner, hidden, qkv_bias=True, out_bias=True), norm=Norm.LAYER,
        channel=MLP(width=inner.count("intermediate_size"), gated=False, activation="gelu", bias=True),
    )
    positions = inner.count("pos_emb_height", 32) * inner.count("pos_emb_width", 32)
    patches = VisionEmbedding(
        in_channels=3, patch=(inner.count("patch_temporal", 2), patch, patch), bias=False, positions=positions,
        pre_norm=True,
    )
    joined, width = fields.count("out_hidden_size", 4 * hidden), fields.count("projector_hidden_size", 4096)
    projector = ((joined, width, False), (width, width, False), (width, text.hidden, False))
    return vision_stack(hidden, patches, (inner.layers(), layer), final_norm=Norm.LAYER, projector=projector)


def eva_tower(fields: Fields, *, hidden: int, width: int) -> Stack:
    """EVA2-CLIP with norms behind its parts; 2 x 2 patches become one token, then a gated projection [GLM-4V].

    Args:
        hidden: H of the decoder
        width: feed-forward width of the decoder, which the projection shares
    """
    own, patch = fields.count("hidden_size"), fields.count("patch_size")
    count, heads = fields.count("num_hidden_layers"), fields.count("num_heads")
    inner = fields.count("intermediate_size")
    patches = VisionEmbedding(
        in_channels=fields.count("in_channels", 3), patch=(patch, patch), bias=True,
        positions=fields.count("num_positions"), class_token=True,
    )
    return vision_stack(
        own, patches, (count, _layer(own, heads, inner, placement="output")),
        projector=((4 * own, hidden, True), (hidden, hidden, False), (hidden, width, False), (width, hidden, False)),
        projector_norm_dim=hidden, projector_norm=Norm.LAYER,
        extra=(*linear("projector.gate", width, hidden), vector("boi", hidden), vector("eoi", hidden)),
    )


def qwen_visual(fields: Fields) -> Stack:
    """A ViT and one cross-attention layer whose 256 queries become the image's tokens [Qwen-VL]."""
    own, out, patch = fields.count("width"), fields.count("output_dim"), fields.count("patch_size")
    layer = _layer(own, fields.count("heads"), fields.multiple("mlp_ratio", 4.9231, of=own), placement="pre")
    queries = fields.count("n_queries", 256)
    resampler = (
        Parameter(path="resampler.queries", shape=(queries, out), kind="embedding"),
        Parameter(path="resampler.positions", shape=(queries, out), kind="embedding", trainable=False),
        *linear("resampler.in", 3 * out, out, bias=True), *linear("resampler.out", out, out, bias=True),
        *(weight for name in ("queries", "keys") for weight in norm(f"resampler.norm_{name}", Norm.LAYER, out)),
    )
    patches = VisionEmbedding(in_channels=3, patch=(patch, patch), bias=False, positions=256, pre_norm=True)
    return vision_stack(
        own, patches, (fields.count("layers"), layer), projector=((own, out, False), (out, out, False)),
        projector_norm_dim=out, projector_norm=Norm.LAYER, extra=resampler,
    )


def _layer(hidden: int, heads: int, width: int, *, placement: Literal["pre", "output"]) -> Layer:
    attention = Attention(
        num_heads=heads, num_kv_heads=heads, head_dim=hidden // heads, qkv_bias=True, out_bias=True, rope=False
    )
    mlp = MLP(width=width, gated=False, activation="gelu", bias=True)
    return Layer(mixer=attention, channel=mlp, norm=Norm.LAYER, norm_placement=placement)
