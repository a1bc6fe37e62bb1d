"""A table that is embedding and head has one gradient, whatever loss makes the head's."""

from __future__ import annotations

from typing import Any

import pytest

import vramcast
from vramcast.catalogue.models import load_model
from vramcast.domain.model import Model


def _asked(model: str, engine: str, **options: Any) -> Any:
    return vramcast.train(model, gpus="h200", engine=engine, seq_len=64, micro_batch=1, **options)


@pytest.mark.parametrize("loss", [None, "fused_linear"])
@pytest.mark.parametrize(("precision", "width"), [("bf16", 2), ("amp-bf16", 4)])
@pytest.mark.parametrize("engine", ["pytorch", "huggingface", "unsloth"])
@pytest.mark.parametrize("model", ["llama-3.2-1b", "tinyllama-1.1b", "gemma-2-2b"])
def test_every_weight_has_one_gradient_of_its_own_type_in_the_update(
    model: str, engine: str, precision: str, width: int, loss: str | None
) -> None:
    found = _asked(model, engine, precision=precision, loss=loss, optimizer_kernel="foreach")
    paths = [(entry.path, entry.num_bytes) for entry in found.fullest.ledger]
    gradients = sum(size for path, size in paths if path.startswith("gradients/") or path.endswith("loss.grad_weight"))
    assert gradients == pytest.approx(width * found.num_parameters, rel=1e-3)


@pytest.mark.parametrize(("loss", "tensors"), [(None, 3), ("fused_linear", 2)])
@pytest.mark.parametrize("engine", ["pytorch", "huggingface"])
def test_the_heads_gradient_waits_for_the_embeddings_in_every_micro_batch(
    engine: str, loss: str | None, tensors: int
) -> None:
    """Beside weights and accumulated gradients: both, and their sum where it is made apart."""
    model: Model = load_model("gemma-2-2b")
    found = _asked(
        model.name, engine, precision="bf16", recompute="full", optimizer="sgd", grad_accum=2, loss=loss
    )
    table = 2 * model.vocab * model.hidden
    assert found.peak.allocated_bytes >= 4 * found.num_parameters + tensors * table
