"""Main memory: the operating system, containers, batch systems and languages end a process or refuse it memory.

[linux] torvalds/linux mm/oom_kill.c `__oom_kill_process`, `dump_header`; its "kB" are 1024 bytes
[slurm] SchedMD/slurm src/plugins/task/cgroup, src/slurmd/slurmstepd
[ray] ray-project/ray memory monitor; its "GB" are 2^30 bytes
[numpy] numpy/numpy numpy/_core/_exceptions.py `_ArrayMemoryError`
[shell] what bash (jobs.c `notify_of_job_status`) and zsh print of a child that signal 9 ended
"""

from __future__ import annotations

from typing import Final

from vramcast.sources.failures.wording import Family, Wording

LINUX_PARTS: Final = (
    r"total-vm:<virtual_bytes>",
    r"anon-rss:<resident_bytes>",
    r"shmem-rss:SIZE",
    r"oom_score_adj:-?[0-9]{1,5}",
)
LINUX: Final = (
    Wording(
        "cgroup", "Memory cgroup out of memory: Kill", r"(?:ed)? process <pid> \((?P<name__>[^)]{1,64})\)", LINUX_PARTS
    ),
    Wording("kernel", "Out of memory: Kill", r"(?:ed)? process <pid> \((?P<name__>[^)]{1,64})\)", LINUX_PARTS),
    Wording("killed", "Killed process ", r"<pid>,? ?\((?P<name__>[^)]{1,64})\)", LINUX_PARTS),
    Wording(
        "reaped",
        "oom_reaper: reaped process ",
        r"<pid> \((?P<name__>[^)]{1,64})\)",
        (r"anon-rss:<resident_bytes>",),
        weak=True,
    ),
    Wording(
        "invoked",
        "invoked oom-killer",
        "",
        (r"oom_score_adj=-?[0-9]{1,5}",),
        before=r"(?P<name__>[\w./:-]{1,64}) $",
        weak=True,
    ),
    Wording(
        "constraint", "oom-kill:constraint=", r"(?P<reason__>[A-Z_]{4,40})", (r"task=(?P<name__>[^,]{1,64}),pid=<pid>",)
    ),
    Wording("systemd-oomd", "systemd-oomd", r".{0,80}?Killed (?P<name__>[^ ]{1,200})"),
    Wording("systemd", "A process of this unit has been killed by the OOM killer"),
    Wording("earlyoom", "sending SIGTERM to process ", r"<pid>"),
)

KILLED: Final = (
    Wording("oomkilled", "OOMKilled", r"[\"']?(?!: ?false)", (r"exit ?code[\"']?:? ?<exit_code>",)),
    Wording("exit-137", "exit code 137", ""),
    Wording("exit-137", "exit code: 137", ""),
    Wording("exit-137", "exitCode: 137", ""),
    Wording("exit-137", 'exitCode": 137', ""),
    Wording("exit-137", 'exitCode":137', ""),
    Wording("exit-137", "exit status 137", ""),
    Wording("exit-137", "exited with code 137", ""),
    Wording("exit-137", "returned non-zero exit status 137"),
    Wording("evicted", "The node was low on resource: memory", "", (r"using <resident_bytes>",)),
    Wording("evicted", "low on resource: memory"),
    Wording("elastic-sigkill", "Signal 9 (SIGKILL) received by PID ", r"<pid>"),
    Wording("elastic-sigkill", "exitcode: -9", r"(?: \(pid: <pid>\))?"),
    Wording("elastic-sigkill", "exitcode : -9", r"(?: \(pid: <pid>\))?"),
    Wording("subprocess-sigkill", "died with <Signals.SIGKILL: 9>"),
    Wording("exit-minus-9", "exits with return code = -9"),
    Wording("exit-minus-9", "return code -9"),
    Wording("gunicorn", "was sent SIGKILL! Perhaps out of memory?", before=r"\(pid:<pid>\)"),
    Wording("executor", "A worker process managed by the executor was unexpectedly terminated"),
    Wording("pool", "A process in the process pool was terminated abruptly"),
    Wording("shell", ": line ", r"[0-9]{1,7}: {1,8}<pid> {1,8}Killed {1,40}\S"),
    Wording("shell", "]+ Killed ", r" {0,40}\S"),
    Wording("shell", "zsh: killed ", r" {0,40}\S"),
)
"""Ended by signal 9: nearly always by an out-of-memory killer, but a text that says no more does not prove it."""

SLURM: Final = (
    Wording(
        "oom-kill-event",
        "Detected ",
        r"<num_ooms> oom[_-]kill event(?:s|\(s\))? in (?:StepId=|step )[\w.+]{1,40}",
        (r"Some of (?:the step tasks|your processes) [^.]{1,120}\.",),
        reach=240,
    ),
    Wording("oom-kill-event", "Some of the step tasks have been OOM Killed"),
    Wording("oom-kill-event", "Some of your processes may have been killed by the cgroup out-of-memory handler"),
    Wording("memory-limit", "Exceeded job memory limit", "", before=r"memory used <resident_bytes>"),
    Wording(
        "memory-limit",
        "exceeded memory limit",
        r" \((?P<needed_bytes__k>NUMBER) > (?P<limit_bytes__k>NUMBER)\), being killed",
    ),
    Wording("state", "OUT_OF_MEMORY", r" (?:0:125|[0-9]{1,3}:[0-9]{1,3})"),
    Wording("pbs", "job killed: mem ", r"<needed_bytes> exceeded limit <limit_bytes>"),
    Wording("lsf", "TERM_MEMLIMIT"),
)

