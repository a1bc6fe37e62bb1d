"""Programs, and versions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.api import job_of
from vramcast.domain.job import Phase, RankProgram
from vramcast.domain.program import (
    Alloc,
    BrokenProgram,
    Category,
    Free,
    Loop,
    Program,
    Tensor,
    events,
    extent,
    live_at_end,
    total_bytes,
)
from vramcast.domain.version import check_version, named
from vramcast.engines.serving.table import SERVING
from vramcast.engines.training import TRAINING
from vramcast.errors import InvalidSpec
from vramcast.estimate.training import answer
from vramcast.question.build import training_engine
from vramcast.question.serving import parse_engine

# The two readings of a program agree with unrolling it.


def tensor(name: str, num_bytes: int) -> Tensor:
    return Tensor(name=name, num_bytes=num_bytes, category=Category.ACTIVATIONS)


TENSORS = [tensor(f"t{index}", 512 * 3**index) for index in range(4)]

LEAVES = st.sampled_from([kind(item) for item in TENSORS for kind in (Alloc, Free)])
PROGRAMS = st.recursive(
    st.lists(LEAVES, max_size=5).map(tuple),
    lambda inner: st.lists(
        LEAVES | st.builds(lambda count, body: Loop(count, body), st.integers(0, 3), inner), max_size=4
    ).map(tuple),
    max_leaves=20,
)


@given(PROGRAMS)
def test_tensors_alive_at_the_end_add_up_to_the_net_change(program: Program) -> None:
    assert total_bytes(live_at_end(program)) == extent(program).net


def test_balanced_repeats_are_cut_in_the_timeline_and_growing_ones_are_not() -> None:
    item = tensor("x", 512)
    assert len(list(events((Loop(100, (Alloc(item), Free(item))),)))) == 4
    assert len(list(events((Loop(100, (Alloc(item),)),)))) == 100


def test_a_rank_that_frees_what_it_has_not_allocated_is_not_answered() -> None:
    hidden, other = tensor("hidden states", 55_000_000), tensor("hidden states", 54_988_800)
    step = (Loop(2, (Alloc(hidden),)), Loop(32, (Alloc(hidden), Free(other))))
    with pytest.raises(BrokenProgram, match="all frees activations/hidden states of 54988800 bytes"):
        RankProgram(role="all", count=8, phases={Phase.LOAD: (), Phase.STEP: step}).require_sound()


ASKED = {"model": "llama-3.2-1b", "gpus": "h100", "seq_len": 512}


def asked(**options):
    return job_of({name.replace("_", "-"): value for name, value in (ASKED | options).items()})


def test_a_version_that_is_older_than_known_or_none_is_refused():
    assert check_version("x", "4.30", oldest=(4, 30), newest=(5, 1)) == (4, 30)
    for text in ("4.29", "latest"):
        with pytest.raises(InvalidSpec):
            check_version("x", text, oldest=(4, 30), newest=(5, 1))


def test_the_series_of_the_newest_release_is_answered_as_the_newest_by_every_engine():
    for name, known in TRAINING.items():
        series, version = training_engine(f"{name}@{known.newest[0]}")
        assert (series, version) == (name, known.newest)
    for name, engine in SERVING.items():
        assert parse_engine(f"{name}@{engine.newest[0]}") == (name, engine.newest)


@pytest.mark.parametrize("engine", ["pytorch", "huggingface", "deepspeed", "unsloth", "megatron"])
def test_a_version_newer_than_known_is_answered_as_the_newest_and_says_so(engine):
    newest = answer(asked(engine=named(engine, TRAINING[engine].newest)))
    beyond = answer(asked(engine=f"{engine}@9999.1"))
    assert beyond.ranks == newest.ranks == answer(asked(engine=engine)).ranks
    assert any("9999.1 changed since" in text for text in beyond.ignored) and not newest.ignored


def test_a_sharder_needs_something_to_shard():
    with pytest.raises(InvalidSpec, match="nothing is sharded"):
        answer(asked(engine="huggingface", gpus="2xh100", sharded_by="deepspeed"))
