"""A plan as axolotl's YAML.

[ax] axolotl-ai-cloud/axolotl 0.18.0 src/axolotl: what `formats.tools.axolotl` reads
"""

from __future__ import annotations

from typing import Final

from vramcast.domain.job import Job, Loss, Precision, Recompute, Shards
from vramcast.domain.model import Head
from vramcast.engines.eager.releases import liger_kernels, runs_deepspeed
from vramcast.engines.eager.trl import loads_fp32, prepared_weights, reentrant
from vramcast.errors import Note, Unsupported
from vramcast.families.module_names import names_of, names_saved
from vramcast.formats.files import File, Order, Part, hub_id
from vramcast.formats.launch import head_of
from vramcast.formats.lines import Line, Table, yaml_text
from vramcast.formats.reading import written
from vramcast.formats.table import Refusal, refuse
from vramcast.formats.tools import deepspeed
from vramcast.formats.tools.accelerate import FSDP1_STRATEGIES
from vramcast.formats.tools.axolotl import BESIDE, ENGINE, LIGER, OWN_OPTIMS, RELEASE
from vramcast.formats.tools.axolotl_adapters import LORA_KERNELS
from vramcast.formats.tools.llamafactory import STORED
from vramcast.formats.tools.transformers import kernel_of, optim_of, refuse_chunks
from vramcast.formats.tools.trl import ALONE

NAME: Final = "axolotl.yaml"

FUSED_HEAD: Final = "fused_linear_cross_entropy"

KERNELS: Final = {None: "sdpa", "flash": "flash_attention_2", "efficient": "xformers", "eager": "eager"}

BASES: Final = {"nf4": "qlora", "nf4-dq": "qlora", "int8": "lora"}

SWITCHES: Final = written({name: kernel for name, kernel in LIGER.items() if name != "liger_swiglu"})

LIGER_PLUGIN: Final = "axolotl.integrations.liger.LigerPlugin"
CUT_PLUGIN: Final = "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"

OBJECTIVES: Final = ("pretrain", "sft", "dpo")

DATASETS: Final[dict[str, tuple[Line, ...]]] = {
    "pretrain": (Line("path", "allenai/c4"), Line("name", "en"), Line("type", "pretrain")),
    "sft": (Line("path", "mhenrichsen/alpaca_2k_test"), Line("type", "alpaca")),
    "dpo": (Line("path", "Intel/orca_dpo_pairs"), Line("split", "train"), Line("type", "chatml.intel")),
    "orpo": (Line("path", "argilla/ultrafeedback-binarized-preferences-cleaned"),
             Line("type", "chat_template.argilla")),
}
"""Small data sets of axolotl's own examples."""


def _whole(job: Job) -> bool:
    """Whether every weight learns on every rank."""
    return job.plan.peft is None and not _sharded(job)


def _sharded(job: Job) -> bool:
    return runs_deepspeed(job) or (job.plan.shards is not Shards.NOTHING and job.data_parallel > 1)


REFUSALS: Final = (
    Refusal(lambda job: job.plan.tp * job.plan.pp * job.plan.cp * job.plan.ep > 1,
            "axolotl's file is written for data-parallel ranks only; use tp=pp=cp=ep=1"),
    Refusal(lambda job: job.workload.objective not in OBJECTIVES,
            f"axolotl's file is written for {', '.join(OBJECTIVES)}, not for {{workload.objective}}"),
    Refusal(lambda job: len(job.model.stacks) > 1 or job.model.head is not Head.LM,
            "axolotl's file is written for decoders only, and {job.model.name} has other parts; use --format "
            "transformers"),
    Refusal(lambda job: job.plan.recompute is Recompute.SELECTIVE,
            "axolotl recomputes whole layers only; use --recompute full"),
    Refusal(lambda job: _whole(job) and job.plan.precision not in (
                Precision.FP32, Precision.TF32) and not (
                job.plan.precision is Precision.BF16 and job.engine_options.get("autocast")),
            "axolotl loads weights in 16 bits and runs autocast over them, where {plan.precision} has others; use "
            "--precision bf16 --engine-option autocast=true"),
    Refusal(lambda job: not _whole(job) and job.plan.precision not in (
                Precision.AMP_BF16, Precision.AMP_FP16, Precision.MIXED_BF16, Precision.MIXED_FP16),
            "axolotl runs autocast over adapters and shards, not {plan.precision}; use --precision amp-bf16"),
    Refusal(lambda job: job.plan.peft is not None and loads_fp32(job),
            "axolotl loads frozen weights in 16 bits, not in float32; add --engine-option dtype=bfloat16"),
    Refusal(lambda job: job.plan.attention not in (*KERNELS, "cudnn") or job.plan.attention == "cudnn",
            "axolotl has no attention {plan.attention}; use flash, efficient or eager"),
)


