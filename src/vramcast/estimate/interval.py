"""The 90 % interval of a prediction, from how far predictions of jobs like it missed what was measured.

Conformal prediction on the ratio measured / predicted [Vovk et al., Algorithmic Learning in a Random World, 2005],
weighted by likeness to the job [Guan, Localized conformal prediction, Biometrika 110, 2023]: the interval is the
prediction times the 5th and 95th percentile of that ratio over measured cases. How much a case counts:

* By its likeness: e^-`FAR` for every trait that differs. A job like many that were measured has their misses;
  of one unlike all of them little is known, and it is told by the next count.
* A harness counts by its likest case, in full from `ENOUGH` cases of that likeness, however many rows it has: rows of
  one harness miss alike.
* All harnesses alike count `PRIOR` together, whatever is asked: what a new harness does unlike those seen.
* Where no run is of the job's engine, the job is a harness more, of which nothing is known: it counts as much as one of
  the others does in the mean, half of it too low and half too high by the most that an interval says [Tibshirani et
  al., NeurIPS 2019, arXiv:1904.06019: the point at infinity]. So no chance is nearer to certain than the harnesses are
  many.

How often it holds is judged leaving out every harness, and every row: `python -m truth.coverage` prints both,
tests/truth/test_budgets.py holds them between 85 and 95 %.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from itertools import accumulate, groupby
from math import ceil, exp, floor
from operator import ne
from pkgutil import get_data
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from vramcast.domain.answer import Likest
from vramcast.domain.device import Gpu
from vramcast.domain.job import Job, Shards
from vramcast.domain.model import Model, MoE
from vramcast.engines import eager
from vramcast.engines.training import engine_of

LOW_SHARE: Final = 0.05
HIGH_SHARE: Final = 0.95

FAR: Final = 1.5
ENOUGH: Final = 8.0
PRIOR: Final = 0.05
"""Chosen once for all harnesses of truth/published, by coverage and width without each harness and without each row;
half and twice any of them covers 84 to 94 % of either."""

LEAST_RATIO: Final = 0.5
MOST_RATIO: Final = 2.0
"""An interval says no more than a factor of two: rows further off measured another job than they describe."""

LIKEST: Final = 0.5
"""Share of an interval's weight by whose runs an answer says what it rests on."""

MEASURED: Final = "measured.jsonl"
"""Beside this module."""

Purpose = Literal["training", "serving", "tracing"]


class Case(Struct, frozen=True):
    """Runs of one harness that have all traits in common."""

    purpose: Purpose
    harness: str
    traits: Traits
    ratios: tuple[float, ...]  # measured / predicted; of many runs, evenly spaced quantiles
    runs: int = 0  # 0: as many as ratios

    @property
    def num_runs(self) -> int:
        """How many runs there were."""
        return self.runs or len(self.ratios)


def interval(traits: Traits, num_bytes: int, *, purpose: Purpose = "training") -> tuple[int, int]:
    """Bytes the measured value lies between in nine cases of ten; the prediction always lies within.

    Args:
        traits: of the job and of the number
        num_bytes: the prediction [bytes]
        purpose: whose cases count at all
    """
    low, high = _bounds(traits, purpose)
    return floor(num_bytes * low), ceil(num_bytes * high)


def chance_within(traits: Traits, num_bytes: int, most_bytes: int, *, purpose: Purpose = "training") -> float:
    """How likely the measured value is no more than so much: the weight of the cases that missed so little.

    Args:
        traits: of the job and of the number
        num_bytes: the prediction [bytes]
        most_bytes: what there is for it [bytes]
        purpose: whose cases count at all
    """
    shares = misses(traits, purpose)
    if not shares:
        return float(num_bytes <= most_bytes)
    within = [share for ratio, share in shares if ratio * num_bytes <= most_bytes]
    return within[-1] if within else 0.0


@lru_cache(maxsize=4096)
def misses(traits: Traits, purpose: Purpose = "training") -> tuple[tuple[float, float], ...]:
    """Every ratio of measured to predicted, the smallest first, with the share of all weight up to and with it.

    Args:
        traits: of the job and of the number
        purpose: whose cases count at all
    """
    weighted = _weighted_of(traits, purpose)
    passed = accumulate(weight for _, weight in weighted)
    whole = sum(weight for _, weight in weighted)
    return tuple((ratio, min(1.0, share / whole)) for (ratio, _), share in zip(weighted, passed, strict=True))


