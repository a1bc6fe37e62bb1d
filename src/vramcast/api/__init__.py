"""The Python interface: `vramcast.train(...)` returns what the command line prints."""

from vramcast.api.answers import serve, train
from vramcast.api.jobs import job_of, serve_answer, serve_job_of, train_answer
from vramcast.api.observed import diagnose, diagnosis_of, reconcile, reconciliation_of, replay
from vramcast.api.planning import (
    PLANNERS,
    plan,
    plan_serve_answer,
    plan_train_answer,
    planned_serving,
    planned_training,
)

__all__ = [
    "PLANNERS", "diagnose", "diagnosis_of", "job_of", "plan", "plan_serve_answer", "plan_train_answer",
    "planned_serving", "planned_training", "reconcile", "reconciliation_of", "replay", "serve", "serve_answer",
    "serve_job_of", "train", "train_answer",
]
