"""dstack's task and service: `.dstack.yml`.

[dstack] dstackai/dstack core/models/configurations.py, core/models/resources.py `GPUSpec.parse` (what a text of cards
says), runner/internal/runner/executor/executor.go (the variables of a run); gpuhunt _internal/constraints.py (names of
cards)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from vramcast.domain.device import Cluster
from vramcast.domain.serving import ServeJob
from vramcast.errors import Note, Unsupported, joined
from vramcast.formats.containers import started
from vramcast.formats.files import File, Order
from vramcast.formats.launch import PORT, copies_why, head_of, image_of, replicas_of, slug, start_command
from vramcast.formats.lines import Line, yaml_text
from vramcast.formats.reading import NO_GPU, Unread, table
from vramcast.formats.tools.clouds import card_name, card_of_sky
from vramcast.formats.wrapped import Inside, card, unknown_card, variables, whole, words_of

DSTACK: Final = ".dstack.yml"
FOLDER: Final = "/workspace/vramcast"
STARTED: Final = ("task", "service")
"""Types whose commands run a job; a development environment, a fleet and a volume start none."""
ELSEWHERE: Final = ("google", "tpu", "intel", "tenstorrent", "tt")
VENDORS: Final = ("nvidia", "amd", *ELSEWHERE)


TPU: Final = re.compile(r"(?:tpu-)?v\d\w*-\d+")


class Asked(NamedTuple):
    """What a job asks of cards."""

    names: tuple[str, ...] = ()
    size: str = ""  # of a card, the least that will do: "24GB"
    cards: int | None = None  # of a machine; None: any number
    vendor: str = ""
    is_least: bool = False  # whether larger cards will do, too


def inside(document: Mapping[str, Any], documents: Sequence[Mapping[str, Any]]) -> Iterator[Inside]:
    """The commands of a task or a service, of each of its groups."""
    if document.get("type") not in STARTED:
        return
    named = (document.get(name) for name in ("groups", "replicas"))
    groups: list[Any] = next((one for one in named if isinstance(one, list)), [{}])
    for group in groups:
        yield _job({**document, **{name: value for name, value in table(group).items() if name != "env"}})


def _job(job: Mapping[str, Any]) -> Inside:
    nodes = (whole(job.get("nodes")) if job["type"] == "task" else None) or 1
    place, count, unread, notes = _cards(table(job.get("resources")).get("gpu"))
    environment = {"DSTACK_NODES_NUM": str(nodes), "DSTACK_NODE_RANK": "0", **variables(job.get("env"))}
    if count and nodes > 1:
        environment["DSTACK_GPUS_NUM"] = str(nodes * count)
    image, commands = str(job.get("image") or ""), job.get("commands")
    listed = commands if isinstance(commands, list) else [commands] if isinstance(commands, str) else []
    script = "\n".join(map(str, listed))
    if isinstance(copies := job.get("replicas"), int) and copies > 1:
        notes = (*notes, Note("{} has {} replicas, of which one is answered", "dstack", copies))
    return Inside(
        f"dstack's {job['type']}", () if script else started(image, words_of(job.get("entrypoint")), ()), image,
        script=script, environment=environment, place=place, cards=count, nodes=nodes, unread=unread, notes=notes,
        name=str(job.get("name") or job["type"]), has_gpu=bool(place or count or unread),
        counting=("DSTACK_GPUS_PER_NODE", *(("DSTACK_GPUS_NUM",) if nodes == 1 else ())),
    )


def _cards(value: Any) -> tuple[str, int | None, tuple[Unread, ...], tuple[str, ...]]:
    """Card, cards of a machine, what of them is left open, and what is assumed."""
    if value in (None, 0, "0"):
        return "", None, (), ()
    asked = asked_of(value)
    if asked.vendor in ELSEWHERE or any(map(TPU.fullmatch, asked.names)):
        return "", asked.cards, (Unread(f"gpu {(asked.names or (asked.vendor,))[0][:40]}", NO_GPU),), ()
    if len(asked.names) > 1:
        why = Note("is {}; give --gpus", joined(" or ", asked.names[:4]))
        return "", asked.cards, (Unread("gpu", why, "gpus"),), ()
    if not asked.names:
        notes = (Note("gpu: any card of {} and more will do; the smallest is answered", asked.size),)
        return asked.size.lower(), asked.cards, (), notes if asked.is_least else ()
    name = asked.names[0]
    found = next(filter(None, (card(f"{name} {asked.size}"), card_of_sky(f"{name}-{asked.size}"), card_of_sky(name))
                        if asked.size else (card_of_sky(name),)), "")
    return found, asked.cards, () if found else (unknown_card("gpu", name),), ()


def asked_of(value: Any) -> Asked:
    """What a text, a number or a table asks for.

    >>> asked_of("A100:80GB:8"), asked_of("24GB..")
    (Asked(names=('A100',), size='80GB', cards=8, vendor='', is_least=False), \
Asked(names=(), size='24GB', cards=1, vendor='', is_least=True))
    >>> asked_of({"name": ["L4", "T4"], "count": {"min": 2}}).names, asked_of("nvidia:1..8").cards
    (('L4', 'T4'), None)
    """
    if isinstance(value, Mapping):
        given = value.get("name") or ()
        names = tuple(map(str, given)) if isinstance(given, list) else tuple(filter(None, str(given or "").split(",")))
        least, most = _range(value.get("memory"))
        fewest, many = _range(value.get("count", 1))
        return Asked(names, _size(least), whole(fewest) if fewest == many else None,
                     str(value.get("vendor") or "").lower(), bool(least) and least != most)
    said: dict[str, Any] = {}
    for word in str(value).replace(" ", "").split(":"):
        kind = ("vendor" if word.lower() in VENDORS else "name" if word[:1].isalpha()
                else "memory" if re.search("[A-Za-z]", word) else "count")
        said[kind] = word
    return asked_of(said)


def _range(value: Any) -> tuple[str, str]:
    """Both ends of a range, "" where one is open."""
    if isinstance(value, Mapping):
        return str(value.get("min") or ""), str(value.get("max") or "")
    least, dots, most = str("" if value is None else value).replace(" ", "").partition("..")
    return least, most if dots else least


def _size(text: str) -> str:
    """A size with its unit: a number alone is of gigabytes."""
    return f"{text}GB" if re.fullmatch(r"[\d.]+", text) else text


NAMES: Final = {"A100-80GB": "A100", "V100-32GB": "V100", "RTXA6000": "A6000", "RTX6000-Ada": "RTX6000Ada"}
"""SkyPilot's name of a card -> dstack's, where it is another."""


def write(order: Order) -> tuple[File, ...]:
    """A task, or a service.

    Raises: Unsupported for cards without a name there, and servers over several machines
    """
    serving, cluster = isinstance(order.job, ServeJob), order.job.cluster
    if serving and cluster.num_nodes > 1:
        raise Unsupported("a dstack service is written for one machine; use fewer GPUs")
    lines = [
        Line("type", "service" if serving else "task"), Line("name", slug(order.job)),
        *([] if serving else [Line("nodes", cluster.num_nodes, "machines in the plan")]),
        Line("image", image_of(order)), Line("working_dir", FOLDER),
        Line("files", [f".:{FOLDER}"], "this folder goes to every machine"),
        Line("commands", ["bash serve.sh"] if serving else [
            "export NNODES=$DSTACK_NODES_NUM NODE_RANK=$DSTACK_NODE_RANK MASTER_ADDR=$DSTACK_MASTER_NODE_IP",
            start_command(order)]),
    ]
    if serving:
        copies = Line("replicas", replicas_of(order), copies_why(order, own="a machine of its own"))
        lines += [Line("port", PORT), copies]
    spot = cluster.price is not None and cluster.price.tariff == "spot"
    lines += [Line("spot_policy", "spot" if spot else "on-demand"),
              Line("resources", (Line("gpu", gpu_asked(cluster).partition(": ")[2], "cards of one machine"),))]
    return (File(DSTACK, yaml_text(tuple(lines), head=head_of(order, f"dstack apply -f {DSTACK}"))),)


def gpu_asked(cluster: Cluster) -> str:
    """What asks dstack for the cards of a machine, with their size where a name has several; a size alone stays one."""
    size = cluster.gpu.memory_nameplate.replace(" ", "")
    if cluster.gpu.name == size.lower():
        return f"gpu: {size}:{cluster.gpus_per_node}"
    try:
        name = card_name(cluster.gpu.name)
    except Unsupported:
        raise Unsupported("dstack has no name for {}; use --format kubernetes or pai-dlc", cluster.gpu.name) from None
    return f"gpu: {NAMES.get(name, name)}:{size}:{cluster.gpus_per_node}"
