"""How rows of transformers runs become questions."""

from typing import Any

import pytest

from truth.contract import Refused
from truth.rows.serving import encoders
from truth.rows.serving.transformers import format_of, predict, release_of


def row(**fields: Any) -> dict[str, Any]:
    return {
        "model": "Qwen/Qwen2-7B-Instruct", "engine": "transformers", "engine_version": "4.38.2 (torch 2.1.2, FA 2.3.3)",
        "gpu": "A100 80GB", "quantity": "peak_allocated_total_gib", "unit": "GiB", "value": 20.26, "batch": 1,
        "input_len": 6144, "output_len": 2048, "quant_dtype": "BF16", "source_class": "qwen2_table",
    } | fields


def test_binary_units_have_no_decimal_reading() -> None:
    (binary,) = predict(row())
    (unclear,) = predict(row(unit="GB"))
    assert binary.measured_alternative is None
    assert unclear.measured_alternative == pytest.approx(20.26 * 1e9 / 2**30)


@pytest.mark.parametrize(
    ("text", "name"),
    [("GPTQ-Int8", "gptq-int8"), ("Int4 (GPTQ)", "gptq-int4"), ("AWQ-INT4", "awq-int4"), ("FP8", "fp8-block"),
     ("8bits (bnb)", "int8-bnb"), ("bnb.nf4-dq (bf16)", "nf4-dq"), ("BF16", None)],
)
def test_words_of_quantisation_name_a_format(text: str, name: str | None) -> None:
    assert format_of(row(quant_dtype=text)) == name


def test_rows_without_a_release_take_the_one_of_their_table_s_time() -> None:
    assert release_of(row(engine_version=None, source_class="deepseek_llm_table")) == (4, 35)
    with pytest.raises(Refused, match="release"):
        release_of(row(engine_version=None, source_class="unknown"))


@pytest.mark.parametrize("engine", ["exllama v1", "litgpt", "lmdeploy TurboMind", "AutoAWQ (fused modules)"])
def test_other_generators_are_refused_with_a_reason(engine: str) -> None:
    with pytest.raises(Refused, match=r"modelled|release"):
        list(predict(row(engine=engine)))
    with pytest.raises(Refused, match="not modelled"):
        encoders.predict(row(engine="CTranslate2 3.6.0"))
