"""DeepSpeed ZeRO and ColossalAI's low-level ZeRO."""

import pytest
from msgspec.structs import replace

from tests.engines.test_pytorch import job
from vramcast.domain.job import Job, Phase, Precision, Shards
from vramcast.domain.program import Category, extent, live_at_end
from vramcast.engines import deepspeed
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


def test_sub_groups_of_some_elements_are_refused_before_they_are_made() -> None:
    asked = replace(sharded(Shards.EVERYTHING), engine_options={"sub_group_size": 2})
    with pytest.raises(Unsupported, match=r"sub_group_size=2 .* use at least"):
        deepspeed.ranks(asked)


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
