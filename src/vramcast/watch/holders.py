"""Who holds memory: what /proc says of a PID that a driver names.

Drivers count processes in a PID namespace of their own choice. NVIDIA's names the host's PIDs inside containers
[nvidia-docker#1483] https://github.com/NVIDIA/nvidia-docker/issues/1483, and since 560 the container's in one call and
the host's in another [HAMi#112] https://github.com/Project-HAMi/HAMi-core/issues/112. So inside a container a PID
may name nobody, or by chance somebody else: it is believed there only when that process has a card's device open.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final, NamedTuple

from vramcast.domain.observation import Holder
from vramcast.watch.tool import printable

INITIAL_NAMESPACE: Final = 0xEFFF_FFFC
"""Inode of the machine's own PID namespace [linux] include/linux/proc_ns.h PROC_PID_INIT_INO."""
COMMAND_CHARACTERS: Final = 512
"""A command line is cut after so many."""
MOST_REMEMBERED: Final = 4096
DEVICES: Final = re.compile(r"^(nvidia(-uvm|\d+)|kfd|renderD\d+|davinci\d+|mtgpu\.?\d*)\b")
"""Files in /dev through which a process uses a card."""

CONTAINERS: Final[tuple[tuple[str, str], ...]] = (
    (r"/kubepods.*pod(?P<a>[0-9a-f]{8}[-_][0-9a-f_-]{27})", "pod/{a}"),
    (r"/libpod-(?:conmon-)?(?P<a>[0-9a-f]{12})", "podman/{a}"),
    (r"/docker[-/](?P<a>[0-9a-f]{12})", "docker/{a}"),
    (r"cri-containerd[-:](?P<a>[0-9a-f]{12})", "containerd/{a}"),
    (r"/lxc(?:\.payload)?[./](?P<a>[\w.-]{1,64})", "lxc/{a}"),
    (r"/slurm[^/]*/(?:uid_\d+/)?job_(?P<a>\d+)", "slurm/job_{a}"),
    (r"/apptainer-(?P<a>\d+)", "apptainer/{a}"),
)
"""What a cgroup's path says about what runs in it, outermost first."""


class Identity(NamedTuple):
    """What stays as it is while a process lives."""

    name: str = ""
    command: str = ""
    user: str = ""
    container: str = ""
    started_s: float | None = None


class Holders:
    """Looks PIDs up, each living process once."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self.proc = proc
        self._known: dict[tuple[int, int], Identity] = {}
        self._booted_s = _booted(proc)
        self.sees_machine = _in_initial_namespace(proc)  # not only its own container

    def of(self, pid: int) -> dict[str, Any]:
        """Fields of a ProcessSample: holder, and where it is alive, name, command, user, container, start."""
        started = self._started(pid)
        if started is None:
            return {"holder": Holder.DEAD if self.sees_machine else Holder.INVISIBLE}
        if not self.sees_machine and self._uses_a_card(pid) is False:
            return {"holder": Holder.INVISIBLE}
        key = (pid, started)
        if key not in self._known:
            if len(self._known) >= MOST_REMEMBERED:
                self._known.clear()
            self._known[key] = self._identity(pid, started)
        return {"holder": Holder.ALIVE, **self._known[key]._asdict()}

    def _started(self, pid: int) -> int | None:
        """Clock ticks between boot and the start of a process; None where there is none, or only its corpse."""
        if pid <= 0:
            return None
        try:
            # the name may hold anything, even ")": what counts stands behind its last one
            fields = (self.proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
            return None if fields[0] in ("Z", "X") else int(fields[19])
        except (OSError, IndexError, ValueError):
            return None

    def _identity(self, pid: int, started: int) -> Identity:
        folder = self.proc / str(pid)
        command = _text(folder / "cmdline").replace("\0", " ").strip()
        started_s = None if self._booted_s is None else self._booted_s + started / _ticks_per_s()
        return Identity(
            name=printable(_text(folder / "comm").strip(), 64), command=printable(command, COMMAND_CHARACTERS),
            user=_user(_text(folder / "status")), container=container_of(_text(folder / "cgroup")),
            started_s=started_s,
        )

    def _uses_a_card(self, pid: int) -> bool | None:
        """Whether a process has a card's device open; None where that may not be looked at."""
        try:
            opened = [link.readlink().name for link in (self.proc / str(pid) / "fd").iterdir()]
        except OSError:
            return None
        return any(DEVICES.match(name) for name in opened)


def container_of(cgroup: str) -> str:
    """The container that a process' cgroups name, "" where none is known.

    >>> container_of("0::/system.slice/docker-3f2a9c55d0e1aa.scope")
    'docker/3f2a9c55d0e1'
    """
    for pattern, name in CONTAINERS:
        found = re.search(pattern, cgroup[:8192])
        if found:
            return name.format(a=found["a"].replace("_", "-"))
    return ""


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(65536).decode(errors="replace")
    except OSError:
        return ""


def _user(status: str) -> str:
    found = re.search(r"^Uid:\s*(\d+)", status, re.M)
    if not found:
        return ""
    try:
        from pwd import getpwuid

        return getpwuid(int(found[1])).pw_name
    except (ImportError, KeyError, OverflowError):
        return found[1]


def _ticks_per_s() -> int:
    from os import sysconf

    return sysconf("SC_CLK_TCK")


def _booted(proc: Path) -> float | None:
    found = re.search(r"^btime (\d+)", _text(proc / "stat"), re.M)
    return float(found[1]) if found else None


def _in_initial_namespace(proc: Path) -> bool:
    try:
        return (proc / "self" / "ns" / "pid").readlink().name == f"pid:[{INITIAL_NAMESPACE}]"
    except OSError:
        return False
