"""One question about post-training answered: every process of a card simulated, and the card's sum at every moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from vramcast.allocator import Allocator, Settings
from vramcast.allocator.gaps import BeyondAddresses, Gaps
from vramcast.blocks.parameters.model import count_parameters
from vramcast.domain import version
from vramcast.domain.answer import Change, LedgerEntry, Peak, PostTrainingAnswer, RankAnswer
from vramcast.domain.job import Job, Recompute, Shards
from vramcast.domain.post_training import CARDS, Card, PostTrainingJob, Process, Stage
from vramcast.domain.program import Basis, Tensor
from vramcast.engines.post_training import fsdp, trainer
from vramcast.engines.post_training.batches import batches, seen_from, usual_budget
from vramcast.engines.post_training.card import ENGINE, TRAINERS, cards
from vramcast.engines.post_training.releases import FRAMEWORKS
from vramcast.engines.serving.table import SERVING
from vramcast.errors import InvalidSpec, Note, VramcastError, joined
from vramcast.estimate.cost import with_cost
from vramcast.estimate.interval import chance_within, interval, likest_runs, misses, training_traits
from vramcast.estimate.post_training_host import host_need
from vramcast.estimate.post_training_time import step_time
from vramcast.estimate.ranks import GIVES_BACK, context_tensor, ledger_entry, outside_tensors
from vramcast.estimate.script import Script
from vramcast.estimate.script import play as play_script
from vramcast.estimate.timeline import Device
from vramcast.units import ceil_div, format_bytes


class Moment(NamedTuple):
    """One process in one stage [bytes]."""

    allocated: int  # at its highest, of its own allocator
    reserved: int
    rests_allocated: int  # at its end
    rests_reserved: int
    is_active: bool


class Played(NamedTuple):
    """A card's run: every process in every stage."""

    card: Card
    outside: dict[str, tuple[Tensor, ...]]  # process -> what lies beside its allocator
    scripts: dict[str, Script[int]]
    moments: tuple[dict[str, Moment], ...]  # of each stage, the processes that are there
    limited: bool = False  # processes gave back what was free because the card was full
    risen: dict[str, dict[str, int]] = {}  # process -> stage -> reserved where micro-batches grow [bytes]

    def device_bytes(self, stage: int) -> int:
        """The card's sum in a stage [bytes]."""
        return sum(
            (moment.reserved if moment.is_active else moment.rests_reserved) + self.held_bytes(name, stage)
            for name, moment in self.moments[stage].items()
        )

    def held_bytes(self, name: str, stage: int) -> int:
        """What a process has of the card beside its own allocator: pools that are awake, and what lies outside."""
        return sum(tensor.num_bytes for tensor in (*self.awake(name, stage), *self.outside[name]))

    def awake(self, name: str, stage: int) -> tuple[Tensor, ...]:
        """Pools of a process that hold memory of the card in a stage."""
        process = next(process for process in self.card.processes if process.name == name)
        return tuple(pool for pool in process.pools if pool.name in self.card.stages[stage].awake)

    def cached_besides(self, name: str, stage: int, visible: int) -> int:
        """What else a process has reserved where micro-batches grow, and larger blocks join those of the last one each
        time: until the card is full, when all that is free goes back before more is asked for."""
        risen = self.risen.get(name, {}).get(self.card.stages[stage].name, 0)
        return max(0, min(risen - self.moments[stage][name].reserved, visible - self.device_bytes(stage)))

    def counted(self, name: str, stage: int) -> int:
        """Pools that torch counts in a process, asleep or awake [bytes]."""
        process = next(process for process in self.card.processes if process.name == name)
        begun = any(self.card.stages[before].awake for before in range(stage + 1))
        return sum(pool.num_bytes for pool in process.pools) if begun else 0


