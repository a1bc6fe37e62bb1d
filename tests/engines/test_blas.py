"""cuBLAS workspaces: one function says their size, and every engine has the two of a step that differentiates."""

from __future__ import annotations

import pytest

from vramcast.catalogue.gpus import load_gpu
from vramcast.catalogue.models import load_model
from vramcast.domain.cublas import LARGE_BYTES, SMALL_BYTES, lt_workspace_bytes, workspace_bytes
from vramcast.domain.device import Cluster
from vramcast.domain.job import Job, Peft, Phase, Plan, Precision, Shards, Workload
from vramcast.domain.program import live_at_end
from vramcast.engines.training import TRAINING
from vramcast.estimate.training import rank_programs
from vramcast.units import KIB, MIB

CARDS = ("t4-16gb", "a100-sxm4-80gb", "h100-sxm-80gb", "b200-180gb", "rtx-5090", "mi300x")
PLANS = {
    "pytorch": {"precision": Precision.BF16}, "huggingface": {"precision": Precision.BF16},
    "torchtune": {"precision": Precision.BF16, "shards": Shards.EVERYTHING}, "litgpt": {"precision": Precision.BF16},
    "unsloth": {"precision": Precision.BF16, "peft": Peft(base="nf4")},
    "deepspeed": {"shards": Shards.EVERYTHING}, "colossalai": {"shards": Shards.OPTIMIZER},
    "torchtitan": {"shards": Shards.EVERYTHING},
}


def of_step(engine: str, card: str, **job: object) -> list[int]:
    """Sizes of the workspaces of PyTorch's cuBLAS handles after the first step."""
    plan = Plan(**PLANS.get(engine, {}))
    gpus = 2 if engine in ("deepspeed", "colossalai", "torchtitan", "torchtune") else 1
    asked = Job(
        model=load_model("llama-3.2-1b"), workload=Workload(seq_len=512), plan=plan, engine=engine,
        cluster=Cluster(gpu=load_gpu(card), gpus_per_node=gpus), **job,
    )
    phases = rank_programs(asked)[0].phases
    left = live_at_end((*phases[Phase.LOAD], *phases[Phase.FIRST_STEP]))
    return [t.num_bytes for t, times in left.items() if t.name.startswith("cuBLAS") for _ in range(times)]


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("engine", TRAINING)
def test_every_engine_has_a_workspace_for_each_of_two_threads(engine: str, card: str) -> None:
    expected = workspace_bytes(load_gpu(card).compute_capability)
    assert of_step(engine, card) == [expected] * 2


@pytest.mark.parametrize("engine", TRAINING)
def test_every_engine_reads_the_environment(engine: str) -> None:
    assert of_step(engine, "h100-sxm-80gb", env={"CUBLAS_WORKSPACE_CONFIG": ":16:8"}) == [128 * KIB] * 2


def test_blackwell_has_the_larger_workspace_since_torch_2_12_and_hopper_always() -> None:
    sizes = {torch: workspace_bytes("10.0", torch=torch) for torch in ((2, 8), (2, 11), (2, 12), (2, 13))}
    assert list(sizes.values()) == [SMALL_BYTES, SMALL_BYTES, LARGE_BYTES, LARGE_BYTES]
    assert workspace_bytes("9.0", torch=(2, 0)) == workspace_bytes("12.0") == LARGE_BYTES == 32 * MIB
    assert workspace_bytes("11.0", torch=(2, 13)) == workspace_bytes(None) == SMALL_BYTES == 8_519_680
    assert workspace_bytes("8.0", torch=(1, 13)) == 0


def test_a_setting_that_cannot_be_read_leaves_the_default() -> None:
    for text, size in ((":4096:2:16:8", SMALL_BYTES), ("4096", LARGE_BYTES), ("", LARGE_BYTES), (":0:0", 0)):
        assert workspace_bytes("9.0", environment={"CUBLAS_WORKSPACE_CONFIG": text}) == size


def test_hipblas_has_its_own_sizes_and_names() -> None:
    assert workspace_bytes("gfx942") == 128 * MIB
    assert workspace_bytes("gfx90a", environment={"HIPBLAS_WORKSPACE_CONFIG": ":1024:2"}) == 2 * MIB
    assert workspace_bytes("gfx942", torch=(2, 5)) == 0


def test_cublaslt_shares_the_workspace_of_cublas_by_release_and_environment() -> None:
    unified = {"TORCH_CUBLASLT_UNIFIED_WORKSPACE": "1"}
    apart = {"TORCH_CUBLASLT_UNIFIED_WORKSPACE": "0", "CUBLASLT_WORKSPACE_SIZE": "4096"}
    assert lt_workspace_bytes(torch=(2, 10)) == MIB
    assert lt_workspace_bytes(torch=(2, 10), environment=unified) == lt_workspace_bytes(torch=(2, 13)) == 0
    assert lt_workspace_bytes(torch=(2, 13), environment=apart) == 4 * MIB
