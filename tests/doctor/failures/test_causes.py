"""Causes of failures, what figures mean, and the fixes that are told."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.doctor.failures._statements import FRAGMENTED, sizes, stated
from vramcast import diagnose
from vramcast.api import job_of, serve_job_of
from vramcast.doctor.failures.case import (
    HOST,
    LIBRARIES,
    LLAMA,
    NOT_MEMORY,
    SERVERS,
    TABLES,
    TORCH,
    Facts,
    case_of,
    figures_of,
)
from vramcast.doctor.failures.causes import ORDER, PRIOR, RULES, Judged, judge, meaning_of
from vramcast.doctor.failures.fixes import REMEDIES, fixes_of
from vramcast.doctor.failures.job import CHECKS, checks_of, computed
from vramcast.domain.failure import Cause, Fix
from vramcast.estimate.serving import answer as serving_answer
from vramcast.report.failure import render
from vramcast.report.messages import LANGUAGES, Words, rare_messages
from vramcast.sources.failures import FAMILIES
from vramcast.sources.failures.wording import NUMBERS
from vramcast.units import GIB, MIB

# Causes by mechanism: messages made up with figures worked out by hand, none of them a row of the truth.

CUDNN_HANDLE = "Could not create cudnn handle: CUDNN_STATUS_ALLOC_FAILED"
HALF = {"tried_bytes": 40 << 20} | sizes(total=24, free=11, process=13, allocated=11.9, unallocated=0.08)
FULL = sizes(tried=1.5, total=79.11, free=0.88, allocated=75.12, unallocated=1.03)
DRIVER = "CUDA error: out of memory"


def judged(family: str = "torch-cuda", text: str = "", facts: Facts | None = None, wording: str = "test",
           **numbers: Any) -> Judged:
    return judge(case_of(replace(stated(family, text, **numbers), wording=wording), facts or Facts()))


def during(*phases: str, words: tuple[str, ...] = ()) -> Facts:
    return Facts(phases=frozenset(phases), words=frozenset(words))


T, F, X, M, P, C, H, B = (
    Cause.TOO_BIG, Cause.FRAGMENTED, Cause.OTHER_PROCESS, Cause.MEMORY_FRACTION, Cause.PRIVATE_POOLS,
    Cause.CONTEXT_AND_LIBRARIES, Cause.HOST_MEMORY, Cause.BUG,
)


@pytest.mark.parametrize(("statement", "key", "value"), [
    (FRAGMENTED, "why.pieces_enough", "11.58 GiB"),  # together: 10.34 + 1.24, less than the 14.21 reserved
    ({"family": "jax", "wording": "hbm"} | sizes(needed=20.97, limit=15.48), "why.over_limit", "5.49 GiB"),
    ({"family": "tensorflow"} | sizes(tried=2.38, limit=13.68, allocated=13.21), "why.pool_full", "13.68 GiB"),
    # missing: 31.25 - 14.41 - 2.13
    (sizes(tried=31.25, total=79.11, free=14.41, allocated=61.20, unallocated=2.13), "why.short", "14.71 GiB"),
    # in a container, and cut off before PyTorch's own figures: the one process listed is this one
    (sizes(tried=4.93, total=79.14, free=3.79, other_processes=75.33), "why.process_fills", "75.33 GiB"),
    ({"family": "cuda", "text": DRIVER}, "why.no_figures", ""),
    (sizes(tried=0.1, total=24, free=9, allocated=13, reserved=14), "why.second", ""),
])
def test_the_reason_is_said_with_its_figures(statement: dict[str, Any], key: str, value: str) -> None:
    (remark,) = (remark for remark in judged(**statement).why if remark.key == key)
    assert not value or value in remark.values.values()


def test_every_cause_has_a_prior_and_evidence() -> None:
    assert set(PRIOR) == set(Cause)
    assert {rule.cause for rule in RULES} == set(Cause)


@pytest.mark.parametrize(("allocated", "fraction", "cause"), [
    (21.32, None, T), (20.5, None, M), (21.32, 0.95, M), (21.32, 0.8, T),
])
def test_what_passes_an_engines_share_by_far_is_the_job_itself(
    allocated: float, fraction: float | None, cause: Cause
) -> None:
    """Weights in 32 bits fill 22 GB before there is a pool: a lower share would not help."""
    figures = sizes(tried=0.51, total=21.67, free=0.004, allocated=allocated, unallocated=0.001)
    assert judged(facts=Facts(words=frozenset({"vllm"}), fraction=fraction), **figures).cause is cause


# Fixes: settings ready to paste, and savings that the message's own arithmetic gives.

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


# Stability and compatibility checks: what gives reason for them, and their figures for a job.

def values(key: str, **options: object) -> dict[str, str]:
    job = job_of({name.replace("_", "-"): value for name, value in options.items()})
    return {check.key: check.values for check in checks_of(Facts(), job)}[key]


def test_a_flat_unit_gathers_the_model_and_a_layer_only_itself() -> None:
    found = values("check.wrapping.job", model="llama-3.1-8b", gpus="8xh100", engine="torchtitan", shards="everything")
    # 8,030,261,248 parameters of 2 bytes; a layer has 218,112,000
    assert found == {"whole": "14.96 GiB", "layer": "416.02 MiB"}


def test_every_check_has_its_words_and_those_of_its_figures() -> None:
    for check in CHECKS:
        assert check.key in rare_messages()
    computed = ("check.loss_scale", "check.buckets", "check.wrapping", "check.offload")
    assert {f"{key}.job" for key in computed} <= set(rare_messages())


# A failure beside the job that failed.

def test_a_cache_too_small_for_the_load_is_told_in_sequences_and_so_is_every_change() -> None:
    job = serve_job_of({"model": "qwen3-32b", "gpus": "a100-sxm4-80gb", "context": 8192, "concurrency": 32})
    found = computed(job)
    assert found.cache is not None and float(found.cache.values["sequences"]) < 32 == int(found.cache.values["asked"])
    for fix in found.fixes:
        assert fix.saves_bytes is None  # the pool takes what is saved elsewhere
        assert fix.action.key == "fix.change_holds"
    smaller = next(fix for fix in found.fixes if fix.setting == "--weights fp8")
    assert float(smaller.action.values["sequences"]) > float(found.cache.values["sequences"]) and not smaller.enough


def test_what_does_not_fit_still_saves_what_two_runs_of_serve_differ_by() -> None:
    asked = {"model": "qwen2.5-7b", "gpus": "t4", "context": 32768}
    job = serve_job_of(asked)
    changes = {
        "--no-graphs": {"graphs": False},
        "--batched-tokens 2048 --max-sequences 16": {"batched-tokens": 2048, "max-sequences": 16},
    }
    saved = {fix.setting: fix.saves_bytes for fix in computed(job).fixes if not fix.enough}
    needed = serving_answer(job, with_changes=False).fullest.needed_bytes
    for setting, change in changes.items():
        changed = serving_answer(serve_job_of(asked | change), with_changes=False).fullest.needed_bytes
        assert saved[setting] == needed - changed


# Each number explained.

def keys(**numbers: int | float | str) -> dict[str, str]:
    return {name: remark.key for name, remark in meaning_of(case_of(stated(**numbers))).items()}


def test_two_mebibytes_mean_a_small_tensor_and_twenty_a_larger_one() -> None:
    card = sizes(total=24, free=0, allocated=23, reserved=23.5)
    assert keys(tried_bytes=2 * MIB, **card)["tried_bytes"] == "means.tried.small"
    assert keys(tried_bytes=20 * MIB, **card)["tried_bytes"] == "means.tried.large"
    assert keys(tried_bytes=64 * MIB, **card)["tried_bytes"] == "means.tried_bytes"


def test_every_number_of_the_worked_example_is_explained_and_two_follow() -> None:
    told = meaning_of(case_of(stated(**FRAGMENTED)))
    assert told["unallocated_bytes"].values["value"] == "3.87 GiB"
    assert told["outside_bytes"].values["value"] == "1.12 GiB"
    assert set(FRAGMENTED) <= set(told)


def test_free_memory_that_would_have_been_enough_is_explained_as_such() -> None:
    assert keys(**sizes(tried=0.1, total=24, free=9, allocated=13, reserved=14))["free_bytes"] == "means.free.enough"


def test_families_named_by_rules_are_those_of_the_readers() -> None:
    assert {name for name, family in FAMILIES.items() if family.about == "host"} <= {*HOST, *LIBRARIES, *TORCH}
    assert {name for name, family in FAMILIES.items() if family.about == "other"} == set(NOT_MEMORY)
    assert {name for name, family in FAMILIES.items() if family.about == "support"} == set(TABLES)
    named = {*TORCH, *SERVERS, *LLAMA, *LIBRARIES, *HOST, *NOT_MEMORY} - {"torch-snapshot", "host", "vllm-tpu"}
    assert named <= set(FAMILIES)


def test_every_number_that_readers_give_has_its_sentence() -> None:
    told = {name for name, figure in NUMBERS.items() if figure.unit not in ("text",)} - {
        "pid", "signal", "other_processes",
    }
    assert told <= set(ORDER)
    assert {f"means.{name}" for name in ORDER} | {f"short.{name}" for name in ORDER} <= set(rare_messages())


# What the figures of a message say together.

@pytest.mark.parametrize(("numbers", "expected"), [
    # between live tensors: 14.21 - 10.34; neither free nor reserved: 15.78 - 0.4458 - 14.21
    (FRAGMENTED, {"unallocated": 3.87, "outside": 1.12, "process": None, "others": None, "short": 0.79}),
    # the process tells its own libraries, 20.81 - 12.09 - 4.84, from other processes, 23.65 - 1.66 - 20.81
    (sizes(total=23.65, free=1.66, process=20.81, allocated=12.09, unallocated=4.84), {"beside": 3.88, "others": 1.18}),
    # inside a container the process listed is oneself: what it leaves of the card, 0.01, holds nothing
    (sizes(total=79.33, free=26.16, other_processes=53.16, allocated=11.97, unallocated=40.69), {"others": None}),
    (sizes(total=79.11, free=14.41, other_processes=64.69, allocated=61.20, unallocated=2.13),
     {"others": None, "process": 64.69, "beside": 1.36, "own": True}),
    # cut off before what PyTorch allocated: 0.02 is left beside the one listed, less than a context takes
    (sizes(total=79.14, free=3.79, other_processes=75.33), {"others": None, "process": 75.33, "own": True}),
    (sizes(total=79.14, free=3.79, other_processes=74.83), {"others": 74.83, "process": None, "own": False}),
    (sizes(total=24, free=1, other_processes=15, allocated=6, unallocated=1), {"others": 15, "own": False}),
    (sizes(total=24, used=20), {"free": 4}),
    (sizes(total=79.15, free=38.09, process=41.06), {"others": 0}),  # each printed with two decimals
    ({"shape": "[8192,50257]", "dtype": "half"}, {"tried": round(8192 * 50257 * 2 / GIB, 2)}),
    ({"shape": "[64,512,112,112]", "dtype": "float"}, {"tried": round(64 * 512 * 112 * 112 * 4 / GIB, 2)}),
    ({"shape": "[8192,50257]", "dtype": "variant"}, {"tried": None}),
])
def test_what_follows_from_the_figures(numbers: dict[str, Any], expected: dict[str, Any]) -> None:
    """In GiB."""
    found = {name: getattr(figures_of(numbers), name) for name in expected}
    assert {
        name: value if value is None or isinstance(value, bool) else round(value / GIB, 2)
        for name, value in found.items()
    } == expected


NAMES = [
    f"{name}_bytes" for name in (
        "tried", "total", "free", "allocated", "reserved", "unallocated", "process", "other_processes", "allowed",
        "used",
    )
]


@given(st.dictionaries(st.sampled_from(NAMES), st.integers(0, 1 << 40)))
def test_no_holder_has_more_than_the_card(numbers: dict[str, int]) -> None:
    found = figures_of(numbers)
    if found.total is not None and found.free is not None:
        assert all(part is None or part <= found.total for part in (found.outside,))
        if "other_processes_bytes" not in numbers:
            assert found.others is None or found.others <= found.total


# Failures of post-training: which stage of a step, in which process, and what to change in the framework's words.

OOM = ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 13.91 GiB. GPU 0 has a total capacity of 79.32 "
        "GiB of which 8.85 GiB is free. Including non-PyTorch memory, this process has 70.40 GiB memory in use. Of the "
        "allocated memory 60.49 GiB is allocated by PyTorch, and 6.77 GiB is reserved by PyTorch but unallocated.")
OTHERS = ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.32 "
          "GiB of which 1.85 GiB is free. Process 77 has 45.00 GiB memory in use. Process 78 has 32.40 GiB memory in "
          "use. Of the allocated memory 30.49 GiB is allocated by PyTorch, and 0.77 GiB is reserved by PyTorch but "
          "unallocated.")
WORKERS = '  File "/root/verl/verl/workers/{}.py", line 700, in {}'


@pytest.mark.parametrize("frames, message, detail, setting", [
    (WORKERS.format("fsdp_workers", "compute_log_prob"), OOM, "rl_log_prob", "rollout.log_prob_micro_batch_size_per_"),
    (WORKERS.format("fsdp_workers", "compute_ref_log_prob") + "\n" + WORKERS.format("dp_actor", "compute_log_prob"),
     OOM, "rl_reference", "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=1"),
    (WORKERS.format("actor/dp_actor", "update_policy"), OOM, "rl_update", "actor.ppo_micro_batch_size_per_gpu=1"),
    (WORKERS.format("rollout", "generate_sequences") + "\n    self.inference_engine.wake_up()", OOM, "rl_wake",
     "actor_rollout_ref.rollout.gpu_memory_utilization=0.4"),
    (WORKERS.format("engine_workers", "update_weights"), OOM, "rl_handover", "actor_rollout_ref.actor.strategy=fsdp2"),
    ('  File "/usr/openrlhf/trainer/ray/ppo_actor.py", line 1, in ppo_train', OOM, "rl_update",
     "--train.micro_batch_size 1"),
    ('  File "/x/trl/trainer/grpo_trainer.py", line 1, in training_step\n  File "/x/trl/trainer/grpo_trainer.py", '
     "line 2, in _get_per_token_logps_and_entropies", OOM, "rl_log_prob", "per_device_train_batch_size=1"),
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
    found, = diagnose(f'  File "train.py", line 3, in training_step\n    loss.backward()\n{OOM}\n').findings
    assert not any("vramcast rl" in fix.setting for fix in found.fixes)
