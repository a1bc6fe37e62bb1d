"""How long the samples of a model are where nobody says, and how long they can be.

[ViT] transformers models/vit/modeling_vit.py `ViTPatchEmbeddings`: (image / patch)^2 positions and a class token
[Whisper] models/whisper/modeling_whisper.py `WhisperEncoder.forward`: 3,000 frames, halved by the second convolution
[Mllama] models/mllama/image_processing_mllama.py `pad_batches_and_tiles`: up to max_image_tiles, whatever the image
[RoBERTa] models/roberta/modeling_roberta.py `create_position_ids_from_input_ids`, [OPT] models/opt/modeling_opt.py
`OPTLearnedPositionalEmbedding`: the first two rows of the table stand for no position
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from vramcast.domain.job import Workload
from vramcast.domain.model import Model, Stack
from vramcast.errors import InvalidSpec, Note

USUAL: Final = 4096
"""Positions of a sample where neither question nor model names any [tokens]."""

RESERVED: Final = {"camembert": 2, "opt": 2, "roberta": 2, "xlm-roberta": 2}
"""Family -> rows of its table of positions that stand for none [RoBERTa], [OPT]."""


class Lengths(Struct, frozen=True):
    """Positions of a sample, and what is to be said of them."""

    seq_len: int
    decoder_seq_len: int | None = None
    said: tuple[str, ...] = ()


def image_positions(stack: Stack, image_size: int | None) -> int:
    """Positions of an image encoder: its patches and its class token; 0 where images may have any size.

    >>> from vramcast.domain.model import VisionEmbedding
    >>> vision = VisionEmbedding(in_channels=3, patch=(16, 16), bias=True, positions=197, class_token=True)
    >>> image_positions(Stack(name="vision", hidden=768, runs=(), vision=vision), 384)
    577
    """
    vision = stack.vision
    if vision is None:
        return 0
    if image_size is not None and vision.patch:
        return int((image_size // vision.patch[-1]) ** 2 + int(vision.class_token))
    return vision.positions or stack.positions


def tiles_of(stack: Stack) -> int:
    """Tiles that a tower reads of every image, which is filled up with empty ones: by the table that tells them apart;
    1 where there is none [Mllama]."""
    tables = [table.shape[1] for table in stack.extra if table.path == "vision.pre_tile"]
    return tables[0] // stack.hidden if tables else 1


def image_tokens(model: Model, image_size: int | None) -> int:
    """Tokens that an image takes of a sample: its patches pooled, or side by side as its projector reads them; 0 where
    images may have any size, layers of their own read them, or no text does (CLIP)."""
    beside = any(getattr(run.layer.mixer, "source_width", None) for run in model.main.runs)
    if beside or _crosses(model) or not reads_images(model):
        return 0
    stack = next(one for one in model.stacks if one.vision is not None)
    patches = image_positions(stack, image_size)
    if stack is model.main or not patches or stack.vision is None:
        return 0
    if stack.projector_positions:
        return stack.projector_positions
    if not stack.projector:
        return 0
    width = stack.projector[0][0]
    merged = width // stack.hidden if width % stack.hidden == 0 else 1
    return (patches - int(stack.vision.class_token)) // (merged * stack.pooled)


def check_images(model: Model, images: int, image_size: int | None, **lengths: int | None) -> None:
    """Raise InvalidSpec for images that take more tokens than there are.

    Args:
        images: in one sample
        lengths: option -> tokens of a sample; None: nobody says
    """
    each = image_tokens(model, image_size)
    for name, length in lengths.items():
        if length is not None and images * each > length:
            raise InvalidSpec(
                "{}={} is less than the {:,} tokens of the images of {} ({} x {:,}); use at least as many, fewer "
                "--images or a smaller --image-size", name.replace("_", "-"), length, images * each, model.name, images,
                each
            )


def known_positions(model: Model, stack: Stack) -> int | None:
    """Learned positions that a stack can tell apart; None where nothing limits them."""
    if not stack.positions:
        return None
    return stack.positions - RESERVED.get(model.family, 0)


def reads_images(model: Model) -> bool:
    """Whether a stack reads images; encoders of sound read spectra."""
    return any(stack.vision is not None and not stack.vision.convolutions for stack in model.stacks)


def _listens(model: Model) -> bool:
    """Whether the encoder reads sound of one length."""
    return model.stacks[0].vision is not None and bool(model.stacks[0].vision.convolutions)


def _crosses(model: Model) -> bool:
    return len(model.stacks) > 1 and any(run.layer.cross_attention is not None for run in model.main.runs)


def usual_lengths(model: Model, workload: Workload, *, named: frozenset[str] = frozenset()) -> Lengths:
    """The lengths of a workload, those that the question leaves open as the model has them.

    Args:
        workload: the question's
        named: the fields of the workload that it names
    """
    said = []
    seq_len, decoder = workload.seq_len, workload.decoder_seq_len
    main = model.main
    if "seq_len" not in named:
        if main.vision is not None:
            seq_len = image_positions(main, workload.image_size) or USUAL
            said.append(_of_image(main, workload.image_size, seq_len))
        elif _listens(model):
            seq_len = model.stacks[0].positions
            said.append(Note(
                "{} positions of sound, which is what the encoder of {} always reads", seq_len, model.name
            ))
        else:
            limits = (USUAL, model.context, known_positions(model, model.stacks[0] if _crosses(model) else main))
            seq_len = min(limit for limit in limits if limit)
            said.append(
                Note("samples of {} tokens; --seq-len says otherwise", seq_len) if seq_len == USUAL
                else Note(
                    "samples of {} tokens, as many positions as {} has; --seq-len says otherwise", seq_len, model.name
                )
            )
    if workload.image_size is None and workload.images:
        towers = [(stack, image_positions(stack, None)) for stack in model.stacks if stack is not main]
        said += [_of_image(stack, None, count) for stack, count in towers
                 if count and stack.vision and not stack.vision.convolutions]
    if decoder is None and _listens(model):
        decoder = known_positions(model, main)
        said.append(Note(
            "answers of {} tokens, as many as {} has; --decoder-seq-len says otherwise", decoder, model.name
        ))
    return Lengths(seq_len, decoder, tuple(said))


def _of_image(stack: Stack, image_size: int | None, positions: int) -> str:
    assert stack.vision is not None
    patch, token = stack.vision.patch[-1] if stack.vision.patch else 1, int(stack.vision.class_token)
    side = image_size or round((positions - token) ** 0.5) * patch
    if (tiles := tiles_of(stack)) > 1:
        return Note("images of {} tiles of {} x {} pixels, empty ones too, {} positions each", tiles, side, side,
                    positions)
    if token:
        return Note(
            "images of {} x {} pixels, {} positions: patches of {} and a class token; --image-size says otherwise",
            side, side, positions, patch
        )
    return Note(
        "images of {} x {} pixels, {} positions: patches of {}; --image-size says otherwise",
        side, side, positions, patch
    )


def check_lengths(model: Model, workload: Workload) -> None:
    """Raise InvalidSpec for samples that are longer than the positions of a stack, or of another number."""
    main = model.main
    if main.vision is not None:
        _check_image(model, workload)
        return
    if _listens(model):
        heard = model.stacks[0].positions
        if workload.seq_len != heard:
            raise InvalidSpec(
                "seq-len={}: the encoder of {} reads {} positions of sound, not more or fewer; --decoder-seq-len says "
                "how long the text is", workload.seq_len, model.name, heard
            )
        _check_stack("decoder-seq-len", workload.decoder_seq_len or workload.seq_len, model, main)
        return
    if _crosses(model):
        _check_stack("seq-len", workload.seq_len, model, model.stacks[-2])
        _check_stack("decoder-seq-len", workload.decoder_seq_len or workload.seq_len, model, main)
        return
    _check_stack("seq-len", workload.seq_len, model, main)
    check_images(model, workload.images, workload.image_size, seq_len=workload.seq_len)


def _check_stack(name: str, length: int, model: Model, stack: Stack) -> None:
    most = known_positions(model, stack)
    if most is not None and length > most:
        raise InvalidSpec(
            "{}={} is more than the {} positions of {}; use at most {}", name, length, most, model.name, most
        )


def _check_image(model: Model, workload: Workload) -> None:
    """An image encoder reads as many positions as its image has."""
    there = image_positions(model.main, workload.image_size)
    if there and workload.seq_len != there:
        raise InvalidSpec(
            "seq-len={}: images of {} have {} positions; give --image-size instead", workload.seq_len, model.name, there
        )
    patch = model.main.vision.patch[-1] if model.main.vision is not None and model.main.vision.patch else 1
    if workload.image_size is not None and workload.image_size < patch:
        raise InvalidSpec(
            "image-size={} is below one patch of {}; use {} or more", workload.image_size, model.name, patch
        )
