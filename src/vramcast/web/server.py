"""The local server: the page and the JSON API over HTTP, answers from processes that can be killed."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from importlib.resources import files
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, NamedTuple

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from vramcast.errors import InvalidSpec, Note
from vramcast.web import exchange
from vramcast.web.exchange import (
    CATALOGUE_ONLY,
    HEAD_SECONDS,
    HTML,
    LARGEST_HEAD,
    Refused,
    Reply,
    Sources,
    content_policy,
    error_reply,
)
from vramcast.web.service import PREFIX, internal_error, most_bytes, route_of, too_large
from vramcast.web.workers import RETRY_AFTER, Question, Workers


class BoundedHead(HttpToolsProtocol):
    """One connection."""

    _waiting: asyncio.TimerHandle | None = None  # for the end of a head
    _head_bytes = 0  # of a head that has not ended

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """More of a request; a head that is too long by now is refused."""
        super().data_received(data)
        if self._waiting is not None:
            self._head_bytes += len(data)
            if self._head_bytes > LARGEST_HEAD and not self.transport.is_closing():
                self.send_400_response("The headers are too large.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._begin()

    def on_headers_complete(self) -> None:
        """The end of its head."""
        self._end()
        super().on_headers_complete()

    def _begin(self) -> None:
        self._end()
        self._waiting = asyncio.get_running_loop().call_later(HEAD_SECONDS, self.timeout_keep_alive_handler)

    def _end(self) -> None:
        self._head_bytes = 0
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


PAGE: Final = Path(str(files("vramcast.web"))) / "page"

METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
"""All of them reach the service, which says what is wrong with most."""

HEADERS: Final = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}
"""Of every reply, beside its policy."""

LOCAL_NAMES: Final = frozenset(("localhost", "127.0.0.1", "[::1]"))


class Served(NamedTuple):
    """How a server is run."""

    host: str = "127.0.0.1"
    port: int = 8000
    sources: Sources = CATALOGUE_ONLY
    processes: int = 0  # for quick questions; 0: one for each core, at most four
    certificate: Path | None = None  # PEM, with its key: TLS
    key: Path | None = None


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises: InvalidSpec where the address cannot be had
    """
    if not 0 <= port <= 65535:
        raise InvalidSpec("port={} must be from 0 to 65535; 0 takes any free one", port)
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except PermissionError:
        raise InvalidSpec("port {} needs rights that this user has not; give --port 8000", port) from None
    except (socket.gaierror, UnicodeError):
        raise InvalidSpec("host={!r} is no address of this machine; give --host 127.0.0.1", host[:80]) from None
    except OSError as error:
        why = os.strerror(error.errno or 0)
        why = Note("{}:{} cannot be listened on ({}); give another --host or --port", host[:80], port, why)
        if error.errno == errno.EADDRINUSE:
            why = Note("port {} is in use; give another one, or --port 0 for any that is free", port)
        elif error.errno == errno.EADDRNOTAVAIL:
            why = Note("host={!r} is no address of this machine; give --host 127.0.0.1", host[:80])
        raise InvalidSpec(why) from None


def run(served: Served, listener: socket.socket) -> None:
    """Answer until interrupted."""
    config = uvicorn.Config(
        application(served),
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        http=BoundedHead,
        limit_concurrency=exchange.MOST_CONNECTIONS,
        timeout_keep_alive=exchange.IDLE_SECONDS,
        timeout_graceful_shutdown=1,
        ssl_certfile=served.certificate,
        ssl_keyfile=served.key,
    )
    uvicorn.Server(config).run(sockets=[listener])


