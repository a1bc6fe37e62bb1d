"""The picture of a reading, on the live screen and for `--once`: cards and the processes on them, the fullest first.

rich draws it, which the package needs anyway; its alternate screen leaves the terminal as it was.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from vramcast.domain.observation import GpuSample, Holder, ProcessSample, Reading
from vramcast.report.messages import Words
from vramcast.units import GIB, format_bytes
from vramcast.watch import outputs
from vramcast.watch.following import Expected, Followed, Following
from vramcast.watch.outputs import Output, clock

EVENTS: Final = 5
PRINTED_WIDTH: Final = 120
"""Columns where there is no terminal that has a width."""
INDENT: Final = " " * 5


class Column(NamedTuple):
    """One column of the cards, shown from a width on."""

    key: str
    from_width: int
    text: Callable[[GpuSample], str]


COLUMNS: Final = (
    Column("sm", 0, lambda sample: outputs.share(sample.sm_share)),
    Column("bandwidth", 100, lambda sample: outputs.share(sample.memory_share)),
    Column("power", 76, outputs.power),
    Column("heat", 64, outputs.heat),
    Column("clock", 112, outputs.clock_rate),
    Column("pcie", 132, lambda one: outputs.traffic(one.pcie_sent_bytes_per_s, one.pcie_received_bytes_per_s)),
    Column("links", 150, lambda one: outputs.traffic(one.link_sent_bytes_per_s, one.link_received_bytes_per_s)),
)
PROCESS_COLUMNS: Final = (
    ("gpu", 0), ("pid", 0), ("memory", 0), ("sm", 0), ("growth", 90), ("user", 100), ("where", 110),
)
"""Columns of the processes, and the width from which each is shown; the command takes what is left."""
LEFT: Final = frozenset({"gpu", "model", "memory of card", "user", "where", "command"})
"""Columns that begin at the left."""


class View:
    """What is drawn, wherever it goes."""

    def __init__(self, head: Sequence[str], words: Words, expected: dict[str, Expected]) -> None:
        printed = Console().is_terminal or "COLUMNS" in os.environ
        self.console = Console(highlight=False, width=None if printed else PRINTED_WIDTH)
        self.events: deque[str] = deque(maxlen=EVENTS)
        self._head = head
        self._words = words
        self._expected = expected

    @property
    def plain(self) -> bool:
        """Whether the terminal takes ASCII only."""
        return self.console.options.ascii_only

    def note(self, reading: Reading, following: Following) -> None:
        """Remember what happened, to be shown a while."""
        self.events.extend(f"{clock(event.time_s)}  {following.said(event, self._words)}" for event in reading.events)

    def drawn(self, reading: Reading, following: Following, rows: int | None) -> Group:
        """The whole picture, in so many rows."""
        cards = sorted(following.cards.values(), key=_fullest)
        lines = [Text(", ".join((*self._head, clock(reading.time_s))), style="bold"), Text("")]
        roomy = rows is None or rows >= 3 * len(cards) + EVENTS + 10
        lines += self._cards(cards, roomy=roomy) or [Text(self._words("watch.no_reading"), style="red")]
        events = [Text(text, style="yellow") for text in self.events]
        left = None if rows is None else rows - len(lines) - len(events) - 4
        lines += [Text(""), *self._processes(cards, following, left)]
        lines += [Text(""), *events] if events else []
        for line in lines:
            line.no_wrap, line.overflow = True, "ellipsis"
        return Group(*lines)

    def _cards(self, cards: Sequence[Followed], *, roomy: bool) -> list[Text]:
        columns = [column for column in COLUMNS if self.console.width >= column.from_width]
        keys = ["gpu", "model", "memory of card", *(column.key for column in columns)]
        table = [self._named(keys)] if cards else []
        table += [self._card(followed, columns) for followed in cards]
        head, *rows = _aligned(table, keys) or [Text("")]
        head.stylize("dim")
        lines = [head] if cards else []
        for followed, row in zip(cards, rows, strict=True):
            lines += [row, *self._slices(followed), *(self._below(followed) if roomy else ())]
        return lines

    def _named(self, keys: Sequence[str]) -> list[Text]:
        return [Text(self._words(f"watch.column.{key.split(' ')[0]}")) for key in keys]

    def _card(self, followed: Followed, columns: Sequence[Column]) -> list[Text]:
        sample, width = followed.last, self.console.width
        model = followed.card.model.removeprefix("NVIDIA ")[: 24 if width >= 100 else 16 if width >= 70 else 0]
        index = f"{followed.card.index:>3}"
        if sample is None or followed.lost:
            lost = Text(self._words("watch.lost"), style="bold red")
            return [Text(index), Text(model), lost, *(Text("") for _ in columns)]
        expected = self._expected.get(followed.card.uuid)
        bar = self._bar(sample.memory_used_bytes, sample.card.memory_total_bytes, expected)
        memory = Text.assemble(bar, outputs.memory(sample, self._words))
        return [Text(index), Text(model), memory, *(Text(column.text(sample)) for column in columns)]

    def _bar(self, used: int | None, total: int | None, expected: Expected | None = None) -> Text:
        width = self.console.width
        if used is None or not total or width < 56:
            return Text("")
        style = "red" if used > 0.95 * total else "yellow" if used > 0.85 * total else "green"
        steady = expected.steady_bytes if expected else None
        return Text(outputs.bar(used, total, steady, 20 if width >= 84 else 10, plain=self.plain) + " ", style=style)

    def _slices(self, followed: Followed) -> Iterator[Text]:
        """MIG instances, with memory of their own."""
        for part in followed.last.partitions if followed.last and not followed.lost else ():
            used, total = part.memory_used_bytes, part.memory_total_bytes
            name = self._words("watch.partition", index=part.index, profile=part.profile)
            size = "?" if used is None or total is None else self._words(
                "watch.of", used=f"{used / GIB:.2f}", total=format_bytes(total)
            )
            yield Text.assemble(f"{INDENT}{name:<16}  ", self._bar(used, total), size)

    def _below(self, followed: Followed) -> Iterator[Text]:
        """History, and what stands out."""
        columns = min(80, max(10, self.console.width - 30))
        if len(followed.used) > 1:
            total = followed.card.memory_total_bytes
            curve = outputs.sparkline(followed.used, total, columns, plain=self.plain)
            peak = self._words("watch.peak", peak=format_bytes(followed.peak_bytes))
            yield Text(f"{INDENT}{curve}  {peak}", style="dim")
        if not followed.lost:
            for said in outputs.remarks(followed, self._expected.get(followed.card.uuid), self._words):
                yield Text(INDENT + said, style="cyan")

    def _processes(self, cards: Sequence[Followed], following: Following, rows: int | None) -> list[Text]:
        holding = [
            (followed, process) for followed in cards if followed.last and not followed.lost
            for process in followed.last.processes
        ]
        if not holding:
            return [Text(self._words("watch.nobody"), style="dim")]
        keys = [key for key, from_width in PROCESS_COLUMNS if self.console.width >= from_width] + ["command"]
        shown = holding if rows is None else holding[: max(1, rows)]
        table = [self._process(followed, process, following, keys) for followed, process in shown]
        lines = _aligned([self._named(keys), *table], keys)
        lines[0].stylize("dim")
        rest = holding[len(shown):]
        if rest:
            size = format_bytes(sum(process.memory_bytes or 0 for _, process in rest))
            lines.append(Text(self._words("watch.more_processes", count=len(rest), size=size), style="dim"))
        return lines

    def _process(
        self, followed: Followed, process: ProcessSample, following: Following, keys: Sequence[str]
    ) -> list[Text]:
        slope = following.growth.get((followed.card.uuid, process.pid))
        alive = process.holder is Holder.ALIVE
        cells = {
            "gpu": f"{followed.card.index:>3}", "pid": str(process.pid), "memory": outputs.held(process),
            "sm": outputs.share(process.sm_share), "growth": outputs.growth(slope.per_s) if slope else "",
            "user": process.user[:12], "where": process.container[:24],
            "command": (process.command or process.name) if alive else self._words(f"watch.{process.holder}"),
        }
        return [Text(cells[key], style="" if alive or key != "command" else "red") for key in keys]


def _aligned(rows: Sequence[Sequence[Text]], keys: Sequence[str]) -> list[Text]:
    """Rows with their columns below each other, the first row their heads; a column that nothing fills is left out."""
    filled = [any(row[at].plain for row in rows[1:]) for at in range(len(keys))]
    widths = [max(cell_len(row[at].plain) for row in rows) if filled[at] else 0 for at in range(len(keys))]
    lines = []
    for row in rows:
        line = Text("")
        for key, cell, width in zip(keys, row, widths, strict=True):
            if not width:
                continue
            room = " " * (width - cell_len(cell.plain))
            line = Text.assemble(line, *((cell, room) if key in LEFT else (room, cell)), "  ")
        line.rstrip()
        lines.append(line)
    return lines


def _fullest(followed: Followed) -> tuple[int, int]:
    used = followed.last.memory_used_bytes if followed.last else None
    return -(used or 0), followed.card.index


class Screen(Output):
    """Draws each reading over the last one."""

    name = "screen"

    def __init__(self, head: Sequence[str], words: Words, expected: dict[str, Expected]) -> None:
        self._view = View(head, words, expected)
        self._live = Live(console=self._view.console, screen=True, auto_refresh=False, transient=True)
        self._live.start()

    def write(self, reading: Reading, following: Following) -> None:
        """The screen of one reading."""
        self._view.note(reading, following)
        self._live.update(self._view.drawn(reading, following, self._view.console.height), refresh=True)

    def say(self, text: str) -> None:
        """A sentence among the events: written over the screen it would be lost."""
        self._view.events.append(text)

    def close(self) -> None:
        """Give the terminal back."""
        self._live.stop()


class Once(Output):
    """Prints each reading."""

    def __init__(self, head: Sequence[str], words: Words, expected: dict[str, Expected]) -> None:
        self._view = View(head, words, expected)

    def write(self, reading: Reading, following: Following) -> None:
        """The picture of one reading."""
        self._view.note(reading, following)
        self._view.console.print(self._view.drawn(reading, following, None))