def write(order: Order) -> tuple[File, ...]:
    """The one file; `axolotl train` reads it.

    Raises: Unsupported for what axolotl does not do
    """
    job: Job = order.job
    refuse(REFUSALS, job)
    refuse_chunks(job, "axolotl")
    table = (*_model(order), *_adapters(order), *_data(order), *_arguments(order), *_kernels(order), *_shards(order))
    head = head_of(order, f"axolotl train {NAME}")
    text = yaml_text(table, head=head)
    return (order.file(NAME, text, (Part("axolotl", "config"),), _notes(job)),)


def _notes(job: Job) -> tuple[str, ...]:
    found = [Note(
        "{}: axolotl {} installs {}, {}",
        NAME, RELEASE, ENGINE.replace("huggingface@", "transformers "),
        ", ".join(pair.replace("=", " ") for pair in BESIDE)
    )]
    if job.plan.peft is not None and job.plan.peft.base in STORED.values():
        found.append(Note("{}: base_model must be a checkpoint already quantised to {}", NAME, job.plan.peft.base))
    return tuple(found)


def _model(order: Order) -> Table:
    order.ask.also("option.accelerate", "option.trl")
    attention = order.job.plan.attention
    order.ask.also("attention")
    return (
        Line("base_model", hub_id(order.job.model)),
        Line("attn_implementation", KERNELS[attention], f"attention kernel: {attention or 'as PyTorch chooses'}"),
    )


def _adapters(order: Order) -> Table:
    ask, peft = order.ask, order.job.plan.peft
    if peft is None:
        return ()
    if ask("peft.method") not in ("lora", "dora"):
        raise Unsupported("axolotl has no {}; use lora or dora, or --format transformers", peft.method)
    if runs_deepspeed(order.job):
        ask.also("peft.adapter_dtype")  # cast with the rest
    elif ask("peft.adapter_dtype") == "fp16":
        raise Unsupported("axolotl keeps adapters in fp32 or in the type of the weights below, not in fp16; use "
                          "--adapter-dtype fp32")
    rank, named = ask("peft.rank"), names_of(order.job.model, ask("peft.targets"))
    lines = [
        *_base(order),
        Line("lora_r", rank), Line("lora_alpha", 2 * rank, "not part of the plan"),
        Line("lora_dropout", ask("peft.dropout")),
        Line("lora_target_modules", list(named.modules), "the adapted matrices"),
        *(Line(name, False, "PEFT's own code, as computed") for name in LORA_KERNELS),
    ]
    if named.parameters:
        lines.append(Line("lora_target_parameters", list(named.parameters), "stacked experts"))
    if peft.method == "dora":
        lines.append(Line("peft_use_dora", True, "direction and magnitude apart"))
    if peft.adapter_dtype == "bf16" and not runs_deepspeed(order.job) and not _narrowed(order.job):
        lines.append(Line("peft_autocast_adapter_dtype", False, "adapters as narrow as the weights below"))
    saved = names_saved(order.job.model, ask("peft.modules_to_save"))
    return (*lines, *([Line("lora_modules_to_save", list(saved), "learn whole beside adapters")] if saved else []))


