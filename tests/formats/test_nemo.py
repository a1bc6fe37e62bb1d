"""NeMo's YAML of Megatron models is read as the arguments that it stands for."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import vramcast
from vramcast.api import job_of
from vramcast.domain.job import Job, Precision
from vramcast.engines.megatron.options import options_of
from vramcast.formats.read import read_files
from vramcast.formats.reading import Given

MODEL: dict[str, Any] = {
    "mcore_gpt": True, "micro_batch_size": 1, "global_batch_size": 128, "tensor_model_parallel_size": 2,
    "pipeline_model_parallel_size": 1, "virtual_pipeline_model_parallel_size": None, "encoder_seq_length": 8192,
    "max_position_embeddings": "${.encoder_seq_length}", "num_layers": 32, "hidden_size": 4096,
    "ffn_hidden_size": 14336, "num_attention_heads": 32, "num_query_groups": 8, "hidden_dropout": 0.0,
    "attention_dropout": 0.0, "normalization": "rmsnorm", "bias": False, "activation": "fast-swiglu",
    "position_embedding_type": "rope", "share_embeddings_and_output_weights": False, "megatron_amp_O2": True,
    "tokenizer": {"library": "huggingface", "type": "meta-llama/Meta-Llama-3-8B", "model": None},
    "activations_checkpoint_granularity": None, "activations_checkpoint_method": "block",
    "activations_checkpoint_num_layers": 0, "sequence_parallel": True, "transformer_engine": True, "fp8": False,
    "fp8_hybrid": True, "optim": {"name": "mcore_distributed_optim", "lr": 1e-4, "overlap_grad_sync": True,
                                  "overlap_param_sync": True},
}
TRAINER = {"num_nodes": 2, "devices": 8, "precision": "bf16", "max_steps": 100, "accelerator": "gpu"}


def read(tmp_path: Path, **more: Any) -> Given:
    whole = {"trainer": TRAINER, "exp_manager": {"name": "x"}, "model": MODEL | more}
    (tmp_path / "llama.yaml").write_text(yaml.safe_dump(whole), encoding="utf-8")
    return read_files([tmp_path / "llama.yaml"], command="train")


def job(tmp_path: Path, **more: Any) -> Job:
    assert [one.name for _, one in read(tmp_path, **more).unread] == []
    return job_of({"from": (tmp_path / "llama.yaml",), "gpus": "2x8xh100-sxm-80gb"})


def test_words_of_falcons_layers_say_nothing_of_others(tmp_path: Path) -> None:
    job(tmp_path, name="megatron_mistral", mcore_customization_config={"parallel_attention": True})


def test_products_and_fusions_are_read(tmp_path: Path) -> None:
    found = job(tmp_path, ffn_hidden_size="${multiply:4, ${.hidden_size}}", bias_activation_fusion=False, fp8=True,
                fp8_margin=0, activations_checkpoint_granularity="full", activations_checkpoint_num_layers=4)
    channel = found.model.main.runs[0].layer.channel
    assert getattr(channel, "width", None) == 4 * 4096
    assert not options_of(found).bias_swiglu_fusion
    assert (found.plan.precision, found.plan.recompute_layers) == (Precision.FP8, 4)


@pytest.mark.parametrize(("more", "name"), [
    ({"optim": {"name": "distributed_fused_adam"}}, "model.optim.name"),
    ({"megatron_amp_O2": False}, "model.megatron_amp_O2"),
    ({"activation": "fast-geglu"}, "model.activation"),
    ({"num_layers": "${model.layers}"}, "model.num_layers"),
    ({"tokenizer": {"library": "sentencepiece", "model": "${dir}/a.model"}}, "--vocab-size"),
    ({"window_size": [4096, 0]}, "model.window_size"),
    ({"peft": {"peft_scheme": "lora"}}, "model.peft"),
    ({"name": "megatron_falcon_gpt", "mcore_customization_config": {"parallel_attention": True}},
     "model.mcore_customization_config"),
])
def test_what_makes_another_run_of_it_is_named(tmp_path: Path, more: dict[str, Any], name: str) -> None:
    assert name in [one.name for _, one in read(tmp_path, **more).unread]


def test_what_is_no_network_of_megatrons_is_refused(tmp_path: Path) -> None:
    whole = {"trainer": TRAINER, "exp_manager": {}, "model": {"sample_rate": 16000, "encoder": {}}}
    (tmp_path / "asr.yaml").write_text(yaml.safe_dump(whole), encoding="utf-8")
    unread = read_files([tmp_path / "asr.yaml"], command="train").unread
    assert [one.name for _, one in unread] == ["model"]


@pytest.mark.parametrize(("model", "ep"), [("llama-3.2-1b", 1), ("qwen3-30b-a3b", 8)])
def test_swiglu_by_pytorchs_operators_keeps_its_gate(model: str, ep: int) -> None:
    def peak(fused: str) -> int:
        return vramcast.train(model, gpus="8xb200-180gb", engine="megatron", zero=1, ep=ep, seq_len=4096,
                              engine_option=(f"bias_swiglu_fusion={fused}",)).peak.allocated_bytes

    assert peak("false") > peak("true")
