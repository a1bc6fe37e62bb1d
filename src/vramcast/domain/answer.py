"""What an estimate says: three levels per rank role, a ledger that adds up, and what was assumed."""

from __future__ import annotations

from math import ceil
from typing import Any, ClassVar, Final

from msgspec.structs import asdict

from vramcast.domain.device import Cost
from vramcast.domain.model import Noun
from vramcast.domain.program import Basis
from vramcast.domain.verdict import Fit, claimed_bytes, fit_of, usable_bytes


class Peak(Noun, frozen=True):
    """One high-water mark at the three levels [bytes]."""

    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int


class BoundedPeak(Peak, frozen=True):
    """The same, with the 90 % interval of its device bytes."""

    interval_bytes: tuple[int, int]


class LedgerEntry(Noun, frozen=True, rename={"num_bytes": "bytes"}):
    """A named part of the peak. Entries of one ledger add up to the device bytes of the peak."""

    path: str  # "activations/decoder.layers/attention.q"
    num_bytes: int
    basis: Basis
    count: int = 1  # live instances behind num_bytes
    formula: str = ""
    source: str = ""

    @property
    def category(self) -> str:
        """First part of the path."""
        return self.path.partition("/")[0]


class Likest(Noun, frozen=True):
    """The measured runs that a prediction is most like: those that make up half of its interval."""

    runs: int
    own_engine: int  # of them, runs of the engine that was asked about
    median_miss: float  # share by which predictions missed them, each counted as it counts in the interval


class Trust(Likest, frozen=True):
    """How likely the fullest card is enough, and the measured runs that its interval is drawn from."""

    KEYS = ("chance_to_fit", "runs", "own_engine", "median_miss")

    chance_to_fit: float | None = None  # None: not known, or more than the card decides


class RankAnswer(Noun, frozen=True):
    """The ranks of one role."""

    KEYS = ("role", "count", ("peak", "bounded_peak"), "phases", "ledger", "gives_back_cache", "highest")

    role: str
    count: int
    peak: Peak  # over the steady step
    interval_bytes: tuple[int, int]  # 90 %, device level
    phases: dict[str, Peak]  # peaks of load, first step, step, evaluation, checkpoint
    ledger: tuple[LedgerEntry, ...]  # at the steady step's peak
    gives_back_cache: bool = False  # within the capacity only because cached memory is returned to the driver
    highest: str = ""  # which of phases with the same device peak it is; "": the first
    chance_to_fit: float | None = None  # by how far predictions of jobs like it missed; None: not known
    likest: Likest | None = None  # what its interval is drawn from; None: from nothing that was measured
    misses: tuple[tuple[float, float], ...] = ()  # measured / predicted of jobs like it, with the share up to there
    exact_bytes: int = 0  # of the peak, what cannot be missed

    @property
    def highest_phase(self) -> str:
        """The phase whose device peak is the largest: it decides whether the job fits."""
        return self.highest or max(self.phases, key=lambda name: self.phases[name].device_bytes)

    @property
    def bounded_peak(self) -> BoundedPeak:
        """The peak with its interval."""
        return BoundedPeak(**asdict(self.peak), interval_bytes=self.interval_bytes)

    @property
    def needed_bytes(self) -> int:
        return self.phases[self.highest_phase].device_bytes

    @property
    def high_bytes(self) -> int:
        """Upper end of the 90 % interval of what is needed: as far above it as above the steady step."""
        return self.interval_bytes[1] + self.needed_bytes - self.peak.device_bytes

    def enough_bytes(self, share: float) -> int:
        """What suffices its highest phase in that share of runs, by how far predictions of jobs like it missed; where
        nothing like it was measured, the upper end of its interval [bytes].

        Args:
            share: from 0 to 1
        """
        if not self.misses:
            return self.high_bytes
        ratio = next((ratio for ratio, passed in self.misses if passed >= share), self.misses[-1][0])
        missed = self.peak.device_bytes - self.exact_bytes
        return self.needed_bytes + ceil(missed * (ratio - 1))


class Change(Noun, frozen=True):
    """One change of the plan, and the device peak it would lead to."""

    KEYS = (
        "change", "name", "device_bytes", "fits", "verdict", "cost", "apply", "concurrency", "slowdown", "high_bytes",
    )
    SHOWN = ("cost",)

    change: str  # "--recompute full"
    device_bytes: int
    fits: bool
    cost: str = ""  # what it costs in time or quality, in words; or what there is too little of beside the cards
    slowdown: float | None = None  # time per token relative to the plan as it was, -1: 0.14 is 14 % more
    concurrency: float | None = None  # serving: sequences of the context asked for that then fit at once
    high_bytes: int | None = None  # upper end of the 90 % interval of device_bytes; None: not known
    capacity_bytes: int | None = None  # what can be used of the cards; None: not known
    apply: dict[str, Any] | None = None  # the options to put into the question, null to take out: reports fill it in
    name: str = ""  # of the techniques, in words: "full recomputation + 8-bit optimizer"

    @property
    def verdict(self) -> Fit:
        """On the plan that it leads to."""
        return fit_of(fits=self.fits, high_bytes=self.high_bytes, capacity_bytes=self.capacity_bytes)

    def claimed_bytes(self, headroom: float | None) -> int:
        """What a search holds against the card, see `claimed_bytes` [bytes]."""
        high = self.device_bytes if self.high_bytes is None else self.high_bytes
        return claimed_bytes(needed_bytes=self.device_bytes, high_bytes=high, headroom=headroom)


