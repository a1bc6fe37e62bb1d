"""The plain PyTorch engine."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.peaks import live_at_peak
from vramcast.catalogue.models import load_model
from vramcast.domain.device import Cluster, Gpu
from vramcast.domain.job import AttentionKernel, Job, Peft, Phase, Plan, Precision, Recompute, Shards, Workload
from vramcast.domain.program import Category, Extent, extent, live_at_end
from vramcast.engines import pytorch
from vramcast.errors import InvalidSpec, Unsupported
from vramcast.estimate.training import answer
from vramcast.units import GB, GIB

CARD = Gpu(name="card", vendor="NVIDIA", arch="Ampere", compute_capability="8.0", visible_bytes=80 * GIB)


def job(model: str = "llama-3.2-1b", *, gpus: int = 1, **changes: object) -> Job:
    """A small question; `changes` go to workload or plan by name."""
    in_workload = {name: value for name, value in changes.items() if name in Workload.__struct_fields__}
    in_plan = {name: value for name, value in changes.items() if name in Plan.__struct_fields__}
    workload = {"seq_len": 1024, **in_workload}
    plan = {"precision": Precision.BF16, **in_plan}
    return Job(
        model=load_model(model), workload=Workload(**workload), plan=Plan(**plan),
        cluster=Cluster(gpu=CARD, gpus_per_node=gpus),
    )


def phase(asked: Job, name: Phase = Phase.STEP) -> Extent:
    """Extent of one phase, from zero."""
    return extent(pytorch.ranks(asked)[0].phases[name])


def test_a_step_leaves_nothing_behind() -> None:
    for changes in ({}, {"recompute": Recompute.FULL}, {"grad_accum": 3}, {"peft": Peft(rank=4)}):
        assert phase(job(**changes)).net == 0
        assert live_at_end(pytorch.ranks(job(**changes))[0].phases[Phase.STEP]) == {}


def test_amp_keeps_fp32_weights_and_one_16_bit_copy_of_each_matrix() -> None:
    asked = job(precision=Precision.AMP_BF16, seq_len=8192)
    live = live_at_peak(pytorch.ranks(asked)[0].phases[Phase.STEP])
    casts = sum(t.block_bytes * n for t, n in live.items() if t.name.endswith("weight_cast"))
    matrices = 1_235_814_400 - 67_584  # all but the norms
    assert casts == pytest.approx(2 * matrices, rel=0.02)


def test_bert_base_at_batch_32_and_512_tokens_in_fp32_needs_21_gb_of_layer_activations() -> None:
    asked = job(
        "bert-base-uncased", seq_len=512, micro_batch=32, precision=Precision.FP32, attention=AttentionKernel.EAGER
    )
    live = live_at_peak(pytorch.ranks(asked)[0].phases[Phase.STEP])
    layers = sum(
        t.block_bytes * n for t, n in live.items() if t.category is Category.ACTIVATIONS and t.owner.endswith("layers")
    )
    assert layers == pytest.approx(20.8 * GB, rel=0.03)


def test_eager_attention_grows_with_the_square_of_the_sequence() -> None:
    short, long = (phase(job(attention=AttentionKernel.EAGER, seq_len=n)).peak for n in (1024, 2048))
    flash_short, flash_long = (phase(job(seq_len=n)).peak for n in (1024, 2048))
    assert (long - flash_long) > 3.5 * (short - flash_short)


def test_checkpointing_keeps_one_residual_stream_per_layer() -> None:
    asked = job(recompute=Recompute.FULL, seq_len=8192)
    live = live_at_peak(pytorch.ranks(asked)[0].phases[Phase.STEP])
    streams = [n for tensor, n in live.items() if tensor.name == "hidden states"]
    assert streams and 16 <= sum(streams) <= 18


def test_more_batch_and_longer_sequences_are_never_less_memory() -> None:
    peaks = [phase(job(micro_batch=batch)).peak for batch in (1, 2, 4)]
    assert peaks == sorted(peaks)
    assert phase(job(seq_len=2048)).peak > peaks[0]


def test_lora_has_states_for_its_adapters_only() -> None:
    asked = job(peft=Peft(rank=8, targets=("attention.q", "attention.v")))
    states = live_at_end(pytorch.ranks(asked)[0].phases[Phase.FIRST_STEP])
    held = sum(t.block_bytes * n for t, n in states.items() if t.category is Category.OPTIMIZER)
    assert held == pytest.approx(2 * 4 * 16 * 8 * ((2048 + 2048) + (2048 + 512)), rel=1e-3)


def test_ddp_adds_buckets_of_the_gradients_size() -> None:
    alone, together = phase(job(), Phase.FIRST_STEP).net, phase(job(gpus=8), Phase.FIRST_STEP).net
    assert together - alone == pytest.approx(2 * 1_235_814_400, rel=1e-3)


def test_a_reference_model_of_dpo_is_one_more_copy_of_the_weights() -> None:
    alone = extent(pytorch.ranks(job())[0].phases[Phase.LOAD]).net
    both = extent(pytorch.ranks(job(objective="dpo"))[0].phases[Phase.LOAD]).net
    assert both == 2 * alone


@pytest.mark.parametrize(
    "model", ["t5-base", "whisper-small", "gpt2", "mixtral-8x7b", "deepseek-v2-lite", "qwen3-0.6b"]
)
def test_families_run_through_and_cancel_out(model: str) -> None:
    assert phase(job(model, seq_len=256)).net == 0


@pytest.mark.parametrize(("name", "value"), [("tp", 2), ("pp", 2), ("ep", 2)])
def test_model_parallelism_is_refused_with_what_would_work(name: str, value: int) -> None:
    with pytest.raises(Unsupported, match="use --engine megatron"):
        pytorch.ranks(job(gpus=8, **{name: value}))


@pytest.mark.parametrize(
    ("more", "match"),
    [({}, "add --shards everything"),
     ({"attention": AttentionKernel.EAGER, "shards": Shards.EVERYTHING}, "--attention flash"),
     ({"model": "mamba-130m", "shards": Shards.EVERYTHING}, "recurrent")],
)
def test_positions_are_divided_between_fused_kernels_beside_fsdp(more: dict[str, str], match: str) -> None:
    with pytest.raises(Unsupported, match=match):
        pytorch.ranks(job(**{"gpus": 8, "cp": 2, **more}))


def test_everything_is_sharded_by_fsdp_and_optimizer_states_alone_are_refused_with_what_would_work() -> None:
    every, nothing = (job(gpus=8, shards=shards) for shards in (Shards.EVERYTHING, Shards.NOTHING))
    shared, alone = phase(every, Phase.LOAD).net, phase(nothing, Phase.LOAD).net
    assert shared == pytest.approx(alone / 8, rel=0.01)
    with pytest.raises(InvalidSpec, match="use --shards everything, or --engine deepspeed"):
        pytorch.ranks(job(gpus=8, shards=Shards.OPTIMIZER))


def test_an_fp32_copy_in_the_optimizer_is_refused_with_what_would_work() -> None:
    with pytest.raises(Unsupported, match="use amp-bf16"):
        pytorch.ranks(job(precision=Precision.MIXED_BF16))


@pytest.mark.parametrize(
    ("usual", "name"), [("sgd", "lomo"), ("sgd", "adalomo"), ("galore", "galore-layerwise")]
)
def test_gradients_that_die_in_backward_are_never_all_there(usual: str, name: str) -> None:
    gradients = 2 * 1_235_814_400
    plain, fused = (pytorch.ranks(job(precision=Precision.BF16, optimizer=o))[0] for o in (usual, name))
    peaks = [extent((*run.phases[Phase.LOAD], *run.phases[Phase.STEP])).peak for run in (plain, fused)]
    assert extent(fused.phases[Phase.STEP]).net == 0
    largest = 128_256 * 2048
    assert peaks[1] < peaks[0] - gradients + 4 * 4 * largest


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"optimizer": "lomo", "grad_accum": 4}, "--grad-accum 1"),
        ({"optimizer": "lomo", "gpus": 2}, "one GPU"),
        ({"optimizer": "lomo", "engine": "deepspeed", "precision": Precision.MIXED_BF16}, "one GPU"),
        ({"optimizer": "galore", "engine": "deepspeed", "precision": Precision.MIXED_BF16}, "flattens"),
    ],
)
def test_an_engine_that_cannot_step_so_is_refused(changes: dict[str, Any], named: str) -> None:
    engine = changes.pop("engine", "pytorch")
    asked = replace(job(**{"precision": Precision.BF16, **changes}), engine=engine)
    with pytest.raises((Unsupported, InvalidSpec), match=named):
        answer(asked, with_changes=False)


def test_logits_that_model_code_returns_live_through_backward() -> None:
    """A loop holds `outputs` until its next turn; its own loss needs no such variable."""
    def held(**options: object) -> int:
        asked = replace(job(seq_len=8192, recompute=Recompute.FULL), engine_options=options)
        return sum(tensor.num_bytes for tensor in live_at_peak(pytorch.ranks(asked)[0].phases[Phase.STEP])
                   if tensor.name == "logits held by the loop")

    logits = 8192 * 128_256
    assert held() == 0
    assert held(shifted_loss=True) == 4 * logits  # the code of that time returned them in fp32
