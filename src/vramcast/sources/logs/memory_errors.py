"""Out-of-memory messages of start-ups: the wordings are those of `sources.failures`, the nouns those of logs."""

from __future__ import annotations

from typing import Final

from vramcast.domain.failure import Statement
from vramcast.sources.logs.found import OutOfMemoryMessage
from vramcast.sources.logs.wording import Startup, Wording, wording

NEEDLES: Final = ("ut of memory", "cudaMalloc failed", "cudaErrorMemoryAllocation")

MESSAGES: Final[tuple[Wording, ...]] = (
    wording("ut of memory", r"(?P<oom__t>.{0,3000})"),
    wording("buffer of size", r"(?P<oom_buffer__t>failed to allocate \w{1,40} buffer of size [0-9]{1,20})"),
)
"""Lines of every reader that may hold a message; what they say is read as any failure is."""

FIGURES: Final[dict[str, str]] = {
    "tried": "tried_bytes",
    "total": "total_bytes",
    "free": "free_bytes",
    "process": "process_bytes",
    "others": "other_processes_bytes",
    "allocated": "allocated_bytes",
    "unallocated": "unallocated_bytes",
    "pools": "private_pools_bytes",
}
"""Figure of a log's message -> figure of a statement."""


def out_of_memory(startup: Startup, *, stage: str) -> OutOfMemoryMessage | None:
    """The first message of a start-up: what follows it are echoes of the same failure."""
    lines = [*startup.values("oom"), *startup.values("oom_buffer")]
    if not lines:
        return None
    from vramcast.sources.failures.families import FAMILIES
    from vramcast.sources.failures.read import read_failures

    said = (item for line in lines for item in read_failures(line).statements)
    found = [item for item in said if FAMILIES[item.family].about == "device"]
    if not found:
        return None
    return _message(next((item for item in found if item.numbers), found[0]), stage)


def _message(statement: Statement, stage: str) -> OutOfMemoryMessage:
    numbers = statement.numbers
    sizes = {name: int(numbers[figure]) for name, figure in FIGURES.items() if figure in numbers}
    if "tried" not in sizes and "buffer_bytes" in numbers:
        sizes["tried"] = int(numbers["buffer_bytes"])
    if "unallocated" not in sizes and {"reserved_bytes", "allocated_bytes"} <= numbers.keys():
        sizes["unallocated"] = max(0, int(numbers["reserved_bytes"]) - int(numbers["allocated_bytes"]))
    return OutOfMemoryMessage(**sizes, stage=stage)
