"""Which tool's files are read and which are written, by whose module: one row a format.

Recognising a file loads none of the modules; each reads and writes its own tool's names.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from vramcast.engines.training import TRAINING
from vramcast.formats.reading import Config
from vramcast.formats.unread import tool_of

Recogniser = Callable[[Config], bool]


class Reader(NamedTuple):
    """One format."""

    module: str  # of `vramcast.formats.tools`; its `read` makes a `Reading` of a `Config`
    command: str  # of vramcast that it is for
    recognises: Recogniser
    also: str = ""  # another command that it may be for


def _table_has(*names: str) -> Recogniser:
    """A table with one of these names."""
    return lambda config: config.table is not None and any(name in config.table for name in names)


def _is_megatron(config: Config) -> bool:
    """A script or a table with two of Megatron-LM's names."""
    names = ("tensor_model_parallel_size", "num_layers", "micro_batch_size", "use_distributed_optimizer")
    if config.table is not None:
        return "MODEL_ARGS" in config.table or sum(name in config.table for name in names) >= 2
    return sum(f"--{name.replace('_', '-')}" in config.text for name in names) >= 2


def _is_megatron_bridge(config: Config) -> bool:
    """A recipe of Megatron-Bridge in Python."""
    return config.table is None and "megatron.bridge" in config.text and "cfg.model" in config.text


def _is_nemo(config: Config) -> bool:
    """A trainer's table beside that of a model, with what NeMo manages or Megatron's words."""
    found = config.table or {}
    model = found.get("model")
    return isinstance(model, dict) and isinstance(found.get("trainer"), dict) and (
        "exp_manager" in found or "tensor_model_parallel_size" in model)


def _is_deepspeed_chat(config: Config) -> bool:
    """A command of the deepspeed launcher with the names of DeepSpeed-Chat's steps."""
    names = ("main.py", "--deepspeed", "_zero_stage", "_model_name_or_path")
    text = config.text.replace("--zero_stage", "--_zero_stage").replace("--model_name", "--_model_name")
    return config.table is None and all(name in text for name in names)


def _is_automodel(config: Config) -> bool:
    """A recipe of NeMo Automodel: its classes are named, or its scheduler of steps."""
    model = (config.table or {}).get("model")
    named = isinstance(model, dict) and "nemo_automodel" in str(model.get("_target_"))
    return config.table is not None and (named or ("step_scheduler" in config.table and "model" in config.table))


def _is_vllm(config: Config) -> bool:
    """A `vllm serve` command, or a table with its names."""
    if config.table is not None:
        return any(name.replace("-", "_") in ("gpu_memory_utilization", "max_model_len", "max_num_seqs")
                   for name in config.table)
    return any(name in config.text for name in ("vllm serve", "vllm.entrypoints", "vllm/vllm-openai"))


def _is_torchtune(config: Config) -> bool:
    """A recipe's YAML, with the components that torchtune makes, or a `tune run` command."""
    if config.table is not None:
        parts = [part for part in config.table.values() if isinstance(part, dict)]
        return any(str(part.get("_component_", "")).startswith("torchtune.") for part in parts)
    return "tune run" in config.text


def _is_litgpt(config: Config) -> bool:
    """A configuration of litgpt's scripts, or its command."""
    if config.table is not None:
        train = config.table.get("train")
        return isinstance(train, dict) and "micro_batch_size" in train and any(
            name in config.table for name in ("checkpoint_dir", "model_name"))
    return "litgpt finetune" in config.text


def _is_sglang(config: Config) -> bool:
    return config.table is None and any(name in config.text for name in ("sglang.launch_server", "sglang serve"))


def _is_tensorrt_llm(config: Config) -> bool:
    """A `trtllm-serve` command, or the file beside it."""
    if config.table is None:
        return "trtllm-serve" in config.text
    return sum(name in config.table for name in (
        "kv_cache_config", "cuda_graph_config", "enable_attention_dp", "moe_config", "disable_overlap_scheduler",
        "print_iter_log", "max_num_tokens", "stream_interval")) >= 1


def _is_tgi(config: Config) -> bool:
    """A command of TGI's launcher, or of its image."""
    return config.table is None and re.search(r"\btext-generation-(?:launcher|inference\b)", config.text) is not None


