"""Seconds of a step by what is in it: sequences that generate, their context, and chunks of prompts.

Products have one row for each token of both; attention is worked out for those that generate and for every chunk. What
`timing.forward` says of a step is taken at points a quarter apart and is interpolated between them.

Tokens that a step of speculative decoding comes to: those accepted of what was proposed, and the target's own.

[golden] SemiAnalysisAI/InferenceX @843c6254 (Apache-2.0) golden_al_distribution/*.yaml: mean acceptance lengths that
vLLM counted on B300 with the coding prompts of SPEED-Bench (arXiv:2604.09557), answers of 4,096 tokens, by proposals a
step; thinking where both were measured. Other prompts are harder to guess; the curves say how much networks differ.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from vramcast.domain.model import Layer, Model, Run
from vramcast.timing.forward import forward_work, mixing
from vramcast.timing.roofline import Machine, step_time
from vramcast.timing.work import Placement, Setting, Step, Work
from vramcast.units import ceil_div

Lengths = tuple[float, ...]
"""With one proposal, two, and so on."""

MEASURED: Final[dict[str, dict[str, Lengths]]] = {
    "mtp": {
        "deepseek": (1.79, 2.27, 2.49, 2.54, 2.55, 2.55, 2.54, 2.58),  # V4 Pro; its families are alike
        "glm": (1.84, 2.50, 2.99, 3.33, 3.61, 3.78, 3.91, 4.06),  # 5.2
        "qwen3_5": (1.93, 2.73, 3.39, 3.97, 4.41, 4.80, 5.04, 5.21),  # 397B-A17B
    },
    "eagle3": {
        "kimi": (1.83, 2.43, 2.88, 3.24, 3.46, 3.62, 3.71, 3.77),  # K2.5
        "minimax": (1.78, 2.38, 2.83, 3.11, 3.35, 3.45, 3.53, 3.74),  # M3
    },
}
"""Kind of draft -> beginning of a family's name -> tokens of a step [golden]."""


ELSEWHERE: Final = 0.8
"""Of the proposals accepted on coding prompts, those that are on others: fitted on the time between tokens of 33 runs
with random prompts (one half of the configurations of benchmarks.serving_times with drafts)."""


class Accepted(NamedTuple):
    """Tokens of a step."""

    mean: float
    low: float  # of the networks that were measured with such drafts
    high: float  # of them on coding prompts


