"""Which options the questions of a command have; a table is loaded when its command is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from vramcast import question

if TYPE_CHECKING:
    from vramcast.question.option import Option

TABLES: Final[Mapping[str, Callable[[], Mapping[str, Option]]]] = {
    "train": lambda: question.options.OPTIONS,
    "serve": lambda: question.serving_options.SERVE_OPTIONS,
    "rl": lambda: question.post_training_options.POST_TRAINING_OPTIONS,
    "plan train": lambda: question.plan_options.PLAN_OPTIONS,
    "plan serve": lambda: question.plan_serving.PLAN_SERVE_OPTIONS,
}


def table_of(command: str) -> Mapping[str, Option]:
    """The options of a command by name; `model` and `gpus` stand beside them."""
    return TABLES[command]()
