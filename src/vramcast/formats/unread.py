"""Whose a configuration is that no reader here reads, by what stands in it: it is refused by its tool's name.

They come before the readers: many of them borrow names of the Trainer's, DeepSpeed's or Megatron's arguments and mean
another job by them.

Variables of the environment that a script sets: those that frameworks read and that may change memory or time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from vramcast.blocks.lengths import reads_images
from vramcast.catalogue.formats import harmless
from vramcast.domain.model import Head, Model
from vramcast.engines.serving.requests import PARTS, generates
from vramcast.formats.reading import (
    NO_GPU,
    OF_AMD,
    TIME_ALONE,
    Config,
    Given,
    Unread,
)
from vramcast.formats.watched import is_unset

READ_BY_FRAMEWORKS: Final = ("NVTE_", "PYTORCH_", "TORCH_", "TORCHINDUCTOR_", "NCCL_", "CUDA_", "CUBLAS_", "VLLM_",
                             "SGLANG_", "SGL_", "TRTLLM_", "TLLM_", "LLAMA_ARG_", "GGML_", "OLLAMA_")
"""How their names begin."""

READ_ON_AMD: Final = ("VLLM_ROCM_", "VLLM_USE_TRITON_FLASH_ATTN", "SGLANG_ROCM_", "SGLANG_USE_AITER")
"""Those that ROCm alone reads [vllm _aiter_ops.py, 0.9.1 attention/backends/{rocm_flash_attn,mla/common}.py; sglang
srt/layers/attention/vision.py `_use_aiter`]."""

READ_ON_ASCEND: Final = "ASCEND_RT_VISIBLE_DEVICES"
"""The cards of Ascend that a process sees: who sets it runs on those."""

PACE: Final = ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IGNORE_DISABLED_P2P",
               "VLLM_TUNED_CONFIG_FOLDER")
"""Which way NCCL sends what it sends [NCCL 2.28 src/transport/] and by which tiles kernels work [vllm 0.33.0
model_executor/layers/fused_moe/fused_moe.py `get_moe_configs`]: the same buffers, at another speed."""

KERNELS: Final = "VLLM_ATTENTION_BACKEND"

ALLOCATOR: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def options_of_environment(variables: Mapping[str, str]) -> dict[str, Any]:
    """Options of `train` that variables give: the allocator's settings."""
    found = next((value for name in ALLOCATOR if (value := variables.get(name)) and not is_unset(value)), None)
    return {} if found is None else {"alloc-conf": found}


def ranks_of(gpus: int | None, nodes: int | None, variables: Mapping[str, str]) -> int | None:
    """Processes that a launcher starts: as many as it says on each machine, or one for each card that it may see."""
    seen = variables.get("CUDA_VISIBLE_DEVICES", "")
    cards = len(seen.split(",")) if seen and not is_unset(seen) else None
    each = min((count for count in (gpus, cards) if count), default=None)
    return each and each * (nodes or 1)


def unread_by_engines(variables: Mapping[str, str]) -> Iterator[Unread]:
    """Whose kernels attend in an engine beside a trainer, where they take scratch that nobody asked them for."""
    if variables.get(KERNELS, "").upper().startswith("FLASHINFER"):
        yield Unread(f"${KERNELS}")


def unread_environment(variables: Mapping[str, str], *, allocator: bool = True) -> Iterator[Unread]:
    """Variables that may change the answer, one each.

    Args:
        variables: names and values
        allocator: whether the allocator's settings are read
    """
    known = harmless("environment", "variables")
    for name, value in variables.items():
        if name == READ_ON_ASCEND and value:
            yield Unread(f"${name}", NO_GPU)
        read = allocator and name in ALLOCATOR and not is_unset(value)
        if not name.startswith(READ_BY_FRAMEWORKS) or not value or read:
            continue
        if name not in known and f"{name}={value}" not in known:
            if name in PACE:
                yield Unread(f"${name}", TIME_ALONE)
                continue
            elsewhere = name == "VLLM_TARGET_DEVICE" and value.lower() not in ("cuda", "rocm")
            about = OF_AMD if name.startswith(READ_ON_AMD) else ""
            yield Unread(f"${name}", NO_GPU) if elsewhere else Unread(f"${name}", about=about)


