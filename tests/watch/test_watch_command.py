"""`vramcast watch` from end to end over the fake driver: what it reads, shows and records, and what it says when
something breaks."""

import csv
import io
import json
import os
import resource
import signal
import socket
import sqlite3
from pathlib import Path

import pytest

from tests.watch.conftest import SOON_S, Machine, until
from vramcast.units import GIB, MIB
from vramcast.watch.recording import read_run

H100 = "gpu 81559 551 NVIDIA H100 80GB HBM3"
FAST = ("--interval", "50ms")


def few(readings: int) -> tuple[str, ...]:
    """So many readings, quickly."""
    return (*FAST, "--count", str(readings))


def test_every_figure_of_a_card_is_read(machine: Machine) -> None:
    machine.has(H100, "process 1 30000 0 -1 90 C", "throttle 36")
    gpu = machine.documents(*few(3))[-1]["gpus"][0]
    assert gpu["uuid"] == "GPU-00000001-1111-4222-8333-444444444444"
    assert (gpu["index"], gpu["model"], gpu["bus"]) == (0, "NVIDIA H100 80GB HBM3", "00000000:17:00.0")
    assert gpu["memory_total_bytes"] == 81559 * MIB
    assert gpu["memory_used_bytes"] + gpu["memory_free_bytes"] + gpu["memory_reserved_bytes"] == 81559 * MIB
    assert (gpu["sm_share"], gpu["memory_share"]) == (0.93, 0.41)
    assert (gpu["power_w"], gpu["power_limit_w"]) == (612.5, 700.0)
    assert (gpu["sm_clock_hz"], gpu["memory_clock_hz"]) == (1_755_000_000, 2_619_000_000)
    assert (gpu["temperature_c"], gpu["memory_temperature_c"]) == (61, 74)
    assert gpu["throttled"] == ["power cap", "hot"]
    assert (gpu["ecc_corrected"], gpu["ecc_uncorrected"]) == (3, 0)
    assert gpu["pcie_received_bytes_per_s"] == pytest.approx(2 * gpu["pcie_sent_bytes_per_s"])
    assert gpu["link_sent_bytes_per_s"] / gpu["pcie_sent_bytes_per_s"] == pytest.approx(GIB / 1e9)


def test_a_process_is_named_and_a_dead_one_said_to_be_dead(machine: Machine, dead_pid: int) -> None:
    alive = machine.holder()
    machine.has(H100, f"process {alive} 30000 0 -1 90 C", f"process {dead_pid} 8000 0 -1 0 C", "orphan 500")
    document = json.loads(machine.watch("--once", "--json").stdout)
    first, second = document["gpus"][0]["processes"]
    assert (first["pid"], first["holder"], first["sm_share"]) == (alive, "alive", 0.9)
    assert first["name"].startswith("python") and "time.sleep(300)" in first["command"] and first["user"]
    assert second["pid"] == dead_pid and second["holder"] in ("dead", "invisible")
    assert document["gpus"][0]["unaccounted_bytes"] == 8500 * MIB


def test_mig_instances_have_memory_of_their_own(machine: Machine) -> None:
    slices = ("mig 1 4864 1g.5gb", "mig 2 9856 2g.10gb")
    machine.has("gpu 40960 300 NVIDIA A100-SXM4-40GB", *slices, "process 1 3000 0 2 20 C")
    gpu = json.loads(machine.watch("--once", "--json").stdout)["gpus"][0]
    assert [part["profile"] for part in gpu["partitions"]] == ["1g.5gb", "2g.10gb"]
    assert [part["memory_used_bytes"] for part in gpu["partitions"]] == [0, 3000 * MIB]
    assert len(gpu["processes"]) == 1  # named by the card and by the instance, and counted once
    assert gpu["processes"][0]["partition"] == gpu["partitions"][1]["uuid"]
    assert "sm_share" not in gpu  # the driver does not say in MIG mode: absent, not 0


def test_a_card_without_privileges_is_asked_by_its_instances(machine: Machine) -> None:
    machine.has("gpu 40960 300 NVIDIA A100-SXM4-40GB", "closed", "mig 1 9856 2g.10gb", "process 1 3000 0 1 20 C")
    gpu = machine.documents(*few(2))[-1]["gpus"][0]
    assert gpu["processes_known"] and [process["pid"] for process in gpu["processes"]] == [1]


def test_an_old_driver_says_less(machine: Machine) -> None:
    machine.has("driver 470.57.02", H100, "old", "throttle 4", "process 1 30000 0 -1 90 C")
    gpu = machine.documents(*few(3))[-1]["gpus"][0]
    assert gpu["memory_used_bytes"] == (30000 + 551) * MIB  # counts as used what newer drivers call reserved
    assert "memory_reserved_bytes" not in gpu and "link_sent_bytes_per_s" not in gpu
    assert (gpu["pcie_sent_bytes_per_s"], gpu["temperature_c"], gpu["throttled"]) == (5e6, 58, ["power cap"])


