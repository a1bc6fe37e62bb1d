"""A message is found, once and with all its figures, in whatever state it was copied."""

import json
from collections.abc import Callable

import pytest

from tests.sources.failures.samples import GIB
from vramcast.sources.failures import read_failures

MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 24.00 GiB "
    "of which 1.00 GiB is free. Including non-PyTorch memory, this process has 22.50 GiB memory in use. "
    "Of the allocated memory 20.00 GiB is allocated by PyTorch, and 1.50 GiB is reserved by PyTorch but unallocated. "
    "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation."
)
FIGURES = {
    "tried_bytes": 2 * GIB,
    "device": 1,
    "total_bytes": 24 * GIB,
    "free_bytes": GIB,
    "process_bytes": 24159191040,
    "allocated_bytes": 20 * GIB,
    "unallocated_bytes": 1610612736,
}


def wrapped(text: str, width: int, prefix: str = "", end: str = "\n") -> str:
    """The words of a text on lines of about that many characters."""
    lines, line = [], ""
    for word in text.split(" "):
        if line and len(line) + len(word) > width:
            lines.append(line)
            line = ""
        line += f" {word}" if line else word
    return end.join(prefix + part for part in [*lines, line])


NOISE: dict[str, Callable[[str], str]] = {
    "plain": lambda text: text,
    "time and rank": lambda text: f"2026-01-02 03:04:05,678 [rank3]: {text}",
    "Windows line ends": lambda text: wrapped(text, 80, end="\r\n"),
    "80 columns": lambda text: wrapped(text, 80),
    "narrow": lambda text: wrapped(text, 24),
    "quoted": lambda text: wrapped(text, 70, "> "),
    "quoted twice": lambda text: wrapped(text, 70, "> > "),
    "commented": lambda text: wrapped(text, 70, "# "),
    "rank on every line": lambda text: wrapped(text, 90, "[rank3]: "),
    "docker compose": lambda text: wrapped(text, 90, "trainer-1  | "),
    "time on every line": lambda text: wrapped(text, 90, "2026-01-02T03:04:05.123Z "),
    "Ray": lambda text: wrapped(text, 90, "(RayWorkerWrapper pid=123, ip=10.0.0.1) "),
    "mpirun": lambda text: wrapped(text, 90, "[1,3]<stderr>:"),
    "srun": lambda text: wrapped(text, 90, "3: "),
    "vLLM": lambda text: wrapped(text, 90, "(EngineCore_0 pid=253) ERROR 04-05 01:12:55 [core.py:390] "),
    "colours": lambda text: "\x1b[31m" + text.replace("2.00 GiB", "\x1b[1;33m2.00 GiB\x1b[0m") + "\x1b[0m",
    "bold": lambda text: text.replace("2.00 GiB", "**2.00 GiB**"),
    "escaped in JSON": lambda text: json.dumps({"log": f"Traceback\n{wrapped(text, 80)}\n", "stream": "stderr"}),
    "escaped colours": lambda text: json.dumps({"log": f"\x1b[31m{text}\x1b[0m"}),
    "entities": lambda text: f"&lt;p&gt;{text.replace(' ', '&nbsp;')}&lt;/p&gt;",
    "non-breaking spaces": lambda text: text.replace(" ", "\xa0"),
    "double spaces": lambda text: text.replace(" ", "  "),
    "tabs": lambda text: text.replace(" ", "\t"),
    "upper case": lambda text: text.upper(),
    "deep in a log": lambda text: "step 1 loss 2.3\n" * 30_000 + text + "\nbye\n" * 30_000,
    "deep in one line": lambda text: "word " * 200_000 + text + " word" * 200_000,
    "other scripts": lambda text: f"エラー: 显存不足 İ {text} конец",
}


@pytest.mark.parametrize("name", NOISE)
def test_a_message_is_read_through(name: str) -> None:
    (statement,) = read_failures(NOISE[name](MESSAGE)).statements
    assert (statement.family, statement.wording, statement.repeats) == ("torch-cuda", "capacity-2.2", 1)
    assert statement.numbers == FIGURES


def test_a_chained_traceback_is_one_failure() -> None:
    chain = "\n\nDuring handling of the above exception, another exception occurred:\n\nTraceback:\n"
    (statement,) = read_failures(f"{MESSAGE}{chain}{MESSAGE}{chain}RuntimeError: CUDA out of memory").statements
    assert statement.repeats == 1
