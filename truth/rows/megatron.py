"""Rows measured with Megatron-LM: CI golden values, and SimuMax's B200 runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from msgspec.structs import replace

from truth.contract import STEP_TIME, Prediction, Refused, traits_at
from vramcast.catalogue.gpus import parse_gpus
from vramcast.domain.answer import Peak
from vramcast.domain.device import Cluster, Gpu
from vramcast.domain.job import Job, Phase, RankProgram
from vramcast.engines.megatron import ranks
from vramcast.estimate.step_time import step_time
from vramcast.estimate.timeline import simulate
from vramcast.formats.tools.megatron_model import Arguments
from vramcast.formats.tools.megatron_network import job_from_arguments
from vramcast.units import GIB

CAPABILITIES: Final = {"A100": "8.0", "H100": "9.0", "B200": "10.0", "GB200": "10.0"}

SIMUMAX_MODELS: Final[dict[str, Arguments]] = {
    "llama3_70b": {"--hidden-size": 8192, "--ffn-hidden-size": 28672, "--num-attention-heads": 64,
                   "--group-query-attention": True, "--num-query-groups": 8, "--vocab-size": 128256},
    "llama3_405b": {"--hidden-size": 16384, "--ffn-hidden-size": 53248, "--num-attention-heads": 128,
                    "--group-query-attention": True, "--num-query-groups": 16, "--vocab-size": 128256},
    "deepseekv2": {"--hidden-size": 5120, "--ffn-hidden-size": 12288, "--num-attention-heads": 128,
                   "--vocab-size": 102400, "--num-experts": 160, "--moe-ffn-hidden-size": 1536,
                   "--moe-router-topk": 6, "--moe-shared-expert-intermediate-size": 3072},
    "deepseekv3": {"--hidden-size": 7168, "--ffn-hidden-size": 18432, "--num-attention-heads": 128,
                   "--vocab-size": 129280, "--num-experts": 256, "--moe-ffn-hidden-size": 2048,
                   "--moe-router-topk": 8, "--moe-shared-expert-intermediate-size": 2048},
}
"""Sizes in SimuMax simu_tools/megatron_scripts/scripts/run_pretrain_{llama3,deepseekv2}.sh."""

SIMUMAX_COMMON: Final[Arguments] = {
    "--attention-dropout": 0.0, "--hidden-dropout": 0.0, "--disable-bias-linear": True, "--swiglu": True,
    "--position-embedding-type": "rope", "--normalization": "RMSNorm", "--bf16": True,
    "--untie-embeddings-and-output-weights": True, "--tokenizer-type": "NullTokenizer",
    "--no-bias-dropout-fusion": True, "--use-distributed-optimizer": True, "--sequence-parallel": True,
    "--no-masked-softmax-fusion": True, "--no-create-attention-mask-in-dataloader": True,
    "--cross-entropy-loss-fusion": True, "--cross-entropy-fusion-impl": "te",
    "--transformer-impl": "transformer_engine", "--micro-batch-size": 1,
}
SIMUMAX_MOE: Final[Arguments] = {
    "--multi-latent-attention": True, "--qk-layernorm": True, "--q-lora-rank": 1536, "--kv-lora-rank": 512,
    "--qk-head-dim": 128, "--qk-pos-emb-head-dim": 64, "--v-head-dim": 128, "--moe-grouped-gemm": True,
    "--moe-permute-fusion": True, "--moe-token-dispatcher-type": "alltoall", "--moe-expert-capacity-factor": 1,
}


def predict(row: dict[str, Any]) -> list[Prediction]:
    """Peak bytes of one Megatron row at every level it states."""
    if "raw_config" in row:
        return list(_golden(row))
    name = _simumax_name(row)
    if name is None:
        raise Refused("the row does not give the arguments of the run")
    return list(_simumax(row, name))


def _cluster(gpu: str, count: int) -> Cluster:
    family = gpu.split("-")[0]
    if family not in CAPABILITIES:
        raise Refused(f"unknown card {gpu!r}")
    card = Gpu(name=gpu.lower(), vendor="nvidia", arch=family, compute_capability=CAPABILITIES[family],
               visible_bytes=80 * GIB)
    return Cluster(gpu=card, gpus_per_node=count)


def golden_job(row: dict[str, Any]) -> Job:
    """The question of a CI row."""
    arguments = {name: _word(value) for name, value in row["raw_config"].items()}
    family = row["model"].split(":")[0]
    count = row.get("n_gpus")
    if not count:
        count = _release_gpus(row)
    return job_from_arguments(
        arguments, family=family, cluster=_cluster(row["gpu"], count), env=dict(row.get("env") or {})
    )


def _word(value: Any) -> Any:
    """A list that a configuration writes as words of the shell: "[layernorm moe_act]"."""
    text = value if isinstance(value, str) else ""
    return text[1:-1].split() if text.startswith("[") and text.endswith("]") and "*" not in text else value


def _release_gpus(row: dict[str, Any]) -> int:
    parallel = row["parallelism"]
    data = parallel.get("dp")
    if not data and "--use-distributed-optimizer" not in row["raw_config"]:
        data = int(parallel.get("ep") or 1)  # nothing is divided over data-parallel ranks: their number does not matter
    if not data:
        raise Refused("the row does not say how many GPUs ran")
    return int(parallel["tp"] * parallel["pp"] * parallel.get("cp", 1) * data)


def _golden(row: dict[str, Any]) -> Iterator[Prediction]:
    job = golden_job(row)
    last = ranks(job)[-1]
    allocated, _ = peaks(job, last)
    yield Prediction("allocated", allocated, row["measured_bytes"], traits=traits_at("allocated", job))


def peaks(job: Job, program: RankProgram) -> tuple[int, int]:
    """Highest allocated and reserved bytes of a rank over its run."""
    marks = simulate(program.phases, alloc_conf=job.alloc_conf)
    return (max(mark.allocated_bytes for mark in marks.values()), max(mark.reserved_bytes for mark in marks.values()))


def _simumax_name(row: dict[str, Any]) -> str | None:
    if row.get("group") == "simumax_b200_megatron":
        found = re.search(r"\((\S+)\)", row["source"])
        return found[1] if found else None
    return str(row["model"]) if "measured_peak_gib" in row else None


def simumax_job(name: str) -> Job:
    """The question of a SimuMax run, from its name: model, layers, degrees, micro-batches."""
    model = next((key for key in SIMUMAX_MODELS if name.startswith(key + "_")), None)
    if model is None:
        raise Refused(f"unknown model in {name!r}")

    def number(key: str, default: int) -> int:
        found = re.search(rf"(?:^|_){key}(\d+)(?:_|$)", name)
        return int(found[1]) if found else default

    layers, pp, cp, tp = number("l", 1), number("pp", 1), number("cp", 1), number("tp", 1)
    length = number("seq", 4096)
    arguments: Arguments = {
        **SIMUMAX_COMMON, **SIMUMAX_MODELS[model], "--num-layers": layers, "--seq-length": length,
        "--max-position-embeddings": length, "--tensor-model-parallel-size": tp,
        "--pipeline-model-parallel-size": pp, "--context-parallel-size": cp, "--cp-comm-type": "a2a",
        "--expert-model-parallel-size": number("ep", 1),
        "--global-batch-size": number("mbc", 1) * (8 // (tp * pp * cp)),
    }
    if "cef" not in name.split("_"):
        del arguments["--cross-entropy-loss-fusion"]
    if model.startswith("deepseek"):
        arguments |= SIMUMAX_MOE | {"--moe-layer-freq": f"([0]*1+[1]*{layers - 1})"}
    job = job_from_arguments(arguments, family="gpt", cluster=_cluster("B200", 8), env={})
    return replace(job, engine_options=job.engine_options | {"torch": "2.10"})  # NGC 26.01


def timed_job(name: str) -> Job:
    """The question of a SimuMax run, on the catalogue's card: time needs its rates."""
    return replace(simumax_job(name), cluster=parse_gpus("8xb200-180gb"))


def _simumax(row: dict[str, Any], name: str) -> Iterator[Prediction]:
    job = simumax_job(name)
    live = traits_at("allocated", job)
    found = [peaks(job, program) for program in ranks(job)]
    allocated, reserved = max(mark[0] for mark in found), max(mark[1] for mark in found)
    if "measured_peak_gib" in row:
        yield Prediction("allocated", allocated, row["measured_peak_gib"] * GIB, traits=live)
        if row.get("step_ms_measured"):
            yield Prediction(STEP_TIME, step_time(timed_job(name)).step_s, row["step_ms_measured"] / 1e3)
        return
    yield Prediction("allocated", allocated, row["measured_gib"] * GIB, traits=live)
    if row.get("measured_reserved_gib"):
        peak = Peak(allocated_bytes=allocated, reserved_bytes=reserved, device_bytes=reserved)
        kept = traits_at("reserved", job, peak)
        yield Prediction("reserved", reserved, row["measured_reserved_gib"] * GIB, traits=kept)


__all__ = ["Phase", "golden_job", "peaks", "predict", "simumax_job", "timed_job"]
