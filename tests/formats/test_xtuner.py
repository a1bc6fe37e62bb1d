"""xtuner's configurations: names as Python sets them, adapters beside a packed base, DDP or DeepSpeed's file."""

from pathlib import Path

import pytest

from vramcast.api import job_of
from vramcast.engines import huggingface
from vramcast.engines.eager.recipe import part_of, weights
from vramcast.formats.read import read_files
from vramcast.formats.reading import Given

CONFIG = """
import torch
from mmengine.optim import AmpOptimWrapper
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from xtuner.model import SupervisedFinetune

path = "meta-llama/Llama-2-7b-hf"
max_length = 2048
pack_to_max_length = True
sequence_parallel_size = 1
accumulative_counts = 16
accumulative_counts *= sequence_parallel_size
optim_type = AdamW
model = dict(
    type=SupervisedFinetune, use_varlen_attn=False,
    llm=dict(type=AutoModelForCausalLM.from_pretrained, pretrained_model_name_or_path=path, trust_remote_code=True%s),
%s)
alpaca = dict(type=process_hf_dataset, max_length=max_length, pack_to_max_length=pack_to_max_length)
other = dict(type=process_hf_dataset, max_length=1024, pack_to_max_length=pack_to_max_length)
sampler = SequenceParallelSampler if sequence_parallel_size > 1 else DefaultSampler
train_dataloader = dict(batch_size=2, num_workers=0, dataset=dict(type=ConcatDataset, datasets=[alpaca, other]),
                        sampler=dict(type=sampler, shuffle=True))
optim_wrapper = dict(type=AmpOptimWrapper, optimizer=dict(type=optim_type, lr=2e-4, betas=(0.9, 0.999)),
                     clip_grad=dict(max_norm=1), accumulative_counts=accumulative_counts, loss_scale="dynamic",
                     dtype="float16")
custom_hooks = [dict(type=DatasetInfoHook)]
"""
PACKED = """, torch_dtype=torch.float16, quantization_config=dict(
    type=BitsAndBytesConfig, load_in_4bit=True, load_in_8bit=False, bnb_4bit_use_double_quant=True,
    bnb_4bit_quant_type="nf4")"""
LORA = "    lora=dict(type=LoraConfig, r=64, lora_alpha=16, lora_dropout=0.1, bias='none', task_type='CAUSAL_LM')"


def written(folder: Path, llm: str = PACKED, lora: str = LORA, more: str = "") -> Path:
    (folder / "config.py").write_text(CONFIG % (llm, lora) + more, encoding="utf-8")
    return folder / "config.py"


def read(*files: Path) -> Given:
    return read_files(files, command="train")


def test_the_command_names_its_file_and_what_shards(tmp_path: Path) -> None:
    given = read_files([written(tmp_path, "", "")], command="train",
                       line="xtuner train config.py --deepspeed deepspeed_zero3_offload --work-dir out")
    assert [one.name for _, one in given.unread] == []
    assert (given.options["shards"], given.options["offload-parameters"], given.options["precision"]) == (
        "everything", "cpu", "mixed-bf16")


def test_eight_bits_may_be_asked_of_the_loader(tmp_path: Path) -> None:
    assert read(written(tmp_path, ", load_in_8bit=True")).options["base-weights"] == "int8"


def test_a_name_of_cross_attention_is_passed_over(tmp_path: Path) -> None:
    more = LORA.replace("r=64", "r=64, target_modules=['q_proj', 'q_attn']")
    assert read(written(tmp_path, lora=more)).options["lora-targets"] == "q_proj"


def test_ranks_that_share_samples_are_ulysses(tmp_path: Path) -> None:
    found = read(written(tmp_path, more="sequence_parallel_size = 4\n")).options
    assert (found["cp"], found["cp-kind"]) == (4, "ulysses")


@pytest.mark.parametrize(("llm", "lora", "more", "name"), [
    (", torch_dtype=torch.bfloat16", "", "", "model.llm.torch_dtype"),
    (PACKED, "", "", "model.llm.quantization_config"),
    (", moe_implementation='shard'", "", "", "model.llm.moe_implementation"),
    ("", LORA.replace("r=64", "r=64, use_dora=True"), "", "model.lora.use_dora"),
    ("", "", "strategy = dict(type=DeepSpeedStrategy)\n", "strategy"),
    ("", "", "optim_wrapper = dict(type=AmpOptimWrapper, optimizer=dict(type=Lion))\n",
     "optim_wrapper.optimizer.type"),
    ("", "", "model = dict(type=InternVL_V1_5)\n", "model.type"),
    ("", "", "train_dataloader = dict(batch_size=1, dataset=dict(type=X, max_length=int(longest())))\n",
     "train_dataloader.dataset"),
])
def test_what_makes_another_run_of_it_is_named(tmp_path: Path, llm: str, lora: str, more: str, name: str) -> None:
    assert name in [one.name for _, one in read(written(tmp_path, llm, lora, more)).unread]


