"""`vramcast.sweep`: read the questions, answer those the journal lacks, write the results, and say how far it is."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from vramcast import report
from vramcast.errors import SourceError, VramcastError
from vramcast.report.messages import Words
from vramcast.sweeps.engines import Chunk, Engine, Settings, failed, question_key, record_line, start
from vramcast.sweeps.journal import ENDING, Journal
from vramcast.sweeps.results import ANSWERED, FAILED, Row, check_output, columns_of, write_results
from vramcast.sweeps.spec import MOST_QUESTIONS, Sweep, normalised, read_sweep

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID


LINE_SECONDS: Final = 5.0
"""Time between two plain lines."""


class Pace:
    """Answers per second since the start, and what is left at that pace."""

    def __init__(self, done: int, total: int) -> None:
        self.before, self.done, self.total = done, done, total
        self._start = time.monotonic()

    @property
    def rate(self) -> float:
        """Questions per second of this run; 0 before the first."""
        return (self.done - self.before) / max(time.monotonic() - self._start, 1e-9)

    def text(self, words: Words) -> str:
        """One line."""
        rate = self.rate
        left = clock((self.total - self.done) / rate) if rate else "?"
        return words("sweep_progress", done=f"{self.done:,}", total=f"{self.total:,}", rate=f"{rate:,.0f}", left=left)


def clock(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> clock(3725)
    '1:02:05'
    """
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


class Progress:
    """Who is told how far a sweep is; this one tells nobody."""

    def begin(self, done: int, total: int) -> None:
        """So many answers were there already."""

    def advance(self, count: int) -> None:
        """More answers have come."""

    def end(self) -> None:
        """No more will come."""


class PlainProgress(Progress):
    """A line at the beginning, at the end and every few seconds."""

    def __init__(self, words: Words) -> None:
        self._words = words

    def begin(self, done: int, total: int) -> None:
        self._pace = Pace(done, total)
        self._said = time.monotonic()
        if done:
            print(self._words("sweep_resumed", done=f"{done:,}", total=f"{total:,}"), file=sys.stderr, flush=True)

    def advance(self, count: int) -> None:
        self._pace.done += count
        if time.monotonic() - self._said >= LINE_SECONDS:
            self._said = time.monotonic()
            print(self._pace.text(self._words), file=sys.stderr, flush=True)

    def end(self) -> None:
        print(self._pace.text(self._words), file=sys.stderr, flush=True)


