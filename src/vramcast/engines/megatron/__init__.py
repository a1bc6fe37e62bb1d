"""Megatron-Core with TransformerEngine, as `pretrain_gpt.py` runs it.

Source: Megatron-LM d98e8a64 and TransformerEngine, read file by file; each tensor names its own.
"""

from __future__ import annotations

from vramcast.domain.job import Job, RankProgram
from vramcast.engines.megatron.options import Context
from vramcast.engines.megatron.run import rank_programs


def ranks(job: Job) -> tuple[RankProgram, ...]:
    """One program per pipeline stage that differs from the one before; the last one is the last stage."""
    return rank_programs(Context(job))


__all__ = ["ranks"]
