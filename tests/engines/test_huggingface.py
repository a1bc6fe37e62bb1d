"""The Hugging Face Trainer and Unsloth-style engines."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.engines.test_pytorch import job
from tests.peaks import live_at_peak
from vramcast.api import job_of
from vramcast.domain.answer import Answer
from vramcast.domain.job import Job, Peft, Phase, Precision, Recompute, Shards
from vramcast.domain.program import Category, extent, live_at_end
from vramcast.engines import deepspeed, huggingface, pytorch, unsloth
from vramcast.engines.eager.trl import prepared_weights
from vramcast.errors import InvalidSpec, UnknownName, Unsupported
from vramcast.estimate.training import answer
from vramcast.operators.lora import ADAPTERS


def lora(**changes: object) -> Job:
    """A LoRA fine-tune under autocast."""
    return job(precision=Precision.AMP_BF16, recompute=Recompute.FULL, peft=Peft(rank=8), **changes)


def test_a_frozen_base_is_loaded_in_16_bits() -> None:
    assert extent(huggingface.ranks(lora())[0].phases[Phase.LOAD]).net == pytest.approx(2 * 1_235_814_400, rel=0.01)


def test_autocast_returns_the_logits_once_more_in_fp32() -> None:
    names = {t.name for phase in huggingface.ranks(lora())[0].phases.values() for t in live_at_peak(phase)}
    found = huggingface.ranks(lora())[0].phases[Phase.STEP]
    assert extent(found).net == 0
    assert names


@pytest.mark.parametrize(
    "plan",
    [
        {"shards": Shards.EVERYTHING, "sharded_by": "deepspeed"}, {"shards": Shards.OPTIMIZER_AND_GRADIENTS},
        {"shards": Shards.EVERYTHING, "offload_optimizer": "cpu"},
    ],
)
def test_what_deepspeed_is_asked_for_or_shards_alone_goes_to_deepspeed(plan: dict[str, object]) -> None:
    asked = replace(job(gpus=4, precision=Precision.MIXED_BF16, **plan), engine="huggingface")
    mine, theirs = huggingface.ranks(asked)[0], deepspeed.ranks(asked)[0]
    assert mine.assumptions == theirs.assumptions
    assert [extent(program) for program in mine.phases.values()] == [extent(p) for p in theirs.phases.values()]


@pytest.mark.parametrize("engine", ["huggingface", "unsloth"])
@pytest.mark.parametrize("base", ["full", "nf4"])
@pytest.mark.parametrize(
    "model",
    ["bert-base-uncased", "opt-350m", "bloom-560m", "whisper-small", "vit-large-patch16-224", "phi-3.5-moe@4.30"],
)
def test_adapters_run_through_whatever_writes_the_residual_stream(model: str, base: str, engine: str) -> None:
    model, _, release = model.partition("@")
    engine = f"{engine}@{release}" if release and engine == "huggingface" else engine
    asked = {"model": model, "gpus": "a100-sxm4-80gb", "engine": engine, "precision": "amp-bf16", "peft": "lora"}
    phases = answer(job_of(asked | {"base-weights": base}), with_changes=False).fullest.phases
    assert phases["step"].allocated_bytes > phases["load"].allocated_bytes


def test_the_stream_that_a_layer_norm_writes_is_fp32_under_autocast() -> None:
    asked = {"model": "bert-base-uncased", "gpus": "a100-sxm4-80gb", "engine": "huggingface", "precision": "amp-bf16"}
    phases = huggingface.ranks(job_of(asked | {"peft": "lora", "seq-len": 512, "micro-batch": 8}))[0].phases
    streams = {t.num_bytes for t in live_at_peak(phases[Phase.STEP]) if t.name == "hidden states"}
    assert streams == {8 * 512 * 768 * 4}


def test_starcoder_s_old_code_holds_the_product_of_every_layer_s_projection_until_the_loss() -> None:
    """Its cache is never switched off; what it holds are views of what c_attn made, fp32 behind a packed base."""
    asked = {
        "model": "starcoder-15b", "gpus": "a100-sxm4-80gb", "seq-len": 2048, "micro-batch": 4, "recompute": "full",
        "attention": "flash", "peft": "lora", "base-weights": "nf4",
    }
    old, new = (answer(job_of(asked | {"engine": f"huggingface@{at}"})).fullest.peak for at in ("4.52", "4.53"))
    held = 40 * 4 * 2048 * (6144 + 2 * 128) * 4
    assert 0.9 * held < old.allocated_bytes - new.allocated_bytes <= held


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("peft", ["lora", "prefix", "ia3", None])
@pytest.mark.parametrize("options", [{}, {"base-weights": "nf4"}, {"objective": "dpo"}, {"shards": "everything"}])
def test_starcoder_s_old_code_frees_its_cache_once(options: dict[str, str], peft: str | None, recompute: str) -> None:
    asked = {"model": "starcoder-15b", "gpus": "4xh200", "engine": "huggingface@4.30", "seq-len": 128}
    if peft is None and "base-weights" in options:
        return
    found = answer(job_of(asked | options | {"recompute": recompute} | ({"peft": peft} if peft else {})))
    assert found.peak.allocated_bytes


def test_trained_copies_of_embedding_and_head_stand_beside_the_originals() -> None:
    plain = extent(huggingface.ranks(lora())[0].phases[Phase.LOAD]).net
    asked = lora()
    assert asked.plan.peft is not None
    saving = replace(asked.plan, peft=replace(asked.plan.peft, modules_to_save=("embedding",)))
    more = extent(huggingface.ranks(replace(asked, plan=saving))[0].phases[Phase.LOAD]).net
    assert more - plain == 2 * 128_256 * 2048


@pytest.mark.parametrize("method", [*ADAPTERS, "prefix", "prompt", "ln"])
def test_every_peft_method_runs_through_and_cancels_out(method: str) -> None:
    asked = job(peft=Peft(method=method, rank=8, virtual_tokens=20, trainable_parameters=3_000_000))
    phases = pytorch.ranks(asked)[0].phases
    assert extent(phases[Phase.STEP]).net == 0


def test_an_unknown_peft_method_names_its_neighbours() -> None:
    with pytest.raises(UnknownName, match="lora"):
        pytorch.ranks(job(peft=Peft(method="lorra")))


def test_unsloth_never_makes_the_whole_logits() -> None:
    phases = unsloth.ranks(lora())[0].phases
    assert extent(phases[Phase.STEP]).net == 0
    assert extent(phases[Phase.STEP]).peak < extent(huggingface.ranks(lora())[0].phases[Phase.STEP]).peak


def test_unsloth_on_several_gpus_is_refused_with_what_would_work() -> None:
    with pytest.raises(Unsupported, match="use --engine huggingface"):
        unsloth.ranks(lora(gpus=2))


def test_adapters_have_gradients_and_the_base_has_none() -> None:
    live = live_at_peak(huggingface.ranks(lora())[0].phases[Phase.STEP])
    gradients = [t for t in live if t.category is Category.GRADIENTS]
    assert all("lora" in tensor.name for tensor in gradients)


def packed(engine: str, *options: str, model: str = "mistral-7b-v0.1", **others: object) -> Answer:
    asked = {
        "model": model, "gpus": "1xa100-sxm4-80gb", "engine": engine, "peft": "lora", "base-weights": "nf4",
        "seq-len": 4096, "micro-batch": 4, "recompute": "full", "engine-option": list(options), **others,
    }
    return answer(job_of(asked), with_changes=False)


def step_bytes(found: Answer) -> int:
    return found.fullest.phases[Phase.STEP].allocated_bytes


def test_norms_in_fp32_make_every_checkpoint_as_wide() -> None:
    """A layer of norms in fp32 over packed layers answers in fp32: 32 layers x 4,096 x 2 B more for each token."""
    plain, prepared = packed("huggingface", "trl=0.28"), packed("huggingface", "trl=0.13")
    more = (step_bytes(prepared) - step_bytes(plain)) / (4 * 4096)
    assert more == pytest.approx(33 * 4096 * 2, rel=0.03)
    assert any("TRL 0.13 prepares packed models: norms" in text for text in prepared.assumptions)


@pytest.mark.parametrize(
    ("engine", "options", "what"),
    [
        ("huggingface", {}, "nothing"),
        ("huggingface@4.57", {}, "norms"),
        ("huggingface@5.0", {}, "norms"),
        ("huggingface@4.48", {"precision": "amp-fp16"}, "all"),
        ("huggingface@4.48", {"base-weights": "int8"}, "all"),
        ("huggingface@4.48", {"base-weights": "gptq-int4"}, "nothing"),
        ("huggingface@4.48", {"base-weights": "full"}, "nothing"),
    ],
)
def test_trl_prepares_by_its_release(engine: str, options: dict[str, str], what: str) -> None:
    base = {"model": "llama-3.2-1b", "gpus": "1xa100-sxm4-80gb", "peft": "lora", "base-weights": "nf4"}
    assert prepared_weights(job_of({**base, "engine": engine, **options})) == what


def test_pefts_own_call_widens_embedding_and_head_too() -> None:
    plain, whole = packed("huggingface", "prepare_kbit=none"), packed("huggingface", "prepare_kbit=peft")
    more = whole.fullest.phases[Phase.LOAD].allocated_bytes - plain.fullest.phases[Phase.LOAD].allocated_bytes
    assert more == pytest.approx(2 * 2 * 32_000 * 4096, rel=0.01)


def test_gemmas_norms_answer_in_the_type_of_what_they_read() -> None:
    plain, prepared = (packed("huggingface", f"trl={trl}", model="gemma-2b") for trl in ("0.28", "0.13"))
    assert step_bytes(prepared) == pytest.approx(step_bytes(plain), rel=0.001)


@pytest.mark.parametrize(
    ("engine", "options", "copies"),
    [
        ("huggingface", (), 0), ("huggingface@4.52", (), 1), ("huggingface", ("beta=0.04",), 1),
        ("huggingface@4.52", ("beta=0",), 0), ("huggingface", ("trl=0.18",), 1), ("pytorch", (), 0),
        ("unsloth", (), 1), ("unsloth@2025.6", (), 1), ("unsloth@2025.5", (), 0), ("unsloth", ("beta=0",), 0),
    ],
)
def test_grpo_has_a_reference_where_beta_is_not_zero(engine: str, options: tuple[str, ...], copies: int) -> None:
    asked = {"model": "llama-3.2-1b", "gpus": "1xa100-sxm4-80gb", "engine": engine, "objective": "grpo"}
    asked |= {"completion-len": 64}
    found = answer(job_of({**asked, "precision": "bf16", "engine-option": list(options)}), with_changes=False)
    load = found.fullest.phases[Phase.LOAD].allocated_bytes
    assert load == pytest.approx((1 + copies) * 2 * 1_235_814_400, rel=0.01)
    assert any(text.startswith("GRPO with beta") for text in found.assumptions)


def test_the_triton_kernel_of_gptq_keeps_the_packed_weight_for_backward() -> None:
    """AutoGPTQ's older kernel is plain autograd: a recomputed layer's unpacked weights are alive in its backward."""
    asked = {"base-weights": "gptq-int4", "seq-len": 128, "micro-batch": 1}
    older, triton = (
        step_bytes(packed("huggingface@4.48", f"gptq_kernel={kernel}", **asked)) for kernel in ("cuda_old", "tritonv2")
    )
    of_a_layer = 2 * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 14336 * 4096)
    assert older - triton == pytest.approx(of_a_layer, rel=0.5)


@pytest.mark.parametrize(
    ("objective", "options", "chunks"),
    [
        ("pretrain", {}, False), ("sft", {}, True), ("sft", {"loss": "eager"}, False), ("dpo", {}, False),
        ("sft", {"engine-option": ["trl=1.6"]}, False), ("sft", {"engine-option": ["trl=1.7"]}, True),
        ("sft", {"engine-option": ["liger=true"]}, False), ("sft", {"engine": "huggingface@4.53"}, False),
        ("sft", {"engine": "pytorch"}, False), ("sft", {"compile": True}, False), ("sft", {"peft": "lora"}, True),
        ("sft", {"peft": "lora", "lora-targets": "q_proj,lm_head"}, False),  # TRL refuses that: loss_type=nll
    ],
)
def test_sfts_loss_runs_in_chunks_where_nothing_else_is_asked(
    objective: str, options: dict[str, object], chunks: bool
) -> None:
    asked = {"model": "qwen3-0.6b", "gpus": "1xa100-sxm4-80gb", "engine": "huggingface", "objective": objective}
    found, sharded = (
        answer(job_of({**asked, "seq-len": 512, **options, **more}), with_changes=False)
        for more in ({}, {"gpus": "2xa100-sxm4-80gb", "shards": "everything", "sharded-by": "fsdp2"})
    ) if chunks else (answer(job_of({**asked, "seq-len": 512, **options}), with_changes=False), None)
    assert any("chunks of 256 tokens" in text for text in found.assumptions) == chunks
    assert not any("chunks" in text for text in found.ignored)
    assert sharded is None or any("chunks of 256 tokens" in text for text in sharded.ignored)


@pytest.mark.parametrize(
    ("options", "batch", "allocated"),
    [
        ({}, 1, (8.90, 9.51)), ({"precision": "bf16"}, 1, (4.46, 5.20)), ({"peft": "lora"}, 1, (3.53, 3.54)),
        ({}, 4, (8.90, 10.49)), ({"precision": "bf16"}, 4, (4.46, 5.98)), ({"peft": "lora"}, 4, (5.15, 5.16)),
        ({"peft": "lora", "engine-option": ("dtype=bfloat16",)}, 1, (2.33, 2.35)),
        ({"peft": "lora", "engine-option": ("dtype=bfloat16",)}, 4, (3.17, 3.18)),
    ],
)
def test_the_chunked_loss_agrees_with_traces(
    options: dict[str, Any], batch: int, allocated: tuple[float, float]
) -> None:
    """`vramcast trace` of TRL 1.9's `_chunked_cross_entropy_loss` over Qwen3Model on A100, fused AdamW [GiB]."""
    asked = {"model": "qwen3-0.6b", "gpus": "1xa100-sxm4-80gb", "engine": "huggingface", "objective": "sft"}
    phases = answer(job_of({**asked, "seq-len": 4096, "micro-batch": batch, **options})).fullest.phases
    found = [phases[phase].allocated_bytes / 2**30 for phase in (Phase.FIRST_STEP, Phase.STEP)]
    assert found == pytest.approx(allocated, rel=0.01)


