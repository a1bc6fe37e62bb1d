"""A failure beside the memory snapshot of its process: its figures, what ran, and which settings would have helped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.allocator.settings import segment_bytes
from vramcast.doctor.failures.case import TORCH, Facts, size
from vramcast.domain.failure import Fix, Remark, Statement
from vramcast.domain.snapshot import Action, DeviceSnapshot, Snapshot
from vramcast.errors import VramcastError
from vramcast.recordings.examine import Examination
from vramcast.recordings.lives import Category
from vramcast.recordings.replay import Outcome, Replayed
from vramcast.recordings.stacks import Kind, Kinds
from vramcast.recordings.variants import CONFS, Variant, ran_out, recorded_capacity, under

DIGITS: Final = re.compile(r"\d+")
FAMILY: Final = "torch-snapshot"
"""Who speaks where a snapshot is the text."""

WORDING: Final = "oom-event"
SHOWN_HOLDERS: Final = 3
WORTH_SHOWING: Final = 32 << 20
"""Less reserved memory saved is not worth a setting [bytes]."""

PRINTED: Final = 0.006
"""Share by which a size of a message may differ from the size itself: it has two decimals."""

SPLIT: Final = ("allocated_bytes", "unallocated_bytes", "reserved_bytes")
"""Two of them tell the third."""

PHASES: Final[dict[Kind, str]] = {
    Kind.BACKWARD: "backward", Kind.RECOMPUTED: "backward", Kind.ACCUMULATED: "backward",
    Kind.STEP: "optimizer", Kind.OPTIMIZER_STATE: "optimizer", Kind.CLIPPING: "optimizer",
    Kind.WEIGHT: "load", Kind.CACHE: "cache", Kind.FORWARD: "forward", Kind.FUNCTION: "loss",
}
"""The code that asked for memory in vain -> the phase that rules ask for."""

TRAINING: Final = frozenset({Category.GRADIENTS, Category.OPTIMIZER, Category.BACKWARD})
"""What is held, or was made, only where a model is trained."""

AROUND: Final[dict[str, re.Pattern[str]]] = {
    name: re.compile(rf"(^|/){name}/") for name in ("vllm", "sglang")
}
"""Servers, by the files of their code."""

GENERATES: Final = re.compile(r"(^|/)generation/\w+\.py$")


class Proof(NamedTuple):
    """What a replay shows."""

    remarks: tuple[Remark, ...]
    fixes: tuple[Fix, ...]


class Event(NamedTuple):
    """An out-of-memory event of a snapshot."""

    device: DeviceSnapshot
    number: int  # index of the event


class Recorded:
    """A snapshot beside a text, and what was found out about its devices so far."""

    def __init__(self, snapshot: Snapshot) -> None:
        """Nothing yet."""
        self.snapshot = snapshot
        self._examined = {device.device: Examination(snapshot, device) for device in snapshot.devices}
        self._variants: dict[int, list[Variant]] = {}

    def of(self, device: DeviceSnapshot) -> Examination:
        """What can be worked out of a device."""
        return self._examined[device.device]

    def replayed(self, device: DeviceSnapshot) -> Replayed:
        """A device, replayed once."""
        return self.of(device).replayed

    def tried(self, device: DeviceSnapshot) -> list[Variant]:
        """A device under the settings of the recording, then under those that usually help."""
        if device.device not in self._variants:
            held = recorded_capacity(device, self.replayed(device))
            confs = (None, *(conf for conf in CONFS if conf != self.snapshot.alloc_conf))
            found = (_under(self.of(device), conf, held) for conf in confs)
            self._variants[device.device] = [variant for variant in found if variant is not None]
        return self._variants[device.device]

    @property
    def events(self) -> list[Event]:
        """All that ran out of memory."""
        return [Event(device, index) for device in self.snapshot.devices for index in _failures(device)]

    @property
    def statements(self) -> tuple[Statement, ...]:
        """One statement per out-of-memory event, with the figures of that moment."""
        return tuple(_statement(self, event) for event in self.events)

    def beside(self, statement: Statement, facts: Facts) -> tuple[Statement, Facts, Proof]:
        """A statement and what surrounds it, with what the snapshot adds, and what a replay proves."""
        event = event_of(self, statement)
        if event is not None:
            statement, facts = with_event(self, statement, facts, event)
        number = statement.numbers.get("device")
        return statement, facts, proof_of(self, event, number if isinstance(number, int) else None)


def _failures(device: DeviceSnapshot) -> list[int]:
    return [index for index, action in enumerate(device.trace.actions) if action == Action.OOM]


def _statement(known: Recorded, event: Event) -> Statement:
    name, number = known.snapshot.name, event.device.device
    text = f"{name}: event {event.number:,} of device {number} ran out of memory"
    return Statement(
        family=FAMILY, wording=WORDING, text=text, line=event.number + 1, numbers=dict(_numbers(known, event))
    )


def _numbers(known: Recorded, event: Event) -> Iterator[tuple[str, int | float | str]]:
    """The figures that a message would have had; what others hold is not recorded."""
    device, index = event
    replayed, trace = known.replayed(device), device.trace
    yield "device", device.device
    yield "tried_bytes", trace.sizes[index]
    if device.has_segments:  # a profile does not say what was free
        yield "free_bytes", trace.addresses[index]
    if replayed.outcome is not Outcome.FAILED and not replayed.is_least:
        allocated = replayed.allocated[index]
        yield "allocated_bytes", allocated
        if replayed.reserved is not None:
            yield "reserved_bytes", replayed.reserved[index]
            yield "unallocated_bytes", max(0, replayed.reserved[index] - allocated)
    if device.capacity_bytes is not None:
        yield "total_bytes", device.capacity_bytes


def event_of(known: Recorded, statement: Statement) -> Event | None:
    """The event of a snapshot that a statement tells of: by its device and the size asked for; of several the last.

    None where the snapshot has none such: it is of another moment or process, or the statement is not of PyTorch.
    """
    if statement.family not in TORCH:
        return None
    number, tried = statement.numbers.get("device"), statement.numbers.get("tried_bytes")
    found = [event for event in known.events if number in (None, event.device.device)]
    if statement.family == FAMILY:
        found = [event for event in found if event.number == statement.line - 1]
    elif isinstance(tried, int | float):
        found = [event for event in found if _is_as_printed(tried, event)]
    return found[-1] if found else None


def _is_as_printed(tried: float, event: Event) -> bool:
    """Whether a message would have printed this size for the event: that of the segment it would have needed."""
    asked = event.device.trace.sizes[event.number]
    return any(abs(size - tried) <= PRINTED * size for size in (asked, segment_bytes(asked)))


def with_event(known: Recorded, statement: Statement, facts: Facts, event: Event) -> tuple[Statement, Facts]:
    """A statement and what surrounds it, with what the snapshot adds to both; what the text says itself stays."""
    stated = statement.numbers
    follows = sum(name in stated for name in SPLIT) >= 2  # the third follows from what the text says itself
    added = {name: value for name, value in _numbers(known, event) if not (follows and name in SPLIT)}
    numbers = added | stated
    kinds, stack = Kinds(known.snapshot), event.device.trace.stacks[event.number]
    frames = known.snapshot.stacks[stack]
    phases = facts.phases
    if not phases:
        phases = frozenset({PHASES[kinds[stack]]}) if kinds[stack] in PHASES else frozenset()
        if any(GENERATES.search(frame.filename) for frame in frames):
            phases |= {"generate"}
    words = {name for name, pattern in AROUND.items() if any(pattern.search(frame.filename) for frame in frames)}
    return replace(statement, numbers=numbers), replace(
        facts, phases=phases, words=facts.words | words,
        trains=facts.trains or _trains(known.of(event.device)),
        alloc_conf=facts.alloc_conf or known.snapshot.alloc_conf,
    )


def _trains(examined: Examination) -> bool:
    """Whether anything that the recording holds or makes is of training."""
    lives = examined.lives
    if any(category in TRAINING for category in lives.older.values()):
        return True
    return any(
        action == Action.ALLOC and lives.category(index) in TRAINING
        for index, action in enumerate(examined.trace.actions)
    )


def proof_of(known: Recorded, event: Event | None = None, number: int | None = None) -> Proof:
    """What every setting would have made of a recording, the best first.

    Args:
        known: the snapshot of the process that failed
        event: that a statement tells of
        number: of the device that failed, where no event is that; None: the one that ran out or held most
    """
    device = event.device if event is not None else _device(known, number)
    if device is None:
        return Proof((Remark(key="proof.no_device"),), ())
    replayed = known.replayed(device)
    failures = _failures(device)
    remarks = [_peak(replayed, device, failures=len(failures))]
    if known.events and event is None:
        remarks.insert(0, Remark(key="proof.other_failure"))
    fixes: list[Fix] = []
    if replayed.outcome is Outcome.FAILED or not device.has_addresses:
        remarks.append(Remark(key="proof.not_replayed"))
    else:
        tried = known.tried(device)
        fixes = sorted(
            _fixes(tried, failed=bool(failures)), key=lambda fix: (not fix.enough, -(fix.saves_bytes or 0))
        )
        remarks += _verdict(tried, fixes, failed=bool(failures))
    index = event.number if event is not None else failures[-1] if failures else replayed.peak_event
    return Proof((*remarks, *_holders(known, device, index)), tuple(fixes))


def _device(known: Recorded, number: int | None) -> DeviceSnapshot | None:
    """The device of that number, else that which ran out of memory, else that which held most."""
    devices = known.snapshot.devices
    named = [device for device in devices if device.device == number]
    if named or not devices:
        return named[0] if named else None
    if len(devices) == 1:
        return devices[0]

    def most(device: DeviceSnapshot) -> tuple[bool, int]:
        found = known.replayed(device)
        return bool(_failures(device)), max(found.peak_reserved_bytes or 0, found.peak_allocated_bytes)

    return max(devices, key=most)


def _under(examined: Examination, conf: str | None, held: int | None) -> Variant | None:
    """A setting tried; None where torch refuses it here: some need a capacity that is not known."""
    try:
        return under(examined, conf, capacity_bytes=held)
    except VramcastError:
        return None


def _peak(replayed: Replayed, device: DeviceSnapshot, *, failures: int) -> Remark:
    values = {
        "device": str(device.device), "events": f"{replayed.events:,}", "ooms": str(failures),
        "allocated": size(replayed.peak_allocated_bytes), "reserved": size(replayed.peak_reserved_bytes),
    }
    key = "proof.failed" if failures else "proof.peak"
    return Remark(key=key if replayed.peak_reserved_bytes is not None else f"{key}_allocated", values=values)


def _verdict(variants: list[Variant], fixes: list[Fix], *, failed: bool) -> Iterator[Remark]:
    """What the settings come to, where none is shown to avoid the failure."""
    if not failed or any(fix.enough for fix in fixes):
        return
    if ran_out(variants[0]):
        yield Remark(key="proof.none_avoids", values={"count": str(len(variants) - 1)})
    else:
        yield Remark(key="proof.not_repeated")


def _holders(known: Recorded, device: DeviceSnapshot, index: int) -> Iterator[Remark]:
    """What held most at a moment: by category, and by the innermost line of the program."""
    if not device.has_addresses:
        return
    held = known.of(device).held_after(index)
    named = [group for group in held.by_category if group.name != Category.UNKNOWN][:SHOWN_HOLDERS]
    for group in named:
        yield Remark(key="proof.category", values={"size": size(group.size_bytes), "category": group.name})
    for group in [group for group in held.by_line if group.name][:SHOWN_HOLDERS]:
        yield Remark(key="proof.holder", values={"size": size(group.size_bytes), "line": group.name})


def _fixes(variants: list[Variant], *, failed: bool) -> Iterator[Fix]:
    """Settings that avoid the failure or save memory, against the same replay under the settings of the recording."""
    own, *others = variants
    seen: set[tuple[str, int]] = set()  # values of one option that come to the same are one proposal
    for variant in others:
        kind = (DIGITS.sub("", variant.conf), variant.peak_reserved_bytes)
        if kind in seen or ran_out(variant):  # a run cut short holds less: no saving
            continue
        seen.add(kind)
        saves = 0 if ran_out(own) else own.peak_reserved_bytes - variant.peak_reserved_bytes
        avoids = failed and ran_out(own)
        if not (avoids or (saves >= WORTH_SHOWING and not failed)):
            continue
        yield Fix(
            action=Remark(
                key="fix.replayed_avoids" if avoids else "fix.replayed",
                values={"reserved": size(variant.peak_reserved_bytes), "before": size(own.peak_reserved_bytes)},
            ),
            setting=f"PYTORCH_CUDA_ALLOC_CONF={variant.conf}" if variant.conf else "PYTORCH_CUDA_ALLOC_CONF=",
            saves_bytes=saves if saves > 0 else None,
            shown_by="replay",
            enough=avoids if failed else None,
        )
