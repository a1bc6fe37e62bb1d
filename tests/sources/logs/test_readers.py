"""Logs of servers and trainers, line by line."""

from pathlib import Path
from typing import Any

import pytest

from tests.sources.logs.samples import FOLDER, gib, parsed, read, sample
from vramcast.errors import SourceError
from vramcast.sources.logs import read_log
from vramcast.sources.logs import wording as lines
from vramcast.sources.logs.wording import LogLine, log_lines
from vramcast.units import MIB

# What logs of each engine and age say.

RANKS: dict[str, dict[str, dict[str, float]]] = {
    "vllm-v0": {"": {"weights": 14.2487, "activations": 1.44, "communication": 0.12, "kv cache": 24.17}},
    "vllm-v0-results": {"": {"weights": 5.2064, "activations": 0.6236, "communication": 0.44, "kv cache": 6.83}},
    "vllm-v1": {
        "Worker_TP0": {
            "weights": 7.51, "activations": 1.01, "communication": 2.61, "cuda graphs": 0.66, "kv cache": 61.02
        },
        "Worker_TP1": {
            "weights": 7.51, "activations": 1.01, "communication": 2.61, "cuda graphs": 0.66, "kv cache": 61.00
        },
    },
    # the peak holds the estimated graphs, and consumed memory the weights
    "vllm-newest": {
        "EngineCore": {
            "weights": 15.27, "activations": 3.67 - 0.58, "communication": 15.60 - 15.27, "cuda graphs": 0.62,
            "kv cache": 53.0,
        }
    },
    "vllm-oom": {"EngineCore_DP0": {"weights": 13.72, "cuda graphs": 0.80, "kv cache": 50.10}},
    "sglang": {
        "TP1": {"weights": 7.58, "kv cache": 58.10, "communication": 1.21},
        "TP0": {"weights": 7.58, "kv cache": 58.10, "communication": 1.21, "cuda graphs": 0.62},
    },
    "sglang-draft": {"": {"weights": 15.40, "draft model": 0.90, "kv cache": 41.20 + 1.14, "cuda graphs": 0.75}},
    "sglang-hybrid": {"": {"weights": 13.60, "kv cache": 32.0 + 2.0}},  # the sum line replaces the two pools
    "sglang-old": {"TP0": {"weights": 78.50 - 63.45}},
    "tensorrt": {"": {"weights": 7700 / 1024, "activations": 608.02 / 1024, "inputs": 2.0, "kv cache": 59.40}},
    "tensorrt-pytorch": {"RANK 0": {"weights": 7.80, "activations": 1.10, "workspaces": 2.70, "kv cache": 57.28}},
    "llamacpp": {"CUDA0": {"weights": 4403.49 / 1024, "kv cache": 1088 / 1024, "activations": 296 / 1024}},
    "llamacpp-old": {"": {"weights": 3577.56 / 1024, "kv cache": 2.0, "activations": 291 / 1024}},
    "llamacpp-twice": {
        "CUDA0": {"weights": 4600 / 1024, "kv cache": 740 / 1024, "activations": 370 / 1024, "workspaces": 870 / 1024},
        "CUDA1": {"weights": 3700 / 1024, "kv cache": 554 / 1024, "activations": 310 / 1024},
    },
    "ollama": {"CUDA0": {"weights": 3.1, "kv cache": 338 / 1024, "activations": 1.1}},
}
"""Log -> process -> GiB by ledger category."""

OPTIONS: dict[str, dict[str, Any]] = {
    "vllm-v0": {
        "context": 4096, "memory-fraction": 0.9, "max-sequences": 256, "graphs": False, "kv-dtype": "fp8",
        "dtype": "fp16", "tp": 1,
    },
    "vllm-v1": {
        "context": 8192, "tp": 2, "pp": 1, "memory-fraction": 0.92, "max-sequences": 512, "batched-tokens": 8192,
        "dtype": "bf16",
    },
    "vllm-oom": {"memory-fraction": 0.95},
    "sglang": {"context": 32768, "tp": 2, "memory-fraction": 0.85, "max-sequences": 2048, "batched-tokens": 8192},
    "sglang-draft": {"draft": "eagle3", "draft-tokens": 4, "context": 40960},
    "tensorrt": {"context": 8192, "tp": 2, "max-sequences": 256, "batched-tokens": 8192, "block-tokens": 64},
    "tensorrt-pytorch": {"context": 16384, "tp": 2, "memory-fraction": 0.85, "max-sequences": 512},
    "llamacpp": {
        "context": 8192, "concurrency": 2, "micro-batch": 512, "kv-dtype": "q8_0", "v-dtype": "q8_0",
        "gpu-layers": 33, "attention": "flash",
    },
    "ollama": {"context": 4096, "concurrency": 2},
}


