"""`vramcast mcp`: the JSON API as tools of the Model Context Protocol, its documents as resources.

Tools are routes: their schemas are those of the API's description, a call is a request, and it is answered in the same
processes within the same limits of time, memory and size; what a visitor may not say, an agent may not either.
[mcp] https://modelcontextprotocol.io/specification
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from vramcast.errors import Note
from vramcast.version import __version__
from vramcast.web.exchange import JSON, OVERTIME, QUICK, SEARCH, Refused, Reply, Sources, error_reply
from vramcast.web.routes.openapi import QUERY, described
from vramcast.web.service import PREFIX, ROUTES
from vramcast.web.workers import Question, Workers

TOOLS: Final = {
    name.replace("/", "-"): name
    for name in ("train", "serve", "plan/train", "plan/serve", "oom", "files", "models", "gpus", "instances")
}
"""Tool -> the route that answers; the others show pages, or read what an agent does not hold."""

ABOUT: Final = (
    "How much GPU memory a training or serving job takes, whether it fits, on what, how fast, at what price, and why a "
    "job ran out of memory. Sizes are in bytes. Ask `train` or `serve` with a model and gpus (\"8xh100\"); without "
    "gpus the plans search for them. Names come from `models` and `gpus`. Believe `verdict` and `changes` of an "
    "answer; a refused option is named in the error, with what would work."
)
READ_ONLY: Final = types.ToolAnnotations(read_only_hint=True, open_world_hint=False)


def tool(name: str) -> types.Tool:
    """A route as a tool, in the words of the API's description."""
    route, description = ROUTES[TOOLS[name]], described()
    operation = description["paths"][PREFIX + TOOLS[name]][route.method.lower()]
    if route.takes:
        schema = operation["requestBody"]["content"][JSON]["schema"]
        if "$ref" in schema:
            schema = description["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    else:
        schema = {"type": "object", "additionalProperties": False,
                  "properties": {key: QUERY[key] for key in route.parameters}}
    return types.Tool(name=name, description=operation["summary"], input_schema=schema, annotations=READ_ONLY)


def request(name: str, arguments: Mapping[str, Any]) -> Question:
    """A call as the request that it is.

    Raises: Refused where there is no such tool
    """
    if name not in TOOLS:
        raise Refused(404, "UnknownName", Note("there is no tool {!r}; there are {}", name[:80], ", ".join(TOOLS)))
    route, path = ROUTES[TOOLS[name]], PREFIX + TOOLS[name]
    if route.takes:
        return Question(route.method, path, "", {"content-type": JSON}, json.dumps(arguments).encode())
    return Question(route.method, path, urlencode({key: str(value) for key, value in arguments.items()}), {}, b"")


def documents() -> dict[str, Path]:
    """Address -> document: those that came with the package, or lie beside its sources."""
    package = Path(str(files("vramcast")))
    folder = next(one for one in (package / "documents", package.parent.parent / "docs") if one.is_dir())
    return {f"vramcast://docs/{path.stem}": path for path in sorted(folder.glob("*.md"))}


def server(sources: Sources, *, processes: int = 1) -> tuple[Server[Any], list[Workers]]:
    """The server, and the processes that answer, which whoever runs it closes."""
    pools = {limit: Workers(processes, limit, sources) for limit in (QUICK, SEARCH)}

    async def list_tools(_: Any, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[tool(name) for name in TOOLS])

    async def call_tool(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            asked = request(params.name, params.arguments or {})
            reply = await pools[ROUTES[TOOLS[params.name]].limit].answer(asked, _nobody_leaves)
        except Refused as refused:
            reply = error_reply(refused.status, refused.name, str(refused))
        except (TypeError, ValueError, RecursionError):
            reply = error_reply(OVERTIME, "InvalidSpec", "the arguments are no JSON object of options")
        return _result(reply)

    async def list_resources(_: Any, params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=[
            types.Resource(uri=uri, name=path.stem, title=_title(path), mime_type="text/markdown")
            for uri, path in documents().items()
        ])

    async def read_resource(_: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        path = documents().get(str(params.uri))
        if path is None:
            raise ValueError(f"there is no document {str(params.uri)[:80]}")
        text = path.read_text(encoding="utf-8")
        contents = types.TextResourceContents(uri=str(params.uri), mime_type="text/markdown", text=text)
        return types.ReadResourceResult(contents=[contents])

    made = Server(
        "vramcast", version=__version__, instructions=ABOUT, on_list_tools=list_tools, on_call_tool=call_tool,
        on_list_resources=list_resources, on_read_resource=read_resource,
    )
    return made, list(pools.values())


async def _nobody_leaves() -> None:
    await asyncio.Event().wait()


def _result(reply: Reply) -> types.CallToolResult:
    text = reply.body.decode()
    return types.CallToolResult(
        content=[types.TextContent(text=text)], structured_content=json.loads(text), is_error=reply.status != 200)


def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.readline().strip("# \n")


def run(sources: Sources) -> None:
    """Answer on standard input and output until they end."""

    async def serve() -> None:
        made, pools = server(sources)
        try:
            async with stdio_server() as (incoming, outgoing):
                await made.run(incoming, outgoing, made.create_initialization_options())
        finally:
            for pool in pools:
                pool.close()

    asyncio.run(serve())
