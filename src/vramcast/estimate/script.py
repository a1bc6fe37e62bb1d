"""Programs as scripts of integers: what lives when, what the allocator plays, and what tells runs apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final, Generic, TypeVar

from msgspec import Struct
from msgspec.msgpack import encode

from vramcast.allocator.gaps import BODY_BITS, BODY_MASK, REPEAT, Gaps, Run, repeat
from vramcast.domain.program import STEADY_REPEATS, Alloc, Loop, Program, Tensor

PhaseT = TypeVar("PhaseT")
"""What tells the phases of a run apart: those of one process, or the stages of several, by number."""

LONG: Final = 200
"""Events of a round from which on it pays to look whether the next can do anything new [count]."""

MANY: Final = 200
"""Rounds of a single event from which on it pays to play them together [count]."""


class Script(Generic[PhaseT]):
    """The phases of a run, read once: whatever is asked of them later looks at integers alone."""

    def __init__(self, phases: Mapping[PhaseT, Program]) -> None:
        """Read every phase; a body that several loops share is read once."""
        self.tensors: list[Tensor] = []  # in the order in which they appear
        self.bodies: list[tuple[int, ...]] = []  # codes; the loops of a body repeat earlier ones
        self._numbers: dict[Tensor, int] = {}
        self._places: dict[tuple[int, ...], int] = {}  # codes of a body -> its place
        self._read: dict[int, int] = {}  # identity of a body -> its place
        self._left: dict[int, dict[int, int]] = {}  # place -> what a round leaves
        self.phases = {phase: self._place(program) for phase, program in phases.items()}

    @cached_property
    def run(self) -> Run:
        """What the allocator is asked for: all but tensors of no size, which it never sees."""
        requests, bodies = [(tensor.num_bytes, tensor.stream) for tensor in self.tensors], self.bodies
        if not all(num_bytes for num_bytes, _ in requests):
            none = [number for number, (num_bytes, _) in enumerate(requests) if not num_bytes]
            unseen = {*none, *(~number for number in none)}
            bodies = [
                body if unseen.isdisjoint(body) else tuple(code for code in body if code not in unseen)
                for body in bodies
            ]
        return Run(requests, bodies, list(self.phases.values()))

    def live_at_peak(self, phase: PhaseT) -> dict[Tensor, int]:
        """What lives at the (first) highest point of a phase: tensors with their number of live instances.

        First what the phases before it left, then what it adds, both in the order in which they appear there.
        """
        left: dict[int, int] = {}
        for before, place in self.phases.items():
            if before is phase:
                break
            self._add(left, self.bodies[place])
        added: dict[int, int] = {}
        self._add_peak(added, self.phases[phase], _Heights(self))
        live = {number: count for number, count in left.items() if count}
        for number, count in added.items():
            if count:
                live[number] = live.get(number, 0) + count
        return {self.tensors[number]: count for number, count in live.items() if count}

    def _place(self, program: Program) -> int:
        known = self._read.get(id(program))
        if known is None:
            codes = self._codes(program)
            known = self._read[id(program)] = self._places.setdefault(codes, len(self._places))
            if known == len(self.bodies):
                self.bodies.append(codes)
        return known

    def _codes(self, program: Program) -> tuple[int, ...]:
        numbers = self._numbers
        codes: list[int] = []
        for node in program:
            if isinstance(node, Loop):
                if node.count > 0:
                    codes.append(self._loop(node))
                continue
            tensor = node.tensor
            number = numbers.get(tensor)
            if number is None:
                numbers[tensor] = number = len(numbers)
                self.tensors.append(tensor)
            codes.append(number if isinstance(node, Alloc) else ~number)
        return tuple(codes)

    def _loop(self, loop: Loop) -> int:
        """Its code; of a balanced body some rounds are enough."""
        place, rounds = self._place(loop.body), loop.count
        if rounds > STEADY_REPEATS and not any(self._left_by(place).values()):
            rounds = STEADY_REPEATS
        return repeat(rounds, place)

    def _left_by(self, place: int) -> dict[int, int]:
        """What a round of a body leaves; tensors of which nothing is left keep their place in the order."""
        left = self._left.get(place)
        if left is None:
            left = self._left[place] = {}
            self._add(left, self.bodies[place])
        return left

    def _add(self, live: dict[int, int], codes: Sequence[int], times: int = 1) -> None:
        """Add what a stretch leaves."""
        count_of = live.get
        for code in codes:
            if code < 0:
                live[~code] = count_of(~code, 0) - times
            elif code < REPEAT:
                live[code] = count_of(code, 0) + times
            else:
                rounds, place = _loop(code)
                rounds *= times
                for number, count in self._left_by(place).items():
                    live[number] = count_of(number, 0) + count * rounds

    def _add_peak(self, live: dict[int, int], place: int, heights: _Heights) -> None:
        """Add what lives at the (first) highest point of a body."""
        codes, highest = self.bodies[place], heights.of_body(place).highest
        if highest < 0:
            return
        code = codes[highest]
        self._add(live, codes[:highest])
        if code < REPEAT:
            self._add(live, (code,))
            return
        rounds, inner = _loop(code)
        if heights.of_body(inner).net > 0:  # the highest point lies in the last round
            self._add(live, self.bodies[inner], rounds - 1)
        self._add_peak(live, inner, heights)


class _Height(Struct, frozen=True):
    """What a round of a body does to the sum of live bytes."""

    net: int
    peak: int
    highest: int  # which code first reaches the peak; -1: it is there before


class _Heights:
    """The sums of live bytes that the bodies of a script come to."""

    def __init__(self, script: Script[PhaseT]) -> None:
        sizes = [tensor.block_bytes for tensor in script.tensors]
        self._changes = [*sizes, *(-size for size in reversed(sizes))]  # by code: ~number counts from the end
        self._bodies = script.bodies
        self._known: dict[int, _Height] = {}

    def of_body(self, place: int) -> _Height:
        """Of one round, from zero."""
        if place not in self._known:
            self._known[place] = self._of(self._bodies[place])
        return self._known[place]

    def _of(self, codes: Sequence[int]) -> _Height:
        net, peak, highest, changes = 0, 0, -1, self._changes
        for index, code in enumerate(codes):
            if code < REPEAT:
                net = most = net + changes[code]
            else:
                rounds, place = _loop(code)
                inner = self.of_body(place)
                most = net + max(inner.peak, (rounds - 1) * inner.net + inner.peak)  # in the first or the last round
                net += rounds * inner.net
            if most > peak:
                peak, highest = most, index
        return _Height(net, peak, highest)


def digest(run: Run, alloc_conf: str) -> tuple[int, int]:
    """What decides the marks of a run: sizes and streams, which tensor is which, in order, and the settings.

    Two keyed hashes of 64 bits, of this process: hashlib loads OpenSSL, which takes longer than a whole question.
    """
    told = encode((alloc_conf, run))
    return hash(told), hash(told[::-1])


def unrolled(run: Run, body: int) -> list[int]:
    """Every event of a body in order."""
    codes: list[int] = []
    for code in run.bodies[body]:
        if code < REPEAT:
            codes.append(code)
        else:
            rounds, inner = _loop(code)
            codes += unrolled(run, inner) * rounds
    return codes


def count_events(run: Run) -> int:
    """Of all phases, every round of every loop."""
    known: dict[int, int] = {}

    def of_body(body: int) -> int:
        if body not in known:
            loops = (_loop(code) for code in run.bodies[body] if code >= REPEAT)
            plain = sum(code < REPEAT for code in run.bodies[body])
            known[body] = plain + sum(rounds * of_body(inner) for rounds, inner in loops)
        return known[body]

    return sum(map(of_body, run.phases))


def _loop(code: int) -> tuple[int, int]:
    """Rounds and body."""
    return code - REPEAT >> BODY_BITS, code & BODY_MASK


def play(run: Run, phase: int, gaps: Gaps) -> int:
    """Every event of a phase in order, less those of rounds that can only repeat the one before.

    A round that frees what it allocates and nothing else leaves the blocks that it found. Where it took no new memory
    it leaves the gaps between them as well, and the next one does exactly the same.

    Returns: how many events were played [count]
    """
    codes: list[int] = []
    num_events = 0
    for code in run.bodies[phase]:
        if code < REPEAT:
            codes.append(code)
            continue
        rounds, body = _loop(code)
        inner = unrolled(run, body)
        if len(inner) == 1 and rounds >= MANY:
            gaps.play(codes)
            gaps.play_alike(inner[0], rounds)
            num_events += len(codes) + rounds
            codes = []
            continue
        if rounds < 2 or len(inner) < LONG or not _is_closed(inner):
            codes += inner * rounds
            continue
        gaps.play(codes)
        num_events += len(codes)
        codes = []
        for _ in range(rounds):
            before = gaps.num_changes
            gaps.play(inner)
            num_events += len(inner)
            if gaps.num_changes == before:
                break
    gaps.play(codes)
    return num_events + len(codes)


def _is_closed(codes: list[int]) -> bool:
    """Whether a stretch frees all that it allocates and no older block."""
    live: dict[int, int] = {}
    for code in codes:
        if code >= 0:
            live[code] = live.get(code, 0) + 1
        elif live.get(~code, 0):
            live[~code] -= 1
        else:
            return False
    return not any(live.values())
