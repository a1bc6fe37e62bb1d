"""Pieces of Python that several training scripts are made of: model, adapters, loss, attention, optimizer."""

from __future__ import annotations

import json
from typing import Any, Final

from vramcast.domain.job import AttentionKernel, Job, Loss, Precision
from vramcast.domain.model import Head
from vramcast.engines.eager.releases import sharder, transformers_version
from vramcast.engines.eager.trl import prepared_weights
from vramcast.engines.transformers.versions import attention_kernels
from vramcast.errors import Note, Unsupported
from vramcast.families.module_names import names_of, names_saved
from vramcast.formats.files import Order
from vramcast.formats.lines import commented

WEIGHT_DTYPES: Final = {
    Precision.FP64: "float64", Precision.FP32: "float32", Precision.TF32: "float32", Precision.AMP_BF16: "float32",
    Precision.AMP_FP16: "float32", Precision.BF16: "bfloat16", Precision.FP16: "float16",
    Precision.MIXED_BF16: "float32", Precision.MIXED_FP16: "float32", Precision.FP8: "float32",
}
"""What the weights are kept in where a framework keeps one copy: mixed recipes keep the fp32 one."""

COMPUTE_DTYPES: Final = {
    Precision.AMP_BF16: "bfloat16", Precision.MIXED_BF16: "bfloat16", Precision.AMP_FP16: "float16",
    Precision.MIXED_FP16: "float16",
}
"""What is computed in where it is not the weights' dtype."""

HUB_KERNELS: Final = {"gpt_oss": "kernels-community/vllm-flash-attn3", "mimo_v2_flash": "flash_attention_4"}
"""Family -> the implementation that it is compatible with."""

AUTO_CLASSES: Final = {
    Head.LM: "AutoModelForCausalLM", Head.MLM: "AutoModelForMaskedLM",
    Head.CLASSIFIER: "AutoModelForSequenceClassification",
}

KERNELS: Final = {
    AttentionKernel.FLASH: "FLASH_ATTENTION", AttentionKernel.EFFICIENT: "EFFICIENT_ATTENTION",
    AttentionKernel.CUDNN: "CUDNN_ATTENTION",
}
"""Kernel -> member of torch.nn.attention.SDPBackend."""

BASES: Final = {
    "nf4": 'load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16',
    "nf4-dq": 'load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, '
              "bnb_4bit_compute_dtype=torch.bfloat16",
    "int8": "load_in_8bit=True",
}
"""Storage of frozen weights -> arguments of transformers' BitsAndBytesConfig."""

STORED_BEFORE: Final = ("gptq-int4", "gptq-int8", "awq-int4")
"""Formats that a checkpoint must already have."""

ADAPTERS: Final = ("lora", "dora", "prefix", "prompt", "ia3")
"""Methods that the package peft has."""


def auto_class(job: Job) -> str:
    """Transformers' class for the network.

    Raises: Unsupported for networks that no such class trains
    """
    if len(job.model.stacks) > 1 and any(layer.cross_attention for layer in job.model.main.layers):
        return "AutoModelForSeq2SeqLM"
    if any(stack.vision is not None for stack in job.model.stacks):
        return "AutoModelForImageTextToText"
    if job.model.head not in AUTO_CLASSES:
        raise Unsupported("{} has no head that a training script could use; use a language model", job.model.name)
    return AUTO_CLASSES[job.model.head]


def attention_of(order: Order) -> str:
    """`attn_implementation` of transformers: its own code, PyTorch's kernels, or those that run what neither can."""
    kernel, family = AttentionKernel(order.ask("attention")), order.job.model.family
    if kernel is AttentionKernel.EAGER:
        return "eager"
    fused = attention_kernels(family, transformers_version(order.job))[0] is not AttentionKernel.EAGER
    return "sdpa" if fused else HUB_KERNELS.get(family, "flash_attention_2")


def kernel_lines(order: Order) -> str:
    """The context in which PyTorch's attention runs: the planned kernel first."""
    kernel = AttentionKernel(order.ask("attention"))
    if kernel is AttentionKernel.EAGER:
        return "    return contextlib.nullcontext()  # scores are materialised, as planned\n"
    return (
        f"    # the planned kernel first; the others where it cannot run, for example on CPU\n"
        f"    return sdpa_kernel([SDPBackend.{KERNELS[kernel]}, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],\n"
        f"                       set_priority=True)\n"
    )


