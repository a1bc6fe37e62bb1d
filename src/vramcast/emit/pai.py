"""Alibaba Cloud PAI: a DLC training job by API and by command line, an EAS service.

[DLC] CreateJob of version 2020-12-03, wire names as in the SDK's snapshot; `pai dlc job submit`, documentation of
2026-09-01: https://www.alibabacloud.com/help/en/pai/developer-reference/dlc-distributed-training
[EAS] https://www.alibabacloud.com/help/en/pai/user-guide/parameters-of-model-services
"""

from __future__ import annotations

import json
from typing import Final

from vramcast.domain.device import Cluster
from vramcast.emit.files import PLACEHOLDER, File, Order, Part
from vramcast.emit.launchers import image_of, server_line, slug, start_command
from vramcast.emit.lines import Line, Table, plain, reasons
from vramcast.emit.replicas import copies_why, replicas_of, shares_machine
from vramcast.emit.serving import PORT
from vramcast.emit.shell import HEAD, array
from vramcast.errors import Unsupported
from vramcast.units import GIB

DLC_JSON: Final = "pai_dlc_job.json"
DLC_SUBMIT: Final = "pai_dlc_submit.sh"
EAS_JSON: Final = "pai_eas_service.json"

LARGEST_BODY: Final = 65_536
"""CreateJob refuses more [bytes]."""

MOUNT: Final = "/mnt/data"

PROVIDERS: Final = ("alibaba", "pai")
"""Prefixes of instances that PAI rents."""


def write_dlc(order: Order) -> tuple[File, ...]:
    """The body of CreateJob, and the command that submits the same."""
    table = _create_job(order)
    text = json.dumps(plain(table), indent=2, ensure_ascii=False) + "\n"
    if len(text.encode()) > LARGEST_BODY:
        raise Unsupported(f"the job has {len(text.encode())} bytes; PAI-DLC takes {LARGEST_BODY}")
    parts = (Part("pai-dlc", "CreateJobRequest"),)
    body = File(DLC_JSON, text, parts, reasons=tuple(reasons(table)), notes=_notes(order))
    submit = HEAD + "set -euo pipefail\n\n" + array("ARGS", _submit(order)) + '\n\npai dlc job submit "${ARGS[@]}"\n'
    return body, File(DLC_SUBMIT, submit, executable=True)


def instance_of(cluster: Cluster) -> str | None:
    """The machine as Alibaba Cloud calls it; None where the plan names none of theirs."""
    provider, colon, name = (cluster.instance or "").partition(":")
    return name if colon and provider in PROVIDERS else None


def _command(order: Order) -> str:
    return f"cd {MOUNT}/vramcast && {start_command(order)}"


def _create_job(order: Order) -> Table:
    cluster: Cluster = order.job.cluster
    lines = [
        Line("WorkspaceId", PLACEHOLDER),
        Line("DisplayName", slug(order.job)),
        Line("JobType", "PyTorchJob", "sets MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK on every machine"),
        Line("UserCommand", _command(order), "the folder with these files lies in the data source"),
        Line("DataSources", [(Line("DataSourceId", PLACEHOLDER), Line("MountPath", MOUNT))]),
        Line("JobSpecs", [_worker(order)], "one worker per machine"),
    ]
    if instance_of(cluster) is None:
        lines.insert(1, Line("ResourceId", PLACEHOLDER, "a quota: the plan names no instance of Alibaba Cloud"))
    if cluster.num_nodes > 1:
        lines.append(Line("Settings", _settings(cluster)))
    return tuple(lines)


def _settings(cluster: Cluster) -> Table:
    """For jobs over several machines; nothing of RDMA where the plan does not know the network."""
    lines = []
    if cluster.network is not None:
        rdma = cluster.network.rdma
        lines.append(Line("EnableRDMA", rdma is not None, f"the machines have {rdma or 'none'}"))
    return (*lines,
            Line("EnableErrorMonitoringInAIMaster", True, "a failed machine restarts the job"),
            Line("EnableSanityCheck", True, "cards and links are tried before the job starts"))


