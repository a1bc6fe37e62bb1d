"""Which allocator settings would have helped, from replays under each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from vramcast.domain.model import Noun
from vramcast.recordings.variants import Variant


class Advice(Noun, frozen=True):
    """What replays under other settings come to."""

    kind: Literal["avoids", "none_avoids", "not_repeated", "lowers", "unsure", "none"]
    tried: int  # settings besides those of the recording
    best: Variant | None = None  # None where none helps
    saved_bytes: int = 0  # of the peak of reserved memory, against the settings of the recording


def ran_out(variant: Variant) -> bool:
    """Whether any request failed under these settings."""
    return variant.out_of_memory is not None or variant.num_ooms > 0


def advice(variants: Sequence[Variant], recorded_bytes: int | None = None) -> Advice | None:
    """The best of the settings; the first are those of the recording. None where no others were tried.

    Args:
        variants: replays under each
        recorded_bytes: the peak of reserved memory as it really was; what differs between that and the replay under the
            settings of the recording comes of laying out anew what was live before, and a saving below it proves
            nothing [bytes]
    """
    if len(variants) < 2:
        return None
    own, *others = variants
    whole = [variant for variant in others if not ran_out(variant)]
    best = min(whole, key=lambda variant: variant.peak_reserved_bytes, default=None)
    if ran_out(own):
        return Advice(kind="none_avoids" if best is None else "avoids", tried=len(others), best=best)
    if own.num_ooms_avoided:
        return Advice(kind="not_repeated", tried=len(others))
    saved = 0 if best is None else own.peak_reserved_bytes - best.peak_reserved_bytes
    if best is None or saved <= 0:
        return Advice(kind="none", tried=len(others))
    gap = 0 if recorded_bytes is None else abs(recorded_bytes - own.peak_reserved_bytes)
    return Advice(kind="lowers" if saved > gap else "unsure", tried=len(others), best=best, saved_bytes=saved)
