"""Snapshots of packages that are installed where the tool runs."""

from __future__ import annotations

import dataclasses
import importlib
import typing
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any, Final, NamedTuple

from tools.snapshots.names import Section, entry, of_type

Sections = dict[str, Section]


class Found(NamedTuple):
    """What one package declares."""

    package: str
    version: str
    how: str
    sections: Sections
    removed: dict[str, dict[str, str]] = {}


class _Recording(dict[str, Any]):
    """A configuration that notes which names its reader asks for."""

    def __init__(self, values: dict[str, Any] | None = None) -> None:
        super().__init__(values or {})
        self.asked: list[str] = []

    def __contains__(self, key: object) -> bool:
        self.asked.append(str(key))
        return super().__contains__(key)

    def __getitem__(self, key: str) -> Any:
        self.asked.append(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.append(key)
        return super().get(key, default)

    def keys(self) -> Any:
        return self  # `NAME in config.keys()` asks for NAME

    def __copy__(self) -> _Recording:
        return self


DEEPSPEED_MODELS: Final = {
    "zero_optimization": ("deepspeed.runtime.zero.config", "DeepSpeedZeroConfig"),
    "offload_optimizer": ("deepspeed.runtime.zero.offload_config", "DeepSpeedZeroOffloadOptimizerConfig"),
    "offload_param": ("deepspeed.runtime.zero.offload_config", "DeepSpeedZeroOffloadParamConfig"),
    "bf16": ("deepspeed.runtime.precision_config", "DeepSpeedBF16Config"),
    "fp16": ("deepspeed.runtime.precision_config", "DeepSpeedFP16Config"),
}
"""Section -> the pydantic model that reads it."""

DEEPSPEED_READ_ELSEWHERE: Final = (
    "optimizer", "scheduler", "tensor_parallel", "data_efficiency", "compile", "zenflow", "tensorboard", "wandb",
    "csv_monitor", "comet", "aio", "checkpoint", "data_types", "nebula", "autotuning", "flops_profiler", "comms_logger",
)
"""Sections that other modules than runtime/config.py read; each is kept if its text stands in the package."""


def deepspeed() -> Found:
    """Top-level names by recording what the reader asks a configuration for; sections from their pydantic models."""
    config = importlib.import_module("deepspeed.runtime.config")
    asked, checkpointing = _Recording({"train_micro_batch_size_per_gpu": 1}), _Recording()
    dict.__setitem__(asked, "activation_checkpointing", checkpointing)
    config.DeepSpeedConfig(asked)
    sections: Sections = {"config": {name: entry() for name in sorted(set(asked.asked))}}
    sections["config"] |= {name: entry(kind="map") for name in DEEPSPEED_READ_ELSEWHERE if name != "nebula"}
    for name, (module, model) in DEEPSPEED_MODELS.items():
        sections[name] = _pydantic_fields(getattr(importlib.import_module(module), model))
    sections["activation_checkpointing"] = {name: entry() for name in sorted(set(checkpointing.asked))}
    _point(sections, "config", ("zero_optimization", "bf16", "fp16", "activation_checkpointing"))
    _point(sections, "zero_optimization", ("offload_optimizer", "offload_param"))
    removed = {"config": config._REMOVED_TOP_LEVEL_CONFIG_KEYS, "zero_optimization": config._REMOVED_ZERO_CONFIG_KEYS}
    for section, names in removed.items():
        for name in names:
            sections[section].pop(name, None)
    sentences = {section: {name: _first_sentence(text) for name, text in found.items()}
                 for section, found in removed.items()}
    return Found("deepspeed", version("deepspeed"), "DeepSpeedConfig and its pydantic models", sections, sentences)


def _first_sentence(text: str) -> str:
    return " ".join(text.split()).split(" See http")[0].rstrip(".")


def _point(sections: Sections, owner: str, names: tuple[str, ...]) -> None:
    for name in names:
        sections[owner][name] = entry(section=name)


def _pydantic_fields(model: Any) -> Section:
    found: Section = {}
    for name, field in model.model_fields.items():
        kind, choices = of_type(field.annotation)
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        found[field.alias or name] = entry(
            kind=kind, choices=choices, default=field.default, deprecated=bool(extra.get("deprecated")),
            required=field.is_required(),
        )
    return found


def accelerate() -> Found:
    """Fields of ClusterConfig; nested names are the options of `accelerate launch` by their prefix."""
    config = importlib.import_module("accelerate.commands.config.config_args").ClusterConfig
    parser = importlib.import_module("accelerate.commands.launch").launch_command_parser()
    launch = {
        action.dest: entry(kind=_option_kind(action), choices=_choices(action), default=action.default)
        for action in parser._actions if action.dest != "help"
    }
    sections: Sections = {"config": {f.name: entry(kind=of_type(f.type)[0]) for f in dataclasses.fields(config)}}
    for prefix in ("fsdp", "parallelism_config", "megatron_lm"):
        name = prefix if prefix.endswith("config") else f"{prefix}_config"
        sections[name] = {option: e for option, e in launch.items() if option.startswith(f"{prefix}_")}
    deepspeed_names = ("zero_stage", "zero3", "offload_", "deepspeed_", "gradient_")
    sections["deepspeed_config"] = {n: e for n, e in launch.items() if n.startswith(deepspeed_names)}
    sections["dynamo_config"] = {n: e for n, e in launch.items() if n.startswith("dynamo_")}
    sections["launch"] = launch
    _point(sections, "config", tuple(name for name in sections if name.endswith("_config")))
    how = "ClusterConfig, and the options of accelerate launch for what is nested"
    return Found("accelerate", version("accelerate"), how, sections)


def _choices(action: Any) -> list[Any]:
    """What an option takes; numbers as the YAML file holds them."""
    return [int(text) if str(text).isdecimal() else text for text in action.choices or ()]


def _option_kind(action: Any) -> str:
    """Kind of a command line option; accelerate's truth values are texts that it converts."""
    kind = {int: "int", float: "number", str: "any"}.get(action.type, "any")
    return "flag" if action.nargs == 0 else kind


def transformers() -> Found:
    """Fields of the dataclass TrainingArguments."""
    found = _dataclass_fields(importlib.import_module("transformers").TrainingArguments)
    names = importlib.import_module("transformers.training_args").OptimizerNames
    found["optim"]["choices"] = [member.value for member in names]
    how = "dataclass TrainingArguments and the enumeration of its optimizers"
    return Found("transformers", version("transformers"), how, {"TrainingArguments": found})


def _dataclass_fields(owner: Any) -> Section:
    found: Section = {}
    for field in dataclasses.fields(owner):
        kind, choices = of_type(field.type)
        found[field.name] = entry(kind=kind, choices=choices, default=field.default)
    return found


def pai_dlc() -> Found:
    """Models of the SDK by the names they have on the wire."""
    module = importlib.import_module("alibabacloud_pai_dlc20201203.models")
    sections: Sections = {}
    waiting = ["CreateJobRequest"]
    while waiting:
        name = waiting.pop(0)
        if name not in sections:
            sections[name] = _wire_names(getattr(module, name), waiting, module)
    package = "alibabacloud_pai_dlc20201203"
    return Found(package, version(package), "models of its SDK reachable from CreateJobRequest", sections)


def _wire_names(model: Any, waiting: list[str], module: Any) -> Section:
    """Wire names show where an instance with a marker in every field is written out."""
    names = vars(importlib.import_module(model.__module__)) | {"main_models": module}
    kinds = typing.get_type_hints(model.__init__, names)
    kinds.pop("return", None)
    found: Section = {}
    for name, annotation in kinds.items():
        wire = _wire_name(model, name)
        inner = _inner(annotation)
        if hasattr(inner, "from_map"):
            waiting.append(inner.__name__)
            found[wire] = entry(section=inner.__name__)
        else:
            found[wire] = entry(kind=of_type(annotation)[0])
    return found


class _Marker:
    """A value that can be written out wherever the SDK expects a text, a model, a list or a mapping of them."""

    def to_map(self) -> str:
        return "written"

    def items(self) -> list[tuple[str, _Marker]]:
        return [("key", self)]

    def __iter__(self) -> Iterator[_Marker]:
        return iter([self])

    def validate(self) -> None:
        return None


def _wire_name(model: Any, name: str) -> str:
    written = model(**{name: _Marker()}).to_map()
    filled = [key for key, value in written.items() if value]
    return str(filled[0] if filled else next(iter(written)))


def _inner(annotation: Any) -> Any:
    arguments = typing.get_args(annotation)
    return _inner(arguments[0]) if typing.get_origin(annotation) is list else annotation


KUBERNETES_ROOTS: Final = ("KubeflowOrgV1PyTorchJob", "V1Deployment", "V1Service", "V1ConfigMap")


def kubernetes() -> Found:
    """PyTorchJob, Deployment, Service and ConfigMap: models of the Kubeflow and Kubernetes clients."""
    kubeflow = importlib.import_module("kubeflow.training.models")
    client = importlib.import_module("kubernetes.client.models")
    sections: Sections = {}
    waiting = list(KUBERNETES_ROOTS)
    while waiting:
        name = waiting.pop(0)
        if name in sections:
            continue
        model = getattr(kubeflow, name, None) or getattr(client, name)
        sections[name] = {}
        for field, text in model.openapi_types.items():
            if text.startswith("dict(str, Kubeflow"):  # a table of tables: checked where it is written
                waiting.append(text.removeprefix("dict(str, ").removesuffix(")"))
            inner = text.removeprefix("list[").removesuffix("]")
            is_model = hasattr(client, inner) or hasattr(kubeflow, inner)
            wire = model.attribute_map[field]
            if is_model and wire not in ("status", "managedFields"):
                waiting.append(inner)
                sections[name][wire] = entry(section=inner)
            else:
                kind = {"str": "text", "int": "int", "bool": "bool", "float": "number"}.get(text, "any")
                kind = "list" if text.startswith("list[") else "map" if text.startswith("dict(") else kind
                sections[name][wire] = entry(kind=kind)
    how = f"models of its client and of kubernetes {version('kubernetes')}"
    return Found("kubeflow-training", version("kubeflow-training"), how, sections)


def trainjob() -> Found:
    """TrainJob v1alpha1: pydantic models of the trainer's API."""
    module = importlib.import_module("kubeflow_trainer_api.models")
    sections: Sections = {}
    waiting = ["TrainerV1alpha1TrainJob"]
    while waiting:
        name = waiting.pop(0)
        if name in sections:
            continue
        fields = getattr(module, name).model_fields
        sections[name] = _pydantic_fields(getattr(module, name))
        for field, info in fields.items():
            inner = next((part for part in _models_in(info.annotation)), None)
            wire = info.alias or field
            if inner is not None and wire not in ("status", "managedFields"):
                waiting.append(inner.__name__)
                sections[name][wire] = entry(section=inner.__name__, required=info.is_required())
    return Found("kubeflow-trainer-api", version("kubeflow-trainer-api"), "its pydantic models", sections)


def _models_in(annotation: Any) -> list[Any]:
    if hasattr(annotation, "model_fields"):
        return [annotation]
    if typing.get_origin(annotation) is dict:
        return []
    return [model for part in typing.get_args(annotation) for model in _models_in(part)]


def skypilot() -> Found:
    """The JSON schemas of a task, its resources and its service."""
    schemas = importlib.import_module("sky.utils.schemas")
    sections: Sections = {
        "task": _schema_names(schemas.get_task_schema()),
        "resources": _schema_names(schemas.get_resources_schema()),
        "service": _schema_names(schemas.get_service_schema()),
    }
    service = schemas.get_service_schema()["properties"]
    sections["readiness_probe"] = _schema_names(service["readiness_probe"]["anyOf"][1])
    sections["replica_policy"] = _schema_names(service["replica_policy"])
    _point(sections, "task", ("resources", "service"))
    _point(sections, "service", ("readiness_probe", "replica_policy"))
    return Found("skypilot", version("skypilot"), "its JSON schemas of tasks, resources and services", sections)


SCHEMA_KINDS: Final = {
    "string": "text", "integer": "int", "number": "number", "boolean": "bool", "array": "list", "object": "map",
}


def _schema_names(schema: dict[str, Any]) -> Section:
    found: Section = {}
    for name, value in schema["properties"].items():
        kinds = value.get("type", [])
        kinds = [kind for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind != "null"]
        kind = SCHEMA_KINDS[kinds[0]] if len(kinds) == 1 else "any"
        found[name] = entry(kind=kind, choices=value.get("enum", ()), required=name in schema.get("required", ()))
    return found


READERS: Final[dict[str, Callable[[], Found]]] = {
    "deepspeed": deepspeed,
    "accelerate": accelerate,
    "transformers": transformers,
    "pai-dlc": pai_dlc,
    "kubernetes": kubernetes,
    "trainjob": trainjob,
    "skypilot": skypilot,
}
"""Format -> how its package is read."""