def test_a_card_that_shares_the_machines_memory(machine: Machine) -> None:
    machine.has("gpu 131072 0 NVIDIA GB10", "unknown", "process 1 30000 0 -1 90 C")
    gpu = json.loads(machine.watch("--once", "--json").stdout)["gpus"][0]
    assert "memory_total_bytes" not in gpu and "memory_used_bytes" not in gpu
    assert gpu["processes"][0]["memory_bytes"] == 30000 * MIB
    assert "? of ?" in machine.watch("--once").stdout


def test_processes_that_the_driver_hides_are_unknown_not_none(machine: Machine) -> None:
    machine.has(H100, "closed", "process 1 30000 0 -1 90 C")
    gpu = json.loads(machine.watch("--once", "--json").stdout)["gpus"][0]
    assert gpu["processes_known"] is False and "unaccounted_bytes" not in gpu
    assert "the driver does not say who is on the card" in machine.watch("--once").stdout


def test_a_card_that_is_lost_from_the_start(machine: Machine) -> None:
    machine.has(H100, "lost 0 2", "gone", H100)
    documents = machine.documents(*few(6))
    assert [gpu["index"] for gpu in documents[0]["gpus"]] == [1]
    assert documents[0]["events"][0]["text"] == "GPU 0 cannot be read: GPU is lost"
    assert [gpu["index"] for gpu in documents[-1]["gpus"]] == [0, 1]  # it came back


def test_a_card_that_may_not_be_read_is_said_once_and_is_no_alert(machine: Machine) -> None:
    machine.has(H100, "forbidden", H100, H100)
    ended = machine.watch(*few(3), "--exit-on-alert")
    assert ended.returncode == 0
    assert ended.stdout.count("GPU 0 cannot be read: Insufficient Permissions") == 1
    assert ended.stdout.count("GPU 1  ") == 3
    assert "GPU 0" not in machine.watch("--once", "--gpu", "1").stdout


def test_a_driver_that_hangs_is_said_and_does_not_stop_the_watch(machine: Machine) -> None:
    machine.has(H100, "hang 2 3")
    program = "import vramcast.watch.readers as r; r.PATIENCE_S = 0.3; r.Patient.__init__.__defaults__ = (0.3,)\n"
    (machine.folder / "sitecustomize.py").write_text(program)
    machine.environment["PYTHONPATH"] += f":{machine.folder}"
    documents = machine.documents("--interval", "100ms", "--duration", "4.5s")
    kinds = [event["kind"] for document in documents for event in document["events"]]
    assert kinds == ["reader-failed", "reader-back"]
    assert any(not document["gpus"] for document in documents) and documents[-1]["gpus"]


@pytest.mark.parametrize(("code", "sentence"), [
    (9, "the driver is installed and not loaded"), (4, "no permission to talk to the driver"),
    (18, "have different versions: the driver was updated"), (999, "NVML does not start"),
])
def test_a_driver_that_does_not_start_is_one_sentence(machine: Machine, code: int, sentence: str) -> None:
    machine.has(f"init {code}", H100)
    ended = machine.watch("--once")
    assert ended.returncode == 5
    assert ended.stderr.startswith("SourceError: no GPU can be read here. NVIDIA: ") and sentence in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_without_any_driver_each_vendor_is_named(machine: Machine) -> None:
    machine.environment["LD_LIBRARY_PATH"] = str(machine.tools)
    ended = machine.watch("--once")
    assert ended.returncode == 5
    for text in ("no libnvidia-ml.so.1", "amd-smi", "npu-smi", "mthreads-gmi"):
        assert text in ended.stderr


def test_an_unknown_card_is_named_with_those_that_are_there(machine: Machine) -> None:
    machine.has(H100, H100)
    ended = machine.watch("--once", "--gpu", "7")
    assert (ended.returncode, ended.stdout) == (4, "")
    assert "no GPU '7' is here; there is: 0 (NVIDIA H100 80GB HBM3), 1" in ended.stderr


def test_one_card_is_chosen_by_index_or_uuid(machine: Machine) -> None:
    machine.has(H100, H100)
    for name in ("1", "GPU-00000002"):
        document = json.loads(machine.watch("--once", "--json", "--gpu", name).stdout)
        assert [gpu["index"] for gpu in document["gpus"]] == [1]


