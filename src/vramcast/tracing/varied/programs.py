"""A run as a program of its sizes: from tapes of a few settings, the tape of any other, without running it.

Runs that differ in sizes alone make the same calls in the same order and free the same blocks in the same places, and
only what a call takes within itself may differ: partial results, workspaces, other kernels for other sizes. So a run is
a list of calls, frees and marks; every number in a call is found as a function of the axes, and a call whose operator
has a rule is asked again for the numbers at a new setting. Every program is held against the tapes it was made of, and
against others that it has not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import Any, Final, NamedTuple

from vramcast.domain.program import Category
from vramcast.tracing.tape import Action, Aside, Block, Called, Mark, Origin, Phase, Tape
from vramcast.tracing.varied.calls import Asked, Ints
from vramcast.tracing.varied.sizes import Point, Size, sizes_of

NOWHERE: Final = Origin(Phase.SETUP, "", 0, 0)

Ask = Callable[[str, Ints, tuple[float, ...], frozenset[str]], Asked]
"""What a call does for other numbers: `Asking.ask`."""


class Sample(NamedTuple):
    """A run at one setting."""

    point: Point
    tape: Tape


class Differs(Exception):
    """Two runs are not the same program."""


class Unread(Exception):
    """A number that no sum of the family explains, of this operator."""

    def __init__(self, operator: str) -> None:
        super().__init__(operator)
        self.operator = operator


class Free(NamedTuple):
    """A block of an earlier item is freed: the so-manieth that it leaves behind."""

    item: int
    place: int


class Named(NamedTuple):
    """A mark, or what a run told the allocator beside."""

    action: Action | None  # None: a mark
    name: str = ""
    number: int = 0  # of the optimizer, of the stream or pool
    block: Free | None = None
    stream: int = 0
    stack: int = 0


class Made(NamedTuple):
    """A call, or a block that no call made (template "")."""

    template: str
    ints: Ints
    floats: tuple[float, ...]
    blocks: tuple[Block, ...]
    events: tuple[int, ...]  # block + 1, negative where it is freed within the call
    kept: tuple[int, ...]  # blocks + 1 that it leaves behind

    @property
    def workspaces(self) -> frozenset[str]:
        """Those that it is the first to need."""
        return frozenset(self.blocks[number - 1].name for number in self.kept
                         if self.blocks[number - 1].category is Category.WORKSPACES)

    @property
    def operator(self) -> str:
        return self.blocks[0].operator if self.blocks else self.template.partition('"')[2].partition('"')[0]


Item = Made | Free | Named


def items_of(tape: Tape) -> list[Item]:
    """A tape as what happens in it, calls whole."""
    found: list[Item] = []
    places: dict[int, Free] = {}  # block -> who left it
    named = tape.moments()
    calls = iter([*tape.calls, Called(len(tape.events) + 1, 0, "", (), ())])
    call, position, events = next(calls), 0, tape.events
    while True:
        for moment in named.get(position, ()):
            found.append(_named(moment, places))
        while call.begin == call.end == position:
            found.append(Made(call.template, call.ints, call.floats, (), (), ()))
            call = next(calls)
        if position >= len(events):
            return found
        event = events[position]
        if call.begin == position:
            made, end = _made(tape, call), call.end
            call = next(calls)
        elif event < 0:
            found.append(places.pop(-event - 1))
            position += 1
            continue
        else:
            block = tape.blocks[event - 1]
            made, end = Made("", (), (), (block,), (1,), (1,)), position + 1
        for place, number in enumerate(made.kept):
            places[made.blocks[number - 1].index] = Free(len(found), place)
        found.append(made)
        for inside in range(position + 1, end):
            found += [_named(moment, places) for moment in named.get(inside, ())]
        position = end


def _made(tape: Tape, call: Called) -> Made:
    numbers: dict[int, int] = {}
    blocks: list[Block] = []
    events: list[int] = []
    for event in tape.events[call.begin:call.end]:
        index = abs(event) - 1
        if event > 0:
            blocks.append(tape.blocks[index])
            numbers[index] = len(blocks)
            events.append(len(blocks))
        elif index in numbers:
            events.append(-numbers[index])
        else:
            raise Unread(tape.blocks[index].operator)  # a call that frees what it has not made
    ended = {-event for event in events if event < 0}
    kept = tuple(number for number in range(1, len(blocks) + 1) if number not in ended)
    return Made(call.template, call.ints, call.floats, tuple(blocks), tuple(events), kept)


def _named(moment: Mark | Aside, places: dict[int, Free]) -> Named:
    if isinstance(moment, Mark):
        return Named(None, moment.name, moment.optimizer)
    held = places.get(moment.block)
    return Named(moment.action, "", moment.number, held, moment.stream, moment.stack)


class _Call(NamedTuple):
    """A call that runs make once or many times, with its numbers as functions."""

    template: str
    ints: tuple[int, ...]  # indices of the program's sizes
    floats: tuple[float, ...]
    workspaces: frozenset[str]
    sizes: tuple[int, ...] | None  # the same of its blocks, where they are known without asking
    first: Made


class _Plan(NamedTuple):
    """What a call does at one setting."""

    events: tuple[int, ...]
    sizes: list[int]  # of its blocks [bytes]
    blocks: Sequence[Block]  # what they are


class _Form(NamedTuple):
    """A tape whose sizes are left open."""

    tape: Tape
    begins: list[int]  # events before every item
    places: list[tuple[int, int]]  # of every block: the call whose plan has its size, and where


class Program:
    """Makes the tape of any setting."""

    def __init__(self, samples: Sequence[Sample], ask: Ask, has_rule: Callable[[str], bool]) -> None:
        """Read from runs.

        Args:
            ask: what a call does for other numbers
            has_rule: whether an operator, by its template, may do something else for other sizes

        Raises: Differs, Unread
        """
        self._ask, self._points = ask, [sample.point for sample in samples]
        self.sizes: list[Size] = []  # every distinct one
        self._known: dict[tuple[int, ...], int] = {}  # values at the samples -> index
        self._asked: dict[tuple[str, Ints, frozenset[str]], Asked] = {}
        runs = [items_of(sample.tape) for sample in samples]
        self._items = runs[0]
        shape = list(map(shape_of, runs[0]))
        if any(list(map(shape_of, run)) != shape for run in runs):
            raise Differs
        self.calls: list[_Call] = []
        self._forms: dict[tuple[bool, tuple[tuple[int, ...], ...]], _Form] = {}
        self.begins: list[int] = []  # events before every item, of the tape made last
        self.settled: dict[int, _Call] = {}  # call -> the same, with sizes
        self.open: list[list[Size]] = []  # numbers that several functions explain
        self.of_item: dict[int, int] = {}  # item -> its call
        self._read(runs, has_rule)

    def _read(self, runs: list[list[Item]], has_rule: Callable[[str], bool]) -> None:
        known: dict[Any, int] = {}
        for index, item in enumerate(self._items):
            if not isinstance(item, Made):
                continue
            made: list[Made] = [run[index] for run in runs]  # type: ignore[misc]
            shapes = tuple((one.events, tuple(block.num_bytes for block in one.blocks)) for one in made)
            key = item.template, item.workspaces, tuple(one.ints for one in made), shapes
            if key not in known:
                known[key] = len(self.calls)
                self.calls.append(self._call(made, has_rule))
            self.of_item[index] = known[key]

    def _call(self, made: list[Made], has_rule: Callable[[str], bool]) -> _Call:
        first = made[0]
        is_constant = all(one.ints == first.ints for one in made)
        is_asked = bool(first.template) and not is_constant and first.template[0] != "?" and has_rule(first.template)
        if is_asked:
            try:
                ints = tuple(self._size(values, first) for values in zip(*(one.ints for one in made), strict=True))
            except Unread:
                is_asked = False
        if is_asked and all(self._does(one) for one in made):
            return _Call(first.template, ints, first.floats, first.workspaces, None, first)
        if any(one.events != first.events for one in made):
            raise Unread(first.operator)
        sizes = zip(*([block.num_bytes for block in one.blocks] for one in made), strict=True)
        found = tuple(self._size(values, first) for values in sizes)
        return _Call(first.template, (), first.floats, first.workspaces, found, first)

    def _does(self, made: Made) -> bool:
        """Whether the call, asked alone, does what it did in the run."""
        asked = self._asked_for(made.template, made.ints, made.floats, made.workspaces)
        return asked.events == made.events and all(
            one.num_bytes == other.num_bytes for one, other in zip(asked.blocks, made.blocks, strict=True)
        )

    def _asked_for(self, template: str, ints: Ints, floats: tuple[float, ...], workspaces: frozenset[str]) -> Asked:
        key = template, ints, workspaces
        found = self._asked.get(key)
        if found is None:
            found = self._asked[key] = self._ask(template, ints, floats, workspaces)
        return found

    def _answer(self, call: _Call, numbers: list[int]) -> Asked:
        ints = tuple([numbers[size] for size in call.ints])
        return self._asked_for(call.template, ints, call.floats, call.workspaces)

    def _size(self, values: tuple[int, ...], made: Made) -> int:
        found = self._known.get(values)
        if found is None:
            candidates = sizes_of(values, self._points)
            if not candidates:
                raise Unread(made.operator)
            if len(candidates) > 1:
                self.open.append(candidates)
            found = self._known[values] = len(self.sizes)
            self.sizes.append(candidates[0])
        return found

    def settle(self, points: Sequence[Point]) -> None:
        """Ask every call for many settings: what is one function of the axes at all of them need not be asked again."""
        points = [*points, *self._points]
        of_all = [[size.whole(point) for size in self.sizes] for point in points]
        for index, call in enumerate(self.calls):
            if call.sizes is not None:
                continue
            asked = [self._answer(call, numbers) for numbers in of_all]
            events = asked[0].events
            if any(one.events != events for one in asked):
                continue
            found = [
                sizes_of(values, points, floors=False)
                for values in zip(*([block.num_bytes for block in one.blocks] for one in asked), strict=True)
            ]
            if all(found):
                first = call.first._replace(blocks=tuple(asked[0].blocks), events=events)
                sizes = tuple(range(len(self.sizes), len(self.sizes) + len(found)))
                self.sizes += [candidates[0] for candidates in found]
                self.settled[index] = call._replace(sizes=sizes, first=first)

    def tape(self, point: Point, *, is_asked: bool = False) -> Tape:
        """The tape of a run at that setting; with every call asked again, or those alone that are not settled."""
        numbers = [size.whole(point) for size in self.sizes]
        settled = {} if is_asked else self.settled
        plans = [self._plan(settled.get(index, call), numbers) for index, call in enumerate(self.calls)]
        patterns = is_asked, tuple([plan.events for index, plan in enumerate(plans) if index not in settled])
        form = self._forms.get(patterns)
        if form is None:
            form = self._forms[patterns] = self._formed(plans)
        self.begins = form.begins
        blocks = [copy(block) for block in form.tape.blocks]
        for block, (call, number) in zip(blocks, form.places, strict=True):
            block.num_bytes = plans[call].sizes[number]
        return Tape(blocks=blocks, events=form.tape.events, marks=form.tape.marks, asides=form.tape.asides)

    def _formed(self, plans: Sequence[_Plan]) -> _Form:
        """Which blocks come and go where every call does what its plan says; how large they are is left open."""
        tape, begins, places = Tape(), list[int](), list[tuple[int, int]]()
        left: list[list[Block]] = []  # by every item
        for index, item in enumerate(self._items):
            begins.append(len(tape.events))
            if isinstance(item, Free):
                tape.end(left[item.item][item.place])
                left.append([])
            elif isinstance(item, Named):
                _say(tape, item, left)
                left.append([])
            else:
                call = self.of_item[index]
                left.append(_play(tape, item, plans[call]))
                places += [(call, event - 1) for event in plans[call].events if event > 0]
        return _Form(tape, begins, places)

    def _plan(self, call: _Call, numbers: list[int]) -> _Plan:
        if call.sizes is not None:
            return _Plan(call.first.events, [numbers[size] for size in call.sizes], call.first.blocks)
        asked = self._answer(call, numbers)
        if len(asked.kept) != len(call.first.kept):
            raise Unread(call.first.operator)
        return _Plan(asked.events, [block.num_bytes for block in asked.blocks], asked.blocks)


def _play(tape: Tape, item: Made, plan: _Plan) -> list[Block]:
    """The blocks that a call leaves behind, who asked for them as in the run that it was read from."""
    origin = item.blocks[0].origin if item.blocks else NOWHERE
    made: list[Block] = []
    for event in plan.events:
        if event > 0:
            like = plan.blocks[event - 1]
            block = tape.add(plan.sizes[event - 1], like.stream, like.operator, origin)
            block.category, block.name = like.category, like.name
            made.append(block)
        else:
            tape.end(made[-event - 1])
    kept = [block for block in made if block.died is None]
    for block, number in zip(kept, item.kept, strict=True):
        known = item.blocks[number - 1]
        block.category, block.name, block.origin = known.category, known.name, known.origin
    return kept


def _say(tape: Tape, item: Named, left: list[list[Block]]) -> None:
    if item.action is None:
        tape.mark(item.name, item.number)
        return
    block = -1 if item.block is None else left[item.block.item][item.block.place].index
    tape.asides.append(Aside(len(tape.events), item.action, block, item.number, item.stream, item.stack))


def shape_of(item: Item) -> Any:
    """What two runs of one program share."""
    if isinstance(item, Made):
        return item.template, len(item.kept), item.workspaces
    return item


def differences(made: Tape, run: Tape) -> Iterator[str]:
    """Where the tape of a program is not that of a run: nothing where every block, event and mark is equal."""
    if made.events != run.events:
        yield "events"
    if any(
        (one.num_bytes, one.stream) != (other.num_bytes, other.stream)
        for one, other in zip(made.blocks, run.blocks, strict=False)
    ):
        yield "sizes"
    if [mark[:3] for mark in made.marks] != [mark[:3] for mark in run.marks] or made.asides != run.asides:
        yield "marks"
