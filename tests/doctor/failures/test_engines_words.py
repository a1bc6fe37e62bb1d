"""What engines and programs say outright, and fixes in the words of the program that failed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.doctor.failures._statements import sizes, stated
from vramcast.doctor.failures.case import Facts, case_of
from vramcast.doctor.failures.causes import ORDER, Judged, judge, meaning_of
from vramcast.doctor.failures.diagnose import Told, diagnosis
from vramcast.doctor.failures.fixes import fixes_of
from vramcast.domain.failure import Cause, Fix, Statement
from vramcast.report.messages import rare_messages
from vramcast.sources.failures.wording import NUMBERS

FULL = sizes(tried=1.5, total=79.11, free=0.88, allocated=75.12, unallocated=1.03)


def worded(family: str, wording: str, **numbers: int | float | str) -> Statement:
    return replace(stated(family, **numbers), wording=wording)


def judged(statement: Statement, *words: str, phases: tuple[str, ...] = ()) -> tuple[Judged, tuple[Fix, ...]]:
    case = case_of(statement, Facts(words=frozenset(words), phases=frozenset(phases)))
    found = judge(case)
    return found, fixes_of(case, found)


@pytest.mark.parametrize(
    ("family", "wording", "cause", "detail"),
    [
        ("vllm", "profiling-freed", Cause.OTHER_PROCESS, ""),
        ("vllm", "sampler-warmup", Cause.MEMORY_FRACTION, ""),
        ("vllm", "preempted", Cause.TOO_BIG, "kv_cache"),
        ("sglang", "retract", Cause.TOO_BIG, "kv_cache"),
        ("ollama", "system-memory", Cause.HOST_MEMORY, ""),
        ("tensorflow", "host-pinned", Cause.HOST_MEMORY, ""),
        ("accelerate", "batch-size", Cause.TOO_BIG, ""),
    ],
)
def test_a_wording_that_names_its_cause_is_believed(family: str, wording: str, cause: Cause, detail: str) -> None:
    found, _ = judged(worded(family, wording))
    assert (found.cause, found.detail) == (cause, detail)
    assert found.confidence > 0.7


def test_a_program_that_needs_more_than_the_limit_is_too_big_for_sure() -> None:
    found, _ = judged(worded("jax", "hbm", **sizes(needed=20.97, limit=15.48)))
    assert found.cause is Cause.TOO_BIG and found.confidence > 0.9
    assert found.why[0].values["over"] == "5.49 GiB"


def test_a_full_allocator_of_another_framework_is_too_big() -> None:
    found, _ = judged(worded("tensorflow", "bfc-ran-out", **sizes(tried=2.38, limit=13.68, allocated=13.21)))
    assert found.cause is Cause.TOO_BIG and found.why[0].key == "why.pool_full" and found.confidence > 0.9


def test_what_is_missing_is_told_where_not_even_gaps_would_do() -> None:
    found, _ = judged(stated(**sizes(tried=31.25, total=79.11, free=14.41, allocated=61.20, unallocated=2.13)))
    missing = next(remark for remark in found.why if remark.key == "why.short")
    assert missing.values["missing"] == "14.71 GiB"  # 31.25 - 14.41 - 2.13


@pytest.mark.parametrize(
    ("server", "setting"), [("vllm", "--gpu-memory-utilization 0.85"), ("sglang", "--mem-fraction-static 0.85")]
)
def test_an_engine_that_fails_beside_its_pool_takes_too_large_a_share(server: str, setting: str) -> None:
    found, fixes = judged(stated(**FULL), server)
    assert found.cause is Cause.MEMORY_FRACTION
    assert setting in {fix.setting for fix in fixes}
    assert not any("gradient" in fix.setting or "optim" in fix.setting for fix in fixes)


def test_a_server_named_beside_a_backward_pass_does_not_make_it_serving() -> None:
    found, fixes = judged(stated(**FULL), "vllm", phases=("backward",))
    assert found.cause is Cause.TOO_BIG
    assert "model.gradient_checkpointing_enable()" in {fix.setting for fix in fixes}


@pytest.mark.parametrize(
    ("family", "wording", "foreign"),
    [
        ("sglang", "retract", "--gpu-memory-utilization"), ("llama.cpp", "ggml-kv", "--gpu-memory-utilization"),
        ("tensorflow", "bfc", "per_device_train_batch_size"), ("tensorrt", "requested", "per_device_train_batch_size"),
        ("jax", "trying", "num_workers"), ("jax", "hbm", "XLA_PYTHON_CLIENT_MEM_FRACTION"),
        ("vllm", "profiling-freed", "num_workers"), ("ollama", "system-memory", "num_workers"),
        ("torch-mps", "mps-buffer-size", "WATERMARK"),
    ],
)
def test_no_fix_is_another_programs(family: str, wording: str, foreign: str) -> None:
    _, fixes = judged(worded(family, wording, **sizes(tried=2)))
    assert fixes and not any(foreign in fix.setting for fix in fixes)


def test_an_engine_that_found_the_card_taken_may_take_what_is_free() -> None:
    numbers = sizes(total=23.65, free=9.51, desired=21.28) | {"memory_fraction": 0.9}
    found, fixes = judged(worded("vllm", "free-on-startup", **numbers))
    assert found.cause is Cause.OTHER_PROCESS
    assert "--gpu-memory-utilization 0.40" in {fix.setting for fix in fixes}  # 9.51 / 23.65


def test_a_container_that_was_ended_gets_its_limit_first() -> None:
    _, fixes = judged(stated("process-killed", "OOMKilled"))
    assert fixes[0].setting == "resources: {limits: {memory: 128Gi}}"


def test_a_worker_that_was_killed_did_not_run_out_of_shared_memory() -> None:
    _, killed = judged(stated("torch-dataloader", "DataLoader worker (pid 7) is killed by signal: Killed."))
    _, bus = judged(stated("torch-dataloader", "Unexpected bus error encountered in worker. insufficient (shm)"))
    assert "docker run --shm-size=16g" not in {fix.setting for fix in killed}
    assert bus[0].setting == "docker run --shm-size=16g"


def test_details_of_main_memory_do_not_come_from_digits_or_parts_of_words() -> None:
    assert judged(stated("torch-cpu", "you tried to allocate 137438953472 bytes"))[0].detail == ""
    assert judged(stated("linux", "Killed process 7 (python) shmem-rss:65536kB"))[0].detail == "killed"


def test_a_summary_after_a_failure_with_much_in_pieces_speaks_of_fragmentation() -> None:
    statement = worded("memory-summary", "summary", num_ooms=1, **sizes(allocated=10.34, reserved=14.21))
    found, fixes = judged(statement)
    assert found.cause is Cause.FRAGMENTED and found.confidence < 0.8  # what was asked for is not told
    assert any("expandable_segments" in fix.setting for fix in fixes)


def test_tensorflows_request_and_the_dump_far_behind_it_are_one_failure() -> None:
    asked = worded("tensorflow", "bfc-ran-out", **sizes(tried=2.38))
    dump = replace(worded("tensorflow", "bfc-dump", **sizes(limit=13.68, allocated=13.21)), line=390)
    found = diagnosis("x", Told(statements=(asked, dump))).findings
    assert len(found) == 1 and {"tried_bytes", "limit_bytes"} <= set(found[0].statement.numbers)


def test_every_number_that_readers_give_has_its_sentence() -> None:
    told = {name for name, figure in NUMBERS.items() if figure.unit not in ("text",)} - {
        "pid", "signal", "other_processes",
    }
    assert told <= set(ORDER)
    assert {f"means.{name}" for name in ORDER} | {f"short.{name}" for name in ORDER} <= set(rare_messages())


def test_a_limit_of_all_bits_is_told_to_be_none() -> None:
    numbers = sizes(tried=9, total=23.65, free=0.02, allocated=21.36) | {"allowed_bytes": 1 << 64}
    assert dict(meaning_of(case_of(stated(**numbers))))["allowed_bytes"].key == "means.allowed.none"
