"""What a forward is given, and the scalar that backward begins at.

Inputs are tensors of stated shapes, or those that the target's library says it takes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final, NamedTuple

import torch
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from vramcast.domain.trace_job import BATCH, SEQUENCE, Input, TraceJob
from vramcast.errors import InvalidSpec, Note, UnknownName
from vramcast.tracing.targets import Target, found_object

DEFAULT_SEQUENCE: Final = 1024
DEFAULT_IMAGE: Final = (3, 224, 224)
DEFAULT_CLIP: Final = (3, 16, 224, 224)
DEFAULT_SMALL_CLIP: Final = (3, 16, 112, 112)
"""Frames as torchvision's video networks are trained: references/video_classification/README.md."""
DEFAULT_LATENT: Final = 64
"""Side of what a denoiser works on where its config does not say it: of 512 x 512 pixels behind Stable Diffusion's
autoencoder."""
POSITIONS: Final = (
    "max_position_embeddings", "max_target_positions", "max_encoder_position_embeddings",
    "max_decoder_position_embeddings", "max_seq_len", "max_sequence_length",
)
"""Where configs of transformers have their number of positions: BERT's and LLaMA's kin, Whisper's decoder, LED, MPT."""
LARGEST_INDEX: Final = 1  # integers of inputs whose range is not known are 0 or 1: valid indices of every table


class Described(NamedTuple):
    """The inputs of a forward, before they have a batch."""

    inputs: tuple[Input, ...]
    labels: tuple[str, ...] = ()  # those that only training takes
    high: Mapping[str, int] = {}  # below which the integers of an input lie
    assumptions: tuple[str, ...] = ()


class Feed:
    """Makes the inputs of one forward on the host, as a data loader would."""

    def __init__(
        self, described: Described, *, batch: int, seq_len: int, dtype: torch.dtype, is_training: bool
    ) -> None:
        self.batch, self.seq_len = batch, seq_len
        self._described, self._dtype = described, dtype
        self._is_training = is_training

    def __call__(self) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
        positional: list[torch.Tensor] = []
        named: dict[str, torch.Tensor] = {}
        for one in self._described.inputs:
            if one.name in self._described.labels and not self._is_training:
                continue
            tensor = self._tensor(one)
            if one.name:
                named[one.name] = tensor
            else:
                positional.append(tensor)
        return positional, named

    def _tensor(self, one: Input) -> torch.Tensor:
        numbers = {BATCH: self.batch, SEQUENCE: self.seq_len}
        size = [numbers[dim] if isinstance(dim, str) else dim for dim in one.dims]
        dtype = getattr(torch, one.dtype) if one.dtype else self._dtype
        if dtype is torch.bool:
            return torch.ones(size, dtype=dtype)
        if dtype.is_floating_point or dtype.is_complex:
            return torch.randn(size, dtype=dtype) if dtype.itemsize > 1 else torch.zeros(size, dtype=dtype)
        return torch.randint(0, self._described.high.get(one.name, LARGEST_INDEX) + 1, size, dtype=dtype)


def _is_whole(described: Described) -> bool:
    """Whether every size is known: configs may leave out, or set to null, what networks are called with."""
    return all(isinstance(dim, (int, str)) for one in described.inputs for dim in one.dims)


def describe(target: Target, model: torch.nn.Module, job: TraceJob) -> Described:
    """The inputs of a job: those given, else those of the target's library.

    Raises: InvalidSpec that says what to give
    """
    if job.inputs:
        return Described(tuple(with_letters(one, job) for one in job.inputs))
    found = KNOWN.get(target.family, _unknown)(model)
    if found is None or not _is_whole(found):
        names = ", ".join(inspect.signature(model.forward).parameters)
        raise InvalidSpec(
            "what {} takes is not known: give --input for ({}), for example --input 8x1024", target.name, names
        )
    return found


def with_letters(one: Input, job: TraceJob) -> Input:
    """The same input; its first dimension is the batch where --batch is given and no letter says otherwise."""
    if job.batch is None or BATCH in one.dims or not one.dims:
        return one
    return Input(dims=(BATCH, *one.dims[1:]), dtype=one.dtype, name=one.name)


