"""Fixes: settings ready to paste, and savings that the message's own arithmetic gives."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.doctor.failures._statements import FRAGMENTED, sizes, stated
from tests.doctor.failures.test_causes import CUDNN_HANDLE, DRIVER, FULL, HALF, during
from vramcast.doctor.failures.case import Facts, case_of
from vramcast.doctor.failures.causes import judge
from vramcast.doctor.failures.fixes import REMEDIES, fixes_of
from vramcast.domain.failure import Cause, Fix
from vramcast.units import GIB

NEW = "Of the allocated memory 1 is allocated by PyTorch, try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
ANY: Any = object()


def fixes(family: str = "torch-cuda", text: str = NEW, facts: Facts | None = None, wording: str = "test",
          **numbers: Any) -> dict[str, Fix]:
    case = case_of(replace(stated(family, text, **numbers), wording=wording), facts or Facts())
    return {fix.action.key: fix for fix in fixes_of(case, judge(case))}


def cache(**numbers: Any) -> dict[str, Any]:
    """A cache of vLLM that is too small."""
    return {"family": "vllm", "text": "KV cache", **numbers}


BYTES = cache(max_model_len=131072, kv_needed_bytes=16 * GIB, kv_available_bytes=6 * GIB)
SHARE = cache(max_model_len=8192, kv_needed_bytes=2 * GIB, kv_available_bytes=GIB, memory_fraction=0.9)
LOADING = "cudaMalloc failed: out of memory; error loading model"
CONF = "PYTORCH_CUDA_ALLOC_CONF"


@pytest.mark.parametrize(("statement", "key", "setting", "saves", "enough"), [
    # joined pieces free at most what is unallocated; whether they join wholly, only a replay knows
    (FRAGMENTED, "expandable", f"{CONF}=expandable_segments:True",
     FRAGMENTED["reserved_bytes"] - FRAGMENTED["allocated_bytes"], None),
    (FRAGMENTED, "max_split", f"{CONF}=max_split_size_mb:256", ANY, ANY),  # 1269 / 4 = 317
    ({"text": "", "facts": Facts(torch=(2, 9))} | FRAGMENTED, "expandable", f"{CONF}=expandable_segments:True", ANY,
     ANY),
    ({"text": "", "facts": Facts(torch=(2, 10))} | FRAGMENTED, "expandable",
     "PYTORCH_ALLOC_CONF=expandable_segments:True", ANY, ANY),
    ({"family": "torch-hip", "text": ""} | FRAGMENTED, "expandable",
     "PYTORCH_HIP_ALLOC_CONF=expandable_segments:True", ANY, ANY),
    ({"family": "torch-hip"} | FRAGMENTED, "expandable", f"{CONF}=expandable_segments:True", ANY, ANY),
    ({"family": "torch-npu", "text": ""} | FRAGMENTED, "expandable",
     "PYTORCH_NPU_ALLOC_CONF=expandable_segments:True", ANY, ANY),
    # what others hold: 24 - 0.5 - 16
    (sizes(tried=2, total=24, free=0.5, process=16, allocated=14, unallocated=1.5), "stop_others",
     "nvidia-smi --query-compute-apps=pid,used_memory --format=csv", int(7.5 * GIB), True),
    # the longest context: whole blocks of the tokens there are; 131072 tokens need 16 GiB, 6 are there; as estimated
    (cache(max_model_len=32768, kv_tokens=20007), "shorter_context", "--max-model-len 20000", None, True),
    (BYTES, "shorter_context", "--max-model-len 49152", 10 * GIB, True),
    (BYTES, "kv_8bit", "--kv-cache-dtype fp8", 8 * GIB, False),  # 8 needed, 6 there
    (BYTES | {"estimated_max_len": 5632}, "shorter_context", "--max-model-len 5632", ANY, ANY),
    (SHARE | {"total_bytes": 24 * GIB}, "higher_fraction", "--gpu-memory-utilization 0.95", ANY, True),  # 0.9 + 1/24
    # 0.2 GiB asked, 0.05 free of 20 at 0.98: 0.98 - 0.15 / 20 = 0.9725
    ({"text": "gpu_memory_utilization vllm", "memory_fraction": 0.98} | sizes(tried=0.2, total=20, free=0.05),
     "lower_fraction", "--gpu-memory-utilization 0.97", int((0.98 - 0.97) * 20 * GIB), True),
    ({"text": DRIVER, "facts": during("profile", words=("vllm",))}, "smaller_profile",
     "--max-num-seqs 16 --max-num-batched-tokens 2048", ANY, ANY),
    ({"text": DRIVER, "facts": during("capture", words=("vllm",))}, "lower_fraction",
     "--gpu-memory-utilization 0.85", ANY, ANY),
    ({"text": DRIVER, "facts": during("capture", words=("sglang",))}, "lower_fraction",
     "--mem-fraction-static 0.85", ANY, ANY),
    ({"text": DRIVER, "facts": during("capture", words=("sglang",))}, "fewer_requests",
     "--max-running-requests 32 --cuda-graph-max-bs 32", ANY, ANY),
    # a limit is raised to what is held and asked, 20.9 / 80; also where the message leaves it out, 11.98 + 0.04 of 24
    ({"device": 3} | sizes(tried=1, total=80, free=60, allocated=19.5, reserved=19.9, allowed=20), "raise_fraction",
     "torch.cuda.set_per_process_memory_fraction(0.27, 3)", int(0.27 * 80 * GIB) - 20 * GIB, True),
    ({"device": 0} | HALF, "raise_fraction", "torch.cuda.set_per_process_memory_fraction(0.51, 0)", ANY, True),
    # an engine that found the card taken: 9.51 / 23.65
    ({"family": "vllm", "wording": "free-on-startup", "memory_fraction": 0.9}
     | sizes(total=23.65, free=9.51, desired=21.28), "what_is_free", "--gpu-memory-utilization 0.40", ANY, ANY),
    ({"family": "cudnn", "text": CUDNN_HANDLE}, "tf_growth", ANY, ANY, ANY),
    # in the words of the program that failed
    ({"family": "llama.cpp", "text": LOADING}, "fewer_layers", "-ngl N", ANY, ANY),
    ({"family": "ollama", "text": LOADING}, "fewer_layers", "PARAMETER num_gpu N", ANY, ANY),
    ({"family": "ollama", "text": LOADING}, "shorter_llama", "OLLAMA_CONTEXT_LENGTH=8192", ANY, ANY),
    ({"facts": during("backward", words=("vllm",))} | FULL, "checkpointing", "model.gradient_checkpointing_enable()",
     ANY, ANY),
])
def test_a_fix_is_ready_to_paste_and_brings_what_the_message_tells(
    statement: dict[str, Any], key: str, setting: str, saves: int | None, enough: bool | None
) -> None:
    fix = fixes(**statement)[f"fix.{key}"]
    assert setting in (ANY, fix.setting)
    assert saves is ANY or fix.saves_bytes == saves
    assert enough is ANY or fix.enough is enough


@pytest.mark.parametrize(("family", "wording", "foreign"), [
    ("sglang", "retract", "--gpu-memory-utilization"), ("llama.cpp", "ggml-kv", "--gpu-memory-utilization"),
    ("tensorflow", "bfc", "per_device_train_batch_size"), ("tensorrt", "requested", "per_device_train_batch_size"),
    ("jax", "trying", "num_workers"), ("jax", "hbm", "XLA_PYTHON_CLIENT_MEM_FRACTION"),
    ("vllm", "profiling-freed", "num_workers"), ("ollama", "system-memory", "num_workers"),
    ("torch-mps", "mps-buffer-size", "WATERMARK"),
])
def test_no_fix_is_another_programs(family: str, wording: str, foreign: str) -> None:
    found = fixes(family, "", wording=wording, **sizes(tried=2))
    assert found and not any(foreign in fix.setting for fix in found.values())


def test_every_cause_has_a_fix() -> None:
    assert set(Cause) == {cause for remedy in REMEDIES for cause in remedy.causes}
