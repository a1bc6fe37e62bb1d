"""Unsloth's calls in scripts and notebooks: read, never run."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from tests.formats.test_readers import asked, refusal, written
from vramcast.api.answers import post_training_job_of
from vramcast.blocks.lengths import image_tokens
from vramcast.catalogue.models import load_model
from vramcast.errors import SourceError, VramcastError
from vramcast.estimate.training import answer
from vramcast.formats.python_calls import Open, calls_of
from vramcast.formats.read import read_files
from vramcast.formats.reading import Given

SCRIPT = """from unsloth import FastLanguageModel
import torch
max_seq_length = 2 * 1024
model, tokenizer = FastLanguageModel.from_pretrained(
    model_name = "unsloth/Meta-Llama-3.1-8B",
    max_seq_length = max_seq_length,
    dtype = None,
    load_in_4bit = True, LOADS
    # token = "hf_...",
)
model = FastLanguageModel.get_peft_model(
    model, r = 16,
    target_modules = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",],
    lora_alpha = 16, use_gradient_checkpointing = "unsloth", random_state = 3407, ADAPTS
)
from trl import SFTTrainer, SFTConfig
from unsloth import is_bfloat16_supported
trainer = SFTTrainer(
    model = model, tokenizer = tokenizer, train_dataset = dataset, packing = False,
    args = SFTConfig(
        per_device_train_batch_size = 2, gradient_accumulation_steps = 4, warmup_steps = 5, max_steps = 60,
        learning_rate = 2e-4, fp16 = not is_bfloat16_supported(), bf16 = is_bfloat16_supported(),
        optim = "adamw_8bit", weight_decay = 0.001, seed = 3407, output_dir = "outputs", TRAINS
    ),
)
if False:
    model, tokenizer = FastLanguageModel.from_pretrained(model_name = "lora_model", max_seq_length = 1)
