"""The Python interface: `vramcast.train(...)` returns what the command line prints.

A function's module is imported when it is first asked for: an answer to one question needs a few of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vramcast.lazy import names

if TYPE_CHECKING:
    from vramcast.api.answers import (
        answer_to,
        asks_serve,
        job_of,
        post_training_answer,
        post_training_job_of,
        serve_answer,
        serve_job_of,
        train_answer,
    )
    from vramcast.api.choices import card_choices, fitting_models
    from vramcast.api.failures import diagnosis_of
    from vramcast.api.fixing import fitting_texts, write_fixed
    from vramcast.api.jobs import asks_which, question_of
    from vramcast.api.planning import planned_serving, planned_training
    from vramcast.api.recordings import replay
    from vramcast.api.shown import diagnose, plan, reconcile, rl, serve, train
    from vramcast.api.tracing import traced_target

MODULES: Final = {
    name: module for module, offered in {
        "shown": ("diagnose", "plan", "reconcile", "rl", "serve", "train"),
        "failures": ("diagnosis_of",),
        "recordings": ("replay",),
        "answers": (
            "answer_to", "asks_serve", "job_of", "post_training_answer", "post_training_job_of", "serve_answer",
            "serve_job_of", "train_answer",
        ),
        "jobs": ("asks_which", "question_of"),
        "choices": ("card_choices", "fitting_models"),
        "planning": ("planned_serving", "planned_training"),
        "tracing": ("traced_target",),
        "fixing": ("fitting_texts", "write_fixed"),
    }.items() for name in offered
}
"""Name -> its module."""

__all__ = [
    "answer_to", "asks_serve", "asks_which", "card_choices", "diagnose", "diagnosis_of", "fitting_models",
    "fitting_texts", "job_of", "plan", "planned_serving", "planned_training", "post_training_answer",
    "post_training_job_of", "question_of", "reconcile", "replay", "rl", "serve", "serve_answer", "serve_job_of",
    "traced_target", "train", "train_answer", "write_fixed",
]

__getattr__ = names(__name__, MODULES)
