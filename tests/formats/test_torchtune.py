"""torchtune's recipes: what a YAML and a `tune run` say, and a plan written and read back."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from tests.formats.plans import named
from tests.formats.test_read_back import figures, plain, read_again
from vramcast.api import job_of, train
from vramcast.domain.job import Job
from vramcast.errors import VramcastError
from vramcast.formats.write import files_of

RECIPE = """
output_dir: /tmp/run
model:
  _component_: torchtune.models.llama3_1.{builder}
  lora_attn_modules: [q_proj, v_proj, output_proj]
  apply_lora_to_mlp: true
  lora_rank: 16
tokenizer: {{_component_: torchtune.models.llama3.llama3_tokenizer, path: /tmp/m, max_seq_len: 2048}}
batch_size: 2
gradient_accumulation_steps: 8
batch_size_val: ${{batch_size}}
optimizer: {{_component_: torch.optim.AdamW, fused: true, lr: 3e-4}}
loss: {{_component_: torchtune.modules.loss.LinearCrossEntropyLoss}}
dtype: bf16
device: cuda
enable_activation_checkpointing: true
"""


def asked(folder: Path, text: str, *, name: str = "recipe.yaml", **options: Any) -> Job:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return job_of({"gpus": "2xh100", "from": (str(path),)} | named(options))


@pytest.mark.parametrize(("change", "field", "value"), [
    ("optimizer: {_component_: torch.optim.AdamW}", "optimizer_kernel", "foreach"),
    ("optimizer: {_component_: torch.optim.AdamW, fused: false}", "optimizer_kernel", "loop"),
    ("optimizer: {_component_: bitsandbytes.optim.PagedAdamW8bit}", "optimizer", "paged-adamw-8bit"),
    ("loss: {_component_: torch.nn.CrossEntropyLoss}", "loss", "eager"),
    ("fsdp_cpu_offload: true", "offload_parameters", "cpu"),
    ("enable_activation_offloading: true", "offload_activations", True),
    ("tensor_parallel_dim: 2", "tp", 2),
    ("compile: true", "compile", True),
    ("dtype: fp32", "precision", "fp32"),
    ("{data_parallel_replicate_dim: 2, data_parallel_shard_dim: 1}", "shard_group", 1),
])
def test_each_name_is_read(tmp_path: Path, change: str, field: str, value: object) -> None:
    change = change.strip("{}").replace(", data", "\ndata") if change.startswith("{") else change
    assert getattr(asked(tmp_path, f"{RECIPE.format(builder='lora_llama3_1_8b')}\n{change}\n").plan, field) == value


@pytest.mark.parametrize(("change", "message"), [
    ("quantizer: {_component_: torchtune.training.quantization.Int4WeightOnlyQATQuantizer}",
     "Int4WeightOnlyQATQuantizer is not modelled; Int8DynAct"),
    ("teacher_model: {_component_: torchtune.models.llama3_1.llama3_1_8b}", "ForwardKLWithChunkedOutputLoss is"),
    ("loss: {_component_: torchtune.rlhf.loss.PPOLoss}", "generates its samples"),
    ("custom_sharded_layers: [tok_embeddings]", "custom_sharded_layers: other than"),
    ("batch_size: ${oc.env:BATCH}", r"batch_size: \$\{oc.env:BATCH\} is not set"),
    ("model: {_component_: torchtune.models.llama2.llama2_7b, lora_rank: 8}", "model.lora_rank: llama2_7b makes no"),
    ("mystery: 1", "mystery: may change"),
    ("device: cpu", "device: runs on no GPU"),
    ("compile: {model: true}", "compile"),
    ("model: {_component_: torchtune.models.llama2.llama2, num_layers: 2}", "model._component_"),
    ("model: {_component_: torchtune.models.llama2.llama2, vocab_size: 32000, num_layers: 22, num_heads: 32, "
     "num_kv_heads: 4, embed_dim: 2048, intermediate_dim: 8192}", "model._component_"),
])
def test_what_may_change_the_answer_is_named(tmp_path: Path, change: str, message: str) -> None:
    with pytest.raises(VramcastError, match=message):
        asked(tmp_path, f"{RECIPE.format(builder='lora_llama3_1_8b')}\n{change}\n")


def test_rounding_of_a_later_quantisation_is_read(tmp_path: Path) -> None:
    text = RECIPE.format(builder="lora_llama3_1_8b") + (
        "\nquantizer: {_component_: torchtune.training.quantization.Int8DynActInt4WeightQATQuantizer, groupsize: 32}\n")
    assert asked(tmp_path, text).engine_options.items() >= {"qat": "int8-int4-affine", "qat_group": 32}.items()


def test_what_trains_nothing_is_refused(tmp_path: Path) -> None:
    text = "model: {_component_: torchtune.models.llama2.llama2_7b}\nquantizer: {groupsize: 256}\n"
    with pytest.raises(VramcastError, match="without an optimizer trains nothing"):
        asked(tmp_path, text)


def test_a_command_that_changes_the_builder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VramcastError, match="change it in the file"):
        asked(tmp_path, "tune run full_finetune_distributed --config a.yaml "
              "model._component_=torchtune.models.llama3.llama3_8b\n", name="run.sh")


def settled(job: Job) -> dict[str, Any]:
    """A job's settings; chunks are what the recipes have anyway, and fused steps."""
    found = plain(job)
    kernel = job.plan.optimizer_kernel or "fused"
    loss = None if found["loss"] == "chunked" else found["loss"]
    if found["shard_group"] == job.cluster.count // job.plan.tp:
        found["shard_group"] = None
    return found | {"loss": loss, "optimizer_kernel": kernel if job.plan.optimizer in ("adamw", "sgd") else None}


