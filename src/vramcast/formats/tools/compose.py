"""Docker Compose: the service that starts an engine, its cards and its environment.

[compose] compose-spec/compose-spec spec.md: services, deploy.resources.reservations.devices, gpus, interpolation
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from vramcast.errors import Note
from vramcast.formats.containers import started, visible
from vramcast.formats.reading import Unread, table
from vramcast.formats.wrapped import Inside, variables, whole, words_of

DEFAULTS: Final = re.compile(r"\$\{(\w{1,80}):?-")
"""Variables that have a value of their own where no .env file gives one."""


def inside(document: Mapping[str, Any], documents: Sequence[Mapping[str, Any]]) -> Iterator[Inside]:
    """The services that start something: of a whole file, or of a part of one as documents show it."""
    alone = {"": document} if isinstance(document.get("image"), str) else document
    for name, service in table(document.get("services", alone)).items():
        one = table(service)
        image = str(one.get("image") or "")
        environment = variables(one.get("environment"))
        words = started(image, words_of(one.get("entrypoint")), words_of(one.get("command")))
        count, asks = _cards(one)
        seen = min((*([count] if count else ()), *visible(environment)), default=None)
        notes = (Note("env_file of {} is not read", str(name)[:40]),) if one.get("env_file") else ()
        if named := sorted(set(DEFAULTS.findall(str([one.get("image"), one.get("command"), one.get("environment")])))):
            notes = (*notes, Note("{} hold what the file or --env says; no .env file is read", ", ".join(named[:8])))
        unread = (Unread("extends", "names a service of its own; give its file"),) if one.get("extends") else ()
        yield Inside(
            f"service {str(name)[:40]}".strip(), words, image, interpolated=True,
            environment=environment, cards=seen, name=str(name), notes=notes, unread=unread, has_gpu=asks,
        )


def _cards(service: Mapping[str, Any]) -> tuple[int | None, bool]:
    """Cards of a service, and whether it asks for any."""
    resources = table(table(table(service.get("deploy")).get("resources")).get("reservations"))
    devices = resources.get("devices") or service.get("gpus") or ()
    if isinstance(devices, str):  # gpus: all
        return None, True
    for device in devices if isinstance(devices, list) else ():
        one = table(device)
        ids = one.get("device_ids")
        named = ",".join(map(str, ids)).split(",") if isinstance(ids, list) and ids else []  # one text may hold several
        return len(named) or whole(one.get("count")), True
    return None, service.get("runtime") == "nvidia"
