"""The images that vLLM feeds its encoder when it profiles, before it sizes the cache.

Sizes are those of a family's largest image as vllm/model_executor/models/NAME.py asks for it, read in the wheels 0.6.6,
0.8.5, 0.9.1, 0.10.2, 0.12, 0.14, 0.16, 0.17, 0.19 and 0.33: `get_image_size_with_most_features`,
`get_num_frames_with_most_features` or `get_dummy_mm_data` of its processing info, and what the image processor of
transformers (5.23.0) or of the checkpoint makes of it.

[budget] vllm/v1/core/encoder_cache_manager.py `compute_mm_encoder_budget`, vllm/multimodal/encoder_budget.py
`MultiModalBudget._get_max_items`: at least one batch, at least one image; `get_modality_with_max_tokens`: images or a
video, whichever becomes more tokens
[video] vllm/model_executor/models/qwen2_vl.py `Qwen2VLProcessingInfo.get_num_frames_with_most_features`; glm4_1v.py,
internvl.py, interns1.py, muse_glimmer.py the same. GLM's processor makes frames smaller until a video has 30,000 tokens
[batch] vllm/v1/worker/gpu_model_runner.py `_get_mm_dummy_batch` of 0.10.2: a video as long as a batch; since 0.12 as
long as the context (vllm/multimodal/registry.py)
[vit] vllm/model_executor/models/qwen2_5_vl.py `Qwen2_5_VisionAttention.forward`, `apply_rotary_pos_emb_vision`, which
glm4_1v.py has, too
[moonvit] vllm/model_executor/models/moonvit.py `apply_rope`
[mllama] vllm/model_executor/models/mllama.py `MllamaVisionModel.forward`, vllm/worker/enc_dec_model_runner.py
`profile_run`: every sequence of the batch has an image of all tiles, each padded to a multiple of 8 positions
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from vramcast.blocks.lengths import image_positions, tiles_of
from vramcast.domain.model import MLP, Attention, Model, Stack
from vramcast.domain.program import Category, Tensor
from vramcast.domain.serving import Version
from vramcast.engines.serving.stages import Stage
from vramcast.engines.vllm.settings import Settings
from vramcast.errors import Note
from vramcast.units import FP32, ceil_div

RUNNER: Final = "vllm-project/vllm vllm/v1/worker/gpu_model_runner.py `profile_run`"


class LargestImage(Struct, frozen=True):
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
    # 28 * 28 * 2 * 6,144 pixels in two frames: 2,184 x 2,184
    **dict.fromkeys(("glm4v", "glm4v_moe"), LargestImage(156 * 156, 4)),
    "chatglm": LargestImage(80 * 80, 4),  # GLM-4V: 1,120 pixels, a convolution over 2 x 2
    "kimi_vl": LargestImage(66 * 66, 4),  # 1,024 pixels, made smaller to 4,096 patches, padded to even ones
    "kimi_k25": LargestImage(130 * 130, 4),  # 3,000 pixels, to 16,384 patches; four frames become fewer tokens
    "lfm2_vl": LargestImage(32 * 32, 4),  # 256 tokens: 512 pixels, one tile
    "step3p7": LargestImage(52 * 52 + 36 * 36 * 36, 16),  # 3,024 pixels: the whole in 728, 36 tiles of 504
    "qwen": LargestImage(32 * 32, 4),  # Qwen-VL: always 256 tokens
    "muse_glimmer": LargestImage(128 * 128, 4),  # 4,096 tokens
}
"""Family -> its largest image; sizes as in the checkpoints' preprocessor configs [transformers image processors]."""

SMALLER: Final[dict[str, tuple[Version, LargestImage]]] = dict.fromkeys(
    ("glm4v", "glm4v_moe"), ((0, 17), LargestImage(122 * 122, 4))
)
"""Family -> a version and the largest image before it: as a frame of sixteen, 1,708 x 1,708 [glm4_1v.py]."""

TILES: Final = {
    "internvl": 13, "internvl_chat": 13,  # max_dynamic_patch, max_patches of GotOcr2: twelve, and the whole
    "idefics3": 17, "smolvlm": 17,  # `size` is four times `max_image_size`: sixteen, and the whole
}
"""Family -> tiles of its largest image, each as large as its encoder's table of positions."""