class Tool(NamedTuple):
    """What tells the configurations of one tool."""

    name: str
    keys: tuple[str, ...] = ()  # groups of names, "|" between names of which one is there: all groups of one line are
    text: str = ""  # what stands in a script
    unless: str = ""  # names of which one makes it another tool's, with "|" between


OF_TRL: Final = (
    r"(?:run_)?(sft|dpo|kto|reward_modeling|reward|rloo|grpo|gspo|mpo|orpo|cpo|bco|tpo|xpo|ppo|gkd|gold|prm|nash_md|"
    r"online_dpo|dpo_online|async_grpo|sdft|sdpo|minillm)(?:_(?:vlm|vlm_gemma3|gemma3|gpt_oss|nemotron_3|"
    r"tiny_aya_tool_calling|agent|continuous_batching|2048|tldr))?\.py"
)
"""A script of TRL, by its trainer [TRL examples/scripts, trl/scripts]."""

NAMED_SCRIPT: Final = rf"{OF_TRL}|sft_trainer\.py"
"""Scripts that import TRL and are read by their names."""

LAUNCHED: Final = ("a script that the deepspeed launcher starts", "a script that accelerate launches")
"""What commands start whose script no name tells."""

SCRIPT: Final = "script"
"""Key of what is read beside a command: the script in Python that it starts."""

STARTS: Final = (
    rf"\btrl (?:sft|dpo|kto|reward|rloo|grpo)\b|\bllamafactory-cli train\b|(?<![\w.-]){OF_TRL}\b"
    r"|\b(?:sft_trainer|train_bash)\.py\b"
    r"|\brun_(?:[cmp]lm|fim|mae|mim\w*|clip|glue|xnli|ner|swag|qa(?:_beam_search)?|seq2seq_qa|summarization|translation|"
    r"(?:image_|audio_)?classification|(?:semantic|instance)_segmentation|object_detection|speech_recognition_\w+|"
    r"wav2vec2_\w+?)(?:_no_trainer)?\.py\b"
    r"|\btrl\.scripts\.\w+|\btuning\.sft_trainer\b|--finetuning_type\b"
    r"|\A(?![\s\S]*--zero_stage\b)[\s\S]*--per[_-]device[_-]train[_-]batch[_-]size\b"
    r"|\bsrc/train\.py\b|--train_type[ =](?:full|lora|qlora|custom_\w+|hqq_\w+|bnb_\w+)\b"
)
"""What stands in a command that starts a script of Hugging Face's Trainer."""

