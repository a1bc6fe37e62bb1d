"""Prefill and decode speed of one serving plan and what users get of both, or in one sentence why there is none.

A step of a pipeline whose stages work on different sequences takes as long as all stages together, on a stage's share
of the sequences; where one card waits for the other, on all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import chain
from math import ceil
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from vramcast.domain.answer import Speed
from vramcast.domain.model import Head, Run
from vramcast.domain.serving import ServeJob
from vramcast.engines.serving.stages import Stage, even_stages
from vramcast.engines.serving.table import SERVING
from vramcast.errors import Note, Unsupported, VramcastError
from vramcast.estimate.running import (
    drafting_of,
    finds_its_own,
    most_running,
    placement_of,
    prompt_step,
    releases,
    running_of,
    said_of_drafts,
    tokens_of_step,
)
from vramcast.states.storage import token_bytes
from vramcast.timing import loop
from vramcast.timing.batching import Limits, Pool
from vramcast.timing.forward import forward_work
from vramcast.timing.loop import Front, Latency, closed_loop
from vramcast.timing.rates import (
    PCIE_SHARE,
    SHAPES,
    Beside,
    assumed_links,
    bandwidth,
    is_measured,
    machine_around,
    pcie_bytes_per_s,
    product_rate,
)
from vramcast.timing.roofline import CAUSES, Machine, StepTime, least_reading_s, machine_of, step_time
from vramcast.timing.steps import StepCosts
from vramcast.timing.work import Execution, Placement, Setting, Step, Work, execution_of
from vramcast.units import ceil_div

CHUNK: Final = 8192
"""Tokens of a prompt that one forward takes where no engine cuts it."""


ALL_LOGITS_BEFORE: Final = (4, 45)
"""First version of transformers that computes the logits of the last position only."""


class Timed(Struct, frozen=True):
    """A speed, or why there is none."""

    speed: Speed | None
    assumptions: tuple[str, ...]


class Loaded(Struct, frozen=True):
    """What a load meets."""

    spread: float  # share by which lengths of prompts and answers differ from their mean at most
    held: float | None  # sequences of the job's context that the fullest cache holds; None: all


class Load(Struct, frozen=True):
    """What one sequence is like."""

    prompt: int  # tokens
    answer: int  # tokens; 0 where nothing is generated
    assumed: bool  # the question said neither

    @property
    def mean_context(self) -> int:
        """Tokens half way through the answer."""
        return self.prompt + self.answer // 2


@lru_cache(maxsize=256)  # the load is simulated; a search compares plans by it and answers those that it shows again
def timed(job: ServeJob, *, spread: float = loop.LOOSE, held: float | None = None) -> Timed:
    """The speed of a plan.

    Args:
        job: the question
        spread: share by which lengths of prompts and answers differ from their mean at most
        held: sequences of the job's context that the fullest cache holds; None: all
    """
    execution = execution_of(job.engine, job.version, arch=job.cluster.gpu.arch)
    if execution is None:
        return Timed(None, ())  # pipelines of images have no tokens
    if execution.loops_experts:
        versions = releases()
        loops = versions.loops_experts(job.model.family, job.version)
        meets = versions.meets_experts(job.model.family, job.version)
        execution = replace(execution, loops_experts=execution.loops_experts * loops, meets_experts=meets)
    try:
        return _timed(job, execution, Loaded(spread, held))
    except VramcastError as reason:
        return Timed(None, (Note("no speed: {}", reason),))


class Setup(NamedTuple):
    """What steps of a plan run on."""

    machine: Machine
    placement: Placement


def setup_of(job: ServeJob, execution: Execution) -> Setup:
    """The rates of a plan's cards and how the network lies on them.

    Raises: Unsupported in one sentence where they are not known
    """
    gpu = job.cluster.gpu
    if len(job.model.stacks) > 1 and any(run.layer.cross_attention for run in job.model.main.runs):
        raise Unsupported("encoder-decoder models are not timed")
    placement = placement_of(job, execution)
    machine = machine_of(gpu, job.engine, execution, whole=placement.whole, node_cards=job.cluster.node_cards)
    if machine is None:
        raise Unsupported("the catalogue has no bandwidth or rates of {}", gpu.name)
    return Setup(replace(machine, beside=_beside(job)), placement)


def _timed(asked: ServeJob, execution: Execution, loaded: Loaded) -> Timed:
    job = running_of(asked)
    machine, placement = setup_of(job, execution)
    load = load_of(job)
    prefill = _prefill(job, machine, placement, load.prompt, prompts=1)
    together = min(job.requests.concurrency, max(1, _chunk(job) // load.prompt))
    batched = _prefill(job, machine, placement, load.prompt, prompts=together)
    found = Speed(
        prompt_tokens=load.prompt,
        time_to_first_token_s=prefill.seconds,
        prefill_tokens_per_s=together * load.prompt / batched.seconds,
        prefill_bound=prefill.bound,
        prefill_shares=prefill.shares,
        sources=_sources(machine, placement),
    )
    if job.model.head is Head.LM:
        found = _with_decode(found, job, machine, placement, load, loaded.held)
        found = _with_load(found, asked, machine, placement, load, loaded)
    host = (machine.beside.assumed,) if machine.beside is not None and machine.beside.assumed else ()
    return Timed(found, (*_assumed(job, load), *host))


def _beside(job: ServeJob) -> Beside | None:
    """What llama.cpp leaves on the host: it is computed there, or brought to a card for large batches."""
    if not SERVING[job.engine].is_ggml:
        return None
    from vramcast.engines.llamacpp.deploy import OFFLOADED_ROWS, host_shares

    held = host_shares(job)
    if not held.any:
        return None
    rate, flops, assumed = machine_around(job.cluster.gpu, bytes_per_s=held.bytes_per_s, cores=held.threads)
    shares = {name: getattr(held, name) for name in ("experts", "layers", "head", "cache")}
    return Beside(
        shares, rate, flops, pcie_bytes_per_s(job.cluster.gpu) * PCIE_SHARE.value, held.micro_batch,
        OFFLOADED_ROWS if held.op_offload else None, assumed,
    )


def _with_decode(
    speed: Speed, job: ServeJob, machine: Machine, placement: Placement, load: Load, held: float | None
) -> Speed:
    """Steps of those who generate at once: as many of the users as the cache holds."""
    users = ceil_div(job.requests.concurrency, job.plan.dp)
    users = users if held is None else min(users, max(1, int(held)))
    together = min(job.requests.concurrency, users * job.plan.dp)
    step = _decode(job, machine, placement, sequences=users, cached=load.mean_context)
    tokens = tokens_of_step(job)
    return replace(
        speed,
        mean_context=load.mean_context,
        answer_tokens=max(1, load.answer),
        step_s=step.seconds,
        decode_tokens_per_s=together * tokens / step.seconds,
        decode_tokens_per_s_per_user=tokens / step.seconds,
        decode_bound=step.bound,
        decode_shares=step.shares,
    )


def _with_load(
    speed: Speed, job: ServeJob, machine: Machine, placement: Placement, load: Load, loaded: Loaded
) -> Speed:
    """What users get, those who wait until others are answered among them."""
    answer = max(1, load.answer)
    latency = _under_load(job, machine, placement, load, loaded)
    per_user = answer / (latency.first_token_s + (answer - 1) * latency.token_s)
    return replace(
        speed,
        tokens_per_s=per_user * job.requests.concurrency,
        tokens_per_s_per_user=per_user,
        loaded_first_token_s=latency.first_token_s,
        loaded_token_s=latency.token_s,
        burst_first_token_s=latency.together_s,
        **_intervals(job, machine, placement, load, latency),
    )


def _intervals(
    job: ServeJob, machine: Machine, placement: Placement, load: Load, latency: Latency
) -> dict[str, tuple[float, float]]:
    """What 90 % of runs like this were measured at: of a card's own kernels under an engine, without drafts.

    No step is faster than the card reads the weights and the caches of those who generate: by Little's law as large a
    share of the users as of a user's time is between tokens.
    """
    if machine.kernels is None or machine.kernels.system != machine.gpu.name or job.plan.draft is not None:
        return {}
    (first_low, first_high), (low, high) = loop.MISSES
    answered_s = max(1, load.answer) * latency.token_s
    generating = job.requests.concurrency / job.plan.dp * answered_s / (latency.first_token_s + answered_s)
    step = Step(max(1, int(generating / len(_stages(job, machine.execution)))), 1, load.mean_context)
    least_s = sum(least_reading_s(works, machine.gpu) for works in _works(job, machine, placement, step))
    return {
        "loaded_first_token_interval_s": (first_low * latency.first_token_s, first_high * latency.first_token_s),
        "loaded_token_interval_s": (
            min(latency.token_s, max(low * latency.token_s, least_s)), high * latency.token_s),
    }


class Scheduler(Struct, frozen=True):
    """One scheduler of a plan: copies that share experts take their steps together, others are alone."""

    load: loop.Load
    limits: Limits
    costs: StepCosts
    front: Front
    pool: Pool


def _under_load(job: ServeJob, machine: Machine, placement: Placement, load: Load, loaded: Loaded) -> Latency:
    """What users of a closed load get."""
    one = _scheduler(job, machine, placement, load, loaded)
    found = closed_loop(one.load, one.limits, one.costs, one.front, one.pool)
    return replace(found, token_s=found.token_s / tokens_of_step(job))


def _scheduler(job: ServeJob, machine: Machine, placement: Placement, load: Load, loaded: Loaded) -> Scheduler:
    execution = machine.execution
    copies = job.plan.dp if placement.ep > placement.tp else 1
    users = ceil_div(job.requests.concurrency, job.plan.dp) * copies
    asked = loop.Load(
        users, load.prompt, max(1, ceil(load.answer / tokens_of_step(job))),
        max(loaded.spread, loop.LOOSE) if execution.mixed and execution.chunks else loaded.spread)
    together, pool = _room(job, loaded.held, users, copies)
    longest = ceil(load.prompt * (1 + asked.spread))
    tokens = max(_chunk(job), 0 if execution.chunks else longest) * copies
    costs = StepCosts(
        job.model, stages_of(job, execution), machine, placement,
        replayed=job.plan.graphs and not execution.eager, sequences=together, tokens=tokens,
        context=longest + ceil(load.answer * (1 + asked.spread)), copies=copies, all_logits=_all_logits(job),
        drafting=drafting_of(job), prompt=load.prompt,
    )
    options = job.engine_options
    balanced = int(options.get("attention-dp-timeout-iters", 0)) if copies > 1 else 0
    limits = Limits(
        together, tokens, chunks=execution.chunks, whole_prompt=execution.whole_prompt, apart=not execution.mixed,
        looked_every=int(options.get("scheduler-recv-interval", 1)),
        held_steps=balanced or int(options.get("batch-wait-timeout-iters", 0)),
        held_tokens=int(tokens * float(options.get("batch-wait-max-tokens-ratio", 0.0))),
        held_prompts=_until_all_have_one(copies) if balanced else 0, ahead=execution.scheduled_ahead,
    )
    return Scheduler(asked, limits, costs, Front(execution.text_s * load.prompt, execution.front_s), pool)


HANDED_S: Final = 0.05
"""A request on its way from one instance to the other, beside its cache: a router and two servers."""

HANDED_BYTES_PER_S: Final = 50e9
"""Of a cache from one rank to another: a network card of 400 Gb/s beside every GPU."""

ROUNDS: Final = 4
"""Times that the number of those who generate is worked out anew."""


def timed_apart(prefill: ServeJob, decode: ServeJob, *, instances: tuple[int, int], spread: float) -> Latency:
    """What users of a closed load get where some instances take prompts and others generate: a round is both.

    How many generate at a time follows from how long both take: the rest is with those that take prompts.

    Args:
        prefill: the question to one instance that takes prompts; its concurrency is that of the whole load
        decode: that to one that generates
        instances: of either kind

    Raises: Unsupported in one sentence where the rates of cards are not known
    """
    settings = []
    for job in (prefill, decode):
        execution = execution_of(job.engine, job.version, arch=job.cluster.gpu.arch)
        assert execution is not None
        settings.append(setup_of(job, execution))
    (machine, placement), (other, others) = settings
    users, load = prefill.requests.concurrency, load_of(prefill)
    asked = replace(prefill, requests=replace(prefill.requests, concurrency=ceil_div(users, instances[0])))
    one = _scheduler(asked, machine, placement, replace(load, answer=1), Loaded(spread, None))
    answers = loop.Load(users, load.prompt, max(2, load.answer), spread)
    handed_s = HANDED_S + load.prompt * _token_bytes(prefill, placement) / HANDED_BYTES_PER_S
    generating = float(users)
    for _ in range(ROUNDS):
        each = ceil_div(ceil_div(ceil(generating), instances[1]), decode.plan.dp)
        token_s = _decode(decode, other, others, sequences=each, cached=load.mean_context).seconds
        token_s /= tokens_of_step(decode)
        away_s = partial(_away_s, answers, handed_s, token_s)
        found = closed_loop(one.load, one.limits, one.costs, one.front, one.pool, away_s=away_s)
        answered_s = load.answer * token_s
        generating = (generating + users * answered_s / (answered_s + found.first_token_s + handed_s)) / 2
    wait_s = handed_s + token_s
    return Latency(found.first_token_s + wait_s, token_s, found.together_s + wait_s)


def _away_s(answers: loop.Load, handed_s: float, token_s: float, request: int) -> float:
    """From the first token until the last [s]."""
    return handed_s + (answers.lengths(request)[1] - 1) * token_s


def _token_bytes(job: ServeJob, placement: Placement) -> int:
    """One more token in the caches of all layers of a rank [bytes]."""
    return sum(
        run.count * token_bytes(run.layer.mixer, tp=placement.tp, k_dtype=placement.k_dtype, v_dtype=placement.v_dtype)
        for run in job.model.main.runs
    )


def _room(job: ServeJob, held: float | None, users: int, copies: int) -> tuple[int, Pool]:
    """How many users of so many copies run at once, as far as settings and whole sequences go, and their blocks."""
    running = most_running(job)
    together = users if running is None else min(users, running // job.plan.dp * copies)
    if held is None or together <= copies * held:
        return together, UNLIMITED
    execution = execution_of(job.engine, job.version, arch=job.cluster.gpu.arch)
    if execution is not None and execution.reserves:
        return int(copies * held), UNLIMITED
    blocks = ceil(copies * held * ceil_div(job.context, BLOCK_TOKENS))
    return together, Pool(blocks, BLOCK_TOKENS, caches=finds_its_own(job))


def _until_all_have_one(ranks: int) -> int:
    """Prompts that come, each to any of so many ranks, until every rank has one: the coupon collector's mean.

    >>> _until_all_have_one(4)
    9
    """
    return ceil(ranks * sum(1 / rank for rank in range(1, ranks + 1)))


BLOCK_TOKENS: Final = 16

UNLIMITED: Final = Pool(1 << 60, 1 << 20)
"""Blocks for all: how many sequences a cache holds is said beside the speed."""


def load_of(job: ServeJob) -> Load:
    """Prompt and mean context of a sequence; half of the context each where nothing is said."""
    asked = job.requests
    if asked.input_len is not None:
        prompt, assumed = asked.input_len, False
        answer = asked.output_len or max(1, job.context - prompt)
    elif asked.output_len is not None:
        prompt, answer, assumed = max(1, job.context - asked.output_len), asked.output_len, False
    else:
        prompt = job.context if job.model.head is not Head.LM else max(1, job.context // 2)
        answer, assumed = job.context - prompt, job.model.head is Head.LM
    return Load(prompt, answer, assumed)


def stages_of(job: ServeJob, execution: Execution) -> list[tuple[tuple[Run, ...], bool, bool]]:
    """Layers of every stage, whether it is the first, whether the last."""
    return [(tuple(stage.runs(job.model)), stage.first, stage.last) for stage in _stages(job, execution)]


def _stages(job: ServeJob, execution: Execution) -> tuple[Stage, ...]:
    degree = job.plan.pp if execution.pipelined else job.plan.num_ranks
    return even_stages(job.model.num_layers, min(degree, job.model.num_layers))


def _chunk(job: ServeJob) -> int:
    """Tokens of prompts that one forward takes."""
    return prompt_step(job) or CHUNK


def _prefill(job: ServeJob, machine: Machine, placement: Placement, prompt: int, *, prompts: int) -> StepTime:
    """So many prompts at once, chunk after chunk through every stage."""
    chunks = ceil_div(prompt, min(prompt, _chunk(job)))
    tokens = ceil_div(prompt, chunks)
    step = Step(prompts, tokens, (prompt - tokens) // 2, head_rows=tokens if _all_logits(job) else 1)
    one = _through_stages(job, machine, placement, step, replayed=False)
    return StepTime(one.seconds * chunks, one.shares)


def _all_logits(job: ServeJob) -> bool:
    return job.engine == "transformers" and job.version < ALL_LOGITS_BEFORE


def _decode(
    job: ServeJob, machine: Machine, placement: Placement, *, sequences: int, cached: int
) -> StepTime:
    """One token of every sequence."""
    share = len(_stages(job, machine.execution)) if machine.execution.pipelined else 1
    drafting = drafting_of(job)
    proposed = drafting.proposed if drafting is not None else 0
    each, replayed = ceil_div(sequences, share), job.plan.graphs and not machine.execution.eager
    step = Step(
        each, 1, max(1, cached), head_rows=1 + proposed, proposed=proposed,
        computed=machine.execution.computed(each, job.plan.max_sequences or each) if replayed else 0,
    )
    return _through_stages(job, machine, placement, step, replayed=replayed)


def _through_stages(
    job: ServeJob, machine: Machine, placement: Placement, step: Step, *, replayed: bool
) -> StepTime:
    last = len(_stages(job, machine.execution)) - 1
    times = [
        step_time(
            works, machine, placement, replayed=replayed, rows=step.rows,
            sequences=step.sequences if step.decodes and number == last else 0,
        ) for number, works in enumerate(_works(job, machine, placement, step))
    ]
    total = sum(time.seconds for time in times)
    shares = {cause: sum(time.seconds * time.shares[cause] for time in times) / total for cause in CAUSES}
    return StepTime(total, shares)


def _works(
    job: ServeJob, machine: Machine, placement: Placement, step: Step
) -> Iterator[Iterator[tuple[Work, int]]]:
    """What every stage does in a step."""
    setting = Setting(step, placement, machine.execution)
    drafting = drafting_of(job) if step.decodes else None
    for runs, first, last in stages_of(job, machine.execution):
        own = forward_work(job.model, runs, setting, first=first, last=last)
        yield own if drafting is None or not last else chain(own, drafting.works(job.model, setting))


def _sources(machine: Machine, placement: Placement) -> tuple[str, ...]:
    memory, product = bandwidth(machine.gpu), product_rate(machine.gpu, placement.quantised, placement.whole)
    assert memory is not None and product is not None
    measured = machine.kernels
    found = [measured.source(machine.gpu)] if measured is not None else []
    found += [memory[1], Note("{}, and {:.0%} of that with a model's shapes", product.source, SHAPES.value)]
    if placement.tp > 1:
        link = machine.links.between(placement.tp)
        found.append(Note("all-reduce over {}, {:.0f} us each", link.source, link.latency_s * 1e6))
    return tuple(found)


def _assumed(job: ServeJob, load: Load) -> tuple[str, ...]:
    found: list[str] = []
    vendor = job.cluster.gpu.vendor
    if job.plan.num_ranks > 1:
        found += assumed_links(job.cluster.gpu, node_cards=min(job.cluster.node_cards, job.plan.num_ranks))
    if not is_measured(job.cluster.gpu):
        found.append(Note(
            "speed is the data sheet of {} times the shares that cards of others reach: none of its own was measured",
            vendor
        ))
    if load.assumed:
        found.append(
            Note(
                "speed is that of prompts of {:,} tokens and answers of {:,}; --input-len and --output-len say "
                "otherwise", load.prompt, job.context - load.prompt
            )
        )
    if job.requests.images:
        found.append("the time of the vision tower is left out")
    if job.plan.lora_slots:
        found.append("speed is that without adapters: their products are left out")
    if job.plan.draft is not None:
        found.append(said_of_drafts(job))
    return tuple(found)
