"""slime's run scripts: what its own, Megatron's and SGLang's names say, and what is not modelled is refused by name."""

from typing import Any, Final

import pytest

import vramcast
from vramcast.formats.reading import Config, sentence
from vramcast.formats.tools import slime
from vramcast.formats.unread import tool_of
from vramcast.units import GIB

SCRIPT: Final = """
source "${{DIR}}/models/qwen3-4B.sh"
PERF_ARGS=(--tensor-model-parallel-size 2 --sequence-parallel --recompute-granularity full --recompute-method uniform
           --recompute-num-layers 1 --use-dynamic-batch-size --max-tokens-per-gpu 9216 {more})
ray job submit -- python3 {program} --actor-num-nodes 1 --actor-num-gpus-per-node 8 {where} ${{MODEL_ARGS[@]}} \\
   --hf-checkpoint /root/Qwen3-4B --ref-load /root/x --rollout-batch-size 32 --n-samples-per-prompt 8 \\
   --rollout-max-response-len 8192 --global-batch-size 128 --advantage-estimator grpo --use-kl-loss \\
   --kl-loss-coef 0.0 --rollout-num-gpus-per-engine 2 --sglang-mem-fraction-static 0.7 ${{PERF_ARGS[@]}}
"""


def of(more: str = "", where: str = "--colocate", program: str = "train.py") -> Any:
    config = Config("run.sh", SCRIPT.format(more=more, where=where, program=program), None)
    assert tool_of(config) == "slime"
    return slime.read(config)


def test_a_script_is_its_whole_question() -> None:
    found = of()
    assert not found.unread, sentence(found.unread)
    assert (found.ranks, found.nodes) == (8, 1)
    assert found.options == {
        "framework": "slime", "engine": "megatron", "rollout": "sglang", "algorithm": "grpo", "model": "Qwen3-4B",
        "prompts": 32, "samples": 8, "mini-batch": 16, "prompt-len": 1024, "response-len": 8192, "rollout-tp": 2,
        "tp": 2, "sequence-parallel": True, "recompute": "full", "micro-tokens": 9216, "log-prob-tokens": 9216,
        "memory-fraction": 0.7, "reference": True, "entropy": False, "images": 0,
    }


@pytest.mark.parametrize(("more", "options"), [
    ("--log-probs-max-tokens-per-gpu 20000", {"log-prob-tokens": 20000}),
    ("--rollout-max-context-len 8704", {"context": 8704, "prompt-len": 512, "response-len": 8192}),
    ("--rollout-max-prompt-len 300 --entropy-coef 0.001", {"prompt-len": 300, "entropy": True}),
    ("--optimizer-cpu-offload --use-precision-aware-optimizer", {"offload-optimizer": "cpu",
                                                                    "trainer-option": None}),
    ("--use-precision-aware-optimizer", {"trainer-option": ("precision_aware=true",)}),
    ("--update-weight-buffer-size 2147483648", {"bucket-mib": 2048}),
    ("--sglang-cuda-graph-bs 1 2 4 $(seq 8 8 256)", {"engine-option": ("cuda-graph-max-bs=256",)}),
    ("--num-steps-per-rollout 2", {"mini-batch": 16}),
    ("--sglang-ep-size 2 --sglang-max-running-requests 64", {"max-sequences": 64, "rollout-expert-parallel": True}),
    ("--sglang-enable-dp-attention --sglang-dp-size 2 --sglang-enable-dp-lm-head",
     {"rollout-tp": 1, "rollout-dp": 2, "rollout-attention-dp": True}),
    ("--use-opd --opd-type sglang --opd-kl-coef 1.0", {"reference": True}),
    ("--multimodal-keys '{}'", {"images": None}),
], ids=str)
def test_names_say(more: str, options: dict[str, Any]) -> None:
    found = of(more)
    assert not found.unread, sentence(found.unread)
    assert {name: found.options.get(name) for name in options} == options


def test_an_engine_has_cards_of_its_own_and_works_ahead_where_the_program_lets_it() -> None:
    for program, ahead in (("train.py", False), ("train_async.py", True)):
        found = of(where="--rollout-num-gpus 8", program=program)
        assert not found.unread and found.ranks == 16
        assert (found.options["rollout-gpus"], found.options["ahead"]) == (8, ahead)
    assert [one.name for one in of(where="").unread] == ["rollout_num_gpus"]


@pytest.mark.parametrize("more", [
    "--loss-type sft_loss", "--use-opd", "--sglang-ep-size 3", "--release-train",
    "--recompute-granularity selective", "--update-weight-transport disk", "--no-such-name 3",
    "--global-batch-size 100", "--num-steps-per-rollout 4", "--sglang-speculative-algorithm EAGLE",
])
def test_what_is_not_modelled_is_refused_by_its_name(more: str) -> None:
    assert more.split()[0].lstrip("-").replace("-", "_").partition("sglang_")[0] in sentence(of(more).unread)
    assert of(more).unread


def test_a_trainer_that_is_paused_whole_waits_on_the_host() -> None:
    """[slime actor.py `sleep`]: weights, gradients and states, and a copy of the weights for each of two networks."""
    asked: dict[str, Any] = {"gpus": "8xh100-sxm-80gb", "framework": "slime", "tp": 2, "micro_tokens": 9216,
                             "reference": True}
    found, moved = (vramcast.rl("qwen3-4b", offload_optimizer=where, **asked) for where in (None, "cpu"))
    trainer = next(rank for rank in found.ranks if rank.role == "trainer")
    assert trainer.phases["generate"].reserved_bytes < GIB < 10 * GIB < trainer.phases["update_actor"].reserved_bytes
    assert found.host is not None and moved.host is not None
    names = [part.name for part in found.host.parts]
    assert "weights of the reference" in names and "moments" in names
    other = next(rank for rank in moved.ranks if rank.role == "trainer")
    assert other.phases["update_actor"].allocated_bytes < trainer.phases["update_actor"].allocated_bytes
    assert "fp32 weights" in [part.name for part in moved.host.parts]
