"""Code that is at hand in Python: a block under `with`, a function called again and again, a module object."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from vramcast.allocator import Settings
from vramcast.domain.device import Gpu
from vramcast.domain.traced import Traced
from vramcast.errors import InvalidSpec
from vramcast.tracing.result import About, traced
from vramcast.tracing.run import check_torch, run_of, said
from vramcast.tracing.session import Session


class Simulated:
    """A simulated card for as long as it is entered."""

    def __init__(self, gpu: Gpu | None, *, capacity_bytes: int | None, alloc_conf: str, what: str) -> None:
        self._warnings = check_torch()
        self._session = Session(gpu, settings=Settings.parse(alloc_conf))
        self._capacity_bytes, self._alloc_conf, self._what = capacity_bytes, alloc_conf, what
        self._stack = ExitStack()

    def start(self) -> None:
        """torch runs on the card from now on."""
        self._stack.enter_context(self._session.active())

    def stop(self) -> None:
        """torch is as it was."""
        self._stack.close()

    def mark_step(self) -> None:
        """A step ends here; the steps of optimizers mark themselves."""
        self._session.memory.mark_step()

    @property
    def num_events(self) -> int:
        """Allocations and frees so far."""
        return len(self._session.device.tape.events)

    def traced(self) -> Traced:
        """The answer to what has run so far."""
        session = self._session
        asked: dict[str, Any] = {"target": self._what, "gpu": session.gpu.name if session.gpu else None}
        if self._alloc_conf:
            asked["alloc_conf"] = self._alloc_conf
        if session.gpu is None:
            asked |= {"device": "cpu"}
            del asked["gpu"]
        about = About(
            name=self._what, question=asked, num_parameters=0, assumptions=tuple(said(session.assumptions)),
            warnings=self._warnings,
        )
        return traced(run_of(session, capacity_bytes=self._capacity_bytes, alloc_conf=self._alloc_conf), about)


def run_steps(step: Callable[[], Any], card: Simulated, *, steps: int) -> Traced:
    """A function called so often.

    Args:
        step: takes nothing; builds its module at the first call, or closes over one built on the card
        card: that is not entered
        steps: calls
    """
    card.start()
    try:
        for _ in range(steps):
            step()
            card.mark_step()
    finally:
        card.stop()
    return card.traced()


def copied(module: torch.nn.Module) -> torch.nn.Module:
    """A copy without the data of its large tensors, so that the user's own stays where it is; within a session."""
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        blank = torch.empty_like(parameter, device="cpu", requires_grad=False)
        memo[id(parameter)] = torch.nn.Parameter(blank, requires_grad=parameter.requires_grad)
    try:
        return copy.deepcopy(module, memo)
    except Exception as error:
        raise InvalidSpec(
            f"{type(module).__name__} cannot be copied ({type(error).__name__}: {str(error)[:120]}); "
            "give a function that builds it"
        ) from error


