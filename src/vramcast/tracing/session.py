"""Entering and leaving a simulation: devices, dispatch mode, patches, composites, autocast, hooks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from vramcast.allocator import Settings
from vramcast.domain.device import Gpu
from vramcast.tracing.autocast import Autocast
from vramcast.tracing.composites import start_composites
from vramcast.tracing.environment import patch_environment
from vramcast.tracing.environment.patches import Patches
from vramcast.tracing.holders import Holders
from vramcast.tracing.memory import Device, Memory
from vramcast.tracing.origins import Origins
from vramcast.tracing.rules import PLAIN, RULES, cpu
from vramcast.tracing.simulation import Simulation


class Session:
    """One simulated process: what it ran on and what it did."""

    def __init__(
        self, gpu: Gpu | None, *, num_devices: int = 1, settings: Settings | None = None,
        capacity_bytes: int | None = None,
    ) -> None:
        """Nothing has run yet.

        Args:
            gpu: the card; None simulates the host, with the semantics of the CPU
            num_devices: cards the process sees
            settings: of the caching allocator
            capacity_bytes: of each card; None: without end, so that what the run needs is known [bytes]
        """
        self.gpu = gpu
        self.origins = origins = Origins()
        host = Device(torch.device("cpu"), origins=origins)
        cards = tuple(
            Device(
                torch.device("cuda", index), origins=origins, gpu=gpu, settings=settings, capacity_bytes=capacity_bytes
            )
            for index in range(num_devices)
        )
        self.memory = Memory(cards if gpu else (host,), host)
        self.holders = Holders(self.memory, origins)
        self.simulation = Simulation(self.memory, origins, rules=RULES if gpu else cpu.RULES, plain=PLAIN)

    @property
    def device(self) -> Device:
        """The first device."""
        return self.memory.devices[0]

    @contextmanager
    def active(self) -> Iterator[Session]:
        """Within: torch runs on the simulated devices. Everything is put back on the way out."""
        with ExitStack() as stack:
            patches = stack.enter_context(Patches())
            autocast = Autocast(self.memory)
            library = autocast.start(patches)
            stack.callback(autocast.stop, library)
            stack.callback(start_composites(self.simulation))
            patch_environment(patches, self.simulation)
            for handle in _hooks(self.origins, self.holders):
                stack.callback(handle.remove)
            stack.enter_context(self.simulation)
            yield self


def _hooks(origins: Origins, holders: Holders) -> Iterator[Any]:
    """Global hooks that follow modules and optimizers."""
    modules = torch.nn.modules.module
    yield modules.register_module_forward_pre_hook(holders.enter_root)
    yield modules.register_module_forward_pre_hook(origins.enter)
    yield modules.register_module_forward_hook(origins.leave, always_call=True)
    yield register_optimizer_step_pre_hook(holders.before_step)
    yield register_optimizer_step_post_hook(holders.after_step)
