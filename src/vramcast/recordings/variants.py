"""The same requests under other settings of the allocator or on another card, and which settings would have helped.

What was live before the recording has to be laid out anew, as another setting would have laid it out otherwise: its
blocks are requested by address, oldest segment first, before the first event. The settings of the recording are
treated alike, so that the figures can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from vramcast.allocator import Allocator, Settings
from vramcast.allocator.settings import segment_bytes
from vramcast.allocator.views import OTHER_STREAM
from vramcast.domain.model import Noun
from vramcast.domain.snapshot import DEFAULT_POOL, NO_STACK, Action, DeviceSnapshot, PoolId, SizesAre, Trace
from vramcast.errors import OutOfMemory
from vramcast.recordings.replay import Pools, Replayed
from vramcast.recordings.start import OlderBlock, RecordedDevice

CONFS: Final = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:64",
    "max_split_size_mb:128",
    "max_split_size_mb:256",
    "max_split_size_mb:512",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "roundup_power2_divisions:16",
    "large_segment_size_mb:64",
    "expandable_segments:True,roundup_power2_divisions:8",
    "garbage_collection_threshold:0.8,per_process_memory_fraction:0.99",
)
"""What `--all-confs` tries; the last only where the size of the card is known."""


class Variant(Noun, frozen=True):
    """The requests of one device under one setting."""

    conf: str
    capacity_bytes: int | None  # what the allocator could take; None: without end
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    num_alloc_retries: int
    out_of_memory: int | None = None  # index of the event whose request failed, where none did in the recording
    failed_bytes: int | None = None  # that request
    num_ooms: int = 0  # requests that failed in the recording and here
    num_ooms_avoided: int = 0  # that failed in the recording and would not have here


def under(recorded: RecordedDevice, conf: str | None = None, *, capacity_bytes: int | None = None) -> Variant:
    """Play the requests of a device under other settings.

    It ends at the first request that fails where the recorded one did not: what a program does then is its own affair.

    Args:
        conf: value of PYTORCH_CUDA_ALLOC_CONF; None: as the process was started, as far as this simulation knows it
        capacity_bytes: what the driver can give to the allocator; None: everything [bytes]

    Raises: InvalidSpec, Unsupported or UnknownName for a setting that torch refuses.
    """
    settings = recorded.settings if conf is None else Settings.parse(conf)
    allocator = Allocator(settings=settings, capacity_bytes=capacity_bytes)
    run = _Run(allocator, Pools(recorded))
    failed = run.start(recorded.older, recorded.unlisted_bytes, sizes_are=recorded.snapshot.sizes_are)
    if failed is None:
        failed = run.play(recorded.trace)
    return Variant(
        conf=recorded.snapshot.alloc_conf if conf is None else conf,
        capacity_bytes=capacity_bytes,
        peak_allocated_bytes=allocator.peak_allocated_bytes,
        peak_reserved_bytes=allocator.peak_reserved_bytes,
        num_alloc_retries=allocator.num_alloc_retries,
        out_of_memory=None if failed is None else failed[0],
        failed_bytes=None if failed is None else failed[1],
        num_ooms=run.num_ooms,
        num_ooms_avoided=run.num_ooms_avoided,
    )


class _Run:
    def __init__(self, allocator: Allocator, pools: Pools) -> None:
        self.allocator, self.pools = allocator, pools
        self.handles: dict[int, int] = {}  # recorded address -> where it is here
        self.waiting: dict[int, int] = {}  # the same for blocks that another stream holds up
        self.num_ooms = self.num_ooms_avoided = 0

    def start(self, held: list[OlderBlock], unlisted: int, *, sizes_are: SizesAre) -> tuple[int, int] | None:
        """Request what was live before, what is not listed in one piece; the failed request, with -1 for its event."""
        if unlisted:
            try:
                self._request(unlisted, 0, DEFAULT_POOL)
            except OutOfMemory:
                return -1, unlisted
        for block in held:
            size = block.requested_bytes if sizes_are is SizesAre.REQUESTS else block.size_bytes
            try:
                self.handles[block.address] = self._request(size, block.stream, self.pools.at(block.address))
            except OutOfMemory:
                return -1, size
        self.allocator.reset_peaks()
        return None

    def play(self, trace: Trace) -> tuple[int, int] | None:
        """All events; (event, bytes) of the request that failed."""
        allocator, handles = self.allocator, self.handles
        actions, addresses, sizes, streams = trace.actions, trace.addresses, trace.sizes, trace.streams
        gave_back = False  # segments returned since the last other event: by empty_cache, or by a request that follows
        for index, action in enumerate(actions):
            if action == Action.ALLOC:
                if gave_back:
                    allocator.empty_cache()
                    gave_back = False
                try:
                    handles[addresses[index]] = self._request(sizes[index], streams[index], self.pools.of(index))
                except OutOfMemory:
                    return index, sizes[index]
            elif action == Action.FREE_COMPLETED:
                self._free(addresses[index])
            elif action == Action.FREE_REQUESTED:
                follows = index + 1 < len(actions) and actions[index + 1] == Action.FREE_COMPLETED
                if not follows or addresses[index + 1] != addresses[index]:
                    self._hold(addresses[index])
            elif action == Action.OOM:
                self._run_out(sizes[index], streams[index])
                gave_back = False
            elif action in (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP):
                gave_back = True
            elif action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
                gave_back = False  # the request made room for itself; whether it has to is up to these settings
        return None

    def _request(self, size: int, stream: int, pool: PoolId) -> int:
        if pool == DEFAULT_POOL:
            return self.allocator.allocate(size, stream)
        self.allocator.begin_pool(pool)
        try:
            return self.allocator.allocate(size, stream)
        finally:
            self.allocator.end_pool(pool)

    def _free(self, address: int) -> None:
        if address in self.waiting:
            handle = self.waiting.pop(address)
            if self.allocator.awaits_free(handle):  # giving the cache back may have ended the wait before
                self.allocator.complete(handle)
        else:
            self.allocator.free(self.handles.pop(address, 0))

    def _hold(self, address: int) -> None:
        handle = self.handles.pop(address, 0)
        if handle:
            self.allocator.record_stream(handle, OTHER_STREAM)
            self.allocator.free(handle)
            self.waiting[address] = handle

    def _run_out(self, size: int, stream: int) -> None:
        try:
            self.allocator.free(self.allocator.allocate(size, stream))
            self.num_ooms_avoided += 1
        except OutOfMemory:
            self.num_ooms += 1


class Advice(Noun, frozen=True):
    """What replays under other settings come to."""

    kind: Literal["avoids", "none_avoids", "not_repeated", "lowers", "unsure", "none"]
    tried: int  # settings besides those of the recording
    best: Variant | None = None  # None where none helps
    saved_bytes: int = 0  # of the peak of reserved memory, against the settings of the recording


def ran_out(variant: Variant) -> bool:
    """Whether any request failed under these settings."""
    return variant.out_of_memory is not None or variant.num_ooms > 0


def advice(variants: Sequence[Variant], recorded_bytes: int | None = None) -> Advice | None:
    """The best of the settings; the first are those of the recording. None where no others were tried.

    Args:
        variants: replays under each
        recorded_bytes: the peak of reserved memory as it really was; what differs between that and the replay under the
            settings of the recording comes of laying out anew what was live before, and a saving below it proves
            nothing [bytes]
    """
    if len(variants) < 2:
        return None
    own, *others = variants
    whole = [variant for variant in others if not ran_out(variant)]
    best = min(whole, key=lambda variant: variant.peak_reserved_bytes, default=None)
    if ran_out(own):
        return Advice(kind="none_avoids" if best is None else "avoids", tried=len(others), best=best)
    if own.num_ooms_avoided:
        return Advice(kind="not_repeated", tried=len(others))
    saved = 0 if best is None else own.peak_reserved_bytes - best.peak_reserved_bytes
    if best is None or saved <= 0:
        return Advice(kind="none", tried=len(others))
    gap = 0 if recorded_bytes is None else abs(recorded_bytes - own.peak_reserved_bytes)
    return Advice(kind="lowers" if saved > gap else "unsure", tried=len(others), best=best, saved_bytes=saved)


_RETURNS: Final = frozenset({Action.SEGMENT_FREE, Action.SEGMENT_UNMAP})
PAGE_BYTES: Final = 2 << 20
"""The driver's pages: what an allocator has is a multiple of them."""


