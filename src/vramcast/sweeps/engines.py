"""Where questions are answered: on this machine, in processes of their own or in this one, or on a Ray cluster.

Answers on a Ray cluster: one task per chunk, a bounded number of them under way.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from hashlib import blake2b
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple, Protocol

from vramcast.api.answers import answer_to
from vramcast.domain.model import Checkpoint
from vramcast.errors import InvalidSpec, Note, SourceError, UnknownName, VramcastError
from vramcast.sources.resolve import resolve_checkpoint
from vramcast.sweeps.journal import line_of
from vramcast.sweeps.results import Row, answer_row, question_row
from vramcast.sweeps.spec import COMMANDS, Question, normalised
from vramcast.version import __version__

RETRIES: Final = 3
"""How often Ray gives a chunk to another process when one dies or its machine is lost."""

CONNECT_SECONDS: Final = 5.0

WAIT_SECONDS: Final = 1.0
"""Longest wait before signals are looked at."""


@contextmanager
def start_on_ray(settings: Settings) -> Iterator[Engine]:
    """The cluster at an address; without one that of RAY_ADDRESS, else a cluster of this machine alone.

    Raises: SourceError when Ray is missing or no cluster can be reached
    """
    try:
        import ray
    except ImportError:
        raise SourceError("--engine ray needs Ray; install it with pip install 'vramcast[ray]'") from None
    ours = not ray.is_initialized()
    if ours:
        _reach(settings.address or "")
        try:
            ray.init(address=settings.address, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            where = settings.address or "this machine"
            raise SourceError("Ray at {} cannot be used: {}", where, " ".join(str(error).split())[:300]) from None
    try:
        yield _Cluster(ray, settings.workers)
    finally:
        if ours:
            ray.shutdown()


def _reach(address: str) -> None:
    """Ray itself tries for minutes to reach a HOST:PORT where nobody listens.

    Raises: SourceError when nobody does
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise SourceError("Ray at {} cannot be used: {}", address, error) from None


def answer_on_node(chunk: Chunk, version: str) -> Answered:
    """What a task runs; answers of another version must not get among the others.

    Raises: SourceError on a machine with another version
    """
    if version != __version__:
        raise SourceError(
            "a machine of the cluster has vramcast {}, this one {}; install the same", __version__, version
        )
    return answer_chunk(chunk)


class _Cluster:
    """A connection to a cluster."""

    def __init__(self, ray: Any, workers: int | None) -> None:
        self._ray = ray
        self.workers = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._task = ray.remote(num_cpus=1, max_retries=RETRIES)(answer_on_node)

    def run(self, chunks: Iterator[Chunk]) -> Iterator[tuple[Chunk, Answered | None]]:
        running: dict[Any, Chunk] = {}
        try:
            while True:
                for chunk in islice(chunks, QUEUED * self.workers - len(running)):
                    running[self._task.remote(chunk, __version__)] = chunk
                if not running:
                    return
                done, _ = self._ray.wait(list(running), timeout=WAIT_SECONDS)
                for task in done:
                    yield running.pop(task), self._result(task)
        finally:
            for task in running:
                self._ray.cancel(task, force=True)

    def _result(self, task: Any) -> Answered | None:
        errors = self._ray.exceptions
        try:
            found: Answered = self._ray.get(task)
        except (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError):
            self._require_living_workers()
            return None
        except errors.RayTaskError as error:
            raise SourceError(_cause(error)) from None
        except errors.RayError as error:
            raise SourceError("Ray: {}", " ".join(str(error).split())[:300]) from None
        return found

    def _require_living_workers(self) -> None:
        """That a process lives which has nothing to answer: otherwise no question is to blame for a death.

        Raises: SourceError when none does
        """
        try:
            self._ray.get(self._task.remote((), __version__))
        except self._ray.exceptions.RayError as error:
            raise SourceError(
                "processes of the cluster die before they answer anything: {}", " ".join(str(error).split())[:300]
            ) from None


def _cause(error: Any) -> str:
    """One sentence of what failed on a machine of the cluster."""
    cause = getattr(error, "cause", None) or error
    if isinstance(cause, SourceError):
        return str(cause)
    last = str(cause).strip().splitlines()[-1] if str(cause).strip() else type(cause).__name__
    return Note(
        "a machine of the cluster cannot answer: {}; install vramcast {} on all of them", last[:300], __version__
    )


