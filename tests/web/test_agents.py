"""`vramcast mcp` by the SDK's own client: in memory, and over standard input and output."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("mcp")
pytest.importorskip("pebble")

from mcp.client import Client
from mcp.client.stdio import StdioServerParameters

from tests.web.asking import TRAIN
from vramcast.web.agents import TOOLS, server
from vramcast.web.exchange import CATALOGUE_ONLY, LARGEST_QUESTION


def asked(test: Callable[[Client], Awaitable[None]]) -> None:
    """Run a test with a client in memory."""
    async def run() -> None:
        made, pools = server(CATALOGUE_ONLY)
        try:
            async with Client(made) as client:
                await test(client)
        finally:
            for pool in pools:
                pool.close()

    asyncio.run(run())


def test_every_tool_has_a_schema_and_answers_as_the_api_does() -> None:
    async def test(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(tools) == list(TOOLS)
        assert tools["train"].input_schema["properties"]["zero"]["enum"] and tools["serve"].description
        found = await client.call_tool("train", TRAIN)
        assert not found.is_error and found.structured_content["verdict"]
        assert (await client.call_tool("gpus", {"query": "h100"})).structured_content["gpus"]
        told = await client.call_tool("oom", {"text": "CUDA out of memory. Tried to allocate 2.00 GiB"})
        assert told.structured_content["findings"]

    asked(test)


@pytest.mark.parametrize(("name", "arguments", "said"), [
    ("train", {"model": "../../etc/passwd", "gpus": "h100"}, "names no file"),
    ("train", {**TRAIN, "from": "/etc/passwd"}, "names no file"),
    ("serve", {"model": "qwen3-8b", "gpus": "h100", "nonsense": 1}, "unknown option"),
    ("train", {"model": {"a": [1] * 9}, "gpus": "h100"}, "must be a text"),
    ("train", {"model": "x" * LARGEST_QUESTION, "gpus": "h100"}, "the body has more than"),
    ("gpus", {"query": "h100", "path": "/"}, "unknown parameter"),
    ("replay", {}, "there is no tool"),
])
def test_hostile_arguments_are_one_sentence(name: str, arguments: dict[str, Any], said: str) -> None:
    async def test(client: Client) -> None:
        found = await client.call_tool(name, arguments)
        assert found.is_error and said in found.structured_content["message"], found

    asked(test)


def test_documents_are_resources_and_nothing_else_is() -> None:
    async def test(client: Client) -> None:
        uris = [str(one.uri) for one in (await client.list_resources()).resources]
        assert "vramcast://docs/oom" in uris
        read = await client.read_resource("vramcast://docs/oom")
        assert read.contents[0].text.startswith("# ")
        with pytest.raises(Exception, match=r"."):
            await client.read_resource("file:///etc/passwd")

    asked(test)


def test_it_answers_over_standard_input_and_output() -> None:
    async def run() -> None:
        started = StdioServerParameters(command=sys.executable, args=["-m", "vramcast", "mcp"], env=dict(os.environ))
        async with Client(started) as client:
            found = await client.call_tool("train", TRAIN)
            assert not found.is_error and found.structured_content["peak"]

    asyncio.run(run())