PAIRS = """
train_dataset = dict(type=build_preference_dataset, dataset=dict(type=load_dataset, path="p"), max_length=1024,
                     use_varlen_attn=%s, max_packed_length=6144)
train_dataloader = dict(batch_size=1, dataset=train_dataset)
"""


@pytest.mark.parametrize(("kind", "objective", "asks"), [
    ("DPO", "dpo", "log_probs=behind"), ("ORPO", "dpo", "precompute_ref_log_probs=true"), ("RewardModel", "reward", ""),
])
def test_pairs_stand_behind_each_other_in_a_packed_sample(
        tmp_path: Path, kind: str, objective: str, asks: str) -> None:
    more = f"model = dict(type={kind}, loss_type='x', llm=dict(type=AutoModelForCausalLM.from_pretrained, " \
           "pretrained_model_name_or_path=path))\n"
    plain, packed = (read(written(tmp_path, more=more + PAIRS % varlen)) for varlen in ("False", "True"))
    assert (plain.options["seq-len"], packed.options["seq-len"]) == (1024, 3072)
    assert plain.options["objective"] == objective
    assert asks in ",".join((*plain.options["engine-option"], ""))
    assert plain.unread == ()


SEES = """
model = dict(type=LLaVAModel, freeze_llm=%s, freeze_visual_encoder=True, pretrained_pth="p.pth",
             llm=dict(type=AutoModelForCausalLM.from_pretrained, pretrained_model_name_or_path=path%s),
             visual_encoder=dict(type=CLIPVisionModel.from_pretrained,
                                 pretrained_model_name_or_path="openai/clip-vit-large-patch14-336")%s)
train_dataloader = dict(batch_size=4, dataset=dict(type=LLaVADataset, max_length=int(2048 - (336 / 14) ** 2)))
"""
ADAPTED = ", llm_lora=dict(type=LoraConfig, r=512), visual_encoder_lora=dict(type=LoraConfig, r=64)"


def seen(folder: Path, *, frozen: bool, llm: str = "", more: str = "") -> tuple[Given, dict[str, int]]:
    """What is read, and the elements of weights that learn and that are packed, by the part of the network."""
    path = written(folder, "", "", SEES % (frozen, llm, more))
    job = job_of({"gpus": "8xh100", "from": (str(path),)})
    recipe = huggingface._recipe(job)
    found: dict[str, int] = {}
    for weight in weights(recipe):
        part = part_of(weight.owner, weight.path)
        kind = "learns" if weight.learns else "packed" if weight.width == 1 else f"frozen {weight.width}"
        found[f"{part} {kind}"] = found.get(f"{part} {kind}", 0) + weight.elements * weight.repeats
    return read(path), found


PROJECTOR = 1024 * 4096 + 4096 + 4096 * 4096 + 4096


def test_an_image_encoder_and_two_linears_stand_before_the_model(tmp_path: Path) -> None:
    given, found = seen(tmp_path, frozen=False)
    assert (given.options["seq-len"], given.options["freeze"]) == (2048 - 1, "vision")
    assert found["projector learns"] == PROJECTOR
    assert found["vision frozen 4"] == 303_507_456  # openai/clip-vit-large-patch14-336's vision_model
    assert found["decoder learns"] > 6e9


def test_a_packed_language_model_leaves_its_encoder_whole(tmp_path: Path) -> None:
    _, alone = seen(tmp_path, frozen=True, llm=PACKED)
    assert {name: count for name, count in alone.items() if "learns" in name} == {"projector learns": PROJECTOR}
    assert alone["vision frozen 4"] == 303_507_456
    given, both = seen(tmp_path, frozen=True, llm=PACKED, more=ADAPTED)
    layer = 4 * (1024 + 1024) + 2 * (1024 + 4096)
    assert both["vision learns"] == 24 * 64 * layer
    assert both["projector learns"] == PROJECTOR
    assert both["decoder packed"] == alone["decoder packed"] > 3e9
    assert given.options["lora-rank"] == 512