def accepted(kind: str, family: str, proposed: int) -> Accepted | None:
    """What so many proposals come to; None for a kind of draft that nobody measured.

    A family that was not measured is given the middle of those that were; more proposals than were measured, as many
    tokens as the most that were.

    >>> deepseek = accepted("mtp", "deepseek_v3", 3)
    >>> round(deepseek.mean, 2), round(deepseek.low, 2), deepseek.high
    (2.19, 2.19, 3.39)
    """
    curves = MEASURED.get(kind)
    if curves is None:
        return None
    found = {name: lengths[min(proposed, len(lengths)) - 1] for name, lengths in curves.items()}
    ordered = sorted(found.values())
    coding = next((length for name, length in found.items() if family.startswith(name)), ordered[len(ordered) // 2])
    return Accepted(1 + ELSEWHERE * (coding - 1), 1 + ELSEWHERE * (ordered[0] - 1), ordered[-1])


class Drafting(Struct, frozen=True):
    """What a step of generation has beside the target's own forward, which verifies all proposals at once."""

    proposed: int  # tokens, one pass of the draft each
    accepted: float  # tokens that a step comes to
    layer: Layer  # of the draft, with the target's embedding and head

    def works(self, model: Model, setting: Setting) -> Iterator[tuple[Work, int]]:
        """All passes of the draft, for the sequences of a step."""
        one = replace(setting, step=replace(setting.step, proposed=0, head_rows=1))
        for work, count in forward_work(model, (Run(count=1, layer=self.layer),), one):
            yield work, count * self.proposed


TAIL = ("head", "sampler")
MIXING = ("attention.cache", "attention.scores", "indexer.scores", "scan")


def points(most: int) -> list[int]:
    """From 0 past a number, a quarter apart.

    >>> points(10)
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 10]
    """
    found = [0, 1]
    while found[-1] < most:
        found.append(max(found[-1] + 1, found[-1] * 5 // 4))
    return found


class Surface:
    """A function of two numbers, taken at points and interpolated."""

    def __init__(self, function: Callable[[int, int], float], most: tuple[int, int]) -> None:
        self.function = function
        self.axes = points(most[0]), points(most[1])
        self.taken: dict[tuple[int, int], float] = {}
        self.rows: dict[int, dict[int, float]] = {}  # first number -> place on the second axis -> value

    def __call__(self, one: int, other: float) -> float:
        axis = self.axes[1]
        low = min(bisect_right(axis, other), len(axis) - 1) - 1
        row = self.rows.get(one)
        if row is None:
            row = self.rows[one] = {}
        if low not in row:
            row[low] = self._between(one, axis[low])
        if low + 1 not in row:
            row[low + 1] = self._between(one, axis[low + 1])
        below = row[low]
        return below + (row[low + 1] - below) * (other - axis[low]) / (axis[low + 1] - axis[low])

    def _between(self, one: int, other: int) -> float:
        axis = self.axes[0]
        low = min(bisect_right(axis, one), len(axis) - 1) - 1
        below, above = self._taken(axis[low], other), self._taken(axis[low + 1], other)
        return below + (above - below) * (one - axis[low]) / (axis[low + 1] - axis[low])

    def _taken(self, one: int, other: int) -> float:
        if (one, other) not in self.taken:
            self.taken[one, other] = self.function(one, other) if one else 0.0
        return self.taken[one, other]


Stage = tuple[Sequence[Run], bool, bool]
"""Layers of one pipeline rank, whether the embedding is before them, whether the head is behind."""


class StepCosts:
    """Steps of one copy of a network on its ranks; see `timing.batching.Costs`.

    Of a pipeline all stages one after the other, on a stage's share of those that generate where stages work on
    different ones. Copies that share experts take their steps together: on one's share of sequences and prompts.
    """

    def __init__(
        self, model: Model, stages: Sequence[Stage], machine: Machine, placement: Placement, *, replayed: bool,
        sequences: int, tokens: int, context: int, copies: int = 1, all_logits: bool = False,
        drafting: Drafting | None = None, prompt: int = 0,
    ) -> None:
        """Args:
            replayed: a CUDA graph starts the kernels of steps without prompts
            sequences, tokens, context: the most that a step and a sequence have
            copies: that share experts
            all_logits: of every token of a prompt, instead of the last one's
            drafting: proposals, of which a step of those who generate accepts several
            prompt: tokens that a context has before the first of such steps
        """
        execution = machine.execution
        sends = replace(execution, sequence_s=execution.sequence_s + execution.sent_s)
        self.model, self.stages, self.placement = model, stages, placement
        self.machine = replace(machine, execution=sends)
        self.share = copies * (len(stages) if machine.execution.pipelined else 1)
        self.copies, self.all_logits = copies, all_logits
        self.drafting, self.prompt = drafting, prompt
        self.proposed = drafting.proposed if drafting is not None else 0
        queries = sequences * (1 + self.proposed)
        self.unscheduled = replace(machine, execution=replace(execution, step_s=0.0))
        self.layers: dict[Layer, int] = {}
        for runs, _, _ in stages:
            for run in runs:
                self.layers[run.layer] = self.layers.get(run.layer, 0) + run.count
        launch_s = machine.execution.launch_s
        self.hosted_s = launch_s * sum(work.kernels * count for work, count in self._forward(Step(1, 512)))
        self.hosted_decode_s = 0.0 if replayed else launch_s * sum(
            work.kernels * count for work, count in self._forward(Step(1, 1, 1)))
        self.linear = Surface(lambda rows, _: self._products(rows), (queries + tokens, 1))
        self.tail = Surface(lambda count, _: self._tail(count), (queries + tokens, 1))
        self.replayed, self.most = replayed, max(1, sequences // self.share)
        self.generating = Surface(lambda count, _: self._generating(count), (sequences, 1))
        self.attention = Surface(self._attending, (sequences, context))
        self.prompts = Surface(lambda count, before: self._mixing(Step(1, count, before)), (tokens, context))

    def decode(self, sequences: int, context: float) -> float:
        """One token of each, with so many tokens computed on average [s]."""
        each = ceil_div(sequences, self.share)
        computed = self.machine.execution.computed(each, self.most) if self.replayed else each
        busy = self.generating(computed, 0) + self.attention(each, self._reached(context))
        return self.machine.execution.taken_s(busy, self.hosted_decode_s, each)

    def mixed(self, sequences: int, context: float, chunks: Sequence[tuple[int, int]]) -> float:
        """Beside them chunks of prompts: tokens, and those computed before [s]."""
        each = ceil_div(sequences, self.share)
        busy, heads = 0.0, each * (1 + self.proposed)
        for tokens, before in chunks[:: self.copies]:
            busy += self.prompts(tokens, before)
            heads += tokens if self.all_logits else 1
        # experts have the tokens of all copies; other products of one that has more than the mean are few beside them
        rows = each * (1 + self.proposed) + ceil_div(sum(tokens for tokens, _ in chunks), self.copies)
        busy += self.linear(rows, 0) + self.tail(heads, 0)
        if each:
            busy += self.attention(each, self._reached(context))
        return self.machine.execution.taken_s(busy, self.hosted_s, each)

    def _reached(self, context: float) -> float:
        """The context of who generates: each step computed adds what it accepts."""
        if self.drafting is None or context <= self.prompt:
            return context
        return self.prompt + (context - self.prompt) * self.drafting.accepted

    def _forward(self, step: Step) -> Iterator[tuple[Work, int]]:
        setting = Setting(step, self.placement, self.machine.execution)
        for runs, first, last in self.stages:
            yield from forward_work(self.model, runs, setting, first=first, last=last)

    def _busy(self, works: Iterable[tuple[Work, int]], rows: int) -> float:
        return step_time(works, self.unscheduled, self.placement, replayed=True, rows=rows).seconds

    def _products(self, rows: int) -> float:
        works = self._forward(Step(1, rows))
        return self._busy(
            ((work, count) for work, count in works if work.name not in MIXING and not _in_tail(work)), rows)

    def _tail(self, count: int) -> float:
        setting = Setting(Step(count, 1), self.placement, self.machine.execution)
        works = forward_work(self.model, (), setting, first=False)
        return self._busy(((work, times) for work, times in works if _in_tail(work)), count)

    def _generating(self, count: int) -> float:
        works = self._forward(self._step(count, 1))
        return self._busy(((work, times) for work, times in works if work.name not in MIXING), count)

    def _attending(self, count: int, cached: int) -> float:
        """Of those who generate, and all that the draft does for them."""
        step = self._step(count, max(1, cached))
        seconds = self._mixing(step)
        if self.drafting is not None:
            setting = Setting(step, self.placement, self.machine.execution)
            seconds += self._busy(self.drafting.works(self.model, setting), count)
        return seconds

    def _step(self, count: int, cached: int) -> Step:
        return Step(count, 1, cached, head_rows=1 + self.proposed, proposed=self.proposed)

    def _mixing(self, step: Step) -> float:
        setting = Setting(step, self.placement, self.machine.execution)
        works = ((work, count) for layer, count in self.layers.items() for work in mixing(layer.mixer, setting))
        return self._busy(works, step.rows)


def _in_tail(work: Work) -> bool:
    return work.name in TAIL or work.pattern == "all-gather"
