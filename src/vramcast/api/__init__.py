"""The Python interface: `vramcast.train(...)` returns what the command line prints.

A function's module is imported when it is first asked for: an answer to one question needs a few of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vramcast.lazy import names

if TYPE_CHECKING:
    from vramcast.api.answers import answer_to
    from vramcast.api.choices import asks_which, card_choices
    from vramcast.api.failed_job import asks_serve
    from vramcast.api.failures import diagnosis_of
    from vramcast.api.fitting import fitting_models
    from vramcast.api.fixing import fitting_texts, write_fixed
    from vramcast.api.jobs import question_of
    from vramcast.api.plan_serving import planned_serving
    from vramcast.api.planning import planned_training
    from vramcast.api.post_training import post_training_answer, post_training_job_of
    from vramcast.api.recordings import replay
    from vramcast.api.server_logs import reconcile
    from vramcast.api.serving import serve_answer, serve_job_of
    from vramcast.api.shown import diagnose, plan, rl, serve, train
    from vramcast.api.tracing import traced_target
    from vramcast.api.training import job_of, train_answer

MODULES: Final = {
    **dict.fromkeys(("diagnose", "plan", "rl", "serve", "train"), "shown"),
    **dict.fromkeys(("asks_which", "card_choices"), "choices"),
    **dict.fromkeys(("job_of", "train_answer"), "training"),
    **dict.fromkeys(("serve_answer", "serve_job_of"), "serving"),
    "answer_to": "answers", "fitting_models": "fitting",
    "question_of": "jobs", "planned_training": "planning", "planned_serving": "plan_serving",
    "asks_serve": "failed_job", "diagnosis_of": "failures",
    **dict.fromkeys(("post_training_answer", "post_training_job_of"), "post_training"),
    "reconcile": "server_logs", "replay": "recordings",
    "traced_target": "tracing", "write_fixed": "fixing", "fitting_texts": "fixing",
}
"""Name -> its module."""

__all__ = [
    "answer_to", "asks_serve", "asks_which", "card_choices", "diagnose", "diagnosis_of", "fitting_models",
    "fitting_texts", "job_of", "plan", "planned_serving", "planned_training", "post_training_answer",
    "post_training_job_of", "question_of", "reconcile", "replay", "rl", "serve", "serve_answer", "serve_job_of",
    "traced_target", "train", "train_answer", "write_fixed",
]

__getattr__ = names(__name__, MODULES)
