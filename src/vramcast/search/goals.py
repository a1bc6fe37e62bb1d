"""What inverse questions share: the largest number that fits, the first plan that does, the one that misses by least.

A question looks at plans; what is monotone (more never needs less) is bisected, everything else tried one by one.

What a question about the largest model looks among.

LLaMA-like decoders of any size from 100M parameters up, without gaps; and sets of techniques that a job can be run
with, from none to all: what one card does, then several, then main memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, TypeVar

from msgspec.structs import replace

from vramcast.blocks.parameters.model import count_parameters
from vramcast.domain.answer import Found, Tried
from vramcast.domain.job import Job, Precision, Recompute, Shards
from vramcast.domain.model import MLP, Attention, Layer, Model, Run, Stack
from vramcast.domain.planning import NO_ROOM
from vramcast.errors import InvalidSpec, UnknownName, joined
from vramcast.estimate.techniques import on_engine, with_new_adapters, with_plan
from vramcast.units import round_up

HEAD_DIM: Final = 128
VOCABULARY: Final = 32000
LAYERS_OF_STEP: Final = 8
HIDDEN_OF_STEP: Final = 1024
"""Layers and width grow together in steps of 8 and 1024, as in LLaMA: 32 x 4096 is 7B, 40 x 5120 13B, and tensor and
pipeline degrees up to 8 divide them."""

PARAMETERS_OF_STEP: Final = 12 * HIDDEN_OF_STEP**2 * LAYERS_OF_STEP
"""12 H^2 a layer: 4 H^2 of attention and 3 x H x 8/3 H of a gated MLP; times the cube of the step's number."""

WIDTH_MULTIPLE: Final = 64


def scaled_model(parameters: int) -> Model:
    """The decoder with at most so many parameters: its feed-forward width takes what depth and width leave.

    >>> count_parameters(scaled_model(7_000_000_000)).total
    6990073856
    """
    step = max(1, round((parameters / PARAMETERS_OF_STEP) ** (1 / 3)))
    while step > 1 and count_parameters(_decoder(step, WIDTH_MULTIPLE)).total > parameters:
        step -= 1
    bare = count_parameters(_decoder(step, WIDTH_MULTIPLE)).total
    a_width = 3 * step * HIDDEN_OF_STEP * step * LAYERS_OF_STEP
    width = WIDTH_MULTIPLE + max(0, parameters - bare) // a_width
    return _decoder(step, max(WIDTH_MULTIPLE, round_up(width + 1, WIDTH_MULTIPLE) - WIDTH_MULTIPLE))


def _decoder(step: int, width: int) -> Model:
    hidden = step * HIDDEN_OF_STEP
    heads = hidden // HEAD_DIM
    attention = Attention(num_heads=heads, num_kv_heads=heads, head_dim=HEAD_DIM)
    layer = Layer(mixer=attention, channel=MLP(width=width, gated=True))
    stack = Stack(name="decoder", hidden=hidden, runs=(Run(count=step * LAYERS_OF_STEP, layer=layer),))
    return Model(name="LLaMA-like", family="llama", vocab=VOCABULARY, stacks=(stack,))


Build = Callable[[Job], Job | None]
"""The job with a set of techniques instead of its own; None where it does not apply."""


class Rung(NamedTuple):
    """One set of techniques."""

    name: str
    build: Build
    allow: str = ""  # what `--allow` must name for it; empty: it is tried by itself


def alone(job: Job) -> Job:
    """The same work on one card."""
    return copies(replace(job, cluster=replace(job.cluster, gpus_per_node=1, num_nodes=1)))


def copies(job: Job, engine: str = "pytorch") -> Job:
    """Everything copied to every card, nothing dropped or moved."""
    plain = with_plan(
        job, tp=1, pp=1, cp=1, ep=1, etp=None, virtual_stages=1, schedule="1f1b", shards=Shards.NOTHING,
        shard_group=None, recompute=Recompute.NONE, recompute_layers=None, recompute_modules=(),
        offload_optimizer="none", offload_parameters="none", offload_activations=False,
    )
    return on_engine(plain, engine)


def recomputed(job: Job) -> Job:
    """Copies that keep only the input of every layer."""
    return with_plan(copies(job), recompute=Recompute.FULL)


def eight_bit(job: Job) -> Job | None:
    """With recomputation, and 8-bit optimizer states."""
    return with_plan(recomputed(job), optimizer="adamw-8bit") if job.plan.optimizer in ("adam", "adamw") else None


def pure_bf16(job: Job) -> Job | None:
    """With recomputation, and weights, gradients and states in bf16."""
    possible = job.plan.peft is None and job.cluster.gpu.has_bf16
    return with_plan(recomputed(job), precision=Precision.BF16) if possible else None


