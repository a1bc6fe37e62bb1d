"""What one kind of rank does over a run: the hand-over from engines to estimates."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from msgspec import Struct

from vramcast.domain.job import Phase
from vramcast.domain.program import BrokenProgram, Program, Tensor, freed_unallocated


class RankProgram(Struct, frozen=True, kw_only=True):
    """Ranks that use the same memory are one role.

    The phases run in their order of declaration; what one leaves allocated the next one finds.
    `outside` lives beside the caching allocator: CUDA context, library handles, NCCL buffers.
    """

    role: str  # "all", "first stage", "last stage", "expert owner" ...
    count: int  # ranks of the role
    phases: Mapping[Phase, Program]
    outside: tuple[Tensor, ...] = ()
    alloc_conf: str = ""  # PYTORCH_CUDA_ALLOC_CONF the engine's launcher sets where the job says nothing
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    has_lengths: bool = False  # its steps are of many lengths

    def require_sound(self) -> None:
        """Refuse what no process could do, before its memory is answered: a search that reads sums alone need not.

        Raises: BrokenProgram, a bug of the engine
        """
        freed = freed_unallocated(tuple(chain.from_iterable(self.phases.values())))
        if freed is not None:
            size = freed.num_bytes
            raise BrokenProgram(f"{self.role} frees {freed.path} of {size} bytes, which it has not allocated")

    @property
    def steady(self) -> Phase:
        """The phase whose peak is the answer: a training step, or serving at full load."""
        return Phase.SERVING if Phase.SERVING in self.phases else Phase.STEP
