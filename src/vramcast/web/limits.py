"""The largest bodies, the longest times and the most memory that a visitor's question may cost."""

from __future__ import annotations

from typing import Final, NamedTuple

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

LARGEST_QUESTION: Final = 256 * KIB
"""A question is a few hundred bytes of JSON [bytes]."""

LARGEST_REVIEW: Final = 4 * MIB
"""An object is at most 1.5 MiB in etcd, and an update brings the old one along [bytes]."""

LARGEST_TEXT: Final = 8 * MIB
"""Of a log; the beginning and the end of a longer one say as much [bytes, UTF-8]."""

LARGEST_LOG_BODY: Final = 6 * LARGEST_TEXT
"""That log as JSON, where every byte may be written as an escape of six [bytes]."""

LARGEST_SNAPSHOT: Final = 128 * MIB
"""Packed or not; what it unpacks to is bounded where it is read [bytes]."""

LARGEST_HEADER: Final = 48 * MIB
"""Of a GGUF file: its numbers, its vocabulary and the names of its tensors [bytes]."""

LARGEST_UNPACKED: Final = 2 * GIB
"""Of an uploaded snapshot; the command line reads larger ones [bytes]."""

MOST_BODIES: Final = GIB
"""Of all bodies that arrive or are answered at once: each one within its limit, many would fill the machine [bytes]."""

LONGEST_PATH: Final = 2 * KIB
"""Path and query of an address [bytes]."""

LONGEST_VALUE: Final = 1000
"""One option of a question, as text [characters]."""


class Limit(NamedTuple):
    """What one question may cost."""

    seconds: float
    memory_bytes: int  # of the process that answers, everything in it
    is_slow: bool = False  # answered apart, so that no quick question waits behind it
    answers: int = 5000  # of one process, before a fresh one takes its place: what it keeps of each adds up


QUICK: Final = Limit(seconds=5, memory_bytes=2 * GIB)
SEARCH: Final = Limit(seconds=60, memory_bytes=6 * GIB, is_slow=True, answers=50)
"""A search for plans, a recording replayed."""

MOST_CONNECTIONS: Final = 256
"""Open at once [count]."""

IDLE_SECONDS: Final = 15
"""How long a connection may stay without a request."""

LARGEST_HEAD: Final = 32 * KIB
"""Method, address and headers of a request, as far as they arrive before their end does [bytes]."""

HEAD_SECONDS: Final = 10
"""How long they may take to arrive."""

BODY_SECONDS: Final = 60
"""How long a body may take to arrive."""
