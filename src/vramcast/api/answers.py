"""The commands that answer for one plan, by name: each as the function of its own module does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from vramcast import api
from vramcast.domain.answer import Answer

ANSWERS: Final[Mapping[str, Callable[..., Answer]]] = {
    "train": lambda options, **how: api.train_answer(options, **how)[1],
    "serve": lambda options, **how: api.serve_answer(options, **how),
    "rl": lambda options, **how: api.post_training_answer(options, **how),
}


def answer_to(command: str, options: Mapping[str, Any], **how: Any) -> Answer:
    """The answer to a question of a command.

    Args:
        how: as `train_answer` has it: file, resolve, with_changes
    """
    return ANSWERS[command](options, **how)
