"""A message is found, once and with all its figures, in whatever state it was copied."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


@given(
    st.integers(10, 120),
    st.sampled_from(["", "> ", "# ", "[rank0]: ", "2026-01-02 03:04:05 "]),
    st.integers(0, 700_000),
)
@settings(max_examples=40, deadline=None)
def test_a_wrapped_message_is_read_wherever_it_stands(width: int, prefix: str, before: int) -> None:
    text = "x" * (before % 97) + "\n" + "a line of a log\n" * (before // 16) + wrapped(MESSAGE, width, prefix)
    (statement,) = read_failures(text).statements
    assert statement.numbers == FIGURES
    assert statement.line == text[: text.index("CUDA")].count("\n") + 1


def test_several_failures_are_several_statements_in_order() -> None:
    killed = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed."
    found = read_failures(f"{MESSAGE}\nlater\n{killed}\nthen\nOOMKilled\n").statements
    expected = [("torch-cuda", 1), ("torch-dataloader", 3), ("process-killed", 5)]
    assert [(item.family, item.line) for item in found] == expected


def test_the_same_failure_again_is_counted() -> None:
    (statement,) = read_failures(f"{MESSAGE}\nretrying\n" * 5).statements
    assert (statement.repeats, statement.line) == (5, 1)


def test_ranks_with_other_figures_are_statements_of_their_own() -> None:
    text = f"[rank0]: {MESSAGE}\n[rank1]: {MESSAGE.replace('GPU 1', 'GPU 2')}\n"
    found = read_failures(text)
    assert [item.numbers["device"] for item in found.statements] == [1, 2]
    assert [found.facts("rank", number) for number in (0, 1)] == [(0,), (1,)]


def test_a_chained_traceback_is_one_failure() -> None:
    chain = "\n\nDuring handling of the above exception, another exception occurred:\n\nTraceback:\n"
    (statement,) = read_failures(f"{MESSAGE}{chain}{MESSAGE}{chain}RuntimeError: CUDA out of memory").statements
    assert statement.repeats == 1


def test_what_callers_print_of_a_failure_is_no_second_one() -> None:
    (statement,) = read_failures(f"{MESSAGE}\nERROR trainer: CUDA out of memory, see above\nexiting\n").statements
    assert statement.numbers == FIGURES


def test_a_name_that_only_ends_like_a_wording_is_none() -> None:
    assert not read_failures("except torch.cuda.OutOfMemoryError as error").statements


def test_lines_of_one_library_that_agree_are_one_failure() -> None:
    text = "NCCL error, unhandled cuda error, NCCL version 2.19.3\nLast error:\nFailed to CUDA calloc async 608 bytes\n"
    (statement,) = read_failures(text).statements
    assert (statement.family, statement.line) == ("nccl", 1)
    assert statement.numbers == {"name": "2.19.3", "tried_bytes": 608}


def test_lines_of_one_library_that_differ_are_several_failures() -> None:
    text = "".join(f"DataLoader worker (pid {pid}) is killed by signal: Killed.\n" for pid in (7, 8))
    assert [item.numbers["pid"] for item in read_failures(text).statements] == [7, 8]


CUT = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`."


@pytest.mark.parametrize("text", [MESSAGE, CUT], ids=["figures", "words"])
def test_a_terminal_that_cuts_lines_inside_words_hides_no_failure(text: str) -> None:
    whole = read_failures(text).statements
    for width in range(40, 120):
        cut = "\n".join(text[place : place + width] for place in range(0, len(text), width))
        found = read_failures(cut).statements
        assert [item.family for item in found] == [item.family for item in whole], width


def test_two_words_on_two_lines_stay_two_words() -> None:
    text = MESSAGE.replace("memory in use", "memory in\nuse")
    assert read_failures(text).statements[0].numbers == FIGURES
