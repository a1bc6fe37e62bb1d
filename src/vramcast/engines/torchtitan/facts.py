"""What torchtitan did when: the behaviours that move memory, by the date of the commit that brought them.

[titan] pytorch/torchtitan, path and commit at each fact.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from vramcast.errors import InvalidSpec

EXPANDABLE_SINCE: Final = "2024-10-22"
"""run_llama_train.sh sets expandable_segments:True [titan a5e57e4a9]."""
LOSS_CASTS_SINCE: Final = "2024-10-22"
"""The loss function converts logits to fp32; before, the model's last line did [titan e10cb9494, train.py]."""
PREDICTION_FREED_SINCE: Final = "2024-06-12"
"""`del pred` before backward [titan e29b6b4d4, train.py]."""
COMPILED_LOSS_SINCE: Final = "2025-04-02"
"""torch.compile covers the loss [titan bbb1b616e, components/loss.py]."""
FUSED_NORM_SINCE: Final = "2025-04-15"
"""nn.RMSNorm instead of a norm written out in fp32 [titan a581e4fe8, models/norms.py]."""
FUSED_OPTIMIZER_SINCE: Final = "2025-03-01"
"""optimizer.implementation = "fused" by default [titan config_manager.py]."""
SPLIT_ROOT_SINCE: Final = "2025-07-28"
"""Embedding and head are FSDP units of their own [titan 83e694105, parallelize.py `apply_fsdp`]."""
GROUPED_ATTENTION_SINCE: Final = "2026-02-02"
"""enable_gqa instead of repeat_kv [titan 2b0a4a30a, models/common/attention.py]."""
CHUNKED_LOSS_SINCE: Final = "2026-05-01"
"""ChunkedCELoss: the head runs chunk by chunk, forward and backward [titan 37fe579a2, components/loss.py]."""
ABS_SAVED_UNTIL: Final = "2025-02-06"
"""Selective recomputation kept abs(x) of every float8 cast [titan parallelize_llama.py `_save_list`]."""
MICROBATCH_SIZE_SINCE: Final = "2025-04-07"
"""Pipeline micro-batches hold one sample by default; before, there were as many as stages [titan 5e2033c75]."""
GRAPH_KEEPS_PRODUCTS_SINCE: Final = "2026-03-24"
"""The graph trainer's default policy keeps every matrix product [titan 25b7e0675, experiments/graph_trainer]."""
FUSED_QKV_SINCE: Final = "2026-04-16"
"""One product makes queries, keys and values [titan ad7a86533, models/common/attention.py `FusedQKVLinear`]."""
GRAPH_CHUNKED_LOSS_SINCE: Final = "2026-06-16"
"""The graph trainer swapped the chunked loss for the whole one until then [titan e6ef9ba8a]."""
PAIRED_POSITIONS: Final = ("2025-07-14", "2026-06-25")
"""Since when and until when positions had to divide by 2 even without context parallelism [titan 6204cdff9, 565cb810c,
parallel_dims.py `seq_len_divisor`]."""
FOLDED_BATCH_SINCE: Final = "2026-08-20"
"""The samples of a micro-batch are one sequence: their tokens together are divided [titan 73aed7f6c, trainer.py]."""
OUTPUTS_DROPPED_SINCE: Final = "2025-10-22"
"""schedule.step(return_outputs=False): the last stage keeps no logits [titan e5ef99aab, train.py]."""

EXCHANGES_KEPT_SINCE: Final = "2025-09-06"
"""Selective recomputation keeps what comes out of all-to-alls [titan c4e229115, `_save_list`]."""
IN_ORDER: Final = ("2025-11-21", "2026-04-06")
"""Experts' rows were put back in order, turned into fp32 and multiplied by their scores; before and since, they are
scored in fp32 and added where their tokens are [titan models/common/moe.py, e1f7f318a to 8bc267dea]."""
FP32_GATE: Final = ("2026-03-04", "2026-04-02")
"""The gate computed in fp32 under autocast [titan models/common/moe/moe.py, ab5ed59f8 to fe80b63cf]."""

LATEST: Final = "2099-01-01"


class Facts(NamedTuple):
    """The behaviours of one version."""

    expandable: bool
    loss_casts: bool
    frees_prediction: bool
    compiles_loss: bool
    fused_norm: bool
    fused_optimizer: bool
    split_root: bool
    grouped_attention: bool
    chunked_loss: bool
    saves_abs: bool
    one_sample_microbatches: bool
    graph_keeps_products: bool
    fused_qkv: bool
    drops_outputs: bool
    graph_chunked_loss: bool
    pairs_positions: bool
    folds_batch: bool
    keeps_exchanges: bool
    experts_in_order: bool
    fp32_gate: bool


def facts(version: str = "") -> Facts:
    """Behaviours of the version of a date ("2025-02-06"); the latest when none is given.

    Raises: InvalidSpec for anything that is not a date.
    """
    if version and not re.fullmatch(r"\d{4}-\d{2}(-\d{2})?", version):
        raise InvalidSpec(f"torchtitan version {version[:40]!r} is no date; use a year and month, as in 2025-02")
    date = version or LATEST
    return Facts(
        expandable=date >= EXPANDABLE_SINCE,
        loss_casts=date >= LOSS_CASTS_SINCE,
        frees_prediction=date >= PREDICTION_FREED_SINCE,
        compiles_loss=date >= COMPILED_LOSS_SINCE,
        fused_norm=date >= FUSED_NORM_SINCE,
        fused_optimizer=date >= FUSED_OPTIMIZER_SINCE,
        split_root=date >= SPLIT_ROOT_SINCE,
        grouped_attention=date >= GROUPED_ATTENTION_SINCE,
        chunked_loss=date >= CHUNKED_LOSS_SINCE,
        saves_abs=date < ABS_SAVED_UNTIL,
        one_sample_microbatches=date >= MICROBATCH_SIZE_SINCE,
        graph_keeps_products=date >= GRAPH_KEEPS_PRODUCTS_SINCE,
        fused_qkv=date >= FUSED_QKV_SINCE,
        drops_outputs=date >= OUTPUTS_DROPPED_SINCE,
        graph_chunked_loss=date >= GRAPH_CHUNKED_LOSS_SINCE,
        pairs_positions=PAIRED_POSITIONS[0] <= date < PAIRED_POSITIONS[1],
        folds_batch=date >= FOLDED_BATCH_SINCE,
        keeps_exchanges=date >= EXCHANGES_KEPT_SINCE,
        experts_in_order=IN_ORDER[0] <= date < IN_ORDER[1],
        fp32_gate=FP32_GATE[0] <= date < FP32_GATE[1],
    )
