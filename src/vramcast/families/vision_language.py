"""Language models that see: an image encoder in front of a decoder.

Facts per family: transformers v5.23.0, src/transformers/models/<model_type>/modeling_*.py.

Llama 3.2 Vision: a decoder with cross-attention layers, and an image encoder with tiles and global layers.

Source: transformers v5.23.0, src/transformers/models/mllama/modeling_mllama.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Literal

from msgspec.structs import replace

from vramcast.blocks.parameters.layer import linear, norm, prefixed, vector
from vramcast.domain.model import MLP, Attention, Layer, Model, Norm, Parameter, Stack, VisionEmbedding
from vramcast.errors import InvalidSpec
from vramcast.families.assemble import (
    Traits,
    attention_of,
    decoder,
    decoder_layers,
    decoder_stack,
    model_of,
    vision_stack,
)
from vramcast.families.fields import Fields, defaults_of
from vramcast.families.gemma4 import gemma4_text, gemma4_tower, gemma4_unified
from vramcast.families.hybrids import BUILDERS as HYBRIDS
from vramcast.families.llama import BUILDERS as DENSE
from vramcast.families.moe import BUILDERS as SPARSE
from vramcast.families.moe import corrected
from vramcast.families.sparse_attention import BUILDERS as LONG
from vramcast.families.vision import (
    encoder_layer,
    glm_tower,
    idefics_tower,
    intern_tower,
    kimi_tower,
    lfm_tower,
    muse_tower,
    patch_embedding,
    patches_of,
    section_of,
    step_tower,
    tower_of,
)

IMAGE_TOKENS: Final = 8
"""Rows the embedding has beyond `vocab_size`; the output projection lacks them."""

GATES: Final = (vector("cross_attention_gate", 1), vector("cross_mlp_gate", 1))


def mllama_text(fields: Fields) -> Model:
    """LLaMA whose `cross_attention_layers` read the image instead of the text."""
    hidden = fields.count("hidden_size")
    crossed = fields.naturals("cross_attention_layers") or ()
    layers = list(decoder_layers(fields, Traits()))
    for index in crossed:
        if index >= len(layers):
            raise fields.wrong("cross_attention_layers", "must name layers below num_hidden_layers={}", len(layers))
        attention = attention_of(fields, hidden, qk_norm="head", rope=False, source_width=hidden)
        layers[index] = replace(layers[index], mixer=attention, extra=GATES)
    rows = Parameter(path="embedding.image_tokens", shape=(IMAGE_TOKENS, hidden), kind="embedding")
    return model_of(fields, stacks=(decoder_stack(fields, layers, extra=(rows,)),))


def _layer(fields: Fields, hidden: int, *, gated: bool) -> Layer:
    heads = fields.count("attention_heads")
    width = fields.share("hidden_size", hidden, "attention_heads", heads)
    inner, activation = fields.count("intermediate_size"), fields.activation("hidden_act", fallback="gelu")
    return Layer(
        mixer=Attention(num_heads=heads, num_kv_heads=heads, head_dim=width, rope=False), norm=Norm.LAYER,
        channel=MLP(width=inner, gated=False, activation=activation, bias=True),
        extra=(vector("attention_gate", 1), vector("mlp_gate", 1)) if gated else (),
    )


def mllama_tower(fields: Fields, text: Model) -> Stack:
    """ViT over up to four tiles, with embeddings per aspect ratio, then gated global layers."""
    inner = section_of(fields, "vision_config", "mllama_vision_model")
    hidden, tiles = inner.count("hidden_size"), inner.count("max_num_tiles", 4)
    ratios = inner.get("supported_aspect_ratios")
    rows = (len(ratios) if isinstance(ratios, list | tuple) else 8) + 1
    positions = patches_of(inner) + 1
    tables = tuple(
        part
        for gate, table, width in (
            ("position_gate", "tile_positions", positions * hidden), ("pre_tile_gate", "pre_tile", hidden),
            ("post_tile_gate", "post_tile", hidden),
        )
        for part in (
            Parameter(path=f"vision.{gate}", shape=(1,), kind="scalar"),
            Parameter(path=f"vision.{table}", shape=(rows, tiles * width), kind="embedding"),
        )
    )
    local = (inner.layers(), _layer(inner, hidden, gated=False))
    everywhere = (inner.layers("num_global_layers", 8), _layer(inner, hidden, gated=True))
    return vision_stack(
        hidden, patch_embedding(inner, bias=False, class_token=True, pre_norm=True), local, everywhere,
        final_norm=Norm.LAYER, extra=tables,
        projector=((inner.count("vision_output_dim", 7680), text.hidden, True),),
    )


QWEN_MROPE: Final = Traits(qkv_bias=True, window="qwen")

OWN_TEXT: Final[dict[str, Callable[[Fields], Model]]] = {
    **dict.fromkeys(("qwen2_vl_text", "qwen2_5_vl_text"), partial(decoder, traits=QWEN_MROPE)),
    "qwen3_vl_text": DENSE["qwen3"], "qwen3_vl_moe_text": SPARSE["qwen3_moe"],
    "mllama_text_model": mllama_text,
    **dict.fromkeys(("gemma4_text", "gemma4_unified_text"), gemma4_text),
    "muse_glimmer_text": partial(decoder, traits=Traits(
        qkv_bias="attention_bias", qk_norm="head", qk_norm_kind=Norm.PLAIN, post_norms=True, window=4, rope_every=4,
        output_gate=True,
    )),
    "glm4v_text": partial(decoder, traits=Traits(qkv_bias=True, rope_fraction=0.5, post_norms=True)),
    "glm4v_moe_text": partial(decoder, traits=Traits(qkv_bias="attention_bias", rope_fraction=0.5, channel=corrected)),
}
TEXT: Final = {**DENSE, **SPARSE, **HYBRIDS, **LONG, **OWN_TEXT}
"""`model_type` of a text section -> builder."""

TowerOf = Callable[[Fields, Model], Stack]


def see(fields: Fields, *, text: str, tower: TowerOf) -> Model:
    """The decoder of `text_config` (or of the config itself, as older files have it) behind an image encoder."""
    inner = fields.section("text_config")
    family = text
    if inner is None:
        inner = fields.over({"model_type": text})
    else:
        inner = inner.renamed()
        family = inner.word("model_type", text)
        if family not in TEXT:
            raise InvalidSpec("text model type {!r} of {} has no builder", family, fields.name)
        inner = inner.over({"architectures": fields.words("architectures")} if fields.states("architectures") else {})
        if fields.states("tie_word_embeddings"):
            inner = inner.over({"tie_word_embeddings": fields.flag("tie_word_embeddings")})
        if fields.states("quantization_config"):
            inner = inner.over({"quantization_config": fields.get("quantization_config")})
        if fields.states("torch_dtype") and not inner.states("torch_dtype"):
            inner = inner.over({"torch_dtype": fields.word("torch_dtype")})
    model = TEXT[family](inner.behind(defaults_of(family)))
    return replace(
        model, name=fields.name, family=fields.word("model_type", text), stacks=(tower(fields, model), *model.stacks)
    )


def qwen_tower(fields: Fields, text: Model, *, generation: Literal[2, 25, 3, 35]) -> Stack:
    """Qwen's encoder: three-dimensional patches, 2 x 2 merging; deepstack feeds inner layers from generation 3 on."""
    family = {2: "qwen2_vl_vision", 25: "qwen2_5_vl_vision", 3: "qwen3_vl_vision", 35: "qwen3_5_vision"}[generation]
    inner = section_of(fields, "vision_config", family)
    hidden = inner.count("embed_dim" if generation == 2 else "hidden_size")
    heads = inner.count("num_attention_heads")
    width = inner.multiple("mlp_ratio", 4, of=hidden) if generation == 2 else inner.count("intermediate_size")
    kind = Norm.RMS if generation == 25 else Norm.LAYER
    activation = {2: "quick_gelu", 25: "silu"}.get(generation, "gelu_pytorch_tanh")
    head_dim = inner.share("hidden_size", hidden, "num_heads", heads)
    activation = inner.activation("hidden_act", fallback=activation)
    layer = Layer(
        mixer=Attention(num_heads=heads, num_kv_heads=heads, head_dim=head_dim, qkv_bias=True, out_bias=True),
        channel=MLP(width=width, gated=generation == 25, bias=True, activation=activation), norm=kind,
    )
    merge = inner.count("spatial_merge_size", 2) ** 2
    out = inner.count("out_hidden_size", text.hidden) if generation != 2 else inner.count("hidden_size", text.hidden)
    deep = inner.naturals("deepstack_visual_indexes") or ()
    layers = (inner.layers("depth"), layer)
    patches = VisionEmbedding(
        in_channels=inner.count("in_chans", inner.count("in_channels", 3)),
        patch=(inner.count("temporal_patch_size", 2), *(inner.count("patch_size"),) * 2),
        bias=generation >= 3 and generation != 25, positions=inner.natural("num_position_embeddings", 0),
    )
    joined = hidden * merge
    return vision_stack(
        hidden, patches, layers, projector=((joined, joined, True), (joined, out, True)), projector_norm_dim=hidden,
        projector_norm=kind, extra=_deepstack(len(deep) if generation == 3 else 0, joined, out),
    )


