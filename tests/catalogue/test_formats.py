"""Snapshots of names load, and the checker says what is wrong in one sentence."""

from typing import Any

import pytest

from vramcast.catalogue.formats import load_format, problems
from vramcast.errors import UnknownName

DEEPSPEED = "deepspeed"


@pytest.mark.parametrize(("values", "sentence"), [
    ({"zero_optimisation": {}}, "knows no such name; did you mean zero_optimization?"),
    ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage: 4 is none of 0, 1, 2, 3"),
    ({"zero_optimization": {"stage": "three"}}, "must be of kind int"),
    ({"zero_optimization": 3}, "zero_optimization: must be a table of values, not 3"),
    ({"zero_optimization": {"offload_param": {"device": "gpu"}}}, "offload_param.device: 'gpu' is none of"),
    ({"amp": {"enabled": True}}, "amp: removed from deepspeed"),
    ({"zero_optimization": {"overlap_comm": 1}}, "must be of kind bool"),
])
def test_what_is_wrong_is_said_with_where_it_stands(values: dict[str, Any], sentence: str) -> None:
    (found,) = problems(load_format(DEEPSPEED), "config", values)
    assert sentence in found


def test_a_missing_name_that_is_required_is_said() -> None:
    found = list(problems(load_format("skypilot"), "replica_policy", {}))
    assert found == ["replica_policy: min_replicas is required by skypilot 0.14.1"]


def test_other_spellings_are_known() -> None:
    entry = load_format("sglang").find("ServerArgs", "tensor_parallel_size")
    assert entry is load_format("sglang").sections["ServerArgs"]["tp_size"]


def test_an_unknown_format_is_named_with_its_neighbours() -> None:
    with pytest.raises(UnknownName, match="did you mean deepspeed"):
        load_format("deepsped")
