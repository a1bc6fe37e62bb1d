"""`trtllm-serve` and the file beside it, read and written."""

from pathlib import Path
from typing import Any

import pytest

from tests.formats.plans import write_all
from tests.formats.test_readers import refusal
from vramcast.api import serve_job_of
from vramcast.domain.serving import ServeJob
from vramcast.estimate.serving import answer
from vramcast.formats.files import File
from vramcast.formats.read import read_files
from vramcast.formats.write import files_of


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


@pytest.mark.parametrize(("balance", "steps"), [("{enable_balance: true, timeout_iters: 60}", 60), (
    "{enable_balance: true}", 50), ("{enable_balance: false, timeout_iters: 60}", None)])
def test_ranks_that_wait_for_prompts_of_all_are_read(balance: str, steps: int | None) -> None:
    line = (f"cat <<EOF > x.yaml\nenable_attention_dp: true\nattention_dp_config: {balance}\nEOF\n"
            "trtllm-serve deepseek-ai/DeepSeek-V3 --tp_size 8 --ep_size 8 --config x.yaml")
    options = read_files([], command="serve", line=line).options.get("engine-option", ())
    assert options == ((f"attention-dp-timeout-iters={steps}",) if steps else ())


def test_ranks_that_attend_apart_are_not_guessed_without_the_command(tmp_path: Path) -> None:
    file = tmp_path / "trtllm_config.yaml"
    file.write_text("kv_cache_config:\n  dtype: auto\nenable_attention_dp: true\n")
    assert "give --dp N --attention-dp" in refusal(read_files([str(file)], command="serve"))


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
