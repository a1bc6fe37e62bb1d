"""Scripts of servers, torchtitan and Megatron-LM read back as the plan: the same bytes and the same speed."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.formats.plans import named, notes, saying_all, training, write_all
from tests.formats.test_random_plans import COMMON, ENGINES
from tests.formats.test_read_back import figures, read_again
from vramcast.api import job_of, serve_job_of
from vramcast.domain.job import Job
from vramcast.domain.serving import ServeJob
from vramcast.errors import Unsupported, VramcastError
from vramcast.estimate.serving import answer as serve_answer
from vramcast.formats.files import File
from vramcast.formats.write import files_of
from vramcast.question.tables import SERVE_OPTIONS
from vramcast.question.whole_command import serve_options

QUIETLY = settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)

LOAD = ("input-len", "output-len", "concurrency", "images")
"""Options that say what users ask, not how a server is started."""

OF_SERVERS: dict[str, Any] = {
    "context": st.sampled_from([1000, 4096]),
    "input_len": st.sampled_from([128, 4475]),
    "output_len": st.sampled_from([64, 4475]),
    "concurrency": st.sampled_from([1, 33, 300]),
    "kv_dtype": st.sampled_from(["auto", "fp8"]),
    "graphs": st.booleans(),
    "prefix_caching": st.booleans(),
    "memory_fraction": st.sampled_from([0.3, 0.9]),
    "max_sequences": st.sampled_from([1, 100]),
    "batched_tokens": st.sampled_from([1000, 4096]),
    "lora_slots": st.integers(1, 4),
    "draft": st.sampled_from(["eagle", "ngram"]),
    "weights": st.sampled_from(["fp8", "gptq-int4", "fp16", "int8"]),
    "dtype": st.sampled_from(["fp16", "fp32"]),
    "pp": st.sampled_from([1, 2]),
    "dp": st.sampled_from([1, 2]),
}
OWN = {
    "vllm": ("v1=true", "flashinfer-sampler=true", "graphs-in-budget=false", "allow-long=true", "hybrid-manager=false",
             "attention-backend=TRITON_ATTN"),
    "sglang": ("cuda-graph-max-bs=3", "max-total-tokens=9000", "allow-long=true"),
}


def server_again(job: ServeJob, options: Mapping[str, Any], folder: Path) -> ServeJob:
    """The job of its script, with what that does not say."""
    found: dict[str, File] = {file.name: file for file in files_of(job)[0]}
    write_all(found, folder)
    said, full = found["serve.sh"].said, serve_options(job, options, model=options["model"])
    given = {"model": options["model"], "gpus": options["gpus"], "engine": full["engine"]}
    for name, option in SERVE_OPTIONS.items():
        field = f"draft.{'kind' if name == 'draft' else 'tokens'}" if option.section == "draft" else option.field
        if name in full and option.section in ("requests", "plan", "draft") and (name in LOAD or field not in said):
            given[name] = full[name]
    again = serve_job_of(given | {"from": (str(folder / "serve.sh"),)})
    assert isinstance(again, ServeJob)
    return again


def served(job: ServeJob) -> tuple[Any, ...]:
    found = serve_answer(job)
    return [rank.needed_bytes for rank in found.ranks], found.verdict, found.speed and found.speed.tokens_per_s


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@QUIETLY
@given(st.data())
def test_scripts_of_servers_read_back(engine: str, data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(list(OF_SERVERS)), max_size=5, unique=True))
    options = named({name: data.draw(OF_SERVERS[name]) for name in names})
    if data.draw(st.booleans()):
        options["engine-option"] = (data.draw(st.sampled_from(OWN[engine])),)
    model = data.draw(st.sampled_from(["llama-3.2-1b", "bloom-560m", "qwen3-30b-a3b", "vit-base-patch16-224"]))
    options |= {"model": model, "gpus": data.draw(st.sampled_from(["l4", "4xh100"])), "engine": engine}
    try:
        job = serve_job_of(options)
        assert isinstance(job, ServeJob)
        expected = served(job)
    except VramcastError:
        assume(False)
    try:
        saying_all(job)
    except Unsupported:
        return
    with tempfile.TemporaryDirectory() as folder:
        assert served(server_again(job, options, Path(folder))) == expected, options


@pytest.mark.parametrize(
    ("engine", "read"), [("torchtitan", ("run.sh", "vramcast_plan.py")), ("megatron", ("run.sh",))]
)
@QUIETLY
@given(st.data())
def test_scripts_of_trainers_read_back(engine: str, read: tuple[str, ...], data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(ENGINES[engine]), max_size=5, unique=True))
    options: dict[str, Any] = named({name: data.draw(COMMON[name]) for name in names})
    gpus = data.draw(st.sampled_from(["h100", "8xh100", "2x8xh100"]))
    options |= {"model": data.draw(st.sampled_from(["llama-3.2-1b", "qwen3-0.6b"])), "gpus": gpus,
                "engine": engine}
    try:
        job = job_of(options)
        expected = figures(job)
    except VramcastError:
        assume(False)
    try:
        saying_all(job)
    except Unsupported:
        return
    assert [figures(again) for _, again in read_again(job, options, [read])] == [expected], options


@pytest.mark.parametrize("model", [
    "llama-3.2-1b", "qwen1.5-moe-a2.7b", "mamba-codestral-7b", "nemotron-h-8b", "falcon-rw-1b", "deepseek-v2-lite",
])
def test_scripts_of_megatron_describe_the_network(model: str, tmp_path: Path) -> None:
    """Read without a name beside it."""
    job = training(model, "8xh100", engine="megatron", seq_len=512)
    write_all({file.name: file for file in files_of(job)[0]}, tmp_path)
    again: Job = job_of({"gpus": "8xh100", "from": (str(tmp_path / "run.sh"),)})
    assert figures(again) == figures(job)


def test_what_arguments_of_megatron_cannot_say_is_said() -> None:
    job = training("olmoe-1b-7b", "8xh100", engine="megatron", seq_len=512)
    assert "its arguments make" in notes(job)
    assert "without a rotary embedding" in notes(training("smollm3-3b", "8xh100", engine="megatron", seq_len=512))
    with pytest.raises(Unsupported, match="describe"):
        files_of(training("deepseek-v4-flash", "8xh100", engine="megatron", seq_len=512), ("megatron",))