def sizes_of(described: Described, job: TraceJob, model: torch.nn.Module) -> tuple[int, int, tuple[str, ...]]:
    """Batch and positions, and what was assumed of them."""
    said = []
    letters = {dim for one in described.inputs for dim in one.dims if isinstance(dim, str)}
    batch, seq_len = job.batch, job.seq_len
    if batch is None and BATCH in letters:
        needs_two = job.is_training and any(isinstance(each, _BatchNorm) for each in model.modules())
        batch = 2 if needs_two else 1
        said.append(Note(
            "no --batch given: {}, the least that batch norm trains with" if needs_two
            else "no --batch given: {}", batch
        ))
    if SEQUENCE not in letters and seq_len is not None:
        raise InvalidSpec("--seq-len has no meaning for these inputs: none has the letter S; write --input BxS:int64")
    if seq_len is None and SEQUENCE in letters:
        longest = _longest(model)
        seq_len = min(DEFAULT_SEQUENCE, longest or DEFAULT_SEQUENCE)
        said.append(Note("no --seq-len given: {}", seq_len))
    elif seq_len is not None and (longest := _longest(model)) is not None and seq_len > longest:
        said.append(Note(
            "{:,} positions; its config has {:,}, beyond which learned positions fail on a card", seq_len, longest
        ))
    if BATCH not in letters:
        first = next((one.dims[0] for one in described.inputs if one.dims), 1)
        batch = first if isinstance(first, int) else 1
    return batch or 1, seq_len or 1, tuple(said)


def _longest(model: torch.nn.Module) -> int | None:
    """Positions that a network's config has; of an encoder and a decoder the fewer, as both get as many."""
    config = getattr(model, "config", None)
    found = (getattr(each, name, None) for each in (config, _text_config(config)) for name in POSITIONS)
    return min((each for each in found if isinstance(each, int) and each > 0), default=None)


def _text_config(config: Any) -> Any:
    """The part of a config that is about text; all of it where it has no such part, or several."""
    try:
        return config.get_text_config()
    except (AttributeError, ValueError):
        return config


def _timm(model: Any) -> Described:
    size = (getattr(model, "default_cfg", None) or {}).get("input_size") or DEFAULT_IMAGE
    return Described((Input(dims=(BATCH, *size)),))


def _torchvision(model: Any) -> Described | None:
    package = type(model).__module__
    if ".detection" in package or ".optical_flow" in package:
        return None
    size: tuple[int, ...] = (3, 299, 299) if package.endswith("inception") else DEFAULT_IMAGE
    if ".video" in package:
        size = DEFAULT_SMALL_CLIP if package.endswith("resnet") else DEFAULT_CLIP
    return Described((Input(dims=(BATCH, *size)),), assumptions=(Note(
        "input {} per sample", "x".join(map(str, size))
    ),))


def _transformers(model: Any) -> Described | None:
    config, main = model.config, model.main_input_name
    takes = inspect.signature(model.forward).parameters
    text = _text_config(config)
    high = {"input_ids": max(1, getattr(text, "vocab_size", 2) - 1)}
    ids, label = (Input(dims=(BATCH, SEQUENCE), dtype="int64", name=name) for name in ("input_ids", "labels"))
    labels = (label,) if "labels" in takes else ()
    if "pixel_values" in takes and all(hasattr(model, f"get_{kind}_features") for kind in ("text", "image")):
        return Described((ids, _pixels(getattr(config, "vision_config", config))), high=high)
    if main == "input_ids":
        if getattr(config, "is_encoder_decoder", False):
            decoder = Input(dims=(BATCH, SEQUENCE), dtype="int64", name="decoder_input_ids")
            return Described((ids, *(labels or (decoder,))), labels=("labels",), high=high)
        if "ForSequenceClassification" in type(model).__name__:
            labels = (Input(dims=(BATCH,), dtype="int64", name="labels"),)
        return Described((ids, *labels), labels=("labels",), high=high)
    if main == "pixel_values":
        image = _pixels(config)
        classes = "ForImageClassification" in type(model).__name__
        labels = (Input(dims=(BATCH,), dtype="int64", name="labels"),) if classes else ()
        return Described((image, *labels), labels=("labels",))
    if main == "input_features" and hasattr(config, "num_mel_bins"):
        frames = 2 * getattr(config, "max_source_positions", 1500)
        sound = Input(dims=(BATCH, config.num_mel_bins, frames), name=main)
        return Described((sound, *labels), labels=("labels",), high={"labels": high["input_ids"]})
    return None


def _pixels(config: Any) -> Input:
    side = getattr(config, "image_size", None) or DEFAULT_IMAGE[-1]
    high, wide = side if isinstance(side, (list, tuple)) else (side, side)
    return Input(dims=(BATCH, getattr(config, "num_channels", 3), high, wide), name="pixel_values")


def _diffusers(model: Any) -> Described | None:
    kind, config = type(model).__name__, model.config
    if kind not in NETWORKS:
        return None
    latents, *per_sample = NETWORKS[kind]
    inputs = _latents(config, latents), *(Input(dims=(BATCH,), dtype="int64", name=name) for name in per_sample)
    said: tuple[str, ...] = ()
    if config.sample_size is None:
        said = (Note("no sample_size in its config: {} x {}", DEFAULT_LATENT, DEFAULT_LATENT),)
    if kind == TAKES_TEXT:
        width = config.cross_attention_dim
        width = width[0] if isinstance(width, (list, tuple)) else width
        inputs = *inputs, Input(dims=(BATCH, TEXT_POSITIONS, width), name="encoder_hidden_states")
        said = *said, Note("{} positions of text", TEXT_POSITIONS)
    return Described(inputs, assumptions=said)


