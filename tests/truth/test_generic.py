"""Rows of unknown groups: words become a question, or one sentence says which word does not."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from truth.contract import Refused
from truth.rows.generic import job_of, predict
from vramcast.errors import VramcastError

ROW: dict[str, Any] = {
    "group": "somebody", "model": "meta-llama/Llama-3.2-1B", "gpu": "A100-SXM4-80GB", "n_gpus": 1,
    "parallelism": {"tp": 1, "pp": 1, "dp": 1}, "micro_batch": 1, "seq_len": 512, "precision": "bf16",
    "optimizer": "AdamW", "recompute": "none", "peft": "none", "framework": "HF Trainer", "metric": "nvidia-smi",
    "measured_gib": 25.0, "measured_raw": "25GB",
}


def test_several_cards_that_replicas_would_not_fit_were_sharded() -> None:
    (item,) = predict(ROW | {"model": "llama-2-13b", "n_gpus": 8, "parallelism": {"dp": 8}})
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