class Video(Struct, frozen=True):
    """The longest video that the context holds."""

    step: int  # tokens of a frame, or of the frames that are read together
    most: int  # tokens of all
    beside: int = 0  # tokens of the largest image, which its length leaves room for where items are counted
    since: Version = (0,)
    whole_since: Version = (0,)  # before, what is profiled is as long as a batch [batch]


WHOLE: Final[Version] = (0, 12)

VIDEOS: Final[dict[str, tuple[Video, ...]]] = {
    # pairs of frames as large as the largest image
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl"), (Video(16384, 7 * 16384, since=(0, 10)), Video(16384, 8 * 16384))),
    **dict.fromkeys(("glm4v", "glm4v_moe"), (
        Video(6084, 30_000, 6084, since=(0, 17)), Video(3721, 30_000, 5832, whole_since=WHOLE),
    )),
    **dict.fromkeys(("internvl", "internvl_chat"), (
        Video(256, 1 << 40, 13 * 256, since=(0, 9, 1), whole_since=WHOLE),
    )),
    "muse_glimmer": (Video(144, 48 * 144),),
}
"""Family -> its videos, the newest version's first [video]."""

LONG_IMAGES_SINCE: Final[Version] = (0, 7)
"""Before, a start-up with images longer than the context failed, so they were made smaller [qwen2_vl.py]."""

ENCODER_COPIES: Final = 4
"""Tensors of patches x width alive while an encoder's feed-forward block is widest."""

ROTARY_COPIES: Final[tuple[tuple[Version, int], ...]] = (((0, 11), 9), ((0, 0), 16))
"""Version -> tensors of patches x width alive while queries and keys rotate: states and normed states, queries, keys
and values twice over; until 0.10 the rotation was eager and in fp32 where no FlashAttention was at hand [vit]."""

ROTATING: Final = ("qwen2_", "qwen3_", "glm4v")
"""Beginnings of the families whose encoder rotates queries and keys in PyTorch."""

COMPLEX: Final = ("kimi_vl", "kimi_k25")
COMPLEX_COPIES: Final = 14
"""As ROTARY_COPIES: states, normed states, queries, keys and values; queries and keys in fp32, their complex products
in fp32, one of them in 16 bits again [moonvit]."""

CROSSED: Final = "mllama"
"""The family whose decoder reads the encoder's states in layers of their own [mllama]."""

STACKED: Final = 5
"""`intermediate_layers_indices`: states of inner layers that Llama 3.2's encoder returns beside its last, stacked."""

PADDED_TO: Final = 8
"""Positions of a tile are padded to a multiple of this [mllama]."""

CAST_SINCE: Final[Version] = (0, 9)
"""From then on pixels have the network's dtype when they come to the card, before fp32 [vllm/inputs/registry.py]."""


class Images(Struct, frozen=True):
    """The images of one profiled batch."""

    images: int
    patches: int  # of all
    tokens: int  # of all, as the decoder reads them


