"""Unsloth: what waits on the host, which loss a release runs, tables of layers."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vramcast
from vramcast.api import job_of
from vramcast.domain.job import Phase, RankProgram
from vramcast.domain.program import events, freed_unallocated, live_at_end
from vramcast.engines import unsloth
from vramcast.errors import Unsupported
from vramcast.estimate.training import answer

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
