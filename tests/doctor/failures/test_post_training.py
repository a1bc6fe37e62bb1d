"""Failures of post-training: which stage of a step, in which process, and what to change in the framework's words."""

import pytest

from vramcast import diagnose
from vramcast.domain.failure import Cause
from vramcast.report.failure import render
from vramcast.report.messages import LANGUAGES, Words

FULL = ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 13.91 GiB. GPU 0 has a total capacity of 79.32 "
        "GiB of which 8.85 GiB is free. Including non-PyTorch memory, this process has 70.40 GiB memory in use. Of the "
        "allocated memory 60.49 GiB is allocated by PyTorch, and 6.77 GiB is reserved by PyTorch but unallocated.")
OTHERS = ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.32 "
          "GiB of which 1.85 GiB is free. Process 77 has 45.00 GiB memory in use. Process 78 has 32.40 GiB memory in "
          "use. Of the allocated memory 30.49 GiB is allocated by PyTorch, and 0.77 GiB is reserved by PyTorch but "
          "unallocated.")
WORKERS = '  File "/root/verl/verl/workers/{}.py", line 700, in {}'


@pytest.mark.parametrize("frames, message, detail, setting", [
    (WORKERS.format("fsdp_workers", "compute_log_prob"), FULL, "rl_log_prob", "rollout.log_prob_micro_batch_size_per_"),
    (WORKERS.format("fsdp_workers", "compute_ref_log_prob") + "\n" + WORKERS.format("dp_actor", "compute_log_prob"),
     FULL, "rl_reference", "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=1"),
    (WORKERS.format("actor/dp_actor", "update_policy"), FULL, "rl_update", "actor.ppo_micro_batch_size_per_gpu=1"),
    (WORKERS.format("rollout", "generate_sequences") + "\n    self.inference_engine.wake_up()", FULL, "rl_wake",
     "actor_rollout_ref.rollout.gpu_memory_utilization=0.4"),
    (WORKERS.format("engine_workers", "update_weights"), FULL, "rl_handover", "actor_rollout_ref.actor.strategy=fsdp2"),
    ('  File "/usr/openrlhf/trainer/ray/ppo_actor.py", line 1, in ppo_train', FULL, "rl_update",
     "--train.micro_batch_size 1"),
    ('  File "/x/trl/trainer/grpo_trainer.py", line 1, in training_step\n  File "/x/trl/trainer/grpo_trainer.py", '
     "line 2, in _get_per_token_logps_and_entropies", FULL, "rl_log_prob", "per_device_train_batch_size=1"),
    (WORKERS.format("engine_workers", "wake_up"), OTHERS, "rl_wake", "free_cache_engine=True"),
])
def test_the_stage_is_named_and_its_own_keys_are_to_be_changed(
    frames: str, message: str, detail: str, setting: str
) -> None:
    found = diagnose(f"Traceback (most recent call last):\n{frames}\n{message}\n")
    finding, = found.findings
    assert finding.detail == detail
    offered = [fix.setting for fix in finding.fixes]
    assert any(setting in one for one in offered), offered
    assert any(one.startswith("vramcast rl ") for one in offered)
    assert not any("load_in_4bit" in one for one in offered)
    assert all(render(found, Words(language)) for language in LANGUAGES)


def test_another_process_of_a_step_is_its_engine_or_its_trainer() -> None:
    found, = diagnose(f"{WORKERS.format('engine_workers', 'wake_up')}\n{OTHERS}\n").findings
    assert found.cause is Cause.OTHER_PROCESS
    assert "gpu_memory_utilization" in found.fixes[0].setting


def test_other_trainers_keep_their_fixes() -> None:
    found, = diagnose(f'  File "train.py", line 3, in training_step\n    loss.backward()\n{FULL}\n').findings
    assert not any("vramcast rl" in fix.setting for fix in found.fixes)