def answer(job: PostTrainingJob, *, with_changes: bool = True) -> PostTrainingAnswer:
    """Memory of every stage on the card and in each process, and the time of a step.

    Args:
        job: the question
        with_changes: of a plan that does not fit, whether to compute what would make it fit

    Raises: InvalidSpec, Unsupported or UnknownName with one sentence when the question cannot be answered.
    """
    runs = play(job, rises=True)
    wholes = sorted((_card_answer(job, played) for played in runs), key=lambda whole: -whole.needed_bytes)
    capacity, short = job.cluster.gpu.visible_bytes, _shortfall(runs)
    host = host_need(job, device_bytes=wholes[0].needed_bytes)
    fits = wholes[0].needed_bytes <= capacity and not short and host.fits
    time, unknown = step_time(job)
    longest = _by_longest(job) if job.episodes.usual < job.episodes.longest and not job.updates.padded else None
    said = (text for played in runs for text in played.card.assumptions)
    found = PostTrainingAnswer(
        question=question(job),
        fits=fits,
        capacity_bytes=capacity,
        ranks=(*wholes, *(one for played in runs for one in _process_answers(played, _cards(job, played), capacity))),
        num_parameters=count_parameters(job.model).total,
        cautions=tuple(_cautions(wholes[0], short, longest, capacity)),
        assumptions=tuple(dict.fromkeys((*job.model.notes, *job.assumed, *said, *_cached(runs, capacity), *unknown))),
        ignored=(
            *version.newer(job.framework, job.version, FRAMEWORKS[job.framework].newest),
            *version.newer(job.rollout_engine, job.rollout_version, SERVING[job.rollout_engine].newest),
        ),
        warnings=tuple(text for played in runs for text in played.card.warnings),
        changes=() if fits or not with_changes else tuple(_changes(job, wholes[0].needed_bytes, short)),
        time=time,
        host=host,
        resting={name: stages for played in runs for name, stages in _resting(played).items()},
        longest=longest,
        shortfall=short,
    )
    tokens = None if time is None or job.run_steps is None else job.run_steps * time.tokens_per_s * time.step_s
    priced: PostTrainingAnswer = with_cost(found, job.cluster, run_tokens=None if tokens is None else round(tokens))
    return priced


def _cached(runs: tuple[Played, ...], visible: int) -> Iterator[str]:
    most = max(played.cached_besides(name, index, visible)
               for played in runs for index, moments in enumerate(played.moments) for name in moments)
    if most:
        yield (Note(
            "lengths that grow from micro-batch to micro-batch leave up to {} more cached, which goes back before "
            "memory is out", format_bytes(most)
        ))


def _shortfall(runs: tuple[Played, ...]) -> str:
    return next((played.card.shortfall for played in runs if played.card.shortfall), "")


def _cards(job: PostTrainingJob, played: Played) -> int:
    """How many cards are like it."""
    name = _first(played)
    return job.engine_gpus if name == ENGINE else seen_from(job, name).trainer_gpus


def _first(played: Played) -> str:
    """The process that a card is named after."""
    return played.card.processes[0].name


def play(job: PostTrainingJob, *, rises: bool = False) -> tuple[Played, ...]:
    """Every process through every stage, in its own simulated allocator; of each kind of card.

    Args:
        rises: what a process has cached where micro-batches grow is asked, too
    """
    if job.alloc_conf and Settings.parse(job.alloc_conf).expandable_segments:  # a segment grows with what is asked
        rises = False
    return tuple(_played(job, found if rises else replace(found, rising=())) for found in cards(job))


