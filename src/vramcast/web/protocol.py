"""HTTP as uvicorn speaks it, with an end to how long and how large the head of a request may be.

uvicorn bounds neither where httptools parses: a client that sends a byte a minute keeps its connection, one that sends
headers without end takes memory without end.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from vramcast.web.limits import HEAD_SECONDS, LARGEST_HEAD


class BoundedHead(HttpToolsProtocol):
    """One connection."""

    _waiting: asyncio.TimerHandle | None = None  # for the end of a head
    _head_bytes = 0  # of a head that has not ended

    def connection_made(self, transport: Any) -> None:
        """Somebody has connected."""
        super().connection_made(transport)
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        """Somebody has gone."""
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
        """The first byte of a request."""
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