"""


def script(loads: str = "", adapts: str = "", trains: str = "") -> str:
    return SCRIPT.replace("LOADS", loads).replace("ADAPTS", adapts).replace("TRAINS", trains)


def notebook(text: str) -> dict[str, Any]:
    cells = [{"cell_type": "markdown", "source": ["# Fine-tune"]},
             {"cell_type": "code", "source": ["%%capture\n", "!pip install unsloth \\\n", "  --no-deps\n"]},
             {"cell_type": "code", "source": ["!if then fi (\n"], "outputs": [{"text": "x" * 2_000_000}]},
             {"cell_type": "code", "source": text.splitlines(keepends=True)}]
    return {"cells": cells, "nbformat": 4, "metadata": {}}


def given(folder: Path, text: str) -> Given:
    return read_files([written(folder, "train.py", text)], command="train")


@pytest.mark.parametrize("name, content", [("train.py", script()), ("train.ipynb", notebook(script()))])
def test_a_notebook_is_its_whole_question(name: str, content: Any, tmp_path: Path) -> None:
    job = asked(written(tmp_path, name, content), gpus="a100")
    assert (job.engine, job.model.name) == ("unsloth", "llama-3.1-8b")
    assert (job.workload.seq_len, job.workload.micro_batch, job.workload.grad_accum) == (2048, 2, 4)
    assert job.plan.peft is not None
    assert (job.plan.peft.rank, job.plan.peft.base, len(job.plan.peft.targets)) == (16, "nf4-dq", 7)
    assert (job.plan.optimizer, job.plan.precision, job.plan.recompute) == ("adamw-8bit", "amp-bf16", "full")
    assert asked(written(tmp_path, name, content), gpus="t4").plan.precision == "amp-fp16"


@pytest.mark.parametrize("trainer, said, length", [
    ("SFT", "max_seq_length = 1024", 1024), ("SFT", "max_seq_length = 4096", 2048), ("SFT", "max_length = 1024", 2048),
    ("DPO", "max_length = 1024", 1024), ("DPO", "max_length = 4096", 2048),
])
def test_a_trainer_may_cut_samples_shorter_than_the_model_takes(
    trainer: str, said: str, length: int, tmp_path: Path
) -> None:
    text = script(trains=said).replace("SFT", trainer)
    assert asked(written(tmp_path, "train.py", text), gpus="a100").workload.seq_len == length


@pytest.mark.parametrize("parts, expected", [
    ({"loads": "load_in_8bit = True,"}, {"base-weights": "int8"}),
    ({"loads": "load_in_16bit = True,"}, {"base-weights": None}),
    ({"loads": "full_finetuning = True,"}, {"peft": None, "precision": "bf16", "base-weights": None}),
    ({"adapts": "lora_dropout = 0.1,"}, {"lora-dropout": 0.1}),
    ({"adapts": "modules_to_save = ['embed_tokens', 'lm_head'],"}, {"modules-to-save": "embedding,head"}),
    ({"trains": "loss_type = 'nll',"}, {"objective": "sft"}),
])
def test_calls_are_read_as_unsloth_means_them(
    parts: dict[str, str], expected: dict[str, Any], tmp_path: Path
) -> None:
    found = given(tmp_path, script(**parts)).options
    assert {name: found.get(name) for name in expected} == expected


def test_what_is_unsaid_is_unsloths_own(tmp_path: Path) -> None:
    text = ("from unsloth import FastLanguageModel\n"
            "model, t = FastLanguageModel.from_pretrained('unsloth/Qwen3-14B')\n"
            "model = FastLanguageModel.get_peft_model(model)\n"
            "trainer = SFTTrainer(model=model, args=SFTConfig(learning_rate=1e-4))\n")
    found = given(tmp_path, text)
    assert found.options["model"] == "qwen3-14b"
    assert (found.options["lora-rank"], found.options["optimizer"], found.options["seq-len"]) == (
        16, "adamw-8bit", 2048)
    assert found.batch == {"micro": 4, "accumulation": 2}
    assert "is a copy of qwen3-14b" in " ".join(found.assumptions)
    of_transformers = text.replace("SFTConfig", "TrainingArguments")
    assert given(tmp_path, of_transformers).batch == {"micro": 8, "accumulation": 1}


@pytest.mark.parametrize("parts, sentence", [
    ({"loads": "fast_inference = True,"}, "puts a server on the same card"),
    ({"loads": "unsloth_tiled_mlp = True,"}, "unsloth_tiled_mlp"),
    ({"trains": "optim_args = sys.argv[1],"}, "optim_args"),
    ({"loads": "**settings,"}, "**: holds what only a run knows"),
    ({"trains": "gradient_accumulation_steps2 = 3,"}, "gradient_accumulation_steps2"),
])
def test_what_is_not_modelled_is_named(parts: dict[str, str], sentence: str, tmp_path: Path) -> None:
    assert sentence in refusal(given(tmp_path, script(**parts)))


def test_what_is_set_behind_a_call_is_named(tmp_path: Path) -> None:
    text = script() + "trainer.args.per_device_train_batch_size = 64\ntorch._dynamo.config.recompile_limit = 9\n"
    text += "model.generation_config.language = 'en'\nmodel.config.suppress_tokens = []\n"
    assert refusal(given(tmp_path, text)).count("is set behind") == 1


EMBEDDINGS = """from unsloth import FastSentenceTransformer
model = FastSentenceTransformer.from_pretrained("unsloth/Qwen3-Embedding-0.6B", max_seq_length = 512)
model = FastSentenceTransformer.get_peft_model(model, r = 32)
trainer = SentenceTransformerTrainer(model = model, loss = losses.LOSS(model),
    args = SentenceTransformerTrainingArguments(per_device_train_batch_size = 64, max_steps = 30))
"""


def test_texts_of_a_pair_are_held_together(tmp_path: Path) -> None:
    """Both are embedded before either's backward."""
    text = EMBEDDINGS.replace("LOSS", "MultipleNegativesRankingLoss")
    job = asked(written(tmp_path, "train.py", text), gpus="a100", seq_len=64)
    assert (job.workload.micro_batch, job.workload.seq_len) == (128, 64)
    assert "may be far shorter; give --seq-len" in refusal(given(tmp_path, text))
    assert "loss: is not modelled but for" in refusal(given(tmp_path, EMBEDDINGS))


