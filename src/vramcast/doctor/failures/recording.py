"""A failure beside the memory snapshot of its process: which allocator settings would have avoided it, by replay."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from vramcast.doctor.failures.case import size
from vramcast.domain.failure import Fix, Statement
from vramcast.domain.reconciliation import Remark
from vramcast.domain.snapshot import Action, DeviceSnapshot, Snapshot
from vramcast.errors import VramcastError
from vramcast.recordings.capacity import recorded_capacity
from vramcast.recordings.replay import Replayed, replay, state_after
from vramcast.recordings.variants import CONFS, Variant, under

DIGITS: Final = re.compile(r"\d+")
FAMILY: Final = "torch-snapshot"
"""Who speaks where a snapshot is the text."""

WORDING: Final = "oom-event"
SHOWN_HOLDERS: Final = 3
WORTH_SHOWING: Final = 32 << 20
"""Less reserved memory saved is not worth a setting [bytes]."""


class Proof(NamedTuple):
    """What a replay shows."""

    remarks: tuple[Remark, ...]
    fixes: tuple[Fix, ...]


def statements_of(snapshot: Snapshot) -> tuple[Statement, ...]:
    """One statement per out-of-memory event of a snapshot, with the figures of that moment."""
    found: list[Statement] = []
    for device in snapshot.devices:
        events = _failures(device)
        replayed = replay(snapshot, device) if events else None
        for index in events:
            assert replayed is not None  # there are events
            found.append(_statement(snapshot, device, replayed, index))
    return tuple(found)


def _failures(device: DeviceSnapshot) -> list[int]:
    return [index for index, action in enumerate(device.trace.actions) if action == Action.OOM]


def _statement(snapshot: Snapshot, device: DeviceSnapshot, replayed: Replayed, index: int) -> Statement:
    """The figures that a message would have had; what others hold is not recorded."""
    trace = device.trace
    allocated, reserved = replayed.allocated[index], replayed.reserved[index]
    numbers: dict[str, int | float | str] = {
        "device": device.device, "tried_bytes": trace.sizes[index], "free_bytes": trace.addresses[index],
        "allocated_bytes": allocated, "reserved_bytes": reserved, "unallocated_bytes": max(0, reserved - allocated),
    }
    if device.capacity_bytes is not None:
        numbers["total_bytes"] = device.capacity_bytes
    text = f"{snapshot.name}: event {index:,} of device {device.device} ran out of memory"
    return Statement(family=FAMILY, wording=WORDING, text=text, line=index + 1, numbers=numbers)


def proof_of(snapshot: Snapshot, number: int | None = None) -> Proof:
    """What every setting would have made of a recording, the best first.

    Args:
        snapshot: of the process that failed
        number: of the device that failed; None: the one with most events
    """
    device = _device(snapshot, number)
    if device is None:
        return Proof((Remark(key="proof.no_device"),), ())
    replayed = replay(snapshot, device)
    held = recorded_capacity(device, replayed)
    variants = [variant for conf in CONFS if (variant := _under(snapshot, device, conf, held)) is not None]
    failed = bool(_failures(device))
    fixes = sorted(_fixes(variants, replayed, failed=failed), key=lambda fix: (not fix.enough, -(fix.saves_bytes or 0)))
    none_helps = failed and not any(fix.enough for fix in fixes)
    remarks = [_peak(replayed, device, failed=failed)]
    remarks += [Remark(key="proof.none_avoids", values={"count": str(len(variants))})] if none_helps else []
    return Proof((*remarks, *_holders(snapshot, device, replayed)), tuple(fixes))


def _device(snapshot: Snapshot, number: int | None) -> DeviceSnapshot | None:
    named = [device for device in snapshot.devices if device.device == number]
    return named[0] if named else max(snapshot.devices, key=lambda device: len(device.trace), default=None)


def _under(snapshot: Snapshot, device: DeviceSnapshot, conf: str, held: int | None) -> Variant | None:
    """A setting tried; None where torch refuses it here: some need a capacity that is not known."""
    try:
        return under(snapshot, device, conf, capacity_bytes=held)
    except VramcastError:
        return None


def _peak(replayed: Replayed, device: DeviceSnapshot, *, failed: bool) -> Remark:
    values = {
        "device": str(device.device), "events": f"{replayed.events:,}", "ooms": str(replayed.num_ooms),
        "allocated": size(replayed.peak_allocated_bytes), "reserved": size(replayed.peak_reserved_bytes),
    }
    return Remark(key="proof.failed" if failed else "proof.peak", values=values)


def _holders(snapshot: Snapshot, device: DeviceSnapshot, replayed: Replayed) -> Iterator[Remark]:
    """Who held most when it failed, else at the peak: by the innermost line of a program."""
    failures = _failures(device)
    index = failures[-1] if failures else replayed.peak_event
    sums: dict[str, int] = {}
    for segment in state_after(snapshot, device, index):
        for block in segment.blocks:
            if not block.is_free:
                name = _line(snapshot, block.stack)
                sums[name] = sums.get(name, 0) + block.size_bytes
    for name in sorted(sums, key=lambda line: -sums[line])[:SHOWN_HOLDERS]:
        if name:
            yield Remark(key="proof.holder", values={"size": size(sums[name]), "line": name})


def _line(snapshot: Snapshot, stack: int) -> str:
    """The innermost line of Python, frameworks left out where there is another; "" where none was recorded."""
    frames = [frame for frame in snapshot.stacks[stack] if frame.filename.endswith(".py")] if (
        0 <= stack < len(snapshot.stacks)
    ) else []
    own = [frame for frame in frames if "torch" not in frame.filename and "site-packages" not in frame.filename]
    frame = next(iter(own or frames), None)
    return "" if frame is None else f"{frame.filename.rpartition('/')[2]}:{frame.line} {frame.name}"[:160]


def _fixes(variants: list[Variant], replayed: Replayed, *, failed: bool) -> Iterator[Fix]:
    seen: set[tuple[str, int]] = set()  # values of one option that come to the same are one proposal
    for variant in variants:
        kind = (DIGITS.sub("", variant.conf), variant.peak_reserved_bytes)
        if kind in seen:
            continue
        seen.add(kind)
        saves = replayed.peak_reserved_bytes - variant.peak_reserved_bytes
        avoids = failed and variant.out_of_memory is None and not variant.num_ooms
        stopped = variant.out_of_memory is not None or variant.num_ooms > 0  # a run cut short holds less: no saving
        if not variant.conf or stopped or not (avoids or saves >= WORTH_SHOWING):
            continue
        yield Fix(
            action=Remark(
                key="fix.replayed_avoids" if avoids else "fix.replayed",
                values={"reserved": size(variant.peak_reserved_bytes), "before": size(replayed.peak_reserved_bytes)},
            ),
            setting=f"PYTORCH_CUDA_ALLOC_CONF={variant.conf}",
            saves_bytes=saves if saves > 0 else None,
            shown_by="replay",
            enough=avoids if failed else None,
        )
