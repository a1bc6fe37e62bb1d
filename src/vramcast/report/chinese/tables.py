"""All sentences, in one place."""

from __future__ import annotations

from typing import Final

from vramcast.report.chinese.configs import CONFIGS_ZH
from vramcast.report.chinese.hardware import HARDWARE_ZH
from vramcast.report.chinese.plans import PLANS_ZH
from vramcast.report.chinese.refusals.asking import ASKING_ZH
from vramcast.report.chinese.refusals.engines import ENGINES_ZH
from vramcast.report.chinese.refusals.files import FILES_ZH
from vramcast.report.chinese.refusals.tools import TOOLS_ZH
from vramcast.report.chinese.refusals.tracing import NOT_TRACED_ZH
from vramcast.report.chinese.refusals.web import WEB_ZH
from vramcast.report.chinese.refusals.writing import WRITING_ZH
from vramcast.report.chinese.serving import SERVING_ZH
from vramcast.report.chinese.tracing import TRACING_ZH
from vramcast.report.chinese.training import TRAINING_ZH

TABLES: Final[tuple[dict[str, str], ...]] = (
    TRAINING_ZH, SERVING_ZH, PLANS_ZH, HARDWARE_ZH, CONFIGS_ZH, TRACING_ZH,
    ASKING_ZH, ENGINES_ZH, FILES_ZH, WRITING_ZH, TOOLS_ZH, NOT_TRACED_ZH, WEB_ZH,
)

SENTENCES_ZH: Final[dict[str, str]] = {english: chinese for table in TABLES for english, chinese in table.items()}
"""English template -> the same in Chinese."""