@pytest.mark.parametrize(("series", "release"), [("torch=2", "torch=2.13"), ("accelerate=1", "accelerate=1.15")])
def test_a_series_named_by_an_option_is_its_newest_release(series: str, release: str) -> None:
    asked = {"model": "qwen3-0.6b", "gpus": "2xh100-sxm-80gb", "engine": "huggingface", "shards": "everything"}
    found = [answer(job_of({**asked, "seq-len": 512, "engine-option": [text]})) for text in (series, release)]
    assert found[0].ranks == found[1].ranks


TRACED_DPO = [  # layers, micro-batch, options; first step and step [GiB]
    (4, 1, {}, (6.39, 8.02)), (4, 2, {}, (10.51, 12.14)), (28, 1, {}, (13.66, 18.11)),
    (4, 2, {"engine-option": ["precompute_ref_log_probs=true"]}, (9.47, 11.11)),
    (28, 1, {"recompute": "full"}, (11.12, 13.12)), (4, 2, {"precision": "bf16"}, (6.70, 7.52)),
    (28, 2, {"peft": "lora", "engine-option": ["dtype=bfloat16"]}, (14.21, 14.22)),
    (28, 2, {"peft": "lora", "engine-option": ["dtype=bfloat16"], "recompute": "full"}, (8.53, 8.56)),
]


