"""The table of docs/formats.md: what is written, from which names, held against which parser."""

from __future__ import annotations

from typing import Final

from vramcast.api import job_of
from vramcast.catalogue.formats import format_names, load_format
from vramcast.formats.registry import EMITTERS
from vramcast.formats.write import files_of

SNAPSHOTS: Final[dict[str, tuple[str, ...]]] = {
    "accelerate-fsdp2": ("accelerate",), "accelerate-fsdp1": ("accelerate",), "llama.cpp": ("llamacpp",),
    "kubernetes": ("kubernetes",), "pytorch": (), "pai-eas": (),
}
"""Format -> its snapshots, where they have another name."""

OWN_PARSERS: Final[dict[str, str]] = {
    "deepspeed": "`DeepSpeedConfig`",
    "accelerate": "`ClusterConfig.from_yaml_file`",
    "accelerate-fsdp2": "`ClusterConfig.from_yaml_file`",
    "accelerate-fsdp1": "`ClusterConfig.from_yaml_file`",
    "transformers": "`HfArgumentParser` with `TrainingArguments`",
    "torchtitan": "`ConfigManager().parse_args`, outside CI",
    "megatron": "`add_megatron_arguments` and `validate_args`, outside CI",
    "pytorch": "a small model trained on CPU: alone, DDP, FSDP2, HSDP",
    "pai-dlc": "`CreateJobRequest().from_map`, written back",
    "kubernetes": "typed models of the clients, written back",
    "trainjob": "`TrainerV1alpha1TrainJob.from_dict`, written back",
    "skypilot": "`sky.Task.from_yaml_config`",
}
"""Format -> the parser of its own tool that tests/formats/test_validation.py calls."""


EXAMPLE: Final = {
    "model": "llama-3.1-8b", "gpus": "2x8xh100-sxm-80gb", "engine": "deepspeed", "zero": "3", "recompute": "full",
}
"""The plan whose file docs/formats.md shows."""


def example() -> str:
    """One file of the example plan, as a block of the document."""
    files, _ = files_of(job_of(EXAMPLE))
    text = next(file.text for file in files if file.name == "training_args.yaml")
    return f"```yaml\n{text}```\n"


def formats_table() -> str:
    """One line per format."""
    lines = ["| `--format` | what | plans of | names of | held against |", "|---|---|---|---|---|"]
    for name, emitter in EMITTERS.items():
        known = SNAPSHOTS.get(name, (name,) if name in format_names() else ())
        names = ", ".join(f"{load_format(snapshot).package} {load_format(snapshot).version}" for snapshot in known)
        engines = "every training engine" if len(emitter.engines) > 8 else ", ".join((*emitter.engines, *emitter.also))
        lines.append(f"| {name} | {emitter.text} | {engines} | {names or '-'} | {OWN_PARSERS.get(name, '-')} |")
    return "\n".join(lines) + "\n"
