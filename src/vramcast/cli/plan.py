"""`vramcast plan`: the commands that search."""

from __future__ import annotations

from typing import Final

import click

from vramcast.cli.lazy import LazyGroup

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "train": ("vramcast.cli.plan_train", "the best training plans for a goal, and what a box can train"),
    "serve": ("vramcast.cli.plan_serve", "the best deployments for a load: cheapest per token, fastest, fewest GPUs"),
}


@click.group("plan", cls=LazyGroup, modules=COMMANDS)
def command() -> None:
    """Find what to run, and on what."""
