"""Ollama's Modelfile and commands, answered as the server of llama.cpp that it starts; and servers that are refused."""

from pathlib import Path
from typing import Any

import pytest

from tests.formats.test_readers import refusal, written
from vramcast.formats.merged import with_configs
from vramcast.formats.paths import Configs, as_started
from vramcast.formats.read import read_files
from vramcast.formats.reading import Given

MODELFILE = '''# mine
FROM llama3.1:8b
PARAMETER	num_ctx	16384
PARAMETER temperature 0.7
PARAMETER stop "<|eot_id|>"
PARAMETER num_gpu 20
SYSTEM """
FROM here on you are a pirate
PARAMETER num_ctx 1
"""
'''
STARTED = {"engine": "llama.cpp@10488", "concurrency": 1, "micro-batch": 512, "engine-option": ("batch=512",)}


def asked(line: str) -> Given:
    """What a command says."""
    return read_files([], command="serve", line=line)


def test_a_modelfile_is_a_question_about_llama_cpp(tmp_path: Path) -> None:
    for name, layers in (("Modelfile", 20), ("mine.txt", 20), ("mine.txt", 99)):  # 99 are all, and --fit moves none
        text = MODELFILE.replace("num_gpu 20", f"num_gpu {layers}")
        merged, given = with_configs({"gpus": "l4"}, Configs((written(tmp_path, name, text),)), command="serve")
        assert {option: value for option, value in merged.items() if option != "gpus"} == STARTED | {
            "model": "llama-3.1-8b", "weights": "q4_k_m", "context": 16384, "gpu-layers": layers}
        assert any("taken for llama-3.1-8b" in line for line in given.assumptions)


@pytest.mark.parametrize(("line", "said"), [
    ("OLLAMA_CONTEXT_LENGTH=8192 OLLAMA_NUM_PARALLEL=4 ollama run qwen3:8b",
     {"model": "qwen3-8b", "weights": "q4_k_m", "context": 8192, "concurrency": 4}),
    ("OLLAMA_CONTEXT_LENGTH=8192 OLLAMA_FLASH_ATTENTION=1 OLLAMA_KV_CACHE_TYPE=q8_0 ollama run "
     "llama3.1:8b-instruct-q8_0",
     {"model": "llama-3.1-8b", "weights": "q8_0", "context": 8192, "attention": "flash", "kv-dtype": "q8_0",
      "v-dtype": "q8_0"}),
    ("OLLAMA_CONTEXT_LENGTH=8192 ollama run hf.co/bartowski/Llama-3.2-3B-Instruct-GGUF:IQ4_XS",
     {"model": "llama-3.2-3b", "weights": "iq4_xs", "context": 8192}),
    ("OLLAMA_CONTEXT_LENGTH=8192 OLLAMA_MAX_LOADED_MODELS=1 ollama run gpt-oss:20b",
     {"model": "gpt-oss-20b", "context": 8192}),
    ("OLLAMA_CONTEXT_LENGTH=8192 ollama run deepseek-r1:70b",
     {"model": "deepseek-r1-distill-llama-70b", "weights": "q4_k_m", "context": 8192}),
    ("OLLAMA_CONTEXT_LENGTH=8192 ollama run deepseek-v3:671b",
     {"model": "deepseek-v3", "weights": "q4_k_m", "context": 8192}),
    ("OLLAMA_CONTEXT_LENGTH=8192 ollama run llama3.2", {"model": "llama-3.2-3b", "weights": "q4_k_m", "context": 8192}),
    # the library's sizes alone are the tuned networks, whose context may be shorter (ollama/ollama#6865: 32768)
    ("OLLAMA_CONTEXT_LENGTH=8192 ollama run qwen2.5:72b",
     {"model": "qwen2.5-72b-instruct", "weights": "q4_k_m", "context": 8192}),
    ("OLLAMA_CONTEXT_LENGTH=8192 OLLAMA_HOST=0.0.0.0 OLLAMA_KEEP_ALIVE=-1 ollama run qwen3:8b",
     {"model": "qwen3-8b", "weights": "q4_k_m", "context": 8192}),
    ("OLLAMA_CONTEXT_LENGTH=8192 ollama run --keepalive 1h --think=high --verbose qwen3:8b a=b",
     {"model": "qwen3-8b", "weights": "q4_k_m", "context": 8192}),
    ("docker run -e OLLAMA_CONTEXT_LENGTH=4096 ollama/ollama; docker exec ollama ollama run qwen3:8b",
     {"model": "qwen3-8b", "weights": "q4_k_m", "context": 4096}),
])
def test_commands_with_their_environment(line: str, said: dict[str, Any]) -> None:
    given = asked(line)
    assert refusal(given) == "" and given.options == STARTED | said


