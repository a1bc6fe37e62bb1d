"""Whatever valid plan: files hold only names their tool knows and say what the plan says, where no reader proves it."""

from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.formats.plans import constants, named, saying_all
from vramcast.api import job_of, serve_job_of
from vramcast.errors import InvalidSpec, VramcastError
from vramcast.estimate.serving import answer as serving_answer
from vramcast.estimate.training import rank_programs
from vramcast.formats.files import read_back

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
def plans(draw: st.DrawFn, engine: str = "") -> dict[str, Any]:
    """Options of a plan; of one engine where it is named."""
    engine = engine or draw(st.sampled_from(list(ENGINES)))
    names = draw(st.lists(st.sampled_from(ENGINES[engine]), max_size=5, unique=True))
    options = {name: draw(COMMON[name]) for name in names}
    if "base_weights" in options:
        options.setdefault("peft", "lora")
    gpus = "h100" if engine == "unsloth" else draw(st.sampled_from(["h100", "8xh100", "2x8xh100"]))
    model = draw(st.sampled_from(["llama-3.2-1b", "qwen3-0.6b", "olmoe-1b-7b", "gpt2"]))
    return {"model": model, "gpus": gpus, "engine": engine} | named(options)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(plans("pytorch"))
def test_a_script_of_plain_pytorch_holds_its_plan(options: dict[str, Any]) -> None:
    try:
        job = job_of(options)
        rank_programs(job)
    except VramcastError:
        assume(False)
    try:
        found = constants(saying_all(job)["train.py"])
    except InvalidSpec as refusal:
        assert str(refusal)
        return
    work = job.workload
    sizes = work.seq_len, work.micro_batch, work.grad_accum
    assert (found["SEQ_LEN"], found["MICRO_BATCH"], found["GRAD_ACCUM"]) == sizes


SERVING = {"tensorrt-llm": "max_seq_len", "llama.cpp": "ctx-size"}
"""Engine -> the argument of its longest sequence."""

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


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
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
        cells = int(read_back(saying_all(job)["serve.sh"])[SERVING[engine]])
    except InvalidSpec as refusal:
        assert str(refusal)
        return
    assert cells == 4096 or (engine == "llama.cpp" and cells > 4096)  # its slots are rounded up
