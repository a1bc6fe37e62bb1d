"""`vramcast.replay`: a recording of GPU memory, replayed and looked at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vramcast.domain.snapshot import DeviceSnapshot, Snapshot
from vramcast.errors import InvalidSpec, SourceError
from vramcast.question.option import parse_bytes
from vramcast.recordings.examine import Asked, examine
from vramcast.report.shown import ShownReplay
from vramcast.sources.snapshots import read_snapshot


def replay(
    snapshot: str | Path, *, against: str | Path | None = None, device: int | None = None,
    alloc_conf: str | Sequence[str] = (), all_confs: bool = False, capacity: str | int | None = None,
    leaks: bool = False, top: int = 10,
) -> ShownReplay:
    """A recording of GPU memory, replayed and looked at.

    Args:
        snapshot: what torch.cuda.memory._dump_snapshot wrote, a profiler trace with memory events, our own timeline
        against: an earlier recording to compare with
        device: only this device; None: all
        alloc_conf: values of PYTORCH_CUDA_ALLOC_CONF to replay under as well
        all_confs: replay under every setting that usually helps
        capacity: what those replays may reserve: "24GiB" or bytes
        leaks: look for what grows step by step
        top: rows of each list

    Returns: what was found, device by device; it shows itself in a notebook
    Raises: VramcastError of one sentence when the recording cannot be read or a setting not be used
    """
    asked = Asked(
        top=top, leaks=leaks, confs=(alloc_conf,) if isinstance(alloc_conf, str) else tuple(alloc_conf),
        all_confs=all_confs, capacity_bytes=None if capacity is None else parse_bytes("capacity", capacity),
    )
    for given in (snapshot, snapshot if against is None else against):
        if not isinstance(given, (str, Path)):
            raise InvalidSpec("a recording is named by a path, not by {}; give a str or a Path", type(given).__name__)
    before = None if against is None else read_snapshot(Path(against))
    return replayed(read_snapshot(Path(snapshot)), asked, against=before, device=device)


def replayed(
    recording: Snapshot, asked: Asked, *, against: Snapshot | None = None, device: int | None = None
) -> ShownReplay:
    """A recording that was read already, replayed and looked at.

    Args:
        recording: what was read
        asked: what to look at
        against: an earlier recording to compare with
        device: only this device; None: all

    Raises: VramcastError of one sentence when it holds nothing, or a setting cannot be used
    """
    earlier = {one.device: one for one in against.devices} if against is not None else {}
    found, wanted = [], _devices(recording, device)
    if against is not None and not any(one.device in earlier for one in wanted):
        raise InvalidSpec(
            "{} holds no device that is looked at ({}); it holds {}: compare with a recording of the same device",
            against.name, _listed(wanted), _listed(against.devices) or "none"
        )
    for one in wanted:
        old = earlier.get(one.device)
        plain = None if against is None or old is None else examine(against, old, Asked(top=asked.top))
        found.append(examine(recording, one, asked, against=plain))
    return ShownReplay(devices=tuple(found), top=asked.top)


def _devices(recording: Snapshot, device: int | None) -> Sequence[DeviceSnapshot]:
    """The devices asked for; raises where there are none."""
    if not recording.devices:
        raise SourceError(
            "{} holds no memory events and no segments; record with torch.cuda.memory._record_memory_history() before "
            "the first allocation", recording.name
        )
    wanted = [one for one in recording.devices if device in (None, one.device)]
    if not wanted:
        raise InvalidSpec("{} has no device {}; use one of {}", recording.name, device, _listed(recording.devices))
    return wanted


def _listed(devices: Sequence[DeviceSnapshot]) -> str:
    return ", ".join(str(one.device) for one in devices)
