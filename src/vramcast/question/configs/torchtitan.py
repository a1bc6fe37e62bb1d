"""A torchtitan command, and the registry function that it names; its old TOML files are said to be that.

[titan] torchtitan 0.3.0 config/configs.py, config/manager.py: `--module MODULE --config FUNCTION --section.name value`;
what a command does not say stands in the function
"""

from __future__ import annotations

import ast
import math
from typing import Any, Final

from vramcast.catalogue.formats import load_format
from vramcast.errors import InvalidSpec
from vramcast.question.configs.environment import options_of_environment, ranks_of, unread_environment
from vramcast.question.configs.reading import Config, Reading, Unread, arguments, command_of
from vramcast.question.configs.watched import Known, Watched

NAMES: Final[dict[str, str]] = {
    "parallelism.tensor_parallel_degree": "tp", "parallelism.pipeline_parallel_degree": "pp",
    "parallelism.context_parallel_degree": "cp", "parallelism.expert_parallel_degree": "ep",
    "training.seq_len": "seq-len", "training.local_batch_size": "micro-batch",
    "training.global_batch_size": "global-batch",
}

ASKED: Final = {"training.seq_len": "seq-len", "training.local_batch_size": "micro-batch",
                "activation_checkpoint.mode": "recompute"}
"""What stands in the function where a command does not say it, and the option that says it instead."""

RECOMPUTE: Final = {"none": "none", "selective": "selective", "full": "full"}

SCHEDULES: Final[dict[str, dict[str, Any]]] = {
    "1F1B": {}, "GPipe": {"schedule": "gpipe"}, "Interleaved1F1B": {"virtual-stages": 2, "schedule": "interleaved"},
}
"""Schedule -> options; the chunks a rank has at least [titan distributed/pipeline_parallel.py]."""

USUAL: Final[dict[str, tuple[Any, ...]]] = {
    "parallelism.enable_sequence_parallel": (True,), "training.dtype": ("float32",),
    "training.mixed_precision_param": ("bfloat16",), "training.mixed_precision_reduce": ("float32",),
    "training.disable_cuda_graphs": (True,), "compile.enable_async_tensor_parallel": (False,),
    "optimizer.implementation": ("fused",), "parallelism.pipeline_parallel_microbatch_size": (1,),
    "compile.backend": ("inductor",), "comm.mode": ("default",),
    "debug.deterministic": (False,), "debug.moe_force_load_balance": (False, True),
    "optimizer.name": ("AdamW",),
}
"""Names that change nothing with these values, and are not modelled with others."""

HARMLESS: Final = Known("torchtitan", "other")

POLICIES: Final = {"SelectiveAC": "selective", "FullAC": "full", "None": "none"}


def is_torchtitan(config: Config) -> bool:
    """A command with torchtitan's sections, a registry function, or one of its old files."""
    text = config.text
    return config.table is None and (
        "--parallelism." in text or "torchtitan" in text or "\n[parallelism]" in f"\n{text}" or (
            config.name.endswith(".toml") and "\n[training]" in f"\n{text}" and "\nflavor" in text)
    )


def read(config: Config) -> Reading:
    """Options of the command, or of the function.

    Raises: InvalidSpec for the TOML files of versions before 0.3
    """
    if config.name.endswith(".toml"):
        raise InvalidSpec(
            f"{config.name}: torchtitan reads no TOML since 0.3; give the command with its --section.name values"
        )
    if config.name.endswith(".py"):
        return _registry(config)
    command = command_of(config, lambda words: sum(word.startswith("--") and "." in word for word in words))
    values = Watched(arguments(command.words), undecided=command.undecided)
    options: dict[str, Any] = {"engine": "torchtitan", "shards": "everything"}
    for name, option in NAMES.items():
        if name == "training.global_batch_size" and values.get(name) == -1:
            continue  # one micro-batch a step
        if (size := values.count(name)) is not None:
            options[option] = size
    if mode := values.one_of("activation_checkpoint.mode", RECOMPUTE, option="recompute"):
        options["recompute"] = mode
    options |= _switches(values) | _sharding(values) | _pipeline(values) | options_of_environment(command.variables)
    for name, usual in USUAL.items():
        values.only(name, *usual)
    function = values.text("config") or values.text("job.config_file") or "function"
    values.get("module")
    for name, option in ASKED.items():
        if option not in options:
            why = f"stands in {function[:60]}, a file of its own; give it with another --from, or --{option}"
            values.cannot(name, why, option=option)
    unread = [one for one in values.unread() if not _is_harmless(one.name)]
    gpus, nodes = values.count("nproc_per_node"), values.count("nnodes")
    return Reading(
        "torchtitan", options, unread=(*command.unread, *unread, *unread_environment(command.variables)),
        notes=command.notes, ranks=_mesh(values) or ranks_of(gpus, nodes, command.variables),
    )


