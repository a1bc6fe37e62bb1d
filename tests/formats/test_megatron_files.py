"""Megatron-LM's arguments where people keep them: YAML of its functional tests, scripts with variables of kernels."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from vramcast.api import job_of
from vramcast.blocks.parameters.model import count_parameters
from vramcast.domain.job import Job, Recompute
from vramcast.domain.model import Attention, Head, LinearAttention, MoE
from vramcast.engines.megatron.options import Context, options_of
from vramcast.formats.read import read_files
from vramcast.formats.reading import Given

GPT: dict[str, Any] = {
    "--num-layers": 12, "--hidden-size": 512, "--num-attention-heads": 8, "--seq-length": 1024,
    "--max-position-embeddings": 1024, "--micro-batch-size": 4, "--global-batch-size": 32, "--bf16": True,
    "--vocab-file": "${DATA_PATH}/bpe/vocab.json", "--merge-file": "${DATA_PATH}/bpe/merges.txt",
    "--pipeline-model-parallel-size": 2, "--lr": 1e-4, "--save": "${CHECKPOINT_SAVE_PATH}",
}
DETERMINISTIC = {
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": 0, "NCCL_ALGO": "Ring", "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "CUDA_DEVICE_MAX_CONNECTIONS": 1,
}


def read(tmp_path: Path, arguments: dict[str, Any], **more: Any) -> Given:
    path = tmp_path / "model_config.yaml"
    path.write_text(yaml.safe_dump({"MODEL_ARGS": arguments, "TEST_TYPE": "regular", **more}), encoding="utf-8")
    return read_files([path], command="train")


def job(tmp_path: Path, arguments: dict[str, Any], **more: Any) -> Job:
    given = read(tmp_path, arguments, **more)
    assert [one.name for _, one in given.unread] == []
    return job_of({"from": (tmp_path / "model_config.yaml",), "gpus": "8xh100-sxm-80gb"})


def test_arguments_of_a_functional_test_are_read(tmp_path: Path) -> None:
    found = job(tmp_path, GPT | {"--recompute-granularity": "selective", "--recompute-modules": "[core_attn layernorm]",
                                 "--transformer-impl": "local", "--cuda-graph-impl": "none"})
    assert not found.engine_options.get("cuda_graphs")
    assert (found.model.num_layers, found.model.vocab, found.plan.pp, found.workload.grad_accum) == (12, 50257, 2, 2)
    assert found.plan.recompute is Recompute.SELECTIVE
    assert found.plan.recompute_modules == ("core_attn", "layernorm")
    assert any("the 50,257 words of 'GPT2BPETokenizer'" in text for text in read(tmp_path, GPT).assumptions)


@pytest.mark.parametrize(("more", "head", "vocab"), [({}, Head.LM, 50257), ({"--merge-file": None}, Head.MLM, 30522)])
def test_a_vocabulary_without_merges_is_berts(tmp_path: Path, more: dict[str, Any], head: Head, vocab: int) -> None:
    """Nothing else in such a file tells the two."""
    arguments = {name: value for name, value in (GPT | more).items() if value is not None}
    found = job(tmp_path, arguments)
    assert (found.model.head, found.model.vocab) == (head, vocab)
    said = any("pretrain_bert.py is assumed" in text for text in read(tmp_path, arguments).assumptions)
    assert said is (head is Head.MLM)


def test_variables_of_a_deterministic_run_are_what_it_sets_itself(tmp_path: Path) -> None:
    found = job(tmp_path, GPT | {"--deterministic-mode": True}, ENV_VARS=DETERMINISTIC)
    assert options_of(found).deterministic
    given = read(tmp_path, GPT, ENV_VARS={"NVTE_ALLOW_NONDETERMINISTIC_ALGO": 0})
    assert [one.name for _, one in given.unread] == ["$NVTE_ALLOW_NONDETERMINISTIC_ALGO"]


@pytest.mark.parametrize(("flash", "fused", "kernel"), [(1, 0, "flash"), (0, 1, "cudnn"), (0, 0, "unfused")])
def test_variables_choose_the_attention(tmp_path: Path, flash: int, fused: int, kernel: str) -> None:
    found = job(tmp_path, GPT, ENV_VARS={"NVTE_FLASH_ATTN": flash, "NVTE_FUSED_ATTN": fused})
    assert Context(found).attention_kernel == kernel


@pytest.mark.parametrize(("more", "counted"), [
    ({}, None), ({"--mtp-num-layers": 2}, 2), ({"--mtp-num-layers": 2, "--use-megatron-fsdp": True}, None),
])
def test_modules_that_predict_tokens_are_counted(more: dict[str, Any], counted: int | None, tmp_path: Path) -> None:
    assert job(tmp_path, GPT | more).engine_options.get("mtp_layers") == counted


def test_modules_over_a_hybrid_pattern_are_what_stands_behind_it(tmp_path: Path) -> None:
    """A mixer and a feed-forward part behind each stroke are one layer; --num-layers is then the pattern's."""
    hybrid = {"--num-experts": 4, "--hybrid-layer-pattern": "M*E/*E/*E", "--mtp-use-repeated-layer": True}
    found = job(tmp_path, GPT | hybrid)
    said = found.engine_options
    assert (found.model.num_layers, said["mtp_layers"], said["mtp_shared"]) == (3, 2, True)
    assert [(type(one.mixer), type(one.channel)) for one in found.model.mtp_layers] == [(Attention, MoE)] * 2
    refused = read(tmp_path, GPT | hybrid | {"--hybrid-layer-pattern": "M*E/M"})
    assert any("as *E, not for M" in str(one.why) for _, one in refused.unread)


