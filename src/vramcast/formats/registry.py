"""Which tool's files are read and which are written, by whose module: one row a format.

Recognising a file loads none of the modules; each reads and writes its own tool's names.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from vramcast.engines.training import TRAINING
from vramcast.formats.reading import Config
from vramcast.formats.unread import has_names, tool_of

Recogniser = Callable[[Config], bool]


class Reader(NamedTuple):
    """One format."""

    module: str  # of `vramcast.formats.tools`; its `read` makes a `Reading` of a `Config`
    command: str  # of vramcast that it is for
    recognises: Recogniser
    also: str = ""  # another command that it may be for


def _by(*lines: str, text: str = "") -> Recogniser:
    """A table by the names of one of the lines, as a `Tool` has them; a script by what stands in it."""
    return lambda config: has_names(config.table, lines) if config.table is not None else (
        bool(text) and re.search(text, config.text) is not None)


def _is_tool(name: str) -> Recogniser:
    """What is told by what stands in a script alone."""
    return lambda config: config.table is None and tool_of(config) == name


def _is_megatron(config: Config) -> bool:
    """A script or a table with two of Megatron-LM's names."""
    names = ("tensor_model_parallel_size", "num_layers", "micro_batch_size", "use_distributed_optimizer")
    if config.table is not None:
        return "MODEL_ARGS" in config.table or sum(name in config.table for name in names) >= 2
    return sum(f"--{name.replace('_', '-')}" in config.text for name in names) >= 2


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


def _is_torchtune(config: Config) -> bool:
    """A recipe's YAML, with the components that torchtune makes, or a `tune run` command."""
    if config.table is not None:
        parts = [part for part in config.table.values() if isinstance(part, dict)]
        return any(str(part.get("_component_", "")).startswith("torchtune.") for part in parts)
    return "tune run" in config.text


def _is_ollama(config: Config) -> bool:
    """A Modelfile, or a command of Ollama."""
    text = config.text
    model = "PARAMETER " in text or "TEMPLATE " in text or "SYSTEM " in text or config.name.lower().startswith("model")
    starts = re.search(r"ollama[\"']?\s+[\"']?(?:run|serve)\b|\bollama/ollama(?![\w/-])", text)
    return config.table is None and bool(starts or (
        model and any(line.lstrip().upper().startswith("FROM ") for line in text.splitlines())))


def _is_torchtitan(config: Config) -> bool:
    """A command with torchtitan's sections, a registry function, or one of its old files."""
    text = config.text
    return config.table is None and (
        "--parallelism." in text or "torchtitan" in text or "\n[parallelism]" in f"\n{text}" or (
            config.name.endswith(".toml") and "\n[model]" in f"\n{text}" and "\nflavor" in text)
    )


def _is_nemo_rl(config: Config) -> bool:
    """A recipe, one that says only what another has otherwise too, or the command that starts one."""
    begins = (config.table or {}).get("defaults")  # of Hydra it is a list
    return tool_of(config) == "nemo-rl" or (isinstance(begins, str) and begins.endswith((".yaml", ".yml")))


