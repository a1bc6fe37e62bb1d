"""Random generators of simulated cards: seed and offset, as CUDA's generators keep them.

[generator] pytorch aten/src/ATen/cuda/CUDAGeneratorImpl.cpp: `set_current_seed`, `get_state`, `set_state`
"""

from __future__ import annotations

from typing import Any, Final

import torch

from vramcast.tracing.memory import Memory

HOST: Final = torch.device("cpu")


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
            if made.simulated.index < len(memory.devices):  # operators see the generator within, not this object
                memory.devices[made.simulated.index].generators[made._cdata] = made
            return made

        @property
        def device(self) -> Any:
            return self.simulated

        def manual_seed(self, seed: int) -> Any:
            self.offset = 0
            return super().manual_seed(seed)

        def seed(self) -> int:
            self.offset = 0
            return int(super().seed())

        def get_state(self) -> torch.Tensor:
            """Seed and offset, eight bytes each [generator]."""
            seed = self.initial_seed()
            numbers = [seed - (seed >> 63 << 64), self.offset]
            return torch.tensor(numbers, dtype=torch.int64, device=HOST).view(torch.uint8)

        def set_state(self, state: torch.Tensor) -> Any:
            seed, offset = state.view(torch.int64).tolist()
            self.manual_seed(seed % (1 << 64))
            self.offset = offset
            return self

        def set_offset(self, offset: int) -> None:
            self.offset = offset

        def get_offset(self) -> int:
            return int(self.offset)

    return Generator