def build_model_lines(order: Order, *, dtype: str) -> str:
    """`build_model()`: the checkpoint in the planned storage, adapters on top."""
    job: Job = order.job
    name = auto_class(job)
    base = order.ask("peft.base", "full")
    attention = attention_of(order)
    lines = [
        "def build_model():",
        f'    """{job.model.name} as planned: {order.ask("precision")}, attention {order.ask("attention")}."""',
        f"    from transformers import {name}" + (", BitsAndBytesConfig" if base in BASES else ""),
        "",
        f"    model = {name}.from_pretrained(",
        f'        MODEL, dtype=torch.{dtype}, attn_implementation="{attention}",',
    ]
    if base in BASES:
        stored = BASES[base].replace(", bnb_4bit_use", ",\n            bnb_4bit_use")
        if sharder(job) in ("fsdp1", "fsdp2"):
            stored += f",\n            bnb_4bit_quant_storage=torch.{dtype}"  # FSDP shards numbers of one type
        lines += [f"        # frozen weights: {base}", f"        quantization_config=BitsAndBytesConfig({stored}),"]
    lines += ["    )", *_adapter_lines(order), "    return model"]
    return "\n".join(lines) + "\n"


def _adapter_lines(order: Order) -> list[str]:
    ask = order.ask
    method = ask("peft.method")
    if method is None:
        return []
    if method not in ADAPTERS:
        raise Unsupported("a script that adapts by {} is not written; use {}", method, ", ".join(ADAPTERS))
    call, names = _adapter_call(order, method)
    dtype, packed = ask("peft.adapter_dtype"), ask("peft.base") in BASES
    keep, cast = "", []
    if dtype != "fp32" and packed:  # PEFT leaves adapters of packed layers fp32, asked or not [peft issue 2889]
        cast = [
            "    for parameter in model.parameters():",
            "        if parameter.requires_grad:",
            f"            parameter.data = parameter.data.{'half' if dtype == 'fp16' else 'bfloat16'}()",
        ]
    elif dtype != "fp32":
        keep = ", autocast_adapter_dtype=False"
    prepare = _preparation(order) if packed else []
    names += ", prepare_model_for_kbit_training" if any("kbit" in line for line in prepare) else ""
    return [f"    from peft import {names}, get_peft_model", "", *prepare,
            f"    model = get_peft_model(model, {call}{keep})", *cast]


def _preparation(order: Order) -> list[str]:
    """What the answer counts as prepared of a packed base, and what checkpoints of frozen layers need."""
    order.ask.also("option.trl", "option.prepare_kbit")
    match prepared_weights(order.job):
        case "all":
            full = order.job.plan.recompute == "full"
            return [f"    model = prepare_model_for_kbit_training(model, use_gradient_checkpointing={full})"]
        case "norms":
            lines = [
                "    for name, parameter in model.named_parameters():",
                '        if "norm" in name:',
                "            parameter.data = parameter.data.float()  # as TRL prepares packed models",
            ]
        case _:
            lines = []
    reentrant = order.job.engine_options.get("reentrant") and order.job.plan.recompute == "full"
    return [*lines, "    model.enable_input_require_grads()"] if reentrant else lines


def _adapter_call(order: Order, method: str) -> tuple[str, str]:
    ask, model = order.ask, order.job.model
    task = '"SEQ_2_SEQ_LM"' if auto_class(order.job) == "AutoModelForSeq2SeqLM" else '"CAUSAL_LM"'
    if method in ("prefix", "prompt"):
        name = "PrefixTuningConfig" if method == "prefix" else "PromptTuningConfig"
        ask.also("peft.rank", "peft.targets")
        return f"{name}(task_type={task}, num_virtual_tokens={ask('peft.virtual_tokens')})", name
    named, saved = names_of(model, ask("peft.targets")), names_saved(model, ask("peft.modules_to_save"))
    targets = list(named.modules)
    extra = f", modules_to_save={list(saved)!r}" if saved else ""
    extra += f", target_parameters={list(named.parameters)!r}" if named.parameters else ""
    if method == "ia3":
        ask.also("peft.rank", "peft.dropout")
        feed = [name for name in targets if name in names_of(model, ("mlp.down",)).modules]
        call = f"IA3Config(task_type={task}, target_modules={targets!r}, feedforward_modules={feed!r}{extra})"
        return call, "IA3Config"
    rank = ask("peft.rank")
    dora = ", use_dora=True" if method == "dora" else ""
    call = (
        f"LoraConfig(\n        task_type={task}, r={rank}, lora_alpha={2 * rank}, lora_dropout={ask('peft.dropout')},\n"
        f"        target_modules={targets!r}{extra}{dora},\n    )"
    )
    return call, "LoraConfig"