READERS: Final[dict[str, Reader]] = {
    "torchtune": Reader("torchtune", "train", _is_torchtune),
    "litgpt": Reader("litgpt", "train", _by(
        "checkpoint_dir|model_name train.micro_batch_size", text="litgpt finetune")),
    "deepspeed": Reader("deepspeed", "train", _by(
        "zero_optimization|train_micro_batch_size_per_gpu|train_batch_size"), "rl"),
    "axolotl": Reader("axolotl", "train", _by("base_model")),
    "axolotl-command": Reader("axolotl_command", "train", _is_tool("axolotl-command")),
    "accelerate": Reader("accelerate", "train", _by("distributed_type|compute_environment"), "rl"),
    "llamafactory-v1": Reader("llamafactory_v1", "train", _by("dist_config|init_config|kernel_config")),
    "llamafactory-megatron": Reader("llamafactory_megatron", "train", _by(
        "stage|finetuning_type tensor_model_parallel_size|pipeline_model_parallel_size")),
    "megatron-bridge": Reader("megatron_bridge", "train", _by(
        text=r"\A(?=[\s\S]*megatron\.bridge)[\s\S]*cfg\.model")),
    "swift-megatron": Reader("swift_megatron", "train", _by(
        "micro_batch_size model dataset|cached_dataset|tuner_type",
        text=r"\bmegatron[ \t\\\n]+(?:sft|pt|rlhf)\b|\bswift/cli/_megatron/(?:sft|pt|rlhf)\b"), "rl"),
    "megatron": Reader("megatron", "train", _is_megatron),
    "automodel": Reader("automodel", "train", _is_automodel),
    "nemo": Reader("nemo", "train", _is_nemo),
    "deepspeed-chat": Reader("deepspeed_chat", "train", _is_deepspeed_chat),
    "swift": Reader("swift", "train", _by(
        "tuner_type|train_type|sft_type|rlhf_type", text=r"\bswift(?:/cli/|[ \t\\\n]+)(?:sft|pt|rlhf)\b"), "rl"),
    "unsloth": Reader("unsloth", "train", _by(text=r"(?m)^\s*(?:from|import) unsloth\b"), "rl"),
    "trl-script": Reader("trl_script", "train", _is_tool("trl-script"), "rl"),
    "diffusers": Reader("diffusers", "train", _is_tool("diffusers")),
    "sd-scripts": Reader("kohya", "train", _is_tool("sd-scripts")),
    "xtuner": Reader("xtuner", "train", _is_tool("xtuner")),
    "hf-command": Reader("hf_command", "train", _is_tool("hf-command"), "rl"),
    "trl": Reader("trl", "train", _by(
        "use_peft|lora_target_modules|num_generations|max_prompt_length|dataset_text_field"), "rl"),
    "trainer": Reader("transformers", "train", _by(
        "per_device_train_batch_size|gradient_checkpointing|finetuning_type|num_train_epochs")),
    "verl": Reader("verl", "rl", _by(
        "actor_rollout_ref", text=r"\bverl\.trainer\.main_|\bactor_rollout_ref\.|\bmain_dapo\b")),
    "openrlhf": Reader("openrlhf", "rl", _is_tool("openrlhf")),
    "slime": Reader("slime", "rl", _is_tool("slime")),
    "nemo-rl": Reader("nemo_rl", "rl", _is_nemo_rl),
    "vllm": Reader("vllm", "serve", _by(
        "gpu_memory_utilization|gpu-memory-utilization|max_model_len|max-model-len|max_num_seqs|max-num-seqs",
        text=r"vllm serve|vllm\.entrypoints|vllm/vllm-openai|\btrl vllm-serve\b|\bvllm_serve\.py\b"
             r"|\btrl\.scripts\.vllm_serve\b")),
    "sglang": Reader("sglang", "serve", _by(text=r"sglang\.launch_server|sglang serve")),
    "tgi": Reader("text_generation_inference", "serve", _by(text=r"\btext-generation-(?:launcher|inference\b)")),
    "lmdeploy": Reader("lmdeploy", "serve", _by(text=r"\blmdeploy serve api_server\b")),
    "torchtitan": Reader("torchtitan", "train", _is_torchtitan),
    "llama.cpp": Reader("llamacpp", "serve", _by(text=r"llama-server|llama-cli|llama\.cpp:(?:server|full|light)")),
    "ollama": Reader("ollama", "serve", _is_ollama),
    "tensorrt-llm": Reader("tensorrt_llm", "serve", _by(
        "kv_cache_config|cuda_graph_config|enable_attention_dp|moe_config|disable_overlap_scheduler|print_iter_log|"
        "max_num_tokens|stream_interval", text="trtllm-serve")),
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
    "dstack": Emitter("dstack", (), (*TRAINERS, *SERVERS), "launcher", "dstack: a task, or a service"),
    "pai-eas": Emitter("clouds", SERVERS, (), "launcher", "PAI-EAS: a service as JSON", "write_eas"),
}
"""Name of a format -> who writes it and for whom."""
