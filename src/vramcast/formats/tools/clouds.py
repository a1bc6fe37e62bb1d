"""Clouds that rent machines: SkyPilot's task or service; Alibaba Cloud PAI's training job (DLC) and service (EAS).

[sky] skypilot sky/utils/schemas.py, names as in its snapshot
[DLC] CreateJob of version 2020-12-03, wire names as in the SDK's snapshot; `pai dlc job submit`, documentation of
2026-09-01: https://www.alibabacloud.com/help/en/pai/developer-reference/dlc-distributed-training
[EAS] https://www.alibabacloud.com/help/en/pai/user-guide/parameters-of-model-services

What clouds are told to start: SkyPilot's task or service; Alibaba Cloud PAI's training job (DLC) and service (EAS).

[sky] skypilot sky/task.py, sky/skylet/constants.py (the variables of a run); [DLC] CreateJob of version 2020-12-03 and
https://www.alibabacloud.com/help/en/pai/user-guide/general-environment-variables; [EAS]
https://www.alibabacloud.com/help/en/pai/user-guide/parameters-of-model-services
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from vramcast.catalogue.gpus import gpu_names
from vramcast.catalogue.instances import card_of_code
from vramcast.domain.device import Cluster
from vramcast.domain.serving import ServeJob
from vramcast.errors import Note, Unsupported, VramcastError, joined
from vramcast.formats.containers import started
from vramcast.formats.files import PLACEHOLDER, File, Order, Part
from vramcast.formats.launch import (
    PORT,
    copies_why,
    head_of,
    image_of,
    replicas_of,
    server_line,
    shares_machine,
    slug,
    start_command,
)
from vramcast.formats.lines import HEAD, Line, Table, array, plain, reasons, yaml_text
from vramcast.formats.reading import NO_GPU, Unread, table
from vramcast.formats.wrapped import ELSEWHERE, Inside, card, machine, unknown_card, variables, whole, words_of
from vramcast.units import GIB


def inside(document: Mapping[str, Any], documents: Sequence[Mapping[str, Any]]) -> Iterator[Inside]:
    """The command of one task, job or service."""
    if "JobSpecs" in document:
        yield from _dlc(document)
    elif "run" in document:
        yield from _skypilot(document)
    else:
        yield from _eas(document)


def _skypilot(task: Mapping[str, Any]) -> Iterator[Inside]:
    resources = table(task.get("resources"))
    place, cards, unread = _accelerators(resources)
    nodes = whole(task.get("num_nodes")) or 1
    environment = {**variables(task.get("envs")), "SKYPILOT_NUM_NODES": str(nodes), "SKYPILOT_NODE_RANK": "0"}
    image = str(resources.get("image_id") or "").removeprefix("docker:")
    script = "\n".join(text for part in ("setup", "run") if isinstance(text := task.get(part), str))
    yield Inside(
        "SkyPilot's task", (), image, script=script, environment=environment, place=place, cards=cards, nodes=nodes,
        name=str(task.get("name") or "task"), unread=unread, has_gpu=bool(cards or place),
        counting=("SKYPILOT_NUM_GPUS_PER_NODE",),
    )


def _accelerators(resources: Mapping[str, Any]) -> tuple[str, int | None, tuple[Unread, ...]]:
    """Card or machine, cards of a machine, and what of them is left open."""
    choices = [table(one) for kind in ("any_of", "ordered") for one in resources.get(kind) or ()] or [{}]
    wanted = [one for choice in choices for one in _names({**resources, **choice}.get("accelerators"))]
    counts = {count for _, count in wanted}
    count = next(iter(counts)) if len(counts) == 1 else None
    kinds = list(dict.fromkeys(wanted))
    if len(kinds) > 1:
        named = joined(" or ", (f"{name}:{number}" for name, number in kinds[:4]))
        return "", count, (Unread("accelerators", Note("is {}; give --gpus", named), "gpus"),)
    instance = str(resources.get("instance_type") or "")
    if not kinds:
        found = machine(instance) if instance else ""
        return found, None, () if found or not instance else (unknown_card("instance_type", instance),)
    name = kinds[0][0]
    found = card_of_sky(name)
    return found, count, () if found else (unknown_card("accelerators", name),)


def _names(value: Any) -> list[tuple[str, int]]:
    """Cards with their numbers, as text, table or list.

    >>> _names("H100:8"), _names({"L4": 1, "A10G": 1}), _names(["T4", "V100:2"])
    ([('H100', 8)], [('L4', 1), ('A10G', 1)], [('T4', 1), ('V100', 2)])
    """
    if isinstance(value, Mapping):
        value = [f"{name}:{count}" if count is not None else str(name) for name, count in value.items()]
    texts = value if isinstance(value, list) else [value] if isinstance(value, str) else []
    parted = [str(text).strip().partition(":") for text in texts]
    return [(name, whole(count.rstrip("+")) or 1) for name, _, count in parted if name]


def card_of_sky(name: str) -> str:
    """Our name of a card that SkyPilot calls so; of several ones that with the fast links.

    >>> card_of_sky("H100"), card_of_sky("A100"), card_of_sky("A100-80GB"), card_of_sky("tpu-v5e-8")
    ('h100-sxm-80gb', 'a100-sxm4-40gb', 'a100-sxm4-80gb', '')
    """
    found = []
    for ours in gpu_names():
        try:
            found += [ours] if card_name(ours).lower() == name.lower() else []
        except Unsupported:
            continue
    return next((ours for ours in found if "sxm" in ours), found[0] if found else card(name))


def _dlc(job: Mapping[str, Any]) -> Iterator[Inside]:
    specs = [table(one) for one in job.get("JobSpecs") or ()]
    nodes = sum(whole(one.get("PodCount", 1)) or 0 for one in specs) or 1
    first = specs[0] if specs else {}
    resources = table(first.get("ResourceConfig"))
    cards, kind = whole(resources.get("GPU")), str(resources.get("GPUType") or "")
    spec = str(first.get("EcsSpec") or "")
    place, unread = _of_pai(spec, kind)
    environment = {**variables(job.get("Envs")), "WORLD_SIZE": str(nodes), "RANK": "0"}
    command = job.get("UserCommand")
    yield Inside(
        "PAI-DLC's job", (), str(first.get("Image") or ""), script=command if isinstance(command, str) else "",
        environment=environment, place=place, cards=cards, nodes=nodes, name=str(job.get("DisplayName") or "job"),
        unread=unread, has_gpu=bool(place or cards),
        counting=("NPROC_PER_NODE", "KUBERNETES_CONTAINER_RESOURCE_GPU"),
    )


SUBMITTED: Final = {
    "command": "UserCommand", "job_name": "DisplayName", "name": "DisplayName", "worker_count": "PodCount",
    "workers": "PodCount", "worker_spec": "EcsSpec", "worker_image": "Image", "image": "Image", "gpu": "GPU",
    "worker_gpu": "GPU", "gpu_type": "GPUType", "worker_gpu_type": "GPUType",
}
"""Options of `pai dlc job submit` and of `dlc submit` -> names of CreateJob
[https://help.aliyun.com/zh/pai/developer-reference/commands-used-to-submit-jobs]."""


def submitted(words: Sequence[str]) -> dict[str, Any]:
    """The body of CreateJob that a command makes.

    >>> submitted(("dlc", "submit", "pytorchjob", "--command=python x.py", "--workers", "2", "--worker_gpu=8"))
    {'UserCommand': 'python x.py', 'JobSpecs': [{'PodCount': '2', 'ResourceConfig': {'GPU': '8'}}]}
    """
    given: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            option, equals, value = word[2:].partition("=")
            name = SUBMITTED.get(option.replace("-", "_"), "")
            given |= {name: value} if equals and name else {}
        elif name:
            given.setdefault(name, word)
    role = {name: given.pop(name) for name in ("PodCount", "EcsSpec", "Image") if name in given}
    cards = {name: given.pop(name) for name in ("GPU", "GPUType") if name in given}
    return {**given, "JobSpecs": [{**role, **({"ResourceConfig": cards} if cards else {})}]}


def _of_pai(spec: str, kind: str) -> tuple[str, tuple[Unread, ...]]:
    """The machine or card that a job of PAI names."""
    spec, kind = (text if text != PLACEHOLDER else "" for text in (spec, kind))
    if spec:
        found = next((name for provider in PROVIDERS if (name := machine(spec, provider))), "")
        return found, () if found else (unknown_card("EcsSpec", spec),)
    if not kind:
        return "", ()
    found = card(kind)
    if not found:
        try:
            coded = card_of_code(kind)
        except VramcastError as error:
            return "", (Unread(f"GPUType {kind[:40]}", str(error), "gpus"),)
        found = coded[0] if coded is not None else ""
    return found, () if found else (unknown_card("GPUType", kind),)


def _eas(service: Mapping[str, Any]) -> Iterator[Inside]:
    metadata = table(service.get("metadata"))
    computing = table(table(service.get("cloud")).get("computing"))
    listed = [str(table(one).get("type") or "") for one in computing.get("instances") or ()]
    types = list(dict.fromkeys(filter(None, (*listed, str(computing.get("instance_type") or "")))))
    place, unread = _of_pai(types[0], "") if len(types) == 1 else ("", ())
    if len(types) > 1:
        unread = (Unread("instances", Note("are of {} types; give --gpus", len(types)), "gpus"),)
    cards, copies = whole(metadata.get("gpu")), whole(metadata.get("instance")) or 1
    notes = (Note("PAI-EAS has {} replicas, of which one is answered", copies),) if copies > 1 else ()
    nodes = whole(table(service.get("unit")).get("size")) or whole(table(metadata.get("unit")).get("size")) or 1
    for container in service.get("containers") or ():
        one = table(container)
        image, script, command = str(one.get("image") or ""), one.get("script"), one.get("command")
        text = script if isinstance(script, str) else command if isinstance(command, str) else ""
        words = () if text else started(image, words_of(command), words_of(one.get("args")))
        elsewhere = (Unread(image[:60], NO_GPU),) if ELSEWHERE.search(image) else ()
        yield Inside(
            "PAI-EAS's service", words, image, script=text, environment=variables(one.get("env")), place=place,
            cards=cards, nodes=nodes, name=str(metadata.get("name") or "service"), unread=(*unread, *elsewhere),
            has_gpu=bool(re.search(r"\S", text) or words), notes=notes,
        )


SKYPILOT: Final = "skypilot.yaml"

CLOUDS: Final = {"aws": "aws", "azure": "azure", "gcp": "gcp", "lambda": "lambda"}
"""Our provider -> SkyPilot's cloud."""

CARDS: Final[tuple[tuple[str, str], ...]] = (
    ("h100-sxm", "H100"), ("h100-pcie", "H100"), ("h100-nvl", "H100NVL"), ("h200", "H200"), ("h20-", "H20"),
    ("h800", "H800"), ("b200", "B200"), ("b300", "B300"), ("gb200", "GB200"), ("gh200", "GH200"),
    ("a100-sxm4-80gb", "A100-80GB"), ("a100-pcie-80gb", "A100-80GB"), ("a100", "A100"), ("a800", "A800"),
    ("l40s", "L40S"), ("l40", "L40"), ("l4", "L4"), ("l20", "L20"), ("a10g", "A10G"), ("a10", "A10"), ("a30", "A30"),
    ("a40", "A40"), ("a16", "A16"), ("t4g", "T4g"), ("t4", "T4"), ("v100-sxm2-32gb", "V100-32GB"), ("v100", "V100"),
    ("p100", "P100"), ("p4", "P4"), ("rtx-a6000", "RTXA6000"), ("rtx-6000-ada", "RTX6000-Ada"),
    ("rtx-4090", "RTX4090"), ("rtx-5090", "RTX5090"), ("rtx-3090", "RTX3090"), ("mi300x", "MI300X"),
    ("rtx-pro-6000", "RTXPRO6000"),
)
"""Beginning of our name -> SkyPilot's, the longer first [sky/catalog]."""


def write_skypilot(order: Order) -> tuple[File, ...]:
    """One task.

    Raises: Unsupported for cards that SkyPilot has no name for
    """
    serving = isinstance(order.job, ServeJob)
    cluster: Cluster = order.job.cluster
    lines = [
        Line("name", slug(order.job)),
        Line("workdir", ".", "this folder goes to every machine"),
        Line("num_nodes", cluster.num_nodes, "machines in the plan"),
        Line("resources", _sky_resources(order, serving=serving)),
    ]
    if serving:
        if cluster.num_nodes > 1:
            raise Unsupported("a SkyPilot service is written for one machine; use fewer GPUs")
        probe = (Line("path", "/health"), Line("initial_delay_seconds", 1800, "large checkpoints take minutes to load"))
        copies = Line("replicas", replicas_of(order), copies_why(order, own="a machine of its own"))
        lines.append(Line("service", (Line("readiness_probe", probe), copies)))
    lines.append(Line("run", _sky_run(order, serving=serving)))
    command = f"sky serve up {SKYPILOT}" if serving else f"sky launch {SKYPILOT}"
    text = yaml_text(tuple(lines), head=head_of(order, command))
    return (File(SKYPILOT, text, (Part("skypilot", "task"),), notes=_sky_notes(order)),)


def card_name(name: str) -> str:
    """SkyPilot's name of a card.

    >>> card_name("h100-sxm-80gb"), card_name("a100-sxm4-40gb")
    ('H100', 'A100')
    """
    for beginning, found in CARDS:
        if name.startswith(beginning):
            return found
    raise Unsupported("SkyPilot has no name for {}; use --format kubernetes or pai-dlc", name)


def accelerators(cluster: Cluster) -> str:
    """What asks SkyPilot for the cards of a machine."""
    return f"accelerators: {card_name(cluster.gpu.name)}:{cluster.gpus_per_node}"


def _sky_resources(order: Order, *, serving: bool) -> Table:
    cluster: Cluster = order.job.cluster
    machine = cluster.instance or (order.fleet.machine if order.fleet is not None else "")
    provider, _, instance = machine.partition(":")
    lines = []
    if provider in CLOUDS:
        region = cluster.price.region if cluster.price is not None else ""
        infra = f"{CLOUDS[provider]}/{region}" if region else CLOUDS[provider]
        lines.append(Line("infra", infra, "where the plan rents"))
        if not shares_machine(order):
            lines.append(Line("instance_type", instance))
    name, _, cards = accelerators(cluster).partition(": ")
    lines.append(Line(name, cards, "cards of one machine"))
    spot = cluster.price is not None and cluster.price.tariff == "spot"
    lines.append(Line("use_spot", spot, "as the plan's price is" if cluster.price is not None else "nobody said spot"))
    if cluster.num_nodes > 1:
        lines.append(Line("network_tier", "best", "machines exchange over their fastest network"))
    if serving:
        lines.append(Line("ports", PORT))
    return tuple(lines)


def _sky_run(order: Order, *, serving: bool) -> str:
    if serving:
        return "bash serve.sh\n"
    return (
        "export NNODES=$SKYPILOT_NUM_NODES NODE_RANK=$SKYPILOT_NODE_RANK\n"
        'export MASTER_ADDR=$(echo "$SKYPILOT_NODE_IPS" | head -n1)\n'
        f"{start_command(order)}\n"
    )


def _sky_notes(order: Order) -> tuple[str, ...]:
    cluster: Cluster = order.job.cluster
    if order.fleet is not None and shares_machine(order):
        cards, planned = f"{cluster.gpus_per_node} x {cluster.gpu.name}", order.fleet
        return (Note(
            "{}: SkyPilot rents a machine with {} for every replica; the plan rents {} x {} for all of them, and its "
            "price is theirs", SKYPILOT, cards, planned.machines, planned.machine
        ),)
    provider = (cluster.instance or "").partition(":")[0]
    if cluster.instance is None or provider in CLOUDS:
        return ()
    return (Note(
        "{}: SkyPilot does not rent {}; the task asks for the same cards anywhere", SKYPILOT, cluster.instance
    ),)


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
        raise Unsupported("the job has {} bytes; PAI-DLC takes {}", len(text.encode()), LARGEST_BODY)
    parts = (Part("pai-dlc", "CreateJobRequest"),)
    body = File(DLC_JSON, text, parts, reasons=tuple(reasons(table)), notes=_dlc_notes(order))
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


def _dlc_notes(order: Order) -> tuple[str, ...]:
    cluster: Cluster = order.job.cluster
    if cluster.instance is None or instance_of(cluster) is not None:
        return ()
    return (Note(
        "{}: {} is not Alibaba Cloud's; the job asks a quota for {} x {} instead",
        DLC_JSON, cluster.instance, cluster.gpus_per_node, cluster.gpu.name
    ),)


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
