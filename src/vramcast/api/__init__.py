"""The Python interface: `vramcast.train(...)` returns what the command line prints.

A function's module is imported when it is first asked for: an answer to one question needs a few of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from vramcast.api.failures import diagnose, diagnosis_of
    from vramcast.api.planning import plan, planned_serving, planned_training
    from vramcast.api.recordings import replay
    from vramcast.api.serving import reconcile, serve, serve_answer, serve_job_of
    from vramcast.api.training import job_of, train, train_answer

__all__ = [
    "diagnose", "diagnosis_of", "job_of", "plan", "planned_serving", "planned_training", "reconcile", "replay", "serve",
    "serve_answer", "serve_job_of", "train", "train_answer",
]

MODULES: Final = {
    **dict.fromkeys(("job_of", "train", "train_answer"), "training"),
    **dict.fromkeys(("reconcile", "serve", "serve_answer", "serve_job_of"), "serving"),
    **dict.fromkeys(("diagnose", "diagnosis_of"), "failures"), "replay": "recordings",
}
"""Name -> its module; all others are in `planning`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'vramcast.api' has no attribute {name!r}")
    return getattr(import_module(f"vramcast.api.{MODULES.get(name, 'planning')}"), name)
