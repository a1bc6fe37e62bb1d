"""Magics of IPython and Jupyter: `%load_ext vramcast`.

    %vramcast train qwen3-8b --gpus h100      # any command, in this process

    %%fits rtx-4090 --capacity 20GiB          # the cell on a simulated card: nothing that it does stays
    model = Model().cuda()
    train_steps(model)

A cell of `%%fits` runs in a copy of this process, as models of earlier cells that it moves to the card lose their data.
"""

from __future__ import annotations

import io
import multiprocessing
import shlex
import sys
import traceback
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from multiprocessing.connection import Connection
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

from vramcast.api.tracing import require_torch, simulate
from vramcast.errors import InvalidSpec, Unsupported, VramcastError
from vramcast.report.messages import words_here

if TYPE_CHECKING:
    from vramcast.api.tracing import TraceResult


class Ran(NamedTuple):
    """A cell's end: what it printed, and its answer, our refusal or its own traceback."""

    printed: str
    answer: TraceResult | None = None
    refusal: str = ""


def load_ipython_extension(shell: Any) -> None:
    """What `%load_ext vramcast` calls."""
    def fits(line: str, cell: str) -> TraceResult | None:
        """Whether a cell fits a card: %%fits rtx-4090 [--capacity 20GiB] [--alloc-conf TEXT]."""
        return fitting(shell, line, cell)

    shell.register_magic_function(vramcast, "line", "vramcast")
    shell.register_magic_function(fits, "cell", "fits")


def vramcast(line: str) -> None:
    """A command line of vramcast: %vramcast train qwen3-8b --gpus h100."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        print(f"InvalidSpec: {error}", file=sys.stderr)
        return
    import_module("vramcast.cli.main").answered(words, "vramcast")


def fitting(shell: Any, line: str, cell: str) -> TraceResult | None:
    """The answer to a cell, which notebooks show; None where it has none, which is said on standard error."""
    try:
        gpu, options = _options(line)
        text = shell.transform_cell(cell)
        code = compile(text, shell.compile.cache(text), "exec")
        ran = _in_a_copy(code, shell.user_ns, gpu, options)
    except VramcastError as error:
        ran = Ran("", refusal=f"{type(error).__name__}: {words_here().said(str(error))}")
    sys.stdout.write(ran.printed)
    if ran.refusal:
        print(ran.refusal, file=sys.stderr)
    return ran.answer


def _options(line: str) -> tuple[str, dict[str, str]]:
    """The card and the options behind %%fits."""
    try:
        gpu, *words = shlex.split(line)
    except ValueError:
        gpu, words = "", []
    names = words[::2]
    if not gpu or gpu.startswith("-") or len(words) % 2 or not all(name.startswith("--") for name in names):
        raise InvalidSpec("%%fits {} names no card with options behind it; write %%fits rtx-4090, or %%fits rtx-4090 "
                          "--capacity 20GiB", line[:80])
    return gpu, {name[2:].replace("-", "_"): value for name, value in zip(names, words[1::2], strict=True)}


def _in_a_copy(code: CodeType, names: dict[str, Any], gpu: str, options: dict[str, str]) -> Ran:
    """The cell in a fork of this process, so that it may take whatever this one holds onto the card."""
    if "fork" not in multiprocessing.get_all_start_methods():
        raise Unsupported("%%fits runs a cell in a copy of this process, which this system cannot make; "
                          "use: with vramcast.simulate(...)")
    ours, theirs = multiprocessing.get_context("fork").Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_run, args=(theirs, code, names, gpu, options))
    process.start()
    theirs.close()
    try:
        return Ran(*ours.recv())
    except EOFError:
        process.join()
        raise Unsupported("the copy of this process ended with code {} before the cell did; use a function with "
                          "vramcast.trace, or a script", str(process.exitcode)) from None
    finally:
        process.terminate()  # where the user interrupts
        process.join()


def _run(pipe: Connection, code: CodeType, names: dict[str, Any], gpu: str, options: dict[str, str]) -> None:
    printed = io.StringIO()
    answer, refusal = None, ""
    with redirect_stdout(printed), redirect_stderr(printed):
        try:
            card = simulate(gpu, **options)
            require_torch().set_num_threads(1)  # those of the process that was copied are not here: OpenMP would wait
            with card as run:
                exec(code, names)
            if not run.answer.events:
                raise InvalidSpec("nothing of the cell ran on the card; move what it computes there, as by .cuda()")
            answer = run.answer
        except VramcastError as error:
            refusal = f"{type(error).__name__}: {words_here().said(str(error))}"
        except BaseException as error:
            refusal = "".join(_told(error, code.co_filename))
    pipe.send((printed.getvalue(), answer, refusal))


def _told(error: BaseException, file: str) -> Iterator[str]:
    """A traceback from the cell on."""
    frames = traceback.extract_tb(error.__traceback__)
    yield "Traceback (most recent call last):\n"
    begin = next((index for index, frame in enumerate(frames) if frame.filename == file), 0)
    yield from traceback.format_list(frames[begin:])
    yield from traceback.format_exception_only(error)
