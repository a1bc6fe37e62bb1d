"""Whatever valid plan: every file reads back, holds only names its tool knows, and says what the plan says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from tests.formats.plans import constants, named
from vramcast.api import job_of, serve_job_of
from vramcast.domain.job import Job
from vramcast.errors import InvalidSpec, VramcastError
from vramcast.estimate.serving import answer as serving_answer
from vramcast.estimate.training import rank_programs
from vramcast.formats.files import File, needed, option_of, read_back
from vramcast.formats.write import files_of

POWERS = st.sampled_from([1, 2, 4, 8])
COMMON = {
    "seq_len": st.sampled_from([128, 1024, 4096]),
    "micro_batch": st.sampled_from([1, 2, 8]),
    "grad_accum": POWERS,
    "recompute": st.sampled_from(["none", "full", "selective"]),
    "zero": st.sampled_from(["0", "1", "2", "3"]),
    "optimizer": st.sampled_from(["adamw", "sgd", "adamw-8bit", "lion", "muon", "adafactor"]),
    "precision": st.sampled_from(["fp32", "tf32", "amp-bf16", "amp-fp16", "mixed-bf16", "mixed-fp16", "bf16", "fp8"]),
    "loss": st.sampled_from(["eager", "fused", "fused_linear", "chunked", "compiled"]),
    "compile": st.booleans(),
    "offload_optimizer": st.sampled_from(["none", "cpu", "nvme"]),
    "offload_parameters": st.sampled_from(["none", "cpu"]),
    "attention": st.sampled_from(["flash", "efficient", "cudnn", "eager"]),
    "tp": POWERS,
    "pp": POWERS,
    "cp": POWERS,
    "ep": POWERS,
    "virtual_stages": st.sampled_from([1, 2]),
    "shard_group": POWERS,
    "recompute_layers": st.integers(1, 4),
    "peft": st.sampled_from(["lora", "dora"]),
    "base_weights": st.sampled_from(["full", "nf4", "int8"]),
    "cp_kind": st.sampled_from(["ring", "ulysses"]),
}
"""Options of a plan; each plan takes a few, so that many are valid."""

ENGINES: dict[str, tuple[str, ...]] = {
    "megatron": (
        "tp", "pp", "cp", "ep", "grad_accum", "recompute", "recompute_layers", "virtual_stages", "cp_kind",
        "offload_optimizer", "precision", "micro_batch", "seq_len", "zero",
    ),
    "torchtitan": (
        "tp", "pp", "cp", "ep", "grad_accum", "recompute", "compile", "loss", "shard_group", "micro_batch", "seq_len",
        "offload_parameters", "virtual_stages",
    ),
    "deepspeed": (
        "zero", "grad_accum", "recompute", "recompute_layers", "loss", "compile", "optimizer", "precision",
        "offload_optimizer", "offload_parameters", "attention", "peft", "micro_batch", "seq_len",
    ),
    "huggingface": (
        "zero", "grad_accum", "recompute", "loss", "compile", "optimizer", "precision", "attention", "peft",
        "base_weights", "micro_batch", "seq_len",
    ),
    "pytorch": (
        "grad_accum", "recompute", "recompute_layers", "loss", "compile", "optimizer", "precision", "attention",
        "peft", "base_weights", "micro_batch", "seq_len",
    ),
    "unsloth": (
        "grad_accum", "recompute", "optimizer", "precision", "peft", "base_weights", "micro_batch", "seq_len",
    ),
}


@st.composite
def plans(draw: st.DrawFn) -> dict[str, Any]:
    engine = draw(st.sampled_from(list(ENGINES)))
    names = draw(st.lists(st.sampled_from(ENGINES[engine]), max_size=5, unique=True))
    options = {name: draw(COMMON[name]) for name in names}
    if "base_weights" in options:
        options.setdefault("peft", "lora")
    gpus = "h100" if engine == "unsloth" else draw(st.sampled_from(["h100", "8xh100", "2x8xh100"]))
    model = draw(st.sampled_from(["llama-3.2-1b", "qwen3-0.6b", "olmoe-1b-7b", "gpt2"]))
    return {"model": model, "gpus": gpus, "engine": engine} | named(options)


def batch(job: Job) -> int:
    return job.workload.micro_batch * job.workload.grad_accum * job.data_parallel


Said = Callable[[Job], dict[str, Any]]

SAID: dict[str, tuple[str, Said]] = {
    "megatron": (
        "run.sh",
        lambda job: (
            {
                "tensor-model-parallel-size": str(job.plan.tp),
                "pipeline-model-parallel-size": str(job.plan.pp),
                "context-parallel-size": str(job.plan.cp),
                "micro-batch-size": str(job.workload.micro_batch),
                "global-batch-size": str(batch(job)),
                "seq-length": str(job.workload.seq_len),
                "hidden-size": str(job.model.hidden),
                "num-layers": str(job.model.num_layers),
            }
            | ({"recompute-granularity": job.plan.recompute.value} if job.plan.recompute != "none" else {})
        ),
    ),
    "torchtitan": (
        "run.sh",
        lambda job: {
            "training.local_batch_size": str(job.workload.micro_batch),
            "training.global_batch_size": str(batch(job)),
            "training.seq_len": str(job.workload.seq_len),
            "parallelism.tensor_parallel_degree": str(job.plan.tp),
            "parallelism.pipeline_parallel_degree": str(job.plan.pp),
            "parallelism.context_parallel_degree": str(job.plan.cp),
            "parallelism.expert_parallel_degree": str(job.plan.ep),
        },
    ),
    "pytorch": (
        "train.py",
        lambda job: {
            "SEQ_LEN": job.workload.seq_len,
            "MICRO_BATCH": job.workload.micro_batch,
            "GRAD_ACCUM": job.workload.grad_accum,
        },
    ),
}
"""Engine -> its main file and what that must hold; files of the others are read back whole in test_read_back.py."""


def held(file: File) -> dict[str, Any]:
    found: dict[str, Any] = constants(file) if file.name.endswith(".py") else read_back(file)
    nested = {
        f"{section}.{name}": value
        for section, names in found.items()
        if isinstance(names, dict)
        for name, value in names.items()
    }
    return found | nested


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(plans())
def test_files_of_any_valid_training_plan_hold_it(options: dict[str, Any]) -> None:
    try:
        job = job_of(options)
        rank_programs(job)
    except VramcastError:
        assume(False)
    try:
        files, notes = files_of(job)  # raises RuntimeError for a name that a tool does not know
    except InvalidSpec as refusal:
        event(f"{options['engine']} refused")
        assert str(refusal)
        return
    event(f"{options['engine']} written")
    by_name = {file.name: file for file in files}
    name, said = SAID.get(options["engine"], ("", lambda _: {}))
    if name in by_name:
        found = held(by_name[name])
        assert {key: found.get(key) for key in said(job)} == said(job)
    everything = frozenset().union(*(file.said for file in files))
    for setting in needed(job):
        assert setting in everything or any(option_of(setting) in note for note in notes), setting


SERVING = {
    "vllm": ("serve.sh", "max-model-len"),
    "sglang": ("serve.sh", "context-length"),
    "tensorrt-llm": ("serve.sh", "max_seq_len"),
    "llama.cpp": ("serve.sh", "ctx-size"),
}

SERVE_OPTIONS = {
    "kv_dtype": st.sampled_from(["auto", "fp8", "q8_0"]),
    "graphs": st.booleans(),
    "prefix_caching": st.booleans(),
    "memory_fraction": st.sampled_from([0.7, 0.9]),
    "max_sequences": st.integers(1, 64),
    "block_tokens": st.sampled_from([16, 32]),
    "lora_slots": st.integers(0, 3),
    "draft": st.sampled_from(["eagle", "mtp", "ngram"]),
    "draft_tokens": st.integers(1, 3),
    "weights": st.sampled_from(["fp8", "int4", "q4_k_m"]),
    "dtype": st.sampled_from(["bf16", "fp16"]),
    "pp": POWERS,
    "gpu_layers": st.integers(0, 10),
    "batched_tokens": st.sampled_from([2048, 8192]),
    "dp": st.sampled_from([1, 2]),
}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(
    st.sampled_from(list(SERVING)),
    st.sampled_from(["llama-3.2-1b", "qwen3-30b-a3b"]),
    st.sampled_from(["h100", "4xh100"]),
    st.lists(st.sampled_from(list(SERVE_OPTIONS)), max_size=4, unique=True),
    st.data(),
)
def test_files_of_any_valid_serving_plan_hold_it(
    engine: str, model: str, gpus: str, names: list[str], data: st.DataObject
) -> None:
    options = {name: data.draw(SERVE_OPTIONS[name]) for name in names}
    try:
        job = serve_job_of({"model": model, "gpus": gpus, "engine": engine, "context": 4096} | named(options))
        serving_answer(job)
    except VramcastError:
        assume(False)
    try:
        files, notes = files_of(job)
    except InvalidSpec as refusal:
        assert str(refusal)
        return
    name, context = SERVING[engine]
    found = read_back({file.name: file for file in files}[name])
    cells = int(found[context])
    assert cells == 4096 or (engine == "llama.cpp" and cells > 4096)  # its slots are rounded up
    everything = frozenset().union(*(file.said for file in files))
    for setting in needed(job):
        assert setting in everything or any(option_of(setting) in note for note in notes), setting
