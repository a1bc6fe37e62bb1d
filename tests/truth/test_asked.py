"""Rows as they were asked: events, failures, kernels, packing, generic files, tables of Transformers and vLLM."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from truth import packing
from truth.contract import Refused
from truth.events import Event, Gap, align
from truth.failures import DISAGREEMENTS, ROOT, document, judgements, readings
from truth.rows.asked import predict, said
from truth.rows.generic import job_of
from truth.rows.generic import predict as generic_predict
from truth.rows.kernels import predict as kernels_predict
from truth.rows.serving import encoders
from truth.rows.serving.arguments import arguments_of
from truth.rows.serving.transformers import format_of, release_of
from truth.rows.serving.transformers import predict as tables_predict
from truth.rows.serving.vllm import predict as vllm_predict
from vramcast.domain.failure import Cause
from vramcast.errors import VramcastError
from vramcast.estimate.interval import measured_cases

# Rows that ask with a user's own options.

ASK = {
    "model": "llama-3.2-1b", "gpus": "8xh100-sxm-80gb",
    "options": {"engine": "torchtitan", "seq-len": 2048, "shards": "everything", "precision": "mixed-bf16"},
}


def row(**ask: Any) -> dict[str, Any]:
    """A row of torchtitan's history."""
    return {
        "id": "torchtitan_commits2/any", "task": "train", "source": "pytorch/torchtitan commit c4e229115 message",
        "ask": {**ASK, **ask},
        "measured": {"quantity": "max_reserved", "value": 1.0, "unit": "GiB"},
    }


def test_a_commit_is_asked_as_the_engine_of_its_day() -> None:
    assert said(row())["engine"] == "torchtitan@2025-09-05"
    assert said({**row(), "source": "pytorch/torchtitan README"})["engine"] == "torchtitan"


SHORTER = "samples shorter than max_seq_length, padded to the longest of the batch: lengths unknown"


@pytest.mark.parametrize(("release", "unsaid", "level"), [
    ("unknown, 2024", (), "reserved"),
    ("unknown, 2024", (SHORTER,), "reserved, longest samples"),
    ("2025.4.7", (), "reserved, all in 4 bits"),
    ("2025.4.7", (SHORTER,), "reserved, longest samples, all in 4 bits"),
])
def test_what_a_row_leaves_open_is_answered_as_to_a_user_and_named_in_its_level(
    release: str, unsaid: tuple[str, ...], level: str
) -> None:
    options = {"engine": "unsloth", "seq-len": 2048, "precision": "amp-bf16", "peft": "lora", "base-weights": "nf4-dq"}
    asked = {**row(model="llama-3.2-1b", gpus="1xa10g", options=options, unexpressed=unsaid),
             "framework": f"unsloth {release} / transformers 4.51.3"}
    [found] = predict(asked, folder=Path())
    assert found.level == level
    assert (found.traits is None) == ("," in level)  # no interval is calibrated by what is not known


def test_whose_tool_became_an_engine_is_asked_as_that_and_a_network_that_hears_by_what_it_writes() -> None:
    unsaid = ("FSDP2 over bf16 weights with torch.optim.AdamW (bf16 moments)",)
    automodel = {**row(unexpressed=unsaid), "framework": "NeMo Automodel 26.x / torch 2.9+"}
    assert said(automodel)["engine"] == "pytorch@2.9" and said(automodel)["sharded-by"] == "fsdp2"
    hears = said(row(model="whisper-large-v3"))
    assert hears["decoder-seq-len"] == 448 and "seq-len" not in hears


# Sequences of events are aligned by their longest common subsequence.

A, B, C = Event(False, 512), Event(False, 1024), Event(True, 512)
events = st.lists(st.sampled_from((A, B, C)), max_size=12)


def longest_common(ours, theirs):
    table = [[0] * (len(theirs) + 1) for _ in range(len(ours) + 1)]
    for i, x in enumerate(ours):
        for j, y in enumerate(theirs):
            table[i + 1][j + 1] = table[i][j] + 1 if x == y else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


def test_equal_sequences_have_no_gaps():
    aligned = align([A, B, C], [A, B, C])
    assert aligned.share == 1.0
    assert aligned.gaps == ()


def test_a_gap_says_where_the_sequences_part():
    assert align([A, B, B, C], [A, C]).gaps == (Gap(ours=1, num_ours=2, theirs=1, num_theirs=0),)


