"""Arguments as servers print them."""

from __future__ import annotations

from typing import Any

import pytest

from vramcast.sources.logs.options import argument, split_arguments


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("'model': 'a/b', 'tensor_parallel_size': 4}", "tensor_parallel_size", 4),
        ("model='a, b', tp_size=2)", "model", "a, b"),
        ("extra={'tp_size': 9}, tp_size=2)", "tp_size", 2),
        ("load_format=<LoadFormat.AUTO: 'auto'>, dtype=torch.bfloat16", "dtype", "torch.bfloat16"),
        ("a='it\\'s, here', b=0.5", "b", 0.5),
        ("a=None, b=True", "b", True),
        ("a=(1, 2), b=[3, {4: 5}], c=1e-05", "c", 1e-05),
        ("a=1) INFO b=2", "a", 1),
    ],
)
def test_an_argument_of_the_outermost_level_is_found(text: str, key: str, value: Any) -> None:
    assert split_arguments(text)[key] == value


def test_what_follows_the_closing_bracket_is_not_an_argument() -> None:
    assert split_arguments("a=1) INFO, b=2") == {"a": 1}


def test_an_argument_apart_by_spaces_is_found_by_its_whole_name() -> None:
    text = "moe_tensor_parallel_size=8 tensor_parallel_size=2 model='x y'"
    assert argument(text, "tensor_parallel_size") == 2
    assert argument(text, "model") == "x y"
    assert argument(text, "absent") is None
