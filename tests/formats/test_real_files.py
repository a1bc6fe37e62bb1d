"""What a user's real files and commands ask beside their plain names: another job is never answered."""

from pathlib import Path

import pytest

from tests.formats.test_readers import asked, written
from vramcast.engines.eager.releases import sharder
from vramcast.errors import Unsupported
from vramcast.estimate.training import answer
from vramcast.formats.read import read_files

FACTORY_TABLE = {
    "model_name_or_path": "llama-3.2-1b", "finetuning_type": "lora", "do_train": True, "template": "default",
}


@pytest.mark.parametrize("model", ["qwen2.5-vl-7b", "gemma-3-4b", "qwen3.5-35b-a3b", "llama-3.2-11b-vision"])
@pytest.mark.parametrize("template", ["qwen3_5_nothink", "gemma", "default", None])
def test_llamafactory_freezes_towers_whatever_the_template_is_called(
    model: str, template: str | None, tmp_path: Path
) -> None:
    path = written(tmp_path, "a.json", FACTORY_TABLE | {"model_name_or_path": model, "template": template})
    peft = asked(path, gpus="8xh200-sxm-141gb").plan.peft
    assert peft is not None and not any(target.startswith("vision") for target in peft.targets)


@pytest.mark.parametrize(("targets", "weights"), [("all", 16 * (6 * 2048 + 8192)), ("q_proj", 16 * 2048)])
def test_llamafactorys_oft_turns_inputs_by_blocks(targets: str, weights: int, tmp_path: Path) -> None:
    """b (b - 1) / 2 of every block of b x b learn: I (b - 1) / 2 of a layer."""
    job = asked(written(tmp_path, "a.json", FACTORY_TABLE | {"finetuning_type": "oft", "oft_target": targets}),
                gpus="h100")
    states = sum(entry.num_bytes for entry in answer(job).ranks[0].ledger if entry.category == "optimizer")
    assert (job.plan.peft.method, states) == ("oft", pytest.approx(2 * 4 * weights * 31 / 2, rel=0.01))


V1 = {"model": "llama-3.2-1b", "model_class": "llm", "kernel_config": {"name": "auto"},
      "dist_config": {"name": "fsdp2"}, "train_dataset": "data/v1_sft_demo.yaml", "micro_batch_size": 1}


@pytest.mark.parametrize(("cards", "width"), [(None, "fp32"), ({"name": "fsdp2"}, "bf16")])
def test_llamafactory_v1s_adapters_compute_in_fp32_where_nothing_gathers_them(
    cards: dict[str, str] | None, width: str, tmp_path: Path
) -> None:
    said = {"dist_config": cards, "peft_config": {"name": "lora"}}
    assert asked(written(tmp_path, "a.json", V1 | said), gpus="h100").plan.peft.adapter_dtype == width


@pytest.mark.parametrize(("said", "why"), [
    ({"train_dataset": "data/v1_dpo_demo.yaml"}, "dpo or rm command"),
    ({"peft_config": {"name": "freeze"}}, "freeze is not modelled"),
    ({"dist_config": {"name": "fsdpturbo", "ep_size": 16}}, "fsdpturbo is not modelled"),
    ({"kernel_config": {"name": "auto, flash-linear-attention"}}, "flash-linear-attention is not modelled"),
    ({"dist_config": {"name": "deepspeed", "config_file": "ds.json"}}, "config_file: is a file of its own"),
    ({"quant_config": {"name": "bnb"}}, "needs peft_config"),
    ({"model": "qwen3.5-0.8b"}, "may hold images"),
])
def test_llamafactory_v1_names_what_is_not_read(said: dict[str, object], why: str, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=why):
        asked(written(tmp_path, "a.json", V1 | said), gpus="8xh100-sxm-80gb")


BUCKETS = {"reduce_bucket_size": 5e8, "stage3_prefetch_bucket_size": 5e7, "stage3_param_persistence_threshold": 1e5}