@pytest.mark.parametrize(("layers", "batch", "options", "allocated"), TRACED_DPO)
def test_dpo_agrees_with_traces(
    layers: int, batch: int, options: dict[str, Any], allocated: tuple[float, float]
) -> None:
    """`vramcast trace` of TRL 1.9's `_compute_loss` with its metrics over Qwen3 on A100, fused AdamW [GiB]."""
    asked = {"model": "qwen3-0.6b", "gpus": "1xa100-sxm4-80gb", "engine": "huggingface", "objective": "dpo"}
    asked |= {"seq-len": 1024, "recompute": "none", "layers": layers, "micro-batch": batch}
    phases = answer(job_of({**asked, **options})).fullest.phases
    found = [phases[phase].allocated_bytes / 2**30 for phase in (Phase.FIRST_STEP, Phase.STEP)]
    assert found == pytest.approx(allocated, rel=0.005)


@pytest.mark.parametrize("options", [
    {"engine": "pytorch"}, {"loss": "fused_linear"}, {"engine-option": ["trl=1.7"]}, {"engine-option": ["liger=true"]},
])
def test_kto_is_counted_as_its_trainer_runs_it_or_not_at_all(options: dict[str, Any]) -> None:
    asked = {"model": "qwen3-0.6b", "gpus": "1xa100-sxm4-80gb", "engine": "huggingface", "objective": "kto"}
    with pytest.raises(Unsupported):
        answer(job_of({**asked, "seq-len": 512, **options}))


