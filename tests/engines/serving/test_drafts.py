"""What proposes tokens beside a model."""

from __future__ import annotations

from typing import Any

import pytest

import vramcast
from vramcast.api import serve_job_of
from vramcast.catalogue.models import load_model
from vramcast.domain.serving import ServeJob
from vramcast.engines.serving.rank import draft_weights
from vramcast.engines.serving.stages import even_stages
from vramcast.engines.serving.weights import formats_of, weight_tensors
from vramcast.errors import InvalidSpec
from vramcast.parallel.layout import Layout


@pytest.mark.parametrize("draft", ["medusa", "eagle", "ngram", "llama-3.2-1b"])
def test_a_model_that_generates_nothing_has_no_draft(draft: str) -> None:
    with pytest.raises(InvalidSpec, match="generates no tokens"):
        vramcast.serve("vit-large-patch16-224", gpus="h100", engine="vllm", draft=draft)


def test_the_module_of_an_fp8_checkpoint_is_loaded_in_fp8() -> None:
    network = load_model("deepseek-v3")
    stage = even_stages(network.num_layers, 1)[0]
    formats = formats_of(network, weights=None, dtype=None)
    tensors = weight_tensors(network, layout=Layout(), formats=formats, stage=stage)
    job = serve_job_of({"model": "deepseek-v3", "gpus": "8xh200", "tp": 1, "draft": "mtp", "context": 4096})
    assert isinstance(job, ServeJob)
    checkpoint = sum(tensor.num_bytes * count for tensor, count in (*tensors, *draft_weights(job, stage, Layout())))
    assert checkpoint == pytest.approx(688.59e9, rel=1e-4)  # its total_size


def drafted_bytes(model: str, **options: Any) -> int:
    found = vramcast.serve(model, gpus="8xh200", context=4096, **options)
    return sum(entry.num_bytes for entry in found.ranks[0].ledger if entry.category == "draft model")


@pytest.mark.parametrize("options", [{}, {"expert_parallel": True}])
def test_experts_of_a_module_are_divided_as_the_targets_are(options: dict[str, bool]) -> None:
    drafted = drafted_bytes("deepseek-v3", draft="mtp", **options)
    assert 15.4e9 / 8 < drafted < 1.15 * 15.4e9 / 8  # projections to latents and the router are whole


def test_experts_of_a_draft_model_are_divided_too() -> None:
    two, four = (drafted_bytes("qwen3-235b-a22b", tp=tp, draft="qwen3-30b-a3b", weights="fp8") for tp in (2, 4))
    assert 0 < four == pytest.approx(two / 2, rel=0.02)
