"""Cards without bf16 tensor cores compute in fp16 with a loss scale; bf16 on them is said to be emulated."""

import vramcast
from vramcast.domain.planning import PlanAnswer


def test_pure_bf16_and_fp8_are_offered_only_where_the_card_has_them() -> None:
    for card, has_bf16, has_fp8 in (("t4", False, False), ("a10", True, False), ("h100", True, True)):
        found = vramcast.plan("train", "llama-3.2-1b", on=card, max_gpus=1, seq_len=2048, global_batch=8)
        assert isinstance(found, PlanAnswer)
        names = {technique.name for technique in found.techniques}
        assert ("pure bf16" in names) is has_bf16
        assert ("fp8" in names) is has_fp8
        path = [f"{decision.question} {decision.action}" for decision in found.decisions]
        assert has_bf16 or not any("bf16" in text for text in path)
