"""transformers' generate: published peaks of its tables' mechanisms, and what must hold whatever the numbers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vramcast
from vramcast.catalogue.gpus import parse_gpus
from vramcast.catalogue.models import load_model
from vramcast.domain.answer import ServeAnswer
from vramcast.domain.job import Phase
from vramcast.domain.program import Alloc, live_at_end
from vramcast.domain.serving import Requests, ServeJob, ServePlan, ServingRank
from vramcast.engines.transformers.deploy import deploy
from vramcast.errors import InvalidSpec, UnknownName, Unsupported
from vramcast.estimate.timeline import simulate
from vramcast.units import GIB, MIB

FEW = settings(max_examples=15, deadline=None)


def job(model: str = "qwen2.5-0.5b", *, version: tuple[int, ...] = (4, 46), gpus: str = "a100-sxm4-80gb",
        options: dict[str, Any] | None = None, plan: dict[str, Any] | None = None, **requests: Any) -> ServeJob:
    return ServeJob(
        model=load_model(model), requests=Requests(**requests), plan=ServePlan(**(plan or {})),
        cluster=parse_gpus(gpus), engine="transformers", version=version, engine_options=options or {},
    )


def allocated(question: ServeJob) -> int:
    ranks = deploy(question).ranks
    return sum(max(mark.allocated_bytes for mark in simulate(rank.program.phases).values()) for rank in ranks)


def loaded(rank: ServingRank) -> int:
    return sum(tensor.num_bytes * count for tensor, count in live_at_end(rank.program.phases[Phase.LOAD]).items())


def ask(model: str, **options: Any) -> ServeAnswer:
    return vramcast.serve(model, **({"engine": "transformers", "gpus": "a100-sxm4-80gb", "context": 4096} | options))


def bytes_of(answer: ServeAnswer, category: str) -> int:
    return sum(entry.num_bytes for entry in answer.fullest.ledger if entry.category == category)


def test_logits_of_all_prompt_positions_were_made_before_4_45() -> None:
    long = {"input_len": 30720, "output_len": 2048, "plan": {"attention": "flash"}}
    old = allocated(job("qwen2-0.5b-instruct", version=(4, 38), **long))
    new = allocated(job("qwen2.5-0.5b", version=(4, 46), **long))
    assert old / GIB == pytest.approx(27.61, rel=0.01)
    assert new / GIB == pytest.approx(2.34, rel=0.03)


def test_tuples_hold_the_cache_of_the_step_before_until_the_step_has_ended() -> None:
    answer = {"input_len": 1, "output_len": 4096}
    cache = 4096 * 2 * 32 * 32 * 128 * 2  # tokens x keys and values x layers x heads x width x bytes
    old, new = (allocated(job("llama-2-7b", version=version, **answer)) for version in ((4, 41), (4, 42)))
    assert old - new == pytest.approx(cache, rel=0.05)


def test_rotary_tables_of_every_layer_are_gone_from_4_45_on() -> None:
    tables = 24 * 2 * 32768 * 64 * 2
    old, new = (deploy(job("qwen2-0.5b-instruct", version=(4, minor), input_len=8)).ranks[0] for minor in (44, 45))
    assert loaded(old) - loaded(new) == tables


@pytest.mark.parametrize(
    "options",
    [{}, {"cache": "static"}, {"cache": "offloaded"}, {"cache": "quantized"}, {"beams": 4}, {"prefill_chunk": 64}],
)
@pytest.mark.parametrize(
    "model",
    ["qwen3-0.6b", "gemma-3-4b", "qwen3-30b-a3b", "deepseek-v2-lite", "falcon-7b", "mamba-130m", "chatglm2-6b",
     "whisper-tiny", "flan-t5-small"],
)
@pytest.mark.parametrize("version", [(4, 35), (4, 40), (4, 46), (4, 57), (5, 10)])
def test_serving_leaves_nothing_behind_but_the_workspace(
    model: str, version: tuple[int, ...], options: dict[str, Any]
) -> None:
    for rank in deploy(job(model, version=version, input_len=200, output_len=20, options=options)).ranks:
        left = live_at_end(rank.program.phases[Phase.SERVING])
        assert [(tensor.name, count) for tensor, count in left.items() if tensor.num_bytes] == [("cuBLAS workspace", 1)]


@given(batch=st.integers(1, 6), prompt=st.integers(1, 2000), answer=st.integers(1, 300))
@FEW
def test_more_sequences_or_longer_ones_never_take_less(batch: int, prompt: int, answer: int) -> None:
    def peak(b: int, p: int, a: int) -> int:
        found = ask("qwen3-0.6b", context=p + a, input_len=p, output_len=a, concurrency=b)
        slack = sum(entry.bytes for entry in found.fullest.ledger if entry.path[-1] == "slack of large blocks")
        return found.peak.allocated_bytes - slack  # blocks that are not split leave less over for some larger sizes

    here = peak(batch, prompt, answer)
    assert here <= peak(batch + 1, prompt, answer)
    assert here <= peak(batch, prompt + 512, answer)


def test_an_image_runs_its_encoder_and_needs_a_size() -> None:
    text = ask("qwen2-vl-7b", context=1024)
    seen = ask("qwen2-vl-7b", context=1024, images=1, image_size=2048)
    assert seen.peak.allocated_bytes > text.peak.allocated_bytes
    with pytest.raises(InvalidSpec, match="image-size"):
        ask("qwen2-vl-7b", context=1024, images=1)


def test_every_beam_caches_the_encoder_s_states() -> None:
    one, five = (allocated(job("whisper-large-v2", version=(4, 48), options={"beams": beams})) for beams in (1, 5))
    per_beam = 32 * 2 * 1500 * 1280 * 4
    assert five - one > 3.5 * per_beam


def test_what_does_not_generate_has_no_cache() -> None:
    answer = ask("bge-m3", context=8192, concurrency=32)
    assert answer.capacity is None
    assert bytes_of(answer, "kv cache") == 0
    assert answer.fits
    half = ask("bge-m3", context=8192, concurrency=16)
    assert answer.peak.allocated_bytes - half.peak.allocated_bytes > 4 * GIB


def test_layers_are_spread_over_the_gpus_and_none_is_lost() -> None:
    one, four = (ask("llama-3.1-8b", gpus=gpus) for gpus in ("a100-sxm4-80gb", "4xa100-sxm4-80gb"))
    assert len(four.ranks) == 4
    together = sum(entry.num_bytes for rank in four.ranks for entry in rank.ledger if entry.category == "weights")
    assert together == bytes_of(one, "weights")


def test_the_first_gpu_gets_the_prompt_s_logits_back() -> None:
    question = job("qwen2-72b-instruct", version=(4, 38), gpus="2xa100-sxm4-80gb", plan={"pp": 2}, input_len=6144)
    nodes = deploy(question).ranks[0].program.phases[Phase.SERVING]
    sizes = {node.tensor.name: node.tensor.num_bytes for node in nodes if isinstance(node, Alloc)}
    assert sizes["logits from the last GPU"] == 6144 * 152064 * 4


def test_the_longest_context_fits_and_a_longer_one_does_not() -> None:
    longest = ask("llama-3.1-8b", gpus="rtx-4090", concurrency=16).capacity.longest_context  # type: ignore[union-attr]
    assert 1000 < longest < 131072
    assert ask("llama-3.1-8b", gpus="rtx-4090", concurrency=16, context=int(0.9 * longest)).fits
    assert not ask("llama-3.1-8b", gpus="rtx-4090", concurrency=16, context=int(1.1 * longest)).fits


def test_fp32_checkpoints_stay_fp32() -> None:
    assert bytes_of(ask("bert-base-uncased", context=512), "weights") == pytest.approx(4 * 109_514_298, rel=0.01)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"tp": 2, "gpus": "2xl40s"}, Unsupported, "--pp 2"),
        ({"kv_dtype": "fp8"}, InvalidSpec, "int8"),
        ({"engine_option": ["cache=paged"]}, InvalidSpec, "one of dynamic, static"),
        ({"engine_option": ["speed=1"]}, UnknownName, "transformers option"),
        ({"context": 100, "input_len": 200}, InvalidSpec, "longer than context"),
        ({"gpus": "64xl40s", "pp": 64}, InvalidSpec, "28 layers"),
        ({"draft": "ngram"}, Unsupported, "vllm"),
    ],
)
def test_what_transformers_cannot_do_is_refused_with_what_works(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        ask("qwen3-0.6b", **options)


def test_tied_fp8_checkpoints_hold_their_head_beside_the_embedding() -> None:
    rank = deploy(job("qwen3-0.6b", version=(4, 51), plan={"weights": "fp8-block"}, input_len=8)).ranks[0]
    heads = [t for t in live_at_end(rank.program.phases[Phase.LOAD]) if t.name == "head beside the embedding"]
    assert [head.num_bytes // MIB for head in heads] == [296]


def test_without_a_release_the_library_is_that_of_training_and_cublas_that_of_its_days() -> None:
    assert ask("qwen3-0.6b").question["engine"] == "transformers@5.23"
    found = {
        version: ask("qwen3-0.6b", engine=f"transformers@{version}", gpus="b200-180gb").ranks[0]
        for version in ("4.57", "5.23")
    }
    sizes = [
        sum(entry.num_bytes for entry in rank.ledger if "cuBLAS" in entry.path) for rank in found.values()
    ]
    assert sizes == [8_519_680, 32 * MIB]  # torch 2.9 and 2.13
