"""How rows of vLLM's logs become questions."""

from __future__ import annotations

from typing import Any

import pytest

from truth.contract import Refused
from truth.rows.serving.arguments import arguments_of
from truth.rows.serving.vllm import job_of, predict
from vramcast.domain.serving import ServeJob


def row(**changes: Any) -> dict[str, Any]:
    plain = {
        "model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "H100 80GB (79.19 GiB visible)", "tp": 1, "pp": 1,
        "max_model_len": 8192, "gpu_memory_utilization": 0.95, "quant_dtype": "bfloat16", "kv_dtype": "auto",
        "engine": "vllm", "engine_version": "v0.19.0 (V1)", "quantity": "kv_gib", "value": 58.11, "notes": "",
    }
    return plain | changes


def job(**changes: Any) -> ServeJob:
    return job_of(row(**changes))


def test_arguments_are_read_however_they_are_written() -> None:
    notes = "max_num_seqs=4, --max-num-batched-tokens 512 --no-enable-prefix-caching; {'dtype': 'float32', 'x': 1}"
    assert arguments_of({"notes": notes}) == {
        "max_num_seqs": "4", "max_num_batched_tokens": "512", "enable_prefix_caching": "False", "dtype": "float32",
    }
    assert arguments_of({}) == {}


def test_arguments_go_into_the_plan() -> None:
    notes = "non-default args {'dtype': 'float32', 'decode_context_parallel_size': 4, 'enable_expert_parallel': True}"
    plan = job(notes=notes, tp=8, gpu="8x H100 80GB").plan
    assert (plan.dtype, plan.dcp, plan.expert_parallel) == ("fp32", 4, True)
    assert job(notes="--enforce-eager").plan.graphs is False
    assert job(notes="prefix caching on").plan.prefix_caching is True


@pytest.mark.parametrize(
    ("notes", "kind"), [("speculative decoding with EAGLE", "eagle"), ("EAGLE-3 head", "eagle3"), ("plain", None)]
)
def test_drafts_are_read_from_the_notes(notes: str, kind: str | None) -> None:
    draft = job(notes=notes).plan.draft
    assert (draft.kind if draft else None) == kind


def test_multi_token_prediction_needs_a_network_that_has_it() -> None:
    assert job(notes="MTP 2").plan.draft is None
    draft = job(notes="--enforce-eager + MTP head", model="Qwen/Qwen3.5-27B").plan.draft
    assert draft is not None
    assert draft.kind == "mtp"


@pytest.mark.parametrize(
    ("notes", "slots", "rank"),
    [
        ("LoRA enabled by Unsloth", 1, 32), ("LoRA enabled", 1, 16), ("--enable-lora --max-lora-rank 64", 1, 64),
        ("", 0, 16),
    ],
)
def test_adapters_are_read_from_the_notes(notes: str, slots: int, rank: int) -> None:
    plan = job(notes=notes).plan
    assert (plan.lora_slots, plan.lora_rank) == (slots, rank)


@pytest.mark.parametrize(
    ("stated", "version", "v1"),
    [
        ("v0.19.0 (V1)", (0, 19, 0), True), ("V0 0.8.x", (0, 8), False), ("2025-10", (0, 11, 0), None),
        ("V0", (0, 9), False),
    ],
)
def test_versions_are_read_or_taken_from_the_date(stated: str, version: tuple[int, ...], v1: bool | None) -> None:
    found = job(engine_version=stated)
    assert found.version == version
    assert found.engine_options.get("v1") is v1


def test_a_card_has_the_bytes_its_row_states() -> None:
    assert job(gpu="RTX 4090 (25,250,627,584 B total)").cluster.gpu.visible_bytes == 25_250_627_584
    assert job(gpu="8x L40S 48GB (44.42 GiB visible)", tp=8).cluster.count == 8


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gpu_memory_utilization": None}, "fraction"),
        ({"notes": "--cpu-offload-gb 12"}, "host"),
        ({"quant_dtype": "unstated"}, "stored"),
        ({"notes": "co-tenants inflate non_torch"}, "other processes"),
        ({"quantity": "time_to_first_token_s"}, "not predicted"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_the_reason(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        list(predict(row(**changes)))


def test_what_a_sequence_needs_is_asked_by_its_length() -> None:
    (found,) = predict(row(quantity="kv_needed_gib_for_8192", value=1.0))
    assert found.predicted == pytest.approx(1.0)  # 131,072 B a token


def test_the_process_at_an_error_holds_no_more_than_the_card() -> None:
    died = {"model": "openai/gpt-oss-20b", "quant_dtype": "mxfp4", "quantity": "process_used_at_oom_gib", "value": 78.9}
    (found,) = predict(row(**died))
    assert found.predicted == pytest.approx(79.19)
