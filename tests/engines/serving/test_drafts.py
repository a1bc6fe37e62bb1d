"""What proposes tokens beside a model."""

from __future__ import annotations

import pytest

import vramcast
from vramcast.api.jobs import serve_job_of
from vramcast.catalogue.models import load_model
from vramcast.domain.serving import ServeJob
from vramcast.engines.serving.drafts import draft_weights
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
    checkpoint = sum(tensor.num_bytes * count for tensor, count in (*tensors, *draft_weights(job, stage)))
    assert checkpoint == pytest.approx(688.59e9, rel=1e-4)  # its total_size
