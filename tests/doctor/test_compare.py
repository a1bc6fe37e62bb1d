"""Measured beside predicted: which entry explains the difference, and what is learned from it."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.sources.logs.samples import gib, read
from vramcast.doctor.compare import reconciliation
from vramcast.doctor.question import question_of
from vramcast.domain.answer import ServeAnswer
from vramcast.domain.calibration import PRINTED_AS
from vramcast.domain.failure import Reconciliation
from vramcast.domain.serving import ServeJob
from vramcast.estimate.serving import answer
from vramcast.sources.logs.wording import MeasuredRank, ServingLog

GIVEN = {"gpus": "h100-sxm-80gb"}


def asked() -> tuple[ServingLog, ServeJob, ServeAnswer]:
    log = read("vllm-v1")
    job, _ = question_of(log, GIVEN)
    return log, job, answer(job)


def as_predicted(found: ServeAnswer, **changed: int) -> dict[str, int]:
    """A rank that measures what was predicted, but for some differences by category."""
    sizes = {str(category): found.startup[printed] for category, printed in PRINTED_AS.items()}
    return {name: size + changed.get(name.replace(" ", "_"), 0) for name, size in sizes.items()}


def compared(sizes: dict[str, int], **fields: Any) -> Reconciliation:
    log, job, found = asked()
    given: dict[str, Any] = {"ranks": (MeasuredRank(label="", num_bytes=sizes),), "counts": {}} | fields
    return reconciliation(replace(log, **given), job, found, ())


def test_memory_held_by_others_explains_non_torch_memory() -> None:
    sizes = as_predicted(asked()[2], communication=gib(2), kv_cache=-gib(2))
    found = compared(sizes, held_bytes=gib(2.3))
    assert [remark.key for remark in found.why] == ["why.held", "why.communication.more"]


def test_what_a_log_does_not_state_is_what_its_budget_leaves() -> None:
    sizes = as_predicted(asked()[2], kv_cache=-gib(1))
    rest = {name: size for name, size in sizes.items() if name in ("weights", "kv cache")}
    found = compared(rest)
    left = next(entry for entry in found.compared if entry.derived)
    assert left.entry == "activations+communication"
    assert left.difference == gib(1)
    assert found.largest == left
    assert "left_over" in [remark.key for remark in found.remarks]


def test_other_bytes_per_token_are_said() -> None:
    _, _, answered = asked()
    assert answered.capacity is not None
    half = compared(as_predicted(answered), counts={"tokens": answered.capacity.kv_tokens / 2})
    assert [remark.key for remark in half.why] == ["why.token_bytes"]
    assert half.why[0].values == {"ratio": "2.00"}


def test_devices_of_one_process_are_compared_together() -> None:
    log, job, found = asked()
    listed = [entry for entry in found.fullest.ledger if entry.category == "weights"]
    sizes = {"weights": sum(entry.num_bytes for entry in listed)}
    halves = tuple(MeasuredRank(label=f"CUDA{index}", num_bytes=sizes) for index in range(found.fullest.count))
    both = reconciliation(replace(log, ranks=halves, over_devices=True, counts={}), job, found, ())
    assert both.rank == "CUDA0, CUDA1"
    assert both.largest is None


def test_an_out_of_memory_message_stands_beside_the_predicted_device_peak() -> None:
    log = read("vllm-oom")
    job, remarks = question_of(log, GIVEN)
    found = reconciliation(log, job, answer(job), remarks)
    assert found.out_of_memory is not None
    assert found.out_of_memory["predicted_device"] == found.answer.peak.device_bytes
    assert found.out_of_memory["stage"] == "serve"


def test_a_sum_is_apportioned_as_it_was_predicted() -> None:
    sizes = as_predicted(asked()[2], kv_cache=-gib(1))
    calibration = compared({"weights": sizes["weights"], "kv cache": sizes["kv cache"]}).calibration
    assert calibration is not None
    parts = [calibration.corrections[name] for name in ("activations", "communication")]
    assert all(part.apportioned for part in parts)
    ratios = [part.measured_bytes / part.predicted_bytes for part in parts]
    assert ratios[0] == pytest.approx(ratios[1], rel=1e-6)
    assert sum(part.measured_bytes - part.predicted_bytes for part in parts) == pytest.approx(gib(1), abs=4)
