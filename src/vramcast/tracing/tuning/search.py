"""The best of a script's changes, from few traces: every candidate is its patched source, traced.

First what may cost no time, one on top of the other, each kept where it is faster (or needs less where the script does
not fit), and as large a micro-batch as fits, accumulation making up for it; then what pays for memory with time, each
with the micro-batch that it makes room for. How large a micro-batch fits is guessed from what activations take, and
traced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.domain.program import Category
from vramcast.domain.trace_job import ScriptJob, TraceAnswer
from vramcast.domain.varied import MEMORY, SAMPLES, TOKENS, TunedAnswer, TunedRun, TuneJob
from vramcast.domain.verdict import usable_bytes
from vramcast.errors import InvalidSpec, Note, Unsupported, VramcastError, joined
from vramcast.tracing.run import traced_script
from vramcast.tracing.script_parts import ScriptParts, ScriptRun
from vramcast.tracing.tuning.changes import Change, Offered, OptimOf, batch_change, offered
from vramcast.tracing.tuning.edits import applied, patch_of
from vramcast.tracing.tuning.places import Script, arguments_with
from vramcast.units import format_bytes, format_seconds

MOST_TRACES: Final = 24
FASTER: Final = 1.005
"""By which a change has to be better to be kept."""
ORDER: Final = ("batch", "optimizer", "attention", "checkpoint", "precision", "offload", "compile")
"""Of the lines that changes put at one place: what compiles stands behind what it compiles."""
GROWTH: Final = 2  # of a micro-batch, where the effective batch may change
MOST_GROWTHS: Final = 10
STAYS: Final = (Category.WEIGHTS, Category.GRADIENTS, Category.OPTIMIZER, Category.WORKSPACES, "process")
"""Parts of a ledger that no micro-batch changes."""
NEAR: Final = 1.05
"""Of the card: what is thought to need no more is traced, too."""
BATCH_TRACES: Final = 4  # of one search for the largest micro-batch
LONGEST_REASON: Final = 200  # of a failure, in a row [characters]
OTHER_BATCH: Final = "a step takes in {} samples in place of {}: the change does not do what it says"
NO_EFFECT: Final = "it changes nothing of what runs"
TWICE: Final = "two of its changes are of the same place"


class Trial(NamedTuple):
    """A candidate and its trace."""

    changes: tuple[Change, ...]
    micro: int
    accumulate: int
    answer: TraceAnswer | None  # None: it failed
    parts: ScriptParts
    row: TunedRun
    texts: dict[str, str]  # path -> its text, of files that it changes

    @property
    def needed_bytes(self) -> int:
        assert self.answer is not None
        return self.answer.fullest.needed_bytes


def tuned(
    job: ScriptJob, asked: TuneJob, *, optim_of: OptimOf, say: Callable[[str], None] = lambda text: None
) -> TunedAnswer:
    """The answer to `vramcast tune`.

    Args:
        optim_of: what the Trainer calls an optimizer
        say: is told of every trace, a line

    Raises: VramcastError of one sentence where the script cannot be traced or has no training step
    """
    found = Search(job, asked, optim_of, say)
    best = found.run()
    return found.answer(best)


class Search:
    """One script's candidates."""

    def __init__(self, job: ScriptJob, asked: TuneJob, optim_of: OptimOf, say: Callable[[str], None]) -> None:
        """Traces it as it is."""
        self._job, self._asked, self._say = job, asked, say
        self._trials: list[Trial] = []
        say(Note("trace {}: {}", 1, Note("as it is")))
        found, ran = traced_script(job)
        self._base_run, parts = ran.run, ran.parts
        self._check(found.answer, ran)
        self.goal = self._goal(parts)
        self.script = Script(job, parts)
        self.offered: Offered = offered(self.script, ran.run, job.gpu, asked, optim_of)
        self.base = self._kept((), parts.rows, parts.forwards, found.answer, parts, {})

    def _check(self, answer: TraceAnswer, ran: ScriptRun) -> None:
        path, parts = self._job.path, ran.parts
        if not parts.optimizers:
            raise InvalidSpec("{} makes no optimizer of PyTorch, so it has no training step to tune", path)
        if not parts.samples or not parts.forwards:
            raise Unsupported(
                "{}: what a step takes in is not seen, as no module is called with a tensor whose rows are samples",
                path
            )
        if answer.traced_time is None:
            raise Unsupported("{} has no data sheet to time a step by; name another --gpu", self._job.gpu.name)

    def _goal(self, parts: ScriptParts) -> str:
        goal = self._asked.goal or (TOKENS if parts.tokens else SAMPLES)
        if goal == TOKENS and not parts.tokens:
            raise InvalidSpec("{} takes in no rows of tokens, so a step has none to count; use --goal samples/s",
                              parts.network)
        return goal

    def run(self) -> Trial:
        """The best candidate."""
        best = self.base
        for some in (self.offered.light, self.offered.heavy):
            for change in some:
                best = self._better(best, self._trial(_with(best.changes, change)))
            best = self._enlarged(best)
        if not self.base.row.fits:
            best = self._faster(best)
        plain = best
        if self.goal != MEMORY and plain.row.fits and not self._limited(plain):
            return best
        for change in self.offered.sparing:
            start = _with([one for one in plain.changes if one.group != "batch"], change)
            trial = self._trial(start)
            if trial is not None and trial.answer is not None and trial.needed_bytes < self.base.needed_bytes:
                best = self._better(best, self._enlarged(trial))
        if not best.row.fits or self.goal == MEMORY:
            best = self._better(best, self._together(plain))
        return best if plain.row.fits or self.goal == MEMORY else self._faster(best)

    def _faster(self, best: Trial) -> Trial:
        """Once it fits, what was passed over as it spared too little memory may make it faster."""
        for change in (*self.offered.light, *self.offered.heavy):
            if best.row.fits and self.goal != MEMORY and change.group not in {one.group for one in best.changes}:
                best = self._better(best, self._trial(_with(best.changes, change)))
        return best

    def _limited(self, trial: Trial) -> bool:
        """Whether more memory would be of use: a larger micro-batch is known that does not fit."""
        return any(micro > trial.micro for micro, _ in self._sizes())

    def _together(self, plain: Trial) -> Trial | None:
        """All that spares memory at once, with the largest micro-batch that fits then."""
        changes: tuple[Change, ...] = plain.changes
        for change in self.offered.sparing:
            if change.group not in {one.group for one in changes}:
                changes = _with(changes, change)
        trial = self._trial(changes)
        return None if trial is None else self._enlarged(trial)

    def _enlarged(self, start: Trial) -> Trial:
        """The same with the micro-batch that is best of those that fit; a smaller one where none does."""
        if start.answer is None:
            return start
        sizes, best, tried = self._sizes(), start, 0
        known = {start.micro: start}
        while tried < BATCH_TRACES and len(self._trials) < MOST_TRACES:
            size = self._next(sizes, known)
            if size is None:
                break
            change = batch_change(
                self.script, *size, rows=self.base.parts.rows, forwards=self.base.parts.forwards
            )
            rest = [one for one in start.changes if one.group != "batch"]
            is_base = size == (self.base.micro, self.base.accumulate)
            trial = self._trial(tuple(rest) if is_base or change is None else _with(rest, change))
            tried += 1
            if trial is None or trial.answer is None:
                sizes = [one for one in sizes if one != size]
                continue
            known[size[0]] = trial
            best = self._better(best, trial)
        return best

    def _sizes(self) -> list[tuple[int, int]]:
        """Micro-batches with their accumulation that the script can be told, smallest first."""
        rows, forwards = self.base.parts.rows, self.base.parts.forwards
        if "batch" in self._asked.forbid:
            return [(rows, forwards)]
        if self._asked.any_batch:
            found = [(rows * GROWTH**power, forwards) for power in range(MOST_GROWTHS + 1)]
            found += [(rows // GROWTH**power, forwards) for power in range(1, MOST_GROWTHS) if rows >= GROWTH**power]
        else:
            whole = rows * forwards
            found = [(size, whole // size) for size in range(1, whole + 1) if whole % size == 0]
        return sorted(
            size for size in found if size == (rows, forwards)
            or batch_change(self.script, *size, rows=rows, forwards=forwards) is not None
        )

    def _next(self, sizes: Sequence[tuple[int, int]], known: dict[int, Trial]) -> tuple[int, int] | None:
        """The largest micro-batch that is thought to fit and was not traced; None where that was, or none is."""
        fitting = [micro for micro, trial in known.items() if trial.row.fits]
        failing = [micro for micro, trial in known.items() if not trial.row.fits]
        low = max(fitting, default=0)
        high = min((one for one in failing if one > low), default=None)
        if self.goal == MEMORY:
            high, low = min(known), 0
        open_ = [size for size in sizes if size[0] > low and (high is None or size[0] < high)]
        if not open_:
            return None
        room = self._room(next(iter(known.values())))
        need = _need(known)
        thought = [size for size in open_ if need(size[0]) <= room]
        if self.goal == MEMORY:
            return open_[0]
        if thought:
            return thought[-1]
        return open_[0] if not low or need(open_[0][0]) <= NEAR * room else None

    def _room(self, trial: Trial) -> int:
        assert trial.answer is not None
        answer, headroom = trial.answer, self._asked.headroom
        return usable_bytes(answer.capacity_bytes, headroom) - answer.claimed_bytes(headroom) + trial.needed_bytes

    def _better(self, best: Trial, other: Trial | None) -> Trial:
        if other is None or other.answer is None:
            return best
        if best.row.fits != other.row.fits:
            return best if best.row.fits else other
        if self.goal == MEMORY or not best.row.fits:
            return other if other.needed_bytes * FASTER < best.needed_bytes else best
        return other if self._rate(other) > FASTER * self._rate(best) else best

    def _rate(self, trial: Trial) -> float:
        found = trial.row.tokens_per_s if self.goal == TOKENS else trial.row.samples_per_s
        return found or 0.0

    def _trial(self, changes: Sequence[Change]) -> Trial | None:
        """A candidate traced; None where it was before, or there are enough."""
        changes = tuple(sorted(changes, key=lambda one: ORDER.index(one.group)))
        words = tuple(one.words for one in changes)
        known = next((one for one in self._trials if one.row.changes == words), None)
        if known is not None:
            return known
        if len(self._trials) >= MOST_TRACES:
            return None
        self._say(Note("trace {}: {}", len(self._trials) + 1, joined(" + ", words) if words else Note("as it is")))
        texts = self._texts(changes)
        if texts is None:
            return self._failed(changes, Note(TWICE))
        options = tuple(option for one in changes for option in one.part.options)
        main = texts.get(self._job.path)
        job = replace(
            self._job, text=main, arguments=arguments_with(self._job.arguments, options),
            texts={str(Path(path).resolve()): text for path, text in texts.items() if path != self._job.path},
        )
        try:
            found, ran = traced_script(job)
        except VramcastError as error:
            return self._failed(changes, error.__str__())
        parts = ran.parts
        if not self._asked.any_batch and parts.samples != self.base.parts.samples:
            return self._failed(changes, Note(OTHER_BATCH, parts.samples, self.base.parts.samples))
        if not parts.samples or found.answer.traced_time is None:
            return self._failed(changes, Note(NO_EFFECT))
        return self._kept(changes, parts.rows, parts.forwards, found.answer, parts, texts)

    def _texts(self, changes: Iterable[Change]) -> dict[str, str] | None:
        contexts = tuple(context for one in changes for context in one.part.contexts)
        edits = [edit for one in changes for edit in one.part.edits]
        if contexts:
            within = self.script.within(contexts)
            if within is None:
                return None
            edits += within
        return applied(self.script.sources, edits)

    def _failed(self, changes: tuple[Change, ...], why: str) -> Trial:
        row = TunedRun(changes=tuple(one.words for one in changes), fits=False, failure=why[:LONGEST_REASON])
        self._say(Note("  no candidate: {}", row.failure))
        self._trials.append(Trial(changes, 0, 0, None, ScriptParts(), row, {}))
        return self._trials[-1]

    def _kept(
        self, changes: tuple[Change, ...], micro: int, accumulate: int, answer: TraceAnswer, parts: ScriptParts,
        texts: dict[str, str],
    ) -> Trial:
        time = answer.traced_time
        assert time is not None
        row = TunedRun(
            changes=tuple(one.words for one in changes), fits=answer.leaves(self._asked.headroom),
            device_bytes=answer.fullest.needed_bytes, step_s=time.step_s, samples=parts.samples,
            samples_per_s=parts.samples / time.step_s,
            tokens_per_s=parts.tokens / time.step_s if parts.tokens else None, micro_batch=micro, accumulate=accumulate,
        )
        self._say(Note("  {}, {} a step", format_bytes(answer.fullest.needed_bytes), format_seconds(time.step_s)))
        self._trials.append(Trial(changes, micro, accumulate, answer, parts, row, texts))
        return self._trials[-1]

    def answer(self, best: Trial) -> TunedAnswer:
        """What is said of the best."""
        assert best.answer is not None
        names = {path: _named(path) for path in best.texts}
        options = tuple(option for one in best.changes for option in one.part.options)
        return TunedAnswer(
            question=best.answer.question | {"goal": self.goal}, goal=self.goal,
            capacity_bytes=best.answer.capacity_bytes, runs=tuple(one.row for one in self._trials),
            best=self._trials.index(best),
            rounds=tuple(one.words for one in best.changes if one.allowed_by or one.is_other),
            costs={one.words: one.cost for one in best.changes if one.cost},
            patch=patch_of(
                {names[path]: self.script.sources[path].data.decode() for path in best.texts},
                {names[path]: text for path, text in best.texts.items()},
            ),
            arguments=arguments_with(self._job.arguments, options) if options else (),
            gave=self._job.arguments, not_offered=tuple(self.offered.lacking),
            not_allowed=tuple(dict.fromkeys(self.offered.withheld)),
            assumptions=best.answer.assumptions,
        )


def _with(changes: Iterable[Change], change: Change) -> tuple[Change, ...]:
    """Changes with one more, in place of another of its group."""
    return (*(one for one in changes if one.group != change.group), change)


def _need(known: dict[int, Trial]) -> Callable[[int], float]:
    """What a micro-batch is thought to need: a line through two traces; from one all but weights and states grows."""
    points = sorted((micro, trial.needed_bytes, trial) for micro, trial in known.items())
    if len(points) > 1:
        (low, need, _), (high, more, _) = points[-2:]
        slope = max(0.0, (more - need) / (high - low))
        return lambda micro: need + slope * (micro - low)
    micro_now, need, trial = points[0]
    assert trial.answer is not None
    stays = sum(
        entry.num_bytes for entry in trial.answer.fullest.ledger if entry.path.split("/")[0] in STAYS
    )
    moves = max(0, need - stays)
    return lambda micro: need + moves * (micro / micro_now - 1)


def _named(path: str) -> str:
    """A file as a patch calls it: from here, where it is below."""
    place, here = Path(path).resolve(), Path.cwd().resolve()
    return place.relative_to(here).as_posix() if place.is_relative_to(here) else place.name