def _deepstack(count: int, width: int, out: int) -> tuple[Parameter, ...]:
    ways = (*linear("in", width, width, bias=True), *linear("out", out, width, bias=True))
    one = (*norm("norm", Norm.LAYER, width), *ways)
    return tuple(parameter for index in range(count) for parameter in prefixed(f"deepstack.{index}", one))


def gemma3_tower(fields: Fields, text: Model) -> Stack:
    """SigLIP without its pooling head, one projection behind a norm."""
    tower = tower_of(fields, "siglip_vision_model")
    return replace(
        tower, projector=((tower.hidden, text.hidden, False),), projector_norm_dim=tower.hidden,
        projector_positions=fields.count("mm_tokens_per_image", 256),
    )


def llava_tower(fields: Fields, text: Model) -> Stack:
    """CLIP, or Pixtral's encoder without its merging, and two linears."""
    inner = fields.section("vision_config")
    pixtral = inner is not None and inner.word("model_type", "") == "pixtral"
    tower = pixtral_tower(fields, text) if pixtral else tower_of(fields, "clip_vision_model")
    bias = fields.flag("multimodal_projector_bias", fallback=True)
    tower = replace(tower, projector_norm_dim=0)
    return replace(tower, projector=((tower.hidden, text.hidden, bias), (text.hidden, text.hidden, bias)))