def _played(job: PostTrainingJob, found: Card) -> Played:
    every = (*found.stages, *found.rising)
    outside = {process.name: (*_around(job, process), *process.outside) for process in found.processes}
    scripts = {process.name: Script(dict(enumerate(stage.programs.get(process.name, ()) for stage in every)))
               for process in found.processes}
    try:
        lives = {name: _life(every, name, script, job.alloc_conf) for name, script in scripts.items()}
    except BeyondAddresses:  # 32 TiB and more, which no card has
        raise InvalidSpec("the question is larger than can be answered") from None
    grown = {name: {stage.name: moment.reserved for stage, moment in zip(every, life, strict=True)
                    if stage in found.rising and moment.is_active} for name, life in lives.items()}
    played = Played(found, outside, scripts, _moments(found, lives), risen=grown)
    sizes, visible = [*map(played.device_bytes, range(len(found.stages)))], job.cluster.gpu.visible_bytes
    full = {name for stage, size in zip(found.stages, sizes, strict=True) if size > visible for name in stage.programs}
    if not full or job.alloc_conf or any(stage.expands for stage in found.stages):
        return played
    for name in full:
        rooms = [visible - size + (moment.reserved if moment.is_active else moment.rests_reserved)
                 for size, moment in zip(sizes, lives[name], strict=False)]
        try:
            lives[name] = _life(found.stages, name, scripts[name], "", rooms)
        except BeyondAddresses:  # much larger than the card, which gives back all the time
            return played
    return played._replace(moments=_moments(found, lives), limited=True)


def _moments(found: Card, lives: Mapping[str, Sequence[Moment]]) -> tuple[dict[str, Moment], ...]:
    """Of each stage, of the processes that have begun."""
    begins = {name: next(index for index, stage in enumerate(found.stages) if name in stage.programs) for name in lives}
    return tuple({name: life[index] for name, life in lives.items() if index >= begins[name]}
                 for index in range(len(found.stages)))


def _life(
    stages: Sequence[Stage], name: str, script: Script[int], alloc_conf: str, rooms: Sequence[int] = ()
) -> list[Moment]:
    """One process through every stage. Expandable segments are given back page by page: the full allocator's work.

    Args:
        rooms: what others leave of the card in each stage; beyond it what is free goes back first [bytes]
    """
    moments = []
    switches = any(name in stage.expands for stage in stages)
    device = Device(Settings.parse(alloc_conf), None) if alloc_conf or switches else None
    allocator: Allocator | Gaps = Gaps(script.run.requests) if device is None else device.allocator
    phases = script.run.phases[:len(stages)]
    for index, (stage, place) in enumerate(zip(stages, phases, strict=True)):
        allocator.reset_peaks()
        program = stage.programs.get(name)
        if isinstance(allocator, Gaps):
            if rooms:
                allocator.limit(rooms[index])
            play_script(script.run, place, allocator)
        elif device is not None and program is not None:
            if switches:
                device.allocator.expand(expands=name in stage.expands)
            device.replay(program)
        allocated, reserved = allocator.peak_allocated_bytes, allocator.peak_reserved_bytes
        if name in stage.releases:
            allocator.release() if isinstance(allocator, Gaps) else allocator.empty_cache()
        moments.append(Moment(allocated, reserved, allocator.allocated_bytes, allocator.reserved_bytes,
                              program is not None))
    return moments


def _around(job: PostTrainingJob, process: Process) -> tuple[Tensor, ...]:
    """Context and communicators of a process; engines count their own communicators."""
    if process.name == TRAINERS[0] or (process.name in TRAINERS and not process.pools):
        return outside_tensors(_train_job(seen_from(job, process.name)))
    return (context_tensor(job.cluster.gpu),)


def _train_job(job: PostTrainingJob) -> Job:
    return trainer.of(job).train_job(job, batches(job, learns=True))


