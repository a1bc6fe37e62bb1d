"""What a run left behind, as bytes: it travels from the process of a script to the one that asked."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from vramcast.domain.snapshot import Frame
from vramcast.errors import SourceError
from vramcast.tracing.assumptions import Assumption
from vramcast.tracing.tape import Aside, Block, Mark, Origin, Phase, Tape

KeyT = TypeVar("KeyT")


class TapeRecord(Struct, frozen=True, kw_only=True):
    """A tape, a column a field; texts and origins once each."""

    texts: list[str]
    origins: list[tuple[str, str, int, int]]  # phase, module, stack, forward stack
    sizes: bytes  # "q"
    streams: bytes  # "q"
    operators: bytes  # "q", index into texts
    kinds: bytes  # "q", index into texts
    names: bytes  # "q", index into texts
    asked: bytes  # "q", index into origins
    events: bytes  # "q"
    marks: list[Mark]
    asides: list[Aside]


class RunRecord(Struct, frozen=True, kw_only=True):
    """A finished run of a script."""

    tape: TapeRecord
    stacks: list[list[tuple[str, str, int]]]
    unseen: dict[str, tuple[int, int]]
    device: int
    communicators: int
    num_parameters: int
    steps: int
    forwards: int  # on the card
    host_forwards: int
    assumptions: list[Assumption]
    stopped: str = ""  # why it ended before the script did, a sentence
    error: str = ""  # a sentence; "" where there is none
    error_kind: str = "InvalidSpec"  # name of its class
    exited: bool = False  # the error is that it exited, and what it printed last says why


class _Index(Generic[KeyT]):
    """Each different thing once, by the order in which it came."""

    def __init__(self) -> None:
        self.found: dict[KeyT, int] = {}

    def __call__(self, thing: KeyT) -> int:
        return self.found.setdefault(thing, len(self.found))


def pack_tape(tape: Tape) -> TapeRecord:
    """The tape as columns."""
    text, origin = _Index[str](), _Index[Origin]()
    blocks = tape.blocks

    def column(values: Iterable[int]) -> bytes:
        return array("q", values).tobytes()

    columns = {
        "sizes": column(block.num_bytes for block in blocks),
        "streams": column(block.stream for block in blocks),
        "operators": column(text(block.operator) for block in blocks),
        "kinds": column(text(str(block.kind)) for block in blocks),
        "names": column(text(block.name) for block in blocks),
        "asked": column(origin(block.origin) for block in blocks),
    }
    return TapeRecord(
        texts=list(text.found), asides=tape.asides,
        events=tape.events.tobytes(), **columns,
        origins=[(str(each.phase), each.module, each.stack, each.forward_stack) for each in origin.found],
        marks=tape.marks,
    )


def unpack_tape(record: TapeRecord) -> Tape:
    """The tape of `pack_tape`."""
    tape = Tape()
    origins = [Origin(Phase(phase), module, stack, forward) for phase, module, stack, forward in record.origins]
    texts = record.texts
    columns = map(_column, (
        record.sizes, record.streams, record.operators, record.asked, record.kinds, record.names,
    ))
    for index, (size, stream, operator, asked, kind, name) in enumerate(zip(*columns, strict=True)):
        block = Block(index, size, stream, texts[operator], origins[asked])
        block.kind, block.name = texts[kind], texts[name]
        tape.blocks.append(block)
    tape.events = _column(record.events)
    for position, event in enumerate(tape.events):
        if event > 0:
            tape.blocks[event - 1].born = position
        else:
            tape.blocks[-event - 1].died = position
    tape.marks, tape.asides = record.marks, record.asides
    return tape


def stacks_of(record: RunRecord) -> tuple[tuple[Frame, ...], ...]:
    """The stacks that the tape's origins point into."""
    return tuple(tuple(Frame(*frame) for frame in stack) for stack in record.stacks)


def read_record(raw: bytes) -> RunRecord:
    """The record in bytes that a process wrote.

    Raises: SourceError
    """
    try:
        return msgspec.msgpack.decode(raw, type=RunRecord)
    except msgspec.DecodeError as error:
        raise SourceError(f"what the script's process left behind cannot be read: {error}") from None


def _column(raw: bytes) -> array[int]:
    values = array("q")
    values.frombytes(raw)
    return values
