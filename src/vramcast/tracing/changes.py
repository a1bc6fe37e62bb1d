"""What would make a run fit: every change traced again, or replayed, before it is offered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from vramcast.domain.answer import Change
from vramcast.domain.trace_job import TraceJob
from vramcast.domain.traced import TraceAnswer
from vramcast.errors import VramcastError
from vramcast.tracing.categories import categorise
from vramcast.tracing.recomputation import recompute
from vramcast.tracing.result import About, Run, traced

STEPS: Final = 2
EXPANDABLE: Final = "expandable_segments:True"
STATEFUL: Final = ("adam", "adamw")


class Candidate(NamedTuple):
    """One change of a job."""

    words: str  # as on the command line
    fields: dict[str, Any]
    cost: str = ""


def changes_of(job: TraceJob, answer: TraceAnswer, trace: Callable[[TraceJob], TraceAnswer]) -> tuple[Change, ...]:
    """Every single change that needs less, then all of them together; those that fit first.

    Args:
        job: that does not fit
        answer: of it
        trace: gives the answer to a job
    """
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
            changes.append(
                Change(
                    change=words, device_bytes=changed.fullest.needed_bytes, fits=changed.fits, cost=cost,
                    high_bytes=changed.high_bytes,
                )
            )
    return tuple(sorted(changes, key=lambda change: not change.fits))


def _traced(job: TraceJob, candidate: Candidate, trace: Callable[[TraceJob], TraceAnswer]) -> Change | None:
    try:
        answer = trace(replace(job, **candidate.fields, steps=min(job.steps, STEPS)))
    except VramcastError:
        return None  # a change that this module cannot take is none
    return Change(
        change=candidate.words, device_bytes=answer.fullest.needed_bytes, fits=answer.fits, cost=candidate.cost,
        high_bytes=answer.high_bytes,
    )


def candidates(job: TraceJob, answer: TraceAnswer) -> Iterator[Candidate]:
    """The changes worth tracing."""
    if job.gpu is not None and "expandable_segments" not in job.alloc_conf:
        conf = ",".join(part for part in (job.alloc_conf, EXPANDABLE) if part)
        yield Candidate(f"--alloc-conf {conf}", {"alloc_conf": conf})
    if not job.amp and not job.dtype:
        dtype = "bf16" if job.gpu is None or job.gpu.has_bf16 else "fp16"  # older cards emulate bf16, in fp32
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
    return Candidate(" ".join(words.values()), fields, "; ".join(costs))
