"""What ms-swift trains that is no language model: labels, embeddings and rerankers.

[swift] modelscope/ms-swift 4.6.0.dev0 (3602360a5) swift/model/{register,patcher}.py, template/base.py, loss/*.py
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vramcast.errors import Note
from vramcast.formats.reading import Unread

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
