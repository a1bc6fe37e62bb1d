"""Copies of a user's files with the change that makes them fit."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

import vramcast
from vramcast.cli.main import group
from vramcast.errors import InvalidSpec, SourceError, Unsupported

TRAINER = """\
# mine
per_device_train_batch_size: 8  # as large as possible
gradient_accumulation_steps: 1
bf16: true
max_length: 2048
output_dir: out
"""
FACTORY = """\
model_name_or_path: meta-llama/Llama-3.2-3B
stage: sft
do_train: true
finetuning_type: lora   # adapters
lora_target: all
template: llama3
dataset: mine
cutoff_len: 2048
per_device_train_batch_size: 8
bf16: true
output_dir: out
"""
SERVER = """\
export HF_TOKEN=hf_secret_of_mine
vllm serve meta-llama/Llama-3.1-70B-Instruct \\
  --tensor-parallel-size 2 \\
  --max-model-len 32768   # tokens
"""


def fixed(folder: Path, name: str, text: str, *asked: str) -> tuple[str, str]:
    """What a command prints, and the copy that it writes."""
    file = folder / name
    file.write_text(text)
    found = CliRunner().invoke(group, [*asked, "--from", str(file), "--fix"], standalone_mode=False)
    assert found.exception is None, found.exception
    assert file.read_text() == text
    return found.output, (folder / f"{file.stem}.fixed{file.suffix}").read_text()


@pytest.mark.parametrize(("name", "text", "asked"), [
    ("args.yaml", TRAINER, ("train", "llama-3.2-1b", "--gpus", "rtx-4090")),
    ("sft.yaml", FACTORY, ("train", "--gpus", "rtx-4090")),
    ("serve.sh", SERVER, ("serve", "--gpus", "2xh100-sxm-80gb")),
])
def test_the_copy_fits_and_the_rest_of_it_is_the_user_s(name: str, text: str, asked: tuple[str, ...],
                                                        tmp_path: Path) -> None:
    said, copy = fixed(tmp_path, name, text, *asked)
    (tmp_path / name).write_text(copy)
    after = CliRunner().invoke(group, [*asked, "--from", str(tmp_path / name), "--json"], standalone_mode=False)
    assert json.loads(after.stdout)["fits"] is True
    assert f"wrote {Path(name).stem}.fixed" in said
    kept = [line for line in text.splitlines() if line in copy.splitlines()]
    assert len(kept) >= len(text.splitlines()) - 2
    if name.endswith("yaml"):
        assert yaml.safe_load(copy)["output_dir"] == "out"


def test_json_keeps_what_is_not_of_the_plan(tmp_path: Path) -> None:
    table = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "wall_clock_breakdown": False,
             "zero_optimization": {"stage": 1, "overlap_comm": True}}
    file = tmp_path / "ds.json"
    file.write_text(json.dumps(table, indent=4))
    asked = {"gpus": "8xa100-sxm4-40gb", "seq-len": 1024, "recompute": "full"}
    answer = vramcast.train("qwen3-8b", **asked, **{"from": str(file)})
    assert not answer.fits
    options = {"model": "qwen3-8b", **asked, "from": (str(file),)}
    found = vramcast.api.write_fixed(options, answer, command="train")
    copy = json.loads(found.files[0].read_text())
    assert copy["zero_optimization"]["overlap_comm"] is True and copy["wall_clock_breakdown"] is False
    assert copy["zero_optimization"]["stage"] == 3  # 2 may run out
    with pytest.raises(SourceError, match=r"ds\.fixed\.json: there already; --force overwrites"):
        vramcast.api.write_fixed(options, answer, command="train")


def test_what_cannot_be_fixed_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "args.yaml"
    file.write_text(TRAINER)
    asked = {"model": "llama-3.2-1b", "gpus": "h200-sxm-141gb", "from": (str(file),)}
    with pytest.raises(InvalidSpec, match="it fits as it is"):
        vramcast.api.write_fixed(asked, vramcast.train(**asked), command="train")
    with pytest.raises(InvalidSpec, match="give --from FILE"):
        vramcast.api.write_fixed({"model": "gpt2"}, vramcast.train(**asked), command="train")
    asked |= {"model": "llama-3.1-405b", "gpus": "t4"}
    with pytest.raises(Unsupported, match="no change makes it fit"):
        vramcast.api.write_fixed(asked, vramcast.train(**asked), command="train")
    assert list(tmp_path.iterdir()) == [file]
