"""Options and commands of click that are made without `inspect`.

click takes the indentation out of every help text with `inspect.cleandoc`; the module brings Python's own parser and
disassembler along, which take as long to load as click itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click


class PlainOption(click.Option):
    """An option whose help is one line, which has no indentation."""

    def __init__(self, *args: Any, help: str | None = None, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.help = help


def plain_option(*names: str, **attributes: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`click.option` of such an option."""
    return click.option(*names, cls=PlainOption, **attributes)


OF_CARD: Final = dict.fromkeys(
    ("gpu-memory", "gpu-mem", "max-memory", "memory", "vram"), "--capacity 24GiB for the memory of the card"
)
"""Names that commands of scripts do not have -> what to write: --memory-limit, which reads alike, is the host's."""


class WithHelp(click.Command):
    """A command whose --help is such an option."""

    own_help: PlainOption | None = None

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        names = self.get_help_option_names(ctx)
        if names and self.own_help is None:
            self.own_help = PlainOption(
                [*names], is_flag=True, is_eager=True, expose_value=False, callback=_show_help,
                help="Show this message and exit.",
            )
        return self.own_help


class OfScripts(WithHelp):
    """A command about a script on a card."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            instead = OF_CARD.get(error.option_name.lstrip("-").replace("_", "-"))
            if instead is None:
                raise
            said = f"No such option: {error.option_name}; write {instead}"
            raise click.NoSuchOption(error.option_name, said, ctx=ctx) from None


def _show_help(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()
