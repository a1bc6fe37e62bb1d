"""`--reconcile`: a server's log read, asked, answered and compared."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from vramcast.doctor.compare import reconciliation
from vramcast.doctor.question import question_of
from vramcast.domain.reconciliation import Reconciliation
from vramcast.estimate.serving import answer
from vramcast.sources.logs import read_log


def reconcile(path: Path, given: Mapping[str, Any]) -> Reconciliation:
    """The last start-up of a log held against its prediction.

    Args:
        path: of the log
        given: options of `vramcast serve` that win over what the log says, and what it does not say

    Raises: VramcastError of one sentence when the log cannot be read, or the question not be answered
    """
    log = read_log(path)
    job, remarks = question_of(log, given)
    found = reconciliation(log, job, answer(job), remarks)
    if found.calibration is None:
        return found
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    return replace(found, calibration=replace(found.calibration, date=today))
