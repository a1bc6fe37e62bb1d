"""What would make a run fit: every change traced again, or replayed, before it is offered.

Scripts are not run again changed: what recomputing the modules that repeat would save follows from a tape alone. What a
module's forward leaves for backward is freed where its forward ends, but for its output, and is there again from where
its backward begins. Left out: what random-number states and the recomputation's own temporaries take beside it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from vramcast.domain.answer import Change
from vramcast.domain.program import Category
from vramcast.domain.trace_job import TraceAnswer, TraceJob
from vramcast.errors import VramcastError, joined
from vramcast.tracing.result import About, Run, categorise, traced
from vramcast.tracing.tape import Aside, Block, Mark, Phase, Tape

ROOT: Final = re.compile(r"(?:.*?\.)?\d+(?=\.|$)")
"""Of "model.layers.3.mlp": "model.layers.3"."""
FEWEST: Final = 2  # modules of a name before they count as repeated


class Recomputed(NamedTuple):
    """A tape as it would be."""

    modules: str  # "model.layers.*"
    tape: Tape


class _Pass:
    """One forward of one module, and where its backward begins."""

    __slots__ = ("backward", "blocks", "end", "root")

    def __init__(self, root: str) -> None:
        self.root = root
        self.blocks: list[Block] = []
        self.end = 0  # events until its forward is over
        self.backward: int | None = None


def recompute(tape: Tape, labels: list[Category]) -> Recomputed | None:
    """The tape with the modules recomputed that repeat and save most; None where none repeat."""
    passes = [one for one in _passes(tape, labels) if one.backward is not None]
    chosen = next(iter(_repeating(passes)), None)
    if chosen is None:
        return None
    return Recomputed(chosen, _rewritten(tape, [one for one in passes if _pattern(one.root) == chosen]))


def repeating(tape: Tape, labels: list[Category]) -> list[str]:
    """Names of the modules that repeat, "model.layers.*", what saves most for backward first."""
    return _repeating([one for one in _passes(tape, labels) if one.backward is not None])


def _repeating(passes: list[_Pass]) -> list[str]:
    sizes: Counter[str] = Counter()
    roots: dict[str, set[str]] = {}
    for one in passes:
        name = _pattern(one.root)
        sizes[name] += sum(block.num_bytes for block in one.blocks)
        roots.setdefault(name, set()).add(one.root)
    return [name for name, _ in sizes.most_common() if len(roots[name]) >= FEWEST]


def _pattern(root: str) -> str:
    return f"{root.rpartition('.')[0]}.*".lstrip(".")


def _root_of(block: Block) -> str:
    found = ROOT.match(block.origin.module)
    return found[0] if found else ""


def _passes(tape: Tape, labels: list[Category]) -> list[_Pass]:
    passes: list[_Pass] = []
    waiting: dict[str, list[_Pass]] = {}
    now = _Pass("")
    for index, event in enumerate(tape.events):
        if event < 0:
            continue
        block = tape.blocks[event - 1]
        root, phase = _root_of(block), block.origin.phase
        if phase is Phase.FORWARD:
            if root != now.root:
                now = _Pass(root)
                if root:
                    passes.append(now)
                    waiting.setdefault(root, []).append(now)
            now.end = index + 1
            if labels[block.index] is Category.ACTIVATIONS:
                now.blocks.append(block)
        elif phase is Phase.BACKWARD and root and waiting.get(root):
            waiting[root].pop().backward = index
            now = _Pass("")
    return passes


def _rewritten(tape: Tape, passes: list[_Pass]) -> Tape:
    """The tape with what these passes save freed and made again."""
    freed: dict[int, list[Block]] = {}  # before this event
    made: dict[int, list[Block]] = {}
    for one in passes:
        assert one.backward is not None
        for block in one.blocks[:-1]:  # the last is the output: the next module's input stays
            if block.died is None or block.died > one.backward:
                freed.setdefault(one.end, []).append(block)
                made.setdefault(one.backward, []).append(block)
    changed = Tape()
    present: dict[int, Block] = {}
    latest: dict[int, int] = {-1: -1}  # block -> its last copy
    named = tape.moments()
    for index, event in enumerate(tape.events):
        for moment in named.get(index, ()):
            _repeat(changed, moment, latest)
        for block in freed.get(index, ()):
            changed.end(present.pop(block.index))
        for block in made.get(index, ()):
            present[block.index] = _copied(changed, block, latest)
        block = tape.blocks[abs(event) - 1]
        if event > 0:
            present[block.index] = _copied(changed, block, latest)
        else:
            changed.end(present.pop(block.index))
    for moment in named.get(len(tape.events), ()):
        _repeat(changed, moment, latest)
    return changed


def _repeat(tape: Tape, moment: Mark | Aside, latest: dict[int, int]) -> None:
    if isinstance(moment, Mark):
        tape.mark(moment.name, moment.optimizer)
    else:
        tape.tell(moment.action, block=latest[moment.block], number=moment.number)


def _copied(tape: Tape, block: Block, latest: dict[int, int]) -> Block:
    copy = tape.add(block.num_bytes, block.stream, block.operator, block.origin)
    copy.category, copy.name = block.category, block.name
    latest[block.index] = copy.index
    return copy


STEPS: Final = 2
EXPANDABLE: Final = "expandable_segments:True"
STATEFUL: Final = ("adam", "adamw")


class Candidate(NamedTuple):
    """One change of a job."""

    words: str  # as on the command line
    fields: dict[str, Any]
    cost: str = ""


def changes_of(job: TraceJob, answer: TraceAnswer, trace: Callable[[TraceJob], TraceAnswer]) -> tuple[Change, ...]:
    """Every single change that needs less, then all of them together; those that fit first."""
    needed = answer.fullest.needed_bytes
    found: list[tuple[Change, Candidate]] = []
    for candidate in candidates(job, answer):
        change = _traced(job, candidate, trace)
        if change is not None and change.device_bytes < needed:
            found.append((change, candidate))
    together = _together([candidate for _, candidate in found])
    changes = [change for change, _ in found]
    if together is not None:
        change = _traced(job, together, trace)
        changes += [change] if change is not None else []
    return tuple(sorted(changes, key=lambda change: (not change.fits, change.device_bytes if not change.fits else 0)))


def changes_of_run(run: Run, answer: TraceAnswer) -> tuple[Change, ...]:
    """The changes of a run that is not run again: its tape played as it would be. Those that fit first."""
    needed = answer.fullest.needed_bytes
    found = []
    if "expandable_segments" not in run.alloc_conf:
        conf = ",".join(part for part in (run.alloc_conf, EXPANDABLE) if part)
        found.append((f"PYTORCH_CUDA_ALLOC_CONF={conf}", run._replace(alloc_conf=conf), ""))
    recomputed = recompute(run.tape, categorise(run.tape))
    if recomputed is not None:
        words = f"recompute {recomputed.modules} (torch.utils.checkpoint)"
        found.append((words, run._replace(tape=recomputed.tape), "about one forward more"))
    about = About(name="", question=answer.question, num_parameters=0)
    changes = []
    for words, other, cost in found:
        changed = traced(other, about).answer
        if changed.fullest.needed_bytes < needed:
            changes.append(_change(words, changed, cost))
    return tuple(sorted(changes, key=lambda change: not change.fits))


def _traced(job: TraceJob, candidate: Candidate, trace: Callable[[TraceJob], TraceAnswer]) -> Change | None:
    try:
        answer = trace(replace(job, **candidate.fields, steps=min(job.steps, STEPS)))
    except VramcastError:
        return None  # a change that this module cannot take is none
    return _change(candidate.words, answer, candidate.cost)


def _change(words: str, answer: TraceAnswer, cost: str) -> Change:
    return Change(
        change=words, device_bytes=answer.fullest.needed_bytes, fits=answer.fits, cost=cost,
        high_bytes=answer.high_bytes, capacity_bytes=answer.capacity_bytes,
    )


def candidates(job: TraceJob, answer: TraceAnswer) -> Iterator[Candidate]:
    if "expandable_segments" not in job.alloc_conf:
        conf = ",".join(part for part in (job.alloc_conf, EXPANDABLE) if part)
        yield Candidate(f"--alloc-conf {conf}", {"alloc_conf": conf})
    if not job.amp and not job.dtype:
        dtype = "bf16" if job.gpu.has_bf16 else "fp16"  # older cards emulate bf16, in fp32
        yield Candidate(f"--amp {dtype}", {"amp": dtype}, "other rounding")
    if job.is_training:
        yield from _of_training(job)
    batch = answer.question.get("batch", 1)
    if batch > 1:
        half = batch // 2
        more = {"accumulate": job.accumulate * 2} if job.is_training else {}
        words = f"--batch {half}" + (f" --accumulate {job.accumulate * 2}" if more else "")
        yield Candidate(words, {"batch": half, **more}, "smaller matrices, more launches")


def _of_training(job: TraceJob) -> Iterator[Candidate]:
    if not job.checkpoint:
        yield Candidate("--checkpoint blocks", {"checkpoint": ("blocks",)}, "about one forward more")
    if job.zero_grad != "none":
        yield Candidate("--zero-grad none", {"zero_grad": "none"})
    if job.optimizer in STATEFUL:
        yield Candidate(f"--optimizer {job.optimizer}-fused", {"optimizer": f"{job.optimizer}-fused"})
        if find_spec("bitsandbytes") is not None:
            yield Candidate(f"--optimizer {job.optimizer}-8bit", {"optimizer": f"{job.optimizer}-8bit"}, "8-bit states")


def _together(candidates: list[Candidate]) -> Candidate | None:
    """All changes at once, the batch left as it is."""
    chosen = [candidate for candidate in candidates if "batch" not in candidate.fields]
    if len(chosen) < 2:
        return None
    fields: dict[str, Any] = {}
    words: dict[str, str] = {}
    for candidate in chosen:
        fields |= candidate.fields
        words[next(iter(candidate.fields))] = candidate.words
    costs = dict.fromkeys(candidate.cost for candidate in chosen if candidate.cost)
    return Candidate(" ".join(words.values()), fields, joined("; ", costs))
