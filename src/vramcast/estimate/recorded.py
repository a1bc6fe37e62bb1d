"""A rank's run as a recording: the same nouns that memory snapshots are read into, so one viewer shows both.

Every tensor of the program is one allocation; its stack is its name and owner, then its phase; its label the
category. The clock counts events: a program says in which order things happen, not when.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from vramcast.allocator.settings import Settings
from vramcast.domain.job import Phase
from vramcast.domain.program import Program, Tensor, events
from vramcast.domain.snapshot import COUNTS_EVENTS, PREDICTED, Frame, Snapshot
from vramcast.errors import Note, OutOfMemory
from vramcast.recordings.recorder import MOST_EVENTS, Recorder, Stack


def record(
    phases: Mapping[Phase, Program], *, name: str, alloc_conf: str = "", capacity_bytes: int | None = None,
    card_bytes: int | None = None, most_events: int = MOST_EVENTS,
) -> Snapshot:
    """The phases, one after the other, as a recording of one device.

    Leaves out rounds of a loop after the second, where each leaves memory as it found it; and what happens after an
    allocation failed, which ends the recording with an OOM event.

    Args:
        phases: program of each phase, in run order
        name: of the recording
        alloc_conf: PYTORCH_CUDA_ALLOC_CONF
        capacity_bytes: what the driver can give to the allocator; None: without end [bytes]
        card_bytes: what the recording names as the capacity of the card [bytes]
        most_events: how many are kept
    """
    process = _Process(Recorder(
        settings=Settings.parse(alloc_conf) if alloc_conf else None, capacity_bytes=capacity_bytes,
        most_events=most_events,
    ))
    recorder, is_full = process.recorder, False
    for phase, program in phases.items():
        start = recorder.clock
        try:
            process.play(phase, program)
        except OutOfMemory:
            is_full = True
        recorder.annotate(phase.value, start)
        if is_full:
            break
    recorded = recorder.snapshot(name=name, format_=PREDICTED, alloc_conf=alloc_conf)
    device = replace(recorded.devices[0], capacity_bytes=card_bytes)
    return replace(recorded, devices=(device,), remarks=tuple(_remarks(recorder, is_full=is_full)))


class _Process:
    """What a program's tensors and streams are in the recording."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._handles: dict[Tensor, list[int]] = {}
        self._streams: dict[str, int] = {"": 0}  # name -> number, the default stream first

    def play(self, phase: Phase, program: Program) -> None:
        """Run one phase.

        Raises: OutOfMemory
        """
        for tensor, is_allocation in events(program):
            if not tensor.num_bytes:
                continue
            if is_allocation:
                stream = self._streams.setdefault(tensor.stream, len(self._streams))
                handle = self.recorder.allocate(
                    tensor.num_bytes, stream, stack=_stack(tensor, phase), label=tensor.category.value
                )
                self._handles.setdefault(tensor, []).append(handle)
            else:
                self.recorder.free(self._handles[tensor].pop())


def _stack(tensor: Tensor, phase: Phase) -> Stack:
    owner = (Frame(tensor.owner, "", 0),) if tensor.owner else ()
    return (Frame(tensor.name, "", 0), *owner, Frame(phase.value, "", 0))


def _remarks(recorder: Recorder, *, is_full: bool) -> Iterator[str]:
    """What a reader should know of it."""
    yield COUNTS_EVENTS
    left_out = recorder.clock - len(recorder.trace)
    if left_out:
        yield Note("the first {:,} of {:,} events are left out, as max_entries does", left_out, recorder.clock)
    if is_full:
        yield "memory runs out: the recording ends there"