def test_sequences_too_far_apart_have_no_share():
    assert align([A] * 20, [B] * 20, most_edits=5).share is None


@given(events, events)
def test_what_is_the_same_is_the_longest_common_subsequence(ours, theirs):
    aligned = align(ours, theirs)
    assert aligned.num_same == longest_common(ours, theirs)


@given(events, events)
def test_without_the_gaps_both_sequences_are_the_same(ours, theirs):
    aligned = align(ours, theirs)
    for gap in reversed(aligned.gaps):
        ours = ours[: gap.ours] + ours[gap.ours + gap.num_ours :]
        theirs = theirs[: gap.theirs] + theirs[gap.theirs + gap.num_theirs :]
    assert ours == theirs


# Diagnoses beside what threads say: the page of disagreements is current.

ROWS = ROOT.parent / "shared" / "truth" / "oom_messages.jsonl"
needs_rows = pytest.mark.skipif(not ROWS.is_file(), reason="needs the collected messages")


def test_every_reading_names_a_cause_or_says_why_none() -> None:
    for reading in readings().values():
        assert reading.why and (not reading.cause or Cause(reading.cause))


@needs_rows
def test_the_page_of_disagreements_is_current() -> None:
    assert DISAGREEMENTS.read_text(encoding="utf-8") == document(list(judgements(ROWS)))


@needs_rows
def test_every_message_is_recognised() -> None:
    assert [item.message for item in judgements(ROWS) if not item.cause] == []


# Rows of unknown groups: words become a question, or one sentence says which word does not.

ROW: dict[str, Any] = {
    "group": "somebody", "model": "meta-llama/Llama-3.2-1B", "gpu": "A100-SXM4-80GB", "n_gpus": 1,
    "parallelism": {"tp": 1, "pp": 1, "dp": 1}, "micro_batch": 1, "seq_len": 512, "precision": "bf16",
    "optimizer": "AdamW", "recompute": "none", "peft": "none", "framework": "HF Trainer", "metric": "nvidia-smi",
    "measured_gib": 25.0, "measured_raw": "25GB",
}


def test_several_cards_that_replicas_would_not_fit_were_sharded() -> None:
    (item,) = generic_predict(ROW | {"model": "llama-2-13b", "n_gpus": 8, "parallelism": {"dp": 8}})
    assert item.predicted < 80 * 2**30


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.lists(st.integers(), max_size=2),
    st.dictionaries(st.sampled_from(["tp", "pp", "sp"]), st.one_of(st.integers(), st.none(), st.text()), max_size=3),
)


@given(st.dictionaries(st.sampled_from(sorted({*ROW, "zero", "fsdp", "attention_impl", "params_b", "notes"})), JUNK))
@settings(max_examples=200, deadline=None)
def test_no_row_crashes_the_adapter(change: dict[str, Any]) -> None:
    try:
        job_of(ROW | change)
    except (Refused, VramcastError) as refusal:
        assert "\n" not in str(refusal).strip()


# The benchmark harness of the kernel rows, against what was measured.

MIB = 1 << 20


def kernels_row(**fields: Any) -> dict[str, Any]:
    """A row of the A100 runs of September 2024 unless said otherwise."""
    default: dict[str, Any] = {
        "kernel": "cross_entropy", "provider": "huggingface", "mode": "full", "x_name": "V", "x_value": "4096",
        "config": json.dumps({"B": 8, "T": 2048}), "measured_mb_p50": 1.0, "gpu": "NVIDIA A100-SXM4-80GB",
        "liger_version": "0.2.1",
    }
    return default | fields


def mebibytes(**fields: Any) -> float:
    """The prediction of one row [MiB]."""
    return next(iter(kernels_predict(kernels_row(**fields)))).predicted / MIB


def test_liger_cross_entropy_is_one_copy_of_the_logits() -> None:
    assert mebibytes(provider="liger", x_value="8192") == pytest.approx(512.32861328125, abs=1e-4)


@pytest.mark.parametrize("fields", [
    {"kernel": "no_such_kernel"}, {"provider": "no_such_provider"}, {"gpu": "no such card"}, {"config": "{}"},
    {"kernel": "multi_token_attention"}, {"mode": "no_such_mode"},
])
def test_what_is_not_modelled_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        kernels_predict(kernels_row(**fields))


# Packed cards run out as seldom as is promised, by measured runs whose harness was left out.