def _is_lmdeploy(config: Config) -> bool:
    """A command that starts LMDeploy's server."""
    return config.table is None and re.search(r"\blmdeploy serve api_server\b", config.text) is not None


def _is_llamacpp(config: Config) -> bool:
    """A command of llama.cpp's programs or images."""
    names = ("llama-server", "llama-cli", "llama.cpp:server", "llama.cpp:full", "llama.cpp:light")
    return config.table is None and any(name in config.text for name in names)


def _is_ollama(config: Config) -> bool:
    """A Modelfile, or a command of Ollama."""
    text = config.text
    model = "PARAMETER " in text or "TEMPLATE " in text or "SYSTEM " in text or config.name.lower().startswith("model")
    return config.table is None and ("ollama run" in text or "ollama serve" in text or (
        model and any(line.lstrip().upper().startswith("FROM ") for line in text.splitlines())))


def _is_torchtitan(config: Config) -> bool:
    """A command with torchtitan's sections, a registry function, or one of its old files."""
    text = config.text
    return config.table is None and (
        "--parallelism." in text or "torchtitan" in text or "\n[parallelism]" in f"\n{text}" or (
            config.name.endswith(".toml") and "\n[model]" in f"\n{text}" and "\nflavor" in text)
    )


def _is_hugging_face(config: Config) -> bool:
    """A command line that starts a script of the Trainer."""
    return config.table is None and tool_of(config) == "hf-command"


def _is_tool(name: str) -> Recogniser:
    """What is told by what stands in a script alone."""
    return lambda config: config.table is None and tool_of(config) == name


def _is_unsloth(config: Config) -> bool:
    """Python that imports it; of a notebook its code is the text."""
    return config.table is None and re.search(r"(?m)^\s*(?:from|import) unsloth\b", config.text) is not None


def _is_swift(config: Config) -> bool:
    """A command of ms-swift, or a table with its names."""
    if config.table is not None:
        return any(name in config.table for name in ("tuner_type", "train_type", "sft_type", "rlhf_type"))
    return re.search(r"\bswift(?:/cli/|[ \t\\\n]+)(?:sft|pt|rlhf)\b", config.text) is not None


def _is_verl(config: Config) -> bool:
    """A command of its trainer, or the tree of its configuration."""
    if config.table is not None:
        return "actor_rollout_ref" in config.table
    return re.search(r"\bverl\.trainer\.main_|\bactor_rollout_ref\.|\bmain_dapo\b", config.text) is not None


def _is_swift_megatron(config: Config) -> bool:
    """A `megatron` command of ms-swift, or a table with its names."""
    if config.table is not None:
        return "micro_batch_size" in config.table and "model" in config.table and any(
            name in config.table for name in ("dataset", "cached_dataset", "tuner_type"))
    words = r"\bmegatron[ \t\\\n]+(?:sft|pt|rlhf)\b|\bswift/cli/_megatron/(?:sft|pt|rlhf)\b"
    return re.search(words, config.text) is not None


def _is_nemo_rl(config: Config) -> bool:
    """A recipe, one that says only what another has otherwise too, or the command that starts one."""
    begins = (config.table or {}).get("defaults")  # of Hydra it is a list
    return tool_of(config) == "nemo-rl" or (isinstance(begins, str) and begins.endswith((".yaml", ".yml")))


