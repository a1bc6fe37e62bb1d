"""What files say of a deployment that has several replicas: how many, and which cards each of them gets."""

from __future__ import annotations

from typing import Final

from vramcast.domain.answer import Fleet
from vramcast.emit.files import Order

VISIBLE: Final = {"NVIDIA": "CUDA_VISIBLE_DEVICES", "AMD": "HIP_VISIBLE_DEVICES"}
"""Vendor -> the variable that says which cards a process sees."""

COPIES: Final = "copies of the deployment"


def replicas_of(order: Order) -> int:
    """Copies of the deployment."""
    return 1 if order.fleet is None else order.fleet.replicas


def shares_machine(order: Order) -> bool:
    """Whether a replica takes only some cards of the machine it is planned on."""
    cluster = order.job.cluster
    return order.fleet is not None and cluster.instance is None and order.fleet.machine != cluster.name and (
        cluster.num_nodes == 1
    )


def copies_why(order: Order, own: str = "cards of its own") -> str:
    """The reason behind a number of copies."""
    return COPIES if replicas_of(order) == 1 else f"{COPIES}, each on {own}"


def fleet_sentence(fleet: Fleet) -> str:
    """Who carries the load.

    >>> fleet_sentence(Fleet(2, 64, "8xh100-sxm-80gb", 1, 2, 5000.0))
    '2 replicas on 1 x 8xh100-sxm-80gb carry 64 users at once.'
    """
    replicas = f"{fleet.replicas} replicas" if fleet.replicas > 1 else "1 replica"
    carries = "carry" if fleet.replicas > 1 else "carries"
    users = f"{fleet.users} users" if fleet.users > 1 else "1 user"
    return f"{replicas} on {fleet.machines} x {fleet.machine} {carries} {users} at once."


def by_hand(order: Order, script: str, port: int) -> list[str]:
    """Lines for a script that starts one replica: how to start all of them."""
    fleet, cluster = order.fleet, order.job.cluster
    if fleet is None or fleet.replicas == 1:
        return []
    found = [f"This starts one of {fleet.replicas} replicas; put a load balancer before them."]
    if fleet.replicas_per_machine > 1:
        found.append(f"Up to {fleet.replicas_per_machine} share a machine, each on cards of its own:")
        variable, cards = VISIBLE.get(cluster.gpu.vendor), cluster.gpus_per_node
        for index in range(fleet.replicas_per_machine):
            own = ",".join(str(index * cards + card) for card in range(cards))
            before = f"{variable}={own} " if variable else ""
            found.append(f"  {before}bash {script} --port {port + index} &")
    return found


def one_of_several(order: Order, script: str) -> tuple[str, ...]:
    """What a reader of the folder has to know of a script that starts one replica."""
    copies = replicas_of(order)
    if copies == 1:
        return ()
    return (f"{script} starts one of {copies} replicas; its first lines say how to start all of them",)