def test_several_jobs_run_out_no_more_often_than_is_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "PROMISED", (0.01,))
    monkeypatch.setattr(packing, "TOGETHER", (5,))
    monkeypatch.setattr(packing, "DRAWS", 20)
    unseen, seen = packing.rows([case for case in measured_cases() if case.purpose == "training"])
    assert unseen.ran_out <= 0.01
    assert seen.ran_out <= 0.01
    assert unseen.ran_out_apart > 0.05  # why misses are not taken to know nothing of each other


# How rows of transformers runs become questions.

def tables_row(**fields: Any) -> dict[str, Any]:
    return {
        "model": "Qwen/Qwen2-7B-Instruct", "engine": "transformers", "engine_version": "4.38.2 (torch 2.1.2, FA 2.3.3)",
        "gpu": "A100 80GB", "quantity": "peak_allocated_total_gib", "unit": "GiB", "value": 20.26, "batch": 1,
        "input_len": 6144, "output_len": 2048, "quant_dtype": "BF16", "source_class": "qwen2_table",
    } | fields


def test_binary_units_have_no_decimal_reading() -> None:
    (binary,) = tables_predict(tables_row())
    (unclear,) = tables_predict(tables_row(unit="GB"))
    assert binary.measured_alternative is None
    assert unclear.measured_alternative == pytest.approx(20.26 * 1e9 / 2**30)


@pytest.mark.parametrize(
    ("text", "name"),
    [("GPTQ-Int8", "gptq-int8"), ("Int4 (GPTQ)", "gptq-int4"), ("AWQ-INT4", "awq-int4"), ("FP8", "fp8-block"),
     ("8bits (bnb)", "int8-bnb"), ("bnb.nf4-dq (bf16)", "nf4-dq"), ("BF16", None)],
)
def test_words_of_quantisation_name_a_format(text: str, name: str | None) -> None:
    assert format_of(tables_row(quant_dtype=text)) == name


def test_rows_without_a_release_take_the_one_of_their_table_s_time() -> None:
    assert release_of(tables_row(engine_version=None, source_class="deepseek_llm_table")) == (4, 35)
    with pytest.raises(Refused, match="release"):
        release_of(tables_row(engine_version=None, source_class="unknown"))


@pytest.mark.parametrize("engine", ["exllama v1", "litgpt", "lmdeploy TurboMind", "AutoAWQ (fused modules)"])
def test_other_generators_are_refused_with_a_reason(engine: str) -> None:
    with pytest.raises(Refused, match=r"modelled|release"):
        list(tables_predict(tables_row(engine=engine)))
    with pytest.raises(Refused, match="not modelled"):
        encoders.predict(tables_row(engine="CTranslate2 3.6.0"))


# How rows of vLLM's logs become questions.

def vllm_row(**changes: Any) -> dict[str, Any]:
    plain = {
        "model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "H100 80GB (79.19 GiB visible)", "tp": 1, "pp": 1,
        "max_model_len": 8192, "gpu_memory_utilization": 0.95, "quant_dtype": "bfloat16", "kv_dtype": "auto",
        "engine": "vllm", "engine_version": "v0.19.0 (V1)", "quantity": "kv_gib", "value": 58.11, "notes": "",
    }
    return plain | changes


def test_arguments_are_read_however_they_are_written() -> None:
    notes = "max_num_seqs=4, --max-num-batched-tokens 512 --no-enable-prefix-caching; {'dtype': 'float32', 'x': 1}"
    assert arguments_of({"notes": notes}) == {
        "max_num_seqs": "4", "max_num_batched_tokens": "512", "enable_prefix_caching": "False", "dtype": "float32",
    }
    assert arguments_of({}) == {}


@pytest.mark.parametrize(("changes", "reason"), [
    ({"gpu_memory_utilization": None}, "fraction"),
    ({"notes": "--cpu-offload-gb 12"}, "host"),
    ({"quant_dtype": "unstated"}, "stored"),
    ({"notes": "co-tenants inflate non_torch"}, "other processes"),
    ({"quantity": "time_to_first_token_s"}, "not predicted"),
])
def test_what_cannot_be_asked_is_refused_with_the_reason(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        list(vllm_predict(vllm_row(**changes)))


def test_the_process_at_an_error_holds_no_more_than_the_card() -> None:
    died = {"model": "openai/gpt-oss-20b", "quant_dtype": "mxfp4", "quantity": "process_used_at_oom_gib", "value": 78.9}
    (found,) = vllm_predict(vllm_row(**died))
    assert found.predicted == pytest.approx(79.19)
