"""Commands of SGLang: every form of an argument that changes memory is read, or refused by its name."""

from typing import Any

import pytest

from tests.formats.test_readers import refusal
from vramcast.catalogue.formats import conditions, harmless
from vramcast.formats.read import read_files

HEAD = "python -m sglang.launch_server --model-path Qwen/Qwen3-8B "


def options(arguments: str) -> dict[str, Any]:
    """What a command says of a plan, beside the engine, the model and degrees of one."""
    given = read_files([], command="serve", line=HEAD + arguments)
    assert refusal(given) == ""
    return {name: value for name, value in given.options.items() if name not in ("engine", "model", "tp", "dp")}


@pytest.mark.parametrize(("arguments", "said"), [
    ("--disable-piecewise-cuda-graph", {"engine-option": ("prefill-graphs=false",)}),
    ("--disable-prefill-cuda-graph", {"engine-option": ("prefill-graphs=false",)}),
    ("--attention-backend fa3", {}), ("--attention-backend flashinfer", {}),
    ("--disable-cuda-graph", {"graphs": False}),
    ("--tp 8 --dp 4 --enable-dp-attention", {"attention-dp": True}), ("--tp 8 --attn-dp-size 4 --ep-size 8", {
        "attention-dp": True, "expert-parallel": True}),
    ("--disable-decode-cuda-graph --disable-prefill-cuda-graph", {"graphs": False}),
    ("""--context-length 65536 --json-model-override-args '{"rope_scaling": {"rope_type": "yarn", "factor": 2}}'""",
     {"context": 65536, "engine-option": ("allow-long=true",)}),
    ("""--json-model-override-args '{"max_position_embeddings": 65536}'""",
     {"context": 65536, "engine-option": ("allow-long=true",)}),
    ("--enable-hierarchical-cache --hicache-size 64 --hicache-write-policy write_through", {}),
    ("--max-prefill-tokens 32768 --speculative-draft-window-size 4 --disaggregation-ib-device x", {}),
    ("--quantization compressed-tensors --enable-memory-saver --disable-custom-all-reduce", {}),
])
def test_forms_that_are_read(arguments: str, said: dict[str, Any]) -> None:
    assert options(arguments) == said


@pytest.mark.parametrize(("arguments", "said"), [
    ("--disable-decode-cuda-graph", "leaves the graphs of prefills"), ("--enable-torch-compile", "enable_torch_comp"),
    ("--dllm-algorithm LowConfidence", "dllm_algorithm"), ("--max-prefill-tokens 4096", "max_prefill_tokens"),
    ("--attention-backend triton", "attention_backend: may change"),
    ("--torchao-config int4wo-128", "torchao_config: may change"), ("--cpu-offload-gb 4", "cpu_offload_gb"),
    ("--disaggregation-mode prefill --disaggregation-ib-device x", "disaggregation_mode, disaggregation_ib_device"),
    ("""--json-model-override-args '{"rope_scaling": {"rope_type": "yarn", "factor": 2}}'""", "--context-length"),
    ("--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 8", "speculative_eagle_topk"),
])
def test_what_may_change_memory_is_refused_by_its_name(arguments: str, said: str) -> None:
    assert said in refusal(read_files([], command="serve", line=HEAD + arguments))


def test_no_name_is_both_harmless_and_about_a_part() -> None:
    assert not harmless("sglang", "ServerArgs") & conditions("sglang", "ServerArgs").keys()