RAY: Final = (
    Wording(
        "memory-monitor",
        "killed due to the node running low on memory",
        "",
        (
            r"memory used=<resident_bytes>",
            r"was (?:running was )?<used_bytes> / <total_bytes>(?: \(<used_fraction>\))?",
            r"usage threshold of <threshold>",
        ),
        reach=900,
    ),
    Wording("out-of-memory", "ray.exceptions.OutOfMemoryError", weak=True),
    Wording(
        "memory-monitor-1",
        "RayOutOfMemoryError: ",
        r"More than (?P<threshold__percent>NUMBER)% of the memory on node [^ ]{1,120} is used"
        r" \((?P<used_bytes__g>NUMBER) / (?P<total_bytes__g>NUMBER) ?GB\)",
        versions="0.6 - 1.13",
    ),
    Wording("object-store", "ray.exceptions.ObjectStoreFullError", "", (r"(?:size|bytes)[:=]? <tried_bytes:b>",)),
    Wording("object-store", "The object store is full", weak=True),
    Wording("node-memory", "NODE_OUT_OF_MEMORY", weak=True),
    Wording(
        "serve", "The actor died unexpectedly before finishing this task", "", (r"\(SIGKILL\)",), ("SIGKILL",), 800
    ),
    Wording("worker", "Worker exit type: SYSTEM_ERROR", "", (), ("SIGKILL",), 800),
)

PYTHON: Final = (
    Wording(
        "numpy",
        "Unable to allocate ",
        r"<tried_bytes> for an array(?: with shape (?P<shape__>\([0-9, ]{1,120}\)))?",
        (r"data type (?P<dtype__>[\w<>|=\[\]]{1,24})",),
        versions="numpy 1.17 -",
    ),
    Wording(
        "numpy-old",
        "Unable to allocate array with shape ",
        r"(?P<shape__>\([0-9, ]{1,120}\))",
        (r"data type (?P<dtype__>[\w<>|=]{1,24})",),
    ),
    Wording("numpy-big", "array is too big; `arr.size * arr.dtype.itemsize` is larger than the maximum possible size"),
    Wording(
        "arrow",
        "ArrowMemoryError",
        "",
        (r"malloc of size <tried_bytes:b> failed", r"realloc of size <tried_bytes:b> failed"),
    ),
    Wording("arrow", "malloc of size ", r"<tried_bytes:b> failed"),
    Wording("memory-error", "MemoryError", r"(?:: (?!std::bad_alloc))?", weak=True),
    Wording("errno-12", "[Errno 12] Cannot allocate memory"),
    Wording("os-error-12", "Cannot allocate memory (os error 12)"),
    Wording("bad-alloc", "terminate called after throwing an instance of 'std::bad_alloc'"),
    Wording("bad-alloc", "std::bad_alloc", weak=True),
    Wording("rust", "memory allocation of ", r"<tried_bytes:b> bytes failed"),
    Wording("java", "java.lang.OutOfMemoryError", r": (?P<reason__>[A-Za-z ]{1,60})"),
    Wording("node", "JavaScript heap out of memory"),
    Wording("fork", "fork: Cannot allocate memory"),
    Wording("fork", "fork: retry: Resource temporarily unavailable"),
    Wording("malloc", "mmap failed: Cannot allocate memory", weak=True),
    Wording("malloc", ": Cannot allocate memory", weak=True),
)

WINDOWS: Final = (
    Wording("paging-file", "[WinError 1455]", "", (r"Error loading \"?(?P<name__>[^\"\s]{1,200})",)),
    Wording("paging-file", "The paging file is too small for this operation to complete"),
    Wording("paging-file", "(os error 1455)"),
    Wording("resources", "[WinError 1450]"),
    Wording("resources", "[WinError 8]"),
    Wording("resources", "[WinError 14]"),
    Wording("resources", "Not enough memory resources are available to process this command"),
    Wording("resources", "Insufficient system resources exist to complete the requested service"),
    Wording("commit", "Windows successfully diagnosed a low virtual memory condition"),
    Wording("video-memory-manager", "VIDEO_MEMORY_MANAGEMENT_INTERNAL"),
    Wording("shared-gpu-memory", "falling back to shared GPU memory"),
)

FAMILIES: Final[dict[str, Family]] = {
    "linux": Family("Linux, its out-of-memory killer", LINUX, "host", "torvalds/linux mm/oom_kill.c"),
    "process-killed": Family(
        "A process ended by signal 9", KILLED, "host", "kubernetes, docker, torch.distributed.elastic"
    ),
    "slurm": Family("Slurm and other batch systems", SLURM, "host", "SchedMD/slurm src/slurmd"),
    "ray": Family("Ray, its memory monitor and object store", RAY, "host", "ray-project/ray src/ray/raylet"),
    "python": Family("Python, NumPy and other languages", PYTHON, "host", "numpy/numpy numpy/_core/_exceptions.py"),
    "windows": Family("Windows, its paging file", WINDOWS, "host", "Windows system error codes 8, 14, 1450, 1455"),
}
