"""Parts of cards that pods ask for: memory by HAMi's and Volcano's resources, devices by claims.

[hami] Project-HAMi/HAMi, website docs/userguide/nvidia-device; [Volcano] volcano-sh/volcano
docs/user-guide/how_to_use_volcano_vgpu.md; [claims] https://kubernetes.io/docs/concepts/scheduling-eviction/
dynamic-resource-allocation/, resource.k8s.io/v1; the devices of HAMi have `capacity.requests.memory` of each
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from vramcast.formats.reading import table
from vramcast.formats.tools.kubernetes import RESOURCES
from vramcast.formats.wrapped import whole
from vramcast.units import MIB

MEMORY: Final = "nvidia.com/gpumem"
VGPUS: Final = (MEMORY, "nvidia.com/gpumem-percentage", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-memory-percentage")
"""Memory of each card that HAMi's and Volcano's device plugins let a process see [MiB, %]."""
VGPU_NUMBER: Final = "volcano.sh/vgpu-number"
UNITS: Final[Mapping[str, int]] = {"Mi": MIB, "Gi": 1 << 30, "M": 10**6, "G": 10**9}


def share_of(container: Mapping[str, Any]) -> str:
    """The part of each card that a container sees, "8000mib" or "30%"; "" for whole cards.

    >>> share_of({"resources": {"limits": {"nvidia.com/gpu": 2, "nvidia.com/gpumem-percentage": 30}}})
    '30%'
    """
    resources = table(container.get("resources"))
    given = {**table(resources.get("requests")), **table(resources.get("limits"))}
    return next((f"{count}{'%' if name.endswith('percentage') else 'mib'}" for name in VGPUS
                 if (count := whole(given.get(name)))), "")


def with_claims(value: Any, documents: Sequence[Mapping[str, Any]]) -> Any:
    """The same, devices that a pod claims by an object of the file as the resources that they are."""
    if isinstance(value, list):
        return [with_claims(inner, documents) for inner in value]
    if not isinstance(value, Mapping):
        return value
    inner = {key: with_claims(one, documents) for key, one in value.items()}
    claims = {table(one).get("name"): _devices(table(one), documents) for one in value.get("resourceClaims") or ()
              if isinstance(value.get("resourceClaims"), list)}
    if claims and isinstance(inner.get("containers"), list):
        inner["containers"] = [_claimed(one, claims) for one in inner["containers"]]
    if claims and isinstance(inner.get("model"), Mapping):
        inner["model"] = _claimed(inner["model"], claims)
    return inner


def _claimed(container: Any, claims: Mapping[Any, dict[str, str]]) -> Any:
    resources = table(table(container).get("resources"))
    named = [table(one).get("name") for one in resources.get("claims") or ()]
    found = {name: size for one in named for name, size in claims.get(one, {}).items()}
    if not found:
        return container
    rest = {name: one for name, one in resources.items() if name != "claims"}
    return {**container, "resources": {**rest, "limits": {**table(resources.get("limits")), **found}}}


def _devices(claim: Mapping[str, Any], documents: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Cards of a claim, and the memory that is seen of each; {} where no object of the file says."""
    name = claim.get("resourceClaimTemplateName") or claim.get("resourceClaimName")
    found = next((table(one.get("spec")) for one in documents if table(one.get("metadata")).get("name") == name
                  and one.get("kind") in ("ResourceClaimTemplate", "ResourceClaim")), {})
    requests = table(table(found.get("spec", found)).get("devices")).get("requests") or ()
    first = table(next(iter(requests), None))
    if len(requests) != 1:
        return {}
    asked = table(first.get("exactly")) or first
    if asked.get("selectors") or "mig" in str(asked.get("deviceClassName")):  # of which card, and what part of it
        return {}
    count = {RESOURCES["NVIDIA"]: str(whole(asked.get("count", 1)) or 1)}
    memory = str(table(table(asked.get("capacity")).get("requests")).get("memory") or "")
    size = re.fullmatch(r"(\d{1,6})(\w+)", memory)
    unit = UNITS.get(size[2], 0) if size else 0
    return count | ({MEMORY: str(int(size[1]) * unit // MIB)} if size and unit else {})
