"""Which attention runs: asked for, or what the engine runs unasked; what a family's code cannot call is refused."""

import pytest

from tests.formats.plans import files, training
from vramcast.domain.job import AttentionKernel, Job
from vramcast.engines.transformers.versions import NEVER, SDPA_SINCE, attention_kernels
from vramcast.errors import Unsupported
from vramcast.estimate.training import answer

FLASH, EAGER = AttentionKernel.FLASH, AttentionKernel.EAGER


def asked(model: str, engine: str, card: str = "1xh100-sxm-80gb", **options: object) -> Job:
    return training(model, card, engine=engine, seq_len=2048, **options)


def test_gpt_oss_runs_flash_attention_where_it_is_asked_for() -> None:
    full, flash = (
        answer(asked("gpt-oss-20b", "huggingface", peft="lora", recompute="full", **options), with_changes=False)
        for options in ({}, {"attention": "flash"})
    )
    assert flash.fullest.peak.allocated_bytes < full.fullest.peak.allocated_bytes
    assert any("attention runs in full, as transformers runs gpt_oss unasked" in text for text in full.assumptions)
    assert not any("attention runs in full" in text for text in flash.assumptions)


@pytest.mark.parametrize(("model", "kernel", "card", "named"), [
    ("gpt-oss-20b", "efficient", "1xh100-sxm-80gb", "eager or flash"),
    ("gpt-oss-20b", "flash", "1xa100-sxm4-80gb", "compute capability 9.0"),
    ("bloom-560m", "flash", "1xh100-sxm-80gb", "use eager"),
])
def test_what_a_family_cannot_call_is_refused(model: str, kernel: str, card: str, named: str) -> None:
    with pytest.raises(Unsupported, match=named):
        answer(asked(model, "huggingface", card, attention=kernel), with_changes=False)


def test_written_scripts_name_the_implementation_that_was_computed() -> None:
    def script(model: str, **options: object) -> str:
        found = files(asked(model, "huggingface", **options), "transformers")
        return "".join(file.text for file in found.values())

    assert 'attn_implementation="sdpa"' in script("llama-3.2-1b")
    assert 'attn_implementation="eager"' in script("gpt-oss-20b")
    assert 'attn_implementation="kernels-community/vllm-flash-attn3"' in script("gpt-oss-20b", attention="flash")


def test_no_family_without_any_fused_kernel_is_answered_for_one() -> None:
    for family, since in SDPA_SINCE.items():
        if since == NEVER:
            assert attention_kernels(family, (5, 23))[0] is EAGER, family