@lru_cache(maxsize=4096)
def likest_runs(traits: Traits, purpose: Purpose = "training") -> Likest | None:
    """The runs that an interval is drawn from, the likest first, up to half of its weight; those that differ in as many
    traits go together.

    Args:
        traits: of the job and of the number
        purpose: whose cases count at all
    """
    weighted = weighted_for(traits, purpose)
    if not weighted:
        return None
    half = LIKEST * sum(weight * len(case.ratios) for _, weight, case in weighted)
    found: list[tuple[float, Case]] = []
    for _, alike in groupby(sorted(weighted, key=lambda row: -row[0]), key=lambda row: row[0]):
        found += ((weight, case) for _, weight, case in alike)
        if sum(weight * len(case.ratios) for weight, case in found) >= half:
            break
    missed = sorted((abs(1 / ratio - 1), weight) for weight, case in found for ratio in case.ratios)
    return Likest(
        runs=sum(case.num_runs for _, case in found),
        own_engine=sum(case.num_runs for _, case in found if case.traits.engine == traits.engine),
        median_miss=_quantile(missed, sum(weight for _, weight in missed) / 2),
    )


@lru_cache(maxsize=4096)
def _bounds(traits: Traits, purpose: Purpose) -> tuple[float, float]:
    return _bounds_of(_weighted_of(traits, purpose))


def _weighted_of(traits: Traits, purpose: Purpose) -> list[tuple[float, float]]:
    return _beside_unknown(traits, weighted_for(traits, purpose))


@lru_cache(maxsize=16)  # an answer asks for its own two or three times, a search seldom again
def weighted_for(traits: Traits, purpose: Purpose) -> list[tuple[float, float, Case]]:
    return _weighted_cases(traits, (case for case in measured_cases() if case.purpose == purpose))


@lru_cache(maxsize=1)
def measured_cases() -> tuple[Case, ...]:
    """The measured cases, by purpose, harness and traits; `python -m truth.calibrate` writes them."""
    rows = get_data(__package__, MEASURED) or b""
    return tuple(msgspec.json.Decoder(Case).decode_lines(rows))


def ratio_bounds(traits: Traits, cases: Iterable[Case]) -> tuple[float, float]:
    """The factors from a prediction to both ends of its interval, by these cases."""
    return _bounds_of(weighted_ratios(traits, cases))


def weighted_ratios(traits: Traits, cases: Iterable[Case]) -> list[tuple[float, float]]:
    """Every ratio of measured to predicted with how much it counts, the smallest first."""
    return _ratios_of(_weighted_cases(traits, cases))


def _ratios_of(weighted: list[tuple[float, float, Case]]) -> list[tuple[float, float]]:
    return sorted((ratio, weight) for _, weight, case in weighted for ratio in case.ratios)


def _beside_unknown(traits: Traits, weighted: list[tuple[float, float, Case]]) -> list[tuple[float, float]]:
    """The ratios, with those of a harness that nobody measured where no run is of the job's engine."""
    found = _ratios_of(weighted)
    if not weighted or any(case.traits.engine == traits.engine for *_, case in weighted):
        return found
    unknown = sum(weight for _, weight in found) / len({case.harness for *_, case in weighted})
    return sorted([*found, (LEAST_RATIO, unknown / 2), (MOST_RATIO, unknown / 2)])


def _weighted_cases(traits: Traits, cases: Iterable[Case]) -> list[tuple[float, float, Case]]:
    """Cases with their likeness and how much each of their ratios counts."""
    harnesses: dict[str, list[tuple[float, Case]]] = defaultdict(list)
    for case in cases:
        harnesses[case.harness].append((likeness(traits, case.traits), case))
    weighted: list[tuple[float, float, Case]] = []
    for found in harnesses.values():
        likest = max(like for like, _ in found)
        total = sum(like * len(case.ratios) for like, case in found)
        count = sum(len(case.ratios) for _, case in found)
        mass = likest * min(1.0, total / likest / ENOUGH)
        everyone = PRIOR / len(harnesses) / count
        weighted += [(like, mass * like / total + everyone, case) for like, case in found]
    return weighted


