"""`/api/words`: what reports call things, for a page that shows them in the same words."""

from __future__ import annotations

from typing import Any, Final

from vramcast.report.messages import LANGUAGES, MESSAGES, Words, rare_messages
from vramcast.report.plan_messages import COSTS_ZH
from vramcast.report.verdicts import TONES
from vramcast.web.exchange import Asked, choice_field

KINDS: Final = ("category", "phase", "cause", "bound", "short", "held", "verdict")
"""What stands before the point in the keys of names."""


def words(asked: Asked) -> dict[str, Any]:
    """Names of categories, phases, causes, bounds, figures and verdicts with their tones, and what changes cost."""
    language = choice_field(asked.query, "lang", LANGUAGES, "en")
    own = Words(language)
    known = MESSAGES | rare_messages()
    named = {key: own(key) for key in known if key.partition(".")[0] in KINDS and "{" not in known[key]["en"]}
    costs = {f"cost.{english}": chinese if language == "zh" else english for english, chinese in COSTS_ZH.items()}
    tones = {f"tone.{fit}": tone for fit, tone in TONES.items()}
    return {"schema": 1, "lang": language, "words": named | costs | tones}
