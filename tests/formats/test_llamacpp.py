"""Commands of llama.cpp: read by their long names and short ones, and back from what is written."""

from pathlib import Path
from typing import Any

import pytest

from tests.formats.plans import write_all
from tests.formats.test_readers import refusal
from vramcast.api import serve_job_of
from vramcast.catalogue.formats import harmless, load_format
from vramcast.domain.serving import ServeJob
from vramcast.estimate.serving import answer
from vramcast.formats.files import File
from vramcast.formats.merged import with_configs
from vramcast.formats.paths import Configs
from vramcast.formats.read import read_files
from vramcast.formats.reading import CONTEXT_OF_BUILD
from vramcast.formats.write import files_of

HEAD = "llama-server -m models/Qwen3-8B-Q4_K_M.gguf "
SAID = {"engine": "llama.cpp", "model": "qwen3-8b", "weights": "q4_k_m", "concurrency": 1, "context": 4096}


def options(line: str) -> dict[str, Any]:
    given = read_files([], command="serve", line=line)
    assert refusal(given) == ""
    return given.options


@pytest.mark.parametrize(("arguments", "said"), [
    ("", {}),
    ("-c 16384 -np 4", {"context": 4096, "concurrency": 4}),
    ("--ctx-size 16384 --parallel 4 --kv-unified",
     {"context": 16384, "concurrency": 1, "max-sequences": 4, "engine-option": ("kv-unified=true",)}),
    ("-ngl 99 -c 8192", {"context": 8192}), ("-ngl 20 -c 8192", {"context": 8192, "gpu-layers": 20}),
    ("-ngl all -c 8192 -fa", {"context": 8192, "attention": "flash"}),
    ("-c 8192 -fa off -ub 1024 -b 4096",
     {"context": 8192, "attention": "eager", "micro-batch": 1024, "engine-option": ("batch=4096",)}),
    ("-c 8192 -ctk q8_0 -ctv q4_0", {"context": 8192, "kv-dtype": "q8_0", "v-dtype": "q4_0"}),
    ("-c 8192 -ctk q8_0", {"context": 8192, "kv-dtype": "q8_0", "v-dtype": "fp16"}),
    ("-c 8192 -ts 3,1 -sm layer -nkvo", {
        "context": 8192, "engine-option": ("tensor-split=3,1", "split-mode=layer", "kv-offload=false")}),
    ("-c 8192 -sm none", {"context": 8192, "engine-option": ("split-mode=none",)}),
    ("-c 8192 -ot exps=CPU --n-cpu-moe 10 -dev none --temp 0.7 --top-p 0.8 --jinja --rope-scaling yarn", {
        "context": 8192, "engine-option": ("n-cpu-moe=10", "override-tensor=exps=CPU", "device=none")}),
    ("-c 8192 -mla 3 -amb 512 -fmoe", {
        "engine": "ik_llama.cpp", "context": 8192, "engine-option": ("mla=3", "amb=512", "fmoe=true")}),
])
def test_arguments_by_their_short_names_and_long_ones(arguments: str, said: dict[str, Any]) -> None:
    assert options(HEAD + arguments) == SAID | said


@pytest.mark.parametrize(("arguments", "said"), [
    ("-md small.gguf", "model_draft"), ("--mmproj p-Q4_K_M.gguf", "mmproj"), ("--lora a.gguf", "lora"),
    ("-sm row", "split"),
    ("--embedding", "embedding"), ("-c 0 -np 4", "over all slots"), ("-c many", "ctx_size"), ("-ctk q9", "cache_type"),
    ("-dev CUDA0", "names cards"), ("--nonsense 3", "knows no such name"), ("--gpt-oss-20b-default", "gpt_oss_20b_def"),
])
def test_what_may_change_memory_is_refused_by_its_name(arguments: str, said: str) -> None:
    assert said in refusal(read_files([], command="serve", line=HEAD + arguments))


@pytest.mark.parametrize("line", [
    "llama-server -m /models/mine-Q4_K_M.gguf", "llama-server -hf unsloth/Qwen3-8B-GGUF:UD-Q4_K_XL --no-mmproj",
    "llama-server --model-url https://x/y.gguf",
])
def test_a_file_whose_name_does_not_say_what_it_holds_is_asked_for(line: str) -> None:
    given = read_files([], command="serve", line=line)
    assert "name the model" in refusal(given)
    merged, _ = with_configs({"model": "qwen3-8b", "gpus": "l4"}, Configs(line=line), command="serve")
    assert merged["model"] == "qwen3-8b"


