"""Which tool's files are read and which are written, by whose module: one row a format.

Recognising a file loads none of the modules; each reads and writes its own tool's names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from vramcast.engines.training import TRAINING
from vramcast.formats.reading import Config

Recogniser = Callable[[Config], bool]


class Reader(NamedTuple):
    """One format."""

    module: str  # of `vramcast.formats.tools`; its `read` makes a `Reading` of a `Config`
    command: str  # of vramcast that it is for
    recognises: Recogniser


def _table_has(*names: str) -> Recogniser:
    """A table with one of these names."""
    return lambda config: config.table is not None and any(name in config.table for name in names)


def _is_megatron(config: Config) -> bool:
    """A script or a table with two of Megatron-LM's names."""
    names = ("tensor_model_parallel_size", "num_layers", "micro_batch_size", "use_distributed_optimizer")
    if config.table is not None:
        return sum(name in config.table for name in names) >= 2
    return sum(f"--{name.replace('_', '-')}" in config.text for name in names) >= 2


def _is_vllm(config: Config) -> bool:
    """A `vllm serve` command, or a table with its names."""
    if config.table is not None:
        return any(name.replace("-", "_") in ("gpu_memory_utilization", "max_model_len", "max_num_seqs")
                   for name in config.table)
    return any(name in config.text for name in ("vllm serve", "vllm.entrypoints", "vllm/vllm-openai"))


def _is_sglang(config: Config) -> bool:
    return config.table is None and any(name in config.text for name in ("sglang.launch_server", "sglang serve"))


def _is_torchtitan(config: Config) -> bool:
    """A command with torchtitan's sections, a registry function, or one of its old files."""
    text = config.text
    return config.table is None and (
        "--parallelism." in text or "torchtitan" in text or "\n[parallelism]" in f"\n{text}" or (
            config.name.endswith(".toml") and "\n[training]" in f"\n{text}" and "\nflavor" in text)
    )


READERS: Final[dict[str, Reader]] = {
    "deepspeed": Reader("deepspeed", "train", _table_has(
        "zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size")),
    "accelerate": Reader("accelerate", "train", _table_has("distributed_type", "compute_environment")),
    "megatron": Reader("megatron", "train", _is_megatron),
    "trainer": Reader("transformers", "train", _table_has(
        "per_device_train_batch_size", "gradient_checkpointing", "finetuning_type", "num_train_epochs")),
    "vllm": Reader("vllm", "serve", _is_vllm),
    "sglang": Reader("sglang", "serve", _is_sglang),
    "torchtitan": Reader("torchtitan", "train", _is_torchtitan),
}
"""Formats in the order in which files are held against them, and in which they win.
"trainer" is Transformers' and LLaMA-Factory's."""


class Emitter(NamedTuple):
    """One format."""

    module: str  # of `vramcast.formats.tools`
    engines: tuple[str, ...]  # whose plans are written in it unasked
    also: tuple[str, ...]  # whose plans can be written in it
    kind: str  # "framework": says the plan; "launcher": starts it
    text: str  # what it is, for documents
    function: str = "write"


HUGGING_FACE: Final = ("huggingface", "deepspeed")
TRAINERS: Final = tuple(TRAINING)
SERVERS: Final = ("vllm", "sglang", "tensorrt-llm", "llama.cpp")

EMITTERS: Final[dict[str, Emitter]] = {
    "deepspeed": Emitter("deepspeed", HUGGING_FACE, (), "framework", "DeepSpeed's JSON"),
    "accelerate": Emitter(
        "accelerate", (*HUGGING_FACE, "litgpt"), ("pytorch", "torchtitan", "torchtune"), "framework",
        "Accelerate's YAML: DeepSpeed, FSDP or DDP as the plan's engine has it",
    ),
    "accelerate-fsdp2": Emitter(
        "accelerate", (), ("torchtitan", "torchtune", "litgpt", "pytorch"), "framework",
        "Accelerate's YAML with FSDP2", "write_fsdp2",
    ),
    "accelerate-fsdp1": Emitter(
        "accelerate", (), ("torchtitan", "torchtune", "litgpt", "pytorch"), "framework",
        "Accelerate's YAML with FSDP1", "write_fsdp1",
    ),
    "transformers": Emitter(
        "transformers", (*HUGGING_FACE, "litgpt"), ("pytorch",), "framework",
        "TrainingArguments as YAML, and a script with the Trainer",
    ),
    "llamafactory": Emitter(
        "llamafactory", (*HUGGING_FACE, "unsloth"), ("pytorch", "litgpt"), "framework",
        "LLaMA-Factory's YAML",
    ),
    "torchtitan": Emitter(
        "torchtitan", ("torchtitan",), (), "framework",
        "a registry function and torchtitan's command line",
    ),
    "megatron": Emitter("megatron", ("megatron",), (), "framework", "Megatron-LM's arguments, the network's too"),
    "pytorch": Emitter(
        "pytorch", ("pytorch",), ("torchtitan", "torchtune", "litgpt"), "framework",
        "a training script of PyTorch alone: autocast, recomputation, DDP or FSDP2",
    ),
    "vllm": Emitter("vllm", ("vllm",), (), "framework", "vLLM's command"),
    "sglang": Emitter("sglang", ("sglang",), (), "framework", "SGLang's command"),
    "tensorrt-llm": Emitter("tensorrt_llm", ("tensorrt-llm",), (), "framework", "trtllm-serve's command and its file"),
    "llama.cpp": Emitter("llamacpp", ("llama.cpp",), (), "framework", "llama-server's command"),
    "pai-dlc": Emitter(
        "clouds", TRAINERS, (), "launcher",
        "PAI-DLC: CreateJob as JSON, and the command of the pai CLI", "write_dlc",
    ),
    "kubernetes": Emitter(
        "kubernetes", (*TRAINERS, *SERVERS), (), "launcher",
        "Kubernetes: PyTorchJob v1, or a Deployment and its Service",
    ),
    "trainjob": Emitter("kubernetes", TRAINERS, (), "launcher", "Kubernetes: TrainJob v1alpha1", "write_trainjob"),
    "skypilot": Emitter(
        "clouds", (*TRAINERS, *SERVERS), (), "launcher",
        "SkyPilot: a task, or a service", "write_skypilot",
    ),
    "pai-eas": Emitter("clouds", SERVERS, (), "launcher", "PAI-EAS: a service as JSON", "write_eas"),
}
"""Name of a format -> who writes it and for whom."""
