"""Fixes: settings ready to paste, and savings that the message's own arithmetic gives."""

from __future__ import annotations

import pytest

from tests.doctor.failures._statements import FRAGMENTED, sizes, stated
from vramcast.doctor.failures.case import NO_FACTS, Facts, case_of
from vramcast.doctor.failures.causes import judge
from vramcast.doctor.failures.fixes import REMEDIES, fixes_of
from vramcast.domain.failure import Cause, Fix
from vramcast.units import GIB

NEW = "Of the allocated memory 1 is allocated by PyTorch, try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


def fixes(
    family: str = "torch-cuda", text: str = NEW, facts: Facts = NO_FACTS, **numbers: int | float | str
) -> dict[str, Fix]:
    case = case_of(stated(family, text, **numbers), facts)
    return {fix.action.key: fix for fix in fixes_of(case, judge(case))}


def test_joined_pieces_free_at_most_what_is_unallocated() -> None:
    fix = fixes(**FRAGMENTED)["fix.expandable"]
    assert fix.setting == "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    assert fix.saves_bytes == FRAGMENTED["reserved_bytes"] - FRAGMENTED["allocated_bytes"]
    assert fix.enough is None  # whether pieces join wholly, only a replay knows


def test_the_split_limit_is_a_power_of_two_at_most_a_quarter_of_the_request() -> None:
    assert fixes(**FRAGMENTED)["fix.max_split"].setting.endswith("max_split_size_mb:256")  # 1269 / 4 = 317


@pytest.mark.parametrize(("family", "text", "version", "name"), [
    ("torch-cuda", "", (2, 9), "PYTORCH_CUDA_ALLOC_CONF"),
    ("torch-cuda", "", (2, 10), "PYTORCH_ALLOC_CONF"),
    ("torch-hip", "", (), "PYTORCH_HIP_ALLOC_CONF"),
    ("torch-hip", "try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", (), "PYTORCH_CUDA_ALLOC_CONF"),
    ("torch-npu", "", (), "PYTORCH_NPU_ALLOC_CONF"),
])
def test_the_variable_is_the_one_that_this_build_reads(
    family: str, text: str, version: tuple[int, ...], name: str
) -> None:
    found = fixes(family, text, Facts(torch=version), **FRAGMENTED)
    assert found["fix.expandable"].setting == f"{name}=expandable_segments:True"


def test_a_version_before_expandable_segments_is_told_to_update() -> None:
    found = fixes(facts=Facts(torch=(1, 13)), **FRAGMENTED)
    assert "fix.newer_torch" in found and "fix.expandable" not in found


def test_ending_the_other_processes_is_enough_when_the_request_then_fits() -> None:
    numbers = sizes(tried=2, total=24, free=0.5, process=16, allocated=14, unallocated=1.5)
    fix = fixes(**numbers)["fix.stop_others"]
    assert (fix.saves_bytes, fix.enough) == (int(7.5 * GIB), True)  # 24 - 0.5 - 16
    assert fix.setting.startswith("nvidia-smi")


def test_the_longest_context_comes_from_the_tokens_of_the_cache_in_whole_blocks() -> None:
    fix = fixes("vllm", "KV cache", max_model_len=32768, kv_tokens=20007)["fix.shorter_context"]
    assert (fix.setting, fix.enough) == ("--max-model-len 20000", True)


def test_the_longest_context_comes_from_the_bytes_of_the_cache() -> None:
    # 131072 tokens need 16 GiB, 6 are there: 49152 tokens
    found = fixes("vllm", "KV cache", max_model_len=131072, kv_needed_bytes=16 * GIB, kv_available_bytes=6 * GIB)
    assert found["fix.shorter_context"].setting == "--max-model-len 49152"
    assert found["fix.shorter_context"].saves_bytes == 10 * GIB
    assert (found["fix.kv_8bit"].saves_bytes, found["fix.kv_8bit"].enough) == (8 * GIB, False)  # 8 needed, 6 there


def test_the_engines_own_estimate_of_a_length_is_taken() -> None:
    numbers = {"max_model_len": 131072, "kv_needed_bytes": 16 * GIB, "kv_available_bytes": GIB}
    numbers["estimated_max_len"] = 5632
    assert fixes("vllm", "KV cache", **numbers)["fix.shorter_context"].setting == "--max-model-len 5632"


