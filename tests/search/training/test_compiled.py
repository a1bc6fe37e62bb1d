"""The compiled form of a plan is its program's own peak, to the byte."""

import random
from itertools import chain

import numpy as np
import pytest

from vramcast.api import job_of
from vramcast.catalogue.gpus import parse_gpus
from vramcast.domain.job import Job, Precision, Recompute, Shards
from vramcast.domain.planning import Space
from vramcast.domain.program import extent
from vramcast.errors import VramcastError
from vramcast.estimate.ranks import outside_tensors
from vramcast.estimate.step_time import step_time
from vramcast.estimate.training import rank_programs
from vramcast.search.training.direct import Known, choices, plans_on
from vramcast.search.training.limits import RESPECTS, by_machine, label
from vramcast.search.training.megatron import Memories, blocks
from vramcast.search.training.pool import Plans, rounded
from vramcast.search.training.times import steps_s

MEGATRON = [
    ("llama-3.1-8b", "4x8xh100-sxm-80gb", 64, {"offload_optimizer": ("none", "cpu")}),
    ("deepseek-v3", "4x8xh100-sxm-80gb", 64, {"optimizers": ("adamw", "muon", "sgd")}),
    ("mixtral-8x7b", "3x8xa100-sxm4-80gb", 96, {"precisions": (Precision.MIXED_BF16, Precision.FP32)}),
    ("kimi-k2", "4x8xh200-sxm-141gb", 64, {"shards": (Shards.NOTHING, Shards.OPTIMIZER)}),
    ("gpt2", "4xt4", 48, {"precisions": (Precision.MIXED_FP16,)}),
    ("llama-3.1-8b", "8xh100-sxm-80gb", 32, {"engine_options": {"precision_aware": True, "moments": "fp8"}}),
]


def space_of(model: str, gpus: str, global_batch: int, **axes: object) -> Space:
    job = job_of({"model": model, "gpus": gpus, "engine": "megatron", "seq-len": "4k" if model != "gpt2" else "1k"})
    return Space(
        model=job.model, workload=job.workload, global_batch=global_batch, clusters=(job.cluster,),
        **axes,  # type: ignore[arg-type]
    )


def live_bytes(job: Job) -> int:
    """The peak of the whole run, read from the engine's programs."""
    beside = outside_tensors(job)
    return max(
        extent(tuple(node for nodes in program.phases.values() for node in nodes)).peak
        + sum(tensor.num_bytes for tensor in (*beside, *program.outside))
        for program in rank_programs(job)
    )


@pytest.mark.parametrize(("model", "gpus", "batch", "axes"), MEGATRON)
def test_every_sampled_megatron_plan_has_the_peak_of_its_program(
    model: str, gpus: str, batch: int, axes: dict[str, object]
) -> None:
    space = space_of(model, gpus, batch, **axes)
    dice = random.Random(17)
    checked = 0
    for block in blocks(space, space.clusters[:1]):
        if dice.random() > 0.1 and checked:
            continue
        degrees, size = dice.choice(np.argwhere(block.possible))
        variant = dice.randrange(len(block.variants))
        again = dice.randrange(len(block.recomputations))
        job = block.job_at(variant, again, int(degrees), int(size))
        assert block.live_bytes[variant, again, degrees, size] == live_bytes(job), job.plan
        assert block.step_s[variant, again, degrees, size] == pytest.approx(step_time(job).step_s), job.plan
        checked += 1
    assert checked


EQUAL = ("8xh100-sxm-80gb", "2x8xh100-sxm-80gb", "3x8xh100-sxm-80gb")
OTHERS = ("8xh100-sxm-80gb", "8xh200-sxm-141gb", "8xa100-sxm4-80gb", "8xl40s", "4xh200-sxm-141gb")


