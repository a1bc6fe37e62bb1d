"""What a job costs: machines by the hour, and from the speed money per token and per run. No currency is converted."""

from __future__ import annotations

from typing import Any, TypeVar

from msgspec.structs import replace

from vramcast.domain.answer import Answer, ServeAnswer
from vramcast.domain.device import Cluster, Cost

AnswerT = TypeVar("AnswerT", bound=Answer)

SECONDS_PER_HOUR = 3600


def cost_of(
    cluster: Cluster, *, tokens_per_s: float | None = None, run_tokens: int | None = None, copies: int = 1
) -> Cost | None:
    """The cost of a cluster at a speed; None where no price is known.

    Leaves out storage, traffic, start-up, failures, and hours that are paid for and not used.

    Args:
        cluster: machines and the price of one of them
        tokens_per_s: of all machines together, None where not known
        run_tokens: length of the whole run, None where the question names none [count]
        copies: such clusters that are rented [count]

    Returns: cost per hour, and where speed and length are known per million tokens and per run

    >>> from vramcast.domain.device import Gpu
    >>> from vramcast.domain.device import Price
    >>> machine = Cluster(gpu=Gpu(name="x", vendor="v", arch="a", visible_bytes=1), gpus_per_node=8, num_nodes=2,
    ...     price=Price(per_hour=36.0, currency="USD"))
    >>> cost = cost_of(machine, tokens_per_s=20_000, run_tokens=10**9)
    >>> cost.per_hour, cost.per_million_tokens, cost.per_run
    (72.0, 1.0, 1000.0)
    """
    price = cluster.price
    if price is None:
        return None
    machines = cluster.num_nodes * copies
    per_hour = price.per_hour * machines
    cost = Cost(price=price, machines=machines, per_hour=per_hour)
    if not tokens_per_s:
        return cost
    per_token = per_hour / SECONDS_PER_HOUR / tokens_per_s
    cost = replace(cost, per_million_tokens=1e6 * per_token)
    if run_tokens is None:
        return cost
    hours = run_tokens / tokens_per_s / SECONDS_PER_HOUR
    return replace(cost, run_hours=hours, per_run=hours * per_hour)


def asked_of(name: str, cluster: Cluster, engine: str) -> dict[str, Any]:
    """What every question begins with as plain data: its model, cards and engine by name."""
    cards = {"cards": f"{cluster.count} x {cluster.gpu.name}"} if cluster.instance else {}
    return {"model": name, "gpus": cluster.name, "engine": engine, **cards}


def with_cost(answer: AnswerT, cluster: Cluster, *, run_tokens: int | None = None, copies: int = 1) -> AnswerT:
    """An answer with what the cluster costs at the speed the answer gives, how long the whole run takes, and what is
    assumed of its machines."""
    served = answer.served if isinstance(answer, ServeAnswer) else None
    speed = answer.tokens_per_s if served is None else served.tokens_per_s
    cost = cost_of(cluster, tokens_per_s=speed, run_tokens=run_tokens, copies=copies)
    hours = run_tokens / speed / SECONDS_PER_HOUR if run_tokens and speed else None
    assumptions = tuple(dict.fromkeys((*answer.assumptions, *cluster.notes)))
    cautions = tuple(dict.fromkeys((*answer.cautions, *cluster.cautions)))
    return replace(answer, cost=cost, run_hours=hours, assumptions=assumptions, cautions=cautions)
