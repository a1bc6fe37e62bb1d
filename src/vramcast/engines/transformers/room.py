"""How many sequences a card holds: there is no pool, memory grows with what is asked."""

from __future__ import annotations

from functools import lru_cache

from msgspec import Struct

from vramcast.domain.model import Model
from vramcast.domain.program import extent
from vramcast.engines.serving.stages import Stage
from vramcast.engines.transformers.program import serve, workspace
from vramcast.engines.transformers.settings import Settings


class Room(Struct, frozen=True, kw_only=True):
    """What one card leaves beside weights, and what each sequence takes of it at its highest point."""

    num_bytes: int  # of the card, less what is there without a sequence
    model: Model
    settings: Settings
    stage: Stage
    context: int  # asked for

    def sequence_bytes(self, tokens: int) -> int:
        """Cache and activations of one sequence of so many tokens, as many of them the answer's as were asked for.

        Activations of a batch are so many times those of one sequence, so that sequences add up.
        """
        return _sequence_bytes(self.model, self.settings, self.stage, tokens)

    @property
    def reported_tokens(self) -> dict[str, int]:
        """Sequences of the context asked for, in tokens."""
        return {"sequences x context": int(self.num_bytes / self.sequence_bytes(self.context) * self.context)}


@lru_cache(maxsize=256)
def _sequence_bytes(model: Model, settings: Settings, stage: Stage, tokens: int) -> int:
    answer = settings.total - settings.prompt
    prompt = max(1, tokens - answer)
    chunk = prompt if settings.chunk == settings.prompt else min(prompt, settings.chunk)
    alone = settings._replace(batch=1, prompt=prompt, chunk=chunk, total=max(prompt, tokens))
    if settings.source == settings.prompt:  # text encoders read the prompt
        alone = alone._replace(source=prompt)
    return extent(serve(model, alone, stage)).peak - workspace(settings).block_bytes
