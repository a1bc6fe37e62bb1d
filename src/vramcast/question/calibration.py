"""Calibration files: what a measured run taught, in TOML, read strictly and written back."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import msgspec

from vramcast.catalogue.documents import NoDocument, parse_toml
from vramcast.domain.calibration import ALLOCATOR, OUTSIDE, Calibration, Correction, Plan
from vramcast.domain.model import Noun
from vramcast.domain.program import Category
from vramcast.errors import InvalidSpec, SourceError, UnknownName
from vramcast.question.files import write_lines

LARGEST_FILE: Final = 64 << 10
"""A calibration has some thirty lines [bytes]."""

CORRECTED: Final = (*map(str, Category), ALLOCATOR, OUTSIDE)
"""What a correction may be of."""

VERSION: Final = re.compile(r"\d{1,9}(?:\.\d{1,9}){0,3}")


class _File(Noun, frozen=True):
    """The keys of a file."""

    engine: str
    oldest: str
    newest: str
    gpu: str
    plan: Plan
    corrections: dict[str, Correction]
    log: str = ""
    date: str = ""


def read_calibration(path: Path) -> Calibration:
    """The calibration of a file.

    Raises: SourceError naming the file and what is wrong with it
    """
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST_FILE + 1)
        if len(text) > LARGEST_FILE:
            raise SourceError("{}: a calibration has at most {} bytes", path, LARGEST_FILE)
        found = msgspec.convert(parse_toml(text.decode("utf-8")), _File)
    except OSError as error:
        raise SourceError("{}: {}", path, error.strerror or error) from None
    except UnicodeDecodeError:
        raise SourceError("{}: not a text file", path) from None
    except NoDocument as error:
        raise SourceError("{}: not TOML: {}", path, error) from None
    except (msgspec.ValidationError, InvalidSpec) as error:
        raise SourceError("{}: no calibration: {}", path, str(error)[:300]) from None
    return _checked(found, path)


def _checked(found: _File, path: Path) -> Calibration:
    for category in found.corrections:
        if category not in CORRECTED:
            raise SourceError("{}: {}", path, UnknownName.of("ledger category", category, CORRECTED))
    versions = [_version(text, path) for text in (found.oldest, found.newest)]
    if versions[0] > versions[1]:
        raise SourceError("{}: oldest={} is newer than newest={}", path, found.oldest, found.newest)
    return Calibration(
        engine=found.engine, oldest=versions[0], newest=versions[1], gpu=found.gpu, plan=found.plan,
        corrections=found.corrections, log=found.log, date=found.date, source=path.name,
    )


def _version(text: str, path: Path) -> tuple[int, ...]:
    if not VERSION.fullmatch(text):
        raise SourceError("{}: version {!r} must be written like 0.19", path, text[:40])
    return tuple(map(int, text.split(".")))


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Save a calibration so that it reads back the same.

    Raises: SourceError when the file cannot be written
    """
    plan = calibration.plan
    values: dict[str, Any] = {
        "engine": calibration.engine,
        "oldest": ".".join(map(str, calibration.oldest)),
        "newest": ".".join(map(str, calibration.newest)),
        "gpu": calibration.gpu,
        "log": calibration.log,
        "date": calibration.date,
    }
    tables: dict[str, dict[str, Any]] = {
        "plan": {"model": plan.model, "weights": plan.weights, "tp": plan.tp, "pp": plan.pp, "dp": plan.dp}
    }
    if plan.settings:
        tables["plan.settings"] = dict(plan.settings)
    for category, correction in calibration.corrections.items():
        table = {"measured_bytes": correction.measured_bytes, "predicted_bytes": correction.predicted_bytes}
        tables[f'corrections."{category}"'] = table | ({"apportioned": True} if correction.apportioned else {})
    write_lines(path, values, tables)
