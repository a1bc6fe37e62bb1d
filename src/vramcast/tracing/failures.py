"""Errors of a user's code in one sentence: what it raised, at which line, in which module."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final

import torch

from vramcast.domain.snapshot import Frame
from vramcast.errors import InvalidSpec, VramcastError
from vramcast.tracing.ledger import TORCH, line_of

OWN: Final = str(Path(__file__).parent.parent)
"""Our own files."""
META_TENSOR: Final = re.compile(r"\bMeta(\w+)Type\b")
"""How C++ names the tensors of a simulated card."""
LONGEST: Final = 300
"""Of a message that is passed on [characters]."""


def explained(error: Exception, *, what: str, model: torch.nn.Module | None = None) -> VramcastError:
    """One sentence for an error that a user's code raised.

    Args:
        error: that was caught
        what: what was being done: "the forward"
        model: whose modules are named
    """
    if isinstance(error, VramcastError):
        return error
    text = words_of(error)
    where = _module_of(error, model) if model is not None else ""
    return InvalidSpec(f"{what} raised {type(error).__name__}: {text}{where}{place_of_error(error)}")


def words_of(error: BaseException) -> str:
    """Its message on one line, in which tensors are those of the card, without a full stop."""
    text = META_TENSOR.sub(r"torch.cuda.\1Tensor", " ".join(str(error).split()))
    return text[:LONGEST].rstrip(". ") or "no message"


def place_of_error(error: BaseException) -> str:
    """" (at train.py:12 main)" of the innermost line that is neither torch's nor ours."""
    frames = [
        Frame(frame.f_code.co_qualname, frame.f_code.co_filename, line) for frame, line in _frames(error.__traceback__)
    ]
    others = (frame for frame in reversed(frames) if not frame.filename.startswith(OWN))
    line = line_of(frame for frame in others if TORCH.search(frame.filename) is None)
    return f" (at {line})" if line else ""


def _module_of(error: BaseException, model: torch.nn.Module) -> str:
    """", in layer1.conv, given 2 x 4 x 8": the innermost module of the model whose forward was running."""
    names = {id(module): name for name, module in model.named_modules()}
    found, given = "", ""
    for frame, _ in _frames(error.__traceback__):
        running = frame.f_locals.get("self")
        if isinstance(running, torch.nn.Module) and names.get(id(running)):
            found = names[id(running)]
            arguments = frame.f_code.co_varnames[: frame.f_code.co_argcount]
            values = (frame.f_locals.get(name) for name in arguments)
            shape = next((value.shape for value in values if isinstance(value, torch.Tensor)), None)
            given = given if shape is None else f", given {' x '.join(map(str, shape))}"
    return f", in {found}{given}" if found else ""


def _frames(traceback: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    while traceback is not None:
        yield traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next
