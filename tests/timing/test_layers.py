"""What a step does: every weight is read once, operations follow the published counts, caches the states."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.blocks.parameters import count_parameters, layer_parameters
from vramcast.catalogue.models import load_model
from vramcast.domain.model import Attention, Model, MoE
from vramcast.states.cache import token_bytes
from vramcast.states.storage import format_for, format_of
from vramcast.timing.forward import _tape, between, forward_work, pointwise
from vramcast.timing.work import Execution, Placement, Setting, Step

FUSED = Execution()
DENSE = ["llama-3.1-8b", "qwen2.5-7b", "gemma-2-9b", "falcon-7b", "gpt-j-6b", "mamba-2.8b", "deepseek-v2-lite"]
EVERY = [*DENSE, "mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b", "qwen3-next-80b-a3b", "deepseek-v3"]


def work(
    model: Model, step: Step, placement: Placement | None = None, execution: Execution = FUSED
) -> list[tuple[str, float, float, float, float]]:
    """Name, operations, weight, cache and activation bytes of every operator, repeats put in."""
    setting = Setting(step, placement or Placement(), execution)
    return [
        (one.name, count * one.flops, count * one.weight_bytes, count * one.cache_bytes, count * one.message_bytes)
        for one, count in forward_work(model, model.main.runs, setting)
    ]


def flops(rows: list[tuple[str, float, float, float, float]], *, mixing: bool = False) -> float:
    return sum(row[1] for row in rows if (row[0] in ("attention.scores", "scan", "indexer.scores")) == mixing)


@pytest.mark.parametrize("name", EVERY)
def test_products_are_two_operations_for_every_active_weight(name: str) -> None:
    model = load_model(name)
    rows = work(model, Step(1, 1, 100))
    counted = sum(
        parameter.elements * run.count * (model_share(run.layer.channel) if parameter.expert else 1)
        for run in model.main.runs
        for parameter in layer_parameters(run.layer, hidden=model.hidden)
        if len(parameter.shape) > 1
    )
    head = model.vocab * model.hidden
    assert flops(rows) == pytest.approx(2 * (counted + head), rel=1e-6)
    assert counted <= count_parameters(model).active


def model_share(channel: object) -> float:
    return getattr(channel, "top_k", 1) / getattr(channel, "num_experts", 1)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("quantised", ["bf16", "fp8", "awq-int4"])
def test_a_large_batch_reads_every_matrix_once_in_its_stored_format(name: str, quantised: str) -> None:
    model = load_model(name)
    rows = work(model, Step(1 << 20, 1, 1), Placement(quantised=quantised))
    stored = sum(
        run.count * format_of(format_for(parameter, quantised=quantised, whole="bf16")).num_bytes(parameter.shape)
        for run in model.main.runs
        for parameter in layer_parameters(run.layer, hidden=model.hidden)
        if len(parameter.shape) > 1
    )
    assert sum(row[2] for row in rows if row[0] != "head") == pytest.approx(stored, rel=1e-9)


@pytest.mark.parametrize("name", sorted({*EVERY} - {"gpt-j-6b"}))  # its activation stays in pieces in every variant
def test_fused_operators_move_what_the_compiled_tape_moves(name: str) -> None:
    model = load_model(name)
    setting = Setting(Step(1, 512), Placement(), FUSED)
    for run in model.main.runs:
        listed = list(pointwise(run.layer, setting, hidden=model.hidden))
        if isinstance(run.layer.channel, MoE):
            listed += between(run.layer.channel, setting, hidden=model.hidden)
        tape = [
            one
            for one in _tape(run.layer, setting, model.hidden, variant="compiled")
            if one.name not in ("add", "index", "index_add")  # parts of norms and of the experts' products
        ]
        assert len(listed) <= len(tape)
        moved, taped = (sum(one.activation_bytes for one in works) for works in (listed, tape))
        assert 0.5 * taped < moved < 2.0 * taped


@pytest.mark.parametrize("name", EVERY)
@given(sequences=st.integers(1, 64), cached=st.integers(1, 4096))
@settings(max_examples=5, deadline=None)
def test_decoding_reads_the_cache_that_states_say_a_sequence_has(name: str, sequences: int, cached: int) -> None:
    model = load_model(name)
    rows = work(model, Step(sequences, 1, cached))
    read = sum(row[3] for row in rows if row[0] == "attention.scores")
    stated = sum(
        run.count * token_bytes(run.layer.mixer) * min(cached + 1, window(run.layer.mixer) or cached + 1)
        for run in model.main.runs
    )
    assert read == pytest.approx(sequences * stated)


def window(mixer: object) -> int | None:
    return mixer.window if isinstance(mixer, Attention) else None


def test_absorbed_latent_attention_reads_one_compressed_vector_a_token() -> None:
    model = load_model("deepseek-v3")
    rows = work(model, Step(1, 1, 8191))
    assert sum(row[3] for row in rows if row[0] == "attention.scores") == 61 * 8192 * (512 + 64) * 2
    heads_by_width = 128 * (2 * 512 + 64)
    assert sum(row[1] for row in rows if row[0] == "attention.scores") == 61 * 2 * 8192 * heads_by_width


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_tensor_parallel_ranks_share_the_operations_and_sum_twice_a_layer(tp: int) -> None:
    model = load_model("llama-3.1-8b")
    whole, part = work(model, Step(8, 1, 512)), work(model, Step(8, 1, 512), Placement(tp=tp))
    assert flops(part) == pytest.approx(flops(whole) / tp, rel=1e-6)
    reduced = [row for row in part if row[0] == "all-reduce"]
    assert sum(row[4] for row in reduced) == (2 * 32 + 1) * 8 * 4096 * 2
    assert not [row for row in whole if row[0] == "all-reduce"]


