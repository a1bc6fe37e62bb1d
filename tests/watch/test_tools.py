"""AMD, Ascend and Moore Threads cards through stand-ins for their tools, which print the files of tools/."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.watch.conftest import until
from vramcast.domain.observation import GpuSample, Holder
from vramcast.errors import SourceError
from vramcast.units import MIB
from vramcast.watch import readers, tables, tool
from vramcast.watch.holders import Holders
from vramcast.watch.tables import AscendReader, MusaReader, RocmReader

PRINTED = Path(__file__).parent / "tools"


@pytest.fixture
def bin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH of its own, and the shell's usual tools behind it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


@pytest.fixture
def proc(tmp_path: Path) -> Iterator[Path]:
    """A /proc of the machine's own namespace, without any process."""
    (tmp_path / "proc" / "self" / "ns").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "ns" / "pid").symlink_to("pid:[4026531836]")
    yield tmp_path / "proc"


def install(folder: Path, name: str, script: str) -> None:
    """A tool that is a shell script."""
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def printing(folder: Path, name: str, answers: dict[str, str]) -> None:
    """A tool that prints a file for the arguments that begin with a pattern of the shell."""
    cases = "".join(f"{pattern}) cat {PRINTED / file};;\n" for pattern, file in answers.items())
    install(folder, name, f'case "$*" in\n{cases}*) echo "no such command: $*" >&2; exit 2;;\nesac')


def read(opened: Any, moment: float = 1.0) -> list[GpuSample]:
    return list(opened.read(moment).gpus)


def amd(folder: Path, metric: str = "amd_smi_metric.json") -> None:
    printing(folder, "amd-smi", {
        "static*": "amd_smi_static.json", "metric*": metric, "process*": "amd_smi_process.json",
    })


@pytest.mark.parametrize("metric", ["amd_smi_metric.json", "amd_smi_metric_gpu_data.json"])
def test_amd_smi(bin: Path, proc: Path, metric: str) -> None:
    amd(bin, metric)
    reader = RocmReader.open(Holders(proc))
    first, second = read(reader)
    assert reader.versions == {"driver": "6.8.5"}
    assert (first.card.model, first.card.uuid, first.card.bus) == (
        "AMD Instinct MI300X", "0x5B8CE1F0A3D24C67", "0000:0c:00.0"
    )
    assert (first.card.memory_total_bytes, first.memory_used_bytes) == (196592 * MIB, 150000 * MIB)
    assert (first.sm_share, first.memory_share, first.power_w, first.power_limit_w) == (0.97, 0.38, 688, 750)
    assert (first.sm_clock_hz, first.temperature_c, first.memory_temperature_c) == (2_104_000_000, 78, 61)
    assert (first.energy_j, first.ecc_corrected, first.throttled) == (1234567.25, 4, ("power cap",))
    assert first.pcie_received_bytes_per_s == 260 * MIB
    assert [(process.pid, process.memory_bytes, process.holder) for process in first.processes] == [
        (4242, 150_000_000_000, Holder.DEAD), (4243, MIB, Holder.DEAD)
    ]
    assert second.card.uuid == "amd-0000:22:00.0"  # where the tool knows no serial number
    assert (second.memory_used_bytes, second.power_w, second.sm_share, second.processes) == (None, None, None, ())


def test_rocm_smi_where_amd_smi_is_missing(bin: Path, proc: Path) -> None:
    printing(bin, "rocm-smi", {"--show*": "rocm_smi.json"})
    first, second = read(RocmReader.open(Holders(proc)))
    assert (first.card.model, first.card.uuid) == ("AMD Instinct MI250X", "0x9246f7d1b2a4c3e5")
    assert first.card.memory_total_bytes == 68702699520 and first.memory_used_bytes == 10960896000
    assert first.memory_free_bytes == 68702699520 - 10960896000
    assert (first.sm_share, first.power_w, first.power_limit_w) == (0.55, 301.0, 560.0)
    assert (first.sm_clock_hz, first.temperature_c) == (1_700_000_000, 52.0)
    assert not first.processes_known and first.unaccounted_bytes is None
    assert second.card.uuid == "amd-0000:C6:00.0" and second.memory_used_bytes is None


def npu(name: str, proc: Path) -> list[GpuSample]:
    return tables.ascend_table((PRINTED / name).read_text(), 1.0, Holders(proc))


def test_npu_smi_of_cards_with_two_chips(proc: Path) -> None:
    first, second = npu("npu_smi_a3.txt", proc)
    assert [sample.card.bus for sample in (first, second)] == ["0000:9D:00.0", "0000:9F:00.0"]
    assert (first.power_w, second.power_w) == (165.7, None)  # said once for the card
    assert [process.pid for process in second.processes] == [1732754] and not first.processes


def test_npu_smi_end_to_end(bin: Path, proc: Path) -> None:
    printing(bin, "npu-smi", {"info": "npu_smi_910b.txt"})
    reader = AscendReader.open(Holders(proc))
    assert reader.versions == {"driver": "24.1.rc2"} and len(read(reader)) == 2


