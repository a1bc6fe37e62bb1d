"""One training question answered: engine -> programs -> peaks, ledger, interval, verdict.

Runs whose samples differ in length: steps of many sizes leave the caching allocator more than one size does.

A step that is longer than all before it finds no cached block that is large enough for its largest tensors: new
segments are taken, and the old ones stay. Of lengths drawn at random each new longest one comes half as near to the
longest possible one as the last, on average; the sequence here does so exactly, with shorter ones between (van der
Corput). How many new longest ones a run meets, and when, is chance: that decides what is reserved far more than the
length of the shortest does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Any, Final

import msgspec
import msgspec.structs
from msgspec.structs import replace

from vramcast import estimate
from vramcast.blocks.parameters.model import count_parameters
from vramcast.domain.answer import Answer, Change, RankAnswer, StepTime
from vramcast.domain.job import WITHOUT_TARGETS, Job, Phase, RankProgram
from vramcast.domain.program import Extents, Free, Loop, Node, Program, Tensor, extent, sizes, taken_over
from vramcast.domain.verdict import Fit
from vramcast.domain.version import named, newer, version_text
from vramcast.engines.eager.trl import uncounted
from vramcast.engines.training import TRAINING, engine_of
from vramcast.errors import Note, UnknownName
from vramcast.estimate.checks import check
from vramcast.estimate.corrections import beside, corrected_rank, explained, holding, with_slack
from vramcast.estimate.cost import asked_of, with_cost
from vramcast.estimate.host_memory import host_need
from vramcast.estimate.interval import SLACKS, interval, training_traits
from vramcast.estimate.ranks import GIVES_BACK, RankNeed, ended_at_card, rank_answer, rank_need, slack_share
from vramcast.estimate.techniques import BF16_RECIPES, FP16_RECIPES

PLAYED: Final = 16
"""Steps of different lengths before the longest one [count]."""

Build = Callable[[Job], tuple[RankProgram, ...]]


def step_lengths(shortest: int, longest: int, *, multiple: int = 1, count: int = PLAYED) -> tuple[int, ...]:
    """Lengths of the steps that are played, the longest last.

    Args:
        shortest: of a sample [tokens]
        longest: of a sample [tokens]
        multiple: what the run pads lengths to [tokens]
        count: steps before the longest [count]

    >>> step_lengths(1, 1024, count=4)
    (512, 257, 768, 129, 1024)
    """
    between = (shortest + (longest - shortest) * _mirrored(index) for index in range(1, count + 1))
    padded = (max(multiple, round(length / multiple) * multiple) for length in between)
    return (*(min(length, longest) for length in padded), longest)


def _mirrored(index: int) -> float:
    """The binary digits of a number, mirrored at the point."""
    found, weight = 0.0, 0.5
    while index:
        found += weight * (index & 1)
        index, weight = index >> 1, weight / 2
    return found


def with_lengths(job: Job, build: Build) -> tuple[RankProgram, ...]:
    """The programs of every rank role: of the lengths that the job's samples have, the longest last.

    Args:
        job: the question
        build: the programs of a job of one length
    """
    workload, plan = job.workload, job.plan
    if workload.min_seq_len is None or workload.min_seq_len >= workload.seq_len:
        return build(job)
    divided = plan.cp * plan.tp
    lengths = step_lengths(workload.min_seq_len, workload.seq_len, multiple=2 * divided if divided > 1 else 1)
    built = (build(replace(job, workload=replace(workload, seq_len=length, min_seq_len=None))) for length in lengths)
    said = Note(
        "samples of {} to {} tokens: {} steps of different lengths fill the allocator; the order they come in is "
        "chance, and what is reserved depends on it; time is the longest's",
        workload.min_seq_len, workload.seq_len, len(lengths)
    )
    known: dict[tuple[int, ...], RankProgram] = {}  # roles that share their phases share what is made of them
    for programs in (roles := [*zip(*built, strict=True)]):
        key = _shared(programs)
        known[key] = known.get(key) or _joined(programs, said)
    return tuple(
        replace(known[_shared(programs)], role=programs[-1].role, count=programs[-1].count) for programs in roles
    )


def _shared(programs: Iterable[RankProgram]) -> tuple[int, ...]:
    return tuple(id(program.phases) for program in programs)


def _joined(programs: tuple[RankProgram, ...], said: str) -> RankProgram:
    """One role: the first length's first step, every length's step."""
    longest = programs[-1]
    phases = dict(longest.phases)
    if Phase.FIRST_STEP in phases:
        phases[Phase.FIRST_STEP] = programs[0].phases[Phase.FIRST_STEP]
    if Phase.STEP in phases:
        phases[Phase.STEP] = tuple(_one_after_the_other([program.phases[Phase.STEP] for program in programs]))
    return replace(longest, phases=phases, assumptions=(*longest.assumptions, said), has_lengths=True)


def _one_after_the_other(steps: list[Program]) -> Iterator[Node]:
    """Steps of which each frees what the one before it left, not what a step of its own length would have.

    Where something is left, the longest comes twice: its peak has the leavings of a sample as long.
    """
    left = [tuple(taken_over(step)) for step in steps]
    yield from steps[0]
    for (before, own), step in zip(pairwise(left), steps[1:], strict=True):
        yield from _freeing(step, dict(zip(own, before, strict=True))) if own else step
    if left[-1]:
        yield from steps[-1]


def _freeing(program: Program, others: dict[Tensor, Tensor]) -> Iterator[Node]:
    """The same program, where the first to be freed of some tensors are others."""
    for node in program:
        match node:
            case Loop():
                yield replace(node, body=tuple(_freeing(node.body, others)))
            case Free() if node.tensor in others:
                yield Free(others.pop(node.tensor))
            case _:
                yield node


if TYPE_CHECKING:
    from vramcast.domain.snapshot import Snapshot
    from vramcast.estimate.changes import Need

FAR_BELOW: Final = 0.7
"""Share of the largest live memory of a run's roles below which no role needs most, whatever the allocator adds: of
3,300 random pipelines of Megatron and torchtitan the role that needs most had at least 0.94 of it, of a small network
with a large vocabulary (BLOOM 560M on 32 cards of 6 GiB) 0.75 (tests/estimate/test_plan_properties.py draws more)."""


def answer(job: Job, *, with_changes: bool = True, every_role: bool = True) -> Answer:
    """Memory of one training plan on every rank role, and the time of its step.

    Args:
        job: the question
        with_changes: of a plan that does not fit, whether to compute what would make it fit: most of the work
        every_role: False: only the role that needs most, for those who compare plans

    Raises: InvalidSpec, Unsupported or UnknownName with one sentence when the question cannot be answered.
    """
    programs = rank_programs(job)
    shown = programs if every_role else (_fullest(job, programs)[1],)
    answers = _rank_answers(job, shown)
    ranks = sorted(answers, key=lambda rank: -rank.needed_bytes)
    capacity = job.cluster.gpu.visible_bytes
    host = host_need(job)
    fits = ranks[0].needed_bytes <= capacity and (host is None or host.fits)

    clock = estimate.step_time.timed(job)
    found = Answer(
        question=question(job),
        fits=fits,
        capacity_bytes=capacity,
        ranks=tuple(ranks),
        num_parameters=count_parameters(job.model).total,
        assumptions=_unique((
            *job.model.notes, *job.assumed, *(text for program in programs for text in program.assumptions),
            *clock.assumptions, *_recipe(job), *_unversioned(job),
        )),
        cautions=tuple(_other_objective(job)),
        warnings=_unique((*_cautions(job, ranks), *(text for program in programs for text in program.warnings))),
        ignored=(
            *newer(job.engine, job.engine_version or (), engine_of(job).newest), *uncounted(job), *_unpredicted(job),
        ),
        changes=() if fits or not with_changes else _offered(job, ranks, clock.time),
        time=clock.time,
        host=host,
    )
    if job.calibration is not None:
        uncorrected = msgspec.structs.replace(job, calibration=None)
        found = explained(found, job, answer(uncorrected, with_changes=False, every_role=every_role))
    return with_cost(found, job.cluster, run_tokens=job.run_tokens)


def _offered(job: Job, ranks: list[RankAnswer], time: StepTime | None) -> tuple[Change, ...]:
    """Changes that lower the peak; where none of them alone is sure to be enough, first those that are together."""
    needed = ranks[0].needed_bytes
    alone = estimate.changes.single_changes(job, needed, measure=need, time=time)
    if any(change.verdict is Fit.FITS for change in alone):
        return alone
    together = estimate.changes.combined_change(job, needed, measure=need, time=time)
    known = {change.change for change in alone}
    if together is None or together.change in known:
        return alone
    return estimate.changes.best_first((together, *alone))


def _recipe(job: Job) -> Iterator[str]:
    """What is adapted, and why a card computes in fp16."""
    peft = job.plan.peft
    if peft is not None and peft.method not in WITHOUT_TARGETS:
        yield Note("adapters of rank {} on {}", peft.rank, ", ".join(peft.targets))
    if job.plan.precision in FP16_RECIPES and not job.cluster.gpu.has_bf16:
        yield Note("{} with a loss scale: {} has no bf16 tensor cores", job.plan.precision, job.cluster.gpu.name)


def _unpredicted(job: Job) -> Iterator[str]:
    """Modules that Megatron trains beside the decoder where `--mtp-num-layers` says so."""
    counted = int(job.engine_options.get("mtp_layers") or 0)
    if job.engine == "megatron" and not counted and (count := len(job.model.mtp_layers)):
        yield Note(
            "multi-token prediction: with --mtp-num-layers {} Megatron trains {} more layers and losses of {}, "
            "which are not counted", count, count, job.model.name
        )


def _unversioned(job: Job) -> Iterator[str]:
    """A version that decides nothing here."""
    if job.engine_version is not None and not engine_of(job).by_version:
        yield Note(
            "{} is modelled alike in every version: {} changes nothing", job.engine, version_text(job.engine_version)
        )


def _other_objective(job: Job) -> Iterator[str]:
    """What is answered in place of what such a model is trained for."""
    language = job.workload.objective in ("pretrain", "sft")
    if language and job.model.main.causal and "embed" in job.model.name.lower():
        yield Note(
            "{} makes embeddings: this is its training as a language model, with logits of every token; "
            "contrastive losses over pairs of texts, which make none, are not modelled", job.model.name
        )


def _cautions(job: Job, ranks: list[RankAnswer]) -> Iterator[str]:
    """What a user should know before trusting the verdict."""
    if any(rank.gives_back_cache for rank in ranks):
        yield GIVES_BACK
    gpu, precision = job.cluster.gpu, job.plan.precision
    if gpu.vendor not in ("NVIDIA", "AMD"):
        yield Note(
            "{} runs on {} in {}'s own build: memory is that of its CUDA build", job.engine, gpu.name, gpu.vendor
        )
    if precision in BF16_RECIPES and not gpu.has_bf16:
        fp16 = engine_of(job).in_fp16
        instead = f"--precision {fp16}" if fp16 else Note("{} has no fp16; --engine deepspeed has", job.engine)
        yield Note(
            "{} on {}, which has no bf16 tensor cores: it is emulated, timed as fp32; {}", precision, gpu.name, instead
        )
    context, seq_len = job.model.context, job.workload.seq_len
    heard = job.model.stacks[0].vision is not None and job.workload.decoder_seq_len is not None
    if context is not None and seq_len > context and not heard:  # positions of sound are none of the text's
        yield Note("seq-len={} is longer than the {} positions {} was trained with", seq_len, context, job.model.name)


def need(job: Job, *, below: int | None = None) -> Need | None:
    """What a job needs, whether it fits or not; None where it is not less than `below` [bytes]."""
    programs = rank_programs(job)
    if below is not None and live_of(job, programs) >= below:  # the allocator only adds to that
        return None
    found = need_of(job, programs)
    return found if below is None or found.needed_bytes < below else None


def need_of(job: Job, programs: Sequence[RankProgram]) -> Need:
    """What a job needs whose programs are known."""
    found, program = _fullest(job, programs)
    held = min(job.cluster.gpu.held_bytes, found.steady_bytes)  # by others: known, whatever the job misses
    likely = interval(training_traits(job, found.slack_share), found.steady_bytes - held)[1] + held
    high = likely + found.needed_bytes - found.steady_bytes
    if holding(job) is None:
        high = ended_at_card(
            program, high_bytes=high, needed_bytes=found.needed_bytes, capacity_bytes=job.cluster.gpu.visible_bytes,
            outside=(*beside(job), *program.outside), alloc_conf=job.alloc_conf,
        )
    return estimate.changes.Need(found.needed_bytes, high)


def needed_bytes(job: Job) -> int:
    """Device bytes of the fullest rank in its highest phase, allocator included, whether it fits or not."""
    return need_of(job, rank_programs(job)).needed_bytes


def live_of(job: Job, programs: Sequence[RankProgram]) -> int:
    """Live tensors of the fullest rank at their highest, and what lies beside the allocator: never more than needed."""
    return max(_live_bytes(job, program) for program in programs)


def live_bytes(job: Job) -> int:
    """As `live_of`, of a job whose programs are not known."""
    return live_of(job, rank_programs(job))


def may_run_out(job: Job, programs: Sequence[RankProgram]) -> bool:
    """Whether live tensors alone tell that the 90 % interval reaches beyond the card; False where they do not tell.

    The least factor of the interval, r, over all shares of slack: the upper end is at least needed + (r - 1) steady,
    and a run within it passes on a card smaller by that (`ended_at_card`) only where its live tensors do.
    """
    if holding(job) is not None:
        return False
    capacity, held = job.cluster.gpu.visible_bytes, job.cluster.gpu.held_bytes
    traits, whole = training_traits(job), 1 << 40
    factor = min(interval(replace(traits, slack=slack), whole)[1] for _, slack in SLACKS) / whole
    live = [_live_bytes(job, program) for program in programs]
    floor = FAR_BELOW * max(live)
    return all(
        highest * (capacity + (factor - 1) * max(0, _live_bytes(job, program, program.steady) - held)) > capacity**2
        for highest, program in zip(live, programs, strict=True) if highest >= floor
    )


def _fullest(job: Job, programs: Sequence[RankProgram]) -> tuple[RankNeed, RankProgram]:
    """What the role that needs most needs, and the role.

    A pipeline has a role for each stage. Of those that allocate the same sizes only the one with the most live memory
    is simulated, and none that is far below the fullest.

    Args:
        job: the question
        programs: the roles
    """
    live = [_live_bytes(job, program) for program in programs] if len(programs) > 1 else [0]
    by_live = sorted(zip(live, programs, strict=True), key=lambda role: -role[0])
    floor = FAR_BELOW * by_live[0][0]
    close = [program for _, program in takewhile(lambda role: role[0] >= floor, by_live)]
    if len(close) > 1:
        alike: dict[frozenset[tuple[int, str]], RankProgram] = {}
        for program in close:
            alike.setdefault(sizes(node for nodes in program.phases.values() for node in nodes), program)
        close = [*alike.values()]
    needs = ((_need_of_role(job, program), program) for program in close)
    return max(needs, key=lambda role: role[0].needed_bytes)


def recorded(job: Job) -> Snapshot:
    """The run of the rank that needs most, event by event, as a memory snapshot of it would hold it.

    Raises: InvalidSpec, Unsupported or UnknownName with one sentence when the question cannot be answered.
    """
    programs = rank_programs(job)
    _, program = _fullest(job, programs)
    card_bytes = job.cluster.gpu.visible_bytes
    outside_bytes = sum(tensor.num_bytes for tensor in (*beside(job), *program.outside))
    return estimate.recorded.record(
        program.phases,
        name=f"{job.model.name}, {program.role}",
        alloc_conf=job.alloc_conf or program.alloc_conf,
        capacity_bytes=max(0, card_bytes - outside_bytes),
        card_bytes=card_bytes,
    )


def _live_bytes(job: Job, program: RankProgram, only: Phase | None = None) -> int:
    """The highest sum of live tensors over all phases, or one, with what lies beside the allocator [bytes]."""
    net = highest = 0
    known: Extents = {}
    for phase, nodes in program.phases.items():
        of_phase = extent(nodes, known)
        if only in (None, phase):
            highest = max(highest, net + of_phase.peak)
        net += of_phase.net
    return highest + sum(tensor.num_bytes for tensor in (*beside(job), *program.outside))


def rank_programs(job: Job, *, every_role: bool = True) -> tuple[RankProgram, ...]:
    """The programs of every rank role, from the engine the job names.

    Args:
        job: the question
        every_role: False: only the roles one of which holds the most live memory, where the engine can tell
    """
    if job.engine not in TRAINING:
        raise UnknownName.of("engine", job.engine, TRAINING)
    check(job)
    engine = import_module(engine_of(job).module)
    ranks = engine.ranks if every_role else getattr(engine, "deciding_ranks", engine.ranks)
    programs: tuple[RankProgram, ...] = with_lengths(job, ranks)
    held = holding(job)
    return programs if held is None else tuple(corrected_rank(held, program) for program in programs)


def question(job: Job) -> dict[str, Any]:
    """The job as plain data, defaults written out; the model and the card by name."""
    plain = asked_of(job.model.name, job.cluster, named(job.engine, job.engine_version))
    plain["workload"] = job.workload.as_plain()
    plain["plan"] = job.plan.as_plain()
    for name in ("engine_options", "alloc_conf", "env", "run_tokens"):
        if getattr(job, name):
            plain[name] = getattr(job, name)
    if job.calibration is not None:
        plain["calibration"] = job.calibration.source
    return plain


def _need_of_role(job: Job, program: RankProgram) -> RankNeed:
    if holding(job) is not None:
        found, simulated = _rank_answer(job, program), _simulated(job, program)
        return RankNeed(found.needed_bytes, found.peak.device_bytes, slack_share(simulated.peak))
    return rank_need(
        program, outside=beside(job), capacity_bytes=job.cluster.gpu.visible_bytes, alloc_conf=job.alloc_conf
    )


def _rank_answer(job: Job, program: RankProgram) -> RankAnswer:
    found, held = _simulated(job, program), holding(job)
    return found if held is None else with_slack(found, held, job)


def _rank_answers(job: Job, programs: Iterable[RankProgram]) -> list[RankAnswer]:
    """Of every role; those that share their phases are simulated once."""
    known: dict[tuple[int, ...], RankAnswer] = {}
    found: list[RankAnswer] = []
    for program in programs:
        key = (*_shared((program,)), *map(id, program.outside))
        known[key] = known.get(key) or _rank_answer(job, program)
        found.append(replace(known[key], role=program.role, count=program.count))
    return found


def _simulated(job: Job, program: RankProgram) -> RankAnswer:
    return rank_answer(
        program, outside=beside(job), capacity_bytes=job.cluster.gpu.visible_bytes, traits=training_traits(job),
        alloc_conf=job.alloc_conf, exact_bytes=job.cluster.gpu.held_bytes,
    )


def _unique(texts: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))
