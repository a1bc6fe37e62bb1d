"""Who a PID is, over a /proc made of files."""

from pathlib import Path

import pytest

from vramcast.domain.observation import Holder
from vramcast.watch.holders import Holders

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
