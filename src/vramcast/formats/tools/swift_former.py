"""Parts of reading ms-swift that its two programs share, and its arguments before release 3: `--sft_type`, `--dtype`.

[swift 1.5] modelscope/ms-swift 97e4d198b swift/llm/utils/argument.py `SftArguments`, swift/llm/sft.py
[swift 2] modelscope/ms-swift 2.5 swift/llm/utils/argument.py

What ms-swift trains but a language model on its own: labels, embeddings, rerankers, students of a teacher.

[swift] modelscope/ms-swift 4.6.0.dev0 (3602360a5) swift/model/{register,patcher}.py, template/base.py, loss/*.py,
arguments/rlhf_args.py, rlhf_trainers/gkd_trainer.py
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from vramcast.catalogue.formats import networks_of
from vramcast.errors import Note
from vramcast.formats.reading import (
    ELSEWHERE,
    Reading,
    Unread,
    lengths_of,
    shown,
    together,
)
from vramcast.formats.tools.transformers import ARGUMENTS, optimizer_of
from vramcast.formats.tools.trl import generation_of
from vramcast.formats.watched import Known, Watched

TASKS: Final = {"causal_lm": "", **dict.fromkeys(
    ("seq_cls", "reranker", "generative_reranker", "embedding"), "classification")}
"""`task_type` -> what is optimised: where it is no language model, few numbers of the last position."""

RATED: Final = ("cosine_similarity", "contrastive", "online_contrastive", "infonce", "pointwise_reranker",
                "listwise_reranker")
"""`loss_type` of a few numbers a text [swift loss/{embedding,reranker}.py]."""

OWN_HEAD: Final = Unread("task_type", "leaves a head of its own in memory, unused, which is not modelled",
                         about="own head")

HEADLESS: Final = ("embedding", "generative_reranker")
"""Tasks that read the last position past a head that stays [swift model/register.py, model/patcher.py]."""

MOST_TEXTS: Final = {"MAX_POSITIVE_SAMPLES": 1, "MAX_NEGATIVE_SAMPLES": 7}
"""Variable -> how many where nobody sets it [swift template/base.py]."""


def texts_of(task: str, variables: Mapping[str, str]) -> tuple[int, tuple[str, ...]]:
    """Texts of one sample, all of which a forward reads [swift template/base.py `_embedding_data_collator`,
    `_reranker_data_collator`]."""
    if task == "embedding":
        return 2, (Note("task_type embedding: a sample is taken for two texts, a query and what answers it; those it "
                        "should not be are texts more (--micro-batch)"),)
    if "reranker" not in task:
        return 1, ()
    good, bad = (int(said) if (said := variables.get(name, "")).isdecimal() else usual
                 for name, usual in MOST_TEXTS.items())
    texts = good * (1 + bad)
    return texts, (Note("task_type {}: a sample is taken for {} texts, as many as MAX_NEGATIVE_SAMPLES takes of the "
                        "data; where those have fewer it is less (--micro-batch)", task, texts),)


LMBDA: Final = 0.5
"""Share of steps that learn from what the student writes, unasked [swift arguments/rlhf_args.py `lmbda`]."""

ANSWERS: Final = 512
"""`max_completion_length` [swift rlhf_trainers/arguments.py]."""


def taught(values: Watched) -> dict[str, Any]:
    """GKD: the teacher, who writes, and how the divergence is made [swift rlhf_trainers/gkd_trainer.py]."""
    values.must_be_unset("teacher_model_server", "is a teacher elsewhere, whose answers come as numbers of the most "
                         "likely words, which is not modelled")
    values.must_be_unset("gkd_logits_topk", "compares the most likely words alone, which is not modelled")
    values.must_be_off("offload_teacher_model", "moves the teacher to the card for each forward, which is not modelled")
    if dict.get(values, "teacher_deepspeed") not in (None, dict.get(values, "deepspeed")):
        values.cannot("teacher_deepspeed", "other than deepspeed is not modelled")
    values.get("teacher_deepspeed")
    if values.number("sft_alpha"):
        values.cannot("sft_alpha", "adds a cross entropy of all logits, which is not modelled")
    values.ignore("seq_kd")
    teacher = values.text("teacher_model")
    if teacher is None or teacher == values.text("model"):
        values.cannot("teacher_model", "is the student itself, which is not modelled; name another network",
                      option="teacher")
    found: dict[str, Any] = {} if teacher is None else {"teacher": teacher}
    if values.number("lmbda", LMBDA):
        found["completion-len"] = values.count("max_completion_length") or ANSWERS
    values.get("max_completion_length")
    found = together(found, generation_of(values, answered=False))
    return together(found, {"engine-option": ("log_probs=rows", f"beta={values.number('beta', 0.5):g}")})


KNOWN: Final = Known("swift", "former", (Known("swift", "arguments"), ARGUMENTS))

FORMER: Final = ("sft_type", "lora_dropout_p", "lora_target_modules", "quantization_bit", "use_flash_attn",
                 "custom_train_dataset_path", "model_id_or_path")
"""Names that releases since 3 do not have."""

LENGTH: Final = 2048
"""max_length where nobody says it."""

SAMPLES: Final = 16
"""Samples of a step that gradient_accumulation_steps is made from where nobody says it."""

GALORE_RANK: Final = 128
"""galore_rank where nobody says it [swift 2 argument.py]."""

STORED: Final = re.compile(r"-(int4|int8|awq)$")

OF_ADAPTERS: Final = ("lora_target_modules", "lora_rank", "lora_dropout_p", "target_modules", "use_dora")

USUAL: Final = "attention.q,attention.k,attention.v"

SPLIT: Final = {"DEFAULT": USUAL, "AUTO": USUAL, "ALL": "all"}
"""Words of `lora_target_modules`."""


def is_former(table: Mapping[str, Any]) -> bool:
    """Whether arguments are of a release before 3."""
    return any(name in table for name in FORMER) or ("model_type" in table and "model" not in table)


def read_former(table: Mapping[str, Any]) -> Reading:
    """What such a command trains."""
    values = Watched(table, KNOWN)
    kind, stored = values.get("sft_type", "lora"), _stored(values)
    options = together(
        {"engine": "huggingface", "engine-option": ("shifted_loss=true",)}, _model(values),
        _precision(values, kind, stored), _recompute(values), _attention(values), _adapters(values, kind, stored),
        _optimizer(values),
    )
    options |= {"seq-len": values.count("max_length") or LENGTH} | lengths_of(packed=False)
    if values.get("deepspeed") or values.get("deepspeed_config_path"):
        values.cannot("deepspeed" if "deepspeed" in values else "deepspeed_config_path", ELSEWHERE, file="deepspeed")
    micro, steps = values.count("batch_size") or 1, values.count("gradient_accumulation_steps")
    batch = {"micro": micro} | ({"accumulation": steps} if steps else {"global": SAMPLES})
    values.get("tuner_backend")
    notes = () if "max_length" in values else (Note("max_length is not given: {}, as ms-swift has it", LENGTH),)
    return Reading("swift", options, {}, batch, tuple(values.unread()), notes)


def _model(values: Watched) -> dict[str, Any]:
    if model := values.text("model_id_or_path"):
        values.get("model_type")
        return {"model": model}
    named = values.text("model_type")
    if named is None:
        return {}
    found = networks_of("swift")["models"].get(STORED.sub("", named))
    if found is None:
        values.cannot("model_type", "{} is not known here; give MODEL", shown(named), option="model")
        return {}
    return {"model": found}


def _stored(values: Watched) -> str:
    """How frozen weights lie."""
    found = STORED.search(str(values.get("model_type") or values.get("model_id_or_path") or "").lower())
    if found is not None:
        values.get("quantization_bit")
        return {"int4": "gptq-int4", "int8": "gptq-int8", "awq": "awq-int4"}[found[1]]
    bits = values.whole("quantization_bit") or 0
    values.only("bnb_4bit_quant_type", "nf4")
    values.get("bnb_4bit_comp_dtype")  # of what is unpacked for a while
    double = values.flag("bnb_4bit_use_double_quant") is not False
    if bits not in (0, 4, 8):
        values.refuse("quantization_bit", "0, 4 or 8", option="base-weights")
    return {4: "nf4-dq" if double else "nf4", 8: "int8"}.get(bits, "")


def _precision(values: Watched, kind: Any, stored: str) -> dict[str, Any]:
    """AWQ computes in fp16 whatever is said."""
    dtype = "fp16" if stored == "awq-int4" else str(values.get("dtype", "bf16"))
    values.ignore("bf16", "fp16", "dtype")
    if dtype not in ("bf16", "fp16", "fp32", "AUTO"):
        values.refuse("dtype", "bf16, fp16, fp32 or AUTO", option="precision")
    dtype = "bf16" if dtype == "AUTO" else dtype
    if dtype == "fp32":
        return {"precision": dtype}
    if kind == "full":  # weights in that type, and the trainer's autocast [swift 1.5 sft.py `bf16=args.bf16`]
        return {"precision": dtype, "engine-option": ("autocast=true",)}
    return {"precision": f"amp-{dtype}"}


def _recompute(values: Watched) -> dict[str, Any]:
    if values.flag("gradient_checkpointing") is False:
        return {"recompute": "none"}
    return {"recompute": "full", "engine-option": ("reentrant=true",)}


def _attention(values: Watched) -> dict[str, Any]:
    flash = values.flag("use_flash_attn")
    return {} if flash is None else {"attention": "flash" if flash else "eager"}


def _optimizer(values: Watched) -> dict[str, Any]:
    if not values.flag("use_galore"):
        return optimizer_of(Watched({"optim": values.get("optim", "adamw_torch")}))
    values.get("optim")
    for name in ("galore_optim_per_parameter", "galore_with_embedding", "galore_quantization"):
        values.only(name, False)
    return {"optimizer": f"galore:{values.count('galore_rank') or GALORE_RANK}"}


def _adapters(values: Watched, kind: Any, stored: str) -> dict[str, Any]:
    """LoRA: ms-swift's own keeps adapters in the type of the weights, PEFT's in fp32."""
    if kind not in ("lora", "adalora"):
        if kind != "full":
            values.cannot("sft_type", "{} is not modelled; lora, adalora and full are", shown(kind), option="peft")
        values.ignore(*OF_ADAPTERS)
        return {}
    own = values.get("tuner_backend") == "swift" and not stored and values.get("dtype", "bf16") in ("bf16", "AUTO")
    given = values.get("lora_target_modules") or values.get("target_modules") or "DEFAULT"
    named = given if isinstance(given, list) else str(given).split(",")
    found: dict[str, Any] = {
        "peft": "dora" if values.flag("use_dora") else str(kind), "lora-rank": values.count("lora_rank") or 8,
        "lora-dropout": values.number("lora_dropout_p", 0.05), "adapter-dtype": "bf16" if own else "fp32",
        "lora-targets": ",".join(SPLIT.get(word, word) for word in map(str, named)),
    }
    return found | ({"base-weights": stored} if stored else {})


DTYPES: Final = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def types_of(values: Watched) -> tuple[str, bool, bool]:
    """The type of weights ("": none that is known, which is said), and whether fp16 and bf16 are switched on.

    Source: [swift] base_args/model_args.py `_init_mixed_precision`
    """
    dtype = DTYPES.get(str(values.get("torch_dtype", "bfloat16")), "")
    if not dtype:
        values.refuse("torch_dtype", "one of {}", ", ".join(DTYPES), option="precision")
    half, wide = values.flag("fp16"), values.flag("bf16")
    return dtype, dtype in ("fp16", "fp32") if half is None else half, dtype == "bf16" if wide is None else wide


def of_a_file(words: tuple[str, ...], tool: str) -> tuple[Unread, ...]:
    """The file that a command's arguments stand in, and what goes before it [swift cli/main.py `parse_yaml_args`]."""
    if "--use_ray" in words and "--config" in words[:-1]:  # [swift ray/megatron/__init__.py]
        return (Unread(words[words.index("--config") + 1].rpartition("/")[2], ELSEWHERE, file=tool),)
    if not words or not words[0].endswith((".yaml", ".yml", ".json")):
        return ()
    beside = tuple(Unread(word[:80], BEHIND) for word in words[1:] if word.startswith("--"))
    return (Unread(words[0], ELSEWHERE, file=tool), *beside)


BEHIND: Final = "stands behind a file of arguments, where it is not read; put it in the file"