TRACED_GRPO = [  # layers, micro-batch, answers written together, prompt, answer, options; first step and step [GiB]
    (4, 4, 32, 512, 256, {}, (4.52, 6.16)), (4, 4, 8, 512, 256, {"engine-option": ["beta=0.1"]}, (5.33, 6.97)),
    (4, 1, 8, 512, 256, {"precision": "bf16"}, (1.66, 2.23)), (4, 4, 32, 512, 256, {"recompute": "full"}, (3.51, 5.15)),
    (4, 1, 64, 512, 1024, {}, (4.30, 5.93)),  # writing takes more than learning
    (28, 4, 32, 512, 256, {"peft": "lora", "recompute": "full"}, (3.80, 3.83)),
    (28, 8, 64, 512, 256, {"peft": "lora", "recompute": "full", "engine-option": ["beta=0.1"]}, (6.48, 6.52)),
    (28, 1, 64, 1024, 256, {"peft": "lora", "recompute": "full"}, (10.03, 10.05)),
]


@pytest.mark.parametrize(("layers", "batch", "together", "prompt", "completion", "options", "allocated"), TRACED_GRPO)
def test_grpo_agrees_with_traces(
    layers: int, batch: int, together: int, prompt: int, completion: int, options: dict[str, Any],
    allocated: tuple[float, float],
) -> None:
    """`vramcast trace` of TRL 1.9's generation, ratings and `_get_per_token_logps_and_entropies`, Qwen3 on A100 [GiB].
    """
    asked = {"model": "qwen3-0.6b", "gpus": "1xa100-sxm4-80gb", "engine": "huggingface", "objective": "grpo"}
    asked |= {"seq-len": prompt, "completion-len": completion, "layers": layers, "micro-batch": batch}
    more = [f"generation_batch_size={together}", *(["dtype=bfloat16"] if "peft" in options else [])]
    engine = {"engine-option": [*options.get("engine-option", ()), *more]}
    phases = answer(job_of({"recompute": "none", **asked, **options, **engine})).fullest.phases
    found = [phases[phase].allocated_bytes / 2**30 for phase in (Phase.FIRST_STEP, Phase.STEP)]
    assert found == pytest.approx(allocated, rel=0.006)