def _card_answer(job: PostTrainingJob, played: Played) -> RankAnswer:
    """The sum over its processes."""
    peaks: dict[str, Peak] = {}
    highest = 0
    for index, stage in enumerate(played.card.stages):
        device = played.device_bytes(index)
        outside = sum(tensor.num_bytes for name in played.moments[index] for tensor in played.outside[name])
        allocated = sum(
            (moment.allocated if moment.is_active else moment.rests_allocated)
            + sum(pool.num_bytes for pool in played.awake(name, index))
            for name, moment in played.moments[index].items()
        )
        peak = Peak(allocated_bytes=allocated, reserved_bytes=device - outside, device_bytes=device)
        if stage.name not in peaks or peak.device_bytes > peaks[stage.name].device_bytes:
            peaks[stage.name] = peak
        if device > played.device_bytes(highest):
            highest = index
    highest_stage = played.card.stages[highest].name
    peak = peaks[highest_stage]
    exact = sum(pool.num_bytes for name in played.moments[highest] for pool in played.awake(name, highest))
    traits = training_traits(_train_job(job))
    low, likely = (exact + end for end in interval(traits, peak.device_bytes - exact))
    visible = job.cluster.gpu.visible_bytes
    high = max(likely, *(played.device_bytes(index) + played.cached_besides(name, index, visible)
                       for index, moments in enumerate(played.moments) for name in moments))
    role = CARDS[0] if job.rollout.gpus is None else f"{_first(played)}'s card"
    return RankAnswer(
        role=role, count=_cards(job, played), peak=peak, interval_bytes=(low, high), phases=peaks,
        highest=highest_stage, gives_back_cache=played.limited and peak.device_bytes <= visible,
        # how often the cache of several processes meets is not measured
        chance_to_fit=chance_within(traits, peak.device_bytes - exact, visible - exact)
        if high <= max(likely, visible) else None,
        likest=likest_runs(traits), misses=misses(traits), exact_bytes=exact,
        ledger=tuple(sorted(_ledger(played, highest, peak), key=lambda entry: -entry.num_bytes)),
    )


def _ledger(played: Played, index: int, peak: Peak) -> Iterator[LedgerEntry]:
    """What the card holds at the highest point of a stage; entries add up to its device bytes."""
    listed = 0
    for name in played.moments[index]:
        live = played.scripts[name].live_at_peak(index)
        pools = dict.fromkeys(played.awake(name, index), 1)
        for tensor, count in (live | pools | dict.fromkeys(played.outside[name], 1)).items():
            size = tensor.block_bytes if tensor in live else tensor.num_bytes
            listed += size * count
            named = replace(tensor, owner=f"{name}.{tensor.owner}") if name in TRAINERS[1:] else tensor
            yield ledger_entry(named, size, count)
    yield LedgerEntry(
        path="allocator/reserved but not allocated", num_bytes=peak.device_bytes - listed, basis=Basis.FORMULA,
        formula="peak reserved - live at the peak", source="simulated caching allocators, one a process",
    )


def _process_answers(played: Played, count: int, visible: int) -> Iterator[RankAnswer]:
    """Each process as torch counts in it: what sleeps stays in its statistics."""
    for process in played.card.processes:
        phases: dict[str, Peak] = {}
        for index, stage in enumerate(played.card.stages):
            moment = played.moments[index].get(process.name)
            if moment is None:
                continue
            pools, held = played.counted(process.name, index), played.held_bytes(process.name, index)
            found = Peak(allocated_bytes=moment.allocated + pools,
                         reserved_bytes=moment.reserved + pools + played.cached_besides(process.name, index, visible),
                         device_bytes=moment.reserved + held)
            known = phases.get(stage.name)
            phases[stage.name] = found if known is None else Peak(
                allocated_bytes=max(found.allocated_bytes, known.allocated_bytes),
                reserved_bytes=max(found.reserved_bytes, known.reserved_bytes),
                device_bytes=max(found.device_bytes, known.device_bytes),
            )
        peak = max(phases.values(), key=lambda one: one.allocated_bytes)
        yield RankAnswer(role=process.name, count=count, peak=peak,
                         interval_bytes=(peak.device_bytes, peak.device_bytes), phases=phases, ledger=())


def _resting(played: Played) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for stage, moments in zip(played.card.stages, played.moments, strict=True):
        for name, moment in moments.items():
            found.setdefault(name, {})[stage.name] = moment.rests_allocated
    return found


