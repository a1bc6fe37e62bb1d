"""What else a text says: versions and settings anywhere, the way of a traceback, where the run stood."""

from tests.sources.failures.test_noise import MESSAGE
from vramcast.sources.failures import read_failures

LOG = f"""PyTorch version: 2.6.0+cu124
CUDA used to build PyTorch: 12.4
| 0  NVIDIA A100-SXM4-80GB  On |
export PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128
vLLM API server version 0.9.1
epoch 3 step 1200 loss: nan
Gradient overflow. Skipping step, loss scaler 0 reducing loss scale to 32768.0
{{"offload_optimizer": {{"device": "cpu"}}}}
Traceback (most recent call last):
  File "/home/me/train.py", line 88, in main
    loss.backward()
  File "/usr/lib/python3.10/site-packages/torch/_tensor.py", line 581, in backward
    torch.autograd.backward(
  File "/usr/lib/python3.10/site-packages/torch/utils/checkpoint.py", line 1124, in unpack_hook
{MESSAGE}
"""


def test_what_no_traceback_passes_through_is_not_said() -> None:
    names = {fact.name for fact in read_failures(LOG).context}
    assert not names & {
        "optimizer_step", "optimizer_state", "generate", "data_loader", "graph_capture", "tpu", "windows",
    }


def test_a_traceback_belongs_to_the_failure_it_ends_in() -> None:
    other = MESSAGE.replace("GPU 1", "GPU 2")
    step = 'Traceback (most recent call last):\n  File "/home/me/other.py", line 3, in run\n    optimizer.step()\n'
    found = read_failures(f"{LOG}{step}{other}\n")
    assert found.facts("user_frame", 1) == ("/home/me/other.py:3 run",)
    assert ("optimizer_step" in {fact.name for fact in found.context if fact.statement == 1}) and not found.facts(
        "optimizer_step", 0
    )


def test_a_worker_of_vllm_says_what_it_was_doing_without_a_traceback() -> None:
    worker = "Exception in worker VllmWorkerProcess while processing method determine_num_available_blocks: "
    assert read_failures(f"{worker}{MESSAGE}\n").facts("profile_run") == ("yes",)
    assert not read_failures(f"I read about determine_num_available_blocks. {MESSAGE}\n").facts("profile_run")
