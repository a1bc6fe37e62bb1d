"""Causes by mechanism: messages made up with figures worked out by hand, none of them a row of the truth."""

from __future__ import annotations

import pytest

from tests.doctor.failures._statements import FRAGMENTED, sizes, stated
from vramcast.doctor.failures.case import NO_FACTS, Facts, Predicted, case_of
from vramcast.doctor.failures.causes import PRIOR, RULES, judge
from vramcast.domain.answer import Fit
from vramcast.domain.failure import Cause
from vramcast.units import GIB


def cause_of(
    family: str = "torch-cuda", text: str = "", facts: Facts = NO_FACTS, **numbers: int | float | str
) -> Cause:
    return judge(case_of(stated(family, text, **numbers), facts)).cause


def test_enough_in_pieces_and_nothing_free_is_fragmentation() -> None:
    found = judge(case_of(stated(**FRAGMENTED)))
    assert found.cause is Cause.FRAGMENTED and found.confidence > 0.8
    assert found.why[0].values["together"] == "11.58 GiB"  # 10.34 + 1.24, less than the 14.21 reserved


def test_the_few_pieces_of_a_healthy_run_are_not_fragmentation() -> None:
    # 22.4 of 24 live, 0.6 in pieces: the request of 0.1 would go into them, but 2.6 % is less than any run has
    assert cause_of(**sizes(tried=0.1, total=24, free=0.01, allocated=22.4, reserved=23)) is Cause.TOO_BIG


def test_pieces_that_would_not_do_even_joined_are_not_the_cause() -> None:
    assert cause_of(**sizes(tried=9, total=24, free=0.1, allocated=15, reserved=23)) is Cause.TOO_BIG


def test_a_request_larger_than_the_card_is_too_big_whatever_is_in_pieces() -> None:
    found = judge(case_of(stated(**sizes(tried=30, total=24, free=2, allocated=10, reserved=20))))
    assert (found.cause, found.detail) == (Cause.TOO_BIG, "one_tensor") and found.confidence > 0.9


def test_more_live_than_the_card_has_is_memory_lent_by_windows() -> None:
    found = judge(case_of(stated(**sizes(tried=1, total=8, free=0, allocated=11, reserved=12))))
    assert (found.cause, found.detail) == (Cause.TOO_BIG, "shared_memory_spill")


def test_memory_that_nobody_here_holds_is_another_process() -> None:
    # 24 - 0.01 - 2 = 22 GiB outside, of which a context takes 2 at most
    assert cause_of(**sizes(tried=0.02, total=24, free=0.01, allocated=1.9, reserved=2)) is Cause.OTHER_PROCESS


def test_listed_processes_are_other_processes_only_if_the_request_fits_without_them() -> None:
    numbers = sizes(total=24, free=0.5, process=18, allocated=16, unallocated=1.5)
    assert cause_of(tried_bytes=2 * GIB, **numbers) is Cause.OTHER_PROCESS  # 5.5 elsewhere + 0.5 free
    assert cause_of(tried_bytes=9 * GIB, **numbers) is not Cause.OTHER_PROCESS


def test_a_fraction_refuses_while_the_card_is_free() -> None:
    numbers = sizes(tried=1, total=80, free=60, allocated=19.5, reserved=19.9, allowed=20)
    assert cause_of(**numbers) is Cause.MEMORY_FRACTION


def test_blocks_kept_by_graphs_are_private_pools() -> None:
    numbers = sizes(tried=1, total=24, free=0.1, allocated=22.8, unallocated=0.2, private_pools=6)
    assert cause_of(**numbers) is Cause.PRIVATE_POOLS


def test_another_allocator_in_the_process_is_context_and_libraries() -> None:
    numbers = sizes(tried=1, total=24, free=0.5, process=23, allocated=8, unallocated=0.2)
    assert cause_of(**numbers) is Cause.CONTEXT_AND_LIBRARIES


