"""`vramcast pack`: jobs as people have them, on cards that they may share."""

import json
from pathlib import Path
from typing import Final

from tests.cli.asking import vramcast

SERVER = "vllm serve Qwen/Qwen3-0.6B --max-model-len 4096 --gpu-memory-utilization 0.3"
SFT = "\n".join((
    "base_model: Qwen/Qwen3-0.6B", "adapter: lora", "lora_r: 8", "lora_target_linear: true", "sequence_len: 1024",
    "micro_batch_size: 1",
))


def test_files_commands_and_lists_share_cards(tmp_path: Path) -> None:
    (tmp_path / "sft.yaml").write_text(SFT)
    (tmp_path / "job.toml").write_text('model = "gpt2"\nseq-len = 512\ngpus = "h100-sxm-80gb"\n')
    lines = ("# tonight", SERVER, "", "vramcast train gpt2 --seq-len 512", str(tmp_path / "sft.yaml"))
    (tmp_path / "jobs.txt").write_text("\n".join(lines))
    found = vramcast("pack", str(tmp_path / "jobs.txt"), str(tmp_path / "job.toml"), str(tmp_path / "sft.yaml"),
                     "--gpus", "3xa10", "--json")
    answer = json.loads(found.stdout)
    assert found.returncode == 0, found.stdout
    names = {job["name"]: job for card in answer["cards"] for job in card["jobs"]}
    assert {"job.toml", "sft.yaml", "sft.yaml (2)", "vramcast train gpt2 --seq-len 512"} <= names.keys()
    alone = json.loads(vramcast("train", "gpt2", "--seq-len", "512", "--gpus", "a10", "--json").stdout)
    assert names["job.toml"]["needed_bytes"] == alone["needed_bytes"]
    for card in answer["cards"]:
        assert card["claimed_bytes"] == sum(job["claimed_bytes"] for job in card["jobs"]) <= card["capacity_bytes"]
    assert [card["chance_to_run_out"] <= 0.01 for card in answer["cards"] if card["jobs"]] == [True] * answer["used"]
    assert f"{SERVER[:57]}..." in answer["warnings"][0]


WITHOUT: Final = {
    "python nothere.py --lr 1": "nothere.py is not here",
    "nothere.yaml": "no such file; a command stands in quotes",
    "echo hello": "nothing is known of what it does",
    "vramcast train gpt2 --seq-lenn 5": "No such option",
    "vramcast train llama-3-70b --gpus 2x8xh100-sxm-80gb": "it takes 2 machines",
    "vramcast train llama-3-70b": "can be used",
    "vllm serve 'Qwen": "a quotation mark is not closed",
}
"""Job -> why it has no card."""


def test_a_job_without_an_answer_says_why_and_stops_nothing() -> None:
    found = vramcast("pack", *WITHOUT, "vramcast train gpt2 --seq-len 512", "--gpus", "a10", "--used", "2GiB")
    assert found.returncode == 1
    assert f"1 of {1 + len(WITHOUT)} jobs on 1 of 1 GPUs" in found.stdout
    for job, why in WITHOUT.items():
        line = next(line for line in found.stdout.splitlines() if line.startswith(f"  - {job}: "))
        assert why in line


def test_what_others_hold_leaves_less() -> None:
    assert vramcast("pack", "vramcast train gpt2", "--gpus", "a10", "--used", "20GiB").returncode == 1
