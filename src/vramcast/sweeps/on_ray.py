"""Answers on a Ray cluster: one task per chunk, a bounded number of them under way."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final

from vramcast.errors import Note, SourceError
from vramcast.sweeps.engines import Answered, Chunk, Engine, Settings, answer_chunk
from vramcast.version import __version__

QUEUED: Final = 2
"""Chunks per core that are under way: one at work, one waiting."""

RETRIES: Final = 3
"""How often Ray gives a chunk to another process when one dies or its machine is lost."""

CONNECT_SECONDS: Final = 5.0

WAIT_SECONDS: Final = 1.0
"""Longest wait before signals are looked at."""


@contextmanager
def start(settings: Settings) -> Iterator[Engine]:
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
