"""What fits when not everything does: layers on cards, tokens of context."""

from __future__ import annotations

from msgspec.structs import replace

from vramcast.domain.serving import ServeJob
from vramcast.engines.llamacpp.context import Context, card_bytes
from vramcast.engines.llamacpp.settings import CONTEXT_MULTIPLE


def layers_that_fit(job: ServeJob, room: int) -> int:
    """The largest -ngl whose fullest card stays within its room; 0 when none does.

    Args:
        job: the plan that does not fit
        room: bytes of a card beside the CUDA context
    """
    low, high = 0, job.model.num_layers + 1 if job.plan.gpu_layers is None else job.plan.gpu_layers
    while low < high:
        middle = (low + high + 1) // 2
        if _fits(replace(job, plan=replace(job.plan, gpu_layers=middle)), room):
            low = middle
        else:
            high = middle - 1
    return low


def _fits(job: ServeJob, room: int) -> bool:
    context = Context(job)
    return all(card_bytes(context, card) <= room for card in range(context.placement.cards))


def context_that_fits(job: ServeJob, room: int) -> int:
    """Tokens each sequence could have on the cards of a plan that does not fit; 0 when none fits.

    Args:
        job: the plan; its context is more than fits
        room: bytes of a card beside the CUDA context

    Returns: a multiple of 256 below the context asked for [tokens]
    """
    low, high = 0, -(-job.context // CONTEXT_MULTIPLE)
    while high - low > 1:
        middle = (low + high) // 2
        tokens = middle * CONTEXT_MULTIPLE
        requests = replace(job.requests, context=tokens, input_len=None, output_len=None)
        if _fits(replace(job, requests=requests), room):
            low = middle
        else:
            high = middle
    return low * CONTEXT_MULTIPLE


def longest_context(context: Context, room: int) -> int:
    """Tokens each sequence could have, by what one more block of cells takes on the fullest card.

    Args:
        context: a plan that fits
        room: bytes of a card beside the CUDA context

    Returns: a multiple of 256, at least the context asked for [tokens]
    """
    job = context.job
    doubled = Context(replace(job, requests=replace(job.requests, context=2 * job.context)))
    found = 1 << 40
    for card in range(context.placement.cards):
        now = card_bytes(context, card)
        growth = card_bytes(doubled, card) - now
        if growth > 0:
            found = min(found, job.context + job.context * (room - now) // growth)
    return max(job.context, found // CONTEXT_MULTIPLE * CONTEXT_MULTIPLE)
