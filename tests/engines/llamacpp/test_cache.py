"""Caches: bytes per cell by type, padding by build, windows, compressed and recurrent states."""

from tests.engines.llamacpp._jobs import MIB, context, job, kv_mib
from vramcast.engines.llamacpp.settings import settings_of


def test_each_slot_has_a_stream_of_its_own_unless_unified() -> None:
    apart = settings_of(job("llama-3.1-8b", context=1000, concurrency=3))
    assert (apart.streams, apart.context) == (3, 3 * 1024)
    assert settings_of(job("llama-3.1-8b", context=1000, concurrency=3, kv_unified=True)).streams == 1
    assert settings_of(job("llama-3.1-8b", context=1000, concurrency=3, build=5800)).streams == 1


def test_a_sliding_window_keeps_the_window_and_one_micro_batch() -> None:
    """gemma-3-4b: 5 layers of the whole context, 29 of 1024 + 512 cells, 4 KiB a token and layer: 814 MiB at 32k."""
    assert kv_mib(context("gemma-3-4b", context=32768)) == 5 * 32768 * 4096 / MIB + 29 * 1536 * 4096 / MIB
    whole = 34 * 32768 * 4096 / MIB
    assert kv_mib(context("gemma-3-4b", context=32768, swa_full=True)) == whole
    assert kv_mib(context("gemma-3-4b", context=32768, build=5400)) == whole
