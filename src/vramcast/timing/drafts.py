"""Tokens that a step of speculative decoding comes to: those accepted of what was proposed, and the target's own.

[golden] SemiAnalysisAI/InferenceX @843c6254 (Apache-2.0) golden_al_distribution/*.yaml: mean acceptance lengths that
vLLM counted on B300 with the coding prompts of SPEED-Bench (arXiv:2604.09557), answers of 4,096 tokens, by proposals a
step; thinking where both were measured. Other prompts are harder to guess; the curves say how much networks differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from vramcast.domain.model import Layer, Model, Run
from vramcast.timing.forward import forward_work
from vramcast.timing.work import Setting, Work

Lengths = tuple[float, ...]
"""With one proposal, two, and so on."""

MEASURED: Final[dict[str, dict[str, Lengths]]] = {
    "mtp": {
        "deepseek": (1.79, 2.27, 2.49, 2.54, 2.55, 2.55, 2.54, 2.58),  # V4 Pro; its families are alike
        "glm": (1.84, 2.50, 2.99, 3.33, 3.61, 3.78, 3.91, 4.06),  # 5.2
        "qwen3_5": (1.93, 2.73, 3.39, 3.97, 4.41, 4.80, 5.04, 5.21),  # 397B-A17B
    },
    "eagle3": {
        "kimi": (1.83, 2.43, 2.88, 3.24, 3.46, 3.62, 3.71, 3.77),  # K2.5
        "minimax": (1.78, 2.38, 2.83, 3.11, 3.35, 3.45, 3.53, 3.74),  # M3
    },
}
"""Kind of draft -> beginning of a family's name -> tokens of a step [golden]."""


ELSEWHERE: Final = 0.8
"""Of the proposals accepted on coding prompts, those that are on others: fitted on the time between tokens of 33 runs
with random prompts (one half of the configurations of benchmarks.serving_times with drafts)."""


class Accepted(NamedTuple):
    """Tokens of a step."""

    mean: float
    low: float  # of the networks that were measured with such drafts
    high: float  # of them on coding prompts


def accepted(kind: str, family: str, proposed: int) -> Accepted | None:
    """What so many proposals come to; None for a kind of draft that nobody measured.

    A family that was not measured is given the middle of those that were; more proposals than were measured, as many
    tokens as the most that were.

    >>> deepseek = accepted("mtp", "deepseek_v3", 3)
    >>> round(deepseek.mean, 2), round(deepseek.low, 2), deepseek.high
    (2.19, 2.19, 3.39)
    """
    curves = MEASURED.get(kind)
    if curves is None:
        return None
    found = {name: lengths[min(proposed, len(lengths)) - 1] for name, lengths in curves.items()}
    ordered = sorted(found.values())
    coding = next((length for name, length in found.items() if family.startswith(name)), ordered[len(ordered) // 2])
    return Accepted(1 + ELSEWHERE * (coding - 1), 1 + ELSEWHERE * (ordered[0] - 1), ordered[-1])


class Drafting(Struct, frozen=True):
    """What a step of generation has beside the target's own forward, which verifies all proposals at once."""

    proposed: int  # tokens, one pass of the draft each
    accepted: float  # tokens that a step comes to
    layer: Layer  # of the draft, with the target's embedding and head

    def works(self, model: Model, setting: Setting) -> Iterator[tuple[Work, int]]:
        """All passes of the draft, for the sequences of a step."""
        one = replace(setting, step=replace(setting.step, proposed=0, head_rows=1))
        for work, count in forward_work(model, (Run(count=1, layer=self.layer),), one):
            yield work, count * self.proposed