def _narrowed(job: Job) -> bool:
    """TRL narrows the adapters of packed bases for preferences; others stay as PEFT makes them."""
    return job.workload.objective == "dpo" and job.plan.peft is not None and job.plan.peft.base in BASES


def _base(order: Order) -> list[Line]:
    order.ask.also("option.dtype", "option.prepare_kbit")
    base = order.ask("peft.base")
    if base not in BASES:
        return [Line("adapter", "lora", "only adapters learn")]
    if prepared_weights(order.job) != "nothing":
        raise Unsupported("axolotl casts norms and embeddings of a packed base back, which the plan counts in fp32; "
                          "add --engine-option prepare_kbit=none")
    kind, bits = BASES[base], 8 if base == "int8" else 4
    lines = [Line("adapter", kind, "only adapters learn"), Line(f"load_in_{bits}bit", True, f"frozen weights: {base}")]
    if base == "nf4":
        lines.append(Line("bnb_config_kwargs", (Line("bnb_4bit_use_double_quant", False),)))
    if order.ask("option.pack_experts"):
        lines.append(Line("quantize_moe_experts", True, "stacked experts are packed, too"))
    return lines


def _alone(order: Order) -> bool:
    """Whether preferences are compared without a reference, as ORPO does."""
    asked = order.job.engine_options
    if not all(str(asked.get(name)).lower() == value for name, _, value in (
            pair.partition("=") for pair in ALONE["engine-option"])):
        return False
    order.ask.also("option.precompute_ref_log_probs", "option.log_probs")
    return True


def _data(order: Order) -> Table:
    ask, objective = order.ask, order.ask("objective")
    alike = order.job.workload.min_seq_len is None
    packs = objective != "dpo" and alike and order.job.plan.attention == "flash"
    name = "pretraining_dataset" if objective == "pretrain" else "datasets"
    kind = "orpo" if objective == "dpo" and _alone(order) else objective
    lines = [
        *([Line("rl", kind, f"objective: {kind}")] if objective == "dpo" else []),
        Line(name, [DATASETS[kind]], "of axolotl's examples: name your own"),
        *([Line("max_steps", 1000, "a stream has no end of its own")] if objective == "pretrain" else []),
        Line("sequence_len", ask("seq_len"), "positions of a sample"),
        Line("sample_packing", packs, "samples fill the length" if packs else "one sample a row"),
        Line("output_dir", "./outputs/out"),
    ]
    if objective != "dpo":
        lines.append(Line("pad_to_sequence_len", alike))
        order.ask.also(*(["min_seq_len"] if order.job.workload.min_seq_len == 1 else []))
    return tuple(lines)


def _arguments(order: Order) -> Table:
    ask, plan = order.ask, order.job.plan
    ask.also("precision", "option.autocast")
    half = plan.precision in (Precision.AMP_FP16, Precision.MIXED_FP16)
    wide = plan.precision in (Precision.FP32, Precision.TF32)
    lines = [
        Line("micro_batch_size", ask("micro_batch"), "samples per forward on one GPU"),
        Line("gradient_accumulation_steps", ask("grad_accum"), "micro-batches per optimizer step"),
        Line("learning_rate", deepspeed.LEARNING_RATE, "not part of the plan: set your own"),
        Line("num_epochs", 1.0, "not part of the plan"),
        Line("optimizer", _optimizer(order), f"{plan.optimizer}, as planned"),
        Line("bf16", not half and not wide, f"precision: {plan.precision.value}"),
        *([Line("fp16", True)] if half else []),
        Line("tf32", plan.precision is Precision.TF32),
    ]
    offloads, peft = bool(ask("offload_activations")), plan.peft is not None
    if Recompute(ask("recompute")) is Recompute.NONE:
        if offloads and not peft:
            raise Unsupported("axolotl recomputes the layers whose activations wait on the host, where every weight "
                              "learns; use --recompute full")
        if offloads:
            return (*lines, Line("gradient_checkpointing", True, "activations are not made again beside adapters"),
                    Line("activation_offloading", True, "but wait on the host"))
        return (*lines, Line("gradient_checkpointing", False, "layers keep what backward needs"))
    if offloads:
        lines.append(Line("activation_offloading", "hidden_states" if peft else True, "inputs of layers wait there"))
    ask.also("option.reentrant")
    variant = (Line("use_reentrant", reentrant(order.job), "the variant that was computed"),)
    return (*lines, Line("gradient_checkpointing", True, "layers keep only their input"),
            Line("gradient_checkpointing_kwargs", variant))


