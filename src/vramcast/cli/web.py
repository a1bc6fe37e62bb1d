"""`vramcast web`: the page and its JSON API on this machine."""

from __future__ import annotations

import sys
import threading
import webbrowser
from importlib import import_module
from pathlib import Path

import click

from vramcast.cli.shared import FILE
from vramcast.errors import InvalidSpec, Unsupported
from vramcast.units import format_bytes
from vramcast.web.exchange import Sources

HUBS = ("huggingface", "modelscope")


@click.command("web")
@click.option("--host", default="127.0.0.1", show_default=True, help="address to listen on; 0.0.0.0 is every network")
@click.option("--port", type=int, default=8000, show_default=True, help="0 takes any free one")
@click.option(
    "--hub", "hubs", type=click.Choice(HUBS), multiple=True,
    help="also answer for ids of this hub, whose configs and headers are then fetched (repeatable)",
)
@click.option("--open/--no-open", "opens", default=None, help="open a browser; by default on a terminal")
@click.option("--processes", type=click.IntRange(1, 64), help="that answer; by default one per core, at most 4")
@click.option("--tls-cert", type=FILE, metavar="FILE", help="its certificate (PEM): answer by TLS")
@click.option("--tls-key", type=FILE, metavar="FILE", help="the key of that certificate (PEM)")
@click.option(
    "--build", "directory", type=click.Path(path_type=Path), metavar="DIR",
    help="write the page as a static site that answers inside the browser, and serve nothing",
)
@click.option(
    "--pyodide", type=click.Path(path_type=Path), metavar="DIR",
    help="with --build: the npm package pyodide, unpacked; by default npm fetches it",
)
@click.option(
    "--wheel", "wheels", type=click.Path(path_type=Path), multiple=True, metavar="FILE",
    help="with --build: a package more for the browser; NumPy lets it search training plans (repeatable)",
)
@click.option(
    "--address", metavar="URL", help="with --build: where the site will stand, for the picture in previews of links",
)
def command(
    host: str, port: int, hubs: tuple[str, ...], opens: bool | None, processes: int | None, tls_cert: Path | None,
    tls_key: Path | None, directory: Path | None,
    pyodide: Path | None, wheels: tuple[Path, ...], address: str | None,
) -> int:
    """The page and its JSON API, on this machine alone unless --host says otherwise. Ctrl-C ends it.

    Questions name models of the catalogue, or are plain numbers: no visitor can make the server read a file or an
    address. --hub lets them name ids of a hub too.

    \b
    vramcast web
    vramcast web --port 9000 --hub huggingface --no-open
    vramcast web --build site
    """
    if directory is not None:
        return _built(directory, pyodide, wheels, address)
    if pyodide is not None or wheels or address is not None:
        raise InvalidSpec("--pyodide, --wheel and --address are of a static site; give --build DIR")
    try:
        from vramcast.web.exchange import Sources
        from vramcast.web.server import Served, is_loopback, listening, run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn", "httptools", "pebble", "anyio"):
            raise
        raise Unsupported("the server needs {}: pip install 'vramcast[web]'", error.name) from None
    if (tls_cert is None) != (tls_key is None):
        raise InvalidSpec("--tls-cert and --tls-key are one certificate and its key; give both")
    listener = listening(host, port)
    port = listener.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    by = "http" if tls_cert is None else "https"
    here = f"{by}://{'localhost' if host in ('127.0.0.1', '0.0.0.0', '::') else shown}:{port}/"
    click.echo(f"vramcast web: {here} (Ctrl-C ends it)")
    if not is_loopback(host) and tls_cert is None:
        click.echo("everybody who reaches this machine can ask; put a proxy with TLS before it", err=True)
    if opens if opens is not None else sys.stdout.isatty():
        threading.Timer(0.5, webbrowser.open, (here,)).start()
    served = Served(host, port, Sources(frozenset(hubs)), processes or 0, tls_cert, tls_key)
    run(served, listener)
    return 0


def _built(directory: Path, pyodide: Path | None, wheels: tuple[Path, ...], address: str | None) -> int:
    """Write the static site, and say what it can do and how to look at it."""
    from vramcast.web.static_site import build

    site = build(directory, pyodide=pyodide, wheels=wheels, address=address)
    click.echo(f"{site.directory}: {format_bytes(site.num_bytes)}, everything it loads; any static host can carry it")
    if site.lacks:
        click.echo(f"  plan train is not in it, for want of NumPy: {site.lacks}; --wheel numpy-...whl adds it")
    click.echo(f"  to look at it: python -m http.server --bind 127.0.0.1 --directory {site.directory}")
    return 0


@click.command("mcp")
@click.option(
    "--hub", "hubs", type=click.Choice(HUBS), multiple=True,
    help="also answer for ids of this hub, whose configs and headers are then fetched (repeatable)",
)
def mcp(hubs: tuple[str, ...]) -> int:
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
