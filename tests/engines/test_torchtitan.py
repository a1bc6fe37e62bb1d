"""torchtitan, torchtune, LitGPT and Unsloth."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import vramcast
from vramcast.api import job_of
from vramcast.catalogue.gpus import parse_gpus
from vramcast.catalogue.models import load_model
from vramcast.domain.job import Job, Loss, Peft, Phase, Plan, Precision, RankProgram, Recompute, Shards, Workload
from vramcast.domain.program import events, extent, freed_unallocated, live_at_end
from vramcast.engines import unsloth
from vramcast.engines.litgpt import ranks as litgpt_ranks
from vramcast.engines.torchtitan import ranks
from vramcast.engines.torchtitan.setting import facts
from vramcast.engines.torchtune import norm_of
from vramcast.engines.torchtune import ranks as torchtune_ranks
from vramcast.errors import InvalidSpec, Unsupported
from vramcast.estimate.timeline import simulate
from vramcast.estimate.training import answer
from vramcast.units import GIB

# torchtitan's memory: published logs, and what must hold whatever the numbers.


def job(**plan: object) -> Job:
    options = {"shards": Shards.EVERYTHING, "recompute": Recompute.SELECTIVE, **plan}
    return Job(
        model=load_model("llama-3-8b"), workload=Workload(seq_len=8192, micro_batch=1), plan=Plan(**options),
        cluster=parse_gpus("8xh100-sxm-80gb"), engine="torchtitan", engine_options={"version": "2025-02-06"},
    )


def reserved(question: Job) -> float:
    program = ranks(question)[0]
    marks = simulate(program.phases, alloc_conf=program.alloc_conf)
    return max(mark.reserved_bytes for mark in marks.values()) / GIB


def test_the_logged_memory_of_llama_3_8b_on_eight_h100_is_met() -> None:
    assert reserved(job()) == pytest.approx(49.59, rel=0.01)


def test_weights_that_stay_gathered_cost_what_was_logged() -> None:
    kept = replace(job(), engine_options={"version": "2025-02-06", "reshard": "never"})
    assert reserved(kept) == pytest.approx(62.18, rel=0.01)


@pytest.mark.parametrize("plan", [
    {}, {"tp": 2}, {"recompute": Recompute.FULL}, {"cp": 2}, {"pp": 2}, {"compile": True},
    {"offload_optimizer": "cpu"},
])
def test_a_steady_step_leaves_everything_as_it_found_it(plan: dict[str, object]) -> None:
    question = replace(job(**plan), workload=Workload(seq_len=8192, micro_batch=4))
    for program in ranks(question):
        assert not live_at_end(program.phases[Phase.STEP])


def test_versions_are_dates() -> None:
    assert facts("2024-01").expandable is False
    assert facts().chunked_loss
    with pytest.raises(InvalidSpec, match="2025-02"):
        facts("v1.0")


@pytest.mark.parametrize("plan", [
    {"shards": Shards.NOTHING}, {"shards": Shards.OPTIMIZER}, {"precision": Precision.FP32},
    {"offload_optimizer": "nvme"},
])
def test_what_torchtitan_cannot_do_is_refused(plan: dict[str, object]) -> None:
    with pytest.raises(Unsupported, match="use "):
        ranks(job(**plan))


@pytest.mark.parametrize(("asked", "fits"), [
    ({"seq_len": 4475, "micro_batch": 3}, True),
    ({"seq_len": 4475, "micro_batch": 3, "tp": 2}, False),
    ({"seq_len": 4475, "micro_batch": 2, "tp": 2}, True),  # one sequence of 8,950 tokens
    ({"seq_len": 4475, "micro_batch": 2, "tp": 2, "engine_option": "version=2026-08-01"}, False),
    ({"seq_len": 4098, "micro_batch": 1, "cp": 2}, False),
    ({"seq_len": 4475, "engine_option": "version=2026-06-01"}, False),
    ({"seq_len": 4475, "engine_option": "version=2025-07-01"}, True),
])
def test_positions_that_parallelism_does_not_divide_are_refused_as_torchtitan_does(
    asked: dict[str, Any], fits: bool
) -> None:
    asked = {"gpus": "8xh200-sxm-141gb", "engine": "torchtitan", "layers": 2} | asked
    if fits:
        vramcast.train("llama-3.1-8b", **asked)
        return
    with pytest.raises(InvalidSpec, match="torchtitan divides positions evenly"):
        vramcast.train("llama-3.1-8b", **asked)


@pytest.mark.parametrize(("options", "words"), [
    ({"schedule": "gpipe"}, "without pp above 1"),
    ({"schedule": "interleaved", "pp": 2}, "without virtual-stages above 1"),
    ({"schedule": "gpipe", "pp": 2, "virtual_stages": 2, "micro_batch": 4}, "one stage on a rank"),
])
def test_a_schedule_that_says_nothing_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSpec, match=words):
        vramcast.train("llama-3.2-1b", gpus="8xh100", engine="torchtitan", **options)


# torchtune's full fine-tuning.

def torchtune_job(gpus: str = "8xh100-sxm-80gb", **plan: object) -> Job:
    options = {"shards": Shards.EVERYTHING, "recompute": Recompute.FULL, "precision": Precision.BF16, **plan}
    return Job(
        model=load_model("llama-3.1-8b"), workload=Workload(seq_len=2048, micro_batch=2), plan=Plan(**options),
        cluster=parse_gpus(gpus), engine="torchtune",
    )


@pytest.mark.parametrize("plan", [{"shards": Shards.NOTHING}, {"pp": 2}, {"precision": Precision.FP32}])
def test_other_recipes_are_refused(plan: dict[str, object]) -> None:
    with pytest.raises(Unsupported, match="use "):
        torchtune_ranks(torchtune_job(**plan))


def test_weights_that_are_stepped_in_backward_have_no_gradients_together() -> None:
    alone = torchtune_job("1xh100-sxm-80gb", optimizer="paged-adamw-8bit")
    inside = replace(alone, engine_options={"optimizer_in_backward": True})
    after, within = (extent(torchtune_ranks(one)[0].phases[Phase.STEP]).peak for one in (alone, inside))
    log_probabilities, layer_inputs, head = 4 * 4096 * 128_256, 32 * 2 * 4096 * 4096, 2 * 128_256 * 4096
    assert after > 2 * 8.03e9
    assert within < log_probabilities + layer_inputs + 2 * head  # at the loss: what is left is not of the gradients
    with pytest.raises(Unsupported, match="optimizer_in_backward"):
        torchtune_ranks(replace(torchtune_job(), engine_options={"optimizer_in_backward": True}))


def largest(question: Job) -> int:
    phases = torchtune_ranks(question)[0].phases
    return extent(tuple(node for program in phases.values() for node in program)).peak


def of(version: tuple[int, ...] | None = None, **plan: object) -> Job:
    return replace(torchtune_job(**plan), workload=Workload(seq_len=8192, micro_batch=2), engine_version=version)


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


# litgpt's memory: published runs, and what must hold whatever the numbers.

QV = ("attention.q", "attention.v")


def litgpt_job(peft: Peft | None, *, model: str = "llama-3.2-1b", batch: int = 1, gpus: str = "1xa10g") -> Job:
    count = int(gpus.split("x")[0])
    shards = Shards.EVERYTHING if count > 1 else Shards.NOTHING
    return Job(
        model=load_model(model), workload=Workload(seq_len=512, micro_batch=batch, grad_accum=4),
        plan=Plan(precision=Precision.BF16, peft=peft, shards=shards), cluster=parse_gpus(gpus), engine="litgpt",
    )


def lora(**changes: object) -> Peft:
    return replace(Peft(method="lora", rank=32, targets=QV, dropout=0.05, adapter_dtype="bf16"), **changes)


def peak(question: Job) -> float:
    phases = litgpt_ranks(question)[0].phases
    return extent(tuple(node for program in phases.values() for node in program)).peak / GIB


def test_lora_of_llama_3_2_1b_is_what_was_measured() -> None:
    assert peak(litgpt_job(lora())) == pytest.approx(4.182, rel=0.01)


def test_quantised_lora_of_llama_3_2_1b_is_what_was_measured() -> None:
    assert peak(litgpt_job(lora(base="nf4"), batch=2)) == pytest.approx(5.15, rel=0.02)


@pytest.mark.parametrize("model", ["llama-3.2-1b", "phi-1.5", "gemma-2b", "stablelm-base-alpha-3b"])
@pytest.mark.parametrize("peft", [lora(), lora(base="nf4"), Peft(method="adapter", targets=()), None])
def test_steps_leave_what_they_found(model: str, peft: Peft | None) -> None:
    phases = litgpt_ranks(litgpt_job(peft, model=model))[0].phases
    assert not live_at_end(phases[Phase.STEP])


@pytest.mark.parametrize("peft", [Peft(method="ia3"), lora(targets=("router",))])
def test_methods_litgpt_lacks_are_refused(peft: Peft) -> None:
    with pytest.raises(Unsupported, match="use "):
        litgpt_ranks(litgpt_job(peft))


@pytest.mark.parametrize("model", ["bert-base", "t5-large", "whisper-small", "qwen2.5-vl-7b"])
def test_what_is_no_decoder_of_text_is_refused(model: str) -> None:
    with pytest.raises(Unsupported, match="decoders of text only"):
        vramcast.train(model, gpus="h100-sxm-80gb", engine="litgpt", micro_batch=1)


# Unsloth: what waits on the host, which loss a release runs, tables of layers.

OPTIONS: dict[str, Any] = {
    "model": "llama-3.1-8b", "gpus": "1xrtx-4090", "peft": "lora", "base-weights": "nf4", "precision": "amp-bf16",
    "recompute": "full", "seq-len": 4096,
}


def rank(release: str = "", **options: Any) -> RankProgram:
    named = {key.replace("_", "-"): value for key, value in options.items()}
    engine = "unsloth" + f"@{release}" * bool(release)
    (found,) = unsloth.ranks(job_of({**OPTIONS, "engine": engine, **named}))
    return found


@given(
    seq_len=st.integers(1, 9000),
    recompute=st.sampled_from([{}, {"recompute": "none"}, {"recompute-layers": 7}]),
    release=st.sampled_from(["2024.8", "2024.12.4", "2025.8", "2025.12", "2026.8", "2026.9.9", ""]),
    grad_accum=st.integers(1, 3),
)
@settings(max_examples=40, deadline=None)
def test_a_step_leaves_what_it_found(seq_len: int, recompute: dict[str, Any], release: str, grad_accum: int) -> None:
    found = rank(release, seq_len=seq_len, grad_accum=grad_accum, **recompute)
    step = found.phases[Phase.STEP]
    assert not any(live_at_end(step).values())
    assert freed_unallocated(step) is None


@pytest.mark.parametrize(("release", "card", "tokens", "logits"), [
    ("2024.8", "1xrtx-4090", 4096, 4096 * 4),  # whole, and returned in fp32
    ("2024.11.7", "1xrtx-4090", 4096, 0),
    ("2024.11.7", "1xv100-sxm2-16gb", 4096, 4096 * 4),  # no cut cross entropy on it
    ("2024.12.4", "1xrtx-4090", 1024, 1024 * 4),
    ("2025.12", "1xrtx-4090", 4096, 4096 * 2),  # one chunk
    ("2025.8.5", "1xrtx-4090", 8192, 2048 * 2),  # 4 GiB in fp32 for a budget of one
    ("2026.9.3", "1xrtx-4090", 4096, 1024 * 2),
    ("2026.10.9", "1xh200-sxm-141gb", 2048, 512 * 4),
])
def test_releases_hold_so_many_bytes_for_a_word_of_the_vocabulary(
    release: str, card: str, tokens: int, logits: int
) -> None:
    sizes = {
        tensor.name: tensor.num_bytes
        for tensor in _tensors(rank(release, gpus=card, seq_len=tokens))
        if tensor.name in ("logits.returned_fp32", "loss.logits_chunk")
    }
    assert sum(sizes.values()) == 128_256 * logits, sorted(sizes)


def _tensors(found: RankProgram) -> set[Any]:
    return {tensor for tensor, _ in events(found.phases[Phase.STEP])}


@pytest.mark.parametrize(("release", "rows", "kept"), [
    ("2025.9", 2 * 501, 4 * 600),  # logits of one answer and their gradient, of two micro-batches of two at once
    ("2026.2", 2 * 501 + 2 * 501 // 8, 0),  # those of a micro-batch, and the gradient of a chunk
])
def test_answers_are_learned_from_chunk_by_chunk(release: str, rows: int, kept: int) -> None:
    found = rank(release, objective="grpo", seq_len=100, completion_len=500, micro_batch=2, grad_accum=2)
    sizes = {tensor.name: tensor.num_bytes for tensor in _tensors(found)}
    logits = sum(size for name, size in sizes.items() if name.startswith("loss.logits"))
    assert logits == pytest.approx(rows * 128_256 * 2, rel=1e-3)
    assert sizes.get("hidden states of the reference", 0) == kept * 4096 * 2


@pytest.mark.parametrize(("release", "precision", "says"), [
    ("2025.3.14", "amp-fp16", False), ("2025.3", "amp-fp16", True), ("2025.4", "amp-fp16", True),
    ("2025.4", "amp-bf16", False),
])
def test_what_cannot_run_in_fp16_runs_in_fp32(release: str, precision: str, says: bool) -> None:
    found = rank(release, model="gemma-3-4b", precision=precision)
    assert any("gemma3 in fp32" in text for text in found.warnings) is says


@pytest.mark.parametrize(("release", "base", "says"), [
    ("2024.11", "nf4", False), ("2024.12", "nf4", True), ("", "nf4-dq", True), ("", "full", False),
])
def test_that_dynamic_checkpoints_take_more_is_a_warning(release: str, base: str, says: bool) -> None:
    found = rank(release, base_weights=base, seq_len=512)
    assert any("counted as packed" in text for text in found.warnings) is says


@pytest.mark.parametrize("method", ["ia3", "prefix", "loha"])
def test_adapters_that_unsloth_does_not_make_are_refused(method: str) -> None:
    with pytest.raises(Unsupported, match=f"not by {method}"):
        vramcast.train("llama-3.2-1b", gpus="h200", engine="unsloth", peft=method, seq_len=512)


def test_preferences_are_compared_by_logits_of_both_answers() -> None:
    asked = {"model": "llama-3.1-8b", "gpus": "rtx-4090", "engine": "unsloth", "peft": "lora", "base-weights": "nf4",
             "seq-len": 1024, "precision": "amp-bf16"}
    plain, preferred = (answer(job_of({**asked, "objective": objective})) for objective in ("sft", "dpo"))
    logits = 2 * 1024 * 128_256 * 4  # chosen and rejected, in fp32; their gradient beside them
    assert preferred.fullest.peak.allocated_bytes - plain.fullest.peak.allocated_bytes > 2 * logits
    with pytest.raises(Unsupported, match="Liger's own preference loss"):
        answer(job_of({**asked, "objective": "dpo", "loss": "fused_linear"}))