def sharded(shards: Shards, recompute: Recompute, engine: str = "deepspeed") -> Build:
    """That much shared between all cards."""

    def build(job: Job) -> Job | None:
        if job.cluster.count == 1:
            return None
        return with_plan(copies(job, engine), shards=shards, recompute=recompute)

    return build


def tensor(job: Job) -> Job | None:
    """Layers split over the cards of a machine, optimizer states over the machines."""
    degree = job.cluster.gpus_per_node
    if degree == 1:
        return None
    return with_plan(copies(job, "megatron"), tp=degree, shards=Shards.OPTIMIZER, recompute=Recompute.FULL)


def pipeline(job: Job) -> Job | None:
    """And a pipeline stage in every machine."""
    split = tensor(job)
    return with_plan(split, pp=job.cluster.num_nodes) if split is not None and job.cluster.num_nodes > 1 else None


def offloaded(job: Job) -> Job:
    """Everything sharded where there are several cards, the optimizer in main memory."""
    shards = Shards.EVERYTHING if job.cluster.count > 1 else Shards.NOTHING
    whole = with_plan(copies(job, "deepspeed"), shards=shards, recompute=Recompute.FULL)
    return with_plan(whole, offload_optimizer="cpu")


def all_offloaded(job: Job) -> Job:
    """The weights in main memory as well."""
    return with_plan(offloaded(job), shards=Shards.EVERYTHING, offload_parameters="cpu")


def adapters(base: Literal["full", "nf4-dq"]) -> Build:
    """LoRA beside frozen weights, with recomputation."""

    def build(job: Job) -> Job | None:
        if job.plan.peft is not None:
            return None
        return with_new_adapters(on_engine(recomputed(job), "huggingface"), base)

    return build


RUNGS: Final[tuple[Rung, ...]] = (
    Rung("copies", copies),
    Rung("full recomputation", recomputed),
    Rung("ZeRO 1", sharded(Shards.OPTIMIZER, Recompute.NONE)),
    Rung("ZeRO 2", sharded(Shards.OPTIMIZER_AND_GRADIENTS, Recompute.NONE)),
    Rung("ZeRO 3", sharded(Shards.EVERYTHING, Recompute.NONE)),
    Rung("FSDP", sharded(Shards.EVERYTHING, Recompute.NONE, "torchtitan")),
    Rung("ZeRO 3, full recomputation", sharded(Shards.EVERYTHING, Recompute.FULL)),
    Rung("FSDP, full recomputation", sharded(Shards.EVERYTHING, Recompute.FULL, "torchtitan")),
    Rung("tensor parallelism, ZeRO 1, full recomputation", tensor),
    Rung("tensor and pipeline parallelism, full recomputation", pipeline),
    Rung("8-bit optimizer, full recomputation", eight_bit, "8bit-optimizer"),
    Rung("pure bf16, full recomputation", pure_bf16, "pure-bf16"),
    Rung("optimizer on the CPU, full recomputation", offloaded, "offload"),
    Rung("weights and optimizer on the CPU", all_offloaded, "offload-parameters"),
    Rung("LoRA, full recomputation", adapters("full"), "peft"),
    Rung("QLoRA, full recomputation", adapters("nf4-dq"), "peft"),
)
"""In order of what a user gives up, least first."""


WIDENING: Final = 4
"""Factor by which a bracket grows at every step away from a guess."""

SHOWN: Final = 8
"""Plans in the table of an answer."""

LARGER_ONES: Final = 2
"""Plans looked at behind the first that is enough, for comparison."""


class Look(Protocol):
    """One plan looked at: its job, the value of what is looked for, how it came out; whether it fits and leaves free
    what it is to; whether it could run on a large enough card, and by how much it does not fit, or by more."""

    @property
    def job(self) -> Any: ...
    @property
    def value(self) -> int | str: ...
    @property
    def tried(self) -> Tried: ...
    @property
    def leaves(self) -> bool: ...
    @property
    def is_possible(self) -> bool: ...
    @property
    def misses(self) -> Any: ...


OneLook = TypeVar("OneLook", bound=Look)
Candidate = TypeVar("Candidate")


class Result(NamedTuple, Generic[OneLook]):
    """The plans looked at in order, and the one that is the answer."""

    looks: list[OneLook]
    best: OneLook | None


class Choice(NamedTuple, Generic[OneLook]):
    """The plan that is answered, with what else was looked at."""

    look: OneLook
    found: Found
    warnings: tuple[str, ...]