@pytest.mark.parametrize(("options", "line"), [
    ({"model": "qwen3-30b-a3b", "engine": "ollama"}, "ollama run qwen3-30b-a3b"),
    ({"model": "qwen3:8b"}, "ollama run qwen3:8b"),
    ({"model": "qwen3:8b", "engine": "llama.cpp"}, "ollama run qwen3:8b"),
    ({"model": "qwen3:8b", "engine": "llama.cpp@9000"}, "ollama run qwen3:8b"),
    ({"model": "qwen3:8b", "engine": "ollama@0.12"}, None), ({"model": "qwen3-8b", "engine": "llama.cpp"}, None),
    ({"model": "qwen3-8b"}, None), ({"engine": "ollama"}, None),
])
def test_what_ollama_is_to_run_is_its_command(options: dict[str, Any], line: str | None) -> None:
    """A version that is named stays; of Ollama's own nobody knows the build of llama.cpp."""
    kept = {"engine": options["engine"]} if "@" in options.get("engine", "") else {}
    assert as_started(options, "serve") == (options if line is None else kept | {"from-command": line})


@pytest.mark.parametrize(("command", "model"), [("", {"model": "llama-3.1-8b"}), ("command: serve", {
    "model": "llama-3.1-8b"}), ("command: run qwen3:8b", {"model": "qwen3-8b", "weights": "q4_k_m"})])
def test_a_compose_service_of_ollama_is_read(command: str, model: dict[str, Any], tmp_path: Path) -> None:
    """Its image starts the server by itself."""
    text = f"""services:
  ollama:
    image: ollama/ollama:latest
    environment: [OLLAMA_CONTEXT_LENGTH=8192, OLLAMA_NUM_PARALLEL=4]
    {command}
"""
    asks = {"gpus": "l4"} | ({} if "run" in command else {"model": "llama-3.1-8b", "weights": "q4_k_m"})
    merged, _ = with_configs(asks, Configs((written(tmp_path, "compose.yaml", text),)), command="serve")
    assert (model | {"engine": STARTED["engine"], "context": 8192, "concurrency": 4}).items() <= merged.items()


@pytest.mark.parametrize(("line", "said"), [
    ("ollama run qwen3:8b", "num_ctx: is 4096, 32768 or 262144"),
    ("OLLAMA_CONTEXT_LENGTH=4096 ollama serve", "ollama serve: loads what it is asked for"),
    ("docker run -d --gpus=all -v ollama:/root/.ollama ollama/ollama", "ollama serve: loads what it is asked for"),
    ("ollama run llama3.2:3b --num_ctx 4096", "--num_ctx: is no flag of ollama run"),
    ("OLLAMA_CONTEXT_LENGTH=4096 ollama run qwen3:8b --draft qwen3:0.6b", "draft"),
    ("docker run -e OLLAMA_CONTEXT_LENGTH=4096 ollama/ollama:0.6.8; docker exec ollama ollama run qwen3:8b",
     "ollama/ollama:0.6.8: does not say which llama.cpp is in it"),
    ("OLLAMA_CONTEXT_LENGTH=4096 ollama run nobodys", "from: says no size"),
    ("OLLAMA_CONTEXT_LENGTH=4096 ollama run nobodys:8b", "from: says no network"),
    ("OLLAMA_CONTEXT_LENGTH=4096 ollama run hf.co/unsloth/gpt-oss-20b-GGUF:F16", "stores its layers in several ways"),
    ("OLLAMA_CONTEXT_LENGTH=4096 OLLAMA_GPU_OVERHEAD=1000 ollama run qwen3:8b", "$OLLAMA_GPU_OVERHEAD"),
    ("OLLAMA_CONTEXT_LENGTH=4096 OLLAMA_KV_CACHE_TYPE=q3 ollama run qwen3:8b", "kv_cache_type"),
])
def test_what_only_ollama_knows_is_asked_for(line: str, said: str) -> None:
    assert said in refusal(asked(line))


def test_a_variable_that_it_does_not_see_is_said(tmp_path: Path) -> None:
    text = "OLLAMA_NUM_PARALLEL=4\nOLLAMA_CONTEXT_LENGTH=4096 ollama run qwen3:8b\n"
    found = read_files([written(tmp_path, "run.sh", text)], command="serve")
    assert [one.name for _, one in found.unread] == ["$OLLAMA_NUM_PARALLEL"]


def test_two_models_of_one_server_are_asked_about(tmp_path: Path) -> None:
    started = "ollama serve &\nollama run llama3.1:8b hi\nollama run {} hi\n"
    one, two = (read_files([written(tmp_path, f"{name[:5]}.sh", started.format(name))], command="serve")
                for name in ("llama3.1:8b", "qwen2.5:7b"))
    assert "keep one of them: llama3.1:8b, qwen2.5:7b" in refusal(two)
    assert "keep one" not in refusal(one)