def _mesh(values: Watched) -> int | None:
    """Processes that the degrees make together; None where those that share a copy are left to the run
    [titan distributed/parallel_dims.py `_validate`]."""
    names = (f"parallelism.{name}_degree" for name in (
        "data_parallel_replicate", "data_parallel_shard", "context_parallel", "tensor_parallel", "pipeline_parallel"))
    sizes = [values.get(name, -1 if "shard" in name else 1) for name in names]
    return math.prod(sizes) if all(isinstance(size, int) and size > 0 for size in sizes) else None


def _is_harmless(name: str) -> bool:
    section, point, inner = name.partition(".")
    if not point:
        return Known("torchrun", "arguments").is_harmless(name)
    known = section in load_format("torchtitan").sections and Known("torchtitan", section).is_harmless(inner)
    return known or HARMLESS.is_harmless(section)


def _switches(values: Watched) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if values.flag("compile.enable"):
        found["compile"] = True
    values.get("compile.components")
    if values.flag("training.enable_cpu_offload"):
        found |= {"offload-optimizer": "cpu", "offload-parameters": "cpu"}
    return found


def _sharding(values: Watched) -> dict[str, Any]:
    """Copies and what shares one; whether gathered weights are freed."""
    found: dict[str, Any] = {}
    p = "parallelism.data_parallel_"
    if (copies := values.count(f"{p}replicate_degree") or 1) > 1:
        shard = values.count(f"{p}shard_degree")
        if shard is None:
            values.cannot(f"{p}shard_degree", f"is left to the run beside {copies} copies; give --shard-group",
                          option="shard-group")
        else:
            found["shard-group"] = shard * (values.count("parallelism.context_parallel_degree") or 1)
    else:
        values.get(f"{p}shard_degree")
    reshard = values.one_of("parallelism.fsdp_reshard_after_forward",
                            {"default": None, "always": "always", "never": "never"}, option="reshard-after-forward")
    if reshard == "never":
        found["reshard-after-forward"] = False
    elif reshard == "always":
        found["engine-option"] = ("reshard=always",)
    return found


def _pipeline(values: Watched) -> dict[str, Any]:
    p = "parallelism.pipeline_parallel_"
    asked = values.one_of(f"{p}schedule", SCHEDULES, option="schedule") or {}
    return dict(asked) if (values.count(f"{p}degree") or 1) > 1 else {}


def _registry(config: Config) -> Reading:
    """What a registry function says of loss, optimizer and recomputation."""
    try:
        calls = [node for node in ast.walk(ast.parse(config.text)) if isinstance(node, ast.Call)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Reading("torchtitan", {}, unread=(Unread(config.name, "is not Python that can be read"),))
    whole = [call for call in calls if ast.unparse(call.func) == "Trainer.Config"]
    if len(whole) != 1:
        return Reading("torchtitan", {}, unread=(Unread(
            "Trainer.Config", f"stands in the file {len(whole)} times; keep the function that --config names"),))
    said = {word.arg: ast.unparse(word.value) for word in whole[0].keywords if word.arg}
    values = Watched(said)
    options: dict[str, Any] = {"engine": "torchtitan"}
    policy = said.get("activation_checkpoint", "None").partition(".")[0].partition("(")[0]
    if policy in POLICIES and said.get("activation_checkpoint", "None") in ("None", f"{policy}.Config()"):
        values.get("activation_checkpoint")
        options["recompute"] = POLICIES[policy]
    loss = values.get("loss", "")
    options["loss"] = "chunked" if loss.startswith("ChunkedLossWrapper.Config(") else "eager"
    names = {word for word in ("AdamW", "Adam") if f"optimizer_name='{word}'" in values.get("optimizer", "")}
    if len(names) == 1:
        options["optimizer"] = names.pop().lower()
    else:
        values.cannot("optimizer", option="optimizer")
    model = next((ast.unparse(call) for call in calls if ast.unparse(call.func) == "model_registry"), "")
    values.get("model_spec")
    if "Float8LinearConverter" in model:
        options["engine-option"] = ("float8=true",)
    elif "converters=" in model:
        values.cannot("converters")
    unread = tuple(one for one in values.unread() if not HARMLESS.is_harmless(one.name))
    return Reading("torchtitan", options, unread=unread)
