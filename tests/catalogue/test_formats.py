"""Snapshots of names load, and the checker says what is wrong in one sentence."""

from __future__ import annotations

from typing import Any

import pytest

from vramcast.catalogue.formats import format_names, load_format, problems
from vramcast.errors import UnknownName

DEEPSPEED = "deepspeed"


@pytest.mark.parametrize("name", format_names())
def test_every_snapshot_says_what_it_is_of_and_its_sections_exist(name: str) -> None:
    known = load_format(name)
    assert known.package and known.version and known.read >= "2026" and known.how
    for names in known.sections.values():
        for entry in names.values():
            assert not entry.section or entry.section in known.sections
    for section, gone in known.removed.items():
        assert not set(gone) & set(known.sections[section])


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"zero_optimisation": {}}, "knows no such name; did you mean zero_optimization?"),
        ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage: 4 is none of 0, 1, 2, 3"),
        ({"zero_optimization": {"stage": "three"}}, "must be of kind int"),
        ({"zero_optimization": 3}, "zero_optimization: must be a table of values, not 3"),
        ({"zero_optimization": {"offload_param": {"device": "gpu"}}}, "offload_param.device: 'gpu' is none of"),
        ({"amp": {"enabled": True}}, "amp: removed from deepspeed"),
        ({"zero_optimization": {"overlap_comm": 1}}, "must be of kind bool"),
    ],
)
def test_what_is_wrong_is_said_with_where_it_stands(values: dict[str, Any], sentence: str) -> None:
    (found,) = problems(load_format(DEEPSPEED), "config", values)
    assert sentence in found


def test_what_is_right_has_no_problems() -> None:
    values = {"train_batch_size": 8, "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}
    assert list(problems(load_format(DEEPSPEED), "config", values)) == []


def test_a_missing_name_that_is_required_is_said() -> None:
    found = list(problems(load_format("skypilot"), "replica_policy", {}))
    assert found == ["replica_policy: min_replicas is required by skypilot 0.14.1"]


def test_other_spellings_are_known() -> None:
    entry = load_format("sglang").find("ServerArgs", "tensor_parallel_size")
    assert entry is load_format("sglang").sections["ServerArgs"]["tp_size"]


def test_an_unknown_format_is_named_with_its_neighbours() -> None:
    with pytest.raises(UnknownName, match="did you mean deepspeed"):
        load_format("deepsped")


@pytest.mark.parametrize(
    ("name", "section", "gone"),
    [
        ("transformers", "TrainingArguments", "warmup_ratio"),
        ("vllm", "EngineArgs", "swap_space"),
        ("sglang", "ServerArgs", "enable_dp_attention"),
    ],
)
def test_what_newer_versions_dropped_is_remembered(name: str, section: str, gone: str) -> None:
    (found,) = problems(load_format(name), section, {gone: 1})
    assert f"{gone}: removed from" in found
