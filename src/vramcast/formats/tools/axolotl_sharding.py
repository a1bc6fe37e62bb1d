"""How axolotl's YAML splits the work: DeepSpeed's file, FSDP's table, and model parallelism.

[ax] axolotl-ai-cloud/axolotl 0.18.0 deepspeed_configs/*.json, src/axolotl/utils/trainer.py `setup_fsdp_envs`,
`setup_parallelism_envs`, src/axolotl/utils/schemas/validation.py `check_fsdp_version_in_fsdp_config`
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from vramcast.catalogue.formats import presets
from vramcast.formats.reading import ELSEWHERE, Config, together
from vramcast.formats.tools import deepspeed
from vramcast.formats.tools.accelerate import fsdp_options
from vramcast.formats.watched import Known, Watched

DEGREES: Final = {"tensor_parallel_size": "tp", "context_parallel_size": "cp", "expert_parallel_size": "ep"}

STRATEGIES: Final = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")

DEEPSPEED: Final = presets("axolotl", "deepspeed")
"""`zero_optimization` of the files that come with axolotl."""


def read_degrees(values: Watched) -> dict[str, Any]:
    """Model parallelism, and copies of shards."""
    found: dict[str, Any] = {}
    for name, option in DEGREES.items():
        size = values.count(name)
        if size is not None and size > 1:
            found[option] = size
    older = values.count("sequence_parallel_degree")
    if older and older > 1:
        found["cp"] = older
    if "cp" in found:
        found["cp-kind"] = "ring"  # ring-flash-attn [ax monkeypatch/ring_attn]
    values.ignore("ring_attn_func", "heads_k_stride")
    copies, shards = values.count("dp_replicate_size"), values.count("dp_shard_size")
    if copies and copies > 1 and shards:
        found["shard-group"] = shards
    return found


FSDP2: Final = 2


def read_sharding(values: Watched, file: str) -> dict[str, Any]:
    """DeepSpeed's file, a table of FSDP, or neither."""
    given = values.get("deepspeed")
    if given is not None:
        return _zero(values, given, file)
    table = values.get("fsdp_config")
    words = values.get("fsdp")
    if not table and not words:
        values.get("fsdp_version")
        return {}
    if table is not None and not isinstance(table, Mapping):
        values.refuse("fsdp_config", "a table")
        return {}
    plain = {str(name).removeprefix("fsdp_"): value for name, value in (table or {}).items()}
    version = int(values.count("fsdp_version") or plain.get("version") or 1)
    plain.pop("version", None)
    inner = Watched(plain, Known("axolotl", "fsdp_config", (Known("accelerate", "fsdp_config"),)))
    values.inner["fsdp_config"] = inner
    listed = [str(word) for word in words] if isinstance(words, list) else str(words or "").split()
    wraps = "TRANSFORMER_BASED_WRAP" if "auto_wrap" in listed else "NO_WRAP"
    named = next((word.upper() for word in listed if word.upper() in STRATEGIES), None)
    # [ax loaders/model.py `_build_model`]: rank 0 loads into main memory, the others nothing
    on_host = version == FSDP2 and inner.flag("cpu_ram_efficient_loading") and values.flag("load_in_4bit")
    found = fsdp_options(inner, version=version, wrap=wraps, prefix="", strategy=named, offload="offload" in listed)
    return together(found, {"engine-option": ("loads_on_host=true",)} if on_host else {})


def _zero(values: Watched, given: Any, file: str) -> dict[str, Any]:
    """A table, or one of axolotl's own files by its name."""
    name = PurePosixPath(str(given)).name if isinstance(given, str) else ""
    if isinstance(given, Mapping):
        table = dict(given)
    elif name in DEEPSPEED:
        table = {"zero_optimization": DEEPSPEED[name], "bf16": {"enabled": "auto"},
                 "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}
    else:
        values.cannot("deepspeed", ELSEWHERE, file="deepspeed")
        return {"sharded-by": "deepspeed"}
    found = deepspeed.read(Config(file, "", table))
    for one in found.unread:
        if one.option not in ("micro-batch", "precision", "grad-accum"):
            values.refused[f"deepspeed.{one.name}"] = one._replace(name=f"deepspeed.{one.name}")
    inside = {key: value for key, value in found.options.items() if key not in ("engine", "precision")}
    return together(inside, {"sharded-by": "deepspeed", "engine-option": ("auto=false",)})
