"""litgpt's YAML and command: what they say, and a plan written and read back."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from tests.formats.plans import named
from tests.formats.test_read_back import figures, plain, read_again
from vramcast.api import job_of
from vramcast.domain.job import Job
from vramcast.errors import VramcastError
from vramcast.formats.write import files_of

LORA = """
checkpoint_dir: checkpoints/meta-llama/Llama-3.2-1B
precision: bf16-true
quantize: bnb.nf4
devices: 1
lora_r: 32
lora_mlp: true
lora_head: true
data: {class_path: litgpt.data.Alpaca2k, init_args: {seed: 42}}
train: {micro_batch_size: 2, global_batch_size: 8, max_seq_length: 512, epochs: 1}
eval: {interval: 100}
optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 0.0002, betas: [0.9, 0.95]}}
"""


def asked(folder: Path, text: str, *, name: str = "lora.yaml", **options: Any) -> Job:
    (folder / name).write_text(text, encoding="utf-8")
    return job_of({"gpus": "h100", "from": (str(folder / name),)} | named(options))


def test_a_configuration_says_adapters_and_batch(tmp_path: Path) -> None:
    job = asked(tmp_path, LORA)
    assert (job.engine, job.model.name, job.plan.precision) == ("litgpt", "llama-3.2-1b", "bf16")
    assert (job.workload.micro_batch, job.workload.grad_accum, job.workload.seq_len) == (2, 4, 512)
    peft = job.plan.peft
    assert peft is not None
    assert (peft.rank, peft.base, peft.dropout) == (32, "nf4", 0.05)
    assert set(peft.targets) == {"attention.q", "attention.v", "mlp.gate", "mlp.up", "mlp.down", "head.output"}


@pytest.mark.parametrize(("command", "method", "precision"), [
    ("litgpt finetune_full meta-llama/Llama-3.2-1B --precision bf16-true", None, "bf16"),
    ("litgpt finetune_lora meta-llama/Llama-3.2-1B", "lora", "amp-bf16"),
    ("litgpt finetune meta-llama/Llama-3.2-1B --quantize bnb.nf4-dq --precision bf16-true", "lora", "bf16"),
    ("litgpt finetune_adapter_v2 --checkpoint_dir checkpoints/meta-llama/Llama-3.2-1B", "adapter", "amp-bf16"),
])
def test_a_command_says_the_method(tmp_path: Path, command: str, method: str | None, precision: str) -> None:
    job = asked(tmp_path, f"{command} --train.micro_batch_size 4 --train.max_seq_length 256\n", name="run.sh")
    assert job.plan.precision == precision
    assert (job.plan.peft and job.plan.peft.method) == method
    assert (job.workload.micro_batch, job.workload.grad_accum, job.workload.seq_len) == (4, 4, 256)
    assert (job.engine_options.get("adapter_version") == 2) == ("_v2" in command)


@pytest.mark.parametrize(("change", "message"), [
    ("quantize: bnb.fp4", "bnb.fp4"),
    ("model_name: pythia-14m", "litgpt's pretraining"),
    ("optimizer: {class_path: bitsandbytes.optim.Adam}", "optimizer"),
    ("mystery: 1", "mystery: may change"),
])
def test_what_may_change_the_answer_is_named(tmp_path: Path, change: str, message: str) -> None:
    with pytest.raises(VramcastError, match=message):
        asked(tmp_path, f"{LORA}\n{change}\n")


def test_a_command_alone_does_not_say_what_its_file_says(tmp_path: Path) -> None:
    with pytest.raises(VramcastError, match="is a file of its own; give it with another --from"):
        asked(tmp_path, "litgpt finetune_lora --config lora.yaml --train.micro_batch_size 4\n", name="run.sh")
    (tmp_path / "lora.yaml").write_text(LORA, encoding="utf-8")
    both = (str(tmp_path / "lora.yaml"), str(tmp_path / "run.sh"))
    job = job_of({"gpus": "h100", "from": both})
    assert (job.workload.micro_batch, job.workload.grad_accum) == (4, 2)
    assert job.plan.peft is not None
    assert job.plan.peft.rank == 32


OPTIONS: dict[str, Any] = {
    "seq_len": st.sampled_from([128, 1024]), "micro_batch": st.sampled_from([1, 4]),
    "grad_accum": st.sampled_from([1, 8]), "precision": st.sampled_from(["bf16", "amp-bf16", "fp32"]),
    "optimizer": st.sampled_from(["adamw", "sgd", "lion"]),
    "optimizer_kernel": st.sampled_from(["foreach", "fused", "loop"]), "lora_rank": st.sampled_from([4, 64]),
    "lora_targets": st.sampled_from(["all-linear", "attention.q,attention.v", "attention.q,mlp.gate,mlp.up,mlp.down"]),
    "lora_dropout": st.sampled_from([0.0, 0.05]), "base_weights": st.sampled_from(["full", "nf4", "nf4-dq", "int8"]),
}


@settings(max_examples=24, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(st.data())
def test_a_file_reads_back_as_the_plan(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(list(OPTIONS)), max_size=5, unique=True))
    options = {name: data.draw(OPTIONS[name]) for name in names}
    if any(name.startswith("lora") or name == "base_weights" for name in names):
        options["peft"] = "lora"
    model, gpus = data.draw(st.sampled_from(["llama-3.2-1b", "pythia-1b", "phi-2"])), data.draw(
        st.sampled_from(["h100", "4xh100"]))
    options |= {"model": model, "gpus": gpus, "engine": "litgpt"}
    try:
        job = job_of(named(options))
        expected = figures(job)
        files_of(job, ("litgpt",))
    except VramcastError as refusal:
        event(f"refused: {str(refusal)[:60]}")
        assume(False)
    for _, again in read_again(job, named(options), [("litgpt.yaml",)]):
        kept = {"peft.adapter_dtype": None, "optimizer_kernel": None, "shards": None, "sharded_by": None}
        assert plain(again) | kept == plain(job) | kept, options
        assert figures(again) == expected, options
