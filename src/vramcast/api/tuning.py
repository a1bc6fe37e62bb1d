"""`vramcast.tune`: the changes of a script that make it faster or let it fit, tried on a simulated card, as a patch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from vramcast.api.jobs import by_option
from vramcast.api.tracing import require_torch
from vramcast.errors import SourceError
from vramcast.question.tuning import build_tune
from vramcast.report.tuned import ShownTuned
from vramcast.sources.files import check_writable, write_whole


def tune(script: str | Path, *, args: Iterable[str] = (), **options: Any) -> ShownTuned:
    """The best of a script's changes, each tried by tracing the changed source.

    Args:
        script: a file of Python, which stays as it is
        args: its command line
        options: those of `vramcast tune --help`, with underscores: gpu="rtx-4090", goal="tokens/s", allow="bf16",
            any_batch=True

    Returns: what was tried; `patch` is the best as a unified diff, "" where the script is best as it is
    Raises: VramcastError of one sentence when it cannot be traced or has no training step
    """
    return tuned_script(str(script), by_option(options), arguments=args)


def tuned_script(
    path: str, options: Mapping[str, Any], *, arguments: Iterable[str] = (),
    say: Callable[[str], None] = lambda text: None,
) -> ShownTuned:
    """As `tune`; `say` is told of every trace."""
    job, asked = build_tune(path, options, arguments=arguments)
    require_torch()
    optim_of = import_module("vramcast.formats.tools.transformers").optim_of
    found = import_module("vramcast.tracing.tuning.search").tuned(job, asked, optim_of=optim_of, say=say)
    return ShownTuned(**{name: getattr(found, name) for name in found.__struct_fields__})


def check_patch(path: Path | None, *, force: bool) -> None:
    """Refuse before any work a patch that could not be written after it.

    Raises: SourceError where it is there already, or its folder is not
    """
    check_writable(path)
    if path is not None and path.exists() and not force:
        raise SourceError("{} is there already; name another file, or give --force", path)


def write_patch(answer: ShownTuned, path: Path | None) -> ShownTuned:
    """The answer with its patch in a file; nothing is written where it has none."""
    if path is None or not answer.patch:
        return answer
    write_whole(path, answer.patch)
    return replace(answer, patch_path=str(path))