def limited() -> None:
    """No file may grow beyond 256 KiB: writing fails as it does on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 << 10, 256 << 10))


def test_a_full_disk_stops_the_recording_not_the_watch(machine: Machine) -> None:
    machine.has(*[line for _ in range(8) for line in (H100, "process 1 100 10 -1 0 C", "process 2 100 10 -1 0 C")])
    ended = machine.watch(*few(60), "--record", "run.sqlite", "--json", preexec_fn=limited)
    assert ended.returncode == 0
    said = [line for line in ended.stderr.splitlines() if "run.sqlite stops at" in line]
    assert len(said) == 1 and "what was written is kept, the watch goes on" in said[0]
    shown = [json.loads(line)["time_s"] for line in ended.stdout.splitlines()]
    run = read_run(machine.folder / "run.sqlite")
    times = sorted({sample.time_s for sample in run.gpus})
    assert 0 < len(times) < len(shown) and times == shown[: len(times)]  # all before it, none after
    assert len(run.gpus) == 8 * len(times)  # and no half reading


def test_a_full_device_stops_the_csv_not_the_watch(machine: Machine) -> None:
    machine.has(H100)
    ended = machine.watch(*few(4), "--csv", "/dev/full", "--json")
    assert len(ended.stdout.splitlines()) == 4
    assert ended.stderr.count("/dev/full stops at") == 1 and "No space left on device" in ended.stderr


def test_a_disk_that_has_room_again_is_gone_on_with(machine: Machine) -> None:
    machine.has(H100, "process 1 100 10 -1 0 C")
    process = machine.start(*FAST, "--record", "run.sqlite")
    path = machine.folder / "run.sqlite"
    until(path.exists)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    with sqlite3.connect(path, timeout=SOON_S) as other:
        other.execute("CREATE TRIGGER full BEFORE INSERT ON gpu_samples BEGIN SELECT RAISE(ABORT, 'no room'); END")
    assert "run.sqlite stops at" in process.stderr.readline()
    with sqlite3.connect(path, timeout=SOON_S) as other:
        other.execute("DROP TRIGGER full")
    assert "run.sqlite goes on at" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.communicate()


def test_an_interrupt_is_the_usual_end(machine: Machine) -> None:
    machine.has(H100)
    for number in (signal.SIGINT, signal.SIGTERM):
        process = machine.start(*FAST, "--record", "run.sqlite")
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        _, err = process.communicate(timeout=SOON_S)
        assert (process.returncode, err) == (0, "")
    assert not (machine.folder / "run.sqlite-wal").exists()  # folded into the file


def test_a_port_in_use_is_said_before_anything_else(machine: Machine) -> None:
    pytest.importorskip("prometheus_client")
    machine.has(H100)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = machine.watch("--once", "--prometheus", f":{taken.getsockname()[1]}", "--record", "run.sqlite")
    assert not (machine.folder / "run.sqlite").exists()
    assert ended.returncode == 5 and "Address already in use; give another port" in ended.stderr


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_of_another_machine_is_told_from_a_port_in_use(machine: Machine, host: str) -> None:
    pytest.importorskip("prometheus_client")
    machine.has(H100)
    ended = machine.watch("--once", "--prometheus", f"{host}:9400")
    assert ended.returncode == 5 and ended.stderr.endswith("give an address of this machine\n")


def test_rows_of_csv(machine: Machine) -> None:
    machine.has(H100, "process 1 30000 0 -1 90 C", H100)
    rows = list(csv.DictReader(io.StringIO(machine.watch(*few(2), "--csv", "-").stdout)))
    assert [row["gpu"] for row in rows[:2]] == ["0", "1"]
    assert rows[0]["memory_used_bytes"] == str(30000 * MIB) and rows[0]["processes"] == f"1={30000 * MIB}"
    assert rows[0]["pcie_sent_bytes_per_s"] == ""  # not known at the first reading
    for _ in range(2):
        machine.watch("--once", "--csv", "gpus.csv")
    lines = (machine.folder / "gpus.csv").read_text().splitlines()
    assert len(lines) == 5 and sum(line.startswith("time_s") for line in lines) == 1


def test_a_file_of_something_else_gets_no_rows(machine: Machine) -> None:
    machine.has(H100)
    path = machine.folder / "notes.txt"
    path.write_text("keep me")
    ended = machine.watch("--once", "--csv", "notes.txt")
    assert ended.returncode == 5 and path.read_text() == "keep me"
    assert ended.stderr == (
        "SourceError: notes.txt does not begin with the columns of this CSV, and is left as it is; give another file\n"
    )


def test_the_first_alert_can_end_the_watch(machine: Machine) -> None:
    machine.has(H100, "process 1 79000 0 -1 90 C")
    ended = machine.watch(*FAST, "--exit-on-alert", "--alert-headroom", "4GiB")
    assert ended.returncode == 1
    assert "GPU 0: only 1.96 GiB free, less than 4.00 GiB" in ended.stdout


def test_the_prediction_stands_beside_reality(machine: Machine) -> None:
    machine.has(H100, "process 1 30000 0 -1 90 C")
    job = 'model = "llama-3.1-8b"\ngpus = "8xh100-sxm-80gb"\nengine = "torchtitan"\nshards = "everything"\n'
    (machine.folder / "job.toml").write_text(job + "seq-len = 8192\n")
    gpu = json.loads(machine.watch("--once", "--json", "--predict", "job.toml").stdout)["gpus"][0]
    predicted = f"predicted {gpu['expected']['steady_bytes'] / GIB:.2f} GiB"
    assert 40 * GIB < gpu["expected"]["steady_bytes"] < gpu["expected"]["capacity_bytes"] < 81559 * MIB
    assert gpu["expected"]["role"] == "all"
    assert predicted in machine.watch("--once", "--predict", "job.toml").stdout
    machine.has(H100, "process 1 78000 0 -1 90 C")
    assert "more than predicted" in machine.watch("--once", "--predict", "job.toml").stdout


def test_a_serving_job_is_predicted_too(machine: Machine) -> None:
    machine.has(H100)
    job = 'model = "qwen3-8b"\ngpus = "h100-sxm-80gb"\nengine = "vllm@0.19"\ncontext = 8192\n'
    (machine.folder / "job.toml").write_text(job)
    gpu = json.loads(machine.watch("--once", "--json", "--predict", "job.toml").stdout)["gpus"][0]
    assert gpu["expected"]["steady_bytes"] > 60 * GIB and "first_step_bytes" not in gpu["expected"]


def test_a_job_that_cannot_be_predicted_is_said_before_watching(machine: Machine) -> None:
    machine.has(H100)
    (machine.folder / "job.toml").write_text('model = "no-such-model"\ngpus = "h100"\n')
    ended = machine.watch("--once", "--predict", "job.toml")
    assert ended.returncode == 4 and "no-such-model" in ended.stderr


def test_chinese(machine: Machine, dead_pid: int) -> None:
    machine.has(H100, f"process {dead_pid} 8000 0 -1 0 C", "throttle 4")
    shown = machine.watch("--once", "--lang", "zh").stdout
    assert "显存" in shown and "降频：功率上限" in shown and "不属于任何可见进程" in shown


def test_a_reader_that_goes_away_ends_it_quietly(machine: Machine) -> None:
    machine.has(H100)
    process = machine.start(*FAST, "--json")
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(SOON_S) == 0 and process.stderr.read() == ""


@pytest.mark.parametrize(("arguments", "sentence"), [
    (("--interval", "fast"), "--interval 'fast' must be a time"), (("--interval", "1ms"), "at least 50ms"),
    (("--prometheus", "here"), "must be [HOST]:PORT"), (("--alert-headroom", "much"), "alert-headroom"),
    (("--json", "--csv", "-"), "both write to standard output"),
])
def test_options_that_make_no_sense(machine: Machine, arguments: tuple[str, ...], sentence: str) -> None:
    machine.has(H100)
    ended = machine.watch("--once", *arguments)
    assert ended.returncode == 2 and sentence in ended.stderr and len(ended.stderr.splitlines()) == 1


def test_hostile_names_reach_no_terminal(machine: Machine) -> None:
    machine.has("gpu 1000 0 \x1b]0;owned\x07\x1b[2J bad")
    shown = machine.watch("--once").stdout
    assert "\x1b" not in shown and "\x07" not in shown


def test_a_terminal_is_left_as_it_was(machine: Machine) -> None:
    pty = pytest.importorskip("pty")
    machine.has(H100, "process 1 30000 100 -1 90 C")
    keeper, terminal = pty.openpty()
    process = machine.start(*FAST)  # not on a terminal: lines
    assert process.stdout is not None
    assert "GPU 0" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=SOON_S)
    shown = b""
    watching = machine.start_on(terminal, *FAST, "--exit-on-alert", "--alert-headroom", "50GiB")
    os.close(terminal)
    try:
        while data := os.read(keeper, 65536):
            shown += data
    except OSError:
        pass  # its other end is closed: the watch has ended
    assert watching.wait(SOON_S) == 1
    after = shown[shown.rfind(b"\x1b[?1049l"):]
    assert b"GPU 0: only 49." in after  # what ended it is still to be read
    assert shown.count(b"\x1b[?1049h") == shown.count(b"\x1b[?1049l") == 1  # to the other screen and back
    assert shown.rfind(b"\x1b[?25h") > shown.rfind(b"\x1b[?25l")  # the cursor is shown again
    assert b"H100" in shown


def test_recording_goes_where_it_is_told(machine: Machine) -> None:
    machine.has(H100)
    ended = machine.watch("--once", "--record", "no/such/folder/run.sqlite")
    assert ended.returncode == 5 and "no/such/folder/run.sqlite" in ended.stderr
    assert not Path(machine.folder / "no").exists()
