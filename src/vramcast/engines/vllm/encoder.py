"""Images while the cache is sized: as many of the largest ones as fill a batch, their encoder, and what it returns.

[profile] vllm-project/vllm vllm/v1/worker/gpu_model_runner.py `profile_run`: the dummy images and the encoder's outputs
stay alive beside the forward of the decoder
[budget] vllm/v1/core/encoder_cache_manager.py `compute_mm_encoder_budget`, vllm/multimodal/encoder_budget.py
`MultiModalBudget._get_max_items`: at least one batch, at least one image
[video] vllm/model_executor/models/qwen2_vl.py `Qwen2VLProcessingInfo.get_num_frames_with_most_features`
[vit] vllm/model_executor/models/qwen2_5_vl.py `Qwen2_5_VisionAttention.forward`, `apply_rotary_pos_emb_vision`
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Final, NamedTuple

from vramcast.domain.model import MLP, Model, Stack
from vramcast.domain.program import Category, Tensor
from vramcast.domain.serving import Version
from vramcast.engines.serving.stages import Stage
from vramcast.engines.vllm.settings import Settings


class LargestImage(NamedTuple):
    """What a family's processor makes of the largest image it takes."""

    patches: int  # that the encoder reads
    merged: int  # patches that become one token of the decoder


LARGEST: Final[dict[str, LargestImage]] = {
    "gemma3": LargestImage(64 * 64, 16),  # 896 pixels, pooled 4 x 4
    "gemma4": LargestImage(280 * 9, 9),  # 280 tokens, pooled 3 x 3
    "mistral3": LargestImage(110 * 110, 4),  # 1,540 pixels
    "llava": LargestImage(24 * 24, 1),  # 336 pixels
    "llama4": LargestImage(17 * 24 * 24, 4),  # sixteen tiles and the whole
    "llava_next": LargestImage(11 * 27 * 27, 1),  # ten tiles and the whole, 384 pixels each
    "qwen2_vl": LargestImage(256 * 256, 4),  # 12,845,056 pixels
    "qwen2_5_vl": LargestImage(256 * 256, 4),
    "qwen3_vl": LargestImage(256 * 256, 4),  # 16,777,216 pixels
    "qwen3_vl_moe": LargestImage(256 * 256, 4),
    "qwen3_5": LargestImage(256 * 256, 4),
    "qwen3_5_moe": LargestImage(256 * 256, 4),
}
"""Family -> its largest image; sizes as in the checkpoints' preprocessor configs [transformers image processors]."""

ROTATING: Final = frozenset(family for family in LARGEST if family.startswith("qwen"))
"""Families whose encoder rotates queries and keys in PyTorch."""

LONG_IMAGES_SINCE: Final[Version] = (0, 7)
"""Before, a start-up with images longer than the context failed, so they were made smaller [qwen2_vl.py]."""

VIDEO: Final = frozenset(("qwen2_vl", "qwen2_5_vl"))
"""Families profiled with the longest video that the context holds: pairs of frames as large as the largest image."""

VIDEO_PAIRS: Final[tuple[tuple[Version, int], ...]] = (((0, 10), 7), ((0, 0), 8))
"""Version -> most pairs of frames [video]."""

HIDDEN_COPIES: Final = 4
"""Tensors of patches x width alive while an encoder's feed-forward block is widest."""

ROTARY_COPIES: Final[tuple[tuple[Version, int], ...]] = (((0, 11), 9), ((0, 0), 16))
"""Version -> tensors of patches x width alive while queries and keys rotate: states and normed states, queries, keys
and values twice over; until 0.10 the rotation was eager and in fp32 where no FlashAttention was at hand [vit]."""


class Images(NamedTuple):
    """The images of one profiled batch."""

    images: int
    patches: int  # of all
    tokens: int  # of all, as the decoder reads them


def images_of(model: Model, settings: Settings) -> Images | None:
    """What the profile feeds the encoder; None for models that do not see, or whose processor is not known."""
    largest = LARGEST.get(model.family)
    if largest is None or vision_tower(model) is None:
        return None
    if settings.options.images == 0:
        return None
    scale = _pairs(settings) if model.family in VIDEO else 1
    patches, tokens = scale * largest.patches, scale * largest.patches // largest.merged
    if settings.version < LONG_IMAGES_SINCE and tokens > settings.context:
        tokens = settings.context
        return Images(1, tokens * largest.merged, tokens)
    budget = max(settings.batched_tokens, tokens)
    count = max(1, min(budget // tokens, settings.max_sequences))
    return Images(count, count * patches, count * tokens)


def _pairs(settings: Settings) -> int:
    """Pairs of frames of the video that is profiled; V0 takes an image."""
    if not settings.v1:
        return 1
    frame = LARGEST["qwen2_vl"].patches // LARGEST["qwen2_vl"].merged
    most = next(pairs for since, pairs in VIDEO_PAIRS if settings.version >= since)
    return max(1, min(most, settings.context // frame))


def vision_tower(model: Model) -> Stack | None:
    """The stack that reads pixels."""
    return next((stack for stack in model.stacks[:-1] if stack.vision is not None and stack.vision.patch), None)


def encoder_tensors(model: Model, settings: Settings, stage: Stage) -> Iterator[Tensor]:
    """What stays alive of the images while the decoder is profiled."""
    images, tower = images_of(model, settings), vision_tower(model)
    if images is None or tower is None or tower.vision is None or not stage.first:
        return
    pixels = prod(tower.vision.patch) * tower.vision.in_channels
    yield _tensor("pixels", images.patches * pixels * settings.width,
                  f"{images.images} images, {images.patches:,} patches x {pixels} x {settings.width} B")
    yield _tensor("outputs", images.tokens * model.hidden * settings.width,
                  f"{images.tokens:,} tokens x {model.hidden:,} x {settings.width} B", Category.ENCODER)


def encoder_layer(model: Model, settings: Settings, stage: Stage, *, tp: int) -> Iterator[Tensor]:
    """The widest moment of the encoder's widest layer."""
    images, tower = images_of(model, settings), vision_tower(model)
    if images is None or tower is None or not stage.first:
        return
    layer = tower.runs[0].layer
    inner = layer.channel.width // tp if isinstance(layer.channel, MLP) else 0
    copies = 3 if isinstance(layer.channel, MLP) and layer.channel.gated else 2
    rotating = next(copies for since, copies in ROTARY_COPIES if settings.version >= since)
    if model.family in ROTATING and rotating * tower.hidden > HIDDEN_COPIES * tower.hidden + copies * inner:
        yield _hidden(rotating, images, tower, settings)
        return
    yield _tensor("encoder.mlp", copies * images.patches * inner * settings.width,
                  f"{copies} x {images.patches:,} patches x {inner:,} x {settings.width} B")
    yield _hidden(HIDDEN_COPIES, images, tower, settings)


def _hidden(copies: int, images: Images, tower: Stack, settings: Settings) -> Tensor:
    return _tensor("encoder.hidden states", copies * images.patches * tower.hidden * settings.width,
                   f"{copies} x {images.patches:,} patches x {tower.hidden:,} x {settings.width} B")


def _tensor(name: str, num_bytes: int, formula: str, category: Category = Category.ACTIVATIONS) -> Tensor:
    return Tensor(
        name=name, num_bytes=num_bytes, category=category, owner="profiled step", formula=formula,
        source="vllm-project/vllm vllm/v1/worker/gpu_model_runner.py `profile_run`",
    )
