"""Arguments as servers print them."""

from __future__ import annotations

from vramcast.sources.logs.options import argument


def test_an_argument_apart_by_spaces_is_found_by_its_whole_name() -> None:
    text = "moe_tensor_parallel_size=8 tensor_parallel_size=2 model='x y'"
    assert argument(text, "tensor_parallel_size") == 2
    assert argument(text, "model") == "x y"
    assert argument(text, "absent") is None
