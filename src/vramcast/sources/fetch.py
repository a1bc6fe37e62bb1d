"""Small bounded reads over HTTP: a size, a deadline and a few redirects are the most a server can cost.

A token goes to the host it was meant for and nowhere else: not along a redirect to another host, not over plain
http except to the machine itself.
"""

from __future__ import annotations

import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException, HTTPResponse
from typing import Any, Final

from vramcast.errors import Note, SourceError

SILENCE_SECONDS: Final = 10.0
"""Longest wait for the next bytes."""

DEADLINE_SECONDS: Final = 60.0
"""Longest time for one file, however steadily it drips."""

MOST_REDIRECTS: Final = 5
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
CHUNK: Final = 64 << 10
LONGEST_LINE: Final = 1 << 20
FAILURES: Final = (urllib.error.URLError, HTTPException, OSError, ValueError)
"""What goes wrong on the way; an error status is a URLError."""

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class Refused(SourceError):
    """The server answered with an error status."""

    def __init__(self, text: str, *, status: int) -> None:
        super().__init__(text)
        self.status = status


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Leaves redirects to `_open`, which checks where they lead."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """No request follows."""


def read_url(
    url: str, *, most: int, token: str = "", first: int | None = None, seconds: float | None = None
) -> bytes:
    """A file of at most `most` bytes, or `most` bytes of it from `first` on.

    Args:
        most: largest body; a longer whole file is refused, a longer part is cut [bytes]
        token: sent as bearer token to the address's own host only
        first: where a part begins; None for the whole file [bytes]
        seconds: longest time for the body, DEADLINE_SECONDS where none is given

    Raises: Refused for an error status, SourceError where no answer can be used
    """
    host = _checked(url).netloc
    headers = {"User-Agent": "vramcast", "Accept-Encoding": "identity"}
    if first is not None:
        headers["Range"] = f"bytes={first}-{first + most - 1}"
    deadline = time.monotonic() + (seconds or DEADLINE_SECONDS)
    try:
        with _open(url, headers, token) as answer:
            if first and answer.status != 206:
                raise SourceError("{} does not serve parts of files, so headers cannot be read", host)
            return _body(answer, most, whole=first is None, host=host, deadline=deadline)
    except FAILURES as error:
        raise _failed(host, error) from None


def read_lines(url: str, *, most: int, seconds: float) -> Iterator[str]:
    """The lines of a text of at most `most` bytes, as they arrive: a list of hundreds of megabytes is never held.

    Args:
        most: largest body [bytes]
        seconds: longest time for all of it

    Raises: Refused for an error status, SourceError where no answer can be used
    """
    host = _checked(url).netloc
    headers = {"User-Agent": "vramcast", "Accept-Encoding": "identity"}
    deadline, count, rest = time.monotonic() + seconds, 0, b""
    try:
        with _open(url, headers, "") as answer:
            while chunk := answer.read1(CHUNK):
                count += len(chunk)
                *whole, rest = (rest + chunk).split(b"\n")
                if count > most or len(rest) > LONGEST_LINE:
                    raise SourceError("{} sends more than {} bytes, or than {} in one line", host, most, LONGEST_LINE)
                if time.monotonic() > deadline:
                    raise SourceError("{} took more than {:.0f} s for one list", host, seconds)
                yield from (line.decode("utf-8", errors="replace") + "\n" for line in whole)
            stated = answer.headers.get("Content-Length", "")
            if stated.isdecimal() and count < int(stated[:20]):
                raise SourceError("{} broke off after {} bytes", host, count)
    except FAILURES as error:
        raise _failed(host, error) from None
    if rest:
        yield rest.decode("utf-8", errors="replace")


def _failed(host: str, error: Exception) -> SourceError:
    if isinstance(error, urllib.error.HTTPError):
        return Refused(Note("{} answered with status {}", host, error.code), status=error.code)
    reason = str(getattr(error, "reason", error))[:100].replace("\n", " ")
    return SourceError("{} cannot be reached ({})", host, reason or type(error).__name__)


def _open(url: str, headers: dict[str, str], token: str) -> HTTPResponse:
    """The answer behind at most `MOST_REDIRECTS` redirects."""
    opener = urllib.request.build_opener(_NoRedirects())
    start = here = _checked(url)
    for _ in range(MOST_REDIRECTS + 1):
        request = urllib.request.Request(urllib.parse.urlunsplit(here), headers=headers)
        safe = here.scheme == "https" or here.hostname in LOOPBACK
        if token and safe and (here.scheme, here.netloc) == (start.scheme, start.netloc):
            request.add_unredirected_header("Authorization", f"Bearer {token}")
        try:
            answer: HTTPResponse = opener.open(request, timeout=SILENCE_SECONDS)
        except urllib.error.HTTPError as error:
            target = error.headers.get("Location")
            if error.code not in REDIRECTS or not target:
                raise
            error.close()
            here = _next(here, target)
        else:
            return answer
    raise SourceError("{} redirects more than {} times", start.netloc, MOST_REDIRECTS)


def _next(here: urllib.parse.SplitResult, target: str) -> urllib.parse.SplitResult:
    following = _checked(urllib.parse.urljoin(urllib.parse.urlunsplit(here), target))
    if here.scheme == "https" and following.scheme != "https":
        raise SourceError("{} redirects from https to plain http at {}", here.netloc, following.netloc)
    return following


def _checked(url: str) -> urllib.parse.SplitResult:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SourceError("{!r} is no web address; it must begin with https:// or http://", url[:80])
    return parts


def _body(answer: HTTPResponse, most: int, *, whole: bool, host: str, deadline: float) -> bytes:
    """The body, chunk by chunk, so that neither its length nor its pace is the server's choice."""
    stated = answer.headers.get("Content-Length", "")
    if whole and stated.isdecimal() and int(stated[:20]) > most:
        raise SourceError("{} sends {} bytes where at most {} were expected", host, stated[:20], most)
    kept = bytearray()
    wanted = most + 1 if whole else most
    while len(kept) < wanted:
        chunk = answer.read1(min(CHUNK, wanted - len(kept)))
        if not chunk:
            break
        kept += chunk
        if time.monotonic() > deadline:
            raise SourceError("{} took more than {:.0f} s for one small file", host, DEADLINE_SECONDS)
    if whole and len(kept) > most:
        raise SourceError("{} sends more than the {} bytes expected", host, most)
    if stated.isdecimal() and len(kept) < min(int(stated[:20]), wanted):
        raise SourceError("{} broke off after {} bytes", host, len(kept))
    return bytes(kept)
