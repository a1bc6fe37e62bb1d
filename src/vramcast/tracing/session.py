"""Entering and leaving a simulation: devices, dispatch mode, patches, composites, autocast, hooks."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, Final

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from vramcast.allocator import Settings
from vramcast.domain.device import Gpu
from vramcast.errors import Unsupported
from vramcast.question.tracing import Value
from vramcast.tracing.autocast import Autocast
from vramcast.tracing.composites import Composites
from vramcast.tracing.distributed import collectives
from vramcast.tracing.distributed.groups import ALONE, World, simulate_distributed
from vramcast.tracing.environment import patch_environment
from vramcast.tracing.environment.overlay import Overlay
from vramcast.tracing.environment.patches import Patches, variables
from vramcast.tracing.extensions import EXTENSIONS, GUARDED, LIBRARIES
from vramcast.tracing.extensions.stand_ins import patch_loading, standing_in
from vramcast.tracing.holders import Holders
from vramcast.tracing.memory import Device, Memory
from vramcast.tracing.origins import Assumptions, Origins
from vramcast.tracing.rules import PLAIN, RULES
from vramcast.tracing.simulation import Simulation

COMPILER_FOLDER: Final = "TORCHINDUCTOR_CACHE_DIR"  # that torch's compiler sets as soon as it is imported
_TURN: Final = Lock()
"""Held while a simulation runs: it replaces parts of torch for the whole process."""


class Session:
    """One simulated process: what it ran on and what it did."""

    def __init__(
        self, gpu: Gpu, *, num_devices: int = 1, settings: Settings | None = None,
        capacity_bytes: int | None = None, values: Mapping[str, Value] | None = None, sandbox: bool = False,
        world: World = ALONE,
    ) -> None:
        """Nothing has run yet.

        Args:
            num_devices: cards the process sees, at least those of the world's ranks on its machine
            capacity_bytes: of each card; None: without end, so that what the run needs is known [bytes]
            values: place ("train.py:33") -> what tensors that are read there hold
            sandbox: keep out all files that the run writes
        """
        self.gpu, self.world, self._sandbox = gpu, world, sandbox
        self.origins = origins = Origins()
        host = Device(torch.device("cpu"), origins=origins)
        cards = tuple(
            Device(
                torch.device("cuda", index), origins=origins, gpu=gpu, settings=settings, capacity_bytes=capacity_bytes
            )
            for index in range(max(num_devices, world.local_size))
        )
        self.memory = Memory(cards, host)
        assumptions = Assumptions(values)
        self.holders = Holders(self.memory, origins, assumptions)
        self.simulation = Simulation(
            self.memory, origins, rules={**RULES, **collectives.RULES},
            plain=PLAIN | collectives.PLAIN, assumptions=assumptions,
        )

    @property
    def device(self) -> Device:
        return self.memory.devices[self.world.local_rank]

    @property
    def fullest(self) -> Device:
        """The card that needed most."""
        return max(self.memory.devices, key=lambda each: each.allocator.peak_allocated_bytes)

    @property
    def assumptions(self) -> Assumptions:
        return self.simulation.assumptions

    def keep_files_out(self) -> None:
        """What is written from now on."""
        self.overlay.keeps_everything = True

    @contextmanager
    def active(self, files: Path | None = None) -> Iterator[Session]:
        """Within: torch runs on the simulated devices. Everything is put back on the way out.

        Files that are kept out go to a folder, by default to one that is removed at the end.

        Raises: Unsupported where another simulation runs
        """
        with ExitStack() as stack:
            stack.enter_context(_alone())
            stack.enter_context(variables({COMPILER_FOLDER: None}))
            import torch._dynamo  # noqa: F401 (its tables must know torch's own classes, not those put in their place)

            folder = files or Path(stack.enter_context(TemporaryDirectory(prefix="vramcast-")))
            patches = stack.enter_context(Patches())
            autocast = Autocast(self.memory)
            library = autocast.start(patches)
            stack.callback(autocast.stop, library)
            composites = Composites(self.simulation)
            composites.start()
            stack.callback(composites.stop)
            self.simulation.suspended = composites.suspended
            self.simulation.folder = folder
            self.overlay = Overlay(folder, keeps_everything=self._sandbox)
            self.simulation.led = self.overlay.for_opening
            patch_environment(patches, self.simulation, self.overlay)
            patch_loading(patches, self.simulation)
            stack.enter_context(simulate_distributed(patches, self.simulation, self.world))
            stack.enter_context(standing_in(patches, self.simulation, EXTENSIONS, GUARDED, LIBRARIES))
            _follow_backward(patches, self.holders)
            for handle in _hooks(self.origins, self.holders):
                stack.callback(handle.remove)
            stack.enter_context(self.simulation)
            stack.enter_context(_older_left_alone())
            yield self


@contextmanager
def _alone() -> Iterator[None]:
    """Within: no other simulation starts, in this thread or another."""
    if not _TURN.acquire(blocking=False):
        raise Unsupported(
            "a simulation is running already, and a process runs one at a time; leave its block first, or start "
            "another process"
        )
    try:
        yield
    finally:
        _TURN.release()


@contextmanager
def _older_left_alone() -> Iterator[None]:
    """Within: the search for cycles passes over what is there by now, above all torch: it took a fifth of a step.

    Simulated tensors come later, so that cycles which hold them are found as ever.
    """
    if gc.get_freeze_count():  # somebody else's choice
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _follow_backward(patches: Patches, holders: Holders) -> None:
    backward = torch.autograd.backward

    @wraps(backward)
    def followed(*args: Any, **kwargs: Any) -> None:
        backward(*args, **kwargs)
        holders.after_backward()

    patches.set(torch.autograd, "backward", followed)


def _hooks(origins: Origins, holders: Holders) -> Iterator[Any]:
    modules = torch.nn.modules.module
    yield modules.register_module_forward_pre_hook(holders.enter_root)
    yield modules.register_module_forward_pre_hook(origins.enter)
    yield modules.register_module_forward_hook(origins.leave, always_call=True)
    yield register_optimizer_step_pre_hook(holders.before_step)
    yield register_optimizer_step_post_hook(holders.after_step)
