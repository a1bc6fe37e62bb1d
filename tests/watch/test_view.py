"""What a watch shows of here, of holders and of cards."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from tests.watch.conftest import Machine
from tests.watch.samples import CARD, LIVING, SAMPLE
from vramcast.domain.observation import Event, EventKind, Holder, Reading
from vramcast.report.messages import LANGUAGES, Words
from vramcast.units import GIB, MIB
from vramcast.watch import outputs
from vramcast.watch.following import Expected, Following, Rules
from vramcast.watch.holders import Holders
from vramcast.watch.nvml import NvmlCard
from vramcast.watch.view import View

# The picture of a reading, at every width and height.

EXPECTED = Expected(
    gpu_uuid=CARD.uuid, role="all", steady_bytes=60 * GIB, capacity_bytes=79 * GIB, first_step_bytes=62 * GIB
)


def drawn(
    monkeypatch: pytest.MonkeyPatch, width: int, *, language: str = "en", cards: int = 3, rows: int | None = None,
    processes: int = 2,
) -> list[str]:
    """The lines of a picture."""
    monkeypatch.setenv("COLUMNS", str(width))
    held = tuple(
        replace(LIVING, pid=1000 + number, memory_bytes=(processes - number) * GIB) for number in range(processes)
    )
    samples = tuple(
        replace(
            SAMPLE, card=replace(CARD, index=index, uuid=f"{CARD.uuid}{index or ''}"),
            memory_used_bytes=(40 + index) * GIB, processes=held if processes != 2 else SAMPLE.processes,
        )
        for index in range(cards)
    )
    following = Following(Rules())
    view = View(["node-1", "driver 550"], Words(language), {CARD.uuid: EXPECTED})
    lost = Event(time_s=2.0, kind=EventKind.GPU_LOST, text="GPU 9 cannot be read: GPU is lost")
    for moment in (1.0, 2.0):
        reading = following.follow(Reading(
            time_s=moment, gpus=tuple(replace(sample, time_s=moment) for sample in samples), events=(lost,)
        ))
        view.note(reading, following)
    with view.console.capture() as captured:
        view.console.print(view.drawn(reading, following, rows))
    return captured.get().splitlines()


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("width", [30, 45, 60, 80, 100, 120, 160, 220])
def test_no_line_is_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch, width: int, language: str) -> None:
    lines = drawn(monkeypatch, width, language=language)
    assert max(map(cell_len, lines)) <= width
    assert any("40.00" in line for line in lines) or width < 40


@pytest.mark.parametrize("rows", [12, 24, 50])
def test_no_picture_is_higher_than_the_terminal(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    lines = drawn(monkeypatch, 100, cards=1, rows=rows, processes=60)
    assert len(lines) <= rows
    assert any("more processes" in line for line in lines)


def test_the_fullest_card_and_the_largest_process_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = drawn(monkeypatch, 120)
    cards = [line.split()[0] for line in lines if "H100" in line]
    assert cards == ["2", "1", "0"]
    pids = [line.split()[1] for line in lines if line.split()[1:2] and line.split()[1] in ("4242", "3111")]
    assert pids == ["4242", "3111"] * 3


def test_the_prediction_is_drawn_beside_what_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(drawn(monkeypatch, 120, cards=1))
    assert "██████████░░░░░|░░░░ 40.00 of 80.00 GiB" in text
    assert "predicted 60.00 GiB (50% of it used)" in text and "first step 62.00 GiB" in text
    assert "no such process is alive: memory nobody gives back" in text
    assert "GPU 9 cannot be read: GPU is lost" in text


def test_memory_of_others_is_not_taken_for_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.watch.test_view.EXPECTED", replace(EXPECTED, steady_bytes=35 * GIB))
    assert "35.00 GiB (86% of it used)" in "\n".join(drawn(monkeypatch, 120, cards=1))  # 30 of the 40 GiB are the job's
    monkeypatch.setattr("tests.watch.test_view.SAMPLE", replace(SAMPLE, processes=()))
    assert "5.00 GiB more than predicted" in "\n".join(drawn(monkeypatch, 120, cards=1))


def test_a_peak_that_will_not_fit_beside_others_is_foretold(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(drawn(monkeypatch, 120, cards=1))
    assert "will run out" not in text  # 30 GiB more, 39 GiB free
    monkeypatch.setattr("tests.watch.test_view.SAMPLE", replace(SAMPLE, memory_free_bytes=29 * GIB))
    text = "\n".join(drawn(monkeypatch, 120, cards=1))
    assert "will run out: the predicted peak takes 30.00 GiB more, 29.00 GiB are free" in text


def test_a_terminal_of_ascii_gets_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    assert outputs.sparkline([0, 40, 80], 80, 3, plain=True).isascii()
    assert outputs.bar(40, 80, 60, 8, plain=True) == "####--|-"


@pytest.mark.parametrize(("seconds", "text"), [
    (0.4, "0 s"), (99, "99 s"), (100, "2 min"), (3600, "60 min"), (7200, "2.0 h"), (86_400, "24 h"),
    (864_000, "10 days"),
])
def test_durations(seconds: float, text: str) -> None:
    assert outputs.duration(seconds) == text


# `--gpus here`: the cards of this machine, less what others hold.

JOB = ("qwen3-0.6b", "--seq-len", "512", "--json")


def test_cards_are_named_and_what_others_hold_is_counted(machine: Machine) -> None:
    card = "gpu 24564 300 NVIDIA GeForce RTX 4090"
    machine.has(card, card, "process 4000000 3000 0 -1 20 C")
    asked = machine.ask("train", *JOB, "--gpus", "here")
    assert asked.returncode == 0, asked.stderr
    answer = json.loads(asked.stdout)
    assert answer["question"]["gpus"] == "2xrtx-4090"
    held = next(entry for entry in answer["ranks"][0]["ledger"] if "held by others" in entry["path"])
    assert held["bytes"] == 3000 * MIB
    assert "here: 2xrtx-4090" in asked.stderr and "GPU 1: others hold 2.93 GiB" in asked.stderr


def test_what_is_said_to_be_used_wins(machine: Machine) -> None:
    machine.has("gpu 24564 300 NVIDIA GeForce RTX 4090", "process 4000000 3000 0 -1 20 C")
    answer = json.loads(machine.ask("serve", "qwen3-0.6b", "--json", "--gpus", "here", "--reserve", "1GiB").stdout)
    held = next(entry for entry in answer["ranks"][0]["ledger"] if "held by others" in entry["path"])
    assert held["bytes"] == 1024 * MIB


@pytest.mark.parametrize(("lines", "gpus"), [
    (("gpu 6144 100 NVIDIA GeForce RTX 3050 Laptop GPU",), "1xrtx-3050-laptop-6gb"),
    (("gpu 49140 100 NVIDIA GeForce RTX 4090",), "1xrtx-4090-48gb"),  # with twice the memory soldered on
    (("gpu 49140 100 NVIDIA GeForce RTX 3090",), "1x49140mib"),
    (("gpu 30000 100 NVIDIA Graphics Device",), "1x30000mib"),
    (("gpu 24576 100 NVIDIA GeForce RTX 3090", "gpu 24564 100 NVIDIA GeForce RTX 4090"), "1xrtx-3090+1xrtx-4090"),
    (("gpu 81920 300 NVIDIA A100-SXM4-80GB", "mig 1 9728 1g.10gb"), "1xa100-sxm4-80gb-1g.10gb"),
])
def test_cards_of_every_kind_are_named(machine: Machine, lines: tuple[str, ...], gpus: str) -> None:
    machine.has(*lines)
    asked = machine.ask("train", *JOB, "--gpus", "here")
    assert asked.stdout and json.loads(asked.stdout)["question"]["gpus"] == gpus, asked.stderr


def test_cards_are_those_that_a_process_would_see(machine: Machine) -> None:
    machine.has("gpu 24576 100 NVIDIA GeForce RTX 3090", "gpu 24564 100 NVIDIA GeForce RTX 4090")
    machine.environment["CUDA_VISIBLE_DEVICES"] = "1"
    assert json.loads(machine.ask("train", *JOB, "--gpus", "here").stdout)["question"]["gpus"] == "1xrtx-4090"


def test_no_card_is_one_sentence(machine: Machine) -> None:
    machine.environment["LD_LIBRARY_PATH"] = ""
    asked = machine.ask("train", *JOB, "--gpus", "here")
    assert asked.returncode == 5 and not asked.stdout
    assert asked.stderr.startswith("SourceError: no GPU can be read here") and asked.stderr.count("\n") == 1


# Who a PID is, over a /proc made of files.

DOCKER = "0::/system.slice/docker-3f2a9c55d0e1aa77bb.scope\n"


def processes(root: Path, namespace: int = 4026531836, name: str = "python3", **files: str) -> Path:
    """A /proc with PID 42."""
    folder = root / "42"
    (folder / "fd").mkdir(parents=True)
    (root / "self" / "ns").mkdir(parents=True)
    (root / "self" / "ns" / "pid").symlink_to(f"pid:[{namespace}]")
    (root / "stat").write_text("cpu 1 2\nbtime 1700000000\n")
    written = {
        "stat": f"42 ({name}) S 1 {' '.join(['0'] * 17)} 12300 0\n", "comm": f"{name}\n",
        "cmdline": f"{name}\0train.py\0--lr\0001\0", "status": "Name:\tx\nUid:\t4242\t0\t0\t0\n", "cgroup": DOCKER,
    } | files
    for file, text in written.items():
        (folder / file).write_text(text)
    return root


def test_in_a_container_a_pid_that_uses_no_card_is_somebody_elses(tmp_path: Path) -> None:
    root = processes(tmp_path, namespace=4026532999)
    (root / "42" / "fd" / "3").symlink_to("/etc/passwd")
    assert Holders(root).of(42) == {"holder": Holder.INVISIBLE}
    (root / "42" / "fd" / "4").symlink_to("/dev/nvidia0")
    assert Holders(root).of(42)["holder"] is Holder.ALIVE


@pytest.mark.parametrize("pid", [0, -1, 1 << 40])
def test_numbers_that_are_no_pid(tmp_path: Path, pid: int) -> None:
    assert Holders(processes(tmp_path)).of(pid) == {"holder": Holder.DEAD}


# What a card says of its MIG instances, asked of a library made up here.

SLICES = {("MIG-a", 0): 11, ("MIG-b", 1): 22}
"""(uuid, compute instance) of one GPU instance -> the process in it."""


class Library(SimpleNamespace):
    """NVML of one card with one GPU instance that two compute instances share; what it lacks is not supported."""

    class NVMLError(Exception):
        value = 3

    class NVMLError_FunctionNotFound(NVMLError):
        pass

    NVMLError_ArgumentVersionMismatch = NVMLError_FunctionNotFound
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_ERROR_FUNCTION_NOT_FOUND = 13
    nvmlMemory_v2 = 0

    def __init__(self) -> None:
        slices = list(SLICES)
        of_slice = {uuid: entry(pid, compute) for (uuid, compute), pid in SLICES.items()}
        memory = SimpleNamespace(total=20 * GIB, used=8 * GIB, free=12 * GIB, reserved=0)
        super().__init__(
            nvmlDeviceGetMemoryInfo=lambda *_: memory, nvmlDeviceGetMigMode=lambda _: (1, 1),
            nvmlDeviceGetMaxMigDeviceCount=lambda _: 2,
            nvmlDeviceGetMigDeviceHandleByIndex=lambda _, index: slices[index][0],
            nvmlDeviceGetUUID=lambda handle: handle, nvmlDeviceGetName=lambda handle: "H100 MIG 1c.2g.20gb",
            nvmlDeviceGetGpuInstanceId=lambda _: 5, nvmlDeviceGetComputeInstanceId=dict(slices).__getitem__,
            nvmlDeviceGetComputeRunningProcesses=lambda handle: (
                [of_slice[handle]] if handle in of_slice else list(of_slice.values())
            ),
        )


def entry(pid: int, compute: int) -> Any:
    return SimpleNamespace(pid=pid, usedGpuMemory=pid * GIB, gpuInstanceId=5, computeInstanceId=compute)


def test_processes_of_compute_instances_that_share_memory_are_told_apart() -> None:
    library: Any = Library()
    card = NvmlCard(library, "card", CARD, Holders())
    found = card.read(1.0)
    assert [part.uuid for part in found.partitions] == ["MIG-a", "MIG-b"]
    assert {one.pid: one.partition for one in found.processes} == {11: "MIG-a", 22: "MIG-b"}
    assert found.held_bytes == 33 * GIB  # each once
