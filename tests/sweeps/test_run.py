"""Answers of a sweep are those of the single commands, and none is lost or computed twice."""

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest

import vramcast
from tests.cli.asking import vramcast as called
from vramcast.errors import InvalidSpec, SourceError
from vramcast.sweeps import run as running
from vramcast.sweeps.engines import _interrupts_wait
from vramcast.sweeps.journal import Journal, record_of

RUN = [sys.executable, "-m", "vramcast"]
SECONDS = 60

MANY = """
[[part]]
[part.defaults]
command = "train"
engine = "torchtitan"
gpus = "8xh100-sxm-80gb"
[part.axes]
model = ["llama-3.2-1b", "qwen3-8b", "no-such-model"]
seq-len = ["1k", "8k"]
micro-batch = [1, 8]
tp = [1, 2, 3]

[[part]]
[part.defaults]
command = "serve"
[part.axes]
model = ["llama-3.1-8b", "qwen3-32b"]
gpus = ["h100", "2xl40s", "t4"]
context = ["4k", "16k"]
concurrency = [1, 8]
"""


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """A sweep of 60 questions that takes seconds."""
    path = tmp_path / "many.toml"
    path.write_text(MANY)
    return path


ENDLESS = MANY.replace("concurrency = [1, 8]", f"concurrency = {list(range(1, 401))}")
"""So many that a busy machine too has time to interrupt them."""

FEW = (MANY.replace('"1k", ', "").replace('"4k", "16k"', '"4k"')
       .replace("micro-batch = [1, 8]", "micro-batch = [1]").replace("concurrency = [1, 8]", "concurrency = [8]"))
"""Fifteen of them, for tests that interrupt nothing."""


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """A sweep that no test waits for."""
    path = tmp_path / "endless.toml"
    path.write_text(ENDLESS)
    return path


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """A sweep of 15 questions."""
    path = tmp_path / "few.toml"
    path.write_text(FEW)
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The results of `many`, answered by one process."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "many.toml").write_text(MANY)
    assert finished(folder / "many.toml", "--out", folder / "whole.csv", "--workers", 1, "--quiet").returncode == 0
    return (folder / "whole.csv").read_bytes()


def command(*arguments: object) -> list[str]:
    return [*RUN, "sweep", *map(str, arguments), "--lang", "en"]


def finished(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=SECONDS, check=False)


def lines_of(journal: Path) -> list[bytes]:
    return journal.read_bytes().splitlines(keepends=True) if journal.exists() else []


