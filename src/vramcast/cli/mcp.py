"""`vramcast mcp`: the same questions for coding agents, by the Model Context Protocol."""

from __future__ import annotations

from importlib import import_module

import click

from vramcast.cli.web import HUBS
from vramcast.errors import Unsupported
from vramcast.web.exchange import Sources


@click.command("mcp")
@click.option(
    "--hub", "hubs", type=click.Choice(HUBS), multiple=True,
    help="also answer for ids of this hub, whose configs and headers are then fetched (repeatable)",
)
def command(hubs: tuple[str, ...]) -> int:
    """Answer a coding agent on standard input and output, by the Model Context Protocol. Needs the extra `mcp`.

    Tools are train, serve, plan, oom, files and the catalogues, with the options that the page may ask; resources are
    the documents. An agent can name no file and no address.

    \b
    claude mcp add vramcast -- vramcast mcp
    {"mcpServers": {"vramcast": {"command": "uvx", "args": ["--from", "vramcast[mcp]", "vramcast", "mcp"]}}}
    """
    try:
        agents = import_module("vramcast.web.agents")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "pebble", "anyio", "pydantic"):
            raise
        raise Unsupported("the server needs {}: pip install 'vramcast[mcp]'", error.name) from None
    agents.run(Sources(frozenset(hubs)))
    return 0
