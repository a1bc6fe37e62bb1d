"""What a measured run taught: ledger categories measured over predicted, and the questions this holds for.

Programs of training and of serving alike are corrected by it: their tensors are as large as was measured.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from vramcast.domain.model import Noun
from vramcast.domain.program import Alloc, Basis, Category, Free, Loop, Program, Tensor
from vramcast.domain.version import Version, version_text
from vramcast.errors import InvalidSpec, Note

PRINTED_AS: Final[dict[str, str]] = {
    Category.WEIGHTS: "weights",
    Category.ACTIVATIONS: "activation peak",
    Category.COMMUNICATION: "non-torch",
    Category.GRAPHS: "CUDA graphs",
    Category.CACHE: "KV cache",
}
"""Ledger category -> the figure of it that engines print when they start, in `ServingRank.startup`."""


ALLOCATOR: Final = "allocator"
"""Correction of what torch's allocator reserves and does not allocate, in a steady step."""
OUTSIDE: Final = "outside"
"""Correction of what a training process takes beside torch's allocator: CUDA context, libraries, communicators."""


class Correction(Noun, frozen=True):
    """One category of the ledger on one rank, measured beside predicted."""

    measured_bytes: int
    predicted_bytes: int
    apportioned: bool = False  # the log states only a sum, divided here as it was predicted

    def __post_init__(self) -> None:
        if self.measured_bytes < 0 or self.predicted_bytes < 1:
            raise InvalidSpec(
                "a correction of {} over {} bytes must measure 0 or more and have predicted at least 1",
                self.measured_bytes, self.predicted_bytes
            )

    def applied(self, num_bytes: int) -> int:
        """What was predicted, in proportion to what was measured [bytes].

        >>> Correction(measured_bytes=3, predicted_bytes=2).applied(512)
        768
        """
        return round(num_bytes * self.measured_bytes / self.predicted_bytes)


class Plan(Noun, frozen=True):
    """What of a plan decides whether a correction carries over."""

    model: str
    weights: str = ""  # storage asked for; "": as the checkpoint
    tp: int = 1
    pp: int = 1
    dp: int = 1
    settings: dict[str, str] = {}  # training: everything else of plan, workload and engine that is not the default


class Calibration(Noun, frozen=True):
    """Corrections from one log."""

    engine: str
    oldest: tuple[int, ...]  # engine versions it holds for, ends included
    newest: tuple[int, ...]
    gpu: str
    plan: Plan
    corrections: dict[str, Correction]  # by ledger category, ALLOCATOR or OUTSIDE
    log: str = ""
    date: str = ""  # ISO
    source: str = ""  # the file it was read from, as answers name it

    def mismatch(self, engine: str, gpu: str, version: Version | None = None) -> str:
        """Why none of it holds for an engine, of a version where that matters, on a card; or nothing."""
        if engine != self.engine:
            return Note("it was measured with {}, not {}", self.engine, engine)
        if version is not None and not within(version, self.oldest, self.newest):
            oldest, newest = version_text(self.oldest), version_text(self.newest)
            return Note("it holds for {} {} to {}, not {}", engine, oldest, newest, version_text(version))
        return "" if gpu == self.gpu else Note("it was measured on {}, not {}", self.gpu, gpu)


def within(version: Version, oldest: Version, newest: Version) -> bool:
    """Whether a version lies in a range; an end that names fewer numbers covers all that begin so.

    >>> within((0, 19, 2), (0, 19), (0, 19)), within((0, 20), (0, 19), (0, 19))
    (True, False)
    """
    return version[: len(oldest)] >= oldest and version[: len(newest)] <= newest


def corrected_by(calibration: Calibration, program: Program, known: dict[Tensor, Tensor] | None = None) -> Program:
    """The program with its tensors as large as a calibration says; `known` are tensors that other programs share."""
    return _corrected(calibration, program, {} if known is None else known)


def _corrected(calibration: Calibration, program: Program, known: dict[Tensor, Tensor]) -> Program:
    nodes: list[Alloc | Free | Loop] = []
    for node in program:
        if isinstance(node, Loop):
            nodes.append(replace(node, body=_corrected(calibration, node.body, known)))
            continue
        if node.tensor not in known:
            known[node.tensor] = scaled(calibration, node.tensor)
        nodes.append(type(node)(known[node.tensor]))
    return tuple(nodes)


def scaled(calibration: Calibration, tensor: Tensor) -> Tensor:
    """A tensor as large as a calibration says."""
    correction = calibration.corrections.get(tensor.category)
    return tensor if correction is None else fitted(tensor, correction, calibration.source)


def fitted(tensor: Tensor, correction: Correction, source: str) -> Tensor:
    """A tensor as large as a correction of that file says."""
    ratio = correction.measured_bytes / correction.predicted_bytes
    return replace(
        tensor,
        num_bytes=correction.applied(tensor.num_bytes),
        basis=Basis.FITTED,
        formula=f"{ratio:.4f} x ({tensor.formula or f'{tensor.num_bytes:,} B'})",
        source=Note("calibrated by {}; {}", source, tensor.source),
    )
