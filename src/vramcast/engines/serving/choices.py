"""What is asked of an engine beside the plan: options of its own, and networks it does not serve."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from vramcast.domain.model import LinearAttention, Mamba, Model, MoE, MultiLatentAttention
from vramcast.domain.serving import PipelineJob, ServeJob
from vramcast.errors import InvalidSpec, UnknownName, Unsupported

Value = int | float | bool | str


def refuse_encoders(job: ServeJob) -> None:
    """Raise Unsupported for networks whose every layer reads an encoder."""
    if len(job.model.stacks) > 1 and any(layer.cross_attention for layer in job.model.main.layers):
        raise Unsupported(f"{job.model.name} reads an encoder in every layer; use engine transformers")


class Known(NamedTuple):
    """An engine option: what its value may be, and what a network must have for it to say anything."""

    kind: type[Value]
    least: float = 1
    most: float = 1 << 40
    choices: tuple[str, ...] = ()
    about: str = ""  # key of PARTS


FLAG: Final = Known(bool)

PARTS: Final[dict[str, tuple[Callable[[Model], bool], str]]] = {
    "experts": (lambda model: any(isinstance(layer.channel, MoE) for layer in model.main.layers), "experts"),
    "windows": (lambda model: any(getattr(layer.mixer, "window", None) for layer in model.main.layers),
                "sliding windows"),
    "states": (lambda model: any(isinstance(layer.mixer, (Mamba, LinearAttention)) for layer in model.main.layers),
               "recurrent states"),
    "towers": (lambda model: len(model.stacks) > 1, "towers beside its language model"),
    "latents": (lambda model: any(isinstance(layer.mixer, MultiLatentAttention) for layer in model.main.layers),
                "latent attention"),
}
"""What an option can be about -> whether a network has it, and its name."""


def typed_options(job: ServeJob | PipelineJob, known: Mapping[str, Known]) -> dict[str, Value]:
    """The job's engine options, each known, of its type and about something that the network has.

    Raises: UnknownName for another option, InvalidSpec for a value that it cannot have or a network it says nothing of
    """
    found: dict[str, Value] = {}
    for name, value in job.engine_options.items():
        if name not in known:
            raise UnknownName.of(f"{job.engine} option", name, known)
        found[name] = _typed(name, value, known[name])
        if known[name].about and isinstance(job, ServeJob):
            has, what = PARTS[known[name].about]
            if found[name] and not has(job.model):
                raise InvalidSpec(f"engine-option {name}: {job.model.name} has no {what}; leave it out")
    return found


def _typed(name: str, value: object, known: Known) -> Value:
    kind, text = known.kind, str(value)
    if kind is str and (not known.choices or text in known.choices):
        return text
    if kind is bool and isinstance(value, bool):
        return value
    if kind in (int, float) and not isinstance(value, bool):
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if known.least <= number <= known.most and (kind is float or number.is_integer()):
            return kind(number)
    raise InvalidSpec(f"engine-option {name}={text[:40]} must be {_wanted(known)}")


def _wanted(known: Known) -> str:
    if known.choices:
        return f"one of {', '.join(known.choices)}"
    if known.kind is bool:
        return "true or false"
    number = "a whole number" if known.kind is int else "a number"
    return f"{number} from {known.least:g} to {known.most:,.0f}"