def _optimizer(order: Order) -> str:
    name, kernel = order.job.plan.optimizer, kernel_of(order.job)
    order.ask.also("optimizer", "optimizer_kernel")
    own = written({word: meanings[0].optimizer for word, meanings in OWN_OPTIMS.items()})
    if name in own and order.job.plan.optimizer_kernel is None:
        return str(own[name])
    found = optim_of(name, kernel)
    if found is None or found[1] or name.startswith(("galore", "apollo")):
        if kernel:
            raise Unsupported("axolotl's file is not written for optimizer {} with kernel {}; use adamw or adamw-8bit",
                              name, kernel)
        raise Unsupported("axolotl's file is not written for optimizer {}; use adamw or adamw-8bit", name)
    return found[0]


def _kernels(order: Order) -> Table:
    """Liger's kernels one by one, and whose loss."""
    plan, kernels = order.job.plan, liger_kernels(order.job)
    cuts = bool(order.ask("option.cut_cross_entropy"))
    order.ask.also("loss", "option.liger")
    lines, plugins = [Line(SWITCHES[name], True, "Liger's, as computed") for name in kernels], []
    if plan.loss is Loss.FUSED_LINEAR and not cuts and FUSED_HEAD not in kernels:
        lines.append(Line(SWITCHES[FUSED_HEAD], True, "Liger's, as computed"))
    elif plan.loss is Loss.FUSED:
        lines.append(Line("liger_cross_entropy", True, "Liger's, as computed"))
    elif plan.loss not in (None, Loss.FUSED_LINEAR, Loss.COMPILED if plan.compile else Loss.EAGER):
        raise Unsupported("axolotl has no loss {}; use eager, fused or fused_linear", plan.loss)
    plugins += [LIGER_PLUGIN] if lines else []
    plugins += [CUT_PLUGIN] if cuts else []
    if order.ask("compile"):
        lines.append(Line("torch_compile", True, "kernels of norms, activations and the loss are fused"))
    return (*([Line("plugins", plugins)] if plugins else []), *lines)


def _shards(order: Order) -> Table:
    """DeepSpeed's file, or FSDP's table."""
    ask, job = order.ask, order.job
    if runs_deepspeed(job):
        return (Line("deepspeed", deepspeed.NAME, "ZeRO and offload stand there"),)
    if not _sharded(job):
        return ()
    version = 2 if job.plan.sharded_by != "fsdp1" else 1
    ask.also("sharded_by", "shards", "reshard_after_forward", "offload_optimizer", "offload_parameters",
             "option.backward_prefetch")
    offload = job.plan.offload_parameters != "none"
    if offload != (job.plan.offload_optimizer != "none") or job.plan.shard_group is not None:
        raise Unsupported("axolotl's FSDP offloads weights and states together, and shares one copy among all ranks")
    inner: list[Line] = [Line("offload_params", offload), Line("auto_wrap_policy", "TRANSFORMER_BASED_WRAP")]
    if version == 2:
        inner.append(Line("reshard_after_forward", job.plan.reshard_after_forward))
    else:
        inner.append(Line("fsdp_sharding_strategy", FSDP1_STRATEGIES[job.plan.shards.value]))
        prefetch = job.engine_options.get("backward_prefetch", "pre")
        inner += [Line("fsdp_backward_prefetch", "BACKWARD_PRE")] if prefetch == "pre" else []
    return (Line("fsdp_version", version, "who shards"), Line("fsdp_config", tuple(inner)))
