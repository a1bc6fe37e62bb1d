"""Answers on this machine, in processes of their own or, with one worker, in this one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from multiprocessing.connection import Connection
from typing import Final

from vramcast.errors import SourceError
from vramcast.sweeps.engines import Engine, Settings
from vramcast.sweeps.worker import Answered, Chunk, answer_chunk

QUEUED: Final = 2
"""Chunks per worker that are under way: one at work, one waiting."""


@contextmanager
def start(settings: Settings, *, size: int) -> Iterator[Engine]:
    """Workers on this machine, gone at the end."""
    workers = min(settings.workers or _cores(), max(1, size))
    if workers == 1:
        yield _Here()
        return
    pool = _Pool(workers)
    try:
        yield pool
    finally:
        pool.stop()


def _cores() -> int:
    """That this process may use; where a system does not say which, all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Here:
    """This process."""

    workers = 1

    def run(self, chunks: Iterator[Chunk]) -> Iterator[tuple[Chunk, Answered | None]]:
        for chunk in chunks:
            yield chunk, answer_chunk(chunk)


class _Pool:
    """A pool of processes that is built anew when one of them dies.

    They end with this process, however it ends: each watches a pipe that only this process holds open.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._open()

    def _open(self) -> None:
        # Spawned, not forked: nothing of a parent with threads, locks and open files is copied.
        context = multiprocessing.get_context("spawn")
        self._watched, self._held = context.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(
            self.workers, mp_context=context, initializer=_end_with_parent, initargs=(self._watched,)
        )

    def stop(self) -> None:
        """End all workers, whatever they are at."""
        self._held.close()
        self._pool.shutdown(cancel_futures=True)
        self._watched.close()

    def run(self, chunks: Iterator[Chunk]) -> Iterator[tuple[Chunk, Answered | None]]:
        running: dict[Future[Answered], Chunk] = {}
        while True:
            for chunk in islice(chunks, QUEUED * self.workers - len(running)):
                running[self._submit(chunk)] = chunk
            if not running:
                return
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            suspects = []
            # A death breaks the whole pool: then all chunks under way end at once.
            broken = any(isinstance(future.exception(), BrokenProcessPool) for future in done)
            for future in list(running) if broken else done:
                chunk = running.pop(future)
                if isinstance(future.exception(), BrokenProcessPool):
                    suspects.append(chunk)
                else:
                    yield chunk, future.result()
            if broken:
                self._renew()
            for chunk in suspects:
                yield chunk, self._alone(chunk)

    def _submit(self, chunk: Chunk) -> Future[Answered]:
        try:
            with _interrupts_wait():
                return self._pool.submit(answer_chunk, chunk)
        except BrokenProcessPool as error:
            failed: Future[Answered] = Future()
            failed.set_exception(error)
            return failed

    def _alone(self, chunk: Chunk) -> Answered | None:
        """The chunk with no other one under way, so that a death is its own doing."""
        try:
            return self._pool.submit(answer_chunk, chunk).result()
        except BrokenProcessPool:
            self._renew()
            return None

    def _renew(self) -> None:
        """New processes for dead ones.

        Raises: SourceError when not even idle ones live
        """
        self.stop()
        self._open()
        try:
            with _interrupts_wait():
                started = self._pool.submit(os.getpid)
            started.result()
        except BrokenProcessPool:
            raise SourceError(
                "worker processes cannot start: a script must call vramcast.sweep under "
                "`if __name__ == \"__main__\":`, or use workers=1"
            ) from None


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Workers that start here hear of no interrupt before they can ignore it: they would say so in a traceback."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent(watched: Connection) -> None:
    """In a worker: leave interrupts to the parent, and end when it does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def watch() -> None:
        watched.poll(None)  # ready only when the other end is closed
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
