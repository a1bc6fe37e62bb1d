"""No option of any command takes a word that means nothing."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from vramcast.api import job_of, planned_serving, planned_training, post_training_answer, serve_answer
from vramcast.engines.diffusers import OPTIONS as DIFFUSERS
from vramcast.engines.llamacpp.settings import FORK_OPTIONS
from vramcast.engines.llamacpp.settings import OPTIONS as LLAMACPP
from vramcast.engines.serving.requests import Known
from vramcast.engines.sglang.settings import OPTIONS as SGLANG
from vramcast.engines.tensorrt_llm import OPTIONS as TENSORRT_LLM
from vramcast.engines.training import TRAINING as ENGINES
from vramcast.engines.transformers.settings import OPTIONS as TRANSFORMERS
from vramcast.engines.vllm.settings import KNOWN as VLLM
from vramcast.errors import VramcastError
from vramcast.estimate.checks import check_options, options_of
from vramcast.estimate.training import answer
from vramcast.question.options import OPTIONS, Kind, Option
from vramcast.question.tables import PLAN_OPTIONS, POST_TRAINING_OPTIONS, SERVE_OPTIONS
from vramcast.question.tracing import TRACE_OPTIONS, build_script, build_trace

ASKED: dict[str, dict[str, Any]] = {
    "train": {"model": "llama-3.2-1b", "gpus": "8xh100", "seq-len": 256},
    "serve": {"model": "llama-3.2-1b", "gpus": "h100", "context": 512, "concurrency": 2},
    "rl": {"model": "qwen2.5-0.5b", "gpus": "8xh100"},
    "plan train": {"model": "llama-3.2-1b", "on": "2xh100", "top": 1, "global-batch": 4, "engine": "torchtitan"},
    "plan serve": {"model": "llama-3.2-1b", "on": "h100", "context": 512, "concurrency": 2, "top": 1},
}

BESIDE: dict[str, dict[str, Any]] = {
    "lora-targets": {"peft": "lora", "engine": "huggingface"},
    "modules-to-save": {"peft": "lora", "engine": "huggingface"},
    "recompute-modules": {"recompute": "selective", "engine": "megatron"},
    "budget": {"tokens": "1B"}, "deadline": {"tokens": "1B"},
    "v-dtype": {"engine": "llama.cpp"},
}
"""Option -> what must be said with it."""

NEEDS_TORCH = ("loss", "optimizer", "checkpoint")
"""Options of a trace whose names only torch can look up: tests/tracing says what becomes of them."""

TEXTS = (Kind.TEXT, Kind.NAMES, Kind.AMOUNT, Kind.CHOICE, Kind.COUNT, Kind.NUMBER)


def asked(command: str, options: Mapping[str, Any]) -> object:
    match command:
        case "train":
            return answer(job_of(options), with_changes=False)
        case "serve":
            return serve_answer(options, with_changes=False)
        case "rl":
            return post_training_answer(options, with_changes=False)
        case "plan train":
            return planned_training(options).answer
        case _:
            return planned_serving(options)[0]


def tables() -> list[tuple[str, str]]:
    from vramcast.question.plan_serving import PLAN_SERVE_OPTIONS

    rows: dict[str, Mapping[str, Option]] = {
        "train": OPTIONS, "serve": SERVE_OPTIONS, "rl": POST_TRAINING_OPTIONS, "plan train": PLAN_OPTIONS,
        "plan serve": PLAN_SERVE_OPTIONS,
    }
    return [(command, name) for command, table in rows.items() for name, row in table.items() if row.kind in TEXTS]


@pytest.mark.parametrize(("command", "name"), tables())
def test_foo_means_nothing(command: str, name: str) -> None:
    beside = BESIDE.get(name, {}) if not (command.startswith("plan") and name == "recompute-modules") else {}
    for text in ("foo", "foo=1") if name == "engine-option" else ("foo",):
        with pytest.raises(VramcastError) as caught:
            asked(command, {**ASKED[command], **beside, name: text})
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [
    name for name, option in TRACE_OPTIONS.items() if option.kind in TEXTS and name not in NEEDS_TORCH
])
def test_foo_means_nothing_to_a_trace(name: str, tmp_path: Any) -> None:
    script = tmp_path / "a.py"
    script.write_text("")
    with pytest.raises(VramcastError):
        if TRACE_OPTIONS[name].section == "script":
            build_script(str(script), {name: "foo"})
        else:
            build_trace("torch.nn:Linear", {"input": ["4x8"], name: ["foo"] if name == "input" else "foo"})


@pytest.mark.parametrize("engine", ENGINES)
def test_training_engines_refuse_values_that_their_options_cannot_have(engine: str) -> None:
    gpus = "h100" if engine == "unsloth" else "8xh100"
    for name in options_of(engine).__struct_fields__:
        refused = 0
        for text in ("foo", "-1", "1.5", "99999999999999999", "true", "nan"):
            try:
                answer(job_of({"model": "llama-3.2-1b", "gpus": gpus, "seq-len": 64, "engine": engine,
                               "engine-option": f"{name}={text}"}), with_changes=False)
            except VramcastError:
                refused += 1
        assert refused >= 3, name


def test_an_engine_without_options_does_not_take_those_of_another() -> None:
    job = job_of({"model": "llama-3.2-1b", "gpus": "h100", "engine": "pytorch", "engine-option": "fsdp=true"})
    with pytest.raises(VramcastError, match="picotron has no engine options; leave fsdp out"):
        check_options(replace(job, engine="picotron"))


SERVERS: dict[str, Mapping[str, Known]] = {
    "vllm": VLLM, "sglang": SGLANG, "tensorrt-llm": TENSORRT_LLM, "llama.cpp": LLAMACPP, "ik_llama.cpp": FORK_OPTIONS,
    "transformers": TRANSFORMERS, "diffusers": DIFFUSERS,
}


@pytest.mark.parametrize("engine", SERVERS)
def test_serving_engines_refuse_values_that_their_options_cannot_have(engine: str) -> None:
    model = "flux.1-dev" if engine == "diffusers" else "llama-3.2-1b"
    for name, known in SERVERS[engine].items():
        wrong = ["foo", "-1", "nan", "99999999999999999"] if known.kind is not str or known.choices else ["foo"]
        for text in wrong:
            with pytest.raises(VramcastError):
                serve_answer({"model": model, "gpus": "h100", "engine": engine, "engine-option": f"{name}={text}",
                              **({} if engine == "diffusers" else {"context": 512, "concurrency": 1})},
                             with_changes=False)


@pytest.mark.parametrize(("engine", "option", "lacks"), [
    ("llama.cpp", "n-cpu-moe=4", "no experts"), ("llama.cpp", "swa-full=true", "no sliding windows"),
    ("ik_llama.cpp", "mla=2", "no latent attention"), ("vllm", "images=2", "no towers"),
    ("sglang", "max-mamba-cache-size=8", "no recurrent states"), ("llama.cpp", "device=CUDA1", "one of none"),
])
def test_an_option_about_what_the_model_lacks_is_refused(engine: str, option: str, lacks: str) -> None:
    with pytest.raises(VramcastError, match=lacks):
        serve_answer({"model": "llama-3.2-1b", "gpus": "h100", "engine": engine, "engine-option": option,
                      "context": 512, "concurrency": 1}, with_changes=False)