TOOLS: Final = (
    # training
    Tool("torchtune", ("model._component_", "policy_model._component_", "checkpointer._component_"), r"\btune run\b"),
    Tool("litgpt", ("checkpoint_dir train.micro_batch_size", "model_name train.micro_batch_size"),
         r"\blitgpt finetune\w*"),
    Tool("axolotl", ("base_model datasets|pretraining_dataset|adapter|sequence_len|micro_batch_size|rl",)),
    Tool("swift-megatron", ("micro_batch_size model dataset|cached_dataset|tuner_type",),
         r"\bmegatron[ \t\\\n]+(?:sft|pt|rlhf)\b|\bswift/cli/_megatron/(?:sft|pt|rlhf)\.py\b"),
    Tool("swift", ("tuner_type model", "train_type model", "sft_type model_type|model_id_or_path",
                   "rlhf_type model", "torch_dtype tuner_backend"),
         r"(?:^|[\s/])swift[ \t\\\n]+(?:sft|pt|rlhf)\b|\bswift/cli/(?:sft|pt|rlhf)\.py\b"),
    Tool("unsloth", (), r"^\s*(?:from|import) unsloth\b"),
    Tool("axolotl-command", (), r"\baxolotl train\b|\baxolotl\.cli\.train\b"),
    Tool("axolotl (its YAML is read)", (),
         r"\baxolotl (?:train|preprocess|inference|fetch)\b|\baxolotl\.cli\b"),
    Tool("LLaMA-Factory, for Megatron-Bridge", (
        "finetuning_type mixed_precision|use_packed_sequences|export_hf_on_finish tensor_model_parallel_size",)),
    Tool("llamafactory-megatron", (
        "stage|finetuning_type|template tensor_model_parallel_size|pipeline_model_parallel_size",)),
    Tool("LLaMA-Factory v1, for inference or export", ("model peft_config.export_dir",)),
    Tool("llamafactory-v1", ("model train_dataset", "model dist_config", "model peft_config")),
    Tool("LLaMA-Factory, for inference or export", (
        "model_name_or_path infer_backend", "model_name_or_path export_dir"), r"\bllamafactory-cli (?!train)\w+"),
    Tool("nanotron (whose engine is not modelled)", ("parallelism.pp parallelism.tp tokens|general",),
         r"\bnanotron\b|\brun_train\.py --config-file\b"),
    Tool("verl", ("actor_rollout_ref", "worker.actor worker.rollout"),
         r"\bverl\.trainer\b|\bactor_rollout_ref\.|\bverl\.model_merger\b"),
    Tool("openrlhf", (), r"\bopenrlhf[./]cli[./]train_ppo"),
    Tool("slime", (), r"\btrain(?:_async)?\.py\b(?s:.*)--actor-num-(?:nodes|gpus-per-node)\b"
                      r"|--actor-num-(?:nodes|gpus-per-node)\b(?s:.*)--rollout-"),
    Tool("OpenRLHF for anything but train_ppo_ray", (), r"\bopenrlhf\b"),
    Tool("trl", (
        "use_peft", "lora_r", "lora_target_modules", "use_peft_lora", "load_in_4bit per_device_train_batch_size",
        "num_generations", "max_prompt_length", "max_completion_length", "dataset_text_field", "completion_only_loss",
        "assistant_only_loss", "reward_funcs", "reward_model_path", "bnb_4bit_quant_type", "use_bnb_nested_quant",
        "use_4bit_quantization", "model_name_or_path dataset_name",
        "datasets dataset_mixture|dtype|max_length", "model_name_or_path datasets", "dataset_mixture",
        "dataset_mixer", "model_name_or_path attn_implementation",
        "max_length packing|loss_type|beta",
    )),
    Tool("trl-script", (), r"^\s*(?:from trl(?:\.\w+)* import|import trl)\b"),
    Tool("Unsloth on its command line (a script or notebook with its calls is read)", (),
         r"\bunsloth-cli\b|\bunsloth train\b"),
    Tool("nemo-rl", (
        "policy grpo|ppo|dpo|sft|rm|distillation", "policy.megatron_cfg", "policy.dtensor_cfg", "policy.generation",
        "policy.train_global_batch_size", "policy.max_total_sequence_length", "defaults grpo|cluster|policy|loss_fn"),
         r"\brun_(?:vlm_)?(?:grpo|dpo|sft|rm|distillation|ppo)\w*\.py\b(?:.|\\\n)*(?:--config|\spolicy\.)"),
    Tool("NeMo", (),
         r"\bnemo(?:_run|_rl|_automodel|\.collections|_curator|_aligner)\b|\bnemo llm\b"
         r"|\bautomodel (?:fine|pre)t\w+\b"),
    Tool("xtuner v1 (whose engine is not modelled)", (), r"\bfrom xtuner\.v1\b"),
    Tool("xtuner, for anything but training", (), r"\bxtuner (?:chat|convert|test|mmbench|eval_refcoco|preprocess)\b"),
    Tool("xtuner", (), r"\bxtuner train\b|\bfrom xtuner\b"),
    Tool("ms-swift for anything but training", (),
         r"\b(?:swift|megatron) (?:sft|pt|rlhf|infer|deploy|export|eval|rollout|sample)\b|\bswift/cli\b"),
    Tool("sd-scripts", ("pretrained_model_name_or_path network_module",),
         r"\bnetwork_module\b|\b(?:\w+_)?train_(?:network|db|textual_inversion)\.py\b|\bfine_tune\.py\b"
         r"|\b(?:sdxl|flux|sd3|lumina)_train\.py\b"),
    Tool("diffusers", (),
         r"\btrain_(?:dreambooth|text_to_image|controlnet|control|instruct_pix2pix|cogvideox|custom_diffusion|t2i_adapter"
         r"|lcm_distill|unconditional|amused)\w*\.py\b|\btextual_inversion\w*\.py\b"),
    Tool("litgpt beside its fine-tuning", (), r"\blitgpt (?:pretrain|serve|generate|chat|evaluate)\w*\b"),
    Tool("GPT-NeoX", ("pipe_parallel_size", "pipe-parallel-size", "model_parallel_size num_layers"),
         r"\bdeepy\.py\b"),
    Tool("LLM Foundry", ("device_train_microbatch_size", "train_loader max_seq_len"), r"\bcomposer train\.py\b"),
    Tool("Lightning", ("trainer.accelerator", "trainer.strategy", "model.class_path"), r"\bLightningCLI\b",
         unless="exp_manager|model.tensor_model_parallel_size"),
    Tool("Megatron-DeepSpeed", (), r"--zero-stage[ =]|--deepspeed-activation-checkpointing|\bds_ssh\b|pretrain_\w+\.py"
                                   r"(?:.|\\\n)*--deepspeed\b"),
    Tool("NeMo's Megatron Bridge", (), r"\A(?![\s\S]*\bcfg\.model\b)[\s\S]*\bmegatron\.bridge\b"),
    Tool("Colossal-AI", (), r"\bcolossalai run\b|\bcolossalai\.booster\b"),
    Tool("fairseq", (), r"\bfairseq-(?:train|hydra-train)\b"),
    Tool("FastChat", (), r"\bfastchat\.train\b|\bfastchat/train\b"),
    Tool("LMFlow", (), r"\blmflow\b"),
    Tool("MMEngine", (), r"\bmmengine\b|\btools/dist_train\.sh\b"),
    Tool("hf-command", (), STARTS),
    Tool(LAUNCHED[0], (),
         r"^\s*deepspeed\s+(?:--\w+(?:[ =]\S+)?\s+)*(?!\S*\bmain\.py)\S+\.py\b"),
    Tool(LAUNCHED[1], (), r"\baccelerate launch\b"),
    Tool("a script of Transformers' Trainer (a YAML or JSON of its arguments is read)", (),
         r"\bTrainingArguments\("),
    # serving
    Tool("vLLM-Omni", (), r"\s--omni\b"),
    Tool("vLLM in Python (its command is read)", (), r"\bfrom vllm import\b|\bapi_server\.py\b"),
    Tool("SGLang Diffusion", (),
         r"\bSGLANG_CACHE_DIT_|\bsglang generate\b|--(?:ulysses|ring)-degree\b|--adjust-frames\b"),
    Tool("SGLang's router", (), r"\bsglang_router\b"),
    Tool("LMDeploy's other commands (lmdeploy serve api_server is read)", (),
         r"\blmdeploy (?:serve proxy|chat|lite|convert)\b"),
    Tool("TensorRT-LLM's other commands (trtllm-serve is read)", (),
         r"\btrtllm-(?:build|bench|eval)\b|\bconvert_checkpoint\.py\b"),
    Tool("llama.cpp's other programs (llama-server and llama-cli are read)", (),
         r"\bllama-(?:bench|swap|quantize|perplexity|batched|imatrix)\b"),
    Tool("Ollama's API (its Modelfile and ollama run are read)", ("model.num_ctx", "model options.num_ctx")),
    Tool("MLC LLM", (), r"\bmlc_llm (?:serve|chat|compile)\b"),
    Tool("KTransformers", (), r"\bktransformers\b"),
    Tool("Triton", (), r"\btritonserver\b"),
    Tool("Dynamo", (), r"\bdynamo(?:\.(?:vllm|sglang|trtllm)| serve| run)\b"),
    Tool("Aphrodite", (), r"\baphrodite run\b"),
    Tool("TabbyAPI", ("model.model_name model.max_seq_len",), ""),
    Tool("Ray Serve (its YAML is read)", (), r"\bserve run\b"),
    # what starts a tool, or is none
    Tool("Helm (values of a chart; give what `helm template` writes of them)", (
        "servingEngineSpec|routerSpec", "image.repository image.tag replicaCount|extraInit|resources|service")),
    Tool("PEFT (adapter_config.json)", ("peft_type",)),
    Tool("Transformers (a model's config.json: give it as MODEL)",
         ("architectures model_type", "model_type hidden_size")),
    Tool("vramcast (a job file: give it with --file)", ("gpus model",)),
)
"""In the order in which a file is held against them; a name that a reader has is read by that one."""