def test_free_memory_that_is_refused_is_not_called_too_big() -> None:
    running = judge(case_of(stated(**sizes(tried=0.1, total=24, free=9, allocated=13, reserved=14))))
    assert running.cause is not Cause.TOO_BIG and running.confidence < 0.6
    starting = judge(case_of(stated(**sizes(tried=0.1, total=24, free=9, allocated=0.01, reserved=0.02))))
    assert starting.cause in (Cause.UNKNOWN, Cause.OTHER_PROCESS) and starting.confidence < 0.7


def test_a_size_that_overflowed_is_a_bug() -> None:
    assert cause_of(text="CUDA out of memory. Tried to allocate more than 1EB memory.") is Cause.BUG
    assert cause_of(tried_bytes=1 << 52, total_bytes=80 * GIB) is Cause.BUG


def test_a_library_that_fails_beside_free_memory_is_a_bug_and_without_figures_lacks_room() -> None:
    assert cause_of("cublas", "CUBLAS_STATUS_ALLOC_FAILED") is Cause.CONTEXT_AND_LIBRARIES
    assert cause_of("cublas", "CUBLAS_STATUS_ALLOC_FAILED", free_bytes=20 * GIB) is Cause.BUG


@pytest.mark.parametrize("text", [
    "DataLoader worker (pid 7) is killed by signal: Killed.",
    "process exited with code 137",
    "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes",
    "Unable to allocate 30.2 GiB for an array with shape (9,)",
    "CUDA error: out of memory at cudaHostAlloc",
])
def test_main_memory_is_told_from_the_cards(text: str) -> None:
    assert cause_of("python", text) is Cause.HOST_MEMORY
    assert cause_of("unheard-of", text) is Cause.HOST_MEMORY


def test_the_name_of_an_exception_is_no_main_memory() -> None:
    assert cause_of(text="torch.cuda.OutOfMemoryError: CUDA out of memory.") is Cause.TOO_BIG


def test_a_cache_smaller_than_one_sequence_is_too_big() -> None:
    found = judge(case_of(stated("vllm", "KV cache", max_model_len=32768, kv_tokens=20000)))
    assert (found.cause, found.detail) == (Cause.TOO_BIG, "kv_cache")


def test_a_cache_kept_small_by_a_low_fraction_is_that_limit() -> None:
    numbers = {"max_model_len": 32768, "kv_tokens": 2000, "memory_fraction": 0.4}
    assert cause_of("vllm", "KV cache", **numbers) is Cause.MEMORY_FRACTION


def test_a_card_that_is_taken_when_a_server_begins_is_another_process() -> None:
    numbers = sizes(total=80, free=30, desired=72)
    assert cause_of("vllm", "Free memory on device", **numbers) is Cause.OTHER_PROCESS


def test_a_cuda_failure_of_ggml_names_its_device_so_a_bare_one_is_main_memory() -> None:
    bare = "llama_model_load: error loading model: unable to allocate backend buffer"
    assert cause_of("llama.cpp", bare) is Cause.HOST_MEMORY
    named = f"allocating 900 MiB on device 0: cudaMalloc failed: {bare}"
    assert cause_of("llama.cpp", named, tried_bytes=GIB) is Cause.TOO_BIG


def test_live_memory_that_grows_from_failure_to_failure_is_a_leak() -> None:
    case = case_of(stated(**sizes(tried=0.1, total=24, free=0.01, allocated=16, reserved=17)), Facts(), 5 * GIB)
    assert judge(case).cause is Cause.LEAK


def test_a_job_that_is_predicted_to_fit_makes_too_big_less_likely() -> None:
    case = case_of(stated(**sizes(tried=0.1, total=24, free=0.01, allocated=20, reserved=23)))
    fits = Predicted(Fit.FITS, 10 * GIB, 9 * GIB, 10 * GIB, 24 * GIB)
    jobs = (None, *(fits._replace(verdict=fit) for fit in Fit))
    likely = [judge(case._replace(job=job)).likely[Cause.TOO_BIG] for job in jobs]
    assert likely[1] == likely[2] < likely[0] == likely[3] < likely[4]  # what may run out says nothing either way


def test_a_message_without_figures_is_not_sure() -> None:
    found = judge(case_of(stated("cuda", "CUDA error: out of memory")))
    assert found.confidence < 0.5 and found.why[0].key == "why.no_figures"