class BarProgress(Progress):
    """A bar that is drawn in place."""

    def __init__(self, words: Words) -> None:
        self._words = words

    def begin(self, done: int, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._pace = Pace(done, total)
        self._bar: Bar = Progress(BarColumn(), TextColumn("{task.description}"), console=Console(stderr=True))
        self._task: TaskID = self._bar.add_task(self._pace.text(self._words), total=total, completed=done)
        self._bar.start()

    def advance(self, count: int) -> None:
        self._pace.done += count
        self._bar.update(self._task, completed=self._pace.done, description=self._pace.text(self._words))

    def end(self) -> None:
        self._bar.stop()


CHUNK_SECONDS: Final = 0.25
"""Work of one chunk: much more than handing it over costs, little enough to lose."""

LARGEST_CHUNK: Final = 256


class WorkerDied(VramcastError):
    """A question that killed every process it was given to."""

    exit_code = 70


class Interrupted(SourceError):
    """The user or the system stopped the sweep; what was answered is kept."""

    exit_code = 130


class Results:
    """The answers of a sweep, in the order of its questions: iterate for rows, each a dictionary by column."""

    def __init__(self, rows: Callable[[], Iterator[Row]], columns: Mapping[str, type], path: Path | None) -> None:
        self.columns = tuple(columns)
        self.path = path
        self.fitting = self.failing = 0
        self.errors: Counter[str] = Counter()
        self._rows = rows

    def counted(self) -> Iterator[Row]:
        """The rows, counted by verdict as they pass."""
        for row in self._rows():
            if "error" in row:
                self.errors[row["error"]] += 1
            elif row["fits"]:
                self.fitting += 1
            else:
                self.failing += 1
            yield row

    def __iter__(self) -> Iterator[Row]:
        return self._rows()

    def __len__(self) -> int:
        return self.fitting + self.failing + self.errors.total()

    def _repr_html_(self) -> str:
        """How many fit, and the first rows."""
        from vramcast.report.written.brief import SHOWN_ROWS, sweep_brief
        from vramcast.report.written.html import cell

        counts = {"total": len(self), "fitting": self.fitting, "failing": self.failing, "errors": self.errors.total()}
        asked = [name for name in self.columns if name not in ANSWERED and name not in FAILED]
        return cell(sweep_brief(counts, asked, list(islice(self, SHOWN_ROWS)), report.messages.words_here()))


def sweep(
    questions: str | Path | Mapping[str, Any], *, out: str | Path | None = None,
    defaults: Mapping[str, Any] | None = None, progress: Progress | None = None, limit: int = MOST_QUESTIONS,
    restart: bool = False, **settings: Any,
) -> Results:
    """Answers to all questions of a file, or of a mapping with the same tables.

    Args:
        questions: a TOML, YAML, CSV or JSONL file, or {"defaults": {...}, "axes": {...}, ...}
        out: results.parquet, results.csv or results.jsonl; a journal beside it lets an interrupted sweep go on. None:
            the answers are only returned
        defaults: options of every question that the file says nothing else about
        progress: who is told how far it is
        limit: most questions a product may have
        restart: drop what a journal holds, instead of going on from it
        settings: engine="local" or "ray", workers=number of processes, address=that of a Ray cluster

    Returns: the answers; a question that cannot be answered has `error` and `message` instead
    Raises: VramcastError of one sentence when the questions, the output or the machines cannot be used
    """
    how = Settings(**settings)
    read = read_sweep(questions, defaults=defaults or {}, limit=limit)
    columns = columns_of(read.names)
    folder, path = None, None if out is None else Path(out)
    if path is not None:
        check_output(path, questions)
    else:
        folder = TemporaryDirectory(prefix="vramcast-sweep-")
    beside = path or Path(folder.name if folder else "") / "sweep"
    with _journal(beside, read, restart=restart) as journal:
        _answer(read, journal, how, progress or Progress())
        results = Results(partial(_rows, journal, folder), columns, path)
        if path is None:
            deque(results.counted(), maxlen=0)
        else:
            write_results(path, columns, results.counted())
    return results


def _rows(journal: Journal, folder: TemporaryDirectory[str] | None) -> Iterator[Row]:
    """The rows of a journal; a temporary folder that it lies in lives as long as somebody can ask for them."""
    yield from journal.rows()


@contextmanager
def _journal(path: Path, read: Sweep, *, restart: bool) -> Iterator[Journal]:
    journal = Journal(path.with_name(path.name + ENDING), read, restart=restart)
    try:
        yield journal
    finally:
        journal.close()


def _answer(read: Sweep, journal: Journal, how: Settings, progress: Progress) -> None:
    """Bring the journal up to all questions of the sweep.

    Raises: Interrupted after SIGINT or SIGTERM, once the chunks under way are kept
    """
    left = read.size - len(journal)
    progress.begin(len(journal), read.size)
    with start(how, size=left) as engine, _signals() as stopped:
        pace = _ChunkSize()
        killers: list[Chunk] = []
        try:
            chunks = _until(stopped, _chunks(_unanswered(read, journal), pace))
            for chunk in _run(engine, chunks, journal, pace, progress):
                killers.append(chunk)
            singles = _until(stopped, iter([(item,) for chunk in killers for item in chunk]))
            for ((place, question),) in _run(engine, singles, journal, pace, progress):
                died = failed(WorkerDied("the process that answered it died, every time; it may need too much memory"))
                journal.append([place], [record_line(place, question, died)])
        finally:
            progress.end()
    if stopped.is_set():
        raise Interrupted(
            "stopped: {:,} of {:,} questions are answered and kept in {}; the same command goes on from there",
            len(journal), read.size, journal.path.name
        )


def _run(
    engine: Engine, chunks: Iterator[Chunk], journal: Journal, pace: _ChunkSize, progress: Progress
) -> Iterator[Chunk]:
    """Answer chunks into the journal; yields those that killed their process."""
    for chunk, result in engine.run(chunks):
        if result is None:
            yield chunk
            continue
        journal.append((place for place, _ in chunk), result.lines)
        pace.note(len(chunk), result.seconds)
        progress.advance(len(chunk))


class _ChunkSize:
    """How many questions make a chunk, from how long they have taken so far."""

    def __init__(self) -> None:
        self.size = 1
        self._questions, self._seconds = 0, 0.0

    def note(self, questions: int, seconds: float) -> None:
        """A chunk is done."""
        self._questions += questions
        self._seconds += seconds
        wanted = CHUNK_SECONDS * self._questions / max(self._seconds, 1e-9)
        self.size = max(1, min(LARGEST_CHUNK, 4 * self.size, int(wanted)))


def _unanswered(read: Sweep, journal: Journal) -> Iterator[tuple[int, dict[str, Any]]]:
    """The questions that the journal has no answer to, with their places."""
    for place, question in enumerate(read.questions()):
        if not journal.has(place) or journal.key(place) != question_key(normalised(question)):
            yield place, question


def _chunks(questions: Iterator[tuple[int, dict[str, Any]]], pace: _ChunkSize) -> Iterator[Chunk]:
    while chunk := tuple(islice(questions, pace.size)):
        yield chunk


def _until(stopped: threading.Event, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    for chunk in chunks:
        if stopped.is_set():
            return
        yield chunk


@contextmanager
def _signals() -> Iterator[threading.Event]:
    """An event that the first SIGINT or SIGTERM sets; a second one ends the process at once, as without us."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.set()
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in before:
        signal.signal(number, stop)
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
