"""LLaMA-Factory's YAML for Megatron (`USE_MCA=1`): its own names, and those of Megatron-LM that mcore_adapter takes.

[mca] alibaba/ROLL mcore_adapter/src/mcore_adapter/{training_args,models/model_config}.py, trainer/trainer.py: fusions
are off where nobody says them, gradients are as wide as weights, recomputation of whole layers is of every one
[LF] hiyouga/LLaMA-Factory ff6d4d12e src/llamafactory/train/mca/workflow.py
"""

from __future__ import annotations

import math
from typing import Any, Final

from vramcast.errors import Note
from vramcast.formats.reading import Config, Reading, together
from vramcast.formats.tools import megatron
from vramcast.formats.tools.llamafactory import CUTOFF, FACTORY, FROZEN, PIXELS, STAGES
from vramcast.formats.tools.megatron_bridge import OF_THE_HUB
from vramcast.formats.watched import Watched

DEFAULTS: Final[dict[str, Any]] = {
    "make-vocab-size-divisible-by": 1, "no-gradient-accumulation-fusion": True, "no-masked-softmax-fusion": True,
    "no-bias-dropout-fusion": True, "bf16": True,
}
"""What it has otherwise than Megatron-LM where nobody says it, by the names of that."""

NEGATED: Final = {"bias_activation_fusion": "no-bias-swiglu-fusion", "apply_rope_fusion": "no-rope-fusion"}
"""Switch, off unasked -> the argument that says its opposite."""

PASSED: Final = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "expert_model_parallel_size",
    "expert_tensor_parallel_size", "sequence_parallel", "recompute_granularity", "recompute_method",
    "recompute_num_layers", "cross_entropy_loss_fusion", "moe_layer_recompute", "moe_token_dispatcher_type",
    "moe_grouped_gemm", "moe_shared_expert_overlap", "moe_router_dtype", "use_distributed_optimizer",
    "overlap_grad_reduce", "overlap_param_gather", "optimizer_cpu_offload", "optimizer_offload_fraction",
    "accumulate_allreduce_grads_in_fp32", "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
)
"""Arguments that Megatron-LM has by the same name."""


def read(config: Config) -> Reading:
    """What `llamafactory-cli train` trains where USE_MCA is set."""
    table = dict(config.table or {})
    given = {name: table.pop(name) for name in (*PASSED, *NEGATED) if name in table}
    values = Watched(table, FACTORY)
    values.ignore("do_train", "bf16", "template", "finetuning_type")
    values.only("finetuning_type", "full")
    objective = values.one_of("stage", STAGES, option="objective") or "sft"
    if objective not in ("pretrain", "sft"):
        values.cannot("stage", "{} is not modelled for megatron", objective, option="objective")
    batch = {"micro": values.count("per_device_train_batch_size") or 8,
             "accumulation": values.count("gradient_accumulation_steps") or 1}
    read_by = megatron.read(Config(config.name, "", {
        "MODEL_ARGS": _arguments(given) | {"--micro-batch-size": batch["micro"]}}))
    length = values.count("cutoff_len") or CUTOFF
    frozen = [part for name, (part, usual) in FROZEN.items()
              if (usual if (flag := values.flag(name)) is None else flag)]
    options = together(read_by.options, {
        "objective": objective, "seq-len": length, "image-size": math.isqrt(values.count("image_max_pixels") or PIXELS),
        "freeze": ",".join(frozen),
        "engine-option": () if given.get("accumulate_allreduce_grads_in_fp32") else ("accumulate_in_fp32=false",),
    })
    for name in ("micro-batch", "global-batch"):
        options.pop(name, None)
    if model := values.text("model_name_or_path"):
        options["model"] = model
    unread = (*values.unread(), *(one for one in read_by.unread if one.name != "--seq-length"
                                  and not (one.of_network and one.name.startswith(OF_THE_HUB))))
    notes = () if "cutoff_len" in values else (Note("cutoff_len is not given: {}, as LLaMA-Factory has it", CUTOFF),)
    return Reading("llamafactory-megatron", options, {}, batch, unread, (*read_by.notes, *notes))


def _arguments(given: dict[str, Any]) -> dict[str, Any]:
    """Those of Megatron-LM."""
    found = {f"--{name}": value for name, value in DEFAULTS.items()}
    found |= {f"--{name.replace('_', '-')}": given[name] for name in PASSED if given.get(name) is not None}
    found |= {f"--{opposite}": not given.get(name) for name, opposite in NEGATED.items()}
    if given.get("recompute_granularity") == "full" and not given.get("recompute_method"):
        found |= {"--recompute-method": "uniform", "--recompute-num-layers": 1}
    return found
