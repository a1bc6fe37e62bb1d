"""How many questions a second the local server answers on one core: `python -m benchmarks.web [--peer PYTHON]`.

The server and all its processes are held on one core, the client on another. Every question of a run is asked once: no
answer can come from a cache. Below it the same questions without HTTP and processes, whose difference is what those
cost, and a request that asks for nothing. PYTHON is an interpreter with accelerate and transformers: accelerate's
arithmetic of `estimate-memory`, the only answer of a peer that is asked over a network today, on as many networks.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

from vramcast.estimate.timeline import LOOP
from vramcast.web.exchange import JSON
from vramcast.web.service import answered

KINDS: Final[tuple[dict[str, Any], ...]] = (
    {"model": "llama-3.1-8b", "gpus": "8xh100-sxm-80gb"},
    {"model": "qwen3-8b", "gpus": "8xh100-sxm-80gb", "engine": "megatron", "tp": 2},
    {"model": "llama-3.1-8b", "gpus": "8xa100-sxm4-80gb", "engine": "deepspeed", "zero": 3},
    {"model": "qwen2.5-7b", "gpus": "rtx-4090", "peft": "lora", "base-weights": "nf4"},
    {"model": "llama-3.1-70b", "gpus": "8x8xh100-sxm-80gb", "recompute": "full"},
    {"model": "qwen3-30b-a3b", "gpus": "8xh200", "engine": "megatron", "ep": 8},
)
"""What people ask most: sharded, tensor-parallel, ZeRO, QLoRA, many machines, experts."""

LONGEST: Final = 600.0


class Measured(NamedTuple):
    """One way to ask."""

    name: str
    per_second: float
    milliseconds: tuple[float, float, float]  # median, 95 % below, 99 % below
    per_cpu_second: float  # answers in a second of a core that does nothing else: what a busy machine does not change

    def __str__(self) -> str:
        median, most, all_but_one = self.milliseconds
        times = f"{median:9.2f} {most:9.2f} {all_but_one:9.2f}"
        return f"{self.name:<58}{self.per_second:>10,.1f}{self.per_cpu_second:>10,.1f}  {times}"


def questions() -> Iterator[bytes]:
    """Bodies of questions, each another one."""
    for number in count():
        kind = KINDS[number % len(KINDS)]
        yield json.dumps({**kind, "seq-len": 1024 + 16 * (number // len(KINDS))}).encode()


def cpu_seconds(group: int) -> float:
    """Time that the processes of a group have had of their cores."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[2]) == group:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


async def asked(port: int, group: int, requests: list[bytes], connections: int) -> Measured:
    """The requests over some connections that stay open, each as soon as the one before is answered."""
    waiting = iter(requests)
    times: list[float] = []

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for request in waiting:
            began = time.perf_counter()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.partition(b":")[2]))
            if not head.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"refused: {head[:60]!r} {request[-200:]!r}")
            times.append(time.perf_counter() - began)
        writer.close()

    before, began = cpu_seconds(group), time.perf_counter()
    await asyncio.gather(*(client() for _ in range(connections)))
    seconds = time.perf_counter() - began
    return measured(f"over HTTP, connections: {connections}", times, seconds, cpu_seconds(group) - before)


def measured(name: str, times: list[float], seconds: float, cpu: float) -> Measured:
    """What some times come to."""
    ordered = sorted(times)
    shares = [1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.95, 0.99)]
    per_cpu_second = len(times) / max(cpu, 1e-9)
    return Measured(name, len(times) / seconds, (1e3 * statistics.median(ordered), *shares), per_cpu_second)


def alone(bodies: list[bytes]) -> Measured:
    """The same service without a server."""
    LOOP.load()  # as the server's processes do
    times, before = [], time.process_time()
    for body in bodies:
        began = time.perf_counter()
        reply = answered("POST", "/api/train", "", {"content-type": JSON}, body)
        times.append(time.perf_counter() - began)
        assert reply.status == 200, reply.body
    return measured("the service alone, in one process", times, sum(times), time.process_time() - before)


def post(body: bytes) -> bytes:
    """One question as HTTP."""
    head = f"POST /api/train HTTP/1.1\r\nhost: localhost\r\ncontent-type: {JSON}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def server(core: int) -> tuple[subprocess.Popen[str], int]:
    """A server on one core, and its port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "vramcast", "web", "--port", "0", "--no-open", "--processes", "1"],
        stdout=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    return process, int(line.split("localhost:")[1].split("/")[0])


def peer(python: str, number: int) -> Measured:
    """accelerate's arithmetic, in a process that is kept."""
    script = Path(__file__).with_name("peers") / "accelerate_many.py"
    found = subprocess.run([python, str(script), str(number)], capture_output=True, text=True, timeout=LONGEST)
    if found.returncode:
        raise SystemExit(f"the peer failed: {found.stderr[-400:]}")
    times = json.loads(found.stdout.splitlines()[-1])
    cpu = float(found.stdout.splitlines()[-2])
    return measured("accelerate estimate-memory, functions alone, kept process", times, sum(times), cpu)


async def run(number: int, core: int, peer_python: str | None) -> None:
    """Print the table."""
    bodies = questions()
    process, port = server(core)
    try:
        group = process.pid
        await asked(port, group, [post(next(bodies)) for _ in range(2 * len(KINDS))], 1)  # all modules are loaded
        print(f"{'asked':<58}{'a second':>10}{'CPU s':>10}  {'median':>9} {'95 %':>9} {'99 %':>9} ms")
        print(await asked(port, group, [post(next(bodies)) for _ in range(number)], 1))
        print(await asked(port, group, [post(next(bodies)) for _ in range(number)], 8))
        nothing = b"GET /api/version HTTP/1.1\r\nhost: localhost\r\n\r\n"
        found = await asked(port, group, [nothing] * number, 1)
        print(found._replace(name="HTTP and process alone (/api/version)"))
    finally:
        process.terminate()
        process.wait(10)
    os.sched_setaffinity(0, {core})
    alone([next(bodies) for _ in KINDS])
    print(alone([next(bodies) for _ in range(number)]))
    if peer_python is not None:
        print(peer(peer_python, min(number, 20)))


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=600, help="of each way to ask")
    parser.add_argument("--core", type=int, default=0, help="that the server is held on")
    parser.add_argument("--peer", metavar="PYTHON", help="with accelerate and transformers")
    options = parser.parse_args()
    cores = os.sched_getaffinity(0) - {options.core}
    os.sched_setaffinity(0, cores or {options.core})
    asyncio.run(run(options.questions, options.core, options.peer))


if __name__ == "__main__":
    main()
