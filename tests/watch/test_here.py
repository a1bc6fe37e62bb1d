"""`--gpus here`: the cards of this machine, less what others hold."""

import json

import pytest

from tests.watch.conftest import Machine
from vramcast.units import MIB

JOB = ("qwen3-0.6b", "--seq-len", "512", "--json")


def test_cards_are_named_and_what_others_hold_is_counted(machine: Machine) -> None:
    card = "gpu 24564 300 NVIDIA GeForce RTX 4090"
    machine.has(card, card, "process 4000000 3000 0 -1 20 C")
    asked = machine.ask("train", *JOB, "--gpus", "here")
    assert asked.returncode == 0, asked.stderr
    answer = json.loads(asked.stdout)
    assert answer["question"]["gpus"] == "2xrtx-4090"
    held = next(entry for entry in answer["ranks"][0]["ledger"] if "held by others" in entry["path"])
    assert held["bytes"] == 3000 * MIB
    assert "here: 2xrtx-4090" in asked.stderr and "GPU 1: others hold 2.93 GiB" in asked.stderr


def test_what_is_said_to_be_used_wins(machine: Machine) -> None:
    machine.has("gpu 24564 300 NVIDIA GeForce RTX 4090", "process 4000000 3000 0 -1 20 C")
    answer = json.loads(machine.ask("serve", "qwen3-0.6b", "--json", "--gpus", "here", "--reserve", "1GiB").stdout)
    held = next(entry for entry in answer["ranks"][0]["ledger"] if "held by others" in entry["path"])
    assert held["bytes"] == 1024 * MIB


@pytest.mark.parametrize(("lines", "gpus"), [
    (("gpu 6144 100 NVIDIA GeForce RTX 3050 Laptop GPU",), "1xrtx-3050-laptop-6gb"),
    (("gpu 49140 100 NVIDIA GeForce RTX 4090",), "1xrtx-4090-48gb"),  # with twice the memory soldered on
    (("gpu 49140 100 NVIDIA GeForce RTX 3090",), "1x49140mib"),
    (("gpu 30000 100 NVIDIA Graphics Device",), "1x30000mib"),
    (("gpu 24576 100 NVIDIA GeForce RTX 3090", "gpu 24564 100 NVIDIA GeForce RTX 4090"), "1xrtx-3090+1xrtx-4090"),
    (("gpu 81920 300 NVIDIA A100-SXM4-80GB", "mig 1 9728 1g.10gb"), "1xa100-sxm4-80gb-1g.10gb"),
])
def test_cards_of_every_kind_are_named(machine: Machine, lines: tuple[str, ...], gpus: str) -> None:
    machine.has(*lines)
    asked = machine.ask("train", *JOB, "--gpus", "here")
    assert asked.stdout and json.loads(asked.stdout)["question"]["gpus"] == gpus, asked.stderr


def test_cards_are_those_that_a_process_would_see(machine: Machine) -> None:
    machine.has("gpu 24576 100 NVIDIA GeForce RTX 3090", "gpu 24564 100 NVIDIA GeForce RTX 4090")
    machine.environment["CUDA_VISIBLE_DEVICES"] = "1"
    assert json.loads(machine.ask("train", *JOB, "--gpus", "here").stdout)["question"]["gpus"] == "1xrtx-4090"


def test_no_card_is_one_sentence(machine: Machine) -> None:
    machine.environment["LD_LIBRARY_PATH"] = ""
    asked = machine.ask("train", *JOB, "--gpus", "here")
    assert asked.returncode == 5 and not asked.stdout
    assert asked.stderr.startswith("SourceError: no GPU can be read here") and asked.stderr.count("\n") == 1
