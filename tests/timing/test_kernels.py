"""Measured kernels: every table loads, more work never takes less time, relatives are scaled by their limits."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vramcast
from vramcast.catalogue.gpus import load_gpu
from vramcast.timing import kernels
from vramcast.timing.kernels import FEWER, SYSTEMS, Kernels, kernels_of, looked_up
from vramcast.timing.work import Sizes

ENGINES = ("vllm", "sglang", "tensorrt-llm")
LARGEST = 8 << 20
"""Bytes of all tables."""


def tables(system: str, engine: str = "vllm") -> Kernels:
    found = kernels_of(system, engine)
    assert found is not None
    return found


def test_every_card_of_the_tables_is_in_the_catalogue_with_its_compute_capability() -> None:
    for name, capability in SYSTEMS.items():
        assert load_gpu(name).compute_capability == capability
        for engine in ENGINES:
            found = tables(name, engine)
            assert len(found.codes) == sum(table.size for table in found.tables.values())
            assert 0 not in found.codes and found.sources
    files = list((Path(kernels.__file__).parent / "measured").glob("*.bin"))
    assert len(files) == len(SYSTEMS) * (1 + len(ENGINES))
    assert sum(file.stat().st_size for file in files) < LARGEST


GEMM = Sizes("gemm", (64.0, 4096.0, 4096.0), {}, "fp8")
SOME = {
    "gemm": GEMM,
    "generation": Sizes("generation", (4096.0, 64.0, 8.0), {"width": 128, "window": 1 << 24}, "bf16"),
    "context": Sizes("context", (2048.0, 64.0, 8.0), {"width": 128, "window": 1 << 24}, "fp8"),
    "experts": Sizes(
        "experts", (64.0, 2.0, 1.0), {"hidden": 4096, "inter": 1536, "count": 128, "top_k": 8}, "bf16"),
    "collective": Sizes("collective", (4.0, 1e6), {}, "all-reduce"),
}


@pytest.mark.parametrize("name", SOME)
@given(factors=st.tuples(*[st.floats(0.01, 100)] * 3), axis=st.integers(0, 2), more=st.floats(1.0, 8.0))
@settings(max_examples=60, deadline=None)
def test_more_work_never_takes_less_time(name: str, factors: tuple[float, ...], axis: int, more: float) -> None:
    sizes, gpu = SOME[name], load_gpu("h100-sxm-80gb")
    axis %= len(sizes.point)
    point = [max(1.0, value * factor) for value, factor in zip(sizes.point, factors, strict=False)]
    if name in ("experts", "collective"):  # whole ranks
        point = [*sizes.point[:1], *map(float, sizes.point[1:])]
        point[-1 if name == "collective" else 0] *= factors[0]
        axis = 1 if name == "collective" else 0
    larger = [value * (more if at == axis else 1) for at, value in enumerate(point)]
    times = []
    for where in (point, larger):
        found = looked_up(tables(gpu.name), Sizes(name, tuple(where), sizes.fixed, sizes.stored), gpu)
        assert found is not None
        times.append(found.seconds)
    assert axis in FEWER[name] or times[0] <= times[1] * (1 + 1e-9)


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("engine", ENGINES)
def test_no_prompt_and_no_cache_is_faster_than_the_data_sheet(system: str, engine: str) -> None:
    gpu, width = load_gpu(system), {"width": 128, "window": 1 << 24}
    peak, bandwidth = gpu.flops_per_s("bf16"), gpu.bandwidth_bytes_per_s
    assert peak is not None and bandwidth is not None
    for length, work, group in product((512.0, 2048.0, 8192.0), (64.0, 256.0, 512.0), (1.0, 4.0, 8.0)):
        least = 2 * work * length**2 * 128 / peak
        prompt = looked_up(tables(system, engine), Sizes("context", (length, work, group), width, "bf16"), gpu)
        assert prompt is None or prompt.seconds > 0.95 * least, (length, work, group)
        cache = looked_up(tables(system, engine), Sizes("generation", (length, work, group), width, "bf16"), gpu)
        assert cache is None or cache.seconds > 0.95 * 4 * work * length * 128 / bandwidth, (length, work, group)


def test_more_bandwidth_is_never_slower_with_four_bits() -> None:
    steps = [vramcast.serve("qwen3-8b", gpus=name, context=4096, weights="awq-int4", concurrency=16).speed
             for name in ("h200", "h100")]
    assert steps[0] is not None and steps[1] is not None
    assert (steps[0].step_s or 0) < (steps[1].step_s or 0)


def test_formats_and_engines_without_tables_are_left_to_the_roofline() -> None:
    assert kernels_of("h100-sxm-80gb", "llama.cpp") is None
    assert looked_up(tables("h100-sxm-80gb"), Sizes("gemm", (1.0, 4096.0, 4096.0), {}, "nf4"), load_gpu("h100")) is None
