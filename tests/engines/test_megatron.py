"""Megatron programs against measured runs and against their own laws."""

from typing import Any

import pytest

import vramcast
from truth.rows.megatron import peaks, simumax_job
from vramcast.api import job_of
from vramcast.domain.job import Job, Phase
from vramcast.domain.model import LinearAttention
from vramcast.domain.program import extent, live_at_end
from vramcast.engines.megatron import ranks
from vramcast.engines.megatron.chunk import ChunkBuilder
from vramcast.engines.megatron.options import Context
from vramcast.errors import InvalidSpec, UnknownName, Unsupported
from vramcast.estimate.training import answer


def peak(job: Job) -> int:
    return max(peaks(job, program)[0] for program in ranks(job))


def of_megatron(model: str, **options: object) -> Job:
    return job_of({"model": model, "gpus": "4xh100-sxm-80gb", "engine": "megatron", "recompute": "full", **options})


def test_every_pipeline_stage_is_a_role() -> None:
    roles = ranks(simumax_job("llama3_70b_l12_tp1_pp2_dp4_mbc8_cef"))
    assert [role.role for role in roles] == ["first stage", "last stage"]


@pytest.mark.parametrize(("ask", "stages"), [
    (vramcast.train, {"pp": 2, "first_stage_layers": 4, "last_stage_layers": 4}),
    (vramcast.train, {"pp": 2, "first_stage_layers": 5, "virtual_stages": 2}), (vramcast.rl, {"last_stage_layers": 4}),
], ids=str)
def test_stages_hold_every_layer_or_are_refused(ask: Any, stages: dict[str, int]) -> None:
    """A network of eight layers was answered for one of 36."""
    with pytest.raises(InvalidSpec, match="do not place 36 layers"):
        ask("qwen3-4b", gpus="8xh100-sxm-80gb", engine="megatron", **stages)


def test_embedding_and_head_may_be_stages_of_their_own() -> None:
    asked = {"layers": 6, "pp": 4, "virtual-stages": 2, "grad-accum": 4}
    with pytest.raises(InvalidSpec, match="more stages than the 6 layers"):
        answer(of_megatron("llama-3.1-8b", **asked), with_changes=False)
    found = of_megatron("llama-3.1-8b", **asked, **{"engine-option": "stage_layers=0-1-1-1-1-1-1-0"})
    held = [extent(role.phases[Phase.LOAD]).net for role in ranks(found)]
    table = 128_256 * 4096 * held[1] / (2 * 218_112_000)  # as heavy as the middle's two layers, element by element
    assert held[1] == held[2] and held[0] == pytest.approx(table + held[1] / 2, rel=0.01)
    assert held[3] == pytest.approx(held[0], rel=0.01)


def test_muon_without_its_layout_gathers_weights_beside_the_model() -> None:
    asked = {"optimizer": "muon", "shards": "optimizer", "seq-len": 128}
    usual, lists = (of_megatron("llama-3.2-1b", **asked, **more) for more in (
        {}, {"engine-option": "param_layout=false"}))
    tops = [max(extent(role.phases[Phase.STEP]).peak for role in ranks(job)) for job in (usual, lists)]
    assert tops[1] == pytest.approx(2 * 1_235_814_400, rel=0.01) and tops[1] > tops[0]
    with pytest.raises(InvalidSpec, match="Muon's states on the GPU"):
        ranks(of_megatron("llama-3.2-1b", **asked, **{"offload-optimizer": "cpu"}))


def _allocated(model: str, modules: str, **options: object) -> int:
    asked = {"model": model, "gpus": "8xh200-sxm-141gb", "engine": "megatron", "shards": "optimizer", **options}
    chosen = {"recompute": "selective", "recompute-modules": modules} if modules else {}
    return answer(job_of({**asked, **chosen}), with_changes=False).fullest.peak.allocated_bytes


@pytest.mark.parametrize(("model", "modules", "options"), [
    ("mixtral-8x7b", "moe", {"ep": 8}), ("mixtral-8x7b", "moe_act", {"ep": 8}),
    ("mixtral-8x7b", "layernorm", {"ep": 8}), ("llama-3.1-8b", "mlp", {}),
    ("llama-3.1-8b", "layernorm", {"engine-option": "transformer_impl=local"}),
    ("deepseek-v2", "mla_up_proj", {"ep": 8, "layers": 6}),
    ("deepseek-v2", "shared_experts", {"ep": 8, "layers": 6}),
])
def test_every_module_that_is_recomputed_saves_memory(model: str, modules: str, options: dict[str, object]) -> None:
    assert _allocated(model, modules, **options) < _allocated(model, "", **options)