READERS: Final[dict[str, Reader]] = {
    "torchtune": Reader("torchtune", "train", _is_torchtune),
    "litgpt": Reader("litgpt", "train", _is_litgpt),
    "deepspeed": Reader("deepspeed", "train", _table_has(
        "zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"), "rl"),
    "axolotl": Reader("axolotl", "train", _table_has("base_model")),
    "axolotl-command": Reader("axolotl_command", "train", _is_tool("axolotl-command")),
    "accelerate": Reader("accelerate", "train", _table_has("distributed_type", "compute_environment"), "rl"),
    "llamafactory-v1": Reader("llamafactory_v1", "train", _table_has("dist_config", "init_config", "kernel_config")),
    "megatron-bridge": Reader("megatron_bridge", "train", _is_megatron_bridge),
    "swift-megatron": Reader("swift_megatron", "train", _is_swift_megatron),
    "megatron": Reader("megatron", "train", _is_megatron),
    "automodel": Reader("automodel", "train", _is_automodel),
    "nemo": Reader("nemo", "train", _is_nemo),
    "deepspeed-chat": Reader("deepspeed_chat", "train", _is_deepspeed_chat),
    "swift": Reader("swift", "train", _is_swift, "rl"),
    "unsloth": Reader("unsloth", "train", _is_unsloth, "rl"),
    "trl-script": Reader("trl_script", "train", _is_tool("trl-script"), "rl"),
    "diffusers": Reader("diffusers", "train", _is_tool("diffusers")),
    "sd-scripts": Reader("kohya", "train", _is_tool("sd-scripts")),
    "xtuner": Reader("xtuner", "train", _is_tool("xtuner")),
    "hf-command": Reader("hf_command", "train", _is_hugging_face, "rl"),
    "trl": Reader("trl", "train", _table_has(
        "use_peft", "lora_target_modules", "num_generations", "max_prompt_length", "dataset_text_field"), "rl"),
    "trainer": Reader("transformers", "train", _table_has(
        "per_device_train_batch_size", "gradient_checkpointing", "finetuning_type", "num_train_epochs")),
    "verl": Reader("verl", "rl", _is_verl),
    "openrlhf": Reader("openrlhf", "rl", _is_tool("openrlhf")),
    "slime": Reader("slime", "rl", _is_tool("slime")),
    "nemo-rl": Reader("nemo_rl", "rl", _is_nemo_rl),
    "vllm": Reader("vllm", "serve", _is_vllm),
    "sglang": Reader("sglang", "serve", _is_sglang),
    "tgi": Reader("text_generation_inference", "serve", _is_tgi),
    "lmdeploy": Reader("lmdeploy", "serve", _is_lmdeploy),
    "torchtitan": Reader("torchtitan", "train", _is_torchtitan),
    "llama.cpp": Reader("llamacpp", "serve", _is_llamacpp),
    "ollama": Reader("ollama", "serve", _is_ollama),
    "tensorrt-llm": Reader("tensorrt_llm", "serve", _is_tensorrt_llm),
}
"""Formats in the order in which files are held against them, and in which they win.
"trainer" is Transformers' and LLaMA-Factory's, "hf-command" the command lines of both, of TRL and of others."""


def known_as(config: Config) -> str:
    """The key of READERS whose command or file it is; "" where it is none's."""
    tool = tool_of(config)
    if tool is not None:
        return tool if tool in READERS else ""
    return next((name for name, reader in READERS.items() if reader.recognises(config)), "")


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
SERVERS: Final = ("vllm", "sglang", "tensorrt-llm", "tgi", "lmdeploy", "llama.cpp")

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
    "axolotl": Emitter("axolotl_files", (), ("huggingface",), "framework", "axolotl's YAML"),
    "torchtitan": Emitter(
        "torchtitan", ("torchtitan",), (), "framework",
        "a registry function and torchtitan's command line",
    ),
    "torchtune": Emitter(
        "torchtune_recipe", ("torchtune",), (), "framework", "a recipe's YAML and the `tune run` that starts it",
    ),
    "litgpt": Emitter("litgpt", ("litgpt",), (), "framework", "litgpt's YAML for fine-tuning"),
    "megatron": Emitter("megatron", ("megatron",), (), "framework", "Megatron-LM's arguments, the network's too"),
    "pytorch": Emitter(
        "pytorch", ("pytorch",), ("torchtitan", "torchtune", "litgpt"), "framework",
        "a training script of PyTorch alone: autocast, recomputation, DDP or FSDP2",
    ),
    "vllm": Emitter("vllm", ("vllm",), (), "framework", "vLLM's command"),
    "sglang": Emitter("sglang", ("sglang",), (), "framework", "SGLang's command"),
    "tensorrt-llm": Emitter("tensorrt_llm", ("tensorrt-llm",), (), "framework", "trtllm-serve's command and its file"),
    "tgi": Emitter(
        "text_generation_inference", ("tgi",), (), "framework", "the launcher's command of Text Generation Inference",
    ),
    "lmdeploy": Emitter("lmdeploy", ("lmdeploy",), (), "framework", "LMDeploy's command"),
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