@pytest.mark.parametrize("objective", ["grpo", "rloo"])
def test_answers_are_written_for_all_micro_batches_of_a_step_together(objective: str) -> None:
    asked = {"model": "qwen3-0.6b", "gpus": "2xa100-sxm4-80gb", "engine": "huggingface", "objective": objective}
    asked |= {"seq-len": 512, "completion-len": 2048, "layers": 4}

    def peak(**more: Any) -> int:
        return answer(job_of(asked | more)).peak.allocated_bytes

    many = {"grad-accum": 256}
    assert peak(**many) > 2 * peak()
    for option in ("steps_per_generation=1", "trl=0.16"):
        assert peak(**many, **{"engine-option": [option]}) < 1.4 * peak()
    with pytest.raises(InvalidSpec, match="multiple"):
        peak(**{"engine-option": ["generation_batch_size=3"]})


def test_zero_3_gathers_all_weights_to_write_answers() -> None:
    asked = {"model": "qwen2.5-7b", "gpus": "8xh100-sxm-80gb", "engine": "huggingface", "objective": "grpo"}
    asked |= {"seq-len": 512, "completion-len": 256, "peft": "lora", "zero": 3, "sharded-by": "deepspeed"}
    assert answer(job_of(asked)).peak.allocated_bytes > 2 * 7_600_000_000