def behind_tower(text: Model, tower: Model) -> Model:
    """A language model behind another network's image encoder and two linears, as LLaVA puts them together.

    Raises: InvalidSpec for a network without an image encoder, or a second one before a model that has its own
    """
    stack = tower.stacks[0]
    if stack.vision is None:
        raise InvalidSpec("{} has no image encoder; name one that has, clip-vit-large-patch14-336", tower.name)
    if len(text.stacks) > 1:
        raise InvalidSpec("{} has a tower of its own; leave --vision-tower out", text.name)
    projector = ((stack.hidden, text.hidden, True), (text.hidden, text.hidden, True))
    own = tuple(one for one in stack.extra if not one.path.startswith("projection"))  # to a space shared with texts
    seen = replace(stack, name="vision", projector=projector, projector_norm_dim=0, extra=own)
    return replace(text, name=f"{text.name} behind {tower.name}", stacks=(seen, *text.stacks))


def llava_next_tower(fields: Fields, text: Model) -> Stack:
    """Tiles through CLIP or SigLIP, states of one or several layers side by side, two linears, a mark for line ends."""
    tower = tower_of(fields, "clip_vision_model")
    layers = fields.get("vision_feature_layer")
    width = tower.hidden * (len(layers) if isinstance(layers, list) and 0 < len(layers) <= tower.num_layers else 1)
    bias = fields.flag("multimodal_projector_bias", fallback=True)
    projector = ((width, text.hidden, bias), (text.hidden, text.hidden, bias))
    return replace(tower, projector=projector, extra=(*tower.extra, vector("image_newline", text.hidden)))