@pytest.mark.parametrize(
    ("kinds", "engine"), [(EQUAL, "megatron"), (OTHERS, "megatron"), (EQUAL, "torchtitan"), (OTHERS, "deepspeed")]
)
def test_clusters_searched_together_have_the_plans_that_each_has_alone(kinds: tuple[str, ...], engine: str) -> None:
    axes = {"virtual_stages": (1, 2), "micro_batches": (1, 2), "cp": (1,), "recompute": (Recompute.NONE,)}
    space = space_of("mixtral-8x7b", "8xh100-sxm-80gb", 96, **axes)
    clusters = list(map(parse_gpus, kinds))
    memories: Memories = {}
    known: Known = {}
    found = [plans_on(space, group, engine, memories, known) for group in by_machine(clusters)]
    together = sorted(figures for plans in chain(*found) for figures in figures_of(plans))
    alone = chain(*(plans_on(space, [cluster], engine) for cluster in clusters))
    assert together == sorted(figures for plans in alone for figures in figures_of(plans))


@pytest.mark.parametrize("engine", ["megatron", "deepspeed"])
def test_plans_looked_at_together_are_compared_as_each_alone(engine: str) -> None:
    space = space_of("mixtral-8x7b", "2x8xh100-sxm-80gb", 32, micro_batches=(1, 2), offload_optimizer=("none", "cpu"))
    for plans in plans_on(space, space.clusters, engine):
        places = np.arange(0, len(plans.step_s), 7)
        jobs, together = map(plans.questions.one, map(int, places)), plans.questions.several(places)
        alone = [[look(job) for _, _, look in RESPECTS] for job in jobs]
        seen = (np.broadcast_to(np.array(look(together), np.object_), places.shape) for _, _, look in RESPECTS)
        assert alone == [list(each) for each in zip(*seen, strict=True)]


def test_figures_are_ranked_by_the_digits_that_are_written() -> None:
    figures = 10.0 ** np.random.default_rng(1).uniform(-6, 12, 10_000)
    figures[:6] = (0.99999499, 0.999995, 1.000005, 1.0000051, 123455.0, 99999.5)
    written = np.array([float(f"{figure:.5g}") for figure in figures])
    order = np.argsort(figures)
    assert (np.diff(rounded(figures)[order]) > 0).tolist() == (np.diff(written[order]) > 0).tolist()
    assert np.allclose(rounded(figures), written, rtol=1e-12)


def figures_of(plans: Plans) -> list[tuple[str, int, float]]:
    """The options of each plan, its memory and its time."""
    return [
        (label(plans.questions.one(place)), int(plans.live_bytes[place]), float(plans.step_s[place]))
        for place in range(len(plans.live_bytes))
    ]


@pytest.mark.parametrize(("engine", "model", "gpus"), [
    ("torchtitan", "llama-3.1-8b", "8xh100-sxm-80gb"), ("deepspeed", "llama-3.1-8b", "8xa100-sxm4-80gb"),
    ("pytorch", "llama-3.2-1b", "a100-sxm4-80gb"), ("huggingface", "gpt2", "4xt4"),
])
def test_every_sampled_plan_of_other_engines_has_the_peak_of_its_program(engine: str, model: str, gpus: str) -> None:
    space = space_of(model, gpus, 64, pp=(1, 2, 4), precisions=(Precision.MIXED_BF16, Precision.AMP_FP16))
    dice = random.Random(3)
    found = list(choices(space, space.clusters[0], engine))
    assert found
    for choice in dice.sample(found, min(24, len(found))):
        index = dice.randrange(len(choice.jobs))
        assert choice.live_bytes[index] == live_bytes(choice.jobs[index]), choice.jobs[index].plan
        own_s = step_time(choice.jobs[index]).step_s  # since Python 3.12 sum() rounds once, NumPy at each addition
        assert steps_s(choice.jobs)[index] == pytest.approx(own_s, rel=1e-12)


def test_a_plan_the_engine_refuses_is_no_plan() -> None:
    space = space_of("llama-3.1-8b", "8xh100-sxm-80gb", 64)
    for choice in choices(space, space.clusters[0], "deepspeed"):
        for job in choice.jobs:
            try:
                rank_programs(job)
            except VramcastError as error:
                pytest.fail(f"{job.plan}: {error}")
