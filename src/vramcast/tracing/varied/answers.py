"""The peak of a run as a function of its sizes: read from few runs, told as a formula, a map and the largest that fit.

At every setting of the map, and where the largest is looked for, the whole tape of that setting goes through the
allocator, as that of a trace does; the formula is what is allocated at the moments that are the peak somewhere.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import product
from typing import Any, Final

from msgspec.structs import replace

from vramcast.allocator import Settings
from vramcast.domain.trace_job import ScriptJob, TraceJob
from vramcast.domain.varied import Axis, Largest, Piece, Term, VariedAnswer, VariedPoint
from vramcast.domain.verdict import claimed_bytes, usable_bytes
from vramcast.errors import VramcastError
from vramcast.question.varied import at_point, placed
from vramcast.tracing.distributed.groups import parse_world
from vramcast.tracing.result import About, Needs, Run, needs_of, with_interval
from vramcast.tracing.run import ran_job, ran_script
from vramcast.tracing.session import Session
from vramcast.tracing.tape import Tape, live_after
from vramcast.tracing.varied.calls import Asked, Asking
from vramcast.tracing.varied.regions import Region, Survey, spread
from vramcast.tracing.varied.sizes import Point, Size, closest_sum, exact_sum

MOST_ROWS: Final = 10  # of the map, along an axis
GROWTH: Final = 4  # how much further a range goes that nobody gave, where all of it fits
MOST_GROWTHS: Final = 3
LOOKED_AT: Final = 24  # settings that a moment's terms are read from, beside corners
SMALLEST_SHARE: Final = 1e-4  # of a moment's bytes, below which a term is not printed


class Varied:
    """A job with sizes left open."""

    def __init__(self, job: TraceJob | ScriptJob, axes: Sequence[Axis]) -> None:
        """Runs it at few settings.

        Raises: VramcastError of one sentence where it cannot be traced, or what it does is no function of the sizes
        """
        self.job, self.axes = job, placed(axes, job)
        self._card = _Card(job)
        self._last: tuple[Run, About] | None = None
        self._runs: dict[Point, Tape] = {}
        for index, axis in enumerate(self.axes):
            if not axis.is_given:
                self._grow(index)
        self.survey = self._survey()

    def close(self) -> None:
        """torch is as it was."""
        self._card.close()

    def needs(self, point: Point, *, is_asked: bool = False) -> Needs:
        """What a run at that setting needs, as its trace says; with every call asked again, or only where in doubt."""
        return needs_of(self._played(point, is_asked=is_asked), self.about[1])

    def leaves(self, point: Point, headroom: float | None) -> bool:
        """Whether a run at that setting fits and leaves so much of the card free; None: its 90 % interval fits."""
        run = self._played(point, is_asked=True)
        needs = needs_of(run, self.about[1])
        high = with_interval(run, needs).high_bytes if headroom is None else 0
        claimed = claimed_bytes(needed_bytes=needs.rank.needed_bytes, high_bytes=high, headroom=headroom)
        return needs.failure is None and claimed <= usable_bytes(run.capacity_bytes, headroom)

    def _played(self, point: Point, *, is_asked: bool) -> Run:
        return self.about[0]._replace(tape=self.survey.tape(point, is_asked=is_asked))

    @property
    def about(self) -> tuple[Run, About]:
        """The last run, of which all but the tape is the same at every setting."""
        assert self._last is not None
        return self._last

    def _grow(self, axis: int) -> None:
        """Let the range of an axis that nobody gave go as far as a run fits there and can be traced."""
        for _ in range(MOST_GROWTHS):
            one = self.axes[axis]
            point = tuple(each.high if index == axis else each.low for index, each in enumerate(self.axes))
            try:
                self._run(point)
            except VramcastError:
                if one.high <= GROWTH * one.step:
                    raise
                high = one.low + (one.high // GROWTH - one.low) // one.step * one.step
                self.axes = (*self.axes[:axis], replace(one, high=high, is_given=True), *self.axes[axis + 1:])
                return
            if needs_of(*self.about).failure is not None:
                return
            high = one.low + (GROWTH * one.high - one.low) // one.step * one.step
            self.axes = (*self.axes[:axis], replace(one, high=high), *self.axes[axis + 1:])

    def _survey(self) -> Survey:
        return Survey(
            [axis.name for axis in self.axes], tuple(axis.values for axis in self.axes), self._run, self._card.ask,
            self._card.has_rule, self._runs,
        )

    def _run(self, point: Point) -> Tape:
        self._card.close()
        job = at_point(self.job, self.axes, point)
        if isinstance(job, TraceJob):
            self._last = ran_job(job, logs_calls=True)
        else:
            self._last = ran_script(replace(job, logs_calls=True))
        self._runs[point] = self._last[0].tape
        return self._runs[point]


class _Card:
    """A simulated card on which calls are made again, for as long as nothing else runs."""

    def __init__(self, job: TraceJob | ScriptJob) -> None:
        self._session = Session(
            job.gpu, settings=Settings.parse(job.alloc_conf), world=parse_world(size=job.world_size, rank=job.rank)
        )
        self._asking = Asking(self._session.simulation, self._session.device)
        self._stack = ExitStack()
        self._is_open = False

    def ask(self, *call: Any) -> Asked:
        if not self._is_open:
            self._stack.enter_context(self._session.active())
            self._stack.enter_context(self._asking)
            self._is_open = True
        return self._asking.ask(*call)

    def has_rule(self, template: str) -> bool:
        return self._asking.has_rule(template)

    def close(self) -> None:
        self._stack.close()
        self._is_open = False


def varied(job: TraceJob | ScriptJob, axes: Sequence[Axis], headroom: float | None = None) -> VariedAnswer:
    """The answer to `vramcast trace --vary`.

    Args:
        headroom: share of the card that stays free; None: so much that the 90 % interval fits

    Raises: VramcastError of one sentence
    """
    found = Varied(job, axes)
    try:
        return _answer(found, headroom)
    finally:
        found.close()


def _answer(found: Varied, headroom: float | None) -> VariedAnswer:
    largest = [_largest(found, index, headroom) for index in range(len(found.axes))]
    shown = [_shown(axis, one) for axis, one in zip(found.axes, largest, strict=True)]
    points = [_point(found, point) for point in product(*shown)]
    formula, off = _formula(found, points)
    run, about = found.about
    question = {name: value for name, value in about.question.items() if name not in ("batch", "seq_len", "inputs")}
    return VariedAnswer(
        question=question, capacity_bytes=run.capacity_bytes, axes=found.axes, formula=tuple(formula), off_share=off,
        largest=tuple(largest), points=tuple(points), regions=len(found.survey.regions),
        traces=len(found.survey.samples), checked=found.survey.checked, assumptions=about.assumptions,
    )


def _shown(axis: Axis, largest: Largest) -> list[int]:
    """The values of an axis on the map: as far as any setting fits, and one further."""
    values = axis.values
    end = values.index(largest.value) + 2 if largest.value is not None else 2
    return spread(values[:end], MOST_ROWS)


def _at(found: Varied, point: Point) -> dict[str, int]:
    return {axis.name: value for axis, value in zip(found.axes, point, strict=True)}


def _point(found: Varied, point: Point) -> VariedPoint:
    needs = found.needs(point)
    return VariedPoint(
        at=_at(found, point), allocated_bytes=needs.rank.peak.allocated_bytes,
        reserved_bytes=needs.rank.peak.reserved_bytes, device_bytes=needs.rank.needed_bytes,
        fits=needs.failure is None,
    )


def _largest(found: Varied, index: int, headroom: float | None) -> Largest:
    """By bisection, the others at the low ends of their ranges; every verdict is that of the whole tape."""
    values = found.axes[index].values
    base = tuple(axis.low for axis in found.axes)

    def fits(value: int) -> bool:
        return found.leaves((*base[:index], value, *base[index + 1:]), headroom)

    low, high = -1, len(values)
    if fits(values[-1]):
        low = len(values) - 1
    while high - low > 1 and low < len(values) - 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(values[middle]) else (low, middle)
    value = None if low < 0 else values[low]
    others = {axis.name: axis.low for other, axis in enumerate(found.axes) if other != index}
    point = (*base[:index], values[max(0, low)], *base[index + 1:])
    return Largest(
        axis=found.axes[index].name, value=value, at=others, is_end=low == len(values) - 1,
        device_bytes=found.needs(point, is_asked=True).rank.needed_bytes,
    )


def _formula(found: Varied, points: Sequence[VariedPoint]) -> tuple[list[Piece], float]:
    """What is allocated at the moments that are the peak somewhere on the map, and how far off the largest is."""
    settings = [tuple(point.at.values()) for point in points]
    moments: Counter[tuple[int, int]] = Counter()  # region, item
    for setting in settings:
        number, region = found.survey.region_of(setting)
        needs = found.needs(setting)
        moments[number, _item(region, needs)] += 1
    sums: list[tuple[int, Size]] = []
    pieces: list[tuple[Size, Piece]] = []
    for (number, item), count in moments.most_common():
        region = found.survey.regions[number]
        size, is_exact, moment = _moment(region, item)
        sums.append((number, size))
        piece = Piece(
            terms=tuple(_terms(size, found.axes)), moment=moment, share=count / len(settings), is_exact=is_exact,
            within=_within(region, found.axes),
        )
        for place, (one, known) in enumerate(pieces):
            within = _both(known.within, piece.within, found.axes)
            if within is not None and all(one.at(point) == size.at(point) for point in region.corners()):
                pieces[place] = one, replace(known, share=known.share + piece.share, within=within)
                break
        else:
            pieces.append((size, piece))
    off = 0.0
    for setting, point in zip(settings, points, strict=True):
        number, _ = found.survey.region_of(setting)
        told = max(size.at(setting) for region, size in sums if region == number)
        off = max(off, abs(1 - float(told) / max(1, point.allocated_bytes)))
    return [piece for _, piece in pieces], off


Ranges = dict[str, tuple[int, int]]


def _both(one: Ranges, other: Ranges, axes: Sequence[Axis]) -> Ranges | None:
    """The box of two boxes, where it holds nothing else; axes that are whole are absent."""
    joined: Ranges = {}
    volumes = [1, 1, 1]
    for axis in axes:
        whole = axis.low, axis.high
        spans = [one.get(axis.name, whole), other.get(axis.name, whole)]
        spans.append((min(low for low, _ in spans), max(high for _, high in spans)))
        volumes = [
            volume * ((high - low) // axis.step + 1) for volume, (low, high) in zip(volumes, spans, strict=True)
        ]
        if spans[-1] != whole:
            joined[axis.name] = spans[-1]
    return joined if volumes[2] in (volumes[0], volumes[1], volumes[0] + volumes[1]) else None


def _item(region: Region, needs: Needs) -> int:
    """The item of the program during which allocated memory was highest."""
    return bisect_right(region.program.begins, needs.at_peak.event) - 1


def _within(region: Region, axes: Sequence[Axis]) -> dict[str, tuple[int, int]]:
    return {
        axis.name: (values[0], values[-1]) for axis, values in zip(axes, region.box, strict=True)
        if values != axis.values
    }


def _moment(region: Region, item: int) -> tuple[Size, bool, str]:
    """The bytes asked for and alive at the highest point of an item, as a sum of terms, and what it is."""
    points = list(dict.fromkeys((*region.corners(), *region.some(LOOKED_AT))))
    values, said = [], ""
    for point in points:
        tape = region.program.tape(point)
        begins = region.program.begins
        begin, end = begins[item], begins[item + 1] if item + 1 < len(begins) else len(tape.events)
        live = {block.index: block.num_bytes for block in live_after(tape, begin - 1)}
        now = most = sum(live.values())
        for event in tape.events[begin:end]:
            size = tape.blocks[abs(event) - 1].num_bytes
            now += size if event > 0 else -size
            if now > most:
                most = now
                block = tape.blocks[abs(event) - 1]
                said = ", ".join(filter(None, (block.origin.phase.value, block.operator, block.origin.module)))
        values.append(most)
    exact = exact_sum(values, points)
    return exact or closest_sum(values, points), exact is not None, said


def _terms(size: Size, axes: Sequence[Axis]) -> Iterator[Term]:
    """The largest first, at the high ends of the ranges."""
    high = tuple(axis.high for axis in axes)
    sized = [(abs(Size((term,)).at(high)), term) for term in size.terms]
    whole = sum(one for one, _ in sized)
    for worth, (powers, factor) in sorted(sized, key=lambda one: (sum(one[1][0]), -one[0])):
        if worth >= whole * SMALLEST_SHARE or not any(powers):
            yield Term(
                num_bytes=float(factor),
                powers={axis.name: power for axis, power in zip(axes, powers, strict=True) if power},
            )