def _by_longest(job: PostTrainingJob) -> Peak | None:
    """The card where every sequence is as long as it may be; None where that cannot be asked."""
    episodes = replace(job.episodes, mean_prompt_len=None, mean_response_len=None)
    try:
        longest = replace(job, episodes=episodes)
        return max((_card_answer(longest, played).peak for played in play(longest)), key=lambda peak: peak.device_bytes)
    except VramcastError:
        return None


def _cautions(whole: RankAnswer, shortfall: str, longest: Peak | None, capacity: int) -> Iterator[str]:
    """What changes how the verdict is to be read."""
    if shortfall and whole.needed_bytes > capacity:
        yield shortfall
    if whole.gives_back_cache:
        yield GIVES_BACK
    if longest is not None:
        size = format_bytes(longest.device_bytes)
        yield (Note("by the mean lengths; where all sequences of a micro-batch are the longest, {}: fits", size)
               if longest.device_bytes <= capacity else
               Note(
                   "by the mean lengths; where all sequences of a micro-batch are the longest, {}: does not fit", size
               ))


def needed_bytes(runs: tuple[Played, ...]) -> int:
    """Device bytes of the fullest card in its highest stage."""
    return max(played.device_bytes(index) for played in runs for index in range(len(played.card.stages)))


class Proposal(NamedTuple):
    """One change of a question."""

    options: str
    part: str  # field of the question: "updates", "plan", "rollout"
    fields: dict[str, Any]
    cost: str

    def on(self, job: PostTrainingJob) -> PostTrainingJob:
        """The question with it."""
        return replace(job, **{self.part: replace(getattr(job, self.part), **self.fields)})


def _starting(job: PostTrainingJob) -> Iterator[Proposal]:
    """Changes that let an engine start whose cache is too small."""
    if job.rollout.context is None:
        longest = job.episodes.longest
        yield Proposal(f"--context {longest}", "rollout", {"context": longest}, "none: no sequence is longer")
    share = job.rollout.memory_fraction or FRAMEWORKS[job.framework].memory_fraction
    for more in takewhile(lambda one: one < 1, (round(share + step / 10, 2) for step in range(1, 10))):
        yield Proposal(f"--memory-fraction {more:g}", "rollout", {"memory_fraction": more},
                       "less room for everything else on the card")


def _proposals(job: PostTrainingJob, *, least: bool = False) -> Iterator[Proposal]:
    """Changes that lower a peak, the cheapest first; `least`: micro-batches as small as they may be, not half."""
    updates, plan, rollout = job.updates, job.plan, job.rollout
    smaller = "smaller matrix products"
    for option, field in (("--micro-batch", "micro_batch"), ("--log-prob-micro-batch", "log_prob_micro_batch")):
        given = getattr(updates, field)
        if given and given > 1:
            fewer = 1 if least else given // 2
            yield Proposal(f"{option} {fewer}", "updates", {field: fewer}, smaller)
    tokens, fewest = updates.micro_tokens or usual_budget(job), ceil_div(job.episodes.longest, updates.ulysses)
    if updates.micro_batch is None and tokens // 2 >= fewest:
        fewer = fewest if least else tokens // 2
        yield Proposal(f"--micro-tokens {fewer}", "updates", {"micro_tokens": fewer}, smaller)
    share = rollout.memory_fraction or FRAMEWORKS[job.framework].memory_fraction
    if share > 0.2:
        less = round(share - 0.1, 2)
        yield Proposal(f"--memory-fraction {less:g}", "rollout", {"memory_fraction": less},
                       "a smaller cache: fewer sequences at once")
    if not rollout.sleeps:
        yield Proposal("--sleep", "rollout", {"sleeps": True}, "sleeping and waking every step")
    if plan.recompute is not Recompute.FULL:
        yield Proposal("--recompute full", "plan", {"recompute": Recompute.FULL}, "one more forward")
    if job.engine == "pytorch" and not updates.fused_loss:
        yield Proposal("--fused-loss", "updates", {"fused_loss": True}, "about none")
    if job.engine == "deepspeed":
        yield from _of_zero(job)
    elif plan.offload_parameters == "none" or plan.offload_optimizer == "none":
        offloaded = {"offload_parameters": "cpu", "offload_optimizer": "cpu"}
        yield Proposal("--offload-parameters cpu --offload-optimizer cpu", "plan", offloaded,
                       "states move over PCIe in every stage")
    if job.engine == "pytorch" and fsdp.sharder(job) == "fsdp1":
        yield Proposal("--sharded-by fsdp2", "plan", {"sharded_by": "fsdp2"}, "about none")
    if job.engine == "pytorch" and updates.ulysses * 2 <= job.trainer_gpus:
        yield Proposal(f"--ulysses {updates.ulysses * 2}", "updates", {"ulysses": updates.ulysses * 2},
                       "sequences are exchanged in every layer")


