"""The entry point: commands are imported when they are called, errors become one sentence and an exit code."""

from __future__ import annotations

import atexit
import errno
import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import Any, Final

import click

from vramcast import estimate, report
from vramcast.cli.options import WithHelp, plain_option
from vramcast.errors import Note, SourceError, VramcastError
from vramcast.version import __version__

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "train": ("train:command", "memory of one training plan"),
    "serve": ("serve:command", "memory, KV capacity and concurrency of one serving plan"),
    "rl": ("rl:command", "memory of PPO, GRPO and their kin: trainer and engine on the same cards"),
    "plan": ("plan:command", "search: the best plans for a goal, and what fits"),
    "replay": ("observed:replay", "a memory snapshot: its peak, holes and leaks, and what other settings would do"),
    "sweep": ("sweep:command", "thousands of questions from a file, resumable, on one machine or a Ray cluster"),
    "oom": ("observed:oom", "why memory ran out, by any text or snapshot, and what would help"),
    "trace": ("trace:trace", "any module or script, unmodified, on a simulated GPU"),
    "tune": ("trace:tune", "a training script's changes, tried on a simulated GPU, the best as a patch"),
    "web": ("web:command", "a page in the browser, and the same as a JSON API"),
    "run": ("watch:run", "start a command if it fits the GPUs as they are now; explain its end"),
    "check": ("check:command", "manifests of Kubernetes and batch scripts of Slurm, sized by their own commands"),
    "pack": ("pack:command", "which of several jobs may share cards, and how likely a card then runs out"),
    "mcp": ("web:mcp", "the same questions for coding agents, by the Model Context Protocol"),
    "watch": ("watch:command", "live GPUs and who holds their memory: recorded, exported, beside the prediction"),
    "calibrate": ("observed:calibrate", "a recorded run beside its prediction; later answers learn from it"),
    "compare": ("compare:command", "how a peak changed between two answers or two revisions, and what changed it"),
    "layers": ("trace:layers", "parameters and memory of a model, layer by layer"),
    "models": ("catalogues:models", "the catalogue of models"),
    "gpus": ("catalogues:gpus", "the catalogue of GPUs"),
    "instances": ("catalogues:instances", "machines for rent and reference boxes, with prices"),
    "prices": ("catalogues:prices", "what machines cost, and how old the figures are"),
    "completion": ("main:completion", "shell completion"),
}
"""Command -> where it is, imported when it is called, and what it is for."""

EXAMPLES: Final = {
    "finetune": "vramcast train qwen3-8b --gpus rtx-4090 --peft qlora --recompute full",
    "serve": "vramcast serve qwen3-32b --gpus 2xh100-sxm-80gb",
    "card": "vramcast plan train qwen3-8b --on any",
    "oom": "vramcast oom crash.log",
    "script": "vramcast trace train.py --gpu rtx-4090",
}
"""What people ask first -> the command that answers it."""

EXIT_INTERRUPTED: Final = 130
EXIT_INTERNAL: Final = 70
FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Why output cannot be written, where that is no bug: a full disk or quota, a limit of sizes, a device that failed."""

COMPLETE: Final = "_VRAMCAST_COMPLETE"
"""The variable by which a shell asks what may stand at the end of a line."""

CONTEXT: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class LazyGroup(WithHelp, click.Group):
    """Commands of a table; the module of one is imported when it is called."""

    def __init__(self, *args: Any, commands_of: Mapping[str, tuple[str, str]], **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.commands_of = commands_of

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands_of)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands_of:
            return None
        module, _, name = self.commands_of[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(f"vramcast.cli.{module}"), name)
        return command

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """What it is for, in the language of the locale; of the whole program with what people ask first."""
        if ctx.parent is not None:
            super().format_help_text(ctx, formatter)
            return
        words = report.messages.words_here()
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(words("help.purpose"))
        with formatter.section(words("help.examples")):
            formatter.write_dl([(line, words(f"help.example.{key}")) for key, line in EXAMPLES.items()], col_max=62)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(words("help.exit_codes"))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.commands_of.items()])


def _show_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"vramcast, version {__version__}", color=ctx.color)
        ctx.exit()


@click.group(cls=LazyGroup, commands_of=COMMANDS, context_settings=CONTEXT)
@plain_option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_show_version,
              help="Show the version and exit.")
def group() -> None:
    """How much GPU memory a job takes, before anyone rents the GPU."""


@click.command("completion", cls=WithHelp)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> int:
    """Print the completion script: eval "$(vramcast completion bash)"."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "vramcast", COMPLETE).source())
    return 0


def main() -> None:
    """Run the command line of this process."""
    sys.exit(answered())


def process() -> None:
    """The same as all that this process is for; where nothing waits for its end it ends there and then.

    Taking all modules apart takes a thirtieth of the time to an answer [mypy] util.py `hard_exit`.
    """
    code = answered()
    if threading.active_count() > 1 or atexit._ncallbacks():
        sys.exit(code)
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def answered(words: list[str] | None = None, program: str | None = None) -> int:
    """The exit code of a command line, by default this process's; no traceback reaches the user."""
    if "VRAMCAST_DEBUG" in os.environ:
        estimate.changes.BUGS.are_raised = True
    say = partial(_say, sys.argv[1:] if words is None else words)
    try:
        code: object = group.main(words, program, COMPLETE, standalone_mode=False)
        sys.stdout.flush()  # what cannot be written is said here, not when Python ends
    except VramcastError as error:
        say(type(error).__name__, str(error))
        code = error.exit_code
    except click.UsageError as error:
        with suppress(OSError):
            error.show()
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        code = EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone
        _drop_output()
        code = 0
    except OSError as error:
        if error.errno not in FULL:
            code = _internal(error, say)
        else:
            _drop_output()
            say("SourceError", Note(
                "the output cannot be written: {}; make room, or send it elsewhere", error.strerror
            ))
            code = SourceError.exit_code
    except (RecursionError, MemoryError, OverflowError):
        say("InvalidSpec", "the question is larger than can be answered")
        code = 2
    except Exception as error:
        code = _internal(error, say)
    return code if isinstance(code, int) else 0


def _drop_output() -> None:
    """What is still buffered must not complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


OURS: Final = (
    "this is a bug of vramcast, please report it with the command you ran (VRAMCAST_DEBUG=1 shows where)"
)


def _internal(error: Exception, say: Callable[[str, str], None]) -> int:
    if "VRAMCAST_DEBUG" in os.environ:
        raise error
    say("InternalError", Note("{}: {}; {}", type(error).__name__, error, OURS))
    return EXIT_INTERNAL


def _say(words: list[str], kind: str, sentence: str) -> None:
    """An error on standard error, in the language that the command was asked in: it may have failed before it knew."""
    given = [value for option, value in pairwise(words) if option == "--lang"]
    given += [text.removeprefix("--lang=") for text in words if text.startswith("--lang=")]
    languages = report.messages.LANGUAGES
    said = report.messages.words_here(next((language for language in given if language in languages), None)).said
    with suppress(OSError):  # nobody can be told where that cannot be written either
        click.echo(f"{kind}: {said(sentence)}", err=True)
