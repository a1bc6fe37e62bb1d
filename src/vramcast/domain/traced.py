"""What a traced run says: the answer of `trace`, who held the peak, and what the tracer does not know."""

from __future__ import annotations

from array import array
from typing import NamedTuple

import msgspec

from vramcast.domain.answer import Answer
from vramcast.domain.model import Noun
from vramcast.domain.snapshot import Snapshot


class Holding(Noun, frozen=True, rename={"num_bytes": "bytes", "count": "blocks"}):
    """Blocks alive at the peak that share something."""

    name: str  # a module "layers.3.mlp", a line "train.py:50 step", an operator "aten.mm"; "" where that is unknown
    num_bytes: int
    count: int


class Holdings(Noun, frozen=True):
    """The peak of allocated memory, cut three ways. Each adds up to it, without slack in blocks."""

    by_module: tuple[Holding, ...] = ()  # largest first
    by_line: tuple[Holding, ...] = ()
    by_operator: tuple[Holding, ...] = ()


class UnknownOperator(Noun, frozen=True, rename={"num_bytes": "bytes"}):
    """An operator of which nobody has read what it allocates on CUDA beyond its outputs."""

    name: str  # "aten.foo", "mylib.bar"
    calls: int
    num_bytes: int  # of its outputs, all calls together
    peak_bytes: int  # of its outputs alive at the peak


class TraceFailure(Noun, frozen=True, rename={"num_bytes": "bytes"}):
    """The first request that the card cannot serve."""

    num_bytes: int  # asked of the driver, as the message says: whole pages
    step: int  # from 0
    phase: str  # "setup", "forward", "backward", "optimizer"
    operator: str
    module: str  # "" outside modules
    line: str  # of the user, "train.py:50 step"
    message: str  # what PyTorch would print
    stack: tuple[str, ...] = ()  # innermost first


class TracedTime(Noun, frozen=True):
    """How long the last step takes on the card, and what the time goes to: an estimate, without an interval as too few
    steps were measured."""

    step_s: float
    flops: float  # of products, convolutions and attention, without what recomputation repeats
    mfu: float  # of the card's dense data-sheet rate in the dtype that most of them are computed in
    bound: str  # what the largest part is: "compute", "memory", "launch", "offload"
    seconds: dict[str, float]  # cause -> part of step_s that nothing else hides; they add up to step_s
    modules: dict[str, float]  # innermost module -> its part, longest first; the optimizer is one, "" outside of all
    samples_per_s: float | None = None  # of all ranks; None: nobody said how many a step has
    sources: tuple[str, ...] = ()  # what the rates rest on
    left_out: tuple[str, ...] = ()  # what a step takes beside it, sentences


class CoursePoint(NamedTuple):
    """The most in a stretch of the run [bytes]."""

    allocated_bytes: int
    reserved_bytes: int


class TraceAnswer(Answer, frozen=True):
    """The answer to one traced run of one process."""

    steps: int = 0  # that were run
    events: int = 0  # allocations and frees
    holdings: Holdings = Holdings()
    unknown_operators: tuple[UnknownOperator, ...] = ()  # by bytes at the peak, largest first
    failure: TraceFailure | None = None
    traced_time: TracedTime | None = None  # None: no step was marked, or the card's data sheet is not known
    course: tuple[CoursePoint, ...] = ()  # of the whole run, in equal stretches of events
    interval_basis: str = ""  # what the interval rests on, a sentence
    timeline: str | None = None  # path of the snapshot written
    stopped: str = ""  # why the run ended before its steps were done, a sentence


class Traced(Noun, frozen=True):
    """An answer with the recording behind it; what a child process hands over."""

    answer: TraceAnswer
    snapshot: Snapshot


def encode(traced: Traced) -> bytes:
    """For another process; `decode` reads it."""
    return msgspec.msgpack.encode(traced, enc_hook=_packed)


def decode(data: bytes) -> Traced:
    """What `encode` wrote.

    Raises: msgspec.DecodeError where it is something else
    """
    return msgspec.msgpack.decode(data, type=Traced, dec_hook=_column)


def _packed(column: object) -> tuple[str, bytes]:
    """A column of a recording: its type code and its values."""
    assert isinstance(column, array)
    return column.typecode, column.tobytes()


def _column(_: type, packed: tuple[str, bytes]) -> array[int]:
    typecode, data = packed
    column: array[int] = array(typecode)
    column.frombytes(data)
    return column