DELTA_NETS = {
    "--num-layers": 6, "--experimental-attention-variant": "gated_delta_net", "--linear-attention-freq": 3,
    "--linear-num-key-heads": 4, "--linear-num-value-heads": 8, "--linear-key-head-dim": 64,
    "--linear-value-head-dim": 64,
}


@pytest.mark.parametrize(("frequency", "linear"), [
    (3, [True, True, False] * 2), ("([1]*4+[0]*2)", [True] * 4 + [False] * 2),
])
def test_gated_delta_nets_stand_between_attention(tmp_path: Path, frequency: int | str, linear: list[bool]) -> None:
    found = job(tmp_path, GPT | DELTA_NETS | {"--linear-attention-freq": frequency}).model
    assert [isinstance(layer.mixer, LinearAttention) for layer in found.main.layers] == linear
    inner = count_parameters(found).total - count_parameters(job(tmp_path, GPT | {"--num-layers": 6}).model).total
    hidden = found.hidden  # in, convolution, decays and steps, norm, out; attention has four matrices and their biases
    net = 2 * (4 * 64 + 8 * 64 + 8) * hidden + 4 * (2 * 4 * 64 + 8 * 64) + 2 * 8 + 64 + 8 * 64 * hidden
    assert inner == sum(linear) * (net - 4 * hidden * hidden - 4 * hidden)


def test_gated_delta_nets_of_pytorch_are_refused(tmp_path: Path) -> None:
    given = read(tmp_path, GPT | DELTA_NETS | {"--deterministic-mode": True}, ENV_VARS=DETERMINISTIC)
    assert any("gated delta nets in deterministic mode" in str(one.why) for _, one in given.unread)


def test_a_growing_batch_is_as_large_as_it_becomes(tmp_path: Path) -> None:
    schedule = {"--step-batch-size-schedule": "0:32 200B:64 400B:128"}
    arguments = {name: value for name, value in GPT.items() if name != "--global-batch-size"}
    assert job(tmp_path, arguments | schedule).workload.grad_accum == 128 // (4 * 4)
    assert [one.name for _, one in read(tmp_path, GPT | schedule).unread] == ["--step-batch-size-schedule"]


@pytest.mark.parametrize(("tokenizer", "vocab"), [("${DATA}/nemotron_2_256k.model", 256000), ("Qwen/Qwen3-8B", 151936)])
def test_a_tokenizer_that_is_named_says_the_vocabulary(tmp_path: Path, tokenizer: str, vocab: int) -> None:
    named = {"--tokenizer-type": "HuggingFaceTokenizer", "--tokenizer-model": tokenizer}
    assert job(tmp_path, GPT | named).model.vocab == vocab


@pytest.mark.parametrize(("frequency", "experts"), [(1, 12), (2, 6), ("([0]*3+[1]*9)", 9)])
def test_experts_are_in_every_so_manieth_layer(tmp_path: Path, frequency: int | str, experts: int) -> None:
    found = job(tmp_path, GPT | {"--num-experts": 8, "--moe-layer-freq": frequency, "--moe-ffn-hidden-size": 256,
                                 "--ffn-hidden-size": 1024})
    assert sum(isinstance(layer.channel, MoE) for layer in found.model.main.layers) == experts
