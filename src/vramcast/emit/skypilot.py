"""SkyPilot: a task for training, a service for a server.

[sky] skypilot sky/utils/schemas.py, names as in its snapshot
"""

from __future__ import annotations

from typing import Final

from vramcast.domain.device import Cluster
from vramcast.domain.serving import ServeJob
from vramcast.emit.files import File, Order, Part
from vramcast.emit.launch import head_of
from vramcast.emit.launchers import slug, start_command
from vramcast.emit.lines import Line, Table
from vramcast.emit.replicas import copies_why, replicas_of, shares_machine
from vramcast.emit.serving import PORT
from vramcast.emit.yaml_text import yaml_text
from vramcast.errors import Unsupported

NAME: Final = "skypilot.yaml"

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


def write(order: Order) -> tuple[File, ...]:
    """One task.

    Raises: Unsupported for cards that SkyPilot has no name for
    """
    serving = isinstance(order.job, ServeJob)
    cluster: Cluster = order.job.cluster
    lines = [
        Line("name", slug(order.job)),
        Line("workdir", ".", "this folder goes to every machine"),
        Line("num_nodes", cluster.num_nodes, "machines in the plan"),
        Line("resources", _resources(order, serving=serving)),
    ]
    if serving:
        if cluster.num_nodes > 1:
            raise Unsupported("a SkyPilot service is written for one machine; use fewer GPUs")
        probe = (Line("path", "/health"), Line("initial_delay_seconds", 1800, "large checkpoints take minutes to load"))
        copies = Line("replicas", replicas_of(order), copies_why(order, own="a machine of its own"))
        lines.append(Line("service", (Line("readiness_probe", probe), copies)))
    lines.append(Line("run", _run(order, serving=serving)))
    command = f"sky serve up {NAME}" if serving else f"sky launch {NAME}"
    text = yaml_text(tuple(lines), head=head_of(order, command))
    return (File(NAME, text, (Part("skypilot", "task"),), notes=_notes(order)),)


def card_name(name: str) -> str:
    """SkyPilot's name of a card.

    >>> card_name("h100-sxm-80gb"), card_name("a100-sxm4-40gb")
    ('H100', 'A100')
    """
    for beginning, found in CARDS:
        if name.startswith(beginning):
            return found
    raise Unsupported(f"SkyPilot has no name for {name}; use --format kubernetes or pai-dlc")


def _resources(order: Order, *, serving: bool) -> Table:
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
    lines.append(Line("accelerators", f"{card_name(cluster.gpu.name)}:{cluster.gpus_per_node}", "cards of one machine"))
    spot = cluster.price is not None and cluster.price.tariff == "spot"
    lines.append(Line("use_spot", spot, "as the plan's price is" if cluster.price is not None else "nobody said spot"))
    if cluster.num_nodes > 1:
        lines.append(Line("network_tier", "best", "machines exchange over their fastest network"))
    if serving:
        lines.append(Line("ports", PORT))
    return tuple(lines)


def _run(order: Order, *, serving: bool) -> str:
    if serving:
        return "bash serve.sh\n"
    return (
        "export NNODES=$SKYPILOT_NUM_NODES NODE_RANK=$SKYPILOT_NODE_RANK\n"
        'export MASTER_ADDR=$(echo "$SKYPILOT_NODE_IPS" | head -n1)\n'
        f"{start_command(order)}\n"
    )


def _notes(order: Order) -> tuple[str, ...]:
    cluster: Cluster = order.job.cluster
    if order.fleet is not None and shares_machine(order):
        cards, planned = f"{cluster.gpus_per_node} x {cluster.gpu.name}", order.fleet
        return (f"{NAME}: SkyPilot rents a machine with {cards} for every replica; the plan rents "
                f"{planned.machines} x {planned.machine} for all of them, and its price is theirs",)
    provider = (cluster.instance or "").partition(":")[0]
    if cluster.instance is None or provider in CLOUDS:
        return ()
    return (f"{NAME}: SkyPilot does not rent {cluster.instance}; the task asks for the same cards anywhere",)
