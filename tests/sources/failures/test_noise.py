"""Failures found in logs of any kind, and facts, tables and files beside them."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.sources.failures.samples import GIB, MIB, SAMPLES
from vramcast.errors import SourceError
from vramcast.sources.failures import FAMILIES, NUMBERS, read_failure_file, read_failures
from vramcast.sources.failures.families import SHORT, by_roots, by_words
from vramcast.sources.failures.wording import compiled

# A message is found, once and with all its figures, in whatever state it was copied.

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


# What else a text says: versions and settings anywhere, the way of a traceback, where the run stood.

LOG = f"""PyTorch version: 2.6.0+cu124
CUDA used to build PyTorch: 12.4
| 0  NVIDIA A100-SXM4-80GB  On |
export PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128
vLLM API server version 0.9.1
epoch 3 step 1200 loss: nan
Gradient overflow. Skipping step, loss scaler 0 reducing loss scale to 32768.0
{{"offload_optimizer": {{"device": "cpu"}}}}
Traceback (most recent call last):
  File "/home/me/train.py", line 88, in main
    loss.backward()
  File "/usr/lib/python3.10/site-packages/torch/_tensor.py", line 581, in backward
    torch.autograd.backward(
  File "/usr/lib/python3.10/site-packages/torch/utils/checkpoint.py", line 1124, in unpack_hook
{MESSAGE}
"""


def test_what_no_traceback_passes_through_is_not_said() -> None:
    names = {fact.name for fact in read_failures(LOG).context}
    assert not names & {
        "optimizer_step", "optimizer_state", "generate", "data_loader", "graph_capture", "tpu", "windows",
    }


def test_a_traceback_belongs_to_the_failure_it_ends_in() -> None:
    other = MESSAGE.replace("GPU 1", "GPU 2")
    step = 'Traceback (most recent call last):\n  File "/home/me/other.py", line 3, in run\n    optimizer.step()\n'
    found = read_failures(f"{LOG}{step}{other}\n")
    assert found.facts("user_frame", 1) == ("/home/me/other.py:3 run",)
    assert ("optimizer_step" in {fact.name for fact in found.context if fact.statement == 1}) and not found.facts(
        "optimizer_step", 0
    )


def test_a_worker_of_vllm_says_what_it_was_doing_without_a_traceback() -> None:
    worker = "Exception in worker VllmWorkerProcess while processing method determine_num_available_blocks: "
    assert read_failures(f"{worker}{MESSAGE}\n").facts("profile_run") == ("yes",)
    assert not read_failures(f"I read about determine_num_available_blocks. {MESSAGE}\n").facts("profile_run")


# Files of any size and encoding, and streams.

@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_the_middle_of_a_large_stream_is_left_out_and_said_so(encoding: str) -> None:
    filler = "a line of a long log without any trouble\n" * 60_000
    other = MESSAGE.replace("GPU 1", "GPU 5")
    text = f"first\n{MESSAGE}\n{filler}RuntimeError: NCCL error\n{filler}{filler}{other}\nlast\n{MESSAGE}\n"
    found = read_failure_file(io.BytesIO(text.encode(encoding)), megabytes=1)
    assert found.cut
    assert [(item.numbers["device"], item.repeats) for item in found.statements] == [(1, 2), (5, 1)]
    assert found.lines == text.count("\n")
    assert found.statements[1].line == text[: text.index("GPU 5")].count("\n") + 1


def test_facts_of_the_end_belong_to_its_statements() -> None:
    filler = "a line of a long log without any trouble\n" * 60_000
    other = MESSAGE.replace("GPU 1", "GPU 5")
    found = read_failure_file(io.BytesIO(f"{MESSAGE}\n{filler}{filler}[rank7]: {other}\n".encode()), megabytes=1)
    assert [(fact.value, fact.statement) for fact in found.context if fact.name == "rank"] == [(7, 1)]


@pytest.mark.parametrize("data", [b"", b"  \n", b"\0\1\2\3" * 100])
def test_what_is_no_text_is_an_error_that_names_it(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "odd"
    path.write_bytes(data)
    with pytest.raises(SourceError, match="odd"):
        read_failure_file(path)


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="nothing-here"):
        read_failure_file(tmp_path / "nothing-here")


# Tables pasted beside a failure give one statement a device.

SMI = """
Thu Jan  1 10:00:00 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.65.06              Driver Version: 580.65.06      CUDA Version: 13.0     |
+-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:19:00.0 Off |                    0 |
| N/A   30C    P0             72W /  700W |   70123MiB /  81559MiB |     99%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA GeForce RTX 4090        Off |   00000000:3B:00.0  On |                  Off |
|  0%   30C    P8             20W /  450W |       4MiB /  24564MiB |      0%      Default |
+-----------------------------------------+------------------------+----------------------+

+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
|    0   N/A  N/A            1234      C   python train.py                       60000MiB |
|    0   N/A  N/A            5678      C   /usr/bin/python3                      10000MiB |
+-----------------------------------------------------------------------------------------+
"""

OLD = """
| NVIDIA-SMI 470.82.01    Driver Version: 470.82.01    CUDA Version: 11.4     |
|   0  Tesla V100-SXM2...  On   | 00000000:00:1E.0 Off |                    0 |
| N/A   37C    P0    25W / 300W |   1500MiB / 16160MiB |      0%      Default |
| Processes:
|    0      4321      C   python                              1490MiB |
"""

MIG = """
| NVIDIA-SMI 535.104.05             Driver Version: 535.104.05   CUDA Version: 12.2     |
|   0  NVIDIA A100-SXM4-40GB          On  | 00000000:01:00.0 Off |                   On |
| N/A   30C    P0              43W / 400W |    45MiB / 40960MiB  |     N/A      Default |
| MIG devices:
| GPU  GI  CI  MIG |                   Memory-Usage |        Vol|      Shared           |
|  0    1   0   0  |              12MiB / 19968MiB  | 42      0 |  3   0    2    0    0 |
"""


def test_older_layouts_and_slices_are_read() -> None:
    (old,) = read_failures(OLD).statements
    assert old.numbers["used_bytes"] == 1500 * MIB and old.numbers["other_processes_bytes"] == 1490 * MIB
    card, part = read_failures(MIG).statements
    assert (card.wording, part.wording, part.numbers["name"]) == ("table", "mig", "MIG 1/0/0")
    assert part.numbers["total_bytes"] == 19968 * MIB


def test_a_query_gives_the_columns_its_header_names() -> None:
    text = (
        "index, name, memory.total [MiB], memory.used [MiB], memory.free [MiB]\n"
        "0, NVIDIA L4, 23034 MiB, 500 MiB, 22534 MiB\n1, NVIDIA L4, 23034 MiB, 0 MiB, 23034 MiB\n"
    )
    cards = read_failures(text).statements
    assert [card.wording for card in cards] == ["query", "query"]
    assert cards[0].numbers == {
        "device": 0,
        "name": "NVIDIA L4",
        "total_bytes": 23034 * MIB,
        "used_bytes": 500 * MIB,
        "free_bytes": 22534 * MIB,
    }
    assert cards[1].numbers["used_bytes"] == 0


def test_tables_support_and_are_no_failures() -> None:
    assert {FAMILIES[name].about for name in ("nvidia-smi", "npu-smi", "rocm-smi", "memory-summary")} == {"support"}


# Every family is recognised by its own words, with its figures.

@pytest.mark.parametrize(
    ("family", "wording", "text", "figures"),
    SAMPLES,
    ids=lambda value: value if isinstance(value, str) and len(value) < 30 else "",
)
def test_a_message_is_one_statement_of_its_family_with_its_figures(
    family: str, wording: str, text: str, figures: dict[str, Any]
) -> None:
    statements = read_failures(text).statements
    assert [(item.family, item.wording) for item in statements] == [(family, wording)]
    assert {name: statements[0].numbers.get(name) for name in figures} == figures


def test_every_family_has_a_message_here_or_a_table_of_its_own() -> None:
    tested = {family for family, *_ in SAMPLES} | {"nvidia-smi", "npu-smi"}  # those: test_tables.py
    assert tested == set(FAMILIES)


def test_every_pattern_compiles_and_names_only_known_figures() -> None:
    for family in FAMILIES.values():
        for wording in family.wordings:
            patterns = (
                wording.rest, wording.before, wording.sums, *wording.parts, *(mark for _, mark in wording.marks),
            )
            names = {group.partition("__")[0] for pattern in patterns for group in compiled(pattern).groupindex}
            assert names <= set(NUMBERS), wording


def test_a_short_text_is_read_without_roots_and_a_long_one_alike() -> None:
    said = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    by_roots.cache_clear()
    short = read_failures(said).statements
    assert short and not by_roots.cache_info().currsize
    long = read_failures(said + "\n" + "step went well\n" * SHORT).statements
    assert by_roots.cache_info().currsize and long == short


def test_every_wording_is_reached_by_a_root() -> None:
    grouped = [words for group in by_roots().values() for words in group]
    assert sorted(grouped) == sorted(by_words())
    assert all(root in words for root, group in by_roots().items() for words in group)