class HostPart(Noun, frozen=True):
    """One thing that the ranks of a machine keep in its main memory."""

    name: str
    low_bytes: int
    high_bytes: int
    formula: str
    source: str


class HostNeed(Noun, frozen=True):
    """What a plan keeps in each machine beside the cards, at least. None: how much there is is not known [bytes]."""

    KEYS = ("fits", ...)
    SHOWN = ("disk_bytes", "parts")

    memory_bytes: int  # of main memory
    disk_bytes: int = 0  # of local disks
    memory_there_bytes: int | None = None
    disk_there_bytes: int | None = None
    memory_high_bytes: int | None = None  # of main memory, at most
    parts: tuple[HostPart, ...] = ()  # of main memory

    @property
    def places(self) -> tuple[tuple[str, int, int | None, int | None], ...]:
        """Name, what is needed, what there is, and what is needed at most, of every place that is used."""
        both = (
            ("main memory", self.memory_bytes, self.memory_there_bytes, self.memory_high_bytes),
            ("local disks", self.disk_bytes, self.disk_there_bytes, None),
        )
        return tuple(place for place in both if place[1])

    @property
    def fits(self) -> bool:
        """Whether there is enough, as far as that is known."""
        return all(there is None or needed <= there for _, needed, there, _ in self.places)


class StepTime(Noun, frozen=True, kw_only=True):
    """How long one optimizer step takes on the slowest rank, and what the time goes to."""

    step_s: float
    tokens_per_s: float  # of the whole cluster
    tokens_per_s_per_gpu: float
    model_flops_per_s_per_gpu: float  # without what recomputation repeats
    mfu: float | None = None  # of the card's dense data-sheet rate in the precision computed in
    seconds: dict[str, float]  # cause -> part of step_s that nothing else hides; they add up to step_s
    bound: str = ""  # what the largest part is: "compute", "memory", "communication", "pipeline", "launch", "offload"
    sources: tuple[str, ...]  # what rates and links rest on
    assumptions: tuple[str, ...]


class Tried(Noun, frozen=True):
    """One plan that a search looked at."""

    KEYS = (..., "verdict")

    what: str  # the options in which it differs: "--gpus 1xl40s", "--tp 4 --pp 2", "--context 49152"
    fits: bool
    reason: str = ""  # why not
    needed_bytes: int | None = None  # device bytes of the fullest card
    high_bytes: int | None = None  # upper end of its 90 % interval
    capacity_bytes: int | None = None  # what a process can use of the card
    kv_tokens: int | None = None
    concurrency: float | None = None
    tokens_per_s: float | None = None
    time_to_first_token_s: float | None = None
    parameters: int | None = None  # the largest model of a LLaMA-like family that fits [count]
    model: str | None = None  # the largest of the catalogue that fits

    @property
    def verdict(self) -> Fit:
        """On this plan."""
        return fit_of(fits=self.fits, high_bytes=self.high_bytes, capacity_bytes=self.capacity_bytes)


class Found(Noun, frozen=True):
    """What a search was for, and what it came to. The answer that holds it is that of the plan found.

    Where nothing fits, `what` is None and the answer is that of the plan nearest to fitting.
    """

    KEYS = ("goal", "num_tried", "what", "value", "command", "nearest_failing")

    goal: str
    what: str | None  # options of the plan found
    value: int | str | None  # what was asked for: a number of tokens or GPUs, a card, a split, a model, a machine ...
    tried: tuple[Tried, ...]  # in the order of the search, those next to the result
    num_tried: int  # all that were looked at
    nearest_failing: Tried | None = None
    command: str = ""  # of the plan found, whole: what asks for it alone


FIRST: Final = (
    "question", "fits", "verdict", ("peak", "fullest.bounded_peak"), ("needed_bytes", "fullest.needed_bytes"),
    "high_bytes", "capacity_bytes", "trust", "num_parameters", "ranks", "assumptions", ("warnings", "every_warning"),
    "changes", "ignored",
)
LAST: Final = ("found", ("tried", "found.tried"), "host", "run_hours", ("price", "cost"))
"""Keys of every answer; between them stand those of its kind."""