def test_a_higher_share_is_worked_out_and_left_out_where_the_card_is_too_small() -> None:
    numbers = {"max_model_len": 8192, "kv_needed_bytes": 2 * GIB, "kv_available_bytes": GIB, "memory_fraction": 0.9}
    enough = fixes("vllm", "KV cache", total_bytes=24 * GIB, **numbers)["fix.higher_fraction"]
    assert (enough.setting, enough.enough) == ("--gpu-memory-utilization 0.95", True)  # 0.9 + 1/24 = 0.9417
    assert "fix.higher_fraction" not in fixes("vllm", "KV cache", total_bytes=8 * GIB, **numbers)  # 1.025


def test_a_lower_share_leaves_what_was_missing() -> None:
    # 0.2 GiB asked, 0.05 free of 20 at 0.98: 0.98 - 0.15 / 20 = 0.9725
    numbers = sizes(tried=0.2, total=20, free=0.05)
    fix = fixes("torch-cuda", "gpu_memory_utilization vllm", memory_fraction=0.98, **numbers)["fix.lower_fraction"]
    assert (fix.setting, fix.enough) == ("--gpu-memory-utilization 0.97", True)
    assert fix.saves_bytes == int((0.98 - 0.97) * 20 * GIB)


def test_a_limit_is_raised_to_what_is_held_and_asked() -> None:
    numbers = sizes(tried=1, total=80, free=60, allocated=19.5, reserved=19.9, allowed=20)
    fix = fixes(device=3, **numbers)["fix.raise_fraction"]
    assert fix.setting == "torch.cuda.set_per_process_memory_fraction(0.27, 3)"  # 20.9 / 80 = 0.26125
    assert (fix.saves_bytes, fix.enough) == (int(0.27 * 80 * GIB) - 20 * GIB, True)


def test_training_and_serving_are_told_apart() -> None:
    numbers = sizes(tried=0.1, total=24, free=0.01, allocated=22.4, reserved=22.5)
    assert "fix.checkpointing" in fixes(facts=Facts(phases=frozenset({"backward"})), **numbers)
    assert "fix.checkpointing" not in fixes(facts=Facts(phases=frozenset({"generate"})), **numbers)
    assert "fix.inference_mode" not in fixes(facts=Facts(phases=frozenset({"backward"})), **numbers)


@pytest.mark.parametrize("cause", list(Cause))
def test_every_cause_has_a_fix(cause: Cause) -> None:
    assert any(cause in remedy.causes for remedy in REMEDIES)


def test_a_fraction_that_the_message_leaves_out_is_raised_too() -> None:
    # 11.98 reserved + 40 MiB of 24: 50.1 %
    numbers = sizes(total=24, free=11, process=13, allocated=11.9, unallocated=0.08)
    fix = fixes(tried_bytes=40 << 20, device=0, **numbers)["fix.raise_fraction"]
    assert fix.setting == "torch.cuda.set_per_process_memory_fraction(0.51, 0)" and fix.enough


def test_what_takes_a_card_before_libraries_or_graphs_is_told_to_leave_room() -> None:
    assert "fix.tf_growth" in fixes("cudnn", "Could not create cudnn handle: CUDNN_STATUS_ALLOC_FAILED")
    served = {"phases": frozenset({"capture"})}
    vllm = fixes(text="CUDA error: out of memory", facts=Facts(words=frozenset({"vllm"}), **served))
    assert vllm["fix.lower_fraction"].setting == "--gpu-memory-utilization 0.85"
    sglang = fixes(text="CUDA error: out of memory", facts=Facts(words=frozenset({"sglang"}), **served))
    assert sglang["fix.lower_fraction"].setting.startswith("--mem-fraction-static") and "fix.fewer_requests" in sglang


def test_ollama_is_told_its_own_settings() -> None:
    text = "cudaMalloc failed: out of memory; error loading model"
    assert fixes("llama.cpp", text)["fix.fewer_layers"].setting == "-ngl N"
    told = fixes("ollama", text)
    assert told["fix.fewer_layers"].setting == "PARAMETER num_gpu N"
    assert told["fix.shorter_llama"].setting == "OLLAMA_CONTEXT_LENGTH=8192"
    assert not any(fix.setting.startswith("-") for fix in told.values())
