"""Every word that help offers is taken by some engine, on some card, for some model: what none takes is not offered."""

from collections.abc import Iterator
from typing import Any, Final

import pytest

import vramcast
from vramcast.engines.serving.table import SERVING
from vramcast.engines.training import DIFFUSION
from vramcast.question.options import OPTIONS, Kind, Option
from vramcast.question.serving import DRAFT_KINDS
from vramcast.question.tables import SERVE_OPTIONS
from vramcast.states.optimizers import OPTIMIZERS
from vramcast.states.storage import FORMATS

SEVERAL: Final = {"gpus": "8xh100", "micro_batch": 8}
LORA: Final = {"peft": "lora", "engine": "huggingface", "gpus": "h100"}

TRAINED: Final[dict[str, dict[str, Any]]] = {
    "schedule": SEVERAL | {"engine": "torchtitan", "pp": 4},
    "schedule=interleaved": SEVERAL | {"engine": "torchtitan", "pp": 4, "virtual_stages": 2},
    "cp-kind": {"gpus": "8xh100", "cp": 2, "engine": "megatron"},
    "shards": {"gpus": "8xh100", "engine": "deepspeed"}, "zero": {"gpus": "8xh100", "engine": "deepspeed"},
    "shards=nothing": {"gpus": "8xh100", "engine": "pytorch"}, "zero=0": {"gpus": "8xh100", "engine": "pytorch"},
    "sharded-by": {"gpus": "8xh100", "engine": "huggingface", "shards": "everything"},
    "offload-optimizer": {"gpus": "8xh100", "engine": "deepspeed", "zero": 3},
    "offload-parameters": {"gpus": "8xh100", "engine": "deepspeed", "zero": 3},
    "objective=ppo": {"engine": "huggingface", "completion_len": 64},
    "objective=grpo": {"engine": "huggingface", "completion_len": 64},
    "objective=rloo": {"engine": "huggingface", "completion_len": 64},
    "objective=gkd": {"engine": "huggingface", "teacher": "llama-3.2-3b"},
    "objective": {"engine": "huggingface"},
    "peft=modules": {"engine": "huggingface", "modules_to_save": "lm_head"},
    "peft": LORA, "base-weights": LORA, "adapter-dtype": LORA,
    "engine": {"gpus": "8xh100"}, "engine=unsloth": {"gpus": "h100"}, "engine=colossalai": {"gpus": "8xh100"},
    "engine=deepspeed": {"gpus": "8xh100", "zero": 3},
    "engine=litgpt": {"gpus": "8xh100", "shards": "everything", "precision": "bf16"},
    "precision=fp8": {"gpus": "8xh100", "engine": "megatron"},
    "precision=mixed-fp16": {"gpus": "8xh100", "engine": "megatron"},
    "precision=mixed-bf16": {"gpus": "8xh100", "engine": "megatron"},
    "recompute=selective": {"gpus": "8xh100", "engine": "torchtitan"},
    "loss=chunked": {"gpus": "8xh100", "engine": "torchtitan"},
    "peft=adapter": {"gpus": "8xh100", "engine": "litgpt", "shards": "everything", "precision": "bf16"},
}
"""Option, or option and word, of `train` -> what is asked beside it."""

SERVED: Final[dict[str, dict[str, Any]]] = {
    "router": {"rate": 1, "input_len": 64, "output_len": 8, "num_requests": 20},
    "find": {"gpus": "2xl40s"}, "find=fewest-gpus": {"gpus": "l40s"},
    "attention": {"engine": "transformers"},
    "offload": {"model": "flux.1-dev"},
}
"""The same of `serve`."""


def offered(table: dict[str, Option]) -> Iterator[tuple[str, str]]:
    for name, option in table.items():
        if option.kind is Kind.CHOICE:
            yield from ((name, word) for word in option.choices)


def beside(asked: dict[str, dict[str, Any]], name: str, word: str) -> dict[str, Any]:
    return {"gpus": "h100"} | asked.get(f"{name}={word}", asked.get(name, {}))


@pytest.mark.parametrize(("name", "word"), [*offered(OPTIONS)])
def test_what_train_offers_some_engine_takes(name: str, word: str) -> None:
    usual = {"model": "sd-1.5"} if word in DIFFUSION else {"model": "llama-3.2-1b", "seq_len": 512}
    asked = {"micro_batch": 1} | usual | beside(TRAINED, name, word) | {name.replace("-", "_"): word}
    assert vramcast.train(asked.pop("model"), **asked).ranks


@pytest.mark.parametrize(("name", "word"), [*offered(SERVE_OPTIONS)])
def test_what_serve_offers_some_engine_takes(name: str, word: str) -> None:
    asked = beside(SERVED, name, word) | {name.replace("-", "_"): word}
    assert vramcast.serve(asked.pop("model", "llama-3.2-1b"), **asked).ranks


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_optimizer_is_some_engines(name: str) -> None:
    engine = {"engine": "deepspeed", "zero": "0"} if OPTIMIZERS[name].compressed else {}
    assert vramcast.train("llama-3.2-1b", gpus="h100", seq_len=512, micro_batch=1, optimizer=name, **engine).ranks


@pytest.mark.parametrize("stored", sorted(FORMATS))
def test_every_format_of_weights_is_some_engines(stored: str) -> None:
    engine = "ik_llama.cpp" if "_" in stored else "vllm"
    assert vramcast.serve("llama-3.2-1b", gpus="b200", engine=engine, context=4096, weights=stored).ranks


@pytest.mark.parametrize(
    ("engine", "kind"), [(name, kind) for name, engine in SERVING.items() for kind in engine.kv_dtypes]
)
def test_every_format_of_caches_is_its_engines(engine: str, kind: str) -> None:
    assert vramcast.serve("llama-3.2-1b", gpus="b200", engine=engine, kv_dtype=kind).ranks


@pytest.mark.parametrize("kind", DRAFT_KINDS)
def test_every_kind_of_draft_is_some_engines(kind: str) -> None:
    model = "deepseek-v3" if kind == "mtp" else "llama-3.1-8b"
    assert vramcast.serve(model, gpus="8xh200", context=4096, draft=kind).ranks