def _bounds_of(weighted: list[tuple[float, float]]) -> tuple[float, float]:
    if not weighted:
        return 1.0, 1.0
    whole = sum(weight for _, weight in weighted)
    low, high = _quantile(weighted, LOW_SHARE * whole), _quantile(weighted, HIGH_SHARE * whole)
    return min(max(low, LEAST_RATIO), 1.0), max(min(high, MOST_RATIO), 1.0)


def likeness(one: Traits, other: Traits) -> float:
    """1 for the same traits, less the more they differ in."""
    return exp(-FAR * sum(map(ne, astuple(one), astuple(other))))


def _quantile(weighted: list[tuple[float, float]], target: float) -> float:
    passed = 0.0
    for ratio, weight in weighted:
        passed += weight
        if passed >= target:
            return ratio
    return weighted[-1][0]


if TYPE_CHECKING:
    from vramcast.domain.serving import PipelineJob, ServeJob

SLACKS: Final = ((0.05, "little"), (0.15, "some"), (1.0, "much"))
"""Share of a number that is reserved and not allocated, by its upper end: what the allocator keeps is partly chance."""

HARD: Final = ("dpo", "kto", "gkd", "ppo", "grpo", "rloo", "reward")
"""Objectives with more than one model or more than one pass."""


class Traits(Struct, frozen=True, order=True):
    """One word for each; a serving job leaves most of them empty."""

    engine: str
    kin: str
    adapters: str = ""
    packed: str = ""
    experts: str = ""
    objective: str = ""
    slack: str = ""
    sharded: str = ""
    ranks: str = ""
    degrees: str = ""
    compiled: str = ""
    recompute: str = ""
    loss: str = ""
    precision: str = ""
    optimizer: str = ""
    arch: str = ""
    gpu: str = ""
    lengths: str = ""


def slack_of(share: float) -> str:
    """How much of a number the allocator keeps without using it, in a word.

    Args:
        share: of reserved and not allocated bytes in the number; 0 for a number of allocated bytes
    """
    return next(word for most, word in SLACKS if share < most or most == 1.0)


def training_traits(job: Job, share: float = 0.0) -> Traits:
    """Of a training job; `share` as in `slack_of`. What DeepSpeed runs is its, whoever starts it."""
    plan, peft = job.plan, job.plan.peft
    zero = eager.releases.runs_deepspeed(job)
    engine, sharder = ("deepspeed", "deepspeed") if zero else (job.engine, plan.sharded_by)
    sharded = plan.shards is not Shards.NOTHING and job.data_parallel > 1
    degrees = [name for name in ("tp", "pp", "cp", "ep") if getattr(plan, name) > 1]
    return Traits(
        engine=engine, kin=engine_of(job).kin,
        adapters="" if peft is None else "adapters",
        packed="packed" if peft is not None and peft.base != "full" else "",
        experts=_experts(job.model),
        objective="several" if job.workload.objective in HARD else "",
        slack=slack_of(share),
        sharded=(sharder or "sharded") if sharded else "",
        ranks="several" if job.cluster.count > 1 else "one",
        degrees="+".join(degrees),
        compiled="compiled" if plan.compile else "",
        recompute=plan.recompute.value, loss=plan.loss.value if plan.loss else "",
        precision=plan.precision.value.replace("amp-", "mixed-"),  # some engines take one for the other
        optimizer=plan.optimizer.partition(":")[0], arch=job.cluster.gpu.arch, gpu=job.cluster.gpu.name,
        lengths="varying" if (job.workload.min_seq_len or job.workload.seq_len) < job.workload.seq_len else "",
    )


def serving_traits(job: ServeJob | PipelineJob) -> Traits:
    """Of a serving job."""
    model = getattr(job, "model", None)
    return Traits(
        engine=job.engine, kin=job.engine, packed=job.plan.weights or "",
        experts=_experts(model) if isinstance(model, Model) else "",
        ranks="several" if job.plan.num_ranks > 1 else "one",
        arch=job.cluster.gpu.arch, gpu=job.cluster.gpu.name,
    )


def traced_traits(gpu: Gpu) -> Traits:
    """Of a traced run: what it runs is on the tape, so how far it is off lies with the card."""
    return Traits(engine="trace", kin="trace", arch=gpu.arch, gpu=gpu.name)


def _experts(model: Model) -> str:
    return "experts" if any(isinstance(run.layer.channel, MoE) for run in model.main.runs) else ""