def test_mthreads_gmi(bin: Path, proc: Path) -> None:
    printing(bin, "mthreads-gmi", {"'-q -j'": "mthreads_gmi.json", "''": "mthreads_gmi.txt"})
    reader = MusaReader.open(Holders(proc))
    first, second = read(reader)
    assert (first.card.model, first.card.memory_total_bytes) == ("MTT S5000", 81920 * MIB)
    assert (first.memory_used_bytes, first.power_w, first.power_limit_w) == (30210 * MIB, 496.66, 950.0)
    assert (first.sm_share, first.temperature_c, first.sm_clock_hz) == (0.87, 57, 1_665_000_000)
    assert [(process.pid, process.name) for process in first.processes] == [(1123, "Xorg"), (1361, "python3 train.py")]
    assert second.sm_share is None and reader.versions == {"driver": "3.3.5-server"}


@pytest.mark.parametrize(("file", "busy", "used", "pids"), [
    ("mthreads_gmi.txt", 0.58, 662, [1123, 1361]), ("mthreads_gmi_old.txt", 0.0, 2, []),
])
def test_mthreads_gmi_without_json(bin: Path, proc: Path, file: str, busy: float, used: int, pids: list[int]) -> None:
    printing(bin, "mthreads-gmi", {"''": file})
    (sample,) = read(MusaReader.open(Holders(proc)))
    assert (sample.card.model, sample.sm_share, sample.memory_used_bytes) == ("MTT S80", busy, used * MIB)
    assert [process.pid for process in sample.processes] == pids and sample.temperature_c in (41, 49)


def test_a_tool_that_hangs_is_ended_with_what_it_started(bin: Path, tmp_path: Path) -> None:
    install(bin, "slow", f"sleep 60 & echo $! > {tmp_path}/child; wait")
    begun = time.monotonic()
    with pytest.raises(SourceError, match=r"`slow` gave no answer within 0\.5 s"):
        tool.output_of(["slow"], limit_s=0.5)
    assert time.monotonic() - begun < 30  # of the 60 that it sleeps
    child = int((tmp_path / "child").read_text())
    until(lambda: not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().split()[2])


def test_a_tool_that_prints_without_end_is_not_read(bin: Path) -> None:
    install(bin, "loud", "head -c 9000000 /dev/zero")
    with pytest.raises(SourceError, match="printed 9,000,000 bytes"):
        tool.output_of(["loud"])


@pytest.mark.parametrize("printed", ["", "not json", "{", "[[[[", "null", '{"gpu_data": 7}', "[" * 100_000, "NaN"])
def test_json_that_is_none_is_one_sentence(bin: Path, tmp_path: Path, printed: str) -> None:
    (tmp_path / "printed").write_text(printed)
    install(bin, "amd-smi", f"cat {tmp_path}/printed")
    with pytest.raises(SourceError, match="AMD: "):
        RocmReader.open(Holders())


def test_every_vendor_that_is_there_is_watched(bin: Path, proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    amd(bin)
    printing(bin, "npu-smi", {"info": "npu_smi_910.txt"})
    install(bin, "mthreads-gmi", "exit 1")
    found, broken = readers.opened(["amd", "huawei", "mthreads"], Holders(proc))
    assert [reader.vendor for reader in found] == ["amd", "huawei"]
    assert len(broken) == 1 and broken[0].startswith("Moore Threads: `mthreads-gmi` failed")
    with pytest.raises(SourceError, match="2 GPUs are called '0'"):
        readers.chosen(found, ["0"])


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["gpu", "value", "unit", "mem_usage", "used_vram", "usage", "gfx_activity", "clock", "gfx_0",
                         "clk", "FB Memory Usage", "Used", "Index", "PCI", "throttle", "x"]), inner, max_size=4,
    ), max_leaves=12,
)


@given(anything, anything)
@settings(deadline=None, max_examples=150)
def test_no_json_breaks_the_readers(static: Any, metric: Any) -> None:
    sample = tables.amd_smi_sample(1.0, 0, static, metric, None)
    assert sample.sm_share is None or 0 <= sample.sm_share <= 1
    tables.rocm_smi_sample(1.0, 0, metric)
    assert tables.sample_of(1.0, 0, tables.tidy(json.loads(json.dumps(metric)))).memory_used_bytes != -1


lines = st.lists(st.sampled_from([
    "| 0     910B3 | OK | 101.8 43 0 / 0 |", "| 0 | 0000:C1:00.0 | 64 0 / 0 59356/ 65536 |",
    "| NPU Chip | Process id |", "| 3 0 | 48988 | python | 40000 |", "+====+", "Processes:",
    "0    MTT S80 |00000000:04:00.0 |0%  2MiB(16384MiB)", "0    1123      Xorg   134MiB", "| 0 | NA | NA |",
]) | st.text(max_size=40), max_size=12).map("\n".join)


@given(lines)
@settings(deadline=None, max_examples=150)
def test_no_table_breaks_the_readers(text: str) -> None:
    holders = Holders(Path("/nonexistent"))
    try:
        samples = tables.ascend_table(text, 1.0, holders)
    except SourceError:
        samples = []
    for sample in (*samples, *tables.musa_table(text, 1.0)):
        assert sample.memory_used_bytes is None or sample.memory_used_bytes >= 0


def test_tools_speak_english_to_us(bin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    install(bin, "say", "echo $LC_ALL")
    assert tool.output_of(["say"]) == "C\n" and os.environ["LC_ALL"] == "zh_CN.UTF-8"
