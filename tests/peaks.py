"""What lives at the highest point of one program."""

from vramcast.domain.job import Phase
from vramcast.domain.program import Program, Tensor
from vramcast.estimate.script import Script


def live_at_peak(program: Program) -> dict[Tensor, int]:
    """The tensors alive at the (first) highest point, with their number of live instances."""
    return Script({Phase.STEP: program}).live_at_peak(Phase.STEP)