def _latents(config: Any, name: str) -> Input:
    side = config.sample_size or DEFAULT_LATENT
    high, wide = side if isinstance(side, (list, tuple)) else (side, side)
    return Input(dims=(BATCH, config.in_channels, high, wide), name=name)


def _unknown(_model: Any) -> None:
    return None


TAKES_TEXT: Final = "UNet2DConditionModel"
TEXT_POSITIONS: Final = 77  # of CLIP's text encoder
NETWORKS: Final[Mapping[str, tuple[str, ...]]] = {
    TAKES_TEXT: ("sample", "timestep"), "UNet2DModel": ("sample", "timestep"),
    "DiTTransformer2DModel": ("hidden_states", "timestep", "class_labels"), "AutoencoderKL": ("sample",),
}
"""Networks of diffusers whose inputs follow from their config -> names of its latents and of integers a sample."""

KNOWN: Final[Mapping[str, Callable[[Any], Described | None]]] = {
    "timm": _timm, "torchvision": _torchvision, "transformers": _transformers, "diffusers": _diffusers,
}
"""Family of a target -> what its forward takes."""


Loss = Callable[[Any], torch.Tensor]


def make_loss(name: str) -> Loss:
    """The loss of a name or of module:function, which is given what the forward returned.

    Raises: UnknownName with the nearest names
    """
    if ":" in name:
        found = found_object(name)
        if not callable(found):
            raise InvalidSpec("loss={} is no function; give one that takes what the forward returns", name)
        return lambda output: _scalar(found(output), name)
    if name not in LOSSES:
        raise UnknownName.of("loss", name, LOSSES)
    return lambda output: _scalar(LOSSES[name](output), name)


def default_loss(output: Any, family: str) -> str:
    if _own_loss(output) is not None:
        return "own"
    first = first_tensor(output)
    if family in ("timm", "torchvision") and first is not None and first.dim() in (2, 4):
        return "cross_entropy"
    return "mean"


def _own(output: Any) -> torch.Tensor:
    found = _own_loss(output)
    if found is None:
        raise InvalidSpec("loss=own: the forward returns no loss; give --loss, for example --loss mean")
    return found


def _own_loss(output: Any) -> torch.Tensor | None:
    """A model's own loss: an attribute or key, a dict of losses, or a scalar."""
    if isinstance(output, torch.Tensor):
        return output if output.dim() == 0 else None
    found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(found, torch.Tensor):
        return found
    parts = list(output.values()) if isinstance(output, Mapping) and output else []
    if parts and all(isinstance(part, torch.Tensor) and part.dim() == 0 for part in parts):
        return torch.stack(parts).sum()  # detection models of torchvision
    return None


def _cross_entropy(output: Any) -> torch.Tensor:
    scores = _prediction(output)
    target = torch.zeros((scores.shape[0], *scores.shape[2:]), dtype=torch.int64).to(scores.device)
    return functional.cross_entropy(scores, target)


def _mse(output: Any) -> torch.Tensor:
    scores = _prediction(output)
    return functional.mse_loss(scores, torch.zeros(scores.shape, dtype=scores.dtype).to(scores.device))


def _prediction(output: Any) -> torch.Tensor:
    found = first_tensor(output)
    if found is None:
        raise InvalidSpec("the forward returns no tensor of floats; give --loss module:function that makes one of it")
    return found


def first_tensor(output: Any, *, with_dimensions: bool = False) -> torch.Tensor | None:
    """The first tensor of floats in what a forward returned; where asked, behind a loss of one number."""
    floats = [tensor for tensor in _tensors(output) if tensor.is_floating_point()]
    wanted = [tensor for tensor in floats if tensor.dim()] if with_dimensions else []
    return next(iter(wanted or floats), None)


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, Mapping):
        for part in output.values():
            yield from _tensors(part)
    elif isinstance(output, (list, tuple)):
        for part in output:
            yield from _tensors(part)
    elif is_dataclass(output) and not isinstance(output, type):
        for field in fields(output):
            yield from _tensors(getattr(output, field.name))


def _scalar(loss: Any, name: str) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        what = f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise InvalidSpec(
            "loss={} gives {}, but backward begins at a scalar; reduce it, or give --loss mean", name, what
        )
    return loss


LOSSES: Final[Mapping[str, Callable[[Any], torch.Tensor]]] = {
    "own": _own, "cross_entropy": _cross_entropy, "mse": _mse,
    "sum": lambda output: _prediction(output).sum(), "mean": lambda output: _prediction(output).mean(),
}
