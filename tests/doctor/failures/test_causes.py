"""Causes by mechanism: messages made up with figures worked out by hand, none of them a row of the truth."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.doctor.failures._statements import FRAGMENTED, sizes, stated
from vramcast.doctor.failures.case import Facts, Predicted, case_of
from vramcast.doctor.failures.causes import PRIOR, RULES, Judged, judge
from vramcast.domain.answer import Fit
from vramcast.domain.failure import Cause
from vramcast.units import GIB

BARE_BUFFER = "llama_model_load: error loading model: unable to allocate backend buffer"
CUDNN_HANDLE = "Could not create cudnn handle: CUDNN_STATUS_ALLOC_FAILED"
CONVOLUTION = "Unable to find a valid cuDNN algorithm to run convolution"
CUBLAS = "CUBLAS_STATUS_ALLOC_FAILED"
KILLED = "DataLoader worker (pid 7) is killed by signal: Killed."
PROCESSES = sizes(total=24, free=0.5, process=18, allocated=16, unallocated=1.5)
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
SAYS: dict[str, tuple[Cause, str, dict[str, Any]]] = {
    # cause, its kind ("*": any), statement
    "a healthy run has a few pieces: 0.6 of 22.4 is less than any": (
        T, "*", sizes(tried=0.1, total=24, free=0.01, allocated=22.4, reserved=23)),
    "pieces would not do even joined": (T, "*", sizes(tried=9, total=24, free=0.1, allocated=15, reserved=23)),
    "larger than the card, whatever is in pieces": (
        T, "one_tensor", sizes(tried=30, total=24, free=2, allocated=10, reserved=20)),
    "more live than the card has is lent by Windows": (
        T, "shared_memory_spill", sizes(tried=1, total=8, free=0, allocated=11, reserved=12)),
    "22 GiB outside, of which a context takes 2 at most": (
        X, "*", sizes(tried=0.02, total=24, free=0.01, allocated=1.9, reserved=2)),
    "it fits without the processes listed: 5.5 elsewhere, 0.5 free": (X, "*", {"tried_bytes": 2 * GIB} | PROCESSES),
    "a fraction refuses while the card is free": (
        M, "allowed", sizes(tried=1, total=80, free=60, allocated=19.5, reserved=19.9, allowed=20)),
    "blocks kept by graphs": (
        P, "*", sizes(tried=1, total=24, free=0.1, allocated=22.8, unallocated=0.2, private_pools=6)),
    "another allocator in the process": (
        C, "*", sizes(tried=1, total=24, free=0.5, process=23, allocated=8, unallocated=0.2)),
    "a size that overflowed, in words": (
        B, "*", {"text": "CUDA out of memory. Tried to allocate more than 1EB memory."}),
    "a size that overflowed": (B, "overflow", {"tried_bytes": 1 << 52, "total_bytes": 80 * GIB}),
    "a library without figures lacks room": (C, "library_handle", {"family": "cublas", "text": CUBLAS}),
    "a library beside free memory": (B, "not_memory", {"family": "cublas", "text": CUBLAS, "free_bytes": 20 * GIB}),
    "a worker is killed": (H, "loader", {"family": "python", "text": KILLED}),
    "exit code 137": (H, "killed", {"family": "unheard-of", "text": "process exited with code 137"}),
    "torch on the CPU": (
        H, "", {"family": "python", "text": "DefaultCPUAllocator: can't allocate memory: tried to allocate 9 bytes"}),
    "an array of NumPy": (
        H, "", {"family": "unheard-of", "text": "Unable to allocate 30.2 GiB for an array with shape (9,)"}),
    "pinned memory": (H, "pinned", {"family": "python", "text": f"{DRIVER} at cudaHostAlloc"}),
    "digits and parts of words are no details": (
        H, "", {"family": "torch-cpu", "text": "you tried to allocate 137438953472 bytes"}),
    "a process that the kernel killed": (
        H, "killed", {"family": "linux", "text": "Killed process 7 (python) shmem-rss:65536kB"}),
    "main memory of Ollama": (H, "", {"family": "ollama", "wording": "system-memory"}),
    "pinned memory of TensorFlow": (H, "", {"family": "tensorflow", "wording": "host-pinned"}),
    "the name of an exception is no main memory": (
        T, "*", {"text": "torch.cuda.OutOfMemoryError: CUDA out of memory."}),
    "a cache smaller than one sequence": (
        T, "kv_cache", {"family": "vllm", "text": "KV cache", "max_model_len": 32768, "kv_tokens": 20000}),
    "a cache kept small by a low fraction": (
        M, "*", {"family": "vllm", "text": "KV cache", "max_model_len": 32768, "kv_tokens": 2000,
                 "memory_fraction": 0.4}),
    "a server begins on a card that is taken": (
        X, "*", {"family": "vllm", "text": "Free memory on device"} | sizes(total=80, free=30, desired=72)),
    "a server's profiling saw memory come back": (X, "", {"family": "vllm", "wording": "profiling-freed"}),
    "a server's warm-up": (M, "", {"family": "vllm", "wording": "sampler-warmup"}),
    "a sequence gave way": (T, "kv_cache", {"family": "vllm", "wording": "preempted"}),
    "requests were retracted": (T, "kv_cache", {"family": "sglang", "wording": "retract"}),
    "no batch was small enough": (T, "", {"family": "accelerate", "wording": "batch-size"}),
    "ggml names the device of a CUDA failure, so without it it is main memory": (
        H, "", {"family": "llama.cpp", "text": BARE_BUFFER}),
    "ggml names a device": (
        T, "layers", {"family": "llama.cpp", "tried_bytes": GIB,
                      "text": f"allocating 900 MiB on device 0: cudaMalloc failed: {BARE_BUFFER}"}),
    "12 of 24 GiB: 11.98 reserved + 0.04 would pass the half, with 11 free": (M, "*", HALF),
    "a kernel that asks for more than a block has": (
        B, "other_error", {"family": "triton", "text": "out of resource: shared memory", "needed_bytes": 9,
                           "limit_bytes": 8}),
    "a small card has a small context: 2.33 outside, of which it takes 1.2": (
        X, "*", sizes(tried=0.33, total=4, free=0.02, allocated=1.6, reserved=1.65)),
    "a tiny card's context: 0.52 outside": (
        T, "*", sizes(tried=0.03, total=1, free=0.02, allocated=0.44, reserved=0.46)),
    "TensorFlow takes the card before its libraries": (M, "*", {"family": "cudnn", "text": CUDNN_HANDLE}),
    "cuDNN lacks room": (C, "*", {"family": "cudnn", "text": "cuDNN error: CUDNN_STATUS_ALLOC_FAILED"}),
    "a convolution has no room for any algorithm": (T, "*", {"family": "cudnn", "text": CONVOLUTION}),
    "a convolution beside free memory": (B, "*", {"family": "cudnn", "text": CONVOLUTION, "free_bytes": 20 * GIB}),
    "a process without a context meets another": (
        X, "*", {"family": "cuda", "text": "CUDA_ERROR_OUT_OF_MEMORY", "facts": during("context")}),
    "graphs of a server that the driver refuses": (
        M, "*", {"text": DRIVER, "facts": during("capture", words=("vllm",))}),
    "a server named beside a backward pass does not serve": (
        T, "*", {"facts": during("backward", words=("vllm",))} | FULL),
    "an engine that fails beside its pool": (M, "*", {"facts": during(words=("sglang",))} | FULL),
}


@pytest.mark.parametrize("name", SAYS)
def test_what_a_message_says_names_its_cause(name: str) -> None:
    cause, detail, statement = SAYS[name]
    found = judged(**statement)
    assert found.cause is cause
    assert detail in ("*", found.detail)


@pytest.mark.parametrize(("statement", "cause"), [
    ({"tried_bytes": 9 * GIB} | PROCESSES, X),  # it would not fit without the others either
    (HALF | sizes(free=10.5, process=13.5, allocated=12.3), M),  # 12.38: 51.6 % is no round share
    (sizes(tried=0.02, total=24, free=9, allocated=8, reserved=12), T),
])
def test_what_does_not_follow_is_not_said(statement: dict[str, Any], cause: Cause) -> None:
    assert judged(**statement).cause is not cause


@pytest.mark.parametrize(("statement", "cause", "low", "high"), [
    (FRAGMENTED, F, 0.8, 1),
    (sizes(tried=30, total=24, free=2, allocated=10, reserved=20), T, 0.9, 1),
    ({"family": "jax", "wording": "hbm"} | sizes(used=30, limit=8), T, 0.9, 1),
    ({"family": "jax", "wording": "hbm"} | sizes(needed=20.97, limit=15.48), T, 0.9, 1),
    ({"family": "tensorflow", "wording": "bfc-ran-out"} | sizes(tried=2.38, limit=13.68, allocated=13.21), T, 0.9, 1),
    ({"family": "vllm", "wording": "preempted"}, T, 0.7, 1),
    (sizes(tried=2, total=24, free=9, allocated=8, reserved=12), T, 0, 0.6),  # large, and not served by free memory
    ({"family": "cuda", "text": DRIVER}, None, 0, 0.5),
    (sizes(tried=0.1, total=24, free=9, allocated=13, reserved=14), None, 0, 0.6),
    (sizes(tried=0.1, total=24, free=9, allocated=0.01, reserved=0.02), None, 0, 0.7),
    ({"family": "memory-summary", "num_ooms": 1} | sizes(allocated=10.34, reserved=14.21), F, 0, 0.8),
])
def test_it_is_as_sure_as_the_figures_are(
    statement: dict[str, Any], cause: Cause | None, low: float, high: float
) -> None:
    found = judged(**statement)
    assert low < found.confidence < high
    assert found.cause is cause or cause is None
    assert sum(found.likely.values()) == pytest.approx(1)


@pytest.mark.parametrize(("statement", "key", "value"), [
    (FRAGMENTED, "why.pieces_enough", "11.58 GiB"),  # together: 10.34 + 1.24, less than the 14.21 reserved
    ({"family": "jax", "wording": "hbm"} | sizes(needed=20.97, limit=15.48), "why.over_limit", "5.49 GiB"),
    ({"family": "tensorflow"} | sizes(tried=2.38, limit=13.68, allocated=13.21), "why.pool_full", "13.68 GiB"),
    # missing: 31.25 - 14.41 - 2.13
    (sizes(tried=31.25, total=79.11, free=14.41, allocated=61.20, unallocated=2.13), "why.short", "14.71 GiB"),
    ({"family": "cuda", "text": DRIVER}, "why.no_figures", ""),
    (sizes(tried=0.1, total=24, free=9, allocated=13, reserved=14), "why.second", ""),
])
def test_the_reason_is_said_with_its_figures(statement: dict[str, Any], key: str, value: str) -> None:
    (remark,) = (remark for remark in judged(**statement).why if remark.key == key)
    assert not value or value in remark.values.values()


def test_live_memory_that_grows_from_failure_to_failure_is_a_leak() -> None:
    case = case_of(stated(**sizes(tried=0.1, total=24, free=0.01, allocated=16, reserved=17)), Facts(), 5 * GIB)
    assert judge(case).cause is Cause.LEAK


def test_a_job_that_is_predicted_to_fit_makes_too_big_less_likely() -> None:
    case = case_of(stated(**sizes(tried=0.1, total=24, free=0.01, allocated=20, reserved=23)))
    fits = Predicted(Fit.FITS, 10 * GIB, 9 * GIB, 10 * GIB, 24 * GIB)
    jobs = (None, *(fits._replace(verdict=fit) for fit in Fit))
    likely = [judge(case._replace(job=job)).likely[Cause.TOO_BIG] for job in jobs]
    assert likely[1] == likely[2] < likely[0] == likely[3] < likely[4]  # what may run out says nothing either way


def test_every_cause_has_a_prior_and_evidence() -> None:
    assert set(PRIOR) == set(Cause)
    assert {rule.cause for rule in RULES} == set(Cause)
