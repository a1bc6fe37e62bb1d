"""Changes to a serving plan that does not fit, each computed: what would make it fit, and at what cost."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from msgspec.structs import replace

from vramcast.domain.answer import Capacity, Change
from vramcast.domain.serving import Requests, ServeJob
from vramcast.engines.serving.table import SERVING
from vramcast.errors import joined
from vramcast.estimate.changes import attempted, best_first
from vramcast.states.storage import FORMATS

MOST_PAIRS: Final = 3
"""Combinations shown where no single change is enough."""

OPTION: Final = re.compile(r"--\S+(?: (?!--)\S+)?")
"""One option with its value, in the words of a change."""


class Outcome(Protocol):
    """What a changed plan comes to: `estimate.serving.Verdict`."""

    @property
    def fits(self) -> bool: ...

    @property
    def needed_bytes(self) -> int: ...

    @property
    def capacity(self) -> Capacity | None: ...

    @property
    def high_bytes(self) -> int | None: ...


class Proposal(NamedTuple):
    """One thing to try: its name, what it costs, and the options and the job it leads to (None: does not apply)."""

    name: str
    cost: str
    apply: Callable[[ServeJob, Capacity | None], tuple[str, ServeJob] | None]


def _plan(job: ServeJob, words: str, **changes: Any) -> tuple[str, ServeJob]:
    return words, replace(job, plan=replace(job.plan, **changes))


def _smaller_cache(job: ServeJob, capacity: Capacity | None) -> tuple[str, ServeJob] | None:
    dtype = "q8_0" if SERVING[job.engine].is_ggml else "fp8"
    if capacity is None or job.engine == "transformers" or job.plan.kv_dtype not in ("auto", "bf16", "fp16", "f16"):
        return None
    return _plan(job, f"--kv-dtype {dtype}", kv_dtype=dtype)


def _weights(*names: str) -> Callable[[ServeJob, Capacity | None], tuple[str, ServeJob] | None]:
    """The first of the formats that the engine loads, where the weights take more bits than it."""

    def apply(job: ServeJob, capacity: Capacity | None) -> tuple[str, ServeJob] | None:
        ggml = SERVING[job.engine].is_ggml
        name = next((name for name in names if (name.startswith("q")) == ggml), None)
        own = job.plan.weights or job.model.quantisation or job.model.dtype
        if name is None or (own in FORMATS and FORMATS[own].bits_per_weight <= FORMATS[name].bits_per_weight):
            return None
        return _plan(replace(job, weights=None), f"--weights {name}", weights=name)

    return apply


def _more_cards(job: ServeJob, capacity: Capacity | None) -> tuple[str, ServeJob] | None:
    """Twice the cards, in one tensor-parallel group; engines without it spread their layers.

    Where a type of machine is named, two of it: it has as many cards as it has.
    """
    if job.cluster.gpu.stands_alone:
        return None
    field = "num_nodes" if job.cluster.instance else "gpus_per_node"
    cluster = replace(job.cluster, **{field: 2 * getattr(job.cluster, field)})
    words = f"--gpus {cluster.name} --tp {2 * job.plan.tp}"
    return _plan(replace(job, cluster=cluster), words, tp=2 * job.plan.tp)


def _idle_cards(job: ServeJob, capacity: Capacity | None) -> tuple[str, ServeJob] | None:
    """Cards that the plan leaves unused."""
    if not SERVING[job.engine].splits or 2 * job.plan.num_ranks > job.cluster.count:
        return None
    return _plan(job, f"--tp {2 * job.plan.tp}", tp=2 * job.plan.tp)


def _safe_fraction(job: ServeJob, capacity: Capacity | None) -> tuple[str, ServeJob] | None:
    """What comes on top of a fraction needs room beside it."""
    safe, asked = _fractions(job, capacity)
    return _plan(job, f"--memory-fraction {safe}", memory_fraction=safe) if 0 < safe < asked else None


def _larger_fraction(job: ServeJob, capacity: Capacity | None) -> tuple[str, ServeJob] | None:
    """More of the card for the cache, as far as that is safe."""
    safe, asked = _fractions(job, capacity)
    return _plan(job, f"--memory-fraction {safe}", memory_fraction=safe) if safe > asked else None


def _fractions(job: ServeJob, capacity: Capacity | None) -> tuple[float, float]:
    """The highest safe fraction (0: not known) and the one asked for."""
    safe = capacity.safe_fraction if capacity else None
    return safe or 0.0, job.plan.memory_fraction or SERVING[job.engine].usual_fraction


def _smaller_steps(job: ServeJob, capacity: Capacity | None) -> tuple[str, ServeJob] | None:
    """Fewer tokens and sequences in one step: a smaller profiled peak leaves more to the cache."""
    if not SERVING[job.engine].splits:
        return None
    sequences = max(16, job.requests.concurrency)
    words = f"--batched-tokens 2048 --max-sequences {sequences}"
    if (job.plan.batched_tokens or 1 << 30) <= 2048 and (job.plan.max_sequences or 1 << 30) <= sequences:
        return None
    return _plan(job, words, batched_tokens=2048, max_sequences=sequences)


def _without_graphs(job: ServeJob, capacity: Capacity | None) -> tuple[str, ServeJob] | None:
    if job.engine not in ("vllm", "sglang") or not job.plan.graphs:
        return None
    return _plan(job, "--no-graphs", graphs=False)


def _shorter(job: ServeJob, capacity: Capacity | None) -> tuple[str, ServeJob] | None:
    """The context that fits, where one does; else half."""
    fitting = capacity.longest_context if capacity else 0
    context = fitting if 0 < fitting < job.context else job.context // 2
    if context < 512 or context <= (job.requests.output_len or 0):
        return None
    words, requests = with_length(job.requests, context)
    return words, replace(job, requests=requests)


def with_length(asked: Requests, tokens: int) -> tuple[str, Requests]:
    """Sequences of another length, and the options that say so: a prompt or an answer that would not go in is cut."""
    answer = None if asked.output_len is None else min(asked.output_len, max(1, tokens - 1))
    prompt = None if asked.input_len is None else min(asked.input_len, max(1, tokens - (answer or 0)))
    words = [f"--context {tokens}"]
    words += [f"--input-len {prompt}"] if prompt != asked.input_len else []
    words += [f"--output-len {answer}"] if answer != asked.output_len else []
    return " ".join(words), replace(asked, context=tokens, input_len=prompt, output_len=answer)


def _fewer(job: ServeJob, capacity: Capacity | None) -> tuple[str, ServeJob] | None:
    """As many sequences as the cache holds; else half."""
    asked = job.requests.concurrency
    fitting = int(capacity.concurrency) if capacity else 0
    sequences = fitting if 0 < fitting < asked else asked // 2
    if sequences < 1:
        return None
    return f"--concurrency {sequences}", replace(job, requests=replace(job.requests, concurrency=sequences))


PROPOSALS: Final[tuple[Proposal, ...]] = (
    Proposal("all cards of the machine", "nothing: the cards are there", _idle_cards),
    Proposal("a smaller share of the card for the cache",
             "a smaller cache, but graphs and sampler have room", _safe_fraction),
    Proposal("a larger share of the card for the cache", "less room for everything else on the card", _larger_fraction),
    Proposal("smaller steps", "longer prompts take more steps", _smaller_steps),
    Proposal("no CUDA graphs", "the host starts every kernel: slower decoding", _without_graphs),
    Proposal("cache in 8 bits", "a little accuracy at long contexts", _smaller_cache),
    Proposal("weights in 8 bits", "about none in accuracy", _weights("fp8", "q8_0")),
    Proposal("weights in 4 bits", "some accuracy", _weights("awq-int4", "q4_k")),
    Proposal("a shorter context", "shorter sequences", _shorter),
    Proposal("fewer sequences at once", "fewer users at once", _fewer),
    Proposal("twice the cards", "twice the hardware", _more_cards),
)
"""In order of what a user gives up, least first."""


def serving_changes(
    job: ServeJob, before: Outcome, *, verdict: Callable[[ServeJob], Outcome]
) -> tuple[Change, ...]:
    """Every applicable change that brings the plan nearer to fitting, those that make it fit first.

    Where none is enough, pairs of those that bring it nearer are tried.

    Args:
        job: the plan that does not fit
        before: what it comes to
        verdict: what a changed plan comes to
    """
    steps = [step for step in _steps(job, before, verdict) if step.after.fits or _nearer(step.after, job, before)]
    if not any(step.after.fits for step in steps):
        steps = [*_pairs(steps, verdict), *steps]
    return best_first(step.change for step in steps)


class Step(NamedTuple):
    """A changed plan and what it comes to."""

    words: str
    name: str
    cost: str
    job: ServeJob
    after: Outcome

    @property
    def change(self) -> Change:
        """As an answer lists it."""
        capacity = self.after.capacity
        return Change(
            change=self.words, device_bytes=self.after.needed_bytes, fits=self.after.fits, cost=self.cost,
            concurrency=capacity.concurrency if capacity else None,
            high_bytes=self.after.high_bytes, capacity_bytes=self.job.cluster.gpu.visible_bytes,
            name=self.name,
        )


def _nearer(after: Outcome, job: ServeJob, before: Outcome) -> bool:
    """Less memory where memory is short, more sequences where the cache is."""
    if before.needed_bytes > job.cluster.gpu.visible_bytes:
        return after.needed_bytes < before.needed_bytes
    held, had = (outcome.capacity.concurrency if outcome.capacity else 0.0 for outcome in (after, before))
    return held > had


def _goes_with(first: str, earlier: set[str], words: str) -> bool:
    """Whether a change is another than the first one, and the two were not tried the other way round."""
    return words not in earlier and words.split()[0] not in first


def _steps(
    job: ServeJob, before: Outcome, verdict: Callable[[ServeJob], Outcome], wanted: Callable[[str], bool] | None = None
) -> Iterator[Step]:
    for proposal in PROPOSALS:
        proposed = proposal.apply(job, before.capacity)
        if proposed is None:
            continue
        words, changed = proposed
        if wanted is not None and not wanted(words):
            continue
        after = attempted(partial(verdict, changed))
        if after is not None:
            yield Step(words, proposal.name, proposal.cost, changed, after)


def _pairs(steps: list[Step], verdict: Callable[[ServeJob], Outcome]) -> list[Step]:
    """The first few combinations of two changes that fit, what a user gives up least first."""
    found: list[Step] = []
    for index, first in enumerate(steps):
        earlier = {step.words for step in steps[:index]}
        for second in _steps(first.job, first.after, verdict, partial(_goes_with, first.words, earlier)):
            if second.after.fits:
                words, name = _both(first.words, second.words), joined(" + ", (first.name, second.name))
                cost = joined("; ", (first.cost, second.cost))
                found.append(Step(words, name, cost, second.job, second.after))
                if len(found) == MOST_PAIRS:
                    return found
    return found


def _both(first: str, second: str) -> str:
    """The options of two changes one after the other: of one that both say, the later.

    >>> _both("--tp 2 --no-graphs", "--gpus 6xa16 --tp 4")
    '--no-graphs --gpus 6xa16 --tp 4'
    """
    said = (option for option in OPTION.findall(first) if option.split()[0] not in second.split())
    return " ".join((*said, second))
