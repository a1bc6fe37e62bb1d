"""Recordings made from an answer, so that what is measured differs from what is predicted by what a test says."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vramcast.api import job_of
from vramcast.domain.job import Job
from vramcast.domain.observation import Card, GpuSample, ProcessSample, Reading, RunInfo, TorchRun, TorchSample
from vramcast.estimate.corrections import entry_bytes
from vramcast.estimate.training import answer
from vramcast.watch.recording import Recorder

MIB = 1 << 20
DRIVER_NAME = "NVIDIA H100 80GB HBM3"
OPTIONS: Mapping[str, Any] = {
    "model": "smollm-135m", "gpus": "1xh100-sxm-80gb", "engine": "huggingface", "seq-len": 512, "micro-batch": 8,
}


def recorded(
    path: Path, *, rest: int = 0, weights: int = 0, optimizer: int = 0, kept: int = 0, outside: int = 0,
    attached: bool = True, gpu: str = DRIVER_NAME, world_size: int = 1, step_s: float | None = None,
    gpu_bytes: int | None = None,
) -> Job:
    """Record the job's own answer, with so many bytes more of each part."""
    job = job_of(OPTIONS)
    rank = answer(job).fullest
    sizes = entry_bytes(rank, job)
    allocated = rank.peak.allocated_bytes + rest + weights + optimizer
    reserved = max(allocated, rank.peak.reserved_bytes + rest + weights + optimizer + kept)
    device = reserved + sizes["outside"] + outside
    first = rank.phases["first step"]
    info = RunInfo(started_s=0, host="box", writer="hook", versions={"torch": "2.13.0"})
    run = TorchRun(
        time_s=1, pid=7, gpu_uuid="GPU-1", gpu=gpu, world_size=world_size, model="Llama", num_parameters=134_515_008,
        dtypes=("float32",), weight_bytes=sizes["weights"] + weights if attached else None,
        gradient_bytes=538_075_648 if attached else None, optimizer="AdamW",
        optimizer_bytes=sizes["optimizer"] + optimizer if attached else None,
    )
    recorder = Recorder.open(path, info)
    at = {"pid": 7, "gpu_uuid": "GPU-1", "device_total_bytes": gpu_bytes or job.cluster.gpu.visible_bytes}
    steps = [
        TorchSample(
            time_s=1, step=1, peak_allocated_bytes=first.allocated_bytes, peak_reserved_bytes=first.reserved_bytes,
            device_used_bytes=device, **at,
        ),
        *(
            TorchSample(
                time_s=step, step=step, peak_allocated_bytes=allocated, peak_reserved_bytes=reserved,
                device_used_bytes=device, step_s=step_s, **at,
            )
            for step in (2, 3)
        ),
    ]
    recorder.write_torch(steps, runs=[run])
    recorder.close()
    return job


def watched(path: Path, num_bytes: int, *, processes: bool = True, model: str = DRIVER_NAME) -> None:
    """Record what a driver shows: one process that holds so much."""
    recorder = Recorder.open(path, RunInfo(started_s=0, host="box", versions={"driver": "570.1"}))
    card = Card(index=0, uuid="GPU-1", model=model, memory_total_bytes=81559 * MIB)
    held = (ProcessSample(pid=7, memory_bytes=num_bytes),) if processes else ()
    recorder.write(Reading(
        time_s=1, gpus=(GpuSample(time_s=1, card=card, memory_used_bytes=num_bytes + 600 * MIB, processes=held),)
    ))
    recorder.close()
