"""What users get where requests come by themselves: the engine's scheduler, its pool and its step times, simulated.

[rate] The most a plan serves is what it completes while the queue is never empty: more than that, and the queue grows
for as long as requests come.
[vllm] vllm 0.19.0 vllm/benchmarks/serve.py `benchmark`: its time begins before the first request is waited for
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from statistics import median
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.domain.answer import SLO_SHARE, Quantiles, Served
from vramcast.domain.model import Head
from vramcast.domain.serving import Deployment, ServeJob, Traffic
from vramcast.engines.vllm.groups import BlockPool
from vramcast.engines.vllm.settings import Settings, settings_of
from vramcast.errors import InvalidSpec, Note, Unsupported, joined
from vramcast.estimate.speed import setup_of, stages_of
from vramcast.timing.batching import Arrival, Batching, Interval, Limits, Pool
from vramcast.timing.loop import arrivals_at, routed
from vramcast.timing.steps import StepCosts
from vramcast.timing.work import execution_of

SIMULATED_S: Final = 600.0
FEWEST: Final = 1000
MOST: Final = 200_000
"""Requests of a simulation where nobody says how many: those of ten minutes, as far as they lie between these two."""

ROUNDS: Final = 7
"""Bisections for the highest rate that keeps an objective: within 1 % of the most that can be served."""

GLANCE: Final = 5
"""A trial looks at every so many of its requests first, and no further where they are far from what is promised."""

COURSE: Final = 240
"""Stretches of time that the course of the pool is told in."""

SIMULATED: Final = ("vllm",)
"""Engines whose scheduler is simulated."""


class Setting(NamedTuple):
    """What is simulated."""

    job: ServeJob
    traffic: Traffic
    pool: Pool
    block_bytes: int
    limits: Limits
    costs: StepCosts
    waited_s: float  # by a first token beside the scheduler
    copies: int


def served(job: ServeJob, deployment: Deployment) -> tuple[Served, tuple[str, ...]]:
    """The answer, and what was assumed.

    Raises: InvalidSpec or Unsupported in one sentence, with the limit where a rate or an objective is beyond it
    """
    setting = setting_of(job, deployment)
    sizes = _sizes(setting)
    _check_slo(setting)
    most = _most_rate(setting, sizes)
    rate = setting.traffic.rate
    if rate is not None and rate > most:
        raise InvalidSpec(
            "rate={:g} is more than this plan serves: the queue of {} on {} grows without end from {:,.3g} requests "
            "per second on; lower --rate, or raise --replicas", rate, job.model.name, job.cluster.name, most
        )
    sent = _sent(setting, rate) if rate is not None else [Arrival(*one) for one in setting.traffic.arrivals]
    schedulers = _simulated(setting, sent)
    slo_rate = _slo_rate(setting, most) if setting.traffic.slo and rate is not None else None
    return _told(setting, schedulers, most, slo_rate), tuple(_assumed(setting))


def check(job: ServeJob) -> None:
    """Raise Unsupported for an engine or a plan whose scheduler is not simulated, whether it fits or not."""
    if job.engine not in SIMULATED:
        raise Unsupported("the scheduler of {} is not simulated; use --engine {}",
                          job.engine, joined(" or ", SIMULATED))
    if job.plan.pp > 1:
        raise Unsupported("pp={}: a scheduler with several steps under way is not simulated; use --tp", job.plan.pp)


def setting_of(job: ServeJob, deployment: Deployment) -> Setting:
    """What is simulated of a plan.

    Raises: InvalidSpec or Unsupported in one sentence
    """
    assert job.traffic is not None
    check(job)
    traffic = job.traffic
    settings: Settings = settings_of(job)
    cache = deployment.ranks[0].cache
    if job.model.head is not Head.LM or not isinstance(cache, BlockPool):
        raise Unsupported("{} generates nothing that a scheduler would batch; leave --rate out", job.model.name)
    if not settings.v1:
        raise Unsupported("the scheduler of vLLM's V0 engine is not simulated; use --engine vllm@0.19")
    execution = execution_of(job.engine, job.version, arch=job.cluster.gpu.arch)
    assert execution is not None
    machine, placement = setup_of(job, execution)
    costs = StepCosts(
        job.model, stages_of(job, execution), machine, placement, replayed=job.plan.graphs,
        sequences=settings.max_sequences, tokens=settings.batched_tokens, context=job.context,
    )
    limits = Limits(
        settings.max_sequences, settings.batched_tokens, whole_prompt=execution.whole_prompt,
        prefix=traffic.shared_prefix if settings.prefix_caching else 0, ahead=execution.scheduled_ahead,
    )
    waited_s = execution.front_s + execution.text_s * (job.requests.input_len or 0)

    pool, block_bytes = _pool(cache, settings)
    found = Setting(job, traffic, pool, block_bytes, limits, costs, waited_s, traffic.replicas * job.plan.dp)
    _check_lengths(found, _sizes(found))
    return found


def _pool(cache: BlockPool, settings: Settings) -> tuple[Pool, int]:
    """The pool of the fullest rank. Groups whose blocks differ are counted as tokens, at their share of the pool."""
    usual = {group.block_tokens for group in cache.groups if group.kind != "state"}
    if len(usual) > 1 or cache.ranks_sharing > 1:
        tokens = next(iter(cache.reported_tokens.values()))
        blocks = tokens // settings.block_tokens
        return Pool(blocks, settings.block_tokens), cache.num_bytes // max(1, blocks)
    most = [
        group.blocks(cache.max_model_len, cache.in_flight) for group in cache.groups
        if group.kind in ("sliding window", "chunked")
    ]
    fixed = sum(group.state_blocks for group in cache.groups if group.kind == "state")
    full = sum(group.kind == "full attention" for group in cache.groups)
    plain = full == 1 and not most and not fixed
    pool = Pool(  # one block is never handed out [vllm/v1/core/block_pool.py `null_block`]
        cache.blocks - 1, usual.pop() if usual else settings.block_tokens, full, tuple(most), fixed,
        caches=settings.prefix_caching and plain)
    return pool, cache.block_bytes


def _sizes(setting: Setting) -> list[tuple[int, int]]:
    """Tokens of prompts and answers of all requests, or of one where they are alike."""
    asked, traffic = setting.job.requests, setting.traffic
    if traffic.arrivals:
        return [(prompt, answer) for _, prompt, answer in traffic.arrivals]
    if asked.input_len is None or asked.output_len is None:
        raise InvalidSpec("--rate needs to know how long requests are: give --input-len and --output-len, for example "
                          "--input-len 2k --output-len 500")
    return [(asked.input_len, asked.output_len)]


def _check_lengths(setting: Setting, sizes: Sequence[tuple[int, int]]) -> None:
    prompt, answer = max(sizes, key=sum)
    context, pool = setting.job.context, setting.pool
    if prompt + answer > context:
        raise InvalidSpec(
            "a request of {:,} + {:,} tokens is longer than the context of {:,}; raise --context or shorten it",
            prompt, answer, context
        )
    if "tpot" in setting.traffic.slo and all(size[1] < 2 for size in sizes):
        raise InvalidSpec("slo tpot is the time between two tokens, and every answer has one; leave it out")
    prefix = setting.traffic.shared_prefix
    if prefix and prefix >= min(size[0] for size in sizes):
        raise InvalidSpec(
            "shared-prefix={} must be shorter than every prompt; the shortest has {:,} tokens",
            prefix, min(size[0] for size in sizes)
        )
    if pool.held(prompt + answer) > pool.blocks:
        raise InvalidSpec(
            "a request of {:,} + {:,} tokens takes {:,} blocks of the cache, there are {:,}; give it more memory or "
            "shorten it", prompt, answer, pool.held(prompt + answer), pool.blocks
        )


def _simulated(setting: Setting, sent: Sequence[Arrival]) -> list[Batching]:
    found = [Batching(setting.pool, setting.limits, setting.costs) for _ in range(setting.copies)]
    routed(found, sent, least_loaded=setting.traffic.router == "least-loaded" or setting.job.plan.dp > 1)
    return found


def _sent(setting: Setting, rate: float) -> list[Arrival]:
    traffic = setting.traffic
    prompt, answer = _sizes(setting)[0]
    count = traffic.num_requests or min(MOST, max(FEWEST, round(rate * SIMULATED_S)))
    return arrivals_at(
        rate, count=count, prompt=prompt, answer=answer, burstiness=traffic.burstiness, seed=traffic.seed)


def _most_rate(setting: Setting, sizes: Sequence[tuple[int, int]]) -> float:
    """Requests a second that are completed while others always wait [rate]."""
    pool, one = setting.pool, setting.limits.sequences
    together = min(one, pool.blocks // max(1, min(pool.held(sum(size)) for size in sizes)))
    count = 6 * together + 100
    single = setting._replace(copies=1)
    (found,) = _simulated(single, [Arrival(0.0, *sizes[number % len(sizes)]) for number in range(count)])
    ends = sorted(found.end_s)
    low, high = count // 3, 2 * count // 3  # full from the start, and not yet empty
    return setting.copies * (high - low) / (ends[high] - ends[low]) if ends[high] > ends[low] else (
        setting.copies * count / ends[-1])


def _latencies(setting: Setting, schedulers: Sequence[Batching]) -> dict[str, list[float]]:
    """Of every request, in the order of their numbers on each replica [s]."""
    found: dict[str, list[float]] = {"ttft": [], "tpot": [], "e2e": [], "queued": []}
    for one in schedulers:
        rows = zip(one.at_s, one.first_s, one.end_s, one.started_s, one.answer, strict=True)
        for at, first, end, started, answer in rows:
            found["ttft"].append(first - at + setting.waited_s)
            found["tpot"].append((end - first) / (answer - 1) if answer > 1 else 0.0)
            found["e2e"].append(end - at + setting.waited_s)
            found["queued"].append(started - at)
    return found


def latencies_of(setting: Setting) -> dict[str, list[float]]:
    """What every request of a file gets: "ttft", "tpot", "e2e", "queued" [s]."""
    return _latencies(setting, _simulated(setting, [Arrival(*one) for one in setting.traffic.arrivals]))


def _kept(setting: Setting, latencies: dict[str, list[float]]) -> int:
    """Requests that keep every objective."""
    limits = [(latencies[name], limit) for name, limit in setting.traffic.slo.items()]
    return sum(all(own[number] <= limit for own, limit in limits) for number in range(len(latencies["ttft"])))


def _slo_rate(setting: Setting, most: float) -> float:
    """The highest rate at which SLO_SHARE of the requests keep the objectives; 0: none."""

    def keeps(rate: float) -> bool:
        sent = _sent(setting._replace(traffic=replace(setting.traffic, num_requests=FEWEST)), rate)
        latencies = _latencies(setting, _simulated(setting, sent))
        return _kept(setting, latencies) >= SLO_SHARE * len(sent)

    low, high = 0.0, most
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def least(setting: Setting) -> dict[str, float]:
    """Latencies of the longest request with the server to itself [s]."""
    found = _latencies(setting, _simulated(setting, [Arrival(0.0, *max(_sizes(setting)))]))
    return {name: min(own) for name, own in found.items()}


def _check_slo(setting: Setting) -> None:
    """Refuse what not even a request alone on the server keeps."""
    found = least(setting) if setting.traffic.slo else {}
    prompt, answer = max(_sizes(setting))
    for name, limit in setting.traffic.slo.items():
        if limit < found[name]:
            raise InvalidSpec(
                "slo {}<{:g}ms cannot be kept: a request of {:,} + {:,} tokens takes {:,.3g} ms with the server to "
                "itself", name, 1000 * limit, prompt, answer, 1000 * found[name]
            )


class Trial(NamedTuple):
    """What users of one of several replicas got."""

    kept: bool  # SLO_SHARE of the requests kept every objective
    token_s: float  # the median time between two tokens
    end_to_end_s: float  # mean


def trial(setting: Setting, rate: float, replicas: int) -> Trial:
    """One of so many replicas that take turns: of arrivals a gamma distribution apart it gets every n-th, and those
    are a gamma distribution of n times the shape apart.

    Args:
        setting: of one replica
        rate: of all together [1/s]
        replicas: that share it
    """
    traffic = setting.traffic
    whole = traffic.num_requests or FEWEST
    for count in (whole // GLANCE, whole) if whole >= FEWEST else (whole,):
        shaped = replace(traffic, burstiness=min(1e6, traffic.burstiness * replicas), num_requests=count)
        one = setting._replace(traffic=shaped, copies=setting.job.plan.dp)
        found = _latencies(one, _simulated(one, _sent(one, rate / replicas)))
        share = _kept(one, found) / count
        if share < SLO_SHARE / 2:  # many more will not mend it
            break
    return Trial(share >= SLO_SHARE, median(found["tpot"]), sum(found["e2e"]) / count)


def rate_bounds(setting: Setting) -> tuple[float, float]:
    """What one replica certainly cannot exceed, its prompts alone or its answers alone; and what it serves where one
    waits for the other [requests/s]."""
    (prompt, answer), limits, pool, costs = _sizes(setting)[0], setting.limits, setting.pool, setting.costs
    fresh = max(1, prompt - limits.prefix)
    together = max(1, min(limits.sequences, pool.blocks // max(1, pool.held(prompt + answer))))
    count = max(1, limits.tokens // fresh)
    chunk = min(fresh, limits.tokens)
    prompts_s = costs.mixed(0, 0.0, [(chunk, 0)] * count) / count * fresh / chunk
    answers_s = (answer - 1) * costs.decode(together, prompt) / together
    copies = setting.job.plan.dp
    return copies / max(prompts_s, answers_s), copies / (prompts_s + answers_s)


def _quantiles(values: Sequence[float]) -> Quantiles:
    return _weighted([(value, 1) for value in values])


def _weighted(values: Sequence[tuple[float, int]]) -> Quantiles:
    """Of values that stand for several each."""
    ordered = sorted(value for value in values if value[1])
    total = sum(count for _, count in ordered)
    if total <= 0:
        return Quantiles(0.0, 0.0, 0.0, 0.0)
    mean = sum(value * count for value, count in ordered) / total
    wanted, found, seen = [0.5, 0.9, 0.99], [], 0
    for value, count in ordered:
        seen += count
        while wanted and seen >= wanted[0] * total:
            found.append(value)
            wanted.pop(0)
    return Quantiles(mean, *found, *[ordered[-1][0]] * len(wanted))


def _told(setting: Setting, schedulers: Sequence[Batching], most: float, slo_rate: float | None) -> Served:
    latencies = _latencies(setting, schedulers)
    starts, ends = list(chain(*(one.at_s for one in schedulers))), list(chain(*(one.end_s for one in schedulers)))
    begin = min(starts) if setting.traffic.rate is None else 0.0  # the first request is waited for, too [vllm]
    duration, count = max(ends) - begin, len(ends)
    tokens_per_s = sum(sum(one.answer) for one in schedulers) / duration
    slo, pool = setting.traffic.slo, setting.pool
    kept = _kept(setting, latencies) if slo else None
    intervals = [one.intervals for one in schedulers]
    spent = sum(interval.seconds for own in intervals for interval in own)
    in_use = sum(interval.blocks * interval.seconds for own in intervals for interval in own)
    running = sum(interval.running * interval.seconds for own in intervals for interval in own)
    cards = setting.job.plan.num_ranks * setting.traffic.replicas
    return Served(
        requests=count,
        replicas=setting.traffic.replicas,
        duration_s=duration,
        rate=setting.traffic.rate or (count - 1) / max(1e-9, max(starts) - min(starts)),
        first_token_s=_quantiles(latencies["ttft"]),
        token_s=_quantiles([tpot for tpot in latencies["tpot"] if tpot]),
        between_tokens_s=_weighted([gap for one in schedulers for gap in one.gaps]),
        end_to_end_s=_quantiles(latencies["e2e"]),
        queued_s=_quantiles(latencies["queued"]),
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_gpu=tokens_per_s / cards,
        running_mean=running / duration / len(schedulers),
        running_most=max(interval.running for own in intervals for interval in own),
        waiting_most=max(map(_most_waiting, schedulers)),
        cache_mean=in_use / max(1e-9, spent) / pool.blocks,
        cache_most=max(interval.blocks for own in intervals for interval in own) / pool.blocks,
        preemptions=sum(one.preemptions for one in schedulers),
        recomputed_tokens=sum(one.recomputed for one in schedulers),
        most_rate=most,
        slo=slo,
        slo_share=None if kept is None else kept / count,
        goodput=None if kept is None else kept / duration,
        slo_rate=slo_rate,
        course_bytes=tuple(blocks * setting.block_bytes for blocks in _course(intervals[0], duration, begin)),
        pool_bytes=pool.blocks * setting.block_bytes,
    )


def _most_waiting(one: Batching) -> int:
    """Requests that have arrived and not begun."""
    changes = sorted(chain(((at, 1) for at in one.at_s), ((started, -1) for started in one.started_s)))
    return max(accumulate(change for _, change in changes))


def _course(intervals: Sequence[Interval], duration: float, start: float) -> Iterator[int]:
    """Most blocks in use in each of equal stretches of the time."""
    most = [0] * COURSE
    for interval in intervals:
        low = int(COURSE * (interval.end_s - interval.seconds - start) / duration)
        high = int(COURSE * (interval.end_s - start) / duration)
        for stretch in range(max(0, low), min(COURSE - 1, high) + 1):
            most[stretch] = max(most[stretch], interval.blocks)
    yield from most


def _assumed(setting: Setting) -> Iterator[str]:
    traffic, job = setting.traffic, setting.job
    if traffic.rate is not None:
        kind = "a Poisson process" if traffic.burstiness == 1 else Note(
            "gamma distributed, shape {:g}", traffic.burstiness
        )
        yield (Note(
            "requests arrive at random ({}, seed {}) and are of one length; every answer is as long as asked",
            kind, traffic.seed
        ))
    if job.plan.dp > 1:
        yield Note("each of the {} data-parallel copies takes its steps by itself", job.plan.dp)
    if job.plan.draft is not None:
        yield "requests that arrive by themselves are simulated without speculative decoding"
    if traffic.shared_prefix and not setting.limits.prefix:
        yield "prefix caching is off: the shared prefix is computed again for every request"