OF_ANY_NETWORK = """from unsloth import FastModel
model, _ = FastModel.from_pretrained("unsloth/NAME", offload_embedding = True)
model = FastModel.get_peft_model(model, FLAGS)
collator = UnslothVisionDataCollator(model, _)
trainer = SFTTrainer(model = model, data_collator = collator, args = SFTConfig(max_steps = 1))
print("python train.py <<EOF '")
"""
DECODER = {f"decoder.{path}" for path in (
    "attention.q", "attention.k", "attention.v", "attention.out", "mlp.gate", "mlp.up", "mlp.down")}


@pytest.mark.parametrize("name, flags, adapted", [
    ("gemma-4-E2B-it", "finetune_vision_layers = False", DECODER),
    ("gemma-4-E2B-it", "finetune_vision_layers = False, finetune_mlp_modules = False",
     {path for path in DECODER if "attention" in path}),
    ("gemma-4-E2B-it", "finetune_vision_layers = False, target_modules = ['q_proj', 'down_proj']",
     {"decoder.attention.q", "decoder.mlp.down"}),
    ("Qwen3-30B-A3B", "target_modules = ['q_proj', 'gate_proj', 'up_proj', 'down_proj']",
     {"attention.q", "moe.experts.gate_up", "moe.experts.down"}),
    ("Qwen3-30B-A3B", "finetune_mlp_modules = False",
     {"attention.q", "attention.k", "attention.v", "attention.out"}),
    ("Qwen2-VL-7B-Instruct", "", {
        "vision.attention.qkv", "attention.out", "mlp.up", "mlp.down", "mlp.gate", "decoder.attention.q",
        "decoder.attention.k", "decoder.attention.v"}),
])
def test_unsloth_adapts_the_modules_that_its_flags_name(
    name: str, flags: str, adapted: set[str], tmp_path: Path
) -> None:
    text = OF_ANY_NETWORK.replace("NAME", name).replace("FLAGS", flags)
    job = asked(written(tmp_path, "train.py", text), gpus="h100")
    assert job.plan.peft is not None
    assert set(job.plan.peft.targets) == adapted
    assert job.workload.image_size == (512 if "VL" in name else 816 if "gemma" in name else None)


@pytest.mark.parametrize("network, tokens", [("gemma-4-e2b", 17 * 17), ("gemma-4-12b", 17 * 17)])
def test_images_of_gemma_4_are_pooled_by_three_or_read_without_an_encoder(
    network: str, tokens: int, tmp_path: Path
) -> None:
    assert image_tokens(load_model(network), 816) == tokens  # of 816 / 48 a side
    text = OF_ANY_NETWORK.replace("NAME", network).replace("FLAGS", "r = 8")
    job = asked(written(tmp_path, "train.py", text), gpus="h100", **{"seq-len": "512"})
    assert answer(job, with_changes=False).ranks[0].ledger


@pytest.mark.parametrize("lengths, expected", [
    ("max_prompt_length = longest + 1, max_completion_length = 2048 - longest", (1, 2047)),
    ("max_prompt_length = longest + 1, max_completion_length = 1548", (500, 1548)),
    ("max_prompt_length = 600", (600, 256)),  # as TRL has it
    ("beta = 0.001", (512, 256)),
])
def test_prompts_of_unknown_length_share_the_length_with_answers(
    lengths: str, expected: tuple[int, int], tmp_path: Path
) -> None:
    text = script().replace("SFTTrainer", "GRPOTrainer").replace("SFTConfig(", f"GRPOConfig({lengths}, ")
    found = given(tmp_path, text)
    assert (found.options["seq-len"], found.options["completion-len"]) == expected and not refusal(found)
    assert ("known to a run alone" in " ".join(found.assumptions)) == ("longest" in lengths)


GRPO: Final = (script(loads="fast_inference = True, gpu_memory_utilization = 0.8, max_lora_rank = 32,")
               .replace("SFTTrainer", "GRPOTrainer").replace("SFTConfig(", "GRPOConfig(num_generations = 6, "))