LOSSES: Final[dict[Loss, tuple[str, ...]]] = {
    Loss.EAGER: (
        "    logits = model(input_ids=tokens).logits.float()",
        "    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())",
    ),
    Loss.COMPILED: (
        "    return compiled_cross_entropy(model(input_ids=tokens).logits, tokens)",
    ),
    Loss.FUSED: (
        "    from liger_kernel.transformers import LigerCrossEntropyLoss",
        "",
        "    logits = model(input_ids=tokens).logits",
        "    return LigerCrossEntropyLoss()(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())",
    ),
    Loss.FUSED_LINEAR: (
        "    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss",
        "",
        "    hidden = model.get_decoder()(input_ids=tokens).last_hidden_state[:, :-1].flatten(0, 1)",
        "    head = model.get_output_embeddings().weight",
        "    return LigerFusedLinearCrossEntropyLoss()(head, hidden, tokens[:, 1:].flatten())",
    ),
    Loss.CHUNKED: (
        "    hidden = model.get_decoder()(input_ids=tokens).last_hidden_state[:, :-1].flatten(0, 1)",
        "    head, labels, parts = model.get_output_embeddings(), tokens[:, 1:].flatten(), []",
        "    for rows, targets in zip(hidden.chunk(LOSS_CHUNKS), labels.chunk(LOSS_CHUNKS)):",
        "        parts.append(checkpoint(chunk_loss, head, rows, targets, use_reentrant=False))",
        "    return torch.stack(parts).sum() / labels.numel()",
    ),
}
"""Body of `loss_of(model, tokens)` by implementation."""

BEFORE_LOSS: Final = {
    Loss.COMPILED: (
        "@torch.compile\n"
        "def compiled_cross_entropy(logits, tokens):\n"
        '    """Upcast and softmax in one kernel."""\n'
        "    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())\n\n\n"
    ),
    Loss.CHUNKED: (
        "def chunk_loss(head, rows, targets):\n"
        '    """Summed loss of some positions; their logits are freed and computed again in backward."""\n'
        '    return F.cross_entropy(head(rows).float(), targets, reduction="sum")\n\n\n'
    ),
}

OPTIMIZERS: Final[dict[str, tuple[str, str]]] = {
    "sgd": ("torch.optim.SGD", ""), "sgd-momentum": ("torch.optim.SGD", ", momentum=0.9"),
    "rmsprop": ("torch.optim.RMSprop", ""), "rmsprop-momentum": ("torch.optim.RMSprop", ", momentum=0.9"),
    "adagrad": ("torch.optim.Adagrad", ""), "adadelta": ("torch.optim.Adadelta", ""),
    "adam": ("torch.optim.Adam", ""), "adamw": ("torch.optim.AdamW", ""),
    "adamw-amsgrad": ("torch.optim.AdamW", ", amsgrad=True"), "adamax": ("torch.optim.Adamax", ""),
    "nadam": ("torch.optim.NAdam", ""), "radam": ("torch.optim.RAdam", ""),
    "adafactor": ("transformers.optimization.Adafactor", ", relative_step=False, scale_parameter=False"),
    "adam-8bit": ("bitsandbytes.optim.Adam8bit", ""), "adamw-8bit": ("bitsandbytes.optim.AdamW8bit", ""),
    "lion-8bit": ("bitsandbytes.optim.Lion8bit", ""), "sgd-8bit": ("bitsandbytes.optim.SGD8bit", ", momentum=0.9"),
    "paged-adamw-8bit": ("bitsandbytes.optim.PagedAdamW8bit", ""),
    "adamw-4bit": ("torchao.optim.AdamW4bit", ""), "lion": ("bitsandbytes.optim.Lion", ""),
    "schedulefree-adamw": ("schedulefree.AdamWScheduleFree", ""),
    "schedulefree-sgd": ("schedulefree.SGDScheduleFree", ""),
}
"""Optimizer -> class and further arguments."""

KERNEL_ARGUMENTS: Final = {"foreach": ", foreach=True", "fused": ", fused=True", "loop": ", foreach=False, fused=False"}


def optimizer_lines(order: Order) -> str:
    """`build_optimizer(model)` over what learns."""
    name, kernel = order.ask("optimizer"), order.ask("optimizer_kernel")
    if name not in OPTIMIZERS:
        raise Unsupported("no code is known for optimizer={}; use {}", name, ", ".join(OPTIMIZERS))
    path, extra = OPTIMIZERS[name]
    module, _, attribute = path.rpartition(".")
    if path.startswith("torch.optim.") and kernel is not None:
        extra += KERNEL_ARGUMENTS[kernel]
    before = "" if module == "torch.optim" else f"    from {module} import {attribute}\n\n"
    called = path if module == "torch.optim" else attribute
    return (
        "def build_optimizer(model):\n"
        f'    """{name}, as planned; the learning rate is not part of the plan."""\n{before}'
        "    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]\n"
        f"    return {called}(learning, lr=LEARNING_RATE{extra})\n"
    )


def stored_before(order: Order, script: str) -> tuple[str, ...]:
    """What a user has to know of a script whose checkpoint must be in a format that no framework makes."""
    peft = order.job.plan.peft
    if peft is None or peft.base not in STORED_BEFORE:
        return ()
    return (Note("{}: MODEL must be a checkpoint already quantised to {}", script, peft.base),)


def constant(name: str, value: Any, why: str) -> str:
    """One constant of a script with its reason."""
    text = json.dumps(value) if isinstance(value, str) else repr(value)
    return commented(f"{name} = {text}", why)
