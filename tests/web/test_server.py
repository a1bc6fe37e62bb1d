"""The server over real sockets: the page, headers, whom it answers, those who send too much or too slowly."""

import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.web.asking import SERVE, TRAIN, post
from vramcast.web.exchange import LARGEST_HEAD, LARGEST_QUESTION, LARGEST_SNAPSHOT

for library in ("starlette", "uvicorn", "httptools", "pebble"):
    pytest.importorskip(library)

SOURCE = Path(__file__).parents[2] / "src"
AS_JSON = {"content-type": "application/json"}
BINARY = "application/octet-stream"
PATIENCE = 120
"""Seconds until a test gives up: on a machine busy with other tests everything takes its time."""


LIMITED = (
    "import sys, vramcast.web.exchange as limits; {limits};"
    " from vramcast.cli.main import main; sys.argv = ['vramcast', *sys.argv[1:]]; main()"
)
IMPATIENT = LIMITED.format(
    limits="limits.HEAD_SECONDS = limits.BODY_SECONDS = limits.IDLE_SECONDS = 3; limits.MOST_CONNECTIONS = 8"
)
"""A server that waits for nobody."""
NARROW = LIMITED.format(limits="limits.MOST_BODIES = 1 << 20")


def started(*options: str, program: tuple[str, ...] = ("-m", "vramcast")) -> tuple[subprocess.Popen[str], int]:
    """A server on any free port."""
    process = subprocess.Popen(
        [sys.executable, *program, "web", "--port", "0", "--no-open", "--processes", "1", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert "http://" in line, process.stderr.read() if process.stderr else line
    return process, int(line.split("//")[1].split("/")[0].rpartition(":")[2])


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    process, number = started()
    yield number
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert "Traceback" not in errors, errors


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


def ask(port: int, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = {}) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request(method, path, body, dict(headers))
        reply = connection.getresponse()
        return Answer(reply.status, reply.headers, reply.read())
    finally:
        connection.close()


def comes_to(expected: int, asked: Callable[[], int]) -> None:
    """Asks until the answer has this status."""
    ends = time.monotonic() + PATIENCE
    while (status := asked()) != expected and time.monotonic() < ends:
        time.sleep(0.1)
    assert status == expected


def raw(port: int, data: bytes, *, seconds: float = PATIENCE) -> bytes:
    """What comes back for bytes as they are, until the server closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        found = b""
        try:
            connection.sendall(data)
            while part := connection.recv(1 << 16):
                found += part
        except (ConnectionError, TimeoutError):
            pass
        return found


def test_answers_are_those_of_the_service(port: int) -> None:
    for path, question in (("train", TRAIN), ("serve", SERVE), ("train", {"gpus": "h100"})):
        found = ask(port, "POST", f"/api/{path}", json.dumps(question).encode(), AS_JSON)
        said = post(path, question)
        assert (found.status, found.document) == (said.status, said.document)
    assert ask(port, "GET", "/api/words?lang=zh").document["lang"] == "zh"
    recording = Path(__file__).parents[2] / "docs" / "examples" / "fragmented.pickle"
    page = ask(port, "POST", "/api/replay?format=html", recording.read_bytes(), {"content-type": BINARY})
    assert page.headers["content-type"].startswith("text/html")
    assert page.headers["content-security-policy"] == "sandbox allow-scripts"


def test_the_page_and_its_headers(port: int) -> None:
    page = ask(port, "GET", "/")
    assert page.status == 200
    assert page.body.lower().startswith(b"<!doctype html>")
    others = (("GET", "/api/version"), ("GET", "/nothing"), ("POST", "/api/train"))
    for found in (page, *(ask(port, *other) for other in others)):
        policy = found.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert found.headers["x-content-type-options"] == "nosniff"
        assert found.headers["referrer-policy"] == "no-referrer"
        assert found.headers["x-frame-options"] == "DENY"
        assert "server" not in found.headers
        assert not [name for name in found.headers if name.startswith("access-control")]


def test_files_beside_the_page_are_not_handed_out(port: int) -> None:
    for path in ("/../server.py", "/..%2fserver.py", "/%2e%2e/server.py", "//etc/passwd", "/.../x",
                 "/page/../../server.py"):
        found = raw(port, f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
        assert b" 200 " not in found.partition(b"\r\n")[0], path


@pytest.mark.parametrize(("status", "hosts"), [
    (200, ("localhost", "localhost:8000", "127.0.0.1", "[::1]:80", "LOCALHOST:1")),
    (421, ("evil.example", "localhost.evil.example", "evil.example:8000", "", "127.0.0.1.nip.io", "localhost@evil")),
])
def test_only_names_of_this_machine_are_answered(port: int, status: int, hosts: tuple[str, ...]) -> None:
    for host in hosts:
        for path in ("/api/version", "/"):
            found = raw(port, f"GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
            assert int(found.split()[1]) == status, host


def test_pages_of_others_can_neither_ask_nor_read(port: int) -> None:
    strange = {"origin": "https://evil.example"}
    form = ask(port, "POST", "/api/train", b'{"model": "x"}', strange | {"content-type": "text/plain"})
    assert form.status == 415
    before = ask(port, "OPTIONS", "/api/train", None, strange | {"access-control-request-method": "POST"})
    assert before.status == 405
    assert not [name for name in before.headers if name.startswith("access-control")]


def test_bodies_that_are_too_large_are_refused_before_they_are_read(port: int) -> None:
    for path, kind, most in (("train", "application/json", LARGEST_QUESTION), ("replay", BINARY, LARGEST_SNAPSHOT)):
        head = f"POST /api/{path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\nconnection: close\r\n"
        found = raw(port, f"{head}content-length: {most + 1}\r\n\r\n".encode())
        assert b" 413 " in found.partition(b"\r\n")[0]
        found = raw(port, f"{head}content-length: {'9' * 30}\r\n\r\n".encode())
        assert found.split()[1] in (b"413", b"400")
    chunk = b"10000\r\n" + bytes(1 << 16) + b"\r\n"
    head = "POST /api/train HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    found = raw(port, f"{head}transfer-encoding: chunked\r\nconnection: close\r\n\r\n".encode() + 5 * chunk)
    assert b" 413 " in found.partition(b"\r\n")[0]


def test_headers_without_end_are_refused(port: int) -> None:
    one = b"GET /api/version HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * (LARGEST_HEAD + (1 << 20))
    many = b"GET /api/version HTTP/1.1\r\nhost: localhost\r\n" + b"".join(b"x%d: y\r\n" % n for n in range(100_000))
    address = b"GET /" + b"a" * (1 << 20)
    for data in (one, many, address):
        found = raw(port, data)
        assert found == b"" or found.split()[1] in (b"400", b"431"), found[:200]
    assert ask(port, "GET", "/api/version").status == 200


def test_nonsense_is_refused_and_the_server_goes_on(port: int) -> None:
    for data in (b"\x00\xff\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"POST /api/train HTTP/1.1\r\n\r\n{}",
                 b"\x16\x03\x01"):
        found = raw(port, data, seconds=1)
        assert b" 200 " not in found and b" 500 " not in found
    assert ask(port, "HEAD", "/api/version").body == b""
    assert ask(port, "GET", "/api/version").status == 200


def test_visitors_at_once_get_their_own_answers(port: int) -> None:
    questions = [TRAIN | {"seq-len": 1024 * (1 + number)} for number in range(8)]

    def asked(question: dict[str, Any]) -> Any:
        found = ask(port, "POST", "/api/train", json.dumps(question).encode(), AS_JSON).document
        return found["question"]["workload"]["seq_len"]

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(asked, questions)) == [question["seq-len"] for question in questions]


@pytest.mark.parametrize(("model", "status"), [("llama-3.1-8b", 200), ("llama-9", 422)])
def test_a_search_is_answered_in_lines_to_who_accepts_them(port: int, model: str, status: int) -> None:
    asked = json.dumps({"model": model, "on": "8xh100-sxm-80gb"}).encode()
    found = ask(port, "POST", "/api/plan/train", asked, AS_JSON | {"accept": "application/x-ndjson"})
    *told, last = [json.loads(line) for line in found.body.splitlines()]
    assert found.status == 200 and last["status"] == status
    assert all(line.keys() == {"looked", "front"} for line in told)
    assert last["document"] == ask(port, "POST", "/api/plan/train", asked, AS_JSON).document


def test_what_is_no_search_is_answered_as_ever(port: int) -> None:
    body = json.dumps(TRAIN).encode()
    assert ask(port, "POST", "/api/train", body, AS_JSON | {"accept": "application/x-ndjson"}).document["ranks"]


def test_a_visitor_who_leaves_disturbs_nobody(port: int) -> None:
    body = json.dumps({"model": "llama-3.1-70b", "on": "any", "max-gpus": 64}).encode()
    head = (
        "POST /api/plan/train HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(head.encode() + body)
            time.sleep(0.4)
    began = time.monotonic()
    small = {"model": "llama-3.2-1b", "on": "l4", "techniques": True, "engine": "pytorch"}
    assert ask(port, "POST", "/api/plan/train", json.dumps(small).encode(), AS_JSON).status == 200
    assert time.monotonic() - began < PATIENCE  # the searches of those who left were ended: each takes minutes


def test_an_interrupt_ends_the_server_and_its_processes() -> None:
    process, number = started()
    assert ask(number, "GET", "/api/version").status == 200
    children = _children(process.pid)
    assert children
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert "Traceback" not in errors
    deadline = time.monotonic() + PATIENCE
    while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [child for child in children if Path(f"/proc/{child}").exists()]


def _children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir() if Path("/proc/self/task").exists() else ():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def refusal(*options: str) -> str:
    """What a server that cannot be started says."""
    found = subprocess.run(
        [sys.executable, "-m", "vramcast", "web", "--no-open", *options], capture_output=True, text=True,
        timeout=PATIENCE, env=os.environ | {"PYTHONPATH": str(SOURCE)},
    )
    assert found.returncode in (2, 3), found
    assert "Traceback" not in found.stderr and found.stderr.count("\n") == 1
    return found.stderr


def test_a_port_in_use_is_one_sentence(port: int) -> None:
    assert f"port {port} is in use" in refusal("--port", str(port))


@pytest.mark.parametrize(("options", "words"), [
    (("--host", "no such host"), "no address of this machine"), (("--host", "192.0.2.1"), "no address of this machine"),
    (("--port", "70000"), "from 0 to 65535"), (("--port", "-1"), "from 0 to 65535"),
])
def test_addresses_that_cannot_be_had_are_one_sentence(options: tuple[str, ...], words: str) -> None:
    assert words in refusal(*options)


def test_a_missing_extra_is_one_sentence() -> None:
    program = (
        "import sys; sys.modules['starlette'] = None; from vramcast.cli.main import main;"
        " sys.argv = ['vramcast', 'web']; main()"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(SOURCE)}
    )
    assert found.returncode == 3
    assert "pip install 'vramcast[web]'" in found.stderr
    assert "Traceback" not in found.stderr


@pytest.fixture(scope="module")
def impatient() -> Iterator[int]:
    process, number = started(program=("-c", IMPATIENT))
    yield number
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)


def test_those_who_send_slowly_are_hung_up_on(impatient: int) -> None:
    began = time.monotonic()
    assert raw(impatient, b"") == b""  # nothing at all
    assert raw(impatient, b"GET /api/version HT") == b""  # half a head
    drip = socket.create_connection(("127.0.0.1", impatient), timeout=PATIENCE)
    with drip, pytest.raises(OSError):  # a byte now and then
        for _ in range(300):
            drip.sendall(b"G")
            time.sleep(0.1)
    head = b"POST /api/train HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n"
    assert b" 400 " in raw(impatient, head + b"{").partition(b"\r\n")[0]  # half a body
    whole = raw(impatient, b"GET /api/version HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert whole.startswith(b"HTTP/1.1 200")  # and nothing after
    assert time.monotonic() - began < PATIENCE


def test_connections_beyond_the_most_are_sent_away_and_the_server_recovers(impatient: int) -> None:
    held = [socket.create_connection(("127.0.0.1", impatient)) for _ in range(12)]
    assert ask(impatient, "GET", "/api/version").status == 503
    for one in held:
        one.close()
    comes_to(200, lambda: ask(impatient, "GET", "/api/version").status)


HALF = b"POST /api/oom HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 900000\r\n\r\n"


def half_a_body(port: int) -> socket.socket:
    """A connection whose body never ends."""
    held = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    held.sendall(HALF + b" " * 600_000)
    return held


def test_bodies_of_all_connections_together_are_bounded_and_given_back() -> None:
    process, number = started(program=("-c", NARROW))
    try:
        assert ask(number, "GET", "/api/version").status == 200
        held = [half_a_body(number) for _ in range(3)]  # of which one fits
        ends = time.monotonic() + PATIENCE
        while len(refused := select.select(held, [], [], 0.1)[0]) < 2 and time.monotonic() < ends:
            pass
        assert [one.recv(12) for one in refused] == [b"HTTP/1.1 503"] * 2
        for one in held:
            one.close()
        question = json.dumps({"text": " " * 900_000}).encode()
        comes_to(200, lambda: ask(number, "POST", "/api/oom", question, AS_JSON).status)
        assert {ask(number, "POST", "/api/oom", question, AS_JSON).status for _ in range(3)} == {200}
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)


def test_who_leaves_in_the_middle_of_a_body_leaves_no_trace_in_the_log(port: int) -> None:
    half_a_body(port).close()
    time.sleep(0.3)
    assert ask(port, "GET", "/api/version").status == 200  # and the fixture looks for tracebacks