def pixtral_tower(fields: Fields, text: Model) -> Stack:
    """Mistral's encoder: a small LLaMA over patches with rotary positions, then 2 x 2 merging and two linears."""
    inner = section_of(fields, "vision_config", "pixtral")
    hidden, patch = inner.count("hidden_size"), inner.count("patch_size")
    bias = fields.flag("multimodal_projector_bias")
    merge = fields.count("spatial_merge_size", 2) ** 2
    activation = inner.activation("hidden_act", fallback="gelu")
    mlp = MLP(width=inner.count("intermediate_size"), gated=True, activation=activation)
    layers = (inner.layers(), Layer(mixer=attention_of(inner, hidden), channel=mlp))
    patches = VisionEmbedding(in_channels=inner.count("num_channels", 3), patch=(patch, patch), bias=False)
    projector = ((hidden * merge, hidden, False), (hidden, text.hidden, bias), (text.hidden, text.hidden, bias))
    return vision_stack(
        hidden, patches, layers, embedding_norm=Norm.RMS, projector=projector, projector_norm_dim=hidden
    )


def llama4_tower(fields: Fields, text: Model) -> Stack:
    """Llama 4's encoder: unfolded patches, pixel shuffle, an adapter and one projection, none with a bias."""
    inner = section_of(fields, "vision_config", "llama4_vision_model")
    hidden, joint = inner.count("hidden_size"), inner.count("projector_output_dim", 4096)
    adapter = (
        (inner.count("intermediate_size"), inner.count("projector_input_dim", 4096), False),
        (joint, joint, False),
        (inner.count("vision_output_dim"), text.hidden, False),
    )
    layers = (inner.layers(), encoder_layer(inner))
    patches = patch_embedding(inner, bias=False, class_token=True, pre_norm=True)
    return vision_stack(hidden, patches, layers, final_norm=Norm.LAYER, projector=adapter)


def step3p7(fields: Fields) -> Model:
    """Step 3.7; a config without a vision section is its decoder."""
    return see(fields, text="step3p5", tower=step_tower) if fields.has("vision_config") else LONG["step3p5"](fields)


def internvl_chat(fields: Fields) -> Model:
    """InternVL as its own repositories have it: the decoder stands in `llm_config`."""
    return see(fields.over({"text_config": fields.get("llm_config")}), text="qwen2", tower=intern_tower)


BUILDERS: Final[dict[str, Callable[[Fields], Model]]] = {
    **OWN_TEXT,
    "gemma4": partial(see, text="gemma4_text", tower=gemma4_tower),
    "gemma4_unified": partial(see, text="gemma4_unified_text", tower=gemma4_unified),
    "qwen2_vl": partial(see, text="qwen2_vl_text", tower=partial(qwen_tower, generation=2)),
    "qwen2_5_vl": partial(see, text="qwen2_5_vl_text", tower=partial(qwen_tower, generation=25)),
    "qwen3_vl": partial(see, text="qwen3_vl_text", tower=partial(qwen_tower, generation=3)),
    "qwen3_vl_moe": partial(see, text="qwen3_vl_moe_text", tower=partial(qwen_tower, generation=3)),
    "qwen3_5": partial(see, text="qwen3_5_text", tower=partial(qwen_tower, generation=35)),
    "qwen3_5_moe": partial(see, text="qwen3_5_moe_text", tower=partial(qwen_tower, generation=35)),
    "gemma3": partial(see, text="gemma3_text", tower=gemma3_tower),
    "llava": partial(see, text="llama", tower=llava_tower),
    "llava_next": partial(see, text="llama", tower=llava_next_tower),
    "mistral3": partial(see, text="mistral", tower=pixtral_tower),
    "llama4": partial(see, text="llama4_text", tower=llama4_tower),
    **dict.fromkeys(("glm4v", "glm46v"), partial(see, text="glm4v_text", tower=glm_tower)),
    "glm4v_moe": partial(see, text="glm4v_moe_text", tower=glm_tower),
    **dict.fromkeys(("kimi_k25", "kimi_vl"), partial(see, text="deepseek_v3", tower=kimi_tower)),
    "step3p7": step3p7,
    **dict.fromkeys(("idefics3", "smolvlm"), partial(see, text="llama", tower=idefics_tower)),
    "internvl_chat": internvl_chat,
    "lfm2_vl": partial(see, text="lfm2", tower=lfm_tower),
    "muse_glimmer": partial(see, text="muse_glimmer_text", tower=muse_tower),
    "internvl": partial(see, text="qwen2", tower=intern_tower),
    "mllama": partial(see, text="mllama_text_model", tower=mllama_tower),
}