@pytest.mark.parametrize("name", RANKS)
def test_every_process_states_its_memory_by_ledger_category(name: str) -> None:
    found = {rank.label: rank.num_bytes for rank in read(name).ranks}
    assert set(found) == set(RANKS[name])
    for label, sizes in RANKS[name].items():
        assert found[label] == pytest.approx({key: gib(size) for key, size in sizes.items()}, abs=MIB / 4), label


@pytest.mark.parametrize("name", OPTIONS)
def test_arguments_become_options_of_the_question(name: str) -> None:
    options = read(name).options
    assert {key: options.get(key) for key in OPTIONS[name]} == OPTIONS[name]


def test_older_words_of_an_out_of_memory_message_are_read_too() -> None:
    older = (
        "INFO llm_engine.py:237] Initializing an LLM engine (v0.6.1) with config: model='facebook/opt-6.7b'\n"
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 128.00 MiB (GPU 0; 23.65 GiB total "
        "capacity; 22.10 GiB already allocated; 96.00 MiB free; 22.40 GiB reserved in total by PyTorch)\n"
    )
    message = parsed(older).out_of_memory
    assert message is not None
    assert (message.tried, message.total, message.free) == (128 * MIB, gib(23.65), 96 * MIB)
    assert message.unallocated == pytest.approx(gib(0.30), abs=2)
    assert message.stage == "load"


def test_a_draft_model_is_no_second_startup() -> None:
    assert read("llamacpp-twice").startups == 1
    again = sample("llamacpp") + sample("llamacpp").replace("4403.49", "4000.00")
    log = parsed(again)
    assert log.startups == 2
    assert log.ranks[0].num_bytes["weights"] == 4000 * MIB


def test_a_speculative_config_becomes_a_draft() -> None:
    text = sample("vllm-v1").replace(
        "speculative_config=None",
        "speculative_config=SpeculativeConfig(method='eagle3', model='x/y', num_spec_tokens=3)",
    )
    options = parsed(text).options
    assert (options["draft"], options["draft-tokens"]) == ("eagle3", 3)


def test_adapters_count_only_where_they_are_enabled() -> None:
    assert "lora-slots" not in read("vllm-v0").options
    enabled = sample("vllm-v0").replace("enable_lora=False, max_loras=1", "enable_lora=True, max_loras=4")
    assert parsed(enabled).options["lora-slots"] == 4


# Lines of files as they are found: encodings, colours, sizes, files that are no logs.

def lines_of(path: Path) -> list[LogLine]:
    return [line for found in log_lines(path) for line in found]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_encodings_and_line_ends_of_any_shell_are_read(tmp_path: Path, encoding: str, newline: str) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(sample("vllm-v1").replace("\n", newline).encode(encoding))
    assert read_log(path).ranks == read_log(FOLDER / "vllm-v1.log").ranks


def test_bytes_that_are_no_utf8_do_not_hide_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"caf\xe9 \xff\xfe\n" + sample("vllm-v0").encode())
    assert read_log(path).ranks[0].num_bytes["kv cache"] == gib(24.17)


def test_colours_are_taken_out(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("\x1b[1;36mred\x1b[0;0m #033[1;36mblue#033[0;0m ^[[0mgreen\n", encoding="utf-8")
    assert lines_of(path)[0].text == "red blue green\n"


def test_an_endless_line_is_cut_and_the_next_one_read(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("a" * (3 * lines.LONGEST_LINE + 5) + "\nb\n", encoding="utf-8")
    found = lines_of(path)
    assert [len(line.text) for line in found] == [lines.LONGEST_LINE, 2]
    assert found[1] == LogLine(2, "b\n")


def test_an_endless_log_is_cut_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LARGEST_LOG", 10_000)
    path = tmp_path / "x.log"
    path.write_text(sample("vllm-v0") + "x\n" * 100_000, encoding="utf-8")
    assert read_log(path).cut
    assert not read_log(FOLDER / "vllm-v0.log").cut


def test_a_missing_file_and_a_folder_get_one_sentence(tmp_path: Path) -> None:
    for path in (tmp_path / "none.log", tmp_path):
        with pytest.raises(SourceError, match=path.name):
            read_log(path)
