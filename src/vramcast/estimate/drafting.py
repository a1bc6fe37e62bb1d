"""Speculative decoding of a serving plan that is timed: how many tokens a step comes to, and what the draft costs."""

from __future__ import annotations

from vramcast.domain.serving import ServeJob
from vramcast.engines.serving.rank import draft_layer
from vramcast.errors import Note
from vramcast.timing.drafts import Accepted, Drafting, accepted


def drafting_of(job: ServeJob) -> Drafting | None:
    """What a step has beside the target's forward; None without a draft, or with one that nobody measured."""
    found, draft = _accepted(job), job.plan.draft
    if found is None or draft is None:
        return None
    layers = job.model.mtp_layers if draft.kind == "mtp" else ()
    return Drafting(draft.tokens, found.mean, layers[-1] if layers else draft_layer(job.model))


def tokens_of_step(job: ServeJob) -> float:
    """Tokens that a sequence has more of after a step."""
    found = _accepted(job)
    return 1.0 if found is None else found.mean


def said_of_drafts(job: ServeJob) -> str:
    """How many proposals are taken to be accepted."""
    draft, found = job.plan.draft, _accepted(job)
    assert draft is not None
    if found is None:
        return "speed is that without speculative decoding: how many proposals are accepted is not known"
    return Note(
        "a step is taken to come to {:.2f} tokens with {} proposed: {:.2f} to {:.2f} by network and prompts, most on "
        "code", found.mean, draft.tokens, found.low, found.high
    )


def _accepted(job: ServeJob) -> Accepted | None:
    draft = job.plan.draft
    return None if draft is None else accepted(draft.kind, job.model.family, draft.tokens)
