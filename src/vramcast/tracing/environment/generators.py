"""Random generators of simulated cards: a host generator stands for each, so states can be read, kept and set."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.tracing.memory import Memory


def make_generator_class(real: type, memory: Memory) -> Any:
    """What stands for `torch.Generator`: also makes generators of cards; real ones count as instances."""

    class Meta(type(real)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, real)

    class Generator(real, metaclass=Meta):
        """A generator whose device may be a simulated card."""

        def __new__(cls, device: Any = "cpu", index: int | None = None) -> Any:
            place = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
            if place.type != "cuda":
                return real(place)
            made = super().__new__(cls)
            number = index if index is not None else place.index
            made.simulated = torch.device("cuda", memory.current if number is None else number)
            made.offset = 0
            return made

        @property
        def device(self) -> Any:
            return self.simulated

        def set_offset(self, offset: int) -> None:
            self.offset = offset

        def get_offset(self) -> int:
            return int(self.offset)

    return Generator
