"""cuBLAS workspaces: one function says their size, and every engine has the two of a step that differentiates."""

from vramcast.domain.cublas import LARGE_BYTES, SMALL_BYTES, lt_workspace_bytes, workspace_bytes
from vramcast.units import MIB


def test_blackwell_has_the_larger_workspace_since_torch_2_12_and_hopper_always() -> None:
    sizes = {torch: workspace_bytes("10.0", torch=torch) for torch in ((2, 8), (2, 11), (2, 12), (2, 13))}
    assert list(sizes.values()) == [SMALL_BYTES, SMALL_BYTES, LARGE_BYTES, LARGE_BYTES]
    assert workspace_bytes("9.0", torch=(2, 0)) == workspace_bytes("12.0") == LARGE_BYTES == 32 * MIB
    assert workspace_bytes("11.0", torch=(2, 13)) == workspace_bytes(None) == SMALL_BYTES == 8_519_680
    assert workspace_bytes("8.0", torch=(1, 13)) == 0


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