def wait_for(what: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < end
        time.sleep(0.005)


def children_of(pid: int) -> list[int]:
    """Processes started by one, and by those."""
    direct = [int(task) for task in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [child for each in direct for child in (each, *children_of(each))]


def is_worker(pid: int) -> bool:
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


ASKED: list[tuple[str, list[str]]] = [
    ("train", ["llama-3.2-1b", "--gpus", "8xh100-sxm-80gb", "--engine", "torchtitan", "--seq-len", "8k"]),
    ("train", ["llama-3.1-8b", "--gpus", "a100-sxm-80gb", "--micro-batch", "4"]),
    ("train", ["qwen3-30b-a3b", "--gpus", "16xh100", "--engine", "megatron", "--ep", "8", "--recompute", "full"]),
    ("train", ["llama-3.1-8b", "--gpus", "8xh100-sxm-80gb", "--price", "2.5usd", "--tokens", "1T"]),
    ("train", ["llama-3.1-8b", "--gpus", "aws:p5.48xlarge", "--shards", "everything"]),
    ("serve", ["llama-3.1-8b", "--gpus", "2xl40s", "--context", "32k", "--concurrency", "16"]),
    ("serve", ["qwen3-32b", "--gpus", "h100", "--engine", "sglang", "--kv-dtype", "fp8"]),
    ("serve", ["llama-3.1-70b", "--gpus", "l40s", "--context", "8k", "--find", "fewest-gpus"]),
    ("serve", ["flux.1-dev", "--gpus", "rtx-4090", "--height", "1024", "--width", "1024", "--offload", "model"]),
]


@pytest.mark.parametrize(("name", "arguments"), ASKED, ids=lambda value: value if isinstance(value, str) else value[0])
def test_an_answer_is_that_of_the_single_command(name: str, arguments: list[str]) -> None:
    single = called(name, *arguments, "--json")
    expected = json.loads(single.stdout)
    options = dict(zip((key.removeprefix("--") for key in arguments[1::2]), arguments[2::2], strict=True))
    (row,) = vramcast.sweep({"rows": [{"command": name, "model": arguments[0], **options}]}, workers=1)
    peak, capacity, times, price = (expected.get(key, {}) for key in ("peak", "capacity", "time", "price"))
    wanted: dict[str, Any] = {
        "fits": expected["fits"],
        "verdict": expected["verdict"],
        **{level: peak[level] for level in ("allocated_bytes", "reserved_bytes", "device_bytes")},
        "interval_low_bytes": peak["interval_bytes"][0],
        "interval_high_bytes": peak["interval_bytes"][1],
        "needed_bytes": expected["needed_bytes"],
        "capacity_bytes": expected["capacity_bytes"],
        "parameters": expected["parameters"],
        "kv_tokens": capacity.get("kv_tokens"),
        "max_concurrency": capacity.get("concurrency"),
        "longest_context": capacity.get("longest_context"),
        "found": str(expected["found"]["value"]) if "found" in expected else None,
        "shortfall": expected.get("shortfall"),
        "warnings": "; ".join(expected["warnings"]) or None,
        **{key: times.get(key) for key in ("step_s", "tokens_per_s", "time_to_first_token_s", "mfu")},
        **{f"price_{key}": price.get(key) for key in ("per_hour", "per_million_tokens", "per_run", "currency", "date")},
        "run_hours": price.get("run_hours"),
    }
    assert {key: row.get(key) for key in wanted} == wanted


def test_questions_that_cannot_be_answered_say_why_and_stop_nothing(few: Path) -> None:
    results = vramcast.sweep(few, workers=1)
    rows = list(results)
    assert len(rows) == len(results) == 15
    assert results.fitting + results.failing + sum(results.errors.values()) == 15
    unknown = [row for row in rows if row["model"] == "no-such-model"]
    assert len(unknown) == 3
    assert all("fits" not in row and row["message"] for row in unknown)
    assert results.errors == {"InvalidSpec": 3, "UnknownName": 2}  # tp=3 divides no 8 GPUs, whatever the model
    assert all(row["error"] == "InvalidSpec" for row in rows if row.get("tp") == 3)
    assert rows[0]["seq-len"] == 8192


def test_a_sweep_killed_midway_goes_on_where_it_was(many: Path, tmp_path: Path, whole: bytes) -> None:
    out = tmp_path / "out.csv"
    journal = tmp_path / "out.csv.journal"
    process = subprocess.Popen(command(many, "--out", out, "--workers", 2, "--quiet"))
    wait_for(lambda: len(lines_of(journal)) > 5)
    workers_of = [pid for pid in children_of(process.pid) if is_worker(pid)]
    process.kill()
    process.wait()
    wait_for(lambda: not any(map(is_worker, workers_of)))  # nobody is left behind
    kept = [line for line in lines_of(journal) if line.endswith(b"\n")]
    assert 5 < len(kept) < 61
    assert not out.exists()
    with journal.open("ab") as file:
        file.write(b'{"place":3,"key":"00')  # as a crash in the middle of a write leaves it
    done = finished(many, "--out", out, "--workers", 2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("60 questions: ")
    assert "60 of 60 questions" in done.stderr
    assert f"{len(kept) - 1} of 60 questions were answered before" in done.stderr
    lines = lines_of(journal)
    assert lines[: len(kept)] == kept
    assert sorted(json.loads(line)["place"] for line in lines[1:]) == list(range(60))
    assert out.read_bytes() == whole


def test_a_finished_sweep_computes_nothing_when_it_is_asked_again(few: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    vramcast.sweep(few, out=out, workers=1)
    before, journal = out.read_bytes(), (tmp_path / "out.jsonl.journal").read_bytes()
    out.unlink()
    vramcast.sweep(few, out=out, workers=1)
    assert out.read_bytes() == before
    assert (tmp_path / "out.jsonl.journal").read_bytes() == journal


def test_an_interrupt_keeps_what_is_answered_and_says_so(endless: Path, tmp_path: Path) -> None:
    out, journal = tmp_path / "out.csv", tmp_path / "out.csv.journal"
    process = subprocess.Popen(
        command(endless, "--out", out, "--workers", 2, "--quiet"), stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )
    wait_for(lambda: len(lines_of(journal)) > 10)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: workers are told too
    _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert "questions are answered and kept in out.csv.journal" in said
    assert "Traceback" not in said
    kept = lines_of(journal)
    assert 10 < len(kept) < 4800
    assert all(line.endswith(b"\n") for line in kept)


def test_workers_start_deaf_to_interrupts_and_this_process_stays_as_it_was() -> None:
    """One that came while Python starts in a worker would be told in a traceback."""
    resource_tracker.ensure_running()  # as the pool's queues have it run: its start lets interrupts in
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with _interrupts_wait():
        assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        end = multiprocessing.get_context("spawn").Process(target=_heard)
        end.start()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    end.join(SECONDS)
    assert end.exitcode == 0


def _heard() -> None:
    raise SystemExit(int(signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())))


def test_sigterm_to_the_sweep_alone_ends_it_in_order(endless: Path, tmp_path: Path) -> None:
    out, journal = tmp_path / "out.csv", tmp_path / "out.csv.journal"
    process = subprocess.Popen(
        command(endless, "--out", out, "--workers", 2, "--quiet"), stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: len(lines_of(journal)) > 10)
    process.terminate()
    _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert said.count("\n") == 1
    assert "the same command goes on from there" in said


def test_a_worker_that_is_killed_costs_nothing(many: Path, tmp_path: Path, whole: bytes) -> None:
    out = tmp_path / "out.csv"
    journal = tmp_path / "out.csv.journal"
    process = subprocess.Popen(command(many, "--out", out, "--workers", 2, "--quiet"))
    wait_for(lambda: len(lines_of(journal)) > 10)
    os.kill(next(pid for pid in children_of(process.pid) if is_worker(pid)), signal.SIGKILL)
    assert process.wait(timeout=SECONDS) == 0
    assert sorted(json.loads(line)["place"] for line in lines_of(journal)[1:]) == list(range(60))
    assert out.read_bytes() == whole


def test_a_question_that_kills_every_process_gets_a_row_and_the_others_their_answers(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, vramcast\n"
        "from vramcast.sweeps import engines\n"
        "from vramcast.domain.model import Checkpoint\n"
        "resolve = engines.resolve_checkpoint\n"
        "engines._models._resolve = lambda name: os._exit(9) if name == 'deadly' else resolve(name)\n"
        "if __name__ == '__main__':\n"
        "    tables = {'defaults': {'command': 'train', 'gpus': 'h100', 'engine': 'megatron'},\n"
        "              'axes': {'model': ['llama-3.2-1b', 'deadly'], 'seq-len': [512, 1024, 2048]}}\n"
        "    for row in vramcast.sweep(tables, workers=2):\n"
        "        print(row['model'], row.get('error', row.get('fits')))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.stdout.splitlines() == ["llama-3.2-1b True"] * 3 + ["deadly WorkerDied"] * 3, done.stderr


def test_a_script_without_a_main_guard_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import vramcast\n"
        "vramcast.sweep({'rows': [{'command': 'train', 'model': 'llama-3.2-1b', 'gpus': 'h100'}] * 4}, workers=2)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode != 0
    assert "SourceError: worker processes cannot start" in done.stderr


def test_a_journal_of_other_questions_or_another_version_is_refused(few: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    vramcast.sweep(few, out=out, workers=1)
    before = out.read_bytes()
    few.write_text(FEW.replace('"t4"', '"l4"'))
    with pytest.raises(SourceError, match=r"holds answers of other questions than few\.toml has now"):
        vramcast.sweep(few, out=out, workers=1)
    journal = tmp_path / "out.csv.journal"
    first, *others = lines_of(journal)
    journal.write_bytes(first.replace(vramcast.__version__.encode(), b"0.0.1") + b"".join(others))
    with pytest.raises(SourceError, match=r"holds answers of vramcast 0\.0\.1"):
        vramcast.sweep(few, out=out, workers=1)
    assert out.read_bytes() == before
    journal.write_text("my notes\n")
    for restart in (False, True):
        with pytest.raises(SourceError, match="is no journal"):
            vramcast.sweep(few, out=out, workers=1, restart=restart)
    assert journal.read_text() == "my notes\n"


def test_damaged_lines_of_a_journal_are_asked_again(few: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    vramcast.sweep(few, out=out, workers=1)
    before, journal = out.read_bytes(), tmp_path / "out.csv.journal"
    lines = lines_of(journal)
    lines[5], lines[9] = b"\0" * (len(lines[5]) - 1) + b"\n", b'{"place": 7}\n'
    journal.write_bytes(b"".join(lines))
    vramcast.sweep(few, out=out, workers=1)
    assert out.read_bytes() == before
    assert len(lines_of(journal)) == len(lines) + 2


def test_a_digit_changed_in_a_journal_never_reaches_the_results(few: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    vramcast.sweep(few, out=out, workers=1)
    before, journal = out.read_bytes(), tmp_path / "out.csv.journal"
    lines = lines_of(journal)
    digits = [match.start() for match in re.finditer(rb"\d", lines[1])]
    for position in digits[:: max(1, len(digits) // 40)]:
        damaged = bytearray(lines[1])
        damaged[position] = ord("0") + (damaged[position] - ord("0") + 1) % 10
        assert record_of(bytes(damaged)) is None
        assert record_of(lines[1]) is not None
    damaged = bytearray(lines[1])
    place = lines[1].index(b"device_bytes") + 15
    damaged[place] = ord("0") + (damaged[place] - ord("0") + 1) % 10
    journal.write_bytes(b"".join([*lines[:1], bytes(damaged), *lines[2:]]))
    vramcast.sweep(few, out=out, workers=1)
    assert out.read_bytes() == before


def test_a_journal_of_the_form_without_checksums_is_refused_as_such(few: Path, tmp_path: Path) -> None:
    out, journal = tmp_path / "out.csv", tmp_path / "out.csv.journal"
    vramcast.sweep(few, out=out, workers=1)
    journal.write_bytes(journal.read_bytes().replace(b'{"journal":3', b'{"journal":1', 1))
    with pytest.raises(SourceError, match="another form of journals"):
        vramcast.sweep(few, out=out, workers=1)


def test_two_sweeps_cannot_write_the_same_output(few: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    read = running.read_sweep(few, defaults={})
    journal = Journal(tmp_path / "out.csv.journal", read)
    done = finished(few, "--out", out)
    journal.close()
    assert done.returncode == 5
    assert "another sweep is writing it" in done.stderr


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_computed(few: Path, tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    for out, says in (
        (tmp_path / "out.txt", "results are written as .csv, .jsonl, .parquet"),
        (tmp_path / "none" / "out.csv", "there is no folder"),
        (tmp_path / "folder.csv", "is a folder"),
        (Path("/proc/out.csv"), "cannot be written"),
    ):
        with pytest.raises((InvalidSpec, SourceError), match=says):
            vramcast.sweep(few, out=out, workers=1)
    questions = tmp_path / "questions.csv"
    questions.write_text("command,model,gpus\ntrain,llama-3.2-1b,h100\n")
    with pytest.raises(InvalidSpec, match="is the file of the questions"):
        vramcast.sweep(questions, out=questions, workers=1)


def test_without_pyarrow_parquet_is_refused_with_what_would_work(
    few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vramcast.sweeps.results.find_spec", lambda name: None)
    with pytest.raises(SourceError, match=r"pip install 'vramcast\[sweep\]', or write --out out.csv"):
        vramcast.sweep(few, out=tmp_path / "out.parquet", workers=1)


def test_a_full_disk_keeps_the_answers_and_the_results_of_before(
    few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.csv"
    out.write_text("before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(running.write_results.__globals__["WRITERS"], ".csv", full)
    with pytest.raises(SourceError, match=r"No space left on device\); the answers are kept"):
        vramcast.sweep(few, out=out, workers=1)
    assert out.read_text() == "before"
    assert len(lines_of(tmp_path / "out.csv.journal")) == 16
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.libraries
def test_parquet_holds_what_csv_holds(few: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    results = vramcast.sweep(few, out=tmp_path / "out.parquet", workers=1)
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table.column_names == list(results.columns)
    assert [{key: value for key, value in row.items() if value is not None} for row in table.to_pylist()] == [
        {key: row[key] for key in results.columns if key in row} for row in results
    ]


@pytest.mark.parametrize(("arguments", "says"), [
    (["--set", "command"], "must be written NAME=VALUE"),
    (["--set", "comand=train"], "unknown option 'comand'; did you mean command"),
    (["--engine", "local", "--address", "auto"], "add --engine ray"),
])
def test_wrong_options_get_one_sentence(tmp_path: Path, arguments: list[str], says: str) -> None:
    questions = tmp_path / "questions.csv"
    questions.write_text("command,model,gpus\ntrain,llama-3.2-1b,h100\n")
    done = called("sweep", str(questions), "--out", str(tmp_path / "out.csv"), *arguments)
    assert done.returncode in (2, 4)
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_the_documented_file_is_answered_whole() -> None:
    results = vramcast.sweep(Path(__file__).parents[2] / "docs" / "examples" / "sweep.toml", workers=1)
    assert len(results) == 49
    assert not results.errors
    assert results.fitting
    assert results.failing