class Answer(Noun, frozen=True, rename={"num_parameters": "parameters"}):
    """The answer to one training question. The fullest role comes first."""

    COMMAND: ClassVar[str] = "train"  # whose options its question has
    KEYS: ClassVar[tuple[Any, ...]] = (*FIRST, "time", *LAST)
    SHOWN: ClassVar[tuple[str, ...]] = ("assumptions", "changes")

    question: dict[str, Any]
    fits: bool
    capacity_bytes: int
    ranks: tuple[RankAnswer, ...]
    num_parameters: int
    shortfall: str = ""  # why it does not fit, where the card's size alone does not say it
    ignored: tuple[str, ...] = ()  # what of the files of a question the answer is without
    cautions: tuple[str, ...] = ()  # what changes how the answer is to be read: it stands behind the first line
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    time: StepTime | None = None
    cost: Cost | None = None
    run_hours: float | None = None  # of the whole run, where the question says how long it is
    host: HostNeed | None = None  # where something is offloaded
    found: Found | None = None  # where the question was an inverse one

    @property
    def every_warning(self) -> tuple[str, ...]:
        """Cautions are warnings, too."""
        return (*self.cautions, *self.warnings)

    @property
    def fullest(self) -> RankAnswer:
        """The role that decides."""
        return self.ranks[0]

    @property
    def peak(self) -> Peak:
        """The fullest role's peak over the steady step."""
        return self.ranks[0].peak

    @property
    def interval_bytes(self) -> tuple[int, int]:
        """90 % interval of the fullest role's device peak [bytes]."""
        return self.ranks[0].interval_bytes

    @property
    def high_bytes(self) -> int:
        """Upper end of the 90 % interval of what the fullest card needs in its highest phase [bytes]."""
        return self.fullest.high_bytes

    def claimed_bytes(self, headroom: float | None) -> int:
        """What a search holds against the card, see `claimed_bytes` [bytes]."""
        return claimed_bytes(
            needed_bytes=self.fullest.needed_bytes, high_bytes=self.high_bytes, headroom=headroom
        )

    def leaves(self, headroom: float | None) -> bool:
        """Whether the plan fits and leaves so much of the card free; None: its 90 % interval fits."""
        return self.fits and self.claimed_bytes(headroom) <= usable_bytes(self.capacity_bytes, headroom)

    @property
    def chance_to_fit(self) -> float | None:
        """How likely the fullest card is enough; None: not known, or more than the card decides."""
        beside = not self.fits and self.fullest.needed_bytes <= self.capacity_bytes
        lacks = self.shortfall or (self.host is not None and not self.host.fits)
        return None if beside or lacks else self.fullest.chance_to_fit

    @property
    def trust(self) -> Trust | None:
        """What the verdict rests on; None where that is nothing measured."""
        likest = self.fullest.likest
        return None if likest is None else Trust(**asdict(likest), chance_to_fit=self.chance_to_fit)

    @property
    def tokens_per_s(self) -> float | None:
        """Trained or generated; None where the speed is not known."""
        return self.time.tokens_per_s if self.time is not None else None

    @property
    def verdict(self) -> Fit:
        """On the plan as it is."""
        return fit_of(fits=self.fits, high_bytes=self.high_bytes, capacity_bytes=self.capacity_bytes)


class Capacity(Noun, frozen=True, rename={"tokens_by_count": "kv_tokens_by_count"}):
    """What a deployment's cache holds, over all its ranks. What an engine has no notion of is None."""

    KEYS = ("kv_tokens", ...)

    tokens_by_count: dict[str, int]  # what is counted -> tokens; the first is what the engine logs
    kv_bytes: int  # the cache of one card, on the rank with the least
    sequence_bytes: int  # one sequence of the context asked for, on the fullest card
    concurrency: float  # sequences of the context asked for that fit at once
    longest_context: int  # tokens each of the sequences asked for can have, up to what the model takes
    safe_fraction: float | None = None  # highest memory fraction that leaves room for graphs, sampler and context

    @property
    def kv_tokens(self) -> int:
        """The engine's own figure."""
        return next(iter(self.tokens_by_count.values()))


