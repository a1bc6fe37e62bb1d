"""DeepSpeed ZeRO and ColossalAI's low-level ZeRO."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.engines.test_pytorch import job
from vramcast.domain.job import Job, Peft, Phase, Precision, Shards
from vramcast.domain.program import Category, extent, live_at_end
from vramcast.engines import colossalai, deepspeed
from vramcast.errors import Unsupported
from vramcast.estimate.training import answer

PARAMETERS = 1_235_814_400


def sharded(shards: Shards, *, gpus: int = 4, **changes: object) -> Job:
    """A job that DeepSpeed runs."""
    return job(gpus=gpus, shards=shards, precision=Precision.MIXED_BF16, **changes)


def loaded(asked: Job) -> dict[Category, int]:
    """Bytes per category after DeepSpeed's initialisation."""
    sums: dict[Category, int] = {}
    for tensor, count in live_at_end(deepspeed.ranks(asked)[0].phases[Phase.LOAD]).items():
        sums[tensor.category] = sums.get(tensor.category, 0) + tensor.block_bytes * count
    return sums


@pytest.mark.parametrize("shards", [Shards.OPTIMIZER, Shards.OPTIMIZER_AND_GRADIENTS, Shards.EVERYTHING])
def test_a_step_leaves_nothing_behind(shards: Shards) -> None:
    phases = deepspeed.ranks(sharded(shards, grad_accum=2))[0].phases
    assert extent(phases[Phase.STEP]).net == 0


def test_states_are_twelve_bytes_a_parameter_over_the_ranks() -> None:
    for shards in (Shards.OPTIMIZER, Shards.OPTIMIZER_AND_GRADIENTS, Shards.EVERYTHING):
        assert loaded(sharded(shards))[Category.OPTIMIZER] == pytest.approx(12 * PARAMETERS / 4, rel=1e-4)


def test_zero_3_divides_the_weights_and_zero_2_does_not() -> None:
    assert loaded(sharded(Shards.OPTIMIZER_AND_GRADIENTS))[Category.WEIGHTS] == pytest.approx(2 * PARAMETERS, rel=1e-4)
    assert loaded(sharded(Shards.EVERYTHING))[Category.WEIGHTS] == pytest.approx(2 * PARAMETERS / 4, rel=1e-2)


def test_more_ranks_never_need_more_memory_each() -> None:
    for shards in (Shards.OPTIMIZER_AND_GRADIENTS, Shards.EVERYTHING):
        few, many = (
            sum(loaded(sharded(shards, gpus=gpus)).values()) for gpus in (2, 8)
        )
        assert many < few


def test_offload_leaves_no_optimizer_on_the_gpu() -> None:
    assert Category.OPTIMIZER not in loaded(sharded(Shards.OPTIMIZER_AND_GRADIENTS, offload_optimizer="cpu"))


def test_smaller_buckets_need_less_memory() -> None:
    asked = sharded(Shards.OPTIMIZER_AND_GRADIENTS)
    small = replace(asked, engine_options={"reduce_bucket_size": 1_000_000})
    large, little = (extent(deepspeed.ranks(each)[0].phases[Phase.STEP]).peak for each in (asked, small))
    assert little < large


def test_sub_groups_of_some_elements_are_refused_before_they_are_made() -> None:
    asked = replace(sharded(Shards.EVERYTHING), engine_options={"sub_group_size": 2})
    with pytest.raises(Unsupported, match=r"sub_group_size=2 .* use at least"):
        deepspeed.ranks(asked)


def test_colossalai_keeps_master_weights_and_moments_divided() -> None:
    phases = colossalai.ranks(sharded(Shards.OPTIMIZER_AND_GRADIENTS))[0].phases
    assert extent(phases[Phase.STEP]).net == 0
    live = live_at_end(phases[Phase.LOAD] + phases[Phase.FIRST_STEP])
    states = sum(t.block_bytes * n for t, n in live.items() if t.category is Category.OPTIMIZER)
    assert states == pytest.approx(12 * PARAMETERS / 4, rel=1e-4)


def test_gemini_is_refused_with_what_would_work() -> None:
    with pytest.raises(Unsupported, match="use --shards"):
        colossalai.ranks(sharded(Shards.EVERYTHING))


def test_adapters_of_deepspeed_are_16_bits_wide() -> None:
    asked = sharded(Shards.OPTIMIZER_AND_GRADIENTS, gpus=1, peft=Peft(rank=8))
    states = loaded(asked)[Category.OPTIMIZER]
    assert states == pytest.approx(12 * 16 * 8 * ((2048 + 2048) + (2048 + 512)), rel=1e-3)


@pytest.mark.parametrize("changes", [{"offload_optimizer": "cpu"}, {"options": {"grad_accum_dtype": "fp32"}}])
def test_stage_0_has_nothing_of_zeros(changes: dict[str, object]) -> None:
    options = changes.pop("options", {})
    with pytest.raises(Unsupported, match="with ZeRO only"):
        deepspeed.ranks(replace(sharded(Shards.NOTHING, **changes), engine_options=options))


def test_an_exchange_in_single_bits_keeps_errors_and_makes_copies_of_the_momentum() -> None:
    plain, bits = (sharded(Shards.NOTHING, optimizer=name) for name in ("adam", "onebit-adam"))
    states, more = (loaded(asked)[Category.OPTIMIZER] for asked in (plain, bits))
    assert more - states == pytest.approx((4 + 4 / 4) * PARAMETERS, rel=1e-4)  # a rank's error, and its share of all
    tops = [extent(deepspeed.ranks(asked)[0].phases[Phase.STEP]).peak for asked in (plain, bits)]
    assert tops[1] >= tops[0]
    with pytest.raises(Unsupported, match="without ZeRO"):
        answer(sharded(Shards.OPTIMIZER, optimizer="onebit-adam"))
