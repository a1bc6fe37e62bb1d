"""A search's answer with the way there and the techniques of its case."""

from __future__ import annotations

from msgspec.structs import replace

from vramcast.domain.device import Cluster
from vramcast.domain.planning import PlanAnswer, Space
from vramcast.search.decisions import decisions
from vramcast.search.plain import plain_job
from vramcast.search.techniques import Pace, techniques


def explained(answer: PlanAnswer, space: Space, cluster: Cluster, *, pace: Pace | None = None) -> PlanAnswer:
    """The answer with decision path and technique table.

    Args:
        answer: what a search found
        space: what it looked at
        cluster: the machines to explain it on
        pace: how long a step takes; None where that is not to be computed
    """
    job = plain_job(space, cluster)
    table = techniques(job, pace=pace)
    refused = (f"not in the table of techniques: {text}" for text in table.refused)
    return replace(
        answer, decisions=decisions(job), techniques=table.techniques, assumptions=(*answer.assumptions, *refused)
    )
