"""Which attention kernel a card takes."""

import pytest
import torch

from vramcast.tracing.composites.attention import Backend, Question, chosen

A100, RTX_4090, H100, V100 = 80, 89, 90, 70


def asked(*, dtype=torch.bfloat16, width=64, heads=8, kv_heads=8, queries=128, keys=128, **options):
    shape = {"device": "meta", "dtype": dtype, "requires_grad": options.pop("train", False)}
    question = Question(
        torch.empty(2, heads, queries, width, **shape), torch.empty(2, kv_heads, keys, width, **shape),
        torch.empty(2, kv_heads, keys, width, **shape), None, 0.0, False, False,
    )
    return question._replace(**options)


@pytest.mark.parametrize(("question", "sm", "backend"), [
    (asked(), A100, Backend.FLASH),
    (asked(dtype=torch.float32), A100, Backend.EFFICIENT),
    (asked(dtype=torch.float64), A100, Backend.MATH),
    (asked(mask=torch.empty(128, 128, device="meta")), A100, Backend.EFFICIENT),
    (asked(width=512), A100, Backend.EFFICIENT),
    (asked(width=77), A100, Backend.FLASH),
    (asked(dtype=torch.float32, width=77), A100, Backend.MATH),
    (asked(is_causal=True, keys=256), A100, Backend.EFFICIENT),
    (asked(kv_heads=2), A100, Backend.MATH),
    (asked(kv_heads=2, enable_gqa=True), A100, Backend.FLASH),
    (asked(dtype=torch.float32, kv_heads=2, enable_gqa=True), A100, Backend.MATH),
    (asked(width=200, train=True), A100, Backend.FLASH),
    (asked(width=200, train=True), RTX_4090, Backend.EFFICIENT),
    (asked(width=200), RTX_4090, Backend.FLASH),
    (asked(), H100, Backend.CUDNN),
    (asked(keys=1), H100, Backend.FLASH),
    (asked(dtype=torch.float16), V100, Backend.EFFICIENT),
    (asked(), V100, Backend.MATH),
])
def test_the_first_kernel_that_takes_the_call_is_chosen(question, sm, backend):
    assert chosen(question, sm) is backend


def test_backends_that_were_switched_off_are_passed_by():
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert chosen(asked(), A100) is Backend.MATH
    with (
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION),
        pytest.raises(RuntimeError, match="No available kernel"),
    ):
        chosen(asked(dtype=torch.float32), A100)
