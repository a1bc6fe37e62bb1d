"""Rows of single operators, their real PyTorch code run on the simulated card: `python -m truth.traced_kernels FILE...`

Prints per kernel and provider how many rows are exact to the byte (the measured MiB went through fp32, so exact means
the same number in fp32), how many within 1 %, and what is refused and why.
"""

from __future__ import annotations

import argparse
import gc
import json
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from truth.contract import Refused
from truth.rows.kernels.harness import Case, case_of
from vramcast.units import MIB

EAGER: Final = frozenset({"huggingface", "torch", "megatron", "megatron-unfused", "deepspeed_tiled"})
CARDS: Final = {
    "NVIDIA A100-SXM4-80GB": "a100-sxm4-80gb", "NVIDIA A100-SXM4-40GB": "a100-sxm4-40gb",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb", "NVIDIA GeForce RTX 3090": "rtx-3090",
    "NVIDIA GeForce RTX 4090": "rtx-4090", "NVIDIA H100 80GB HBM3": "h100-sxm-80gb",
    "NVIDIA H100 PCIe": "h100-pcie-80gb", "NVIDIA H100 NVL": "h100-nvl-94gb", "NVIDIA H200": "h200-sxm-141gb",
    "NVIDIA L40S": "l40s", "NVIDIA B200": "b200-180gb",
}
CLOSE: Final = 0.01
INFERRED: Final = frozenset({"fused_linear_cpo_loss", "fused_linear_orpo_loss"})
"""Kernels whose setup holds an allowance that these very rows told (`LEFT_BY_COMPILED`): they prove less."""


class Scored(NamedTuple):
    """One row."""

    group: str
    row: dict[str, Any]
    predicted_bytes: int | None
    refused: str = ""

    @property
    def error(self) -> float:
        """Relative."""
        assert self.predicted_bytes is not None
        return self.predicted_bytes / (self.row["measured_mb_p50"] * MIB) - 1

    @property
    def is_exact(self) -> bool:
        """Whether the prediction is the measured number, which went through fp32 on its way into the row."""
        assert self.predicted_bytes is not None
        return _as_fp32(self.predicted_bytes / MIB) == self.row["measured_mb_p50"]