def _worker(order: Order) -> Table:
    cluster: Cluster = order.job.cluster
    instance = instance_of(cluster)
    lines = [Line("Type", "Worker"), Line("Image", image_of(order)),
             Line("PodCount", cluster.num_nodes, "machines in the plan")]
    if instance is not None:
        lines.append(Line("EcsSpec", instance, f"{cluster.gpus_per_node} x {cluster.gpu.name}"))
    else:
        resources = [Line("GPU", str(cluster.gpus_per_node), "cards of one machine"),
                     Line("GPUType", cluster.gpu.product or cluster.gpu.name, "as your quota calls it"),
                     Line("CPU", PLACEHOLDER, "cores, as your quota allows"),
                     Line("Memory", _host(cluster), "main memory of one machine"),
                     Line("SharedMemory", _host(cluster), "data loaders and NCCL")]
        lines.append(Line("ResourceConfig", tuple(resources)))
    if cluster.price is not None and cluster.price.tariff == "spot":
        strategy = Line("SpotStrategy", "SpotAsPriceGo", "the price of the plan is a spot price")
        lines.append(Line("SpotSpec", (strategy,)))
    return tuple(lines)


def _host(cluster: Cluster) -> str:
    """Nine tenths of the machine's memory, the rest is the system's; not guessed where the plan does not know it."""
    known = cluster.host_bytes
    return PLACEHOLDER if known is None else f"{int(known / GIB * 0.9)}Gi"


def _submit(order: Order) -> Table:
    cluster: Cluster = order.job.cluster
    instance = instance_of(cluster)
    lines = [
        Line("name", slug(order.job)),
        Line("workspace-id", PLACEHOLDER),
        Line("job-type", "PyTorchJob"),
        Line("image", image_of(order)),
        Line("command", _command(order)),
    ]
    if instance is not None:
        lines.append(Line("worker-spec", instance, "pay as you go"))
    else:
        lines += [
            Line("resource-id", PLACEHOLDER, "a quota"),
            Line("gpu", cluster.gpus_per_node, "cards of one machine"),
            Line("gpu-type", cluster.gpu.product or cluster.gpu.name, "as your quota calls it"),
            Line("cpu", PLACEHOLDER, "cores, as your quota allows"),
            Line("memory", _host(cluster), "main memory of one machine"),
            Line("shared-memory", _host(cluster), "data loaders and NCCL"),
        ]
    return (*lines, Line("worker-count", cluster.num_nodes, "machines in the plan"))


def _notes(order: Order) -> tuple[str, ...]:
    cluster: Cluster = order.job.cluster
    if cluster.instance is None or instance_of(cluster) is not None:
        return ()
    return (f"{DLC_JSON}: {cluster.instance} is not Alibaba Cloud's; the job asks a quota for "
            f"{cluster.gpus_per_node} x {cluster.gpu.name} instead",)


def write_eas(order: Order) -> tuple[File, ...]:
    """A service with an instance for every replica.

    Where replicas share a machine the service names a resource group: public resources give every instance a machine.

    Raises: Unsupported for deployments over several machines
    """
    job = order.job
    if job.cluster.num_nodes > 1:
        raise Unsupported("a PAI-EAS service is written for one machine; use fewer GPUs, or --format kubernetes")
    cards = f"{job.cluster.count} x {job.cluster.gpu.name}"
    metadata = [
        Line("name", slug(job).replace("-", "_")), Line("instance", replicas_of(order), copies_why(order)),
        Line("workspace_id", PLACEHOLDER), Line("shm_size", 100, "shared memory of the ranks [GiB]"),
    ]
    where: Table = ()
    if order.fleet is not None and shares_machine(order):
        group = f"a dedicated resource group of {order.fleet.machines} x {order.fleet.machine}"
        metadata += [Line("resource", PLACEHOLDER, group), Line("gpu", job.cluster.count, f"{cards} for each instance")]
    else:
        kind = Line("type", instance_of(job.cluster) or PLACEHOLDER, cards)
        where = (Line("cloud", (Line("computing", (Line("instances", [(kind,)]),)),)),)
    table: Table = (
        Line("metadata", tuple(metadata)),
        *where,
        Line("containers", [(Line("image", image_of(order)), Line("script", server_line(order)), Line("port", PORT))]),
    )
    text = json.dumps(plain(table), indent=2, ensure_ascii=False) + "\n"
    return (File(EAS_JSON, text, reasons=tuple(reasons(table))),)