MOST_MODELS: Final = 512
"""Models a process keeps; the oldest go first [count]."""

Chunk = tuple[tuple[int, Question], ...]
"""Questions with their places in the sweep."""


class Answered(NamedTuple):
    """A chunk's records as lines of the journal, and how long they took."""

    lines: tuple[bytes, ...]
    seconds: float


class Models:
    """Models by name, each resolved once; a name that could not be resolved is not tried again."""

    def __init__(self, resolve: Callable[[str], Checkpoint] = resolve_checkpoint) -> None:
        self._resolve = resolve
        self._known: dict[str, Checkpoint | VramcastError] = {}

    def __call__(self, name: str) -> Checkpoint:
        """The model, or the error that it gave the first time."""
        if name not in self._known:
            if len(self._known) >= MOST_MODELS:
                del self._known[next(iter(self._known))]
            try:
                self._known[name] = self._resolve(name)
            except VramcastError as error:
                self._known[name] = error
        found = self._known[name]
        if isinstance(found, VramcastError):
            raise found.with_traceback(None)
        return found


_models = Models()
"""Of this process."""


def question_key(question: Mapping[str, Any]) -> str:
    """What identifies an answer: the question as its options understand it, and the version that answered."""
    text = json.dumps([__version__, question], sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=8).hexdigest()


def answer_chunk(chunk: Chunk) -> Answered:
    """The records of a chunk, in its order."""
    start = time.perf_counter()
    lines = tuple(record_line(place, question, answered(question)) for place, question in chunk)
    return Answered(lines, time.perf_counter() - start)


def record_line(place: int, question: Question, result: Row) -> bytes:
    """One line of the journal."""
    normal = normalised(question)
    return line_of(place, question_key(normal), question_row(normal) | result)


def answered(question: Question) -> Row:
    """The answer's columns; every error becomes its class and sentence, as the command line would print it."""
    try:
        return answer_row(_answer(question))
    except VramcastError as error:
        return failed(error)
    except (RecursionError, MemoryError, OverflowError):
        return failed(InvalidSpec("the question is larger than can be answered"))
    except Exception as error:
        return {"error": "InternalError", "message": f"{type(error).__name__}: {error}; this is a bug of vramcast"}


def failed(error: VramcastError) -> Row:
    """The columns of a question that cannot be answered."""
    return {"error": type(error).__name__, "message": str(error)}


def _answer(question: Question) -> Any:
    options = dict(question)
    command = options.pop("command", None)
    if not isinstance(command, str) or command not in COMMANDS:
        raise UnknownName.of("command", str(command), COMMANDS)
    return answer_to(command, options, resolve=_models, with_changes=False)


class Settings(NamedTuple):
    """How a sweep is run."""

    engine: str = "local"
    workers: int | None = None  # None: as many as there are cores
    address: str | None = None  # of a Ray cluster


class Engine(Protocol):
    """Answers chunks in any order, taking them from the iterator as it has room for them: never far ahead."""

    @property
    def workers(self) -> int:
        """Processes that answer at the same time."""
        ...

    def run(self, chunks: Iterator[Chunk]) -> Iterator[tuple[Chunk, Answered | None]]:
        """Each chunk with its records, or None where it killed every process it was given to."""
        ...


QUEUED: Final = 2
"""Chunks per worker that are under way: one at work, one waiting."""


@contextmanager
def _local(settings: Settings, *, size: int) -> Iterator[Engine]:
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


def _on_ray(settings: Settings, *, size: int) -> AbstractContextManager[Engine]:
    return start_on_ray(settings)


ENGINES: Final[dict[str, Callable[..., AbstractContextManager[Engine]]]] = {"local": _local, "ray": _on_ray}


def start(settings: Settings, *, size: int) -> AbstractContextManager[Engine]:
    """The engine that settings ask for, for a sweep of so many questions.

    Raises: UnknownName for another engine, InvalidSpec for settings it has no use for
    """
    if settings.engine not in ENGINES:
        raise UnknownName.of("sweep engine", settings.engine, ENGINES)
    if settings.workers is not None and settings.workers < 1:
        raise InvalidSpec("workers={} must be 1 or more", settings.workers)
    if settings.address is not None and settings.engine != "ray":
        raise InvalidSpec("--address is that of a Ray cluster; add --engine ray")
    return ENGINES[settings.engine](settings, size=size)
