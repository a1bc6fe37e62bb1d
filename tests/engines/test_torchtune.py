"""torchtune's full fine-tuning."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

import vramcast
from vramcast.catalogue.gpus import parse_gpus
from vramcast.catalogue.models import load_model
from vramcast.domain.job import Job, Loss, Peft, Phase, Plan, Precision, Recompute, Shards, Workload
from vramcast.domain.program import extent, live_at_end
from vramcast.engines.torchtune import norm_of, ranks
from vramcast.errors import InvalidSpec, Unsupported


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


def test_only_layers_that_are_recomputed_are_offloaded() -> None:
    with pytest.raises(InvalidSpec, match="use --recompute full"):
        ranks(job("1xh100-sxm-80gb", recompute=Recompute.NONE, offload_activations=True))


def test_samples_are_padded_to_what_tensor_parallelism_divides() -> None:
    asked = {"gpus": "8xh100-sxm-80gb", "engine": "torchtune", "layers": 2, "tp": 4}
    odd, even = (vramcast.train("llama-3.1-8b", seq_len=length, **asked) for length in (4097, 4100))
    assert odd.peak == even.peak
    assert "samples are padded to 4100 tokens, which tp=4 divides" in odd.assumptions
    assert not any("padded" in text for text in even.assumptions)


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


def test_gradients_of_adapters_add_up_sharded() -> None:
    asked = replace(job(peft=Peft(adapter_dtype="bf16")), workload=Workload(seq_len=2048, micro_batch=2, grad_accum=4))
    assert not any("no_sync" in said for said in ranks(asked)[0].assumptions)


def test_a_version_nobody_named_is_said() -> None:
    assert "torchtune@0.6" in ranks(job())[0].assumptions[0]
    assert not ranks(of((0, 6)))[0].assumptions


def test_losses_torchtune_lacks_are_refused() -> None:
    with pytest.raises(Unsupported, match="no fused loss; use"):
        ranks(job(loss=Loss.FUSED))


@pytest.mark.parametrize("version", [(0, 2), (0, 6), (0, 7)])
def test_a_step_leaves_nothing_behind(version: tuple[int, ...]) -> None:
    assert not live_at_end(ranks(of(version))[0].phases[Phase.STEP])