def choose(
    goal: str, goals: Mapping[str, Callable[[Any], Result[OneLook]]], asked: Any,
    worked_out: Callable[[OneLook], OneLook], shown: Callable[[OneLook], OneLook] = lambda look: look,
    alternatives: Callable[[list[OneLook]], bool] = lambda _: False, nothing: str = "nothing to look at",
) -> Choice[OneLook]:
    """The plan that a goal asks for, else the one that misses by least.

    Where nobody says what is to stay free, and no plan leaves its 90 % interval on the card, plans that fit are found.

    Args:
        goals: goal -> its search
        asked: what a search starts from, with a field `headroom`
        worked_out: a plan with what it needs, where that was not worked out
        shown: a plan with what is shown of it beside
        alternatives: whether the plans are no row of sizes, so that all of them are shown
        nothing: what is said where there is no plan at all

    Raises: UnknownName for another goal, InvalidSpec where no plan is possible at all
    """
    if goal not in goals:
        raise UnknownName.of("goal", goal, goals)
    result = goals[goal](asked)
    warnings: tuple[str, ...] = ()
    if result.best is None and asked.headroom is None:
        without = goals[goal](asked._replace(headroom=0.0))
        if without.best is not None:
            result, warnings = without, (NO_ROOM,)
    looks, best, nearest = result.looks, result.best, nearest_of(result.looks, worked_out)
    chosen = best or nearest
    if chosen is None:
        reasons = joined("; ", dict.fromkeys(look.tried.reason for look in looks), most=400)
        raise InvalidSpec("no plan is possible: {}", reasons or nothing)
    found = Found(
        goal=goal,
        what=best.tried.what if best else None,
        value=best.value if best else None,
        tried=tuple(shown(worked_out(look)).tried for look in (
            looks if alternatives(looks) else _around(looks, chosen))),
        num_tried=len(looks),
        nearest_failing=shown(nearest).tried if nearest else None,
    )
    return Choice(chosen, found, warnings)


def _around(looks: list[OneLook], chosen: OneLook) -> list[OneLook]:
    index = next(position for position, look in enumerate(looks) if look.job is chosen.job)
    start = max(0, min(index - SHOWN + 1 + LARGER_ONES, len(looks) - SHOWN))
    return looks[start : start + SHOWN]


def nearest_of(looks: Iterable[OneLook], worked_out: Callable[[OneLook], OneLook]) -> OneLook | None:
    """Of the plans that are possible and do not fit, the one that misses by least."""
    nearest: OneLook | None = None
    failing = (look for look in looks if look.is_possible and not look.leaves)
    for look in sorted(failing, key=lambda look: look.misses):
        if nearest is not None and look.misses >= nearest.misses:
            break  # none behind it can miss by less
        found = worked_out(look)
        if found.is_possible and (nearest is None or found.misses < nearest.misses):
            nearest = found
    return nearest


def first_enough(candidates: Iterable[Candidate], look_at: Callable[[Candidate], OneLook]) -> Result[OneLook]:
    """The first that fits, and a few behind it."""
    looks: list[OneLook] = []
    best: OneLook | None = None
    for candidate in candidates:
        looks.append(look_at(candidate))
        best = best or (looks[-1] if looks[-1].leaves else None)
        if best is not None and len(looks) - looks.index(best) > LARGER_ONES:
            break
    return Result(looks, best)


def largest_look(look_at: Callable[[int], OneLook], most: int, guess: int = 1) -> Result[OneLook]:
    """The largest number up to `most` that fits, and all that were looked at."""
    looks: dict[int, OneLook] = {}

    def fits(number: int) -> bool:
        if number not in looks:
            looks[number] = look_at(number)
        return looks[number].leaves

    best = largest(fits, most, guess)
    return Result([looks[number] for number in sorted(looks)], looks.get(best))


def largest(fits: Callable[[int], bool], most: int, guess: int = 1) -> int:
    """The largest number from 1 to `most` that fits, 0 where none does: a bracket that widens, then bisection.

    >>> largest(lambda number: number * number <= 1000, most=10**6, guess=3)
    31
    """
    low, high = _bracket(fits, most, min(max(1, guess), most))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _bracket(fits: Callable[[int], bool], most: int, guess: int) -> tuple[int, int]:
    """A number that fits (0: none) and a larger one that does not (or most + 1)."""
    width = 1
    if fits(guess):
        low = guess
        while low + width <= most and fits(low + width):
            low, width = low + width, WIDENING * width
        return low, min(low + width, most + 1)
    high = guess
    while high > width and not fits(high - width):
        high, width = high - width, WIDENING * width
    return max(0, high - width), high
