"""What a plan says, asked for by name, so that what no file says can be told to the user."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

import msgspec.structs

from vramcast.domain.job import Job, Peft, Plan, Workload
from vramcast.domain.serving import Draft, Requests, ServeJob, ServePlan
from vramcast.engines.eager.question import attention_of

ALWAYS: Final = ("precision", "optimizer", "attention", "seq_len", "micro_batch", "grad_accum")
"""Settings that have no neutral value: some file must say them, whatever they are."""

NEUTRAL: Final = {Job: (Plan(), Workload()), ServeJob: (ServePlan(), Requests())}
"""What every framework does anyway, by what is asked."""


class Asked:
    """The settings of one job. What is asked for counts as said by the file that asks."""

    def __init__(self, job: Job | ServeJob) -> None:
        self.job = job
        self.settings = settings_of(job)
        self.said: set[str] = set()

    def __call__(self, name: str, default: Any = None) -> Any:
        """The value of a setting: "tp", "peft.rank", "option.capacity_factor", "env.NAME"."""
        self.said.add(name)
        return self.settings.get(name, default)

    def also(self, *names: str) -> None:
        """Settings that the file honours by nature, or that say something about data or code, not about a setting."""
        self.said.update(names)


def settings_of(job: Job | ServeJob) -> dict[str, Any]:
    """Every setting of a job by name, enumerations as their text."""
    found = dict(_fields(job.plan))
    if isinstance(job, Job):
        found["attention"] = attention_of(job).value
    found |= _fields(job.workload if isinstance(job, Job) else job.requests)
    for part in ("peft", "draft"):
        inner = found.pop(part, None)
        if inner is not None:
            found |= {f"{part}.{name}": value for name, value in _fields(inner).items()}
    found |= {f"option.{name}": value for name, value in job.engine_options.items()}
    if isinstance(job, Job):
        found["alloc_conf"] = job.alloc_conf
        found |= {f"env.{name}": value for name, value in job.env.items()}
    return found


def _fields(noun: Any) -> dict[str, Any]:
    fields = msgspec.structs.asdict(noun)
    return {name: value.value if isinstance(value, Enum) else value for name, value in fields.items()}


def needed(job: Job | ServeJob) -> dict[str, Any]:
    """The settings that differ from what every framework does anyway, and those that always have to be said."""
    nouns = NEUTRAL[type(job)]
    neutral = {name: value for noun in nouns for name, value in _fields(noun).items()} | {"alloc_conf": ""}
    for part, noun in (("peft", Peft()), ("draft", Draft())):
        neutral |= {f"{part}.{name}": value for name, value in _fields(noun).items()}
    return {name: value for name, value in settings_of(job).items() if _has_to_be_said(name, value, neutral)}


def _has_to_be_said(name: str, value: Any, neutral: Mapping[str, Any]) -> bool:
    if name in ("peft.method", "draft.kind", "context", "concurrency"):
        return value is not None
    if name in ALWAYS:
        return value is not None
    return name not in neutral or value != neutral[name]


def option_of(name: str) -> str:
    """A setting as the command line writes it.

    >>> option_of("grad_accum"), option_of("peft.rank"), option_of("option.fsdp")
    ('--grad-accum', '--lora-rank', '--engine-option fsdp')
    """
    part, dot, rest = name.partition(".")
    if part == "option":
        return f"--engine-option {rest}"
    if part == "env":
        return rest
    known = {"peft.method": "peft", "peft.rank": "lora-rank", "peft.targets": "lora-targets", "peft.base":
             "base-weights", "peft.dropout": "lora-dropout", "draft.kind": "draft", "draft.tokens": "draft-tokens"}
    return "--" + known.get(name, (rest if dot else name)).replace("_", "-")
