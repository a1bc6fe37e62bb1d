"""Files of runs on one card, asked about several."""

from __future__ import annotations

from pathlib import Path

import pytest

from vramcast.formats.merged import with_configs
from vramcast.formats.paths import Configs

UNSLOTH = """from unsloth import FastLanguageModel
from trl import SFTTrainer, SFTConfig
model, tokenizer = FastLanguageModel.from_pretrained("unsloth/Qwen3-0.6B", max_seq_length=2048, load_in_4bit=True)
model = FastLanguageModel.get_peft_model(model, r=16)
trainer = SFTTrainer(model=model, args=SFTConfig(per_device_train_batch_size=2)); trainer.train()
"""
LITGPT = """checkpoint_dir: checkpoints/microsoft/phi-2
devices: {devices}
lora_r: 8
train: {{global_batch_size: 8, micro_batch_size: 4, max_seq_length: 512}}
"""


@pytest.mark.parametrize(("name", "text", "gpus"), [
    ("unsloth.py", UNSLOTH, "1xh100"), ("litgpt.yaml", LITGPT.format(devices=1), "1xh100"),
    ("litgpt.yaml", LITGPT.format(devices=2), "2xh100"),
])
def test_a_run_on_one_card_is_answered_for_one(tmp_path: Path, name: str, text: str, gpus: str) -> None:
    (tmp_path / name).write_text(text)
    options, _ = with_configs({"gpus": "2xh100"}, Configs((tmp_path / name,)), command="train")
    assert options["gpus"] == gpus
