"""What a card says of its MIG instances, asked of a library made up here."""

from types import SimpleNamespace
from typing import Any

from tests.watch.samples import CARD
from vramcast.units import GIB
from vramcast.watch.holders import Holders
from vramcast.watch.nvml import NvmlCard

SLICES = {("MIG-a", 0): 11, ("MIG-b", 1): 22}
"""(uuid, compute instance) of one GPU instance -> the process in it."""


class Library(SimpleNamespace):
    """NVML of one card with one GPU instance that two compute instances share; what it lacks is not supported."""

    class NVMLError(Exception):
        value = 3

    class NVMLError_FunctionNotFound(NVMLError):
        pass

    NVMLError_ArgumentVersionMismatch = NVMLError_FunctionNotFound
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_ERROR_FUNCTION_NOT_FOUND = 13
    nvmlMemory_v2 = 0

    def __init__(self) -> None:
        slices = list(SLICES)
        of_slice = {uuid: entry(pid, compute) for (uuid, compute), pid in SLICES.items()}
        memory = SimpleNamespace(total=20 * GIB, used=8 * GIB, free=12 * GIB, reserved=0)
        super().__init__(
            nvmlDeviceGetMemoryInfo=lambda *_: memory, nvmlDeviceGetMigMode=lambda _: (1, 1),
            nvmlDeviceGetMaxMigDeviceCount=lambda _: 2,
            nvmlDeviceGetMigDeviceHandleByIndex=lambda _, index: slices[index][0],
            nvmlDeviceGetUUID=lambda handle: handle, nvmlDeviceGetName=lambda handle: "H100 MIG 1c.2g.20gb",
            nvmlDeviceGetGpuInstanceId=lambda _: 5, nvmlDeviceGetComputeInstanceId=dict(slices).__getitem__,
            nvmlDeviceGetComputeRunningProcesses=lambda handle: (
                [of_slice[handle]] if handle in of_slice else list(of_slice.values())
            ),
        )



def entry(pid: int, compute: int) -> Any:
    return SimpleNamespace(pid=pid, usedGpuMemory=pid * GIB, gpuInstanceId=5, computeInstanceId=compute)


def test_processes_of_compute_instances_that_share_memory_are_told_apart() -> None:
    library: Any = Library()
    card = NvmlCard(library, "card", CARD, Holders())
    found = card.read(1.0)
    assert [part.uuid for part in found.partitions] == ["MIG-a", "MIG-b"]
    assert {one.pid: one.partition for one in found.processes} == {11: "MIG-a", 22: "MIG-b"}
    assert found.held_bytes == 33 * GIB  # each once
