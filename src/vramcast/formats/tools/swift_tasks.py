"""What ms-swift trains but a language model on its own: labels, embeddings, rerankers, students of a teacher.

[swift] modelscope/ms-swift 4.6.0.dev0 (3602360a5) swift/model/{register,patcher}.py, template/base.py, loss/*.py,
arguments/rlhf_args.py, rlhf_trainers/gkd_trainer.py
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vramcast.errors import Note
from vramcast.formats.reading import Unread, together
from vramcast.formats.tools.trl import generation_of
from vramcast.formats.watched import Watched

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
