"""What would make a plan fit, least first, with what each costs."""

import pytest

import vramcast
from tools.fuzz.ask import Examination
from tools.fuzz.draw import Question
from vramcast.estimate import training
from vramcast.estimate.changes import BUGS
from vramcast.estimate.techniques import TECHNIQUES
from vramcast.report.chinese import terms


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