OPTIONS: dict[str, Any] = {
    "seq_len": st.sampled_from([512, 4096]), "micro_batch": st.sampled_from([1, 4]),
    "grad_accum": st.sampled_from([1, 8]), "recompute": st.sampled_from(["none", "full", "selective"]),
    "optimizer": st.sampled_from(["adamw", "sgd", "paged-adamw-8bit", "adamw-8bit", "lion"]),
    "optimizer_kernel": st.sampled_from(["foreach", "fused", "loop"]), "loss": st.sampled_from(["eager", "chunked"]),
    "compile": st.booleans(), "offload_optimizer": st.sampled_from(["none", "cpu"]),
    "offload_parameters": st.sampled_from(["none", "cpu"]), "offload_activations": st.booleans(),
    "tp": st.sampled_from([1, 2]), "shard_group": st.sampled_from([1, 2, 4]), "reshard_after_forward": st.booleans(),
    "precision": st.sampled_from(["bf16", "fp32", "amp-bf16"]), "peft": st.sampled_from(["lora", "dora"]),
    "lora_rank": st.sampled_from([4, 64]), "lora_dropout": st.sampled_from([0.0, 0.05]),
    "lora_targets": st.sampled_from(["all-linear", "q_proj,v_proj", "attention.q,mlp.down"]),
    "base_weights": st.sampled_from(["full", "nf4-dq", "int8"]), "adapter_dtype": st.sampled_from(["bf16", "fp32"]),
    "engine_option": st.just(("split_root=true",)),
}


@settings(max_examples=24, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(st.data())
def test_a_recipe_reads_back_as_the_plan(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(list(OPTIONS)), max_size=6, unique=True))
    options = {name: data.draw(OPTIONS[name]) for name in names}
    if any(name.startswith("lora") for name in names) or {"base_weights", "adapter_dtype"} & options.keys():
        options.setdefault("peft", "lora")
        options.setdefault("adapter_dtype", "bf16")
    model = data.draw(st.sampled_from(["llama-3.2-1b", "qwen3-0.6b", "gemma-2b", "phi-3-mini", "mistral-7b-v0.2"]))
    options |= {"model": model, "gpus": data.draw(st.sampled_from(["h100", "2xh100", "2x8xh100"])),
                "engine": "torchtune" + data.draw(st.sampled_from(["", "", "@0.6"]))}
    try:
        job = job_of(named(options))
        files_of(job)
    except VramcastError as refusal:
        event(f"refused: {str(refusal)[:60]}")
        assume(False)
    for _, again in read_again(job, named(options), [("torchtune.yaml",)]):
        assert settled(again) == settled(job), options
        try:
            expected = figures(job)
        except VramcastError:
            event("no answer of it yet")
            return
        assert figures(again) == expected, options


TAUGHT = RECIPE.replace("LinearCrossEntropyLoss", "CEWithChunkedOutputLoss") + """
teacher_model: {{_component_: torchtune.models.llama3.llama3_8b}}
teacher_checkpointer: {{_component_: torchtune.training.FullModelHFCheckpointer}}
kd_loss: {{_component_: torchtune.modules.loss.{loss}}}
kd_ratio: 0.5
"""


def test_a_teacher_is_a_second_network(tmp_path: Path) -> None:
    text = TAUGHT.format(builder="lora_llama3_1_8b", loss="ForwardKLWithChunkedOutputLoss")
    job = asked(tmp_path, text)
    assert (job.workload.objective, job.teacher and job.teacher.name) == ("gkd", "llama-3-8b")
    with pytest.raises(VramcastError, match="ReverseKL"):
        asked(tmp_path, TAUGHT.format(builder="lora_llama3_1_8b", loss="ReverseKLWithChunkedOutputLoss"))


@pytest.mark.parametrize(("change", "recompute", "every"), [
    ("ac_mode: selective\nac_option: 2", "full", 2), ("ac_mode: selective\nac_option: '3'", "full", 3),
    ("ac_mode: selective\nac_option: 1", "full", None), ("ac_mode: full", "full", None),
    ("ac_mode: selective\nac_option: 2\nenable_activation_checkpointing: true", "none", None),
])
def test_some_layers_alone_are_recomputed(tmp_path: Path, change: str, recompute: str, every: int | None) -> None:
    plain = "model: {_component_: torchtune.models.llama3_1.llama3_1_8b}\nenable_activation_checkpointing: false\n"
    found = asked(tmp_path, f"{RECIPE.format(builder='llama3_1_8b')}\n{plain}{change}\n", gpus="8xh100")
    assert (found.plan.recompute, found.engine_options.get("recompute_every")) == (recompute, every)


def test_every_second_layer_lies_halfway() -> None:
    """Of 32 layers 16 are recomputed, the last among them; so for memory and for time."""
    def of(recompute: str, *pairs: str) -> tuple[int, float]:
        answer = train("llama-3-8b", gpus="8xh100-sxm-80gb", engine="torchtune", precision="bf16", micro_batch=2,
                       seq_len=2048, recompute=recompute, engine_option=pairs)
        return answer.peak.allocated_bytes, answer.time.step_s

    whole, none, half = of("full"), of("none"), of("full", "recompute_every=2")
    assert half[0] == pytest.approx((whole[0] + none[0]) / 2, rel=0.02)
    assert half[1] == pytest.approx((whole[1] + none[1]) / 2, rel=0.01)
    with pytest.raises(VramcastError, match="recompute_every is of"):
        of("none", "recompute_every=2")
