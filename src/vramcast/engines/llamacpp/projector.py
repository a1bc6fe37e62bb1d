"""The file of a vision tower and its projector (mmproj): its weights, and the buffers of the largest image's graph.

[load] ggml-org/llama.cpp tools/mtmd/clip.cpp at build 9000: all weights go to the first card, unless
--no-mmproj-offload; `load_hparams` limits the tokens of an image, `warmup` reserves the graph of one of a size per
projector; `clip_image_batch_encode` lets the buffer grow at the first larger image. [batch] From pull requests 24384
and 24775 (June 2026) on, projectors whose graph has a batch dimension encode images or tiles of one prompt together, as
many as have 1024 tokens (--mtmd-batch-max-tokens): counted as so many times the buffer of one. [convert]
convert_hf_to_gguf.py `MmprojModel`, `tensor_force_quant`: what has one dimension or places positions is f32. [cublas]
ggml/src/ggml-cuda/ggml-cuda.cu `ggml_cuda_op_mul_mat_cublas`: products with weights of 16 bits copy what they read and
write to 16 bits.

Weights and buffers are those that builds print, to the last digit (tests/engines/llamacpp/test_deploy.py).
Gemma 4 hears, too: thirty seconds of sound through a conformer, whose attention sees blocks of frames.
Symbols:  N frames behind two halvings   C frames of a block   S frames that a block sees   B blocks   D width of a head

[gemma4a] ggml-org/llama.cpp tools/mtmd/models/gemma4a.cpp, `warmup_audio_size` of clip-model.h. Held against clip.cpp
at build 9000 over a file of zeros: 153.93 MiB.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from math import isqrt, prod
from typing import Final, NamedTuple

from vramcast.blocks.parameters.model import named_parameters
from vramcast.domain.model import Model, Norm, Stack
from vramcast.domain.serving import ServeJob
from vramcast.engines.ggml import ops
from vramcast.engines.ggml.ops import Tensor, fed
from vramcast.engines.ggml.scheduler import Machine, Memory, reserve
from vramcast.engines.llamacpp.projector_graph import (
    GEMMA4_MERGE,
    Clip,
    Image,
    gemma3,
    gemma4,
    hears,
    internvl,
    llava,
    pixtral,
    qwen2vl,
    qwen3vl,
    whole_type,
)
from vramcast.engines.llamacpp.settings import Settings, checked_options
from vramcast.engines.llamacpp.weights import Weight
from vramcast.errors import InvalidSpec, Unsupported
from vramcast.states.ggml import TYPES, row_bytes
from vramcast.units import ceil_div

FRAMES: Final = 3000
"""Of a spectrum: thirty seconds, the longest piece that is encoded at once, and what it starts with."""

BLOCK: Final = 12
SEEN: Final = 24
DISTANCES: Final = 13
"""Frames of a block, frames that it sees, and distances that positions are told by."""

KERNEL: Final = 5
"""Of the convolution over frames."""


def gemma4_audio(clip: Clip) -> Tensor:
    """Two convolutions that halve, conformer layers, two linears."""
    clip.clamps = True
    shapes = {one.path.removeprefix("audio."): one.shape for one in clip.stack.extra}
    bins = shapes["in"][1] // shapes["conv1"][0] * 4
    x = ops.cont(ops.transpose(fed("f32", FRAMES, bins)))
    for name in ("conv0", "conv1"):
        x = _halved(clip, x, shapes[name][0])
    x = ops.cont(ops.permute(x, 1, 2, 0, 3))
    x = clip.linear(ops.reshape(x, x.ne[0] * x.ne[1], x.ne[2]), shapes["in"][0], bias=False)
    heads, layers = x.ne[0] // shapes["layers.0.scale"][0], sum(path.endswith(".scale") for path in shapes)
    positions = fed("f32", x.ne[0], DISTANCES)
    mask = fed("f32", SEEN, BLOCK, ceil_div(x.ne[1], BLOCK))
    for _ in range(layers):
        x = _fed_forward(clip, x, shapes["layers.0.feed0.up"][0])
        x = ops.like("add", x, clip.norm(_attention(clip, clip.norm(x, Norm.RMS), heads, positions, mask), Norm.RMS))
        x = ops.like("add", x, _convolution(clip, clip.norm(x, Norm.RMS)))
        x = clip.norm(_fed_forward(clip, x, shapes["layers.0.feed1.up"][0]), Norm.RMS)
    x = ops.like("rms_norm", clip.linear(x, shapes["out"][0], bias=True))
    return clip.linear(x, shapes["projector"][0], bias=False)


def _halved(clip: Clip, x: Tensor, channels: int) -> Tensor:
    """A convolution of 3 x 3 with a step of two, a norm over channels, ReLU."""
    across, down, before = (x.ne[0] + 1) // 2, (x.ne[1] + 1) // 2, x.ne[2]
    kernel = clip.weight(3, 3, before, channels, dtype="f32")
    columns = ops.sized("im2col", "f32", (9 * before, across, down), kernel, x)
    rows = ops.mul_mat(ops.reshape(columns, 9 * before, across * down), ops.reshape(kernel, 9 * before, channels))
    x = ops.cont(ops.permute(ops.reshape(rows, across, down, 1, channels), 0, 1, 3, 2))
    x = ops.like("mul", ops.like("norm", ops.cont(ops.permute(x, 1, 2, 0, 3))), clip.weight(channels))
    return ops.like("unary", ops.cont(ops.permute(x, 2, 0, 1, 3)))


def _fed_forward(clip: Clip, x: Tensor, width: int) -> Tensor:
    """Half a step: norm, SiLU between two linears, norm."""
    inner = ops.like("unary", clip.linear(clip.norm(x, Norm.RMS), width, bias=False))
    out = clip.norm(clip.linear(inner, x.ne[0], bias=False), Norm.RMS)
    return ops.like("add", x, ops.like("scale", out))


def _attention(clip: Clip, x: Tensor, heads: int, positions: Tensor, mask: Tensor) -> Tensor:
    """Every block sees itself and as many frames before it."""
    hidden, frames = x.ne[0], x.ne[1]
    width, blocks = hidden // heads, ceil_div(frames, BLOCK)
    q, k, v = (ops.reshape(clip.linear(x, hidden, bias=False), width, heads, frames) for _ in range(3))
    q = ops.like("mul", ops.like("scale", q), clip.weight(width))
    q = ops.reshape(ops.sized("pad", "f32", (width, heads, blocks * BLOCK), q), width, heads, BLOCK, blocks)
    q = ops.cont(ops.permute(q, 0, 3, 1, 2))
    k = ops.cont(ops.permute(_windows(ops.like("scale", k), blocks), 0, 3, 1, 2))
    v = ops.cont(ops.permute(_windows(v, blocks), 1, 3, 0, 2))
    scores = ops.mul_mat(k, q)
    far = ops.reshape(ops.mul_mat(clip.weight(hidden, hidden), positions), width, heads, DISTANCES)
    far = ops.cont(ops.permute(far, 0, 2, 1, 3))
    moved = ops.mul_mat(far, ops.reshape(q, width, BLOCK * blocks, heads))
    moved = ops.reshape(moved, DISTANCES, BLOCK, blocks, heads)
    moved = ops.sized("pad", "f32", (SEEN + 1, BLOCK, blocks, heads), moved)
    moved = ops.reshape(moved, (SEEN + 1) * BLOCK, blocks, heads)
    moved = ops.cont(ops.view(moved, BLOCK * SEEN, blocks, heads, steps=moved.nb[1:3]))
    scores = ops.like("add", scores, ops.reshape(moved, SEEN, BLOCK, blocks, heads))
    for op in ("scale", "unary", "scale"):
        scores = ops.like(op, scores)
    weights = ops.like("soft_max", ops.like("add", scores, mask))
    out = ops.cont(ops.permute(ops.mul_mat(v, weights), 0, 2, 3, 1))
    out = ops.cont(out, hidden, prod(out.ne) // hidden)
    return clip.linear(ops.cont(ops.view(out, hidden, frames)), hidden, bias=False)


def _windows(x: Tensor, blocks: int) -> Tensor:
    """Frames that each block sees: (D, heads, S, B), overlapping ones copied."""
    width, heads = x.ne[0], x.ne[1]
    x = ops.sized("pad", "f32", (width, heads, SEEN * blocks), x)
    x = ops.cont(ops.like("roll", x))
    return ops.cont(ops.view(x, width, heads, SEEN, blocks, steps=(x.nb[1], x.nb[2], BLOCK * x.nb[2])))


def _convolution(clip: Clip, x: Tensor) -> Tensor:
    """A gate, a convolution over earlier frames, a norm, SiLU, a linear."""
    hidden, frames = x.ne[0], x.ne[1]
    both = clip.linear(x, 2 * hidden, bias=False)
    half = [ops.view(both, hidden, frames, steps=(both.nb[1],)) for _ in range(2)]
    gate = ops.like("unary", ops.cont(half[0]))
    x = ops.cont(ops.transpose(ops.like("mul", half[1], gate)))
    x = ops.like("roll", ops.sized("pad", "f32", (frames + KERNEL - 1, hidden), x))
    x = ops.sized("ssm_conv", "f32", (hidden, frames), x, clip.weight(KERNEL, hidden, dtype="f32"))
    x = ops.like("mul", ops.like("rms_norm", x), clip.weight(hidden))
    return clip.linear(ops.like("unary", x), hidden, bias=False)


FIRST_BUILD: Final = 6959
"""From it on sizes of images are as here (pull request 17020); flash attention came with 6926 (16837), and with 6936
for heads of 72 (16962)."""


class Kind(NamedTuple):
    """What clip.cpp does with a projector of its own name."""

    graph: Callable[[Clip], Tensor]
    merge: int = 1  # patches per side that become one token
    least: int = 0  # tokens of an image; 0: images have one size
    most: int = 0
    warm: int = 0  # tokens of the image it starts with
    batched: str = ""  # what is encoded together: images of a prompt, or tiles of one [batch]


QWEN: Final = (2, 8, 4096, 46**2)

KINDS: Final[dict[str, Kind]] = {
    "gemma3": Kind(gemma3), "gemma4": Kind(gemma4, GEMMA4_MERGE, 252, 280, 256, "images"),
    "internvl": Kind(internvl, batched="tiles"),
    "llava": Kind(llava), "llava_next": Kind(llava), "mistral3": Kind(pixtral, 2, 8, 1024, 256),
    "qwen2_vl": Kind(qwen2vl, *QWEN), "qwen2_5_vl": Kind(qwen2vl, *QWEN), "qwen3_vl": Kind(qwen3vl, *QWEN),
    "qwen3_vl_moe": Kind(qwen3vl, *QWEN), "qwen3_5": Kind(qwen3vl, *QWEN), "qwen3_5_moe": Kind(qwen3vl, *QWEN),
}
"""Family -> its projector [load]."""

BATCH_BUILD: Final = 9600
"""Of [batch], the first hundred that it can be: build 9564 is of June 7."""

BATCH_TOKENS: Final = 1024

OF_SOUND: Final = re.compile(r"audio\.(?:conv\d|in|layers\.\d+\.conv)")
"""Weights of convolutions over sound, and what reads them, which are f32 [convert]."""

SIXTEEN: Final = ("f16", "bf16")


class Projector(NamedTuple):
    """What a projector adds to the first card, or with --no-mmproj-offload to the host."""

    weights: tuple[Weight, ...]
    card: int  # compute buffer [bytes]
    host: int  # inputs [bytes]
    copies: int  # of 16 bits, of the widest product [bytes]
    image: Image
    start: int  # compute buffer of the image it starts with [bytes]
    largest: int  # of the largest one [bytes]
    sound: int = 0  # of both, what is the graph's for sound [bytes]


def projector_of(job: ServeJob, settings: Settings) -> Projector | None:
    """The projector a job loads; None where its options name none.

    Raises: Unsupported for a build, an engine or a family whose graph is not known
    """
    options = checked_options(job)
    stored = str(options.get("mmproj", "none"))
    towers = [stack for stack in job.model.stacks[:-1] if stack.vision is not None]
    if stored == "none" or (stored == "auto" and not towers):
        return None
    kind = KINDS.get(job.model.family)
    name, family = job.model.name, job.model.family
    if not towers:
        raise Unsupported("mmproj: {} has no tower that sees; leave it out", name)
    if settings.fork or settings.build < FIRST_BUILD:
        raise Unsupported(
            "mmproj: projectors are modelled for llama.cpp from build {} on; --engine-option mmproj=none "
            "(--no-mmproj) leaves them out", FIRST_BUILD
        )
    if kind is None or len(towers) != 1:
        raise Unsupported(
            "mmproj: the projector of {} is not modelled for llama.cpp: {}; --engine-option mmproj=none (--no-mmproj) "
            "leaves it out", name, family
        )
    limits = (int(options.get("image-min-tokens", 0)), int(options.get("image-max-tokens", 0)))
    images = _images(kind, towers[0], limits, job.requests.image_size)
    found = _projector(job.model, towers[0], "f16" if stored == "auto" else stored, images, settings.flash,
                       not settings.has("unpadded mask"), settings.memories)
    if settings.build < BATCH_BUILD or not kind.batched:
        return found
    together = BATCH_TOKENS // (found.image.patches // _merge(kind, towers[0]) ** 2)
    together = max(1, together if kind.batched == "tiles" else min(together, job.requests.images))
    return found._replace(card=max(found.start, together * (found.largest - found.sound) + found.sound),
                          host=together * found.host, copies=together * found.copies)


def _merge(kind: Kind, tower: Stack) -> int:
    """Patches per side that become one token."""
    return isqrt(tower.projector[0][0] // tower.hidden) if kind.batched == "tiles" else kind.merge


def _images(kind: Kind, tower: Stack, limits: tuple[int, int], side: int | None) -> tuple[Image, Image]:
    """The image it starts with, and the largest one: of the side that a question names, or that the projector takes."""
    assert tower.vision is not None
    if not kind.most:
        rows = isqrt(tower.vision.positions)
        return Image(rows, rows), Image(rows, rows)
    least, most = limits[0] or kind.least, limits[1] or kind.most
    if least > most:
        raise InvalidSpec("image-min-tokens={} must not be above image-max-tokens={}", least, most)
    if side is not None:
        most = min(most, max(least, ceil_div(side, tower.vision.patch[-1] * kind.merge) ** 2))
    across = next(one for one in range(isqrt(most), 0, -1) if most % one == 0)
    rows = isqrt(kind.warm) * kind.merge
    return Image(rows, rows), Image(most // across * kind.merge, across * kind.merge)


@lru_cache(maxsize=64)
def _projector(model: Model, tower: Stack, stored: str, images: tuple[Image, Image], flash: bool, pads_mask: bool,
               memories: tuple[Memory, Memory]) -> Projector:
    kind, found = KINDS[model.family], []
    machine = Machine(memories=memories, supports=lambda tensor, card: True, offloads=lambda tensor: False)
    for image in images:
        clip = Clip(tower, image, stored=stored, flash=flash, pads_mask=pads_mask)
        clip.graph.expand(kind.graph(clip))
        copied = _copied_bytes(clip) if stored in SIXTEEN else 0
        found.append((*reserve(clip.graph, machine), copied))
    (start, *_), (largest, *_) = found
    sound = 0
    card, host, copies = (max(sizes) for sizes in zip(*found, strict=True))
    if hears(tower):  # a context of its own
        clip = Clip(tower, images[0], stored=stored, flash=flash, pads_mask=pads_mask)
        clip.graph.expand(gemma4_audio(clip))
        copied = _copied_bytes(clip) if stored in SIXTEEN else 0
        sound, inputs = reserve(clip.graph, machine)
        start, largest, card = start + sound, largest + sound, card + sound
        host, copies = host + inputs, copies + copied
    return Projector(tuple(_weights(model, tower, stored)), card, host, copies, images[1], start, largest, sound)


def _copied_bytes(clip: Clip) -> int:
    """Of the widest product [cublas]."""
    return max(
        2 * (x.elements * (x.dtype == "f32") + node.elements)
        for node in clip.graph.nodes if node.op == "mul_mat"
        for weight, x in [node.src] if (weight.root or weight).weight or weight.dtype in SIXTEEN
    )


def _weights(model: Model, tower: Stack, stored: str) -> Iterator[Weight]:
    """The tensors of the file [convert]."""
    older = KINDS[model.family].graph is llava  # a file of the converter before MmprojModel
    layers = tower.num_layers - older
    for owned in named_parameters(model):
        owner, parameter, repeats = owned.owner, owned.parameter, owned.repeats
        if owner.partition(".layers.")[0] != tower.name:
            continue
        shape, path = parameter.shape, parameter.path
        whole = path.startswith("vision.patch") or (path == "projector.0" and model.family == "mistral3")
        first = model.family == "gemma3" and path == "vision.patch"
        if older and path.startswith("final_norm"):
            continue
        if len(shape) == 1 or first or ("positions" in path and not older) or OF_SOUND.fullmatch(path):
            dtype = "f32"
        else:
            dtype = whole_type(stored) if whole else "f16" if shape[-1] % TYPES[stored].block else stored
        size = prod(shape[:-1]) * row_bytes(dtype, shape[-1])
        yield from (Weight(f"{path}.{index}", dtype, shape, size) for index in range(min(repeats, layers)))
    if KINDS[model.family].graph is pixtral:
        yield Weight("token_embd.img_break", "f32", (model.hidden,), 4 * model.hidden)