def test_the_context_is_what_the_build_has() -> None:
    image = "docker run ghcr.io/ggml-org/llama.cpp:server-cuda-b{} -m Qwen3-8B-Q4_0.gguf"
    assert options(image.format(6900))["context"] == 4096
    said = [read_files([], command="serve", line=line).unread for line in
            (image.format(6900), "llama-server -m Qwen3-8B-Q4_0.gguf", "llama-server -m Qwen3-8B-Q4_0.gguf -c 4096")]
    assert [any(CONTEXT_OF_BUILD in str(one) for one in lines) for lines in said] == [False, True, False]
    fitted = {"gpus": "rtx-4090", "engine": "llama.cpp@8000"}  # the build beside a command that names none
    for said, pairs in (("", ()), (" -ngl 99", ("fit=context",)), (" -ngl auto", ()), (" --fit off", ("fit=off",))):
        line = "llama-server -m Qwen3-8B-Q4_0.gguf" + said
        merged, _ = with_configs(dict(fitted), Configs(line=line), command="serve")
        assert "context" not in merged and merged.get("engine-option", ()) == pairs
    assert "context" not in options(image.format(7500))
    assert "over all slots" in refusal(read_files([], command="serve", line=image.format(7500) + " -np 4"))


@pytest.mark.parametrize(("lines", "pairs"), [
    ('command: [-m, Qwen3-8B-Q4_0.gguf, "-ngl", "99", "-c", "8192"]', ("fit=context",)),
    ("environment: {LLAMA_ARG_MODEL: Qwen3-8B-Q4_0.gguf, LLAMA_ARG_CTX_SIZE: 8192, LLAMA_ARG_FIT: off}", ("fit=off",)),
])
def test_a_compose_file_says_what_fit_leaves_alone_as_a_command_does(
    lines: str, pairs: tuple[str, ...], tmp_path: Path
) -> None:
    for build in (7000, 8000):
        file = tmp_path / "compose.yaml"
        file.write_text(f"services: {{a: {{image: 'ghcr.io/ggml-org/llama.cpp:server-cuda-b{build}', {lines}}}}}")
        merged, _ = with_configs({"gpus": "rtx-4090"}, Configs((str(file),)), command="serve")
        assert (merged["context"], merged.get("engine-option", ())) == (8192, pairs if build == 8000 else ())


@pytest.mark.parametrize(("arguments", "pairs"), [
    ("-hf ggml-org/Qwen3-8B-GGUF", set()), ("-hf ggml-org/gemma-3-4b-it-GGUF", {"mmproj=auto"}),
    ("-hf ggml-org/gemma-3-4b-it-GGUF --no-mmproj", set()),
    ("-m gemma-3-4b-it-Q4_K_M.gguf", set()),
    ("-m gemma-3-4b-it-Q4_K_M.gguf --mmproj mmproj-BF16.gguf", {"mmproj=bf16"}),
    ("-m gemma-3-4b-it-Q4_K_M.gguf -mm /m/p.gguf --no-mmproj-offload", {"mmproj=f16", "mmproj-offload=false"}),
    ("-m Qwen2.5-VL-7B-Instruct-Q4_K_M.gguf --mmproj-url https://x/mmproj-Q8_0.gguf --image-max-tokens 1024",
     {"mmproj=q8_0", "image-max-tokens=1024"}),
])
def test_a_projector_is_loaded_as_the_command_says(arguments: str, pairs: set[str]) -> None:
    assert set(options(f"llama-server -c 4096 {arguments}").get("engine-option", ())) == pairs


@pytest.mark.parametrize("question", [
    {"model": "qwen3-8b", "context": 8192, "weights": "q4_k_m"},
    {"model": "llama-3.1-8b", "context": 4096, "concurrency": 4, "weights": "q8_0", "gpu-layers": 20},
    {"model": "qwen3-30b-a3b", "context": 4096, "weights": "q4_k_m", "engine-option": ("n-cpu-moe=30", "batch=1024")},
    {"model": "qwen3-8b", "context": 16384, "max-sequences": 4, "kv-dtype": "q8_0", "attention": "flash",
     "engine-option": ("kv-unified=true",), "weights": "iq4_xs"},
    {"model": "gemma-3-4b", "context": 8192, "weights": "q4_0", "engine-option": ("swa-full=true",)},
    {"model": "qwen3-32b", "context": 32768, "weights": "q4_k_m", "engine": "llama.cpp@8000"},  # --fit moves layers
    {"model": "qwen3-30b-a3b", "weights": "q8_0", "concurrency": 4, "engine": "llama.cpp@8000"},
])
def test_what_is_written_reads_back_as_the_plan(question: dict[str, Any], tmp_path: Path) -> None:
    asked = {"gpus": "rtx-4090", "engine": question.get("engine", "llama.cpp@7000")}
    job = serve_job_of(question | asked)
    assert isinstance(job, ServeJob)
    files: dict[str, File] = {file.name: file for file in files_of(job)[0]}
    write_all(files, tmp_path)
    again = serve_job_of(asked | {"from": (str(tmp_path / "serve.sh"),)})
    assert isinstance(again, ServeJob)
    first, second = answer(job), answer(again)
    assert [rank.needed_bytes for rank in first.ranks] == [rank.needed_bytes for rank in second.ranks]


def test_harmless_names_are_those_of_the_snapshot() -> None:
    known = {name.replace("-", "_") for name in load_format("llamacpp").sections["arguments"]}
    later = {"mlock", "no_warmup", "webui", "p", "prompt", "no_mmap"}  # of other programs and builds
    assert harmless("llamacpp", "arguments") - later <= known