def _of_zero(job: PostTrainingJob) -> Iterator[Proposal]:
    """What DeepSpeed's processes do besides."""
    plan = job.plan
    if not job.updates.sleeps and plan.offload_optimizer == "none":
        yield Proposal("--trainer-sleep", "updates", {"sleeps": True}, "states move over PCIe in every step")
    if plan.shards is not Shards.EVERYTHING:
        yield Proposal("--zero 3", "plan", {"shards": Shards.EVERYTHING}, "weights are gathered in every pass")
    if plan.offload_optimizer == "none":
        yield Proposal("--offload-optimizer cpu", "plan", {"offload_optimizer": "cpu"},
                       "the optimizer steps on the host")


def _changes(job: PostTrainingJob, before: int, short: str) -> Iterator[Change]:
    """Each change that lowers what is needed, or lets the engine start; where none is enough, the fewest together."""
    enough, too_much = False, before > job.cluster.gpu.visible_bytes
    for proposal in (*(_starting(job) if short else ()), *_proposals(job)):
        found = _changed(job, (proposal,))
        if found is not None and (found.fits if not too_much else found.device_bytes < before):
            yield found
            enough |= found.fits
            if enough and short:  # larger shares would start, too
                return
    every = () if enough else tuple(_proposals(job, least=True))
    whole = _changed(job, every) if every else None
    if whole is None or not whole.fits:
        return
    for proposal in reversed(every):  # the dearest first
        fewer = tuple(one for one in every if one is not proposal)
        found = _changed(job, fewer)
        if found is not None and found.fits:
            every, whole = fewer, found
    yield whole


def _changed(job: PostTrainingJob, proposals: Sequence[Proposal]) -> Change | None:
    """What a question with those changes comes to; None where it cannot be asked."""
    for proposal in proposals:
        job = proposal.on(job)
    try:
        runs = play(job)
        needed = needed_bytes(runs)
        host = host_need(job, device_bytes=needed)
    except VramcastError:
        return None
    return Change(
        change=" ".join(proposal.options for proposal in proposals), device_bytes=needed,
        cost=joined("; ", dict.fromkeys(proposal.cost for proposal in proposals)),
        fits=needed <= job.cluster.gpu.visible_bytes and not _shortfall(runs) and host.fits,
        capacity_bytes=job.cluster.gpu.visible_bytes,
    )


def question(job: PostTrainingJob) -> dict[str, Any]:
    """The job as plain data; the model and the card by name."""
    plain: dict[str, Any] = {
        "model": job.model.name, "gpus": job.cluster.name, "engine": version.named(job.framework, job.version),
        "trainer_engine": job.engine, "rollout_engine": version.named(job.rollout_engine, job.rollout_version),
        "algorithm": job.algorithm,
    }
    for name in ("episodes", "updates", "plan", "rollout"):
        fields = msgspec.structs.asdict(getattr(job, name))
        plain[name] = msgspec.to_builtins({key: value for key, value in fields.items() if value is not None})
    return plain

