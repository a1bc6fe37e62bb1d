"""Processes that answer questions, and are killed at the limit of time or memory of the question they answer."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import signal
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import TimeoutError as OverTime
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from pebble import ProcessExpired, ProcessPool

try:
    import resource
except ImportError:  # Windows has no such limit
    resource = None  # type: ignore[assignment]

from vramcast.errors import Note
from vramcast.web.exchange import OVERTIME, TOLD_EVERY_SECONDS, Limit, Looked, Refused, Reply, Sources
from vramcast.web.service import answered

WAITING_PER_WORKER: Final = 8
"""Questions that wait for one process; more are sent away at once, before they pile up [count]."""

RETRY_AFTER: Final = (("retry-after", "1"),)

PATIENCE_SECONDS: Final = 0.05
"""How long an answer takes before it is worth looking whether anybody still waits for it."""

COLLECTED_AFTER: Final = 50_000
"""New objects after which cycles are looked for: an answer makes about as many, hardly any of them in a cycle."""

PRELOADED: Final = "vramcast.web.warm"

Gone = Callable[[], Awaitable[object]]
"""Returns once the one who asked has left."""


class Question(NamedTuple):
    """One request, as it travels to a process."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes


FIRST: Final = Question("GET", "/api/version", "", {}, b"")
"""What a process is asked to begin with."""


class Workers:
    """Some processes for questions of one limit."""

    def __init__(self, count: int, limit: Limit, sources: Sources) -> None:
        self._count = count
        self._limit = limit
        self._sources = sources
        self._free = asyncio.Semaphore(count)
        self._waiting = 0
        self._context = _context()
        self._folder = TemporaryDirectory(prefix="vramcast-")  # a file of each question under way: how far it is
        self._number = 0
        self._pool = self._new_pool()

    def start(self) -> None:
        """Start the processes now, and not with the first question."""
        self._pool.schedule(reply_to, args=(FIRST, self._sources))

    async def answer(self, question: Question, gone: Gone, looked: Looked | None = None) -> Reply:
        """The reply to a question; `looked` is told meanwhile how far a search is.

        Raises: Refused where there are too many, where one takes too long or too much, or whoever asked has left
        """
        if self._waiting >= self._count * WAITING_PER_WORKER:
            raise Refused(503, "Busy", "too many questions at once; ask again in a second", RETRY_AFTER)
        self._waiting += 1
        try:
            async with self._free:
                if looked is None:
                    return await self._run(question, gone, None)
                self._number += 1
                place = Path(self._folder.name, str(self._number))
                telling = asyncio.ensure_future(_telling(place, looked))
                try:
                    return await self._run(question, gone, place)
                finally:
                    telling.cancel()
                    for file in (place, _beside(place)):
                        file.unlink(missing_ok=True)
        finally:
            self._waiting -= 1

    async def _run(self, question: Question, gone: Gone, place: Path | None) -> Reply:
        """The question in a process. Nobody waiting any more, a slow one is killed and a quick one runs to its end."""
        if not self._pool.active:
            self._pool = self._new_pool()
        future = self._pool.schedule(reply_to, args=(question, self._sources, place), timeout=self._limit.seconds)
        waited = asyncio.wrap_future(future)
        try:
            done, _ = await asyncio.wait({waited}, timeout=PATIENCE_SECONDS)
            if not done and self._limit.is_slow:
                leaving = asyncio.ensure_future(gone())
                await asyncio.wait({waited, leaving}, return_when=asyncio.FIRST_COMPLETED)
                leaving.cancel()
                if not waited.done():
                    raise Refused(OVERTIME, "Left", "whoever asked has left")  # read by nobody
            reply: Reply = await waited
            return reply
        except OverTime:
            message = Note("no answer within {:g} s; ask for less, or use the command line", self._limit.seconds)
            raise Refused(OVERTIME, "TooLong", message) from None
        except (ProcessExpired, BrokenProcessPool):
            raise Refused(
                503, "Ended", "the process that answered has ended, which large questions do; ask for less", RETRY_AFTER
            ) from None
        finally:
            waited.cancel()  # where nobody waits for it any more its process is ended

    def _new_pool(self) -> ProcessPool:
        return ProcessPool(
            max_workers=self._count, max_tasks=self._limit.answers, initializer=bounded,
            initargs=(self._limit.memory_bytes,), context=self._context,
        )

    def close(self) -> None:
        """End the processes, whatever they do."""
        self._pool.stop()
        self._pool.join()
        self._folder.cleanup()


def _beside(place: Path) -> Path:
    return place.with_suffix(".new")


async def _telling(place: Path, looked: Looked) -> None:
    """Tell what a process writes, as often as it is another."""
    told = b""
    while True:
        await asyncio.sleep(TOLD_EVERY_SECONDS)
        with suppress(FileNotFoundError):
            if (now := place.read_bytes()) != told:
                told = now
                looked(now)


def _context() -> multiprocessing.context.BaseContext:
    """Processes forked from a clean one that has everything imported; where there are no such, started anew."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOADED])
    return context


def bounded(memory_bytes: int) -> None:
    """What a process does first: leave interrupts to the server, take no more memory than this."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.set_threshold(COLLECTED_AFTER)
    if resource is not None:
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


def reply_to(question: Question, sources: Sources, place: Path | None = None) -> Reply:
    """The reply of a process, which writes to a place how far it is: never half a line, even where it is killed."""

    def looked(line: bytes) -> None:
        assert place is not None
        with suppress(OSError):  # a disk is full, or Windows has the file open to read: the next line tells more
            _beside(place).write_bytes(line)
            _beside(place).replace(place)

    return answered(*question, sources=sources, looked=looked if place else None)
