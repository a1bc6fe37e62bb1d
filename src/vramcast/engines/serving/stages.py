"""The part of a network that one pipeline rank holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from vramcast.domain.model import Layer, Model, Run
from vramcast.errors import InvalidSpec


class Stage(NamedTuple):
    """Layers [start, stop) of the main stack; the first stage holds the embedding and towers, the last the head."""

    start: int
    stop: int
    first: bool
    last: bool

    @property
    def role(self) -> str:
        """As rank roles are named."""
        if self.first and self.last:
            return "all"
        return "first stage" if self.first else "last stage" if self.last else "middle stage"

    def runs(self, model: Model) -> Iterator[Run]:
        """The runs of equal layers of this stage."""
        position = 0
        for run in model.main.runs:
            low, high = max(position, self.start), min(position + run.count, self.stop)
            if high > low:
                yield Run(count=high - low, layer=run.layer)
            position += run.count

    def layers(self, model: Model) -> Iterator[Layer]:
        """The layers of this stage, one by one."""
        for run in self.runs(model):
            for _ in range(run.count):
                yield run.layer


def stages(sizes: Sequence[int]) -> tuple[Stage, ...]:
    """Stages of so many layers each, in order."""
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    last = len(sizes) - 1
    return tuple(
        Stage(start, start + size, index == 0, index == last)
        for index, (start, size) in enumerate(zip(starts, sizes, strict=True))
    )


def even_stages(num_layers: int, pp: int) -> tuple[Stage, ...]:
    """Equal stages; layers left over go to the last stages but one, so that the head's stage is never the fuller one.

    Source: vllm-project/vllm vllm/distributed/utils.py `get_pp_indices`
    """
    if pp > num_layers:
        raise InvalidSpec(f"pp={pp} is more than the {num_layers} layers; use at most {num_layers}")
    sizes = [num_layers // pp] * pp
    for left in range(num_layers % pp):
        sizes[pp - 2 - left if pp > 1 else 0] += 1
    return stages(sizes)
