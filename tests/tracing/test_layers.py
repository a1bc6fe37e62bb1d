"""A module layer by layer."""

from dataclasses import dataclass

import pytest
import torch

from vramcast.question.tracing import build_trace
from vramcast.tracing.inputs import first_tensor
from vramcast.tracing.layers import traced_layers


def test_rows_have_the_figures_of_linear_layers() -> None:
    rows, total = traced_layers(build_trace("tests.tracing._modules:Stack", {"input": ("64x256",)}))
    found = {row.path: row for row in rows}
    up, down = found["layers.*.up"], found["layers.*.down"]
    assert up.kind == "Linear" and up.repeats == 4
    assert up.parameters == 256 * 1024 + 1024
    assert up.output_shape == (64, 1024)
    assert up.flops == down.flops == 2 * 64 * 256 * 1024
    assert total == sum(row.parameters * row.repeats for row in rows)


def test_what_is_saved_is_counted_once() -> None:
    rows, _ = traced_layers(build_trace("tests.tracing._modules:Stack", {"input": ("64x256",)}))
    saved = sum(row.saved_bytes * row.repeats for row in rows)
    # of each block its input and the output of relu, in fp32
    assert saved == 4 * (64 * 256 + 64 * 1024) * 4


@pytest.mark.parametrize("family", ["mapping", "dataclass", "tuple"])
def test_the_shape_of_an_output_is_that_of_its_tensor_not_of_the_loss_before_it(family: str) -> None:
    loss, logits = torch.empty(()), torch.empty(2, 8, 100)

    @dataclass
    class Output:
        loss: object
        logits: object

    made = {"mapping": {"loss": loss, "logits": logits}, "dataclass": Output(loss, logits), "tuple": (loss, logits)}
    found = first_tensor(made[family], with_dimensions=True)
    assert found is logits
    assert first_tensor(made[family]) is loss