def images_of(model: Model, settings: Settings) -> Images | None:
    """What the profile feeds the encoder; None for models that do not see, or whose processor is not known."""
    tower = vision_tower(model)
    if tower is None:
        return None
    if model.family == CROSSED:
        return _of_every_sequence(tower, settings)
    largest = _largest(model, tower, settings)
    if largest is None:
        return None
    items = [(tokens := largest.patches // largest.merged, tokens)] if settings.options.images != 0 else []
    items += _video(model, settings)
    if not items:
        return None
    counted, tokens = max(items)
    if settings.version < LONG_IMAGES_SINCE and tokens > settings.context:
        tokens = settings.context
        return Images(1, tokens * largest.merged, tokens)
    budget = max(settings.batched_tokens, counted)
    count = max(1, min(budget // counted, settings.max_sequences))
    return Images(count, count * tokens * largest.merged, count * tokens)


def _largest(model: Model, tower: Stack, settings: Settings) -> LargestImage | None:
    if model.family in TILES and tower.vision is not None:
        patches = image_positions(tower, None) - int(tower.vision.class_token)
        return LargestImage(TILES[model.family] * patches, tower.projector[0][0] // tower.hidden)
    before, smaller = SMALLER.get(model.family, ((0,), None))
    return smaller if settings.version < before else LARGEST.get(model.family)


def _video(model: Model, settings: Settings) -> Iterator[tuple[int, int]]:
    """Tokens that a video counts as, and those of the one that is profiled; V0 takes an image of it."""
    video = next((video for video in VIDEOS.get(model.family, ()) if settings.version >= video.since), None)
    if video is None or settings.options.videos == 0:
        return
    if not settings.v1:
        yield video.step, video.step
        return
    length = settings.context if settings.version >= video.whole_since else settings.batched_tokens
    yield _frames(video, settings.context - video.beside), _frames(video, length)


def _frames(video: Video, length: int) -> int:
    return max(video.step, min(video.most, length // video.step * video.step))


def _of_every_sequence(tower: Stack, settings: Settings) -> Images | None:
    """Llama 3.2 Vision's: as many images as sequences, whatever the batch's tokens [mllama]."""
    if settings.options.images == 0:
        return None
    tiles, positions = tiles_of(tower), image_positions(tower, None)
    padded = ceil_div(positions, PADDED_TO) * PADDED_TO
    count = settings.max_sequences
    return Images(count, count * tiles * padded, count * tiles * positions)


def unknown_images(model: Model, settings: Settings) -> Iterator[str]:
    """What is to be said of a network that sees and whose largest image is not known."""
    if vision_tower(model) is not None and model.family not in KNOWN_IMAGES and settings.options.images != 0:
        yield Note(
            "{} reads images, and how large vLLM's largest is here is not known: what its encoder takes when vLLM "
            "starts is not counted and makes the cache smaller, or the start fail; --engine-option images=0 and "
            "videos=0, vLLM's --limit-mm-per-prompt, leave images out", model.name
        )


KNOWN_IMAGES: Final = frozenset((*LARGEST, *TILES, CROSSED))


def vision_tower(model: Model) -> Stack | None:
    """The stack that reads pixels."""
    return next((stack for stack in model.stacks[:-1] if stack.vision is not None and stack.vision.patch), None)


def encoder_tensors(model: Model, settings: Settings, stage: Stage) -> Iterator[Tensor]:
    """What stays alive of the images while the decoder is profiled."""
    images, tower = images_of(model, settings), vision_tower(model)
    if images is None or tower is None or tower.vision is None or not stage.first:
        return
    pixels = prod(tower.vision.patch) * tower.vision.in_channels
    width = FP32 if model.family == CROSSED and settings.version < CAST_SINCE else settings.width
    yield step_tensor("pixels", images.patches * pixels * width,
                      Note("{} images, {:,} patches x {} x {} B", images.images, images.patches, pixels, width))
    if model.family != CROSSED:
        yield _outputs(model, settings, images)


def _outputs(model: Model, settings: Settings, images: Images) -> Tensor:
    return step_tensor("outputs", images.tokens * model.hidden * settings.width,
                       Note("{:,} tokens x {:,} x {} B", images.tokens, model.hidden, settings.width), Category.ENCODER)


def encoder_moments(model: Model, settings: Settings, stage: Stage, *, tp: int) -> Iterator[Iterator[Tensor]]:
    """The widest moments of the encoder, one after the other."""
    images, tower = images_of(model, settings), vision_tower(model)
    if images is None or tower is None or not stage.first:
        return
    if model.family != CROSSED:
        yield _layer(model, settings, images, tower, tp=tp)
        return
    for moment in ("mask", "layer", "joined"):
        yield _crossed(settings, images, tower, tp=tp, moment=moment)
    yield _crossed_keys(model, settings, images, tp=tp)


def _layer(model: Model, settings: Settings, images: Images, tower: Stack, *, tp: int) -> Iterator[Tensor]:
    """The encoder's widest layer, of which every rank has a part, or its share of the images
    [vllm/model_executor/models/vision.py `run_dp_sharded_vision_model`]."""
    if settings.options.mm_encoder_tp_mode == "data":
        share = ceil_div(images.images, tp)
        images, tp = replace(images, images=share, patches=images.patches // images.images * share), 1
    copies, inner = _inner(tower, tp)
    rotating = _rotating(model, settings)
    if rotating * tower.hidden > ENCODER_COPIES * tower.hidden + copies * inner:
        yield _hidden(rotating, images, tower, settings)
        return
    yield step_tensor("encoder.mlp", copies * images.patches * inner * settings.width,
                      Note("{} x {:,} patches x {:,} x {} B", copies, images.patches, inner, settings.width))
    yield _hidden(ENCODER_COPIES, images, tower, settings)


def _inner(tower: Stack, tp: int) -> tuple[int, int]:
    """Tensors that a feed-forward block makes, and their width on a rank."""
    channel = tower.runs[0].layer.channel
    return (3 if isinstance(channel, MLP) and channel.gated else 2,
            channel.width // tp if isinstance(channel, MLP) else 0)


def _rotating(model: Model, settings: Settings) -> int:
    if model.family in COMPLEX:
        return COMPLEX_COPIES
    if not model.family.startswith(ROTATING):
        return 0
    return next(copies for since, copies in ROTARY_COPIES if settings.version >= since)


def _crossed(settings: Settings, images: Images, tower: Stack, *, tp: int, moment: str) -> Iterator[Tensor]:
    """Llama 3.2 Vision's encoder: its mask is multiplied out and scaled; the global layers run beside the states of
    inner layers and their stack; both are joined with the last states [mllama]."""
    positions, width = images.patches // images.images, settings.width
    masks = 2 if moment == "mask" else 1
    yield step_tensor("encoder.mask", masks * images.images * positions**2 * width,
                      f"{masks} x {images.images} images x {positions:,} x {positions:,} x {width} B")
    if moment == "mask":
        yield _hidden(1, images, tower, settings)
        return
    yield _hidden(2 * STACKED + 1, images, tower, settings, "inner states")
    if moment == "layer":
        copies, inner = _inner(tower, tp)
        yield step_tensor("encoder.mlp", copies * images.patches * inner * width,
                          Note("{} x {:,} patches x {:,} x {} B", copies, images.patches, inner, width))
        yield _hidden(ENCODER_COPIES, images, tower, settings)
        return
    joined = (STACKED + 1) * tower.hidden
    yield _hidden(1, images, tower, settings)
    yield step_tensor("encoder.joined states", images.tokens * joined * width,
                      Note("{:,} tokens x {:,} x {} B", images.tokens, joined, width))


def _crossed_keys(model: Model, settings: Settings, images: Images, *, tp: int) -> Iterator[Tensor]:
    """What a layer that reads the encoder's outputs makes of them: queries, which are not used, keys and values in one;
    keys in fp32 and their squares for the norm [mllama]."""
    mixer = next(layer.mixer for layer in model.main.layers if isinstance(layer.mixer, Attention) and (
        layer.mixer.source_width))
    keys = mixer.num_kv_heads * mixer.head_dim // tp
    yield _outputs(model, settings, images)
    all_three = mixer.num_heads * mixer.head_dim // tp + 2 * keys
    yield step_tensor("cross-attention.qkv", images.tokens * all_three * settings.width,
                      Note("{:,} tokens x {:,} x {} B", images.tokens, all_three, settings.width))
    yield step_tensor("cross-attention.keys in fp32", 2 * images.tokens * keys * FP32,
                      Note("2 x {:,} tokens x {:,} x {} B", images.tokens, keys, FP32))


def _hidden(copies: int, images: Images, tower: Stack, settings: Settings, name: str = "hidden states") -> Tensor:
    return step_tensor(f"encoder.{name}", copies * images.patches * tower.hidden * settings.width,
                       Note("{} x {:,} patches x {:,} x {} B", copies, images.patches, tower.hidden, settings.width))


def step_tensor(
    name: str, num_bytes: int, formula: str = "", category: Category = Category.ACTIVATIONS, source: str = RUNNER
) -> Tensor:
    """A tensor of the profiled step."""
    return Tensor(
        name=name, num_bytes=num_bytes, category=category, owner="profiled step", formula=formula, source=source
    )
