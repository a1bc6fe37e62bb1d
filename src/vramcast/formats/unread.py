"""Whose a configuration is that no reader here reads, by what stands in it: it is refused by its tool's name.

They come before the readers: many of them borrow names of the Trainer's, DeepSpeed's or Megatron's arguments and mean
another job by them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from vramcast.formats.reading import Config


class Tool(NamedTuple):
    """What tells the configurations of one tool."""

    name: str
    keys: tuple[str, ...] = ()  # groups of names, "|" between names of which one is there: all groups of one line are
    text: str = ""  # what stands in a script


TOOLS: Final = (
    # training
    Tool("axolotl", ("base_model datasets|pretraining_dataset|adapter|sequence_len|micro_batch_size|rl|chat_template",),
         r"\baxolotl (?:train|preprocess|inference|fetch)\b|\baxolotl\.cli\b"),
    Tool("LLaMA-Factory, for Megatron", (
        "stage|finetuning_type|template tensor_model_parallel_size|pipeline_model_parallel_size",)),
    Tool("LLaMA-Factory (its YAML is read)", (),
         r"\bllamafactory-cli train\b|\btrain_bash\.py\b|\bsrc/train\.py\s+\S+\.yaml\b|--finetuning_type\b"),
    Tool("LLaMA-Factory v1", ("model train_dataset", "model dist_config", "model peft_config")),
    Tool("LLaMA-Factory, for inference or export", (
        "model_name_or_path infer_backend", "model_name_or_path export_dir"), r"\bllamafactory-cli (?!train)\w+"),
    Tool("torchtune", ("tokenizer._component_", "model._component_"), r"\btune run\b|\btorchtune\.|^\s*_component_:"),
    Tool("nanotron", ("parallelism.pp parallelism.tp tokens|general",),
         r"\bnanotron\b|\brun_train\.py --config-file\b"),
    Tool("verl", ("actor_rollout_ref", "worker.actor worker.rollout"),
         r"\bverl\.trainer\b|\bactor_rollout_ref\.|\bverl\.model_merger\b"),
    Tool("OpenRLHF", (), r"\bopenrlhf\b"),
    Tool("TRL", (
        "use_peft", "lora_r", "lora_target_modules", "use_peft_lora", "load_in_4bit per_device_train_batch_size",
        "num_generations", "max_prompt_length", "max_completion_length", "dataset_text_field", "completion_only_loss",
        "assistant_only_loss", "reward_funcs", "reward_model_path", "bnb_4bit_quant_type", "use_bnb_nested_quant",
        "use_4bit_quantization", "model_name_or_path dataset_name",
        "datasets dataset_mixture|dtype|max_length", "model_name_or_path datasets",
    ), r"\btrl (?:sft|dpo|grpo|kto|reward|rloo|orpo|cpo|env|vllm-serve)\b|\btrl[/.](?:scripts|examples)\b"
       r"|\bfrom trl import\b|\bexamples/scripts/\w+\.py\b"),
    Tool("Unsloth", (), r"\bunsloth-cli\b|\bunsloth train\b|\bfrom unsloth\b"),
    Tool("NeMo", (
        "trainer exp_manager", "trainer.devices model", "policy cluster grpo|dpo|sft|rm|distillation",
        "recipe._target_", "model._target_", "step_scheduler model", "run trainer.devices",
    ), r"\bnemo(?:_run|_rl|_automodel|\.collections|_curator|_aligner)\b|\bnemo llm\b|\bautomodel (?:fine|pre)t\w+\b"),
    Tool("xtuner", (), r"\bxtuner (?:train|chat)\b|\bfrom xtuner\b"),
    Tool("ms-swift", ("train_type model", "tuner_type model", "torch_dtype tuner_backend"),
         r"\b(?:swift|megatron) (?:sft|pt|rlhf|infer|deploy|export|eval|rollout|sample)\b|\bswift/cli\b"),
    Tool("kohya's sd-scripts", ("pretrained_model_name_or_path network_module",),
         r"\bnetwork_module\b|\b(?:sdxl_|flux_|sd3_)?train_(?:network|db|textual_inversion)\.py\b"),
    Tool("diffusers' examples", (),
         r"\btrain_(?:dreambooth|text_to_image|controlnet|instruct_pix2pix|textual_inversion|cogvideox)\w*\.py\b"),
    Tool("litgpt", ("checkpoint_dir train.micro_batch_size", "model_name train.micro_batch_size"),
         r"\blitgpt (?:finetune|pretrain|serve|generate|chat)\w*\b"),
    Tool("GPT-NeoX", ("pipe_parallel_size", "pipe-parallel-size", "model_parallel_size num_layers"),
         r"\bdeepy\.py\b"),
    Tool("LLM Foundry", ("device_train_microbatch_size", "train_loader max_seq_len"), r"\bcomposer train\.py\b"),
    Tool("Lightning", ("trainer.accelerator", "trainer.strategy", "model.class_path"), r"\bLightningCLI\b"),
    Tool("Megatron-DeepSpeed", (), r"--zero-stage[ =]|--deepspeed-activation-checkpointing|\bds_ssh\b|pretrain_\w+\.py"
                                   r"(?:.|\\\n)*--deepspeed\b"),
    Tool("NeMo's Megatron Bridge", (), r"\bmegatron\.bridge\b"),
    Tool("Pai-Megatron-Patch", (), r"--patch-tokenizer-type\b|\bPai-Megatron\b"),
    Tool("Colossal-AI", (), r"\bcolossalai run\b|\bcolossalai\.booster\b"),
    Tool("fairseq", (), r"\bfairseq-(?:train|hydra-train)\b"),
    Tool("FastChat", (), r"\bfastchat\.train\b|\bfastchat/train\b"),
    Tool("LMFlow", (), r"\blmflow\b"),
    Tool("MMEngine", (), r"\bmmengine\b|\btools/dist_train\.sh\b"),
    Tool("slime", (), r"\btrain_async\.py\b(?:.|\\\n)*--rollout-"),
    Tool("a script that the deepspeed launcher starts", (), r"^\s*deepspeed\s+(?:--\w+(?:[ =]\S+)?\s+)*\S+\.py\b"),
    Tool("a script that accelerate launches", (), r"\baccelerate launch\b"),
    Tool("Transformers' examples", (),
         r"\brun_(?:clm|mlm|glue|qa|summarization|translation|seq2seq|swag|ner)\w*\.py\b"),
    Tool("a script of Transformers' Trainer (a YAML or JSON of its arguments is read)", (),
         r"--per_device_train_batch_size\b|\bTrainingArguments\("),
    # serving
    Tool("vLLM in Python (its command is read)", (), r"\bfrom vllm import\b|\bapi_server\.py\b"),
    Tool("SGLang's router", (), r"\bsglang_router\b"),
    Tool("Text Generation Inference", (), r"\btext-generation-(?:launcher|inference|server)\b"),
    Tool("LMDeploy", (), r"\blmdeploy (?:serve|chat|lite)\b"),
    Tool("TensorRT-LLM", (), r"\btrtllm-(?:serve|build|bench|llmapi-launch)\b|\bconvert_checkpoint\.py\b"),
    Tool("llama.cpp", (), r"\bllama-(?:server|cli|bench|swap)\b|\bllama\.cpp:(?:server|full)\b"),
    Tool("Ollama", ("model.num_ctx",), r"\bollama (?:run|serve|create)\b|^FROM [\w.:/-]+\n(?:.*\n)*?PARAMETER "),
    Tool("MLC LLM", (), r"\bmlc_llm (?:serve|chat|compile)\b"),
    Tool("KTransformers", (), r"\bktransformers\b"),
    Tool("Triton", (), r"\btritonserver\b"),
    Tool("Dynamo", (), r"\bdynamo(?:\.(?:vllm|sglang|trtllm)| serve| run)\b"),
    Tool("Aphrodite", (), r"\baphrodite run\b"),
    Tool("TabbyAPI", ("model.model_name model.max_seq_len",), ""),
    Tool("Ray Serve", ("applications", "llm_configs"), r"\bserve run\b"),
    # what starts a tool, or is none
    Tool("Kubernetes", ("apiVersion kind",)),
    Tool("Docker Compose", ("services",)),
    Tool("SkyPilot", ("resources run",)),
    Tool("PEFT (adapter_config.json)", ("peft_type",)),
    Tool("Transformers (a model's config.json: give it as MODEL)",
         ("architectures model_type", "model_type hidden_size")),
    Tool("vramcast (a job file: give it with --file)", ("gpus model",)),
)
"""In the order in which a file is held against them."""


def tool_of(config: Config) -> str | None:
    """The tool that a configuration is of, where no reader here reads it; None where nothing tells."""
    if config.table is not None:
        names = _paths(config.table)
        return next((tool.name for tool in TOOLS if any(_is(names, line) for line in tool.keys)), None)
    return next((tool.name for tool in TOOLS if tool.text and re.search(tool.text, _code(config.text), re.MULTILINE)),
                None)


def _is(names: frozenset[str], line: str) -> bool:
    return all(any(name in names for name in group.split("|")) for group in line.split())


def _paths(table: Mapping[str, Any]) -> frozenset[str]:
    """Names of a table and of those in it, with a point between."""
    inner = (f"{name}.{below}" for name, value in table.items() if isinstance(value, Mapping) for below in value)
    return frozenset((*table, *inner))


def _code(text: str) -> str:
    """A script without its comments: they name other tools."""
    return re.sub(r"(?m)(?:^|\s)#(?!!).*$", "", text)
