"""The process that is simulated: one rank among many, of which only this one runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from vramcast.errors import InvalidSpec

CARDS_PER_MACHINE = 8
"""Cards of the usual training server [count]."""


class World(NamedTuple):
    """Ranks of the job and which of them this process is."""

    size: int = 1  # ranks of the default process group
    rank: int = 0
    cards_per_machine: int = CARDS_PER_MACHINE

    @property
    def local_size(self) -> int:
        """Ranks on this machine, and cards that the process sees."""
        return min(self.size, self.cards_per_machine)

    @property
    def local_rank(self) -> int:
        """Of the card that this process uses."""
        return self.rank % self.cards_per_machine

    def environment(self) -> Mapping[str, str]:
        """Variables that torchrun sets [torch.distributed.elastic.agent.server.local_elastic_agent]."""
        machines = -(-self.size // self.cards_per_machine)
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_size),
            "GROUP_RANK": str(self.rank // self.cards_per_machine),
            "GROUP_WORLD_SIZE": str(machines),
            "ROLE_RANK": str(self.rank),
            "ROLE_WORLD_SIZE": str(self.size),
            "ROLE_NAME": "default",
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": "none",
        }


ALONE = World()
"""A job of one process."""


def parse_world(*, size: int, rank: int = 0, cards_per_machine: int = CARDS_PER_MACHINE) -> World:
    """A checked world.

    Args:
        size: ranks of the job [count]
        rank: which of them to simulate
        cards_per_machine: how many of them share a machine [count]

    Raises: InvalidSpec
    """
    if size < 1:
        raise InvalidSpec(f"world size {size} has no rank; give 1 or more")
    if not 0 <= rank < size:
        raise InvalidSpec(f"rank {rank} is not in a world of {size} ranks; give 0 to {size - 1}")
    if cards_per_machine < 1:
        raise InvalidSpec(f"{cards_per_machine} cards per machine hold no rank; give 1 or more")
    return World(size, rank, cards_per_machine)