SHARED = [
    {}, {"zero": 1}, {"zero": 2}, {"zero": 3, "sharded-by": "deepspeed"},
    *({"shards": "everything", "sharded-by": by} for by in ("fsdp1", "fsdp2")),
]


def _dpo(options: dict[str, Any], **more: Any) -> int:
    asked = {"model": "qwen3-0.6b", "gpus": "4xh100-sxm-80gb", "engine": "huggingface", "objective": "dpo"}
    asked |= {"seq-len": 512, "layers": 6} | options | more
    return answer(job_of(asked)).peak.allocated_bytes


@pytest.mark.parametrize("shared", SHARED)
@pytest.mark.parametrize("options", [
    {}, {"peft": "lora"}, {"peft": "lora", "base-weights": "nf4"}, {"recompute": "none"}, {"precision": "bf16"},
    {"grad-accum": 2}, {"engine-option": ["trl=0.24"]}, {"engine-option": ["trl=1.5"]},
    {"engine-option": ["log_probs=whole"]}, {"no-reshard-after-forward": True},
])
def test_dpo_runs_however_it_is_shared_and_grows_with_what_it_reads(
    shared: dict[str, Any], options: dict[str, Any]
) -> None:
    if "no-reshard-after-forward" in options:
        if "sharded-by" not in shared or shared["sharded-by"] == "deepspeed":
            return
        options = {"reshard-after-forward": False}
    both = shared | options
    assert _dpo(both) <= _dpo(both, **{"seq-len": 1024}) and _dpo(both) <= _dpo(both, **{"micro-batch": 2})


@pytest.mark.parametrize("shared", SHARED)
def test_a_reference_takes_memory_unless_it_was_asked_before(shared: dict[str, Any]) -> None:
    assert _dpo(shared | {"engine-option": ["precompute_ref_log_probs=true"]}) < _dpo(shared)


def test_fsdp2_gathers_a_reference_whole_as_trl_wraps_it() -> None:
    asked = {"shards": "everything", "sharded-by": "fsdp2", "layers": 28}
    before, now = (_dpo(asked | {"engine-option": [f"trl={release}"]}) for release in ("0.28", "0.29"))
    assert now - before > 2 * 596_049_920  # all of it, gathered and copied out, beside what a layer would be


def test_packed_weights_in_bytes_are_whole_under_fsdp2_and_none_of_fsdp1s() -> None:
    asked = {"model": "llama-3.2-1b", "gpus": "4xh100", "engine": "huggingface", "objective": "sft", "peft": "lora",
             "base-weights": "nf4", "shards": "everything", "seq-len": 512}
    kept = {}
    for kind in ("float", "uint8"):
        found = job_of({**asked, "engine-option": [f"quant_storage={kind}"]})
        load = huggingface.ranks(found)[0].phases[Phase.LOAD]
        kept[kind] = sum(t.num_bytes * n for t, n in live_at_end(load).items() if t.category is Category.WEIGHTS)
        assert extent(load).peak > 1_235_814_400 // 2  # all of the base, before it is sharded
    packed = 16 * (2 * 2048 * 2048 + 2 * 512 * 2048 + 3 * 8192 * 2048) // 2
    assert kept["uint8"] - kept["float"] == pytest.approx(packed * 3 // 4, rel=1e-2)
    with pytest.raises(Unsupported, match="bnb_4bit_quant_storage"):
        answer(job_of({**asked, "sharded-by": "fsdp1", "engine-option": ["quant_storage=uint8"]}))
