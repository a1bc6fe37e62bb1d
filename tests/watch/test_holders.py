"""Who a PID is, over a /proc made of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from vramcast.domain.observation import Holder
from vramcast.watch.holders import Holders, container_of

DOCKER = "0::/system.slice/docker-3f2a9c55d0e1aa77bb.scope\n"
ID = "3f2a9c55d0e1aa77bb3f2a9c55d0e1aa77bb3f2a9c55d0e1aa77bb3f2a9c55d0"


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


def test_a_living_process_is_described(tmp_path: Path) -> None:
    found = Holders(processes(tmp_path)).of(42)
    assert found["holder"] is Holder.ALIVE and found["name"] == "python3"
    assert found["command"] == "python3 train.py --lr 1" and found["user"] == "4242"
    assert found["container"] == "docker/3f2a9c55d0e1"
    assert found["started_s"] == pytest.approx(1700000000 + 123, abs=0.1)


def test_a_name_with_brackets_and_blanks_does_not_shift_the_fields(tmp_path: Path) -> None:
    found = Holders(processes(tmp_path, name="a) Z 9 (b")).of(42)
    assert found["holder"] is Holder.ALIVE and found["started_s"] == pytest.approx(1700000123, abs=0.1)


def test_no_such_process_is_dead_on_the_machine_and_invisible_in_a_container(tmp_path: Path) -> None:
    assert Holders(processes(tmp_path / "machine")).of(43) == {"holder": Holder.DEAD}
    assert Holders(processes(tmp_path / "inside", namespace=4026532999)).of(43) == {"holder": Holder.INVISIBLE}


def test_a_zombie_is_dead(tmp_path: Path) -> None:
    root = processes(tmp_path, stat=f"42 (python3) Z 1 {' '.join(['0'] * 17)} 12300 0\n")
    assert Holders(root).of(42) == {"holder": Holder.DEAD}


def test_in_a_container_a_pid_that_uses_no_card_is_somebody_elses(tmp_path: Path) -> None:
    root = processes(tmp_path, namespace=4026532999)
    (root / "42" / "fd" / "3").symlink_to("/etc/passwd")
    assert Holders(root).of(42) == {"holder": Holder.INVISIBLE}
    (root / "42" / "fd" / "4").symlink_to("/dev/nvidia0")
    assert Holders(root).of(42)["holder"] is Holder.ALIVE


def test_a_pid_that_is_used_again_is_looked_up_again(tmp_path: Path) -> None:
    root = processes(tmp_path)
    holders = Holders(root)
    assert holders.of(42)["name"] == "python3"
    (root / "42" / "comm").write_text("sleep\n")
    assert holders.of(42)["name"] == "python3"  # still the same process: not read again
    (root / "42" / "stat").write_text(f"42 (sleep) S 1 {' '.join(['0'] * 17)} 99999 0\n")
    assert holders.of(42)["name"] == "sleep"


def test_command_lines_are_cut_and_printable(tmp_path: Path) -> None:
    found = Holders(processes(tmp_path, cmdline="x\0\x1b[2J" + "a" * 10_000)).of(42)
    assert len(found["command"]) == 512 and "\x1b" not in found["command"]


@pytest.mark.parametrize("pid", [0, -1, 1 << 40])
def test_numbers_that_are_no_pid(tmp_path: Path, pid: int) -> None:
    assert Holders(processes(tmp_path)).of(pid) == {"holder": Holder.DEAD}


@pytest.mark.parametrize(("cgroup", "name"), [
    (f"0::/system.slice/docker-{ID}.scope", "docker/3f2a9c55d0e1"),
    (f"12:memory:/docker/{ID}", "docker/3f2a9c55d0e1"),
    (f"0::/machine.slice/libpod-{ID}.scope/container", "podman/3f2a9c55d0e1"),
    (f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope", "podman/3f2a9c55d0e1"),
    (f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1b2c3d4e_aaaa_bbbb_cccc_0123456789ab.slice/"
     f"cri-containerd-{ID}.scope", "pod/1b2c3d4e-aaaa-bbbb-cccc-0123456789ab"),
    (f"5:devices:/kubepods/besteffort/pod1b2c3d4e-aaaa-bbbb-cccc-0123456789ab/{ID}",
     "pod/1b2c3d4e-aaaa-bbbb-cccc-0123456789ab"),
    (f"0::/system.slice/cri-containerd-{ID}.scope", "containerd/3f2a9c55d0e1"),
    ("0::/lxc.payload.web-1/system.slice", "lxc/web-1"),
    ("9:memory:/slurm/uid_1000/job_4711/step_0", "slurm/job_4711"),
    ("0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0", "slurm/job_4711"),
    ("0::/user.slice/user-1000.slice/session-2.scope", ""), ("", ""),
])
def test_containers(cgroup: str, name: str) -> None:
    assert container_of(cgroup) == name
