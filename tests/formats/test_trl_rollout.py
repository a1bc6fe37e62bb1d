"""TRL's GRPO and RLOO with a vLLM on the trainer's cards, read by `vramcast rl`."""

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

import vramcast
from vramcast import api
from vramcast.api.answers import post_training_job_of
from vramcast.errors import InvalidSpec, Unsupported
from vramcast.units import GIB

ARGUMENTS: Final[dict[str, Any]] = {
    "model_name_or_path": "Qwen/Qwen2.5-1.5B-Instruct", "dtype": "bfloat16", "bf16": True, "use_vllm": True,
    "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.25, "gradient_accumulation_steps": 2,
    "per_device_train_batch_size": 8, "max_completion_length": 1024, "num_generations": 8, "beta": 0.0,
}
ZERO: Final = {
    "compute_environment": "LOCAL_MACHINE", "distributed_type": "DEEPSPEED", "mixed_precision": "bf16",
    "deepspeed_config": {"zero_stage": 3}, "num_processes": 8,
}


def written(folder: Path, name: str = "grpo.yaml", table: dict[str, Any] = ARGUMENTS, **changed: Any) -> str:
    found = {key: value for key, value in {**table, **changed}.items() if value is not None}
    (folder / name).write_text(yaml.safe_dump(found))
    return str(folder / name)


def asked(*files: str, gpus: str = "8xh100-sxm-80gb", **options: Any) -> Any:
    return post_training_job_of({"gpus": gpus, "from": files, **options})


def test_the_trainer_is_the_one_that_train_answers_for(tmp_path: Path) -> None:
    """Beside the engine's pools torch counts in it what it counts in the same run with a server elsewhere."""
    files = (written(tmp_path), written(tmp_path, "zero3.yaml", ZERO))
    apart = (written(tmp_path, "served.yaml", vllm_mode="server"), files[1])
    for micro in (8, 16):
        found = api.post_training_answer({"gpus": "8xh100-sxm-80gb", "from": files, "micro-batch": micro})
        _, alone = api.train_answer({"gpus": "8xh100-sxm-80gb", "from": apart, "micro-batch": micro})
        trainer = next(rank for rank in found.ranks if rank.role == "trainer").phases
        peak = alone.ranks[0].phases["step"].allocated_bytes
        assert 0.2 * 80e9 < trainer["update_actor"].allocated_bytes - peak < 0.27 * found.capacity_bytes


def test_memory_grows_with_the_micro_batch_and_the_share_of_the_engine(tmp_path: Path) -> None:
    file = written(tmp_path)
    device = [api.post_training_answer({"gpus": "h100-sxm-80gb", "from": (file,), **more}).peak.device_bytes
              for more in ({}, {"micro-batch": 16}, {"memory-fraction": 0.4})]
    assert device[1] > device[0] + 4 * GIB
    assert device[2] == pytest.approx(device[0] + 0.15 * 79.19 * GIB, rel=0.02)


@pytest.mark.parametrize(("changed", "named", "why"), [
    ({"vllm_mode": "server"}, {}, "or on a server; vramcast train answers that"),
    ({"use_vllm": False}, {}, "generates with its own network"),
    ({"max_prompt_length": 512, "vllm_mode": None}, {}, "on a server"),  # of a release that has both
    ({"vllm_mode": "both"}, {}, "vllm_mode: 'both' is not one of server, colocate"),
    ({"vllm_model_impl": "transformers"}, {}, "vllm_model_impl"),
    ({"use_liger_kernel": True}, {}, "use_liger_kernel"),
    ({"vllm_gpu_memory_utilisation": 0.3}, {}, "vllm_gpu_memory_utilization"),
    ({"num_generations": 7}, {}, "no multiple of num_generations=7"),
    ({"generation_batch_size": 100}, {}, "no multiple of 64, the micro-batches of all ranks"),
    ({"generation_batch_size": 128, "steps_per_generation": 2}, {}, "say the same"),
    ({"steps_per_generation": 1}, {}, "several generations"),
    ({}, {"algorithm": "ppo"}, "not modelled with TRL"),
    ({}, {"framework": "verl"}, "TRL's trainers alone"),
])
def test_what_is_not_read_is_refused(tmp_path: Path, changed: dict[str, Any], named: dict[str, Any], why: str) -> None:
    with pytest.raises((InvalidSpec, Unsupported), match=why):
        asked(written(tmp_path, **changed), **named)