@pytest.mark.parametrize("size", ["auto", None, 7e6])
@pytest.mark.parametrize("around", [True, False])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_sizes_of_zero_are_answered_as_their_files_have_them(
    stage: int, size: object, around: bool, tmp_path: Path
) -> None:
    """Most published files of ZeRO-3 leave every size to the Trainer."""
    zero = {"stage": stage} | ({} if size is None else dict.fromkeys(BUCKETS, size))
    file = written(tmp_path, "ds.json", {"bf16": {"enabled": True}, "zero_optimization": zero, "train_micro_batch_size_"
                                         "per_gpu": 1})
    files = [written(tmp_path, "a.json", FACTORY_TABLE | {"deepspeed": "ds.json"}), file] if around else [file]
    job = asked(*files, gpus="8xh100", model="llama-3.2-1b", seq_len=512, micro_batch=1)
    assert answer(job).peak.allocated_bytes > 0


@pytest.mark.parametrize(("name", "shards", "offloads"), [
    ("ds_z0_config.json", "nothing", "none"), ("ds_z2_config.json", "optimizer+gradients", "none"),
    ("ds_z3_offload_config.json", "everything", "cpu"),
])
def test_files_that_come_with_llamafactory_are_known(name: str, shards: str, offloads: str, tmp_path: Path) -> None:
    path = written(tmp_path, "a.json", FACTORY_TABLE | {"deepspeed": f"./examples/deepspeed/{name}"})
    plan = asked(path, gpus="8xh100", seq_len=512).plan
    assert (plan.shards, plan.offload_optimizer, plan.offload_parameters) == (shards, offloads, offloads)


def test_files_that_llamafactorys_page_writes_overlap(tmp_path: Path) -> None:
    own, pages = (set(read_files([written(tmp_path, "a.json", FACTORY_TABLE | {
        "deepspeed": f"{folder}/ds_z2_config.json"})], command="train").options["engine-option"])
                  for folder in ("examples/deepspeed", "cache"))
    assert own ^ pages == {"overlap_comm=false", "overlap_comm=true"}


LAYERS = {"fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer"}


@pytest.mark.parametrize(("said", "by", "shards"), [
    ({"fsdp": "full_shard auto_wrap"}, "fsdp2", "everything"), ({"fsdp": True}, "fsdp2", "everything"),
    ({"fsdp": "full_shard"}, "fsdp2", "everything"), ({"fsdp": "shard_grad_op"}, "fsdp2", "everything"),
    ({"fsdp": "full_shard offload", "fsdp_config": LAYERS}, "fsdp2", "everything"),
    ({"fsdp": "full_shard auto_wrap", "fsdp_config": {"version": 1}}, "fsdp1", "everything"),
    ({"fsdp": "full_shard auto_wrap", "fsdp_config": {"backward_prefetch": "backward_pre"}}, "fsdp1", "everything"),
])
def test_the_trainer_takes_fsdp2_where_nothing_says_fsdp1(
    said: dict[str, object], by: str, shards: str, tmp_path: Path
) -> None:
    """[HF] training_args.py `_process_fsdp_args` since 5.10; what FSDP1 alone has is of an older release."""
    table = {"model_name_or_path": "llama-3.2-1b", "per_device_train_batch_size": 1, "do_train": True, "bf16": True}
    path = written(tmp_path, "a.json", table | {"num_train_epochs": 1} | said)
    job = asked(path, gpus="8xh100", seq_len=512)
    assert (sharder(job), job.plan.shards) == (by, shards)
    if said == {"fsdp": "full_shard auto_wrap"}:
        assert sharder(asked(path, gpus="8xh100", seq_len=512, engine="huggingface@4.57")) == "fsdp1"


def test_words_that_older_releases_name_apart_say_how_layers_are_wrapped(tmp_path: Path) -> None:
    table = {"per_device_train_batch_size": 1, "model_name_or_path": "llama-3.2-1b", "fsdp": "full_shard auto_wrap",
             "fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer", "bf16": True, "tf32": True}
    assert asked(written(tmp_path, "a.json", table), gpus="8xh100", seq_len=512).plan.sharded_by == "fsdp1"
    with pytest.raises(Unsupported, match="units of LlamaMLP"):
        asked(written(tmp_path, "b.json", table | {"fsdp_transformer_layer_cls_to_wrap": "LlamaMLP"}), gpus="8xh100")


@pytest.mark.parametrize("name", ["muon", "adam_mini"])
def test_llamafactorys_own_optimizers_are_those(name: str, tmp_path: Path) -> None:
    table = FACTORY_TABLE | {"finetuning_type": "full", f"use_{name}": True, "bf16": True}
    assert asked(written(tmp_path, "a.json", table), gpus="h100").plan.optimizer == name.replace("_", "-")
