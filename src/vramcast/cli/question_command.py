"""A command that asks a question: options of other tools beside its own, and a help that begins with what matters."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final

import click

from vramcast import formats, question, report
from vramcast.cli.options import PlainOption, WithHelp
from vramcast.cli.shared import (
    Command,
    gpus_option,
    json_option,
    language_option,
    model_argument,
    question_options,
    together,
)
from vramcast.question.option import SUBJECTS
from vramcast.report.messages import words_here

if TYPE_CHECKING:
    from vramcast.question.option import Option

USUAL: Final = (
    "gpus", "on", "engine", "seq-len", "context", "concurrency", "micro-batch", "global-batch", "precision",
    "weights", "optimizer", "peft", "recompute", "zero", "tp", "goal", "find", "from", "json",
)
"""Options that most questions need; of the others what has no subject stands last."""


class QuestionCommand(WithHelp):
    """A command whose options may be written as other tools write them: --per_device_train_batch_size, -tp.

    What click does not know and a tool does goes with its value to the command's keywords, by that name.
    """

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.params.append(PlainOption(
            ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_all_help,
            help="Every option, by subject.",
        ))

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND ...]"]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options that most questions need; of the others their names, or with --help-all all that they are."""
        words, is_whole = words_here(), ctx.meta.get(WHOLE, False)
        sections: dict[str, list[tuple[str, str]]] = {name: [] for name in ("usual", *SUBJECTS, "more")}
        for parameter in self.params:
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                name = parameter.opts[0].removeprefix("--")
                others = (subject for subject, names in SUBJECTS.items() if name in names)
                section = "usual" if name in USUAL else next(others, "more")
                sections[section].append((record[0], report.chinese.help_of(record[1], words.language)))
        for section, records in sections.items():
            if not records:
                continue
            with formatter.section(words(f"help.{section}")):
                if is_whole or section == "usual":
                    formatter.write_dl(records)
                else:
                    names = ", ".join(options.split()[0].rstrip(",") for options, _ in records)
                    indent = " " * formatter.current_indent
                    formatter.write(fill(names, formatter.width, initial_indent=indent, subsequent_indent=indent,
                                         break_on_hyphens=False) + "\n")
        if not is_whole:
            formatter.write_paragraph()
            formatter.write_text(words("help.all", command=ctx.command_path))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        args = _with_line(ctx, args)
        own = {name for parameter in self.params for name in (*parameter.opts, *parameter.secondary_opts)}
        if all(word.partition("=")[0] in {*own, "-h", "--help"} for word in args if _is_name(word)):
            return super().parse_args(ctx, args)
        kept, theirs = split_names(args, own, "serve" if self.name == "serve" else "train")
        rest = super().parse_args(ctx, kept)
        for name, value in theirs.items():  # MODEL is a parameter of the command: vLLM's --model is the same
            if ctx.params.get(name, value) not in (None, value):
                raise click.UsageError(f"{name} is said twice: {ctx.params[name]} and {value}", ctx)
            ctx.params[name] = value
        return rest


def asking(
    name: str, table: Mapping[str, Option], *options: Callable[[Command], Command], gpus: str = ""
) -> Callable[[Command], click.Command]:
    """A command that asks about MODEL.

    Args:
        table: its options
        options: more of them, behind these
        gpus: examples of cards where --gpus names them
    """
    cards = (gpus_option(help=gpus),) if gpus else ()
    whole = together(model_argument, *cards, question_options(table), *options, json_option, language_option)
    return lambda command: click.command(name, cls=QuestionCommand)(whole(command))


def _with_line(ctx: click.Context, args: list[str]) -> list[str]:
    """The command of another tool behind "--" as the option that it is."""
    if "--" not in args:
        return args
    place = args.index("--")
    behind = args[place + 1 :]
    if not behind:
        raise click.UsageError("nothing stands behind --: give a command, as in -- vllm serve MODEL", ctx)
    if _is_name(behind[0]):
        raise click.UsageError(f"behind -- stands a command of another tool; put {behind[0][:40]} before --", ctx)
    if (script := question.whole_command.script_of(behind)) is not None:
        variables, path, arguments = script
        if not Path(path).is_file():
            raise click.UsageError(f"the command starts {path[:200]}, which is not here; give it with --from", ctx)
        given = [f"--env={name}={value}" for name, value in variables.items()]
        return [*args[:place], f"--from={path}", *([f"--args={shlex.join(arguments)}"] if arguments else []), *given]
    return [*args[:place], f"--{question.whole_command.LINE}={question.whole_command.line_of(behind)}"]


def _is_name(word: str) -> bool:
    """Whether a word of a command line is an option's name, and no value such as -1."""
    return len(word) > 1 and word[0] == "-" and (word[1].isalpha() or (word[1] == "-" and word[2:3].isalpha()))


def split_names(words: list[str], own: set[str], command: str) -> tuple[list[str], dict[str, Any]]:
    """The words of a command line with vramcast's options, and what options of other tools say.

    Args:
        words: of the command line
        own: options of the command: "--tp"
        command: "train" or "serve"

    Raises: click.NoSuchOption for a name that several things are called by, with what to write
    """
    kept: list[str] = []
    theirs: dict[str, Any] = {}
    left = list(reversed(words))
    while left:
        word = left.pop()
        if word == "--":
            return [*kept, word, *reversed(left)], theirs
        written, equals, value = word.partition("=")
        name = f"--{written.lstrip('-').replace('_', '-')}"
        if not _is_name(word) or written in own:
            kept.append(word)
            if written in own and not equals and left and not _is_name(left[-1]):
                kept.append(left.pop())  # its value, or MODEL behind a flag: click knows
        elif name in own:
            left.append(name + equals + value)
        else:
            entry = formats.field_names.entry_of(command, name[2:])
            instead = formats.field_names.instead_of(name[2:])
            if entry is None and instead is not None:
                raise click.NoSuchOption(written, f"No such option: {written}; write {instead}")
            if entry is None:
                kept.append(word)
                continue
            most = 0 if equals else 99 if entry.kind == "list" else 1
            values = [value] if equals else []
            is_switch = entry.kind in ("flag", "bool")
            while left and len(values) < most and not _is_name(left[-1]) and (
                not is_switch or left[-1].lower() in ("true", "false")
            ):
                values.append(left.pop())
            plain = [formats.reading.plain(text) for text in values]
            theirs[name[2:].replace("-", "_")] = plain if len(plain) > 1 else plain[0] if plain else True
    return kept, theirs


WHOLE: Final = "vramcast.whole_help"


def _all_help(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    """Print the help with every option, and end."""
    if value and not ctx.resilient_parsing:
        ctx.meta[WHOLE] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()
