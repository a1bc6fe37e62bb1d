"""How rows of vLLM's logs become questions."""

from typing import Any

import pytest

from truth.contract import Refused
from truth.rows.serving.arguments import arguments_of
from truth.rows.serving.vllm import predict


def row(**changes: Any) -> dict[str, Any]:
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
        list(predict(row(**changes)))


def test_the_process_at_an_error_holds_no_more_than_the_card() -> None:
    died = {"model": "openai/gpt-oss-20b", "quant_dtype": "mxfp4", "quantity": "process_used_at_oom_gib", "value": 78.9}
    (found,) = predict(row(**died))
    assert found.predicted == pytest.approx(79.19)
