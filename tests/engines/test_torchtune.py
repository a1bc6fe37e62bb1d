"""torchtune's full fine-tuning."""

import pytest
from msgspec.structs import replace

from vramcast.catalogue.gpus import parse_gpus
from vramcast.catalogue.models import load_model
from vramcast.domain.job import Job, Loss, Phase, Plan, Precision, Recompute, Shards, Workload
from vramcast.domain.program import extent
from vramcast.engines.torchtune import norm_of, ranks
from vramcast.errors import Unsupported


def job(gpus: str = "8xh100-sxm-80gb", **plan: object) -> Job:
    options = {"shards": Shards.EVERYTHING, "recompute": Recompute.FULL, "precision": Precision.BF16, **plan}
    return Job(
        model=load_model("llama-3.1-8b"), workload=Workload(seq_len=2048, micro_batch=2), plan=Plan(**options),
        cluster=parse_gpus(gpus), engine="torchtune",
    )


@pytest.mark.parametrize("plan", [{"shards": Shards.NOTHING}, {"pp": 2}, {"precision": Precision.FP32}])
def test_other_recipes_are_refused(plan: dict[str, object]) -> None:
    with pytest.raises(Unsupported, match="use "):
        ranks(job(**plan))


def test_weights_that_are_stepped_in_backward_have_no_gradients_together() -> None:
    alone = job("1xh100-sxm-80gb", optimizer="paged-adamw-8bit")
    inside = replace(alone, engine_options={"optimizer_in_backward": True})
    after, within = (extent(ranks(one)[0].phases[Phase.STEP]).peak for one in (alone, inside))
    log_probabilities, layer_inputs, head = 4 * 4096 * 128_256, 32 * 2 * 4096 * 4096, 2 * 128_256 * 4096
    assert after > 2 * 8.03e9
    assert within < log_probabilities + layer_inputs + 2 * head  # at the loss: what is left is not of the gradients
    with pytest.raises(Unsupported, match="optimizer_in_backward"):
        ranks(replace(job(), engine_options={"optimizer_in_backward": True}))


def largest(question: Job) -> int:
    phases = ranks(question)[0].phases
    return extent(tuple(node for program in phases.values() for node in program)).peak


def of(version: tuple[int, ...] | None = None, **plan: object) -> Job:
    return replace(job(**plan), workload=Workload(seq_len=8192, micro_batch=2), engine_version=version)


def test_each_release_has_the_loss_its_recipes_name() -> None:
    logits = 2 * 8192 * 128_256
    held = largest(of((0, 2)))  # fp32 logits, log-probabilities and two gradients, the variable not deleted
    eager = largest(of((0, 2, 1), loss=Loss.EAGER))
    chunks = largest(of((0, 6, 1)))  # all logits in 16 bits, their log-probabilities
    newest = largest(of((0, 7)))
    assert held == eager
    assert held - chunks > 4 * logits
    assert newest < chunks
    assert newest == largest(of())
    wide = 4 * 2 * 8192 * 4096  # the fp32 copy of its input that RMSNorm written out keeps, F.rms_norm of 0.6 does not
    fused, written_out = (largest(of(version, loss=Loss.EAGER)) for version in ((0, 6), (0, 7)))
    assert written_out - fused == wide
    assert fused > chunks


def test_norms_are_those_of_the_model_and_release() -> None:
    gemma = replace(of((0, 6)), model=load_model("gemma-2b"))
    assert [norm_of(one) for one in (of(), of((0, 6)), of((0, 4)), gemma)] == ["eager", "torch", "eager", "gemma"]
