"""Changes that would make a plan fit, corrections by measured runs, and options of engines."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import vramcast
from tools.fuzz.ask import Examination
from tools.fuzz.draw import Question
from vramcast.catalogue.gpus import parse_gpus
from vramcast.catalogue.models import load_model
from vramcast.domain.calibration import Calibration, Correction, Plan
from vramcast.domain.job import Phase
from vramcast.domain.program import Alloc, Category, Free, Loop, Node, Program, Tensor, events
from vramcast.domain.serving import Requests, ServeJob, ServePlan
from vramcast.engines.serving.table import SERVING
from vramcast.estimate import training
from vramcast.estimate.changes import BUGS
from vramcast.estimate.corrections import applicable, plan_facts
from vramcast.estimate.script import Script, unrolled
from vramcast.estimate.serving import answer
from vramcast.estimate.techniques import TECHNIQUES
from vramcast.report.chinese import terms
from vramcast.units import GIB, MIB

# What would make a plan fit, least first, with what each costs.


def test_every_cost_has_its_chinese_words() -> None:
    for technique in TECHNIQUES:
        if technique.offered:
            assert technique.cost in terms("cost")
            assert not technique.usually or f"{technique.cost}: {technique.usually}" in terms("cost")


ASKED_AGAIN: dict[str, dict[str, object]] = {
    "live tensors alone are too much": {"model": "llama-3.1-70b", "gpus": "8xa100-sxm4-40gb", "engine": "torchtitan"},
    "no card is enough": {"model": "llama-3.1-70b", "gpus": "rtx-4090", "engine": "pytorch", "seq-len": 8192},
    "zero, not shards": {"model": "opt-30b", "gpus": "4xh20-96gb", "engine": "pytorch", "zero": "0", "grad-accum": 7},
    "a global batch": {"model": "codellama-70b", "gpus": "4xh20-96gb", "engine": "megatron", "global-batch": 64,
                       "micro-batch": 2},
    "nobody left to share with": {"model": "granite-3.0-2b", "gpus": "2xrtx-4060-ti-16gb", "engine": "megatron"},
    "a recipe of its own": {"model": "mistral-nemo-12b", "gpus": "4xrtx-4090", "engine": "pytorch",
                            "precision": "amp-fp16"},
    "full precision": {"model": "mistral-nemo-12b", "gpus": "4xrtx-4090", "engine": "pytorch", "precision": "fp32"},
    "options of its engine": {"model": "mistral-nemo-12b", "gpus": "4xrtx-4090", "engine": "huggingface@4.57",
                              "engine-option": ["reentrant=true"]},
    "adapters that TRL narrows": {"model": "llama-3.2-3b", "gpus": "t4", "engine": "huggingface", "objective": "kto"},
    "odd positions": {"model": "llama-3.1-8b", "gpus": "8xh100-sxm-80gb", "seq-len": 4475, "micro-batch": 3},
    "a card that stands alone": {"model": "qwen3-coder-480b-a35b", "gpus": "m4-32gb", "engine": "llama.cpp",
                                 "context": 8192},
    "too little main memory": {"model": "llama-3.1-70b", "gpus": "aws:g5.48xlarge", "engine": "deepspeed", "zero": "3",
                               "offload-optimizer": "cpu", "global-batch": 64},
}


@pytest.mark.parametrize("asked", ASKED_AGAIN.values(), ids=ASKED_AGAIN)
def test_every_number_of_a_change_is_what_asking_for_it_gives(asked: dict[str, object]) -> None:
    found = Examination(Question("serve" if "context" in asked else "train", asked))
    assert found.num_answers > 1
    assert not found.faults


def test_a_change_that_shows_a_bug_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"model": "llama-3.1-8b", "gpus": "8xa100-sxm4-40gb", "engine": "torchtitan", "micro_batch": 8}
    whole = [change.change for change in vramcast.train(**asked).changes]
    ranks = training.rank_programs

    def broken(job: object, **choice: object) -> object:
        if job.plan.recompute == "full":  # type: ignore[attr-defined]
            raise KeyError("grad.channel_residual")
        return ranks(job, **choice)  # type: ignore[arg-type]

    monkeypatch.setattr(training, "rank_programs", broken)
    with pytest.raises(KeyError):  # where bugs are looked for
        vramcast.train(**asked)
    monkeypatch.setattr(BUGS, "are_raised", False)
    left = [change.change for change in vramcast.train(**asked).changes]
    assert left == [change for change in whole if change != "--recompute full"] != whole


# A calibration changes what it holds for, by what was measured, and nothing else.

def job_of(engine: str = "vllm", **plan: Any) -> ServeJob:
    return ServeJob(
        model=load_model("llama-3.1-8b"),
        requests=Requests(context=8192),
        plan=ServePlan(**plan),
        cluster=parse_gpus(f"{plan.get('tp', 1)}xh100-sxm-80gb"),
        engine=engine,
        version=SERVING[engine].default,
    )


def calibration_of(job: ServeJob, **ratios: float) -> Calibration:
    unit = 1 << 20
    return Calibration(
        engine=job.engine, oldest=job.version, newest=job.version, gpu=job.cluster.gpu.name, plan=plan_facts(job),
        corrections={
            name.replace("_", " "): Correction(measured_bytes=round(ratio * unit), predicted_bytes=unit)
            for name, ratio in ratios.items()
        },
        source="run.toml",
    )


@pytest.mark.parametrize(("change", "words"), [
    ({"engine": "sglang"}, "measured with sglang, not vllm"),
    ({"gpu": "l40s"}, "measured on l40s, not h100-sxm-80gb"),
    ({"oldest": (0, 11), "newest": (0, 12)}, "holds for vllm 0.11 to 0.12, not 0.19"),
])
def test_a_calibration_of_another_engine_card_or_version_is_ignored_with_a_warning(
    change: dict[str, Any], words: str
) -> None:
    job = job_of()
    other = replace(calibration_of(job, weights=2.0), **change)
    found = answer(replace(job, calibration=other))
    assert found.ranks == answer(job).ranks
    assert any("calibration run.toml is ignored" in text and words in text for text in found.warnings)


@pytest.mark.parametrize(("plan", "kept"), [
    (Plan(model="llama-3.1-8b"), {"weights", "activations", "communication"}),
    (Plan(model="qwen3-8b"), {"communication"}),
    (Plan(model="llama-3.1-8b", tp=2), set()),
    (Plan(model="llama-3.1-8b", weights="fp8"), {"communication"}),
])
def test_only_what_belongs_to_the_same_plan_carries_over(plan: Plan, kept: set[str]) -> None:
    job = job_of()
    calibration = replace(calibration_of(job, weights=1.1, activations=1.1, communication=1.1), plan=plan)
    held, warnings = applicable(replace(job, calibration=calibration))
    assert (set(held.calibration.corrections) if held.calibration else set()) == kept
    assert len(warnings) == 3 - len(kept)


def test_a_correction_that_an_engine_has_no_use_for_is_said() -> None:
    job = job_of(graphs=False)
    found = answer(replace(job, calibration=calibration_of(job, encoder_cache=2.0)))
    assert any("is not corrected for encoder cache" in text for text in found.warnings)


def test_graphs_that_grow_lower_the_safe_fraction() -> None:
    job = job_of()
    plain, found = answer(job).capacity, answer(replace(job, calibration=calibration_of(job, cuda_graphs=6.0))).capacity
    assert plain is not None and found is not None
    assert plain.safe_fraction is not None and found.safe_fraction is not None
    assert found.safe_fraction < plain.safe_fraction
    assert plain.kv_bytes - found.kv_bytes < GIB


# Nothing an engine is told is ignored in silence.

def test_modules_of_multi_token_prediction_are_said_not_to_be_counted() -> None:
    found = vramcast.train("deepseek-v3", gpus="32x8xh100", engine="megatron", tp=8, ep=32)
    assert any("--mtp-num-layers 1" in text for text in found.ignored)
    assert not any("--mtp" in text for text in vramcast.train("mixtral-8x7b", gpus="8xh100", engine="megatron").ignored)


# Script of integers say what programs do, and playing them leaves out only what can change nothing.

SIZES = (0, 1, 700 << 10, MIB, 3 * MIB, 8 * MIB, 12 * MIB + 5, 33 * MIB)


def tensor(num_bytes: int, stream: str = "") -> Tensor:
    return Tensor(name="t", num_bytes=num_bytes, category=Category.ACTIVATIONS, stream=stream)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """What a step does to memory: layers of kept and passing tensors forward, freed backward, micro-batches around."""
    drawn = [tensor(draw(st.sampled_from(SIZES)), draw(st.sampled_from(["", "", "side"]))) for _ in range(6)]
    kept, passing = drawn[:3], drawn[3:]
    forward: list[Node] = []
    for one in draw(st.permutations([*kept, *passing, *passing])):  # the second time a passing tensor is freed
        is_alive = one in passing and any(node.tensor is one for node in forward if isinstance(node, Alloc))
        forward.append(Free(one) if is_alive else Alloc(one))
    backward = [*map(Alloc, passing[:1]), *map(Free, draw(st.permutations(kept))), *map(Free, passing[:1])]
    layers = draw(st.integers(1, 30))
    step = (Loop(layers, tuple(forward)), Loop(layers, tuple(backward)))
    left = tensor(draw(st.sampled_from(SIZES)))
    return (Alloc(left), Loop(draw(st.integers(1, 5)), step), *((Free(left),) if draw(st.booleans()) else ()))


@given(programs())
def test_a_script_lists_the_events_of_its_program(program: Program) -> None:
    run = Script({Phase.STEP: program}).run
    told = [(run.requests[max(code, ~code)][0], code >= 0) for code in unrolled(run, run.phases[0])]
    assert told == [(t.num_bytes, is_allocation) for t, is_allocation in events(program) if t.num_bytes]
