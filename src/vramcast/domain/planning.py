"""What a search is asked, and what it says: plans in order of a goal, what nearly fits, and why the winner wins.

What holds a job, and what cards hold: answers to questions that leave the cards or the model open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Any, Final

from vramcast.domain.answer import Answer, Change, Fleet
from vramcast.domain.device import Cluster, Price
from vramcast.domain.job import Plan, Precision, Recompute, Shards, Workload
from vramcast.domain.model import Model, Noun
from vramcast.domain.serving import ServeJob, Version
from vramcast.domain.verdict import Fit, usable_bytes
from vramcast.errors import InvalidSpec, Note
from vramcast.units import format_bytes


class Goal(StrEnum):
    """What makes one plan better than another."""

    FASTEST = "fastest"  # most tokens per second
    CHEAPEST = "cheapest"  # least money per token, and so per run
    FEWEST_GPUS = "fewest-gpus"
    LEAST_MEMORY = "least-memory"  # training: most room on the fullest card; serving: least of what the load needs


class Limits(Noun, frozen=True):
    """What a plan must keep to. None: no such limit."""

    headroom: float | None = None  # share of the card's capacity that stays free, 0 to 1; None: the 90 % interval fits
    budget: float | None = None  # money of the whole run, in `currency`
    currency: str | None = None  # prices in another one are left out, never converted
    deadline_hours: float | None = None  # of the whole run
    run_tokens: int | None = None  # tokens the run trains on
    max_gpus: int | None = None
    time_to_first_token_s: float | None = None  # serving
    tokens_per_s_per_user: float | None = None  # serving

    def __post_init__(self) -> None:
        if self.headroom is not None and not 0 <= self.headroom < 1:
            raise InvalidSpec("headroom={!r} must be a share from 0 to below 1, for example 0.05", self.headroom)
        if self.run_tokens is None and (self.budget is not None or self.deadline_hours is not None):
            raise InvalidSpec("a budget or a deadline needs the length of the run: give --tokens, such as --tokens 1T")


NO_ROOM: Final = "no plan leaves the upper end of its 90 % interval on the card: what is shown may run out"
"""Said where a search that is told no headroom finds only such plans."""


def too_close(needed_bytes: int, high_bytes: int, usable_bytes: int, headroom: float | None) -> str:
    """Why a search does not offer a plan that fits."""
    if headroom is None:
        return Note("90 % up to {}, {} usable", format_bytes(high_bytes), format_bytes(usable_bytes))
    return Note("{} needed, {} usable", format_bytes(needed_bytes), format_bytes(usable_bytes))


def _require(space: Noun, *axes: str) -> None:
    for name in axes:
        if not getattr(space, name):
            raise InvalidSpec("nothing is left of {}; allow at least one", name.replace("_", " "))


class Space(Noun, frozen=True):
    """Every training plan a search looks at: the product of its axes, without the combinations no engine has.

    An axis of degrees that is empty stands for every value that divides what it splits. What is not an axis is fixed by
    `plan` and `workload`; their own values of the axes are ignored.
    """

    model: Model
    workload: Workload  # length, images, objective
    global_batch: int  # samples of one optimizer step over all ranks
    clusters: tuple[Cluster, ...]  # one for every number of machines looked at
    engines: tuple[str, ...] = ("megatron",)
    named_engines: tuple[str, ...] = ()  # those of them that were asked for: nothing of theirs is left out unsaid
    versions: dict[str, Version] = {}  # of engines, where they are named
    engine_options: dict[str, str | int | float | bool] = {}
    plan: Plan = Plan()
    tp: tuple[int, ...] = ()
    pp: tuple[int, ...] = ()
    cp: tuple[int, ...] = ()
    ep: tuple[int, ...] = ()
    etp: tuple[int, ...] = ()
    virtual_stages: tuple[int, ...] = ()
    micro_batches: tuple[int, ...] = ()  # samples of a micro-batch
    shards: tuple[Shards, ...] = tuple(Shards)
    recompute: tuple[Recompute, ...] = tuple(Recompute)  # of FULL also only some layers of a stage
    offload_optimizer: tuple[str, ...] = ("none",)
    offload_parameters: tuple[str, ...] = ("none",)
    precisions: tuple[Precision | None, ...] = (None,)  # None: the 16 bits that engine and card have
    optimizers: tuple[str, ...] = ("adamw",)

    def __post_init__(self) -> None:
        _require(self, "clusters", "engines", "shards", "recompute", "offload_optimizer", "precisions", "optimizers")


class ServeSpace(Noun, frozen=True):
    """Every deployment a search looks at. What is not an axis is fixed by `job`; its cluster and users are replaced."""

    job: ServeJob  # model and load; concurrency is that of all replicas together
    machines: tuple[Cluster, ...]  # one of each kind
    most: dict[str, int] = {}  # machines that there are, by name; of others as many as the load needs
    engines: tuple[tuple[str, Version], ...] = (("vllm", (0, 19)),)
    weights: tuple[str | None, ...] = (None,)  # None: as the checkpoint stores them
    kv_dtypes: tuple[str, ...] = ("auto",)
    tp: tuple[int, ...] = ()  # empty: every degree that divides the network
    pp: tuple[int, ...] = ()
    own_cards: frozenset[str] = frozenset()  # instances whose cards differ from others of that name: shares, links

    def __post_init__(self) -> None:
        _require(self, "machines", "engines", "weights", "kv_dtypes")


class Point(Noun, frozen=True):
    """One plan in the picture of cost against speed."""

    what: str  # options in which it differs
    gpus: int
    tokens_per_s: float
    cost_per_million_tokens: float  # in `unit`
    unit: str  # "USD", "CNY", or "GPU-hours" where no price is known
    on_front: bool  # no other plan is both faster and cheaper
    fleet: Fleet | None = None  # of a deployment
    per_user: bool = False  # tokens per second are what one user gets: all plans carry the same rate of requests


Progress = Callable[[int, tuple[Point, ...]], None]
"""Told again and again how many plans a search has looked at, and the picture as far as it is: the best plan of every
machine that is done."""


class Technique(Noun, frozen=True):
    """One way to save memory, computed for the case in question."""

    name: str  # "ZeRO 3"
    change: str  # the options that switch it on
    device_bytes: int  # fullest card with it and nothing else changed
    saves_bytes: int  # may be negative
    fits: bool
    verdict: Fit
    slowdown: float | None = None  # step time relative to without, -1: 0.25 is a quarter slower
    when: str = ""  # when to use it, in words
    needs: str = ""  # what it needs, in words
    against: str = ""  # engine of the plan without it
    lacks: str = ""  # what of main memory or disks there is too little for it


class Reason(Noun, frozen=True):
    """One reason why a plan wins, or what the nearest one lacks; reports have the words."""

    kind: str  # "respect": worse in one; "bound", "first-token", "per-user", "no-speed", "load-gpus", "replica-gpus"
    respect: str = ""  # "tensor parallelism"
    option: str = ""  # of the command line; empty: there is none
    other: str = ""  # the best choice but one
    own: str = ""  # the winner's
    times: float = 1.0  # how many times worse the other one is
    bound: str = ""  # "compute", "memory", "communication", "launch"
    cause: str = ""  # what most of a step goes to
    value: float = 0.0  # share of a step, seconds, tokens per second, GPUs
    users: int = 1
    limit: int = 0  # GPUs that are allowed
    text: str = ""  # of the kind "other": what an engine says itself


class Decision(Noun, frozen=True):
    """One step on the way from the smallest set-up to one that fits."""

    name: str  # stable: "one-card"
    question: str  # "Does it fit on one card as it is?"
    finding: str  # "does not fit: 151 GiB of 79 GiB"
    action: str  # "shard the optimizer states"
    yes: bool  # whether the path ends here: it fits, and leaves free what a search leaves free
    verdict: Fit | None = None  # on a plan; None: the question is about none
    device_bytes: int | None = None  # what the finding compares
    high_bytes: int | None = None  # upper end of its 90 % interval
    capacity_bytes: int | None = None  # with what
    host_bytes: int | None = None  # main memory it takes in each machine, where it offloads
    options: str = ""  # of `vramcast train`, that ask the same
    engine: str = ""  # whose figures these are; empty: no engine's


class MissedLimit(Noun, frozen=True):
    """A limit of the whole run that no plan keeps, though some fit in memory. Hours, or money in `unit`."""

    limit: str  # "deadline" or "budget"
    allowed: float
    least: float  # what the best plan takes: the limit that could be kept
    unit: str  # "hours", or a currency
    label: str  # that plan
    times: int | None = None  # multiple of its machines that keeps the limit, where a search found one
    enough: float | None = None  # what the best plan takes there
    enough_label: str = ""


def smallest_change(changes: Sequence[Change], *, visible_bytes: int, limits: Limits, goal: Goal) -> Change | None:
    """Of the changes that make a plan fit the one that a search shows.

    Those that leave free what the search leaves free come first; of these the one that costs least time, or where
    memory is the goal needs least; both as they were computed for this plan. Of equals the first.
    """
    def rank(change: Change) -> tuple[bool, float]:
        by_memory = goal is Goal.LEAST_MEMORY
        claimed, slowdown = change.claimed_bytes(limits.headroom), change.slowdown or 0.0
        return claimed > usable_bytes(visible_bytes, limits.headroom), claimed if by_memory else slowdown

    return min((change for change in changes if change.fits), key=rank, default=None)


def all_ignored(answers: Iterable[Answer]) -> tuple[str, ...]:
    """What any of some answers is without."""
    return tuple(dict.fromkeys(text for answer in answers for text in answer.ignored))


class PlanAnswer(Noun, frozen=True):
    """The answer to one search. `plans` is empty where nothing fits; then `nearest_failing` and `change`, or where
    plans fit in memory `missed`, say why."""

    KEYS = (
        "question", "plans", "labels", "options", "num_plans", "num_fitting", ("reasons", "reason_sentences"),
        "command", "nearest_failing", "nearest_label", "change", "num_in_memory", "missed", "front", "decisions",
        "techniques", "ignored", "assumptions", "warnings",
    )
    SHOWN = ("options", "reasons", "front", "decisions", "techniques", "assumptions", "warnings")

    question: dict[str, Any]
    plans: tuple[Answer, ...]  # best first
    labels: tuple[str, ...]  # the options of each plan, as the command line writes them
    num_plans: int  # looked at
    num_fitting: int
    command: str = ""  # of the winner, whole: what asks for it alone
    num_in_memory: int | None = None  # that fit in memory, where deadline or budget leave none of them
    missed: tuple[MissedLimit, ...] = ()
    nearest_failing: Answer | None = None  # fits where what it misses is a limit
    nearest_label: str = ""
    change: Change | None = None  # the smallest change that makes the nearest failing plan fit, or keep its limits
    reasons: tuple[Reason, ...] = ()  # why the winner wins; without plans what the nearest lacks
    reason_sentences: tuple[str, ...] = ()  # the same: reports fill it in, as
    options: tuple[dict[str, Any], ...] = ()  # of `train` or `serve`, that its label says of each plan
    front: tuple[Point, ...] = ()
    decisions: tuple[Decision, ...] = ()
    techniques: tuple[Technique, ...] = ()
    ignored: tuple[str, ...] = ()  # what of the files of a question the answer is without
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


LEVELS = (("needed_bytes", "answer.fullest.needed_bytes"), ("capacity_bytes", "answer.capacity_bytes"))
RATE = ("tokens_per_s", "answer.tokens_per_s")


class Offered(Noun, frozen=True):
    """The cheapest machine with so many cards."""

    KEYS = (
        ("per_hour", "price.per_hour"), ("currency", "price.currency"), "instance", ("region", "price.region"),
        ("date", "price.date"), "age_days",
    )

    price: Price
    instance: str
    age_days: int | None = None  # of the price, on the day of the report


class Choice(Noun, frozen=True):
    """Cards that hold a job, or the most that were looked at of a kind that does not."""

    KEYS = ("gpus", ("fits", "answer.fits"), ("verdict", "answer.verdict"), *LEVELS, RATE, ("price", "offer"))

    answer: Answer
    gpus: str  # as `--gpus` takes it
    offer: Offered | None = None

    @property
    def memory_bytes(self) -> int:
        """Of all cards together."""
        return self.answer.capacity_bytes * int(self.gpus.partition("x")[0])


class Choices(Noun, frozen=True):
    """What holds a job."""

    KEYS = ("model", "fits", ("cards", "choices"))

    model: str
    choices: tuple[Choice, ...]  # that fit, the least memory first; where none does the nearest one

    @property
    def fits(self) -> bool:
        """Whether any does."""
        return self.choices[0].answer.fits


class FittingModel(Noun, frozen=True):
    """A model that fits."""

    KEYS = (("model", "name"), "parameters", "form", ("verdict", "answer.verdict"), *LEVELS, RATE)

    name: str
    parameters: int
    form: str  # how it fits
    answer: Answer


class Fitting(Noun, frozen=True):
    """What cards hold."""

    KEYS = (
        "gpus", ("for", "purpose"), ("tokens", "length"), "engine", "looked_at", ("assumptions", "said"),
        ("models", "fits"),
    )

    gpus: str
    purpose: str
    length: int
    engine: str
    looked_at: int
    fits: tuple[FittingModel, ...]  # the largest first
    said: tuple[str, ...]