@pytest.mark.parametrize(("model", "modules", "error", "said"), [
    ("mixtral-8x7b", "foo", UnknownName, "known: core_attn, moe_act, layernorm, mla_up_proj, mlp, moe"),
    ("llama-3.1-8b", "moe", InvalidSpec, "changes nothing of llama-3.1-8b: it has no experts"),
    ("llama-3.1-8b", "layernorm", InvalidSpec, "within the product behind it"),
    ("llama-3.1-8b", "mhc", Unsupported, "recompute-modules=mhc is not modelled"),
])
def test_a_module_without_effect_is_refused(model: str, modules: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        _allocated(model, modules)


@pytest.mark.parametrize(("asked", "works"), [
    ({"tp": 2, "seq_len": 4097}, False),
    ({"tp": 2, "seq_len": 4097, "sequence_parallel": False}, True),
    ({"cp": 2, "seq_len": 4098}, False),
    ({"cp": 2, "tp": 2, "seq_len": 4100}, True),
    ({"cp": 2, "tp": 4, "seq_len": 4100}, False),
])
def test_positions_are_divided_evenly_or_the_plan_is_refused(asked: dict[str, Any], works: bool) -> None:
    asked = {"gpus": "8xh200-sxm-141gb", "engine": "megatron", "layers": 2} | asked
    if works:
        vramcast.train("llama-3.1-8b", **asked)
        return
    with pytest.raises(InvalidSpec, match="megatron divides positions evenly"):
        vramcast.train("llama-3.1-8b", **asked)


LORA = {
    "engine": "megatron", "peft": "lora", "lora-rank": 32, "objective": "sft", "seq-len": 4096, "shards": "optimizer",
}


def _with_adapters(model: str, **options: object) -> int:
    job = job_of({"model": model, "gpus": "8xh200-sxm-141gb", **LORA, **options})
    return answer(job, with_changes=False).fullest.peak.allocated_bytes


def test_a_layer_with_adapters_keeps_its_frozen_weights_and_what_the_adapters_read() -> None:
    tokens, weights, rank = 4096, 218_112_000, 32
    adapters = rank * ((4096 + 6144) + (4096 + 4096) + (4096 + 28672) + (14336 + 4096))
    # two norms' inputs and outputs, queries, keys and values, the context, both sides of the activation, r wide inputs
    kept = tokens * 2 * (4 * 4096 + 6144 + 4096 + 28672 + 14336 + 4 * rank) + tokens * 4 * (32 + 2)
    a_layer = _with_adapters("llama-3-8b", layers=3, gpus="h200-sxm-141gb") - _with_adapters(
        "llama-3-8b", layers=2, gpus="h200-sxm-141gb")
    assert a_layer == pytest.approx(2 * weights + (2 + 4 + 12) * adapters + kept, rel=0.001)


def test_layers_in_bf16_beside_fp8_keep_what_bf16_keeps() -> None:
    asked = {"engine": "megatron", "gpus": "8xh100-sxm-80gb", "seq_len": 4096}

    def peak(precision: str, *pairs: str) -> int:
        return vramcast.train("llama-3.2-1b", **asked, precision=precision, engine_option=pairs).peak.allocated_bytes

    narrow, wide = peak("fp8"), peak("mixed-bf16")
    steps = [peak("fp8", f"bf16_at_start={count}", f"bf16_at_end={count}") for count in (1, 4, 8)]
    assert narrow < steps[0] < steps[1] < steps[2] == wide


def test_norms_behind_parts_keep_what_they_read_and_capped_scores_need_no_mask() -> None:
    asked = {"engine": "megatron", "gpus": "8xh100-sxm-80gb", "seq_len": 1024}
    olmo = vramcast.train("olmo-2-7b", **asked)
    assert sum("post_norm.statistics" in entry.path for entry in olmo.fullest.ledger) == 2
    with pytest.raises(Unsupported, match="attention_mask=false"):
        vramcast.train("gemma-2-2b", **asked)
    gemma = vramcast.train("gemma-2-2b", **asked, engine_option=("attention_mask=false",))
    kept = next(entry for entry in gemma.fullest.ledger if entry.path.endswith("output.tanh"))
    assert kept.num_bytes == 1024 * 256_000 * 2


def test_a_frozen_tower_is_whole_on_the_first_stage_alone() -> None:
    job = of_megatron("qwen2.5-vl-7b", tp=2, pp=2, freeze="towers,projectors", **{"seq-len": 2048})
    towers = [sum(entry.num_bytes for entry in role.ledger if entry.path.startswith("weights/frozen/"))
              for role in answer(job, with_changes=False).ranks]
    assert towers == [pytest.approx(2 * 676_550_144, rel=1e-3), 0]  # whole, in 16 bits
    with pytest.raises(Unsupported, match="towers that do not learn"):
        ranks(of_megatron("qwen2.5-vl-7b", tp=2))


def test_labels_make_no_logits_and_an_answer_rated_alone_takes_half_of_a_pair() -> None:
    made = {objective: peak(of_megatron("qwen2.5-7b", tp=4, objective=objective, **{"seq-len": 4096}))
            for objective in ("sft", "classification", "dpo", "kto")}
    logits = 4096 * 152064 // 4 * (2 + 4)
    assert made["sft"] - made["classification"] > logits
    assert made["dpo"] - made["kto"] > logits


def test_a_part_of_the_optimizer_leaves() -> None:
    def held(part: float) -> int:
        job = of_megatron("qwen3-8b", tp=4, shards="optimizer", **{
            "offload-optimizer": "cpu", "engine-option": (f"offload_fraction={part}",)})
        ledger = answer(job, with_changes=False).fullest.ledger
        return sum(entry.num_bytes for entry in ledger if entry.path.startswith("optimizer/"))

    assert held(0.25) == pytest.approx(0.75 * held(0), rel=0.01)
    assert held(1) == 0


def test_a_gated_delta_net_keeps_what_its_operators_keep() -> None:
    """Of a position, by mcore-bridge's forward and fla's kernels: bf16 copies, factors of 64 positions, fp32 decays."""
    job = of_megatron("qwen3-next-80b-a3b", recompute="none", ep=4, **{"seq-len": 1024})
    net = next(run.layer for run in job.model.main.runs if isinstance(run.layer.mixer, LinearAttention))
    saved = live_at_end(ChunkBuilder(Context(job)).layer(net, recomputed=False).forward)
    keys, values, heads, groups = 16 * 128, 32 * 128, 32, 16
    of_norms = 4 * (2 * groups + heads)
    wide = (2 * keys + values) + values + 2 * keys + 2 * values + values  # mixed, gate, normed, repeated, value
    kept = 2 * (wide + 3 * values) + heads * (4 + 4 + 2 + 4 + 2 * 64) + of_norms  # and scanned, normed, gated
    assert sum(tensor.num_bytes for tensor in saved if tensor.name.startswith("linear_attention.")) == 1024 * kept


def test_a_decoder_behind_a_tower_has_megatrons_names() -> None:
    """`linear_fc1` is a module of the tower in transformers: adapters of the decoder's experts were left out."""
    found = of_megatron("qwen3.5-35b-a3b", recompute="none", peft="lora", **{"lora-targets": "linear_fc1,in_proj"})
    assert found.plan.peft is not None
    assert {"moe.experts.gate_up", "linear_attention.gate"} <= set(found.plan.peft.targets)


def test_states_of_a_reference_travel_between_stages_beside_those_that_learn() -> None:
    """Micro-batches in flight keep both halves of what a stage received."""
    asked = {"pp": 4, "seq-len": 1024, "grad-accum": 8, "shards": "optimizer", "peft": "lora"}
    alone, compared = (ranks(of_megatron("qwen3-4b", objective=one, **asked, **{"micro-batch": rows}))
                       for one, rows in (("sft", 2), ("dpo", 1)))
    states = 2 * 1024 * 2560 * 2
    more = [extent((*two.phases[Phase.LOAD], *two.phases[Phase.STEP])).peak - extent(
        (*one.phases[Phase.LOAD], *one.phases[Phase.STEP])).peak for one, two in zip(alone, compared, strict=True)]
    assert more[1] >= 3 * states and more[2] >= 2 * states


def test_modules_that_predict_tokens_are_on_the_last_stage_with_a_loss_of_their_own() -> None:
    """A layer as the others, two norms before it, a product of twice the width, and a norm behind it."""
    jobs = [of_megatron("qwen3-4b", pp=2, recompute="none", **{"engine-option": f"mtp_layers={count}", "seq-len": 1024})
            for count in (0, 2)]
    (_, last), (_, more) = (ranks(job) for job in jobs)
    loaded = [extent(role.phases[Phase.LOAD]).net for role in (last, more)]
    layer = 2560 * (2 * 4096 + 2 * 1024 + 3 * 9728) + 2 * 2560 + 2 * 128
    module = layer + 2 * 2560 * 2560 + 3 * 2560
    assert loaded[1] - loaded[0] == pytest.approx(2 * module * (2 + 4 + 4 / 2), rel=0.001)  # fp32 weights on two ranks
    assert peak(jobs[1]) - peak(jobs[0]) > loaded[1] - loaded[0] + 2 * 1024 * 151_936 * 4  # softmax of each loss
    shared = of_megatron("qwen3-4b", pp=2, recompute="none", **{
        "engine-option": "mtp_layers=2,mtp_shared=true", "seq-len": 1024})
    once = extent(ranks(shared)[1].phases[Phase.LOAD]).net - loaded[0]
    assert once == pytest.approx((loaded[1] - loaded[0]) / 2, rel=1e-6)
    with pytest.raises(InvalidSpec, match="<= 64"):
        ranks(of_megatron("qwen3-4b", **{"engine-option": "mtp_layers=3000"}))
