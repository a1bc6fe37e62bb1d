"""device_map="auto" over the cards of one process: where layers lie, and what each card takes."""

from __future__ import annotations

import pytest

from vramcast.api import job_of
from vramcast.domain.job import Phase
from vramcast.errors import VramcastError
from vramcast.estimate.training import answer

PLACED = {  # layers of each card as transformers' own functions place networks on the meta device, 4.57.6 and 5.24.0
    ("Qwen/Qwen2.5-14B", 2): ("22 + 26", "24 + 24"),
    ("Qwen/Qwen2.5-14B", 4): ("9 + 14 + 14 + 11", "11 + 16 + 16 + 5"),
    ("Qwen/Qwen2.5-7B", 2): ("12 + 16", "14 + 14"),
    ("Qwen/Qwen2.5-7B", 4): ("4 + 9 + 9 + 6", "6 + 11 + 11 + 0"),
    ("Qwen/Qwen2.5-3B", 2): ("16 + 20", "20 + 16"),  # its head is its embedding, on the first card
    ("Qwen/Qwen2.5-3B", 4): ("6 + 11 + 11 + 8", "10 + 15 + 11"),
}


@pytest.mark.parametrize(("model", "cards"), PLACED)
def test_layers_lie_where_transformers_puts_them(model: str, cards: int) -> None:
    for release, layers in zip(("4.57", "5.20"), PLACED[model, cards], strict=True):
        job = job_of({"model": model, "gpus": f"{cards}xa100-sxm4-80gb", "engine": f"huggingface@{release}",
                      "peft": "lora", "pp": cards})
        assert any(f": {layers} layers" in text for text in answer(job, with_changes=False).assumptions), model


@pytest.mark.parametrize(("model", "method"), [
    ("Qwen/Qwen2.5-14B", {"peft": "lora"}), ("Qwen/Qwen2.5-3B", {"peft": "lora"}), ("qwen2.5-vl-7b", {"peft": "lora"}),
    ("Qwen/Qwen2.5-3B", {}), ("bert-base", {})])  # one table learns as embedding and as head, on the first card
def test_the_cards_together_hold_what_one_would(model: str, method: dict[str, str]) -> None:
    options = {"model": model, "engine": "huggingface", "recompute": "full", "seq-len": 512, **method}
    one = answer(job_of(options | {"gpus": "1xh200-sxm-141gb"}), with_changes=False)
    three = answer(job_of(options | {"gpus": "3xh200-sxm-141gb", "pp": 3}), with_changes=False)
    loaded = [sum(rank.phases[Phase.LOAD].allocated_bytes for rank in found.ranks) for found in (one, three)]
    assert abs(loaded[1] / loaded[0] - 1) < 1e-3  # slack of blocks and inputs apart
    highest = max(rank.phases[Phase.STEP].allocated_bytes for rank in three.ranks)
    assert highest < one.ranks[0].phases[Phase.STEP].allocated_bytes < 3 * highest
    if one.time is not None and three.time is not None:
        # they work in turn, but for updates, which cards make beside each other
        assert (0.95 if "peft" in method else 0.8) < three.time.step_s / one.time.step_s < 1.05


@pytest.mark.parametrize(("options", "said"), [
    ({"gpus": "4xh100", "pp": 2}, "use --pp 4"), ({"gpus": "2x2xh100", "pp": 2}, "give one machine"),
    ({"pp": 2, "shards": "everything"}, "--shards"),
    ({"pp": 2, "schedule": "gpipe"}, "--schedule"), ({"pp": 2, "objective": "dpo"}, "objective=dpo"),
])
def test_what_device_map_does_not_do_is_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(VramcastError, match=said):
        answer(job_of({"model": "Qwen/Qwen2.5-7B", "gpus": "2xh100", "engine": "huggingface", **options}))