def tool_of(config: Config) -> str | None:
    """The tool that a configuration is of, as far as it tells; a reader's name where that is sure of its own."""
    if SCRIPT in config.beside:
        return "hf-command"
    if config.table is not None:
        names = _paths(config.table)
        return next((tool.name for tool in TOOLS if any(_is(names, line) for line in tool.keys)
                     and not (tool.unless and _is(names, tool.unless))), None)
    code = without_comments(config.text)
    return next((tool.name for tool in TOOLS if tool.text and re.search(tool.text, code, re.MULTILINE)), None)


def has_names(table: Mapping[str, Any], lines: tuple[str, ...]) -> bool:
    """Whether a table has all groups of names of one line."""
    names = _paths(table)
    return any(_is(names, line) for line in lines)


def _is(names: frozenset[str], line: str) -> bool:
    return all(any(name in names for name in group.split("|")) for group in line.split())


def _paths(table: Mapping[str, Any]) -> frozenset[str]:
    """Names of a table and of those in it, with a point between."""
    inner = (f"{name}.{below}" for name, value in table.items() if isinstance(value, Mapping) for below in value)
    return frozenset((*table, *inner))


def without_comments(text: str) -> str:
    """A script without its comments: they name other tools."""
    return re.sub(r"(?m)(?:^|\s)#(?!!).*$", "", text)