class Speed(Noun, frozen=True, kw_only=True):
    """Prefill and decode at the load asked for, from the FLOPs and bytes of the same network, and both together.

    `tokens_per_s` and `tokens_per_s_per_user` are generated tokens while every user asks again once an answer is
    complete: the time of the prompts is in them. The `decode_` rates are those between two prompts, one over a step.
    What generates nothing (embedding and reranking models) has no decode: those fields are None.
    """

    prompt_tokens: int  # of the prompt that the first token waits for
    time_to_first_token_s: float  # of the engine: one prompt, nothing else running
    prefill_tokens_per_s: float  # of as many prompts as one forward takes
    prefill_bound: str  # "compute", "memory", "communication" or "launch"
    prefill_shares: dict[str, float]  # weights, cache, activations, compute, communication, launch: of the time
    mean_context: int | None = None  # tokens of a sequence half way through its answer
    answer_tokens: int | None = None  # generated for each prompt
    step_s: float | None = None  # one decode step of all sequences
    decode_tokens_per_s: float | None = None  # of all sequences together, no prompt among them
    decode_tokens_per_s_per_user: float | None = None  # one over the time between two tokens
    tokens_per_s: float | None = None  # generated, of all sequences together, their prompts' time included
    tokens_per_s_per_user: float | None = None  # the same of one of them
    loaded_first_token_s: float | None = None  # mean wait for it, of the whole server, while the other users generate
    loaded_token_s: float | None = None  # mean time between two tokens of a user, prompts of others among them
    burst_first_token_s: float | None = None  # mean wait where all ask at the same moment
    loaded_first_token_interval_s: tuple[float, float] | None = None  # 90 % of runs; None: none like it was measured
    loaded_token_interval_s: tuple[float, float] | None = None
    decode_bound: str | None = None
    decode_shares: dict[str, float] | None = None
    sources: tuple[str, ...]  # what the rates rest on


class LoadMemory(Noun, frozen=True):
    """What the sequences in flight need: weights, their part of the cache, activations, graphs, contexts [bytes].

    What an engine takes of a card beyond that, because it is there, is left out.
    """

    total_bytes: int  # over all cards of the deployment
    per_gpu_bytes: int  # on the fullest card


class Fleet(Noun, frozen=True):
    """Replicas that carry a load together, each a deployment of its own."""

    replicas: int
    users: int  # of all replicas, at once
    machine: str  # "aws:p5.48xlarge", "8xh100-sxm-80gb"
    machines: int  # that are rented, all together
    replicas_per_machine: int  # most on one machine; 1 where a replica takes one or several
    tokens_per_s: float  # generated by all replicas, the time of prompts included


class Quantiles(Noun, frozen=True):
    """Of a latency over all requests [s]."""

    mean: float
    p50: float
    p90: float
    p99: float


class Served(Noun, frozen=True):
    """What users of a server get, to which requests come by themselves: a simulation of its scheduler."""

    requests: int
    duration_s: float  # from the start, of a file the first arrival, to the last token
    rate: float  # at which they arrive [1/s]
    first_token_s: Quantiles  # TTFT
    token_s: Quantiles  # TPOT: of a request, from the first token to the last, over the tokens between
    between_tokens_s: Quantiles  # ITL: of every token
    end_to_end_s: Quantiles
    queued_s: Quantiles  # until the first step with it
    tokens_per_s: float  # generated
    tokens_per_s_per_gpu: float
    running_mean: float  # of one replica
    running_most: int
    waiting_most: int
    cache_mean: float  # share of the pool's blocks in use
    cache_most: float
    replicas: int
    preemptions: int  # sequences cut off for want of blocks
    recomputed_tokens: int
    most_rate: float  # at which the queue does not grow without end [1/s]
    slo: dict[str, float] = {}  # latency -> most seconds
    slo_share: float | None = None  # of the requests that keep all of it
    goodput: float | None = None  # such requests a second
    slo_rate: float | None = None  # the most at which SLO_SHARE of them keep it; 0: none does [1/s]
    course_bytes: tuple[int, ...] = ()  # of the cache in use on a card, over equal stretches of the time
    pool_bytes: int = 0


SLO_SHARE: Final = 0.9
"""Of requests that have to keep an objective [Zhong et al., DistServe, OSDI 2024, section 6: attainment of 90 %]."""


class ServeAnswer(Answer, frozen=True):
    """The answer to one serving question."""

    COMMAND = "serve"
    KEYS = (*FIRST, "shortfall", "capacity", "startup", ("time", "speed"), "load", "fleet", "served", *LAST)

    capacity: Capacity | None = None
    speed: Speed | None = None
    startup: dict[str, int] = {}  # figures the first rank prints when it starts [bytes]
    load: LoadMemory | None = None  # of language models
    fleet: Fleet | None = None  # where a search spread a load over replicas like this one
    served: Served | None = None  # where requests arrive by themselves

    @property
    def tokens_per_s(self) -> float | None:
        return self.speed.tokens_per_s if self.speed is not None else None


class PostTrainingAnswer(Answer, frozen=True):
    """The answer to one question about post-training. The first of its ranks is the card, all its processes together;
    behind it stands each process, as torch counts in it. Their phases are the stages of a step.
    """

    COMMAND = "rl"
    KEYS = (*FIRST, "time", "resting", "longest", "shortfall", *LAST)

    resting: dict[str, dict[str, int]] = {}  # process -> stage -> what torch has allocated when it has ended [bytes]
    longest: Peak | None = None  # of the card, where every sequence is as long as it may be
