"""Nothing an engine is told is ignored in silence."""

import vramcast


def test_modules_of_multi_token_prediction_are_said_not_to_be_counted() -> None:
    found = vramcast.train("deepseek-v3", gpus="32x8xh100", engine="megatron", tp=8, ep=32)
    assert any("--mtp-num-layers 1" in text for text in found.ignored)
    assert not any("--mtp" in text for text in vramcast.train("mixtral-8x7b", gpus="8xh100", engine="megatron").ignored)
