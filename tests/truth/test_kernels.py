"""The benchmark harness of the kernel rows, against what was measured."""

import json
from typing import Any

import pytest

from truth.contract import Refused
from truth.rows.kernels import predict

MIB = 1 << 20


def row(**fields: Any) -> dict[str, Any]:
    """A row of the A100 runs of September 2024 unless said otherwise."""
    default: dict[str, Any] = {
        "kernel": "cross_entropy", "provider": "huggingface", "mode": "full", "x_name": "V", "x_value": "4096",
        "config": json.dumps({"B": 8, "T": 2048}), "measured_mb_p50": 1.0, "gpu": "NVIDIA A100-SXM4-80GB",
        "liger_version": "0.2.1",
    }
    return default | fields


def mebibytes(**fields: Any) -> float:
    """The prediction of one row [MiB]."""
    return next(iter(predict(row(**fields)))).predicted / MIB


def test_liger_cross_entropy_is_one_copy_of_the_logits() -> None:
    assert mebibytes(provider="liger", x_value="8192") == pytest.approx(512.32861328125, abs=1e-4)


@pytest.mark.parametrize("fields", [
    {"kernel": "no_such_kernel"}, {"provider": "no_such_provider"}, {"gpu": "no such card"}, {"config": "{}"},
    {"kernel": "multi_token_attention"}, {"mode": "no_such_mode"},
])
def test_what_is_not_modelled_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        predict(row(**fields))
