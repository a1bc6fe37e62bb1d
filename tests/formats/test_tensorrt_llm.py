"""`trtllm-serve` and the file beside it, read and written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import vramcast
from tests.formats.plans import write_all
from tests.formats.test_readers import refusal, written
from vramcast.api import serve_job_of
from vramcast.domain.serving import ServeJob
from vramcast.estimate.serving import answer
from vramcast.formats.files import File
from vramcast.formats.merged import with_configs
from vramcast.formats.paths import Configs
from vramcast.formats.read import read_files
from vramcast.formats.write import files_of

EXTRA = """kv_cache_config:
  dtype: fp8
  free_gpu_memory_fraction: 0.8
  enable_block_reuse: false
cuda_graph_config:
  enable_padding: true
print_iter_log: true
stream_interval: 10
"""
SCRIPT = """EXTRA_FILE=/tmp/config.yml
cat << EOF > ${EXTRA_FILE}
%sEOF
trtllm-serve nvidia/some-model --tp_size 8 --ep_size 8 --max_batch_size 64 --max_num_tokens 4096 --port 8000 \\
  --kv_cache_free_gpu_memory_fraction 0.5 --extra_llm_api_options ${EXTRA_FILE}
"""


def options(line: str) -> dict[str, Any]:
    given = read_files([], command="serve", line=line)
    assert refusal(given) == ""
    return given.options


def test_the_file_that_a_script_writes_itself_wins_over_its_options() -> None:
    assert options(SCRIPT % EXTRA) == {
        "engine": "tensorrt-llm", "model": "nvidia/some-model", "tp": 8, "expert-parallel": True, "max-sequences": 64,
        "batched-tokens": 4096, "memory-fraction": 0.8, "kv-dtype": "fp8", "prefix-caching": False,
    }


def test_ranks_that_attend_apart_are_copies_that_share_experts() -> None:
    found = options(SCRIPT % (EXTRA + "enable_attention_dp: true\n"))
    assert (found["tp"], found["dp"], found["expert-parallel"]) == (1, 8, True)


def test_the_file_lies_beside_the_command(tmp_path: Path) -> None:
    script = written(tmp_path, "serve.sh", "trtllm-serve serve m --tp_size 2 --config extra.yaml")
    assert "is a file of its own" in refusal(read_files([script], command="serve"))
    both = read_files([script, written(tmp_path, "extra.yaml", EXTRA)], command="serve")
    assert refusal(both) == "" and both.options["kv-dtype"] == "fp8" and both.options["tp"] == 2


@pytest.mark.parametrize(("arguments", "extra", "said"), [
    ("--backend tensorrt", "", "backend: tensorrt is not modelled"),
    ("", "cuda_graph_config: null\n", "switches the graphs off"),
    ("", "moe_config:\n  backend: DEEPGEMM\n", "moe_config.backend"),
    ("", "cache_transceiver_config:\n  backend: UCX\n", "cache_transceiver_config"),
    ("", "speculative_config:\n  decoding_type: Medusa\n  max_draft_len: 2\n", "decoding_type Medusa"),
    ("", "disable_overlap_scheduler: true\n", "disable_overlap_scheduler"),
    ("--context_parallel_size 2", "", "context_parallel_size"), ("--max_batch_size many", "", "max_batch_size"),
    ("", "kv_cache_config:\n  max_attention_window: [512]\n", "kv_cache_config.max_attention_window"),
])
def test_what_may_change_memory_is_refused_by_its_name(arguments: str, extra: str, said: str) -> None:
    line = f"cat <<EOF > x.yaml\n{extra}stream_interval: 1\nEOF\ntrtllm-serve m {arguments} --config x.yaml"
    assert said in refusal(read_files([], command="serve", line=line))


def test_windows_and_experts_are_asked_of_networks_that_have_them() -> None:
    extra = "kv_cache_config:\n  max_attention_window: [512]\n"
    for model, refused in (("llama-3.1-8b", False), ("gemma-3-4b", True)):
        line = f"cat <<EOF > x.yaml\n{extra}\nEOF\ntrtllm-serve {model} --config x.yaml"
        try:
            with_configs({"gpus": "h100"}, Configs(line=line), command="serve")
        except vramcast.errors.Unsupported:
            assert refused
        else:
            assert not refused


def test_an_image_names_the_version() -> None:
    line = "docker run nvcr.io/nvidia/tensorrt-llm/release:1.0.0 trtllm-serve m"
    assert options(line)["engine"] == "tensorrt-llm@1.0.0"


@pytest.mark.parametrize("question", [
    {"model": "qwen3-32b", "gpus": "2xh100", "context": 8192, "kv-dtype": "fp8"},
    {"model": "llama-3.1-8b", "gpus": "h100", "max-sequences": 64, "batched-tokens": 4096, "memory-fraction": 0.7},
    {"model": "qwen3-30b-a3b", "gpus": "4xh100", "expert-parallel": True, "prefix-caching": False},
    {"model": "deepseek-v3", "gpus": "8xh200", "tp": 1, "dp": 8, "expert-parallel": True, "context": 16384},
    {"model": "llama-3.1-8b", "gpus": "2xh100", "pp": 2, "tp": 1, "cache-bytes": 8 << 30, "block-tokens": 64},
    {"model": "qwen3-8b", "gpus": "h100", "engine-option": ("max-tokens=100000",), "dtype": "fp16"},
])
def test_what_is_written_reads_back_as_the_plan(question: dict[str, Any], tmp_path: Path) -> None:
    job = serve_job_of(question | {"engine": "tensorrt-llm@1.1"})
    assert isinstance(job, ServeJob)
    files: dict[str, File] = {file.name: file for file in files_of(job)[0]}
    write_all(files, tmp_path)
    paths = tuple(str(tmp_path / name) for name in ("serve.sh", "trtllm_config.yaml"))
    again = serve_job_of({
        "model": question["model"], "gpus": question["gpus"], "engine": "tensorrt-llm@1.1", "from": paths,
    })
    assert isinstance(again, ServeJob)
    first, second = answer(job), answer(again)
    assert [rank.needed_bytes for rank in first.ranks] == [rank.needed_bytes for rank in second.ranks]
    assert first.capacity == second.capacity
