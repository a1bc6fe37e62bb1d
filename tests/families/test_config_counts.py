"""Parameter counts against what hubs publish: each is met exactly or stands in a list with its reason."""

import json
from pathlib import Path
from typing import Any

import pytest

from vramcast.blocks.parameters.model import Stored, checkpoint_elements, count_parameters
from vramcast.catalogue.index import MODELS
from vramcast.catalogue.models import entry_model, read_entry
from vramcast.errors import VramcastError
from vramcast.families import model_from_config

ROWS: list[dict[str, Any]] = [
    json.loads(line) for line in (Path(__file__).parent / "model_configs.jsonl").read_text().splitlines()
]
PUBLISHED = [row for row in ROWS if row.get("params_exact")]

NOT_EXACT = {
    "XiaomiMiMo/MiMo-V2-Flash": "the checkpoint adds three prediction modules, block scales of "
    "all linears but the output projection, and 576 elements that no key of the config names",
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1": "the row lacks block_configs, the shape of each of its 80 layers",
}
"""Published counts that the known configs cannot explain."""

INCOMPLETE = {
    "vision": "the row holds the text config only; the image encoder is in the catalogue's config",
    "litgpt": "the row lacks the family: tied embeddings, norm, gating, biases, padded vocabulary",
    "reduced": "the row lacks keys of its family that differ from the defaults",
}

ROW_LACKS = (
    dict.fromkeys(
        [
            "Qwen/Qwen3-VL-235B-A22B-Instruct", "Qwen/Qwen3-VL-2B-Instruct", "Qwen/Qwen3-VL-32B-Instruct",
            "Qwen/Qwen3-VL-32B-Thinking", "Qwen/Qwen3-VL-4B-Instruct", "Qwen/Qwen3-VL-8B-Instruct",
            "Qwen/Qwen3.5-122B-A10B", "Qwen/Qwen3.5-27B", "Qwen/Qwen3.5-35B-A3B", "Qwen/Qwen3.5-397B-A17B",
            "google/gemma-4-26B-A4B", "meta-llama/Llama-4-Maverick-17B-128E-Instruct", "Qwen/Qwen2-VL-7B-Instruct",
            "Qwen/Qwen2.5-VL-7B-Instruct", "Qwen/Qwen2.5-VL-72B-Instruct", "meta-llama/Llama-3.2-11B-Vision-Instruct",
        ],
        "vision",
    )
    | {row["model"]: "litgpt" for row in PUBLISHED if "litgpt" in row["source"]}
    | dict.fromkeys(
        [
            "bigscience/bloom-560m",
            "bigscience/bloom-1b7",
            "bigscience/bloom-3b",
            "bigscience/bloom",  # hidden_size
            "zai-org/GLM-4.5",
            "zai-org/GLM-4.5-Air",
            "zai-org/GLM-4.6",  # dense width, biases, query/key norms
            "THUDM/glm-4-9b-chat",  # widths and vocabulary
            "Qwen/Qwen3-Next-80B-A3B-Instruct",  # the prediction module
            "Qwen/Qwen3-Embedding-0.6B",  # tied embeddings
            "intfloat/multilingual-e5-large",  # a bare model, so a pooler instead of a head
            "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",  # moe_shared_expert_intermediate_size
        ],
        "reduced",
    )
    | dict.fromkeys(NOT_EXACT, "reduced")
)
"""Rows whose own config is not the whole truth, and why."""


def stored_groups(name: str) -> tuple[tuple[Stored, ...], tuple[Stored, ...]]:
    checkpoint = read_entry(MODELS.resolve(name)).checkpoint
    return (checkpoint.stores, checkpoint.lacks) if checkpoint else ((), ())


def test_ninety_two_counts_are_published() -> None:
    assert len(PUBLISHED) == 92


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row["model"])
def test_catalogue_explains_the_published_count_to_the_last_element(row: dict[str, Any]) -> None:
    if row["model"] in NOT_EXACT:
        pytest.skip(NOT_EXACT[row["model"]])
    name = MODELS.resolve(row["model"])
    stores, lacks = stored_groups(name)
    assert checkpoint_elements(entry_model(name, read_entry(name)), stores, lacks) == row["params_exact"]


@pytest.mark.parametrize(
    "row", [row for row in PUBLISHED if row["model"] not in ROW_LACKS], ids=lambda row: row["model"]
)
def test_a_complete_config_alone_gives_the_published_count(row: dict[str, Any]) -> None:
    stores, lacks = stored_groups(row["model"])
    model = model_from_config(row["config"], name=row["model"])
    assert checkpoint_elements(model, stores, lacks) == row["params_exact"]


@pytest.mark.parametrize("row", [row for row in ROWS if row.get("params_formula")], ids=lambda row: row["model"])
def test_closed_forms_are_met(row: dict[str, Any]) -> None:
    assert count_parameters(model_from_config(row["config"], name=row["model"])).total == row["params_formula"]


def test_lists_of_exceptions_hold_no_row_that_works() -> None:
    for row in PUBLISHED:
        reason = ROW_LACKS.get(row["model"])
        if reason in (None, "litgpt", "vision"):
            continue
        try:
            model = model_from_config(row["config"], name=row["model"])
            stores, lacks = stored_groups(row["model"])
        except VramcastError:
            continue
        assert checkpoint_elements(model, stores, lacks) != row["params_exact"], f"{row['model']}: {INCOMPLETE[reason]}"