def test_what_it_may_be_besides_is_said() -> None:
    found = judge(case_of(stated(**sizes(tried=0.1, total=24, free=9, allocated=13, reserved=14))))
    assert "why.second" in [remark.key for remark in found.why]


def test_a_fraction_that_the_message_leaves_out_is_seen_in_where_it_refuses() -> None:
    # 12 of 24 GiB: 11.98 reserved + 0.04 would pass the half, with 11 free
    numbers = sizes(total=24, free=11, process=13, allocated=11.9, unallocated=0.08)
    assert cause_of(tried_bytes=40 << 20, **numbers) is Cause.MEMORY_FRACTION
    between = sizes(total=24, free=10.5, process=13.5, allocated=12.3, unallocated=0.08)
    assert cause_of(tried_bytes=40 << 20, **between) is not Cause.MEMORY_FRACTION  # 12.38: 51.6 % is no round share


def test_what_a_text_itself_sets_against_a_limit_is_too_big_and_sure() -> None:
    found = judge(case_of(stated("jax", "hbm", used_bytes=30 * GIB, limit_bytes=8 * GIB)))
    assert found.cause is Cause.TOO_BIG and found.confidence > 0.9
    assert cause_of("triton", "out of resource: shared memory", needed_bytes=9, limit_bytes=8) is Cause.BUG


def test_a_small_card_has_a_small_context_so_more_is_another_process() -> None:
    # 4 - 0.02 - 1.65 = 2.33 outside, of which a context takes 1.2 at most
    assert cause_of(**sizes(tried=0.33, total=4, free=0.02, allocated=1.6, reserved=1.65)) is Cause.OTHER_PROCESS


def test_the_context_of_a_tiny_card_is_no_other_process() -> None:
    # 1 - 0.02 - 0.46 = 0.52 outside
    assert cause_of(**sizes(tried=0.03, total=1, free=0.02, allocated=0.44, reserved=0.46)) is Cause.TOO_BIG


def test_a_large_request_that_free_memory_does_not_serve_is_too_big_and_a_small_one_is_not() -> None:
    large = judge(case_of(stated(**sizes(tried=2, total=24, free=9, allocated=8, reserved=12))))
    assert large.cause is Cause.TOO_BIG and large.confidence < 0.6
    assert cause_of(**sizes(tried=0.02, total=24, free=9, allocated=8, reserved=12)) is not Cause.TOO_BIG


def test_tensorflow_takes_the_card_before_its_libraries() -> None:
    text = "Could not create cudnn handle: CUDNN_STATUS_ALLOC_FAILED"
    assert cause_of("cudnn", text) is Cause.MEMORY_FRACTION
    assert cause_of("cudnn", "cuDNN error: CUDNN_STATUS_ALLOC_FAILED") is Cause.CONTEXT_AND_LIBRARIES


def test_a_convolution_without_room_for_any_algorithm_is_too_big() -> None:
    text = "Unable to find a valid cuDNN algorithm to run convolution"
    assert cause_of("cudnn", text) is Cause.TOO_BIG
    assert cause_of("cudnn", text, free_bytes=20 * GIB) is Cause.BUG


def test_a_process_that_has_no_context_yet_meets_another() -> None:
    assert cause_of("cuda", "CUDA_ERROR_OUT_OF_MEMORY", Facts(phases=frozenset({"context"}))) is Cause.OTHER_PROCESS


def test_graphs_of_a_server_that_the_driver_refuses_follow_from_its_share() -> None:
    facts = Facts(phases=frozenset({"capture"}), words=frozenset({"vllm"}))
    assert cause_of(text="CUDA error: out of memory", facts=facts) is Cause.MEMORY_FRACTION


def test_likelihoods_add_up_to_one() -> None:
    assert sum(judge(case_of(stated(**FRAGMENTED))).likely.values()) == pytest.approx(1)


def test_every_cause_has_a_prior_and_evidence() -> None:
    assert set(PRIOR) == set(Cause)
    assert {rule.cause for rule in RULES} == set(Cause)