def application(served: Served) -> ASGIApp:
    """The page and the API as one ASGI application."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        count = served.processes or min(4, os.cpu_count() or 1)
        app.state.quick = Workers(count, exchange.QUICK, served.sources)
        app.state.slow = Workers(max(1, count // 2), exchange.SEARCH, served.sources)
        app.state.bodies = Bodies()
        for workers in (app.state.quick, app.state.slow):
            workers.start()
        yield
        for workers in (app.state.quick, app.state.slow):
            workers.close()

    page = StaticFiles(directory=PAGE, packages=[exchange.FONT], html=True)
    routes = [Route("/api/{name:path}", api, methods=list(METHODS)), Mount("/", page)]
    return Guard(Starlette(routes=routes, lifespan=lifespan), served.host)


LINES: Final = "application/x-ndjson"
"""What a client accepts that wants to know meanwhile how far a search is: lines with the number of plans looked at and
the best of each machine so far, and a last one with the status and the document."""

SEARCHES: Final = f"{PREFIX}plan/"


async def api(request: Request) -> Response:
    """One question of the API."""
    try:
        with request.app.state.bodies.share() as take:
            workers, question = await _asked(request, take)
            if LINES not in request.headers.get("accept", "") or not question.path.startswith(SEARCHES):
                reply = await workers.answer(question, partial(_gone, request))
            else:  # what follows is read by the response itself, which ends this where the client leaves
                return StreamingResponse(_lines(workers, question), media_type=LINES)
    except ClientDisconnect:
        return Response(status_code=400)  # read by nobody
    except Exception as error:
        reply = _failed(request.method, request.url.path, _query(request), error)
    headers = dict(reply.headers)
    if reply.content_type == HTML:
        headers["content-security-policy"] = "sandbox allow-scripts"  # should anybody open it by itself
    return Response(reply.body, reply.status, headers, media_type=reply.content_type)


def _failed(method: str, path: str, query: str, error: Exception) -> Reply:
    if isinstance(error, Refused):
        return error_reply(error.status, error.name, str(error), error.headers, query=query)
    return internal_error(f"{method} {path}", query)


async def _lines(workers: Workers, question: Question) -> AsyncIterator[bytes]:
    """How far the answer is, again and again, then the answer."""
    told: asyncio.Queue[bytes | None] = asyncio.Queue()
    task = asyncio.ensure_future(workers.answer(question, asyncio.Event().wait, told.put_nowait))
    task.add_done_callback(lambda _: told.put_nowait(None))
    try:
        while (line := await told.get()) is not None:
            yield b"%b\n" % line
        try:
            reply = task.result()
        except Exception as error:
            reply = _failed(question.method, question.path, question.query, error)
        yield b'{"status": %d, "document": %b}\n' % (reply.status, reply.body)
    finally:
        task.cancel()


def _query(request: Request) -> str:
    query: str = request.scope["query_string"].decode("latin-1")
    return query


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _asked(request: Request, take: Callable[[int], None]) -> tuple[Workers, Question]:
    """Who answers a request, and what is asked.

    Raises: Refused
    """
    headers = {name: value for name, value in request.headers.items() if name in ("content-type", "content-encoding")}
    path = request.scope["path"]
    route = route_of(request.method, path, headers)
    body = await _body(request, most_bytes(route, headers), too_large(route, headers), take)
    workers: Workers = request.app.state.slow if route.limit.is_slow else request.app.state.quick
    return workers, Question(request.method, path, _query(request), headers, body)


class Bodies:
    """How much the bodies of all requests hold together, from their first byte until they are answered."""

    def __init__(self) -> None:
        self.num_bytes = 0

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """What one request takes bytes by, given back at its end; it raises Refused where all would hold too much."""
        held = 0

        def take(num_bytes: int) -> None:
            nonlocal held
            if self.num_bytes + num_bytes > exchange.MOST_BODIES:
                raise Refused(503, "Busy", "too many large bodies at once; send it again in a second", RETRY_AFTER)
            self.num_bytes += num_bytes
            held += num_bytes

        try:
            yield take
        finally:
            self.num_bytes -= held


async def _body(request: Request, most: int, refusal: Refused, take: Callable[[int], None]) -> bytes:
    """The body, never more of it than is read.

    Raises: Refused
    """
    stated = request.headers.get("content-length", "0")
    if stated.isdecimal() and int(stated[:20]) > most:
        raise refusal
    parts = bytearray()
    try:
        async with asyncio.timeout(exchange.BODY_SECONDS):
            async for part in request.stream():
                take(len(part))
                parts += part
                if len(parts) > most:
                    raise refusal
    except TimeoutError:
        raise Refused(400, "TooLong", Note("the body did not arrive within {} s", exchange.BODY_SECONDS)) from None
    return bytes(parts)


class Guard:
    """Headers that keep a browser from doing more than the page needs, and whose name the server answers to.

    A page of somebody else's, whose name is made to mean this machine (DNS rebinding), asks under that name: bound to
    this machine alone, the server answers only under names that mean it.
    """

    def __init__(self, app: ASGIApp, host: str) -> None:
        self._app = app
        self._names = LOCAL_NAMES | {host, f"[{host}]"} if is_loopback(host) else frozenset()
        policy = HEADERS | {"content-security-policy": content_policy()}
        self._headers = [(name.encode(), value.encode()) for name, value in policy.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                there = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(row for row in self._headers if row[0] not in there)]
            await send(message)

        if self._names and _host_of(dict(scope["headers"])) not in self._names:
            refusal = error_reply(421, "WrongHost", "this server answers only to names of this machine; open localhost")
            await Response(refusal.body, refusal.status, media_type=refusal.content_type)(scope, receive, sent)
            return
        await self._app(scope, receive, sent)


def _host_of(headers: Mapping[bytes, bytes]) -> str:
    text = headers.get(b"host", b"").decode("latin-1").lower()
    name, colon, port = text.rpartition(":")
    return name if colon and port.isdecimal() else text


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
