"""Scripts that call TRL's trainers answer as the YAML with the same arguments; what only a run knows is named."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.formats.test_readers import asked, refusal
from vramcast.domain.job import Precision
from vramcast.formats.read import read_files

HEAD = "from datasets import load_dataset\nfrom trl import SFTConfig, SFTTrainer\n"
ARGS = "args = SFTConfig(output_dir='x', per_device_train_batch_size=4, max_length=2048, packing=True)\n"
TRAINS = "SFTTrainer(model='llama-3.2-1b', args=args, train_dataset=load_dataset('a'){}).train()\n"
LOADED = ("bnb = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_use_double_quant=True)\n"
          "model = AutoModel.from_pretrained('llama-3.2-1b', dtype=torch.bfloat16, quantization_config=bnb)\n")
ADAPTS = ", peft_config=LoraConfig(r=32, target_modules=['q_proj'], task_type='CAUSAL_LM')"
PLAIN = {"model_name_or_path": "llama-3.2-1b", "per_device_train_batch_size": 4, "max_length": 2048, "packing": True}
LORA = {"use_peft": True, "lora_r": 32, "lora_target_modules": ["q_proj"], "lora_dropout": 0.0}
BATCHED = "n = 8\n{}\n" + ARGS.replace("=4", "=n")

ARGUED = ("parser = argparse.ArgumentParser()\nparser.add_argument('--batch', type=int, default=2)\n"
          "parser.add_argument('--no-pack', action='store_false', dest='pack')\nargs = parser.parse_args()\n"
          "sft = SFTConfig(per_device_train_batch_size=args.batch, max_length=2048, packing=args.pack)\n"
          "SFTTrainer(model='llama-3.2-1b', args=sft)\n")
PARSED = "parser = TrlParser((ScriptArguments, SFTConfig, ModelConfig))\nSFTTrainer(model=one.model_name_or_path)\n"


def script(folder: Path, text: str, name: str = "own.py") -> Path:
    (folder / name).write_text(text)
    return folder / name


@pytest.mark.parametrize("text, table", [
    (ARGS + TRAINS.format(""), PLAIN),
    (ARGS + TRAINS.format(ADAPTS), PLAIN | LORA),
    (ARGS + LOADED + TRAINS.format(ADAPTS).replace("'llama-3.2-1b'", "model"),
     PLAIN | LORA | {"dtype": "bfloat16", "load_in_4bit": True, "use_bnb_nested_quant": True}),
    (ARGS.replace("packing", "model_init_kwargs={'dtype': 'bfloat16'}, packing") + TRAINS.format(""),
     PLAIN | {"dtype": "bfloat16"}),
    (ARGS.replace("SFTConfig", "TrainingArguments").replace("max_length=2048, packing=True", "seed=1")
     + TRAINS.format(", packing=True, max_length=2048"), PLAIN | {"bf16": False, "gradient_checkpointing": False}),
    ("args = GRPOConfig(max_completion_length=64, num_generations=4, per_device_train_batch_size=4)\n"
     "GRPOTrainer('llama-3.2-1b', args=args, reward_funcs=[mine])\n",
     {"model_name_or_path": "llama-3.2-1b", "max_completion_length": 64, "num_generations": 4,
      "per_device_train_batch_size": 4}),
    ("batch, kw = 4, {'dtype': 'float32'}\nkw['dtype'] = 'bfloat16'\nclass C:\n    batch = 2\n"
     + ARGS.replace("=4", "=batch, model_init_kwargs=kw") + "re.compile('a')\nargs.seed = 1\n" + TRAINS.format(""),
     PLAIN | {"dtype": "bfloat16"}),
    ("urls = ['a', 'b', 'c', 'd']\n" + ARGS.replace("=4", "=len(urls)") + "args.gradient_checkpointing = False\n"
     + TRAINS.format(""), PLAIN | {"gradient_checkpointing": False}),
    (ARGS + "t = " + TRAINS.format("").replace(".train()", "")
     + "t.train()\nagain = AutoModel.from_pretrained('llama-3.2-3b')\nagain.merge_and_unload()\n", PLAIN),
])
def test_a_script_answers_as_the_yaml_of_its_arguments(text: str, table: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(table))
    of_script, of_yaml = (asked(name, gpus="h100") for name in (
        script(tmp_path, HEAD + text), tmp_path / "a.yaml"))
    assert (of_script.model.name, of_script.plan, of_script.workload, of_script.engine_options) == (
        of_yaml.model.name, of_yaml.plan, of_yaml.workload, of_yaml.engine_options)


@pytest.mark.parametrize("text, said", [
    (ARGS.replace("=4", "=int(x)") + TRAINS.format(""), "per_device_train_batch_size: ${int(x)} is not set"),
    ("args = TrlParser(SFTConfig, ModelConfig).parse()\n" + TRAINS.format(""), "TrlParser: reads a command line"),
    (ARGUED.replace("default=2", "required=True"), "${--batch, which the command must give}"),
    (ARGS + TRAINS.format(", optimizers=(mine, None)"), "optimizers: may change memory"),
    (ARGS + TRAINS.format(", peft_config=IA3Config()"), "peft_config: is made by no LoraConfig"),
    (ARGS + "model = prepare_model_for_kbit_training(model)\n" + TRAINS.format(""), "casts what is not packed"),
    (ARGS + TRAINS.format(", data_collator=mine"), "give --seq-len"),
    (ARGS + TRAINS.format(", peft_config=LoraConfig(r=8, rank_pattern={'q': 4})"), "of LoraConfig is not modelled"),
    ("GRPOTrainer('llama-3.2-1b', reward_funcs='org/reward')\n", "reward_funcs: names a reward model"),
    ("PPOTrainer(model='llama-3.2-1b')\n", "PPO is not modelled"),
    ("print(SFTConfig())\n", "Trainer: is not called"),
    (LOADED.replace(", quantization_config=bnb", "") + "DPOTrainer(model=model)\n", "ref_model: is loaded in float32"),
    *((BATCHED.format(text) + TRAINS.format(""), "per_device_train_batch_size: ${n} is not set") for text in (
        "if big():\n  n = 2", "for n in [2]:\n  pass", "while n > 4:\n  n //= 2", "def f():\n  global n", "*n, m = f()",
        "try:\n  n = 2\nexcept OSError:\n  pass", "match f():\n  case 1:\n    n = 2")),
    ("n = 8\ndef f(n):\n  " + ARGS.replace("=4", "=n") + TRAINS.format(""), "${n} is not set"),
    (ARGS + "if f():\n  args.max_length = 9\n" + TRAINS.format(""), "args.max_length: is set behind the call"),
    (ARGS + "setattr(args, 'max_length', 9)\n" + TRAINS.format(""), "SFTConfig.max_length: is set behind the call"),
    (ARGS + "p = LoraConfig(r=8)\np.r = 64\n" + TRAINS.format(", peft_config=p"), "p.r: is set behind the call"),
    (ARGS + "t = ['q_proj']\nt.append('v_proj')\n" + TRAINS.format(", peft_config=LoraConfig(target_modules=t)"),
     "lora_target_modules: ${t} is not set"),
    (ARGS + TRAINS.format(", peft_config=LoraConfig() if f() else None"), "peft_config: depends on what only a run"),
    (ARGS + LOADED.replace("g=bnb", "g=bnb if f() else None")
     + TRAINS.format(ADAPTS).replace("'llama-3.2-1b'", "model"),
     "quantization_config: depends on what only a run"),
    (ARGS + LOADED + LOADED.replace("bfloat16", "float16") + TRAINS.format("").replace("'llama-3.2-1b'", "model"),
     "by several different ones"),
    ("# !pip install 'trl>=0.9,<0.12'\n" + ARGS + TRAINS.format(""), "trl: is held to no single release"),
    (ARGS.replace("4,", "4, bf16=False,") + "with torch.autocast('cuda'):\n  t = " + TRAINS.format(""),
     "autocast: around"),
    (ARGS + "judge = pipeline('text-classification', model='a')\n" + TRAINS.format(""), "pipeline: loads another"),
])
def test_what_may_change_the_answer_is_named(text: str, said: str, tmp_path: Path) -> None:
    assert said in refusal(read_files([script(tmp_path, HEAD + text)], command="train"))


def test_a_notebook_has_the_defaults_of_the_release_that_it_installs(tmp_path: Path) -> None:
    cells = [f"!pip install -q {what}\n" for what in ("trl==0.9.6 peft", "transformers==4.44.2")]
    cells.append(HEAD + ARGS.replace("max_length", "max_seq_length") + TRAINS.format(""))
    text = json.dumps({"cells": [{"cell_type": "code", "source": [cell]} for cell in cells]})
    job = asked(script(tmp_path, text, "own.ipynb"), gpus="h100")
    assert (job.engine_version, job.engine_options["trl"], job.plan.precision) == ((4, 44, 2), "0.9.6", Precision.FP32)


@pytest.mark.parametrize("text, words, expected", [
    (ARGUED, "", (2, 2048, None)), (ARGUED, "--batch 16 --no-pack", (16, 2048, 1)),
    (PARSED, "--model_name_or_path llama-3.2-1b --max_length 512 --per_device_train_batch_size 4", (4, 512, 1)),
])
def test_the_command_says_what_the_script_parses(
    text: str, words: str, expected: tuple[int, int, int | None], tmp_path: Path
) -> None:
    script(tmp_path, HEAD + text)
    workload = asked(script(tmp_path, f"python own.py {words}\n", "run.sh"), gpus="h100").workload
    assert (workload.micro_batch, workload.seq_len, workload.min_seq_len) == expected


def test_a_model_over_the_cards_of_one_process_has_some_layers_on_each(tmp_path: Path) -> None:
    text = ARGS + LOADED.replace("dtype=torch.bfloat16, quant", "device_map='auto', quant") + TRAINS.format(ADAPTS)
    seen = "os.environ['CUDA_VISIBLE_DEVICES'] = '0'\n" + ARGS + TRAINS.format("")
    for one, cards in ((text.replace("model='llama-3.2-1b'", "model=model"), 8), (seen, 1)):
        job = asked(script(tmp_path, HEAD + one), gpus="8xh100")
        assert job.cluster.count == job.plan.pp == cards


def test_a_script_of_ones_own_is_read_behind_its_command_whatever_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script(tmp_path, HEAD + ARGS + TRAINS.format(""), "sft.py")  # as TRL calls one of its own
    script(tmp_path, "from unsloth import FastLanguageModel\nfrom trl import SFTConfig, SFTTrainer\n"
           "model, tokenizer = FastLanguageModel.from_pretrained('llama-3.2-1b', max_seq_length=2048)\n"
           "model = FastLanguageModel.get_peft_model(model)\n" + ARGS
           + "SFTTrainer(model=model, args=args, train_dataset=load_dataset('a')).train()\n", "train.py")
    for name, starts in (("sft.py", ("python", "accelerate launch")), ("train.py", ("python", "python3 -u"))):
        alone = read_files([name], command="train")
        for start in starts:
            behind = read_files([], command="train", line=f"{start} {name}")
            behind.options.pop("shards", None)  # the launcher says that too
            assert {**behind.options, **behind.batch} == {**alone.options, **alone.batch} and not refusal(behind)
    script(tmp_path, HEAD + PARSED, "sft.py")  # TRL's own: what it reads of its arguments
    given = read_files([], command="train", line="python sft.py --model_name_or_path llama-3.2-1b --max_length 512")
    assert given.options["seq-len"] == 512