def recorded_capacity(device: DeviceSnapshot, replayed: Replayed) -> int | None:
    """What the allocator could have had, as far as the recording says [bytes].

    By what it held and the driver had free when it first ran out, or by the request that failed, where a limit other
    than the card refused it; else by what it gave back to make room; else the card, where that is named.
    """
    trace = device.trace
    held = replayed.reserved
    for index, action in enumerate(trace.actions):
        if action == Action.OOM and held is not None:
            refused = segment_bytes(trace.sizes[index])
            free = trace.addresses[index] if device.has_segments else refused
            return held[index] + max(0, min(free, refused - PAGE_BYTES))
    limit = limit_by_retries(device, replayed)
    return limit if limit is not None else device.capacity_bytes


def limit_by_retries(device: DeviceSnapshot, replayed: Replayed) -> int | None:
    """The most that can have been there when cached segments were returned to make room for another one [bytes].

    A request returns its cache only after the driver refused: what was held and the segment together were too much.
    Both events then have the stack of that request; a program that empties its cache itself does so at another line.
    None where no request did so, no stacks tell, or more was held at another time.
    """
    peak = replayed.peak_reserved_bytes
    if not replayed.num_alloc_retries or replayed.reserved is None or peak is None:
        return None
    trace = device.trace
    held = limit = None
    for index, action in enumerate(trace.actions):
        if action in _RETURNS:
            held = held if held is not None else replayed.reserved[index - 1] if index else None
            continue
        if action == Action.SEGMENT_ALLOC and held is not None and _one_request(trace, index):
            refused = held + trace.sizes[index]
            limit = refused if limit is None else min(limit, refused)
        held = None
    if limit is None or limit <= peak:
        return None
    return (limit - 1) // PAGE_BYTES * PAGE_BYTES


def _one_request(trace: Trace, index: int) -> bool:
    """Whether the segment of this event was taken by the call that returned the one before."""
    return trace.stacks[index] == trace.stacks[index - 1] != NO_STACK
