"""What is asked and answered where a trace is told as a function of its sizes: batch, sequence, side of an image."""

from __future__ import annotations

from vramcast.domain.model import Noun


class Axis(Noun, frozen=True):
    """One size that is varied."""

    name: str  # "batch", "seq", "image", or as the user calls it
    where: str  # "--batch-size" of a script's arguments, "BLOCK_SIZE" a constant of it, "data seq"; "" the target's own
    low: int
    high: int
    step: int = 1
    is_given: bool = True  # False: nobody said how far, so the range may grow

    @property
    def values(self) -> range:
        return range(self.low, self.high + 1, self.step)


class Term(Noun, frozen=True, rename={"num_bytes": "bytes"}):
    """Bytes times powers of axes."""

    num_bytes: float
    powers: dict[str, int]  # axis -> power; empty: what does not depend on any


class Piece(Noun, frozen=True):
    """What is allocated at one moment of the step, before the allocator rounds. The peak is the largest of several."""

    terms: tuple[Term, ...]
    moment: str  # "backward, aten.mm, layers.3.mlp"
    share: float  # of the settings of the map at which this is the peak
    is_exact: bool  # False: the closest sum of these terms
    within: dict[str, tuple[int, int]] = {}  # axis -> ends of the range it holds in; absent: all of it


class VariedPoint(Noun, frozen=True):
    """What a run takes at one setting, as `vramcast trace` says it."""

    at: dict[str, int]
    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int  # of the highest phase
    fits: bool


class Largest(Noun, frozen=True):
    """The largest value of one axis that fits while the others stay."""

    axis: str
    value: int | None  # None: not even the smallest fits
    at: dict[str, int]  # the others
    is_end: bool  # the range ends there, more may fit
    device_bytes: int | None = None  # there


class VariedAnswer(Noun, frozen=True):
    """The peak of a traced run as a function of its sizes."""

    SHOWN = ("formula", "largest", "points", "regions", "assumptions")

    question: dict[str, object]
    capacity_bytes: int
    axes: tuple[Axis, ...]
    formula: tuple[Piece, ...]
    off_share: float  # largest distance of the formula from the allocated peak, as a share of it, over the map
    largest: tuple[Largest, ...]
    points: tuple[VariedPoint, ...]  # the map: every product of some values of each axis
    regions: int  # boxes of settings in which runs make other calls
    traces: int  # runs that it was read from
    checked: int  # runs that were held against it before it saw them, block by block: all equal
    assumptions: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether any setting does."""
        return any(one.value is not None for one in self.largest)
