"""What clouds are told to start: SkyPilot's task or service; Alibaba Cloud PAI's training job (DLC) and service (EAS).

[sky] skypilot sky/task.py, sky/skylet/constants.py (the variables of a run); [DLC] CreateJob of version 2020-12-03 and
https://www.alibabacloud.com/help/en/pai/user-guide/general-environment-variables; [EAS]
https://www.alibabacloud.com/help/en/pai/user-guide/parameters-of-model-services
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from vramcast.catalogue.gpus import gpu_names
from vramcast.catalogue.instances import card_of_code
from vramcast.errors import Note, Unsupported, VramcastError, joined
from vramcast.formats.containers import started
from vramcast.formats.files import PLACEHOLDER
from vramcast.formats.reading import NO_GPU, Unread, table
from vramcast.formats.tools.clouds import PROVIDERS, card_name
from vramcast.formats.wrapped import ELSEWHERE, Inside, card, machine, unknown_card, variables, whole, words_of


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