@pytest.mark.parametrize(("before", "sleeps"), [
    ("", False), ("import os\nos.environ['UNSLOTH_VLLM_STANDBY'] = '1'\n", True),
    ("os.environ['UNSLOTH_VLLM_STANDBY'] = '0'\n", False), ("# os.environ['UNSLOTH_VLLM_STANDBY'] = '1'\n", False),
])
@pytest.mark.parametrize("written_as", ["train.py", "train.ipynb"])
def test_an_engine_on_the_same_card_is_a_question_of_post_training(
    before: str, sleeps: bool, written_as: str, tmp_path: Path
) -> None:
    text = before + GRPO
    path = written(tmp_path, written_as, notebook(text) if written_as.endswith("ipynb") else text)
    job = post_training_job_of({"from": (str(path),), "gpus": "t4"})
    assert (job.framework, job.rollout.sleeps, job.rollout.memory_fraction) == ("unsloth", sleeps, 0.8)
    assert (job.episodes.prompts, job.episodes.samples, job.updates.micro_batch) == (4, 6, 6)
    assert job.plan.precision == "amp-fp16" and job.plan.peft is not None and job.plan.peft.base == "nf4"
    assert "vramcast rl answers for that" in refusal(given(tmp_path, text))
    older = text.replace("GRPOConfig(", "GRPOConfig(use_vllm = True, ")  # as TRL calls the engine that is there
    assert post_training_job_of({"from": (str(written(tmp_path, "older.py", older)),), "gpus": "t4"}) == job


@pytest.mark.parametrize(("loads", "why"), [
    ("load_in_8bit = True,", "load_in_8bit: beside fast_inference"), ("float8_kv_cache = True,", "float8_kv_cache"),
    ("conservativeness = 0.5,", "conservativeness"), ("full_finetuning = True,", "modelled for GRPO of adapters alone"),
])
def test_what_unsloths_engine_is_told_besides_is_named(loads: str, why: str, tmp_path: Path) -> None:
    text = GRPO.replace("fast_inference = True,", f"fast_inference = True, {loads}")
    with pytest.raises(VramcastError, match=why):
        post_training_job_of({"from": (str(written(tmp_path, "train.py", text)),), "gpus": "a100"})


def test_what_only_a_run_knows_is_asked_for(tmp_path: Path) -> None:
    text = script().replace("per_device_train_batch_size = 2", "per_device_train_batch_size = args.batch")
    assert "per_device_train_batch_size" in refusal(given(tmp_path, text))


def test_names_hold_what_they_hold_where_a_call_stands() -> None:
    text = "N = 8\nf(a=N, b=-N, c='x' + 'y', d=[N, 2], **more)\nN = g()\nf(a=N)\nif False:\n    f(a=3)\n"
    calls = calls_of(text, "x.py")
    (first, second) = [call for call in calls if call.name == "f"]
    assert first.arguments == {"a": 8, "b": -8, "c": "xy", "d": [8, 2]} and first.several
    assert second.arguments == {"a": Open("g()")}


@pytest.mark.parametrize("text", ["def f(:\n", "\0", "(" * 5000, "x = 1\n" + "f(" * 900 + ")" * 900])
def test_what_is_no_python_is_one_sentence(text: str, tmp_path: Path) -> None:
    with pytest.raises(VramcastError):
        given(tmp_path, "from unsloth import FastLanguageModel\n" + text)


def test_what_only_generates_is_not_trained(tmp_path: Path) -> None:
    text = script().partition("from trl import")[0] + "model.generate(max_new_tokens=64)\n"
    assert "nothing is trained" in refusal(given(tmp_path, text))


def test_half_a_notebook_is_one_sentence(tmp_path: Path) -> None:
    half = json.dumps(notebook(script()))[:500]
    with pytest.raises(SourceError, match="not a notebook"):
        asked(written(tmp_path, "a.ipynb", half), gpus="a100")


def test_a_configuration_says_lengths_without_a_rate_of_learning(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from unsloth import FastLanguageModel\n"
        "model, _ = FastLanguageModel.from_pretrained('unsloth/Qwen3-4B', max_seq_length=8192)\n"
        "model = FastLanguageModel.get_peft_model(model)\n"
        "trainer = GRPOTrainer(model=model, args=GRPOConfig(max_completion_length=4096))\n")
    found = read_files([tmp_path / "train.py"], command="train")
    assert found.options["completion-len"] == 4096