def about_network(given: Given, named: object) -> Given:
    """What is left of what was read once it is known which parts the network has.

    Args:
        given: what was read
        named: the model of the question: a network, its name, or None

    Raises: SourceError or UnknownName where its name means none
    """
    pairs = tuple(pair for pair in given.options.get("engine-option", ()) if pair.partition("=")[0] in given.parts)
    of_images = given.options.get("images") == 0 or "image-size" in given.options
    of_network = any(one.of_towers or one.about not in ("", *WHATEVER) for _, one in given.unread)
    of_part = [name for name in given.options if name in given.parts]
    if named is None or not (pairs or of_part or of_images or of_network):
        return given
    from vramcast.sources.resolve import resolve_model  # most files need no network to be read

    model = named if isinstance(named, Model) else resolve_model(str(named))
    towers = [stack for stack in model.stacks[:-1] if stack.vision is not None]
    # a table of positions says what size images have
    sized = all(bool((stack.vision and stack.vision.positions) or stack.positions) for stack in towers)
    lacking = [pair for pair in pairs if not has_part(model, given.parts[pair.partition("=")[0]])]
    left = tuple(pair for pair in given.options.get("engine-option", ()) if pair not in lacking)
    # without towers there are no images; one that reads flat images by a table of positions makes them all its size
    own_size = sized and all(len(stack.vision.patch) == len(FLAT) for stack in towers if stack.vision)
    without = ("images", "image-size") if not reads_images(model) else ("image-size",) if own_size else ()
    without = (*without, *(name for name in of_part if not has_part(model, given.parts[name])))
    options = {name: value for name, value in given.options.items()
               if (name != "engine-option" or left) and name not in without}
    return given._replace(
        options=options | ({"engine-option": left} if left else {}),
        unread=tuple((file, one) for file, one in given.unread
                     if (not one.of_towers or (towers and one.of_sizes in (None, sized)))
                     and (not one.about or has_part(model, one.about))),
    )


FLAT: Final = ("height", "width")
"""Sides of a patch; those of films have a time besides, and a table of positions that is stretched to any size."""


PARTS_READ: Final[dict[str, tuple[str, ...]]] = {"hybrid": ("windows", "states")}
"""Parts that are one of several of `PARTS`; "answers" is a network that writes them, "own head" one whose
output projection is not its embedding, "always" any: of names that only earlier versions have."""


WHATEVER: Final = ("always", OF_AMD)
"""What holds whatever the network is."""


def has_part(model: Model, part: str) -> bool:
    """Whether a network has what a name of a command is about."""
    if part in ("answers", *WHATEVER):
        return part != "answers" or generates(model)
    if part == "own head":
        return model.head is Head.LM and not model.tied
    return any(PARTS[one][0](model) for one in PARTS_READ.get(part, (part,)))
