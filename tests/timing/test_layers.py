"""What a step does: every weight is read once, operations follow the published counts, caches the states."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.catalogue.models import load_model
from vramcast.domain.model import Attention, Model
from vramcast.states.storage import token_bytes
from vramcast.timing.forward import forward_work
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