def test_train_points_to_rl(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="puts an engine on the same cards; vramcast rl answers for that"):
        api.train_answer({"gpus": "h100-sxm-80gb", "from": (written(tmp_path),)})


def test_why_nothing_generates_is_what_is_not_read(tmp_path: Path) -> None:
    """A script of TRL's that reads a command line says nothing of an engine; "train" knows no more of it."""
    (tmp_path / "gspo.py").write_text(
        "from trl import GRPOConfig, GRPOTrainer, ModelConfig, TrlParser\n"
        "args, model = TrlParser((GRPOConfig, ModelConfig)).parse_args_and_config()\n"
        "GRPOTrainer(model=model.model_name_or_path, args=args).train()\n")
    with pytest.raises(Unsupported, match="TrlParser: reads a command line"):
        asked(str(tmp_path / "gspo.py"))


def test_the_kernel_of_the_optimizer_is_the_one_that_the_file_says(tmp_path: Path) -> None:
    fused, each = (asked(written(tmp_path, optim=name)).trainer.plan for name in ("adamw_torch_fused", "adamw_torch"))
    assert fused.optimizer_kernel != each.optimizer_kernel == "foreach"


def test_trl_merges_adapters_and_does_not_sleep_unasked() -> None:
    common: dict[str, Any] = {"model": "qwen2.5-1.5b", "gpus": "h100-sxm-80gb", "framework": "trl"}
    adapted, asleep, whole = (vramcast.rl(**common, **more) for more in (
        {"peft": "lora"}, {"peft": "lora", "sleep": True}, {}))
    cards = [next(rank for rank in found.ranks if rank.role == "card") for found in (adapted, asleep, whole)]
    held, slept = (card.phases["update_actor"].device_bytes for card in cards[:2])
    assert held - slept > 0.2 * 80e9
    served = [next(entry.num_bytes for entry in card.ledger if entry.path == "weights/rollout/weights")
              for card in (cards[0], cards[2])]
    assert served[0] == served[1]


SWIFT: Final = (
    "NPROC_PER_NODE=4 swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-7B-Instruct --tuner_type lora --use_vllm true "
    "--vllm_mode colocate --vllm_gpu_memory_utilization 0.5 --vllm_max_model_len 2048 --vllm_tensor_parallel_size 2 "
    "--max_length 2048 --max_completion_length 1024 --num_generations 4 --per_device_train_batch_size 1 "
    "--gradient_accumulation_steps 1 --deepspeed zero3 --sleep_level 1 --offload_model true --offload_optimizer true "
    "--move_model_batches 7"
)


def swift(folder: Path, more: str = "", base: str = SWIFT) -> Any:
    (folder / "swift.sh").write_text(f"{base} {more}\n")
    return asked(str(folder / "swift.sh"), gpus="4xa100-sxm4-80gb")


def test_ms_swift_hands_over_layers_in_parts_and_its_weights_leave_while_the_engine_works(tmp_path: Path) -> None:
    """All weights of a 7B are 14.2 GiB in 16 bits; a seventh of its layers is less than embedding and head."""
    found = []
    for left_out in ("--no-such", "--move_model_batches 7", "--offload_model true"):
        swift(tmp_path, base=SWIFT.replace(left_out, ""))
        found.append(api.post_training_answer({"gpus": "4xa100-sxm4-80gb", "from": (str(tmp_path / "swift.sh"),)}))
    parts, at_once, stays = found
    handed = [next(rank for rank in one.ranks if rank.role == "trainer").phases["update_weights"].allocated_bytes
              for one in (parts, at_once)]
    assert handed[1] - handed[0] == pytest.approx((14.2 - 2.03) * GIB, rel=0.02)
    cards = [next(rank for rank in one.ranks if rank.role == "card").phases["generate"] for one in (parts, stays)]
    assert cards[1].allocated_bytes - cards[0].allocated_bytes == pytest.approx(14.2 * GIB / 4, rel=0.02)


@pytest.mark.parametrize("more, why", [
    ("--vllm_enable_lora true", "vllm_enable_lora: adapters that the engine keeps apart are not modelled"),
    ("--sleep_level 3", "sleep-level=3 is neither 1 nor 2"),
    ("--move_model_batchs 3", "did you mean move_model_batches"),
    ("--teacher_model x", "teacher_model"),
])
def test_what_ms_swift_is_not_modelled_with_is_refused_by_name(tmp_path: Path, more: str, why: str) -> None:
    with pytest.raises((InvalidSpec, Unsupported)) as caught:
        swift(tmp_path, more)
    assert why in str(caught.value)
