"""The table of what can be asked of `vramcast tune`, and what a set of options asks for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from vramcast.domain.trace_job import ScriptJob
from vramcast.domain.varied import ALLOWED, CHANGES, GOALS, TuneJob
from vramcast.errors import InvalidSpec, UnknownName
from vramcast.question.option import Kind, Option, headroom_of
from vramcast.question.options import HEADROOM, parse
from vramcast.question.tracing import NOTEBOOK, STANDARD_INPUT, TRACE_OPTIONS, build_script, is_command

OF_TRACE: Final = (
    "gpu", "capacity", "module-loading", "alloc-conf", "steps", "memory-limit", "value", "data", "time-limit",
)
TUNE_OPTIONS: Final[dict[str, Option]] = {
    "goal": Option(
        "tune", "goal", Kind.CHOICE, "what is made best: tokens/s, samples/s, or memory for the smallest need; by "
        "default tokens/s of a text, else samples/s", GOALS,
    ),
    "allow": Option(
        "tune", "allow", Kind.NAMES, "changes of what is computed that may be tried: bf16 (autocast), tf32, 8bit "
        "(optimizer states of bitsandbytes)",
    ),
    "forbid": Option("tune", "forbid", Kind.NAMES, f"changes that are not tried: {', '.join(CHANGES)}"),
    "any-batch": Option("tune", "any_batch", Kind.FLAG, "micro-batch times accumulation may change, too"),
    **{name: TRACE_OPTIONS[name] for name in OF_TRACE},
    "headroom": Option("tune", "headroom", Kind.TEXT, HEADROOM),
}
"""Name as users write it -> where it goes. The script and its arguments stand beside it."""
SEVERAL: Final = re.compile(r"(\d+x)+")


def build_tune(
    path: str, options: Mapping[str, Any], *, arguments: Iterable[str] = ()
) -> tuple[ScriptJob, TuneJob]:
    """The script's run and how it is tuned.

    Raises: SourceError where there is no such script, InvalidSpec or UnknownName with one sentence
    """
    given = {name: value for name, value in options.items() if value is not None and value != ()}
    for name in given:
        if name not in TUNE_OPTIONS:
            raise UnknownName.of("option", name, TUNE_OPTIONS)
    if path == STANDARD_INPUT or path.endswith(NOTEBOOK) or is_command(path) or not path.endswith(".py"):
        raise InvalidSpec("{} is no file that a patch can be of; name the script itself, as train.py", path)
    if SEVERAL.match(str(given.get("gpu", ""))):
        raise InvalidSpec(
            "gpu={}: a script is tuned for one GPU; name it alone, and ask `vramcast plan train` how to share a model "
            "among several", given["gpu"]
        )
    own = [name for name in TUNE_OPTIONS if name not in (*OF_TRACE, "headroom")]
    values = {name: parse(name, given[name], TUNE_OPTIONS) for name in own if name in given}
    for name in values.get("allow", ()):
        if name not in ALLOWED:
            raise UnknownName.of("change of what is computed", name, ALLOWED)
    for name in values.get("forbid", ()):
        if name not in CHANGES:
            raise UnknownName.of("change of a script", name, CHANGES)
    job = build_script(
        path, {name: value for name, value in given.items() if name in OF_TRACE} | {"sandbox": True},
        arguments=arguments,
    )
    asked = TuneJob(
        goal=values.get("goal"), allow=tuple(values.get("allow", ())), forbid=tuple(values.get("forbid", ())),
        any_batch=values.get("any-batch", False),
        headroom=headroom_of(given),
    )
    return job, asked
