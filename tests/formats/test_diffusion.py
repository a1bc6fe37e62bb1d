"""Commands of diffusers' scripts and of sd-scripts: what is read, what is filled in, what is refused."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from vramcast import api
from vramcast.blocks.diffusion.common import count_elements
from vramcast.domain.answer import Answer
from vramcast.domain.job import Phase
from vramcast.domain.model import Model
from vramcast.domain.pipeline import DiffusionJob
from vramcast.domain.program import extent
from vramcast.engines.diffusion import RELOADED, ranks
from vramcast.errors import Unsupported, VramcastError

SDXL = "accelerate launch train_text_to_image_lora_sdxl.py --pretrained_model_name_or_path=$MODEL_NAME"
FLUX = "accelerate launch train_dreambooth_lora_flux.py --pretrained_model_name_or_path=black-forest-labs/FLUX.1-dev"
KOHYA = "accelerate launch --num_cpu_threads_per_process 1 sdxl_train_network.py"

DATASET = """
[general]
enable_bucket = true
[[datasets]]
resolution = [768, 512]
batch_size = 4
[[datasets.subsets]]
image_dir = "images"
num_repeats = 2
"""


def asked(folder: Path, command: str, *files: Path, **options: Any) -> DiffusionJob:
    return answered(folder, command, *files, **options)[0]


def answered(folder: Path, command: str, *files: Path, **options: Any) -> tuple[DiffusionJob, Answer]:
    script = folder / "run.sh"
    script.write_text("export MODEL_NAME=stabilityai/stable-diffusion-xl-base-1.0\n" + command, encoding="utf-8")
    given = {"from": (str(script), *map(str, files)), "gpus": "h100-sxm-80gb", **options}
    job, answer = api.train_answer(given, with_changes=False)
    assert isinstance(job, DiffusionJob)
    return job, answer


@pytest.mark.parametrize(("command", "plan", "setting"), [
    (SDXL, {"precision": "fp32", "optimizer": "adamw"}, {"height": 1024, "vae_dtype": "fp32", "text": "on"}),
    (f"{SDXL} --mixed_precision=fp16 --gradient_checkpointing --use_8bit_adam --resolution 512 "
     "--pretrained_vae_model_name_or_path=madebyollin/sdxl-vae-fp16-fix",
     {"precision": "amp-fp16", "recompute": "full", "optimizer": "adamw-8bit"},
     {"width": 512, "vae_dtype": None, "validation": False}),
    (f"{SDXL} --validation_prompt \"$NOBODY_SETS_IT\"".replace("train_text", "/opt/diffusers/examples/train_text"), {},
     {"height": 1024, "validation": True}),
    (f"{FLUX} --instance_prompt 'a dog' --cache_latents --optimizer prodigy --mixed_precision bf16",
     {"precision": "bf16", "optimizer": "prodigy"}, {"vae": "cached", "text": "cached", "tokens": 512}),
    (f"{FLUX} --cond_image_column file_name --offload --mixed_precision fp16", {"precision": "amp-fp16"},
     {"vae": "cached", "text": "on", "condition": "tokens"}),
    (f"{FLUX} --offload --train_batch_size 1".replace("dreambooth_lora_flux", "control_lora_flux"),
     {"precision": "fp32"}, {"vae": "cached", "text": "cached", "condition": "channels", "width": 1024}),
    (f"{FLUX} --do_fp8_training --cache_latents".replace("a_flux", "a_flux2_klein").replace("1-dev", "2-klein-4B"), {},
     {"float8": True, "text": "cached", "condition": None}),
    (f"{FLUX} --instance_prompt 'a dog' --train_text_encoder --with_prior_preservation --validation_prompt 'a dog'",
     {}, {"text": "on", "text_learns": True, "prior": True, "validation": True}),
])
def test_a_script_of_diffusers_is_read(
    tmp_path: Path, command: str, plan: dict[str, Any], setting: dict[str, Any]
) -> None:
    job = asked(tmp_path, command)
    assert {name: getattr(job.plan, name) for name in plan} == plan
    assert {name: getattr(job.setting, name) for name in setting} == setting


@pytest.mark.parametrize(("script", "again", "copies"), [("flux", "kept", 1), ("sdxl", "cast", 2)])
def test_the_last_images_are_made_by_a_pipeline_beside_what_was_trained(
    tmp_path: Path, script: str, again: str, copies: int
) -> None:
    name = "black-forest-labs/FLUX.1-dev" if script == "flux" else "$MODEL_NAME"
    command = (f"accelerate launch train_dreambooth_lora_{script}.py --pretrained_model_name_or_path={name} "
               "--instance_prompt dog --mixed_precision bf16 --resolution 512 --gradient_checkpointing")
    plain = asked(tmp_path, command)
    job, answer = answered(tmp_path, f"{command} --validation_prompt dog")
    assert (plain.setting.reloads, job.setting.reloads) == (None, again)
    trained, *_ = job.pipeline.denoisers
    assert not isinstance(trained.network, Model)
    with_it, without = (extent(ranks(one)[0].phases[Phase.EVALUATION]).peak
                        for one in (job, replace(job, setting=replace(job.setting, reloads=None))))
    assert with_it > copies * 2 * count_elements(trained.network) > without
    assert RELOADED in answer.assumptions


@pytest.mark.parametrize(("more", "plan", "setting"), [
    ("--sdpa --mixed_precision bf16 --network_dim 32 --network_module networks.lora --optimizer_type AdamW8bit",
     {"precision": "amp-bf16", "optimizer": "adamw-8bit", "attention": None}, {"text_learns": True, "text": "on"}),
    ("--network_module=networks.lora --network_train_unet_only --cache_text_encoder_outputs --cache_latents "
     "--cache_latents_to_disk --cache_text_encoder_outputs_to_disk",
     {"precision": "fp32", "attention": "eager"}, {"text_learns": False, "text": "cached", "vae": "cached"}),
])
def test_a_command_of_sd_scripts_is_read_with_its_data_sets(
    tmp_path: Path, more: str, plan: dict[str, Any], setting: dict[str, Any]
) -> None:
    dataset = tmp_path / "dataset.toml"
    dataset.write_text(DATASET, encoding="utf-8")
    command = f"{KOHYA} --pretrained_model_name_or_path=x.safetensors --dataset_config=data/dataset.toml {more}"
    job = asked(tmp_path, command, dataset)
    assert job.pipeline.name == "stable-diffusion-xl-base"
    assert (job.setting.width, job.setting.height, job.workload.micro_batch) == (768, 512, 4)
    assert {name: getattr(job.plan, name) for name in plan} == plan
    assert {name: getattr(job.setting, name) for name in setting} == setting


@pytest.mark.parametrize(("script", "precision"), [
    ("flux_train", "bf16"), ("sd3_train", "bf16"), ("sdxl_train", "amp-bf16")])
def test_weights_that_learn_are_as_wide_as_the_script_loads_them(tmp_path: Path, script: str, precision: str) -> None:
    job = asked(tmp_path, f"accelerate launch {script}.py --resolution 512 --mixed_precision bf16")
    assert job.plan.precision == precision


@pytest.mark.parametrize(("more", "options", "size", "batch", "assumed"), [
    ("--dataset_config elsewhere.toml", {}, (1024, 1024), 1, True),
    ("--pretrained_model_name_or_path=<.ckpt 文件> --dataset_config=<数据.toml>", {}, (1024, 1024), 1, True),
    ("--dataset_config elsewhere.toml", {"image-size": "512", "micro-batch": "2"}, (512, 512), 2, False),
    ("--in_json meta_lat.json --train_batch_size 3", {}, (1024, 1024), 3, True),
    ("--dataset_config data/beside.toml", {}, (512, 768), 4, False),
])
def test_images_of_a_file_that_is_not_given_are_as_the_network_makes_them_and_said_so(
    tmp_path: Path, more: str, options: dict[str, str], size: tuple[int, int], batch: int, assumed: bool
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/beside.toml").write_text(DATASET, encoding="utf-8")
    job, answer = answered(tmp_path, f"{KOHYA} --network_module networks.lora {more}", **options)
    assert (job.size[1:], job.workload.micro_batch) == (size, batch)
    assert any("leaves the size of images to" in one for one in answer.assumptions) is assumed


def test_arguments_of_a_file_are_beneath_those_of_the_command(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[a]\nresolution = 512\nmixed_precision = 'bf16'\n[b]\nnetwork_module = 'networks.lora'\n"
                      "network_dim = 8\ntrain_batch_size = 3\n", encoding="utf-8")
    job = asked(tmp_path, f"{KOHYA} --config_file config.toml --network_dim 16", config)
    assert job.plan.peft is not None
    assert (job.plan.peft.rank, job.workload.micro_batch, job.setting.height) == (16, 3, 512)


@pytest.mark.parametrize(("command", "named"), [
    ("accelerate launch train_unconditional.py --resolution=64", "train_unconditional.py"),
    (f"{SDXL} --unheard_of 3", "unheard_of"),
    (f"{FLUX} --lora_layers attn.nowhere --mixed_precision bf16", "attn.nowhere"),
    (f"{KOHYA} --network_module lycoris.kohya --resolution 512", "network_module"),
    (f"{KOHYA} --network_module networks.lora --network_args conv_dim=4 --resolution 512", "network_args"),
    (f"{KOHYA} --network_module networks.lora", "resolution"),
    (SDXL.replace("launch", "launch --use_deepspeed --zero_stage 2"), "DDP"),
])
def test_what_may_change_the_answer_is_refused_by_name(tmp_path: Path, command: str, named: str) -> None:
    with pytest.raises(Unsupported, match=named):
        asked(tmp_path, command)


@pytest.mark.parametrize("text", ["[", "a = 'x\n", "datasets = 3\n[general]\nx = [[[1]]]"])
def test_a_broken_file_of_data_sets_is_one_sentence(tmp_path: Path, text: str) -> None:
    dataset = tmp_path / "dataset.toml"
    dataset.write_text(text, encoding="utf-8")
    with pytest.raises(VramcastError) as caught:
        asked(tmp_path, f"{KOHYA} --network_module networks.lora --dataset_config dataset.toml", dataset)
    assert "\n" not in str(caught.value)