def _as_fp32(value: float) -> float:
    """The nearest number that fp32 holds."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def setups() -> dict[str, Callable[[Case], Any]]:
    """Kernel -> what builds its benchmark."""
    from truth.kernel_code import attention, experts, layers, losses, megatron

    return {
        "cross_entropy": losses.cross_entropy,
        "distill_cosine_loss": losses.distillation,
        "distill_jsd_loss": losses.distillation,
        "fused_add_rms_norm": layers.fused_add_rms_norm,
        "fused_linear_cpo_loss": losses.preference,
        "fused_linear_cross_entropy": losses.fused_linear_cross_entropy,
        "fused_linear_jsd": losses.fused_linear_jsd,
        "fused_linear_simpo_loss": losses.preference,
        "fused_linear_grpo_loss_sequence": losses.grpo,
        "fused_linear_grpo_loss_token": losses.grpo,
        "fused_linear_orpo_loss": losses.preference,
        "fused_moe": experts.fused_moe,
        "fused_neighborhood_attention": attention.neighborhood_attention,
        "geglu": layers.gated_mlp,
        "group_norm": layers.group_norm,
        "jsd": losses.jsd,
        "kl_div": losses.kl_div,
        "layer_norm": layers.layer_norm,
        "llama4_rope": layers.llama4_rope,
        "megatron_cross_entropy": megatron.cross_entropy,
        "megatron_rms_norm": megatron.rms_norm,
        "megatron_swiglu": megatron.swiglu,
        "multi_token_attention": attention.multi_token_attention,
        "relu_squared": layers.relu_squared,
        "rms_norm": layers.rms_norm,
        "rope": layers.rope,
        "softmax": layers.softmax,
        "sparse_multi_token_attention": attention.sparse_multi_token_attention,
        "sparsemax": losses.sparsemax,
        "swiglu": layers.gated_mlp,
        "tiled_geglu": layers.tiled_mlp,
        "tiled_swiglu": layers.tiled_mlp,
        "tvd": losses.tvd,
    }


def traced_peak(row: dict[str, Any]) -> int:
    """The peak of the row's code on the row's card [bytes].

    Raises: Refused for kernels, providers and cards that are not built.
    """
    import torch

    from truth.kernel_code.bench import peak_bytes
    from truth.kernel_code.releases import newest, simulated
    from vramcast.catalogue.gpus import load_gpu
    from vramcast.tracing.session import Session

    case = case_of(row)
    if row["provider"] not in EAGER:
        raise Refused(f"provider {row['provider']} is no eager PyTorch")
    setup = setups().get(row["kernel"])
    if setup is None:
        raise Refused(f"kernel {row['kernel']} is not built")
    mode = "full" if row["kernel"] == "group_norm" else case.mode
    session = Session(load_gpu(CARDS[row["gpu"]]))
    with simulated(newest(case.timestamp)), session.active():
        if mode == "forward":  # the others ran before in the same process: the library has both its workspaces
            peak_bytes(setup(case), "full")
            gc.collect()
            torch.cuda.empty_cache()
        peak = peak_bytes(setup(case), mode)
    del session
    gc.collect()
    return peak


def scored(rows: list[dict[str, Any]]) -> Iterator[Scored]:
    """Every row."""
    for row in rows:
        group = f"{row['kernel']}/{row['provider']}" + (" [suspect]" if row.get("suspect") else "")
        try:
            yield Scored(group, row, traced_peak(row))
        except Refused as reason:
            yield Scored(group, row, None, str(reason))


def report(results: list[Scored], *, list_rows: bool) -> str:
    """The table."""
    lines = [f"{'group':44} {'rows':>5} {'pred':>5} {'exact':>6} {'<= 1%':>6} {'worst':>9}"]
    for group in sorted({result.group for result in results}):
        mine = [result for result in results if result.group == group]
        lines += _group_lines(group, mine)
        if list_rows:
            lines += [_row_line(result) for result in mine if result.predicted_bytes is not None]
    bar = [result for result in results if result.row["provider"] in EAGER and not result.row.get("suspect")]
    lines.append(_total("eager, not suspect", bar))
    lines.append(_total(
        "of them with an allowance inferred from the rows", [row for row in bar if row.row["kernel"] in INFERRED]
    ))
    return "\n".join(lines)


def _total(name: str, results: list[Scored]) -> str:
    done = [result for result in results if result.predicted_bytes is not None]
    exact, close = sum(result.is_exact for result in done), sum(abs(result.error) <= CLOSE for result in done)
    share = max(1, len(results))
    return (
        f"{name}: {len(results)} rows, {len(done)} predicted, {exact} exact ({exact / share:.1%}), "
        f"{close} within 1% ({close / share:.1%})"
    )


def _group_lines(group: str, mine: list[Scored]) -> Iterator[str]:
    done = [result for result in mine if result.predicted_bytes is not None]
    worst = max((result.error for result in done), key=abs, default=None)
    exact, close = sum(result.is_exact for result in done), sum(abs(result.error) <= CLOSE for result in done)
    yield (
        f"{group:44} {len(mine):5} {len(done):5} {exact:6} {close:6} "
        f"{'-' if worst is None else format(worst, '+.3%'):>9}"
    )
    for reason, count in Counter(result.refused for result in mine if result.refused).items():
        yield f"    refused {count}: {reason}"


def _row_line(result: Scored) -> str:
    row, predicted = result.row, result.predicted_bytes or 0
    missing = predicted - round(row["measured_mb_p50"] * MIB)
    return (
        f"    {row['mode']:8} {row['x_name']}={row['x_value']:8} {row['gpu']:26} "
        f"measured {row['measured_mb_p50']:.6f} MiB, {missing:+,} B"
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--rows", action="store_true", help="list every row")
    parser.add_argument("--kernel", help="only this kernel")
    options = parser.parse_args()
    rows = [json.loads(line) for file in options.files for line in file.read_text(encoding="utf-8").splitlines()]
    if options.kernel:
        rows = [row for row in rows if row["kernel"] == options.kernel]
    print(report(list(scored(rows)), list_rows=options.rows))


if __name__ == "__main__":
    main()
