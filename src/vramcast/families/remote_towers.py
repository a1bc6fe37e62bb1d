"""Image encoders of models whose code lies beside their weights: GLM-4V and Qwen-VL.

[GLM-4V] zai-org/glm-4v-9b visual.py `EVA2CLIPModel`, `GLU`
[Qwen-VL] Qwen/Qwen-VL visual.py `VisionTransformer`, `Resampler`
"""

from __future__ import annotations

from typing import Literal

from vramcast.blocks.parameters.layer import linear, norm, vector
from vramcast.domain.model import MLP, Attention, Layer, Norm, Parameter, Stack, VisionEmbedding
from vramcast.families.assemble import vision_stack
from vramcast.families.fields import Fields


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
