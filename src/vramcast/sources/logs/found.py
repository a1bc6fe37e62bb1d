"""What a log says, in the words of questions and ledgers."""

from __future__ import annotations

from typing import Any

from vramcast.domain.model import Noun


class MeasuredRank(Noun, frozen=True):
    """What one process measured of its card."""

    label: str  # as the log calls it; "" where there is only one
    num_bytes: dict[str, int]  # by ledger category; "activations+communication" where only their sum is known
    stage: int | None = None  # of the pipeline, counted from 0


class OutOfMemoryMessage(Noun, frozen=True):
    """The figures of an out-of-memory message [bytes]. What it does not say is None."""

    tried: int | None = None  # the request that failed
    total: int | None = None  # of the card
    free: int | None = None
    process: int | None = None  # in use by this process, beside the allocator included
    others: int | None = None  # in use by other processes, where the message lists them
    allocated: int | None = None  # live tensors
    unallocated: int | None = None  # reserved, not allocated
    pools: int | None = None  # private pools, which CUDA graphs keep
    stage: str = ""  # what had been done: "load", "profile", "capture", "serve"


class ServingLog(Noun, frozen=True):
    """One start-up."""

    name: str  # of the file
    engine: str  # as questions name it
    version: str = ""  # as the log writes it
    options: dict[str, Any] = {}  # of `vramcast serve`, as far as the log says
    models: tuple[str, ...] = ()  # names and paths of the model, the most telling first
    quantisation: str = ""  # as the log calls it
    cards: tuple[str, ...] = ()  # names of cards, one per device where devices are listed
    card_bytes: int | None = None  # memory of the card in all
    held_bytes: int | None = None  # in use on the card before the server began
    ranks: tuple[MeasuredRank, ...] = ()
    counts: dict[str, float] = {}  # "tokens", "concurrency", "blocks"
    pool_is_rest: bool = True  # the cache takes what everything else leaves
    over_devices: bool = False  # the ranks are devices of one process: only their sum is comparable
    startups: int = 1
    cut: bool = False  # the file is longer than what was read of it
    out_of_memory: OutOfMemoryMessage | None = None
    refusal: str = ""  # what the engine said when it gave up
