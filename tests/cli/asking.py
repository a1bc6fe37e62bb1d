"""How tests ask the command line: in this process, from its arguments to its exit code."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from subprocess import CompletedProcess

from vramcast.cli.main import main


def vramcast(*arguments: str) -> CompletedProcess[str]:
    """What a process of `vramcast` would print and end with."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    before, sys.argv = sys.argv, ["vramcast", *arguments]
    code: object = 0
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as end:
        code = end.code
    finally:
        sys.argv = before
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
    return CompletedProcess(arguments, code if isinstance(code, int) else 0, *texts)


def serve(*arguments: str) -> CompletedProcess[str]:
    """`vramcast serve`."""
    return vramcast("serve", *arguments)
