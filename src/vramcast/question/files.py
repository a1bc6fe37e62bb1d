"""Job files: the options of a question in TOML or YAML, read strictly and written back.

Calibration files: what a measured run taught, in TOML, read strictly and written back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from vramcast.catalogue.tables import NoDocument, parse_toml, parse_yaml
from vramcast.domain.calibration import ALLOCATOR, OUTSIDE, Calibration, Correction, Plan
from vramcast.domain.model import Noun
from vramcast.domain.program import Category
from vramcast.errors import InvalidSpec, SourceError, UnknownName
from vramcast.question.options import OPTIONS, Option, over
from vramcast.sources.files import write_whole

LARGEST_FILE: Final = 1 << 20
"""A job file is a few lines; more is a mistake or an attack [bytes]."""
BYTES_PER_TOKEN: Final = 10
"""Of a YAML file that people or programs write, at least: it may have as many tokens as its largest size allows."""

ALWAYS: Final = ("model", "gpus")


def read_job(path: Path, table: Mapping[str, Option] = OPTIONS) -> dict[str, Any]:
    """The options of a job file, those of `train` where no other table is given.

    Raises: SourceError when it cannot be read, UnknownName for a key that is no option.
    """
    values, _ = read_document(path, largest=LARGEST_FILE)
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise SourceError("{}: a job file is a table of options, one per line", path)
    known = (*ALWAYS, *table)
    for key in values:
        if key not in known:
            raise UnknownName("{}: {}", path, UnknownName.of("option", key, known))
    return values


def read_document(path: Path, *, largest: int) -> tuple[Any, bytes]:
    """What a TOML file (else YAML) holds, and its bytes.

    Args:
        path: a name that ends in .toml is TOML
        largest: a larger file is refused [bytes]

    Raises: SourceError when it cannot be read
    """
    try:
        if path.stat().st_size > largest:
            raise SourceError("{}: such a file has at most {} bytes", path, largest)
        content = path.read_bytes()
        text = content.decode("utf-8")
    except OSError as error:
        raise SourceError("{}: {}", path, error.strerror or error) from None
    except UnicodeDecodeError:
        raise SourceError("{}: not a text file", path) from None
    is_toml = _is_toml(path)
    try:
        return parse_toml(text) if is_toml else parse_yaml(text, most_tokens=largest // BYTES_PER_TOKEN), content
    except NoDocument as error:
        raise SourceError("{}: not {}: {}", path, "TOML" if is_toml else "YAML", error) from None


def save_job(path: Path, options: Mapping[str, Any], *, file: Path | None, table: Mapping[str, Option]) -> None:
    """Save options, over those of a job file, so that they read back to the same question.

    Args:
        path: a name that ends in .toml is written as TOML, any other as YAML: as `read_job` reads it
        options: as given by name; those that are None are left out
        file: the job file beneath them
        table: the options of the command
    """
    named = {name: value for name, value in options.items() if value is not None}
    asked = over(named, read_job(file, table) if file is not None else {})
    if _is_toml(path):
        write_lines(path, asked, {})
    else:
        # TOML quotes and lists as YAML does
        write_whole(path, "".join(f"{name}: {_literal(value)}\n" for name, value in asked.items()))


def _is_toml(path: Path) -> bool:
    return path.suffix.lower() == ".toml"


def write_lines(path: Path, values: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Values and tables of values as a TOML file; what is None is left out."""
    lines = [f"{name} = {_literal(value)}" for name, value in values.items() if value is not None]
    for title, table in tables.items():
        lines += ["", f"[{title}]", *(f"{name} = {_literal(value)}" for name, value in table.items())]
    write_whole(path, "\n".join(lines) + "\n")


def _literal(value: Any) -> str:
    """A TOML value; the kinds options have are few: text, numbers, true/false and lists of text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    escaped = "".join(_escape(character) for character in str(value))
    return f'"{escaped}"'


def _escape(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    return character if character.isprintable() else f"\\U{ord(character):08X}"


LARGEST_CALIBRATION: Final = 64 << 10
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
            text = file.read(LARGEST_CALIBRATION + 1)
        if len(text) > LARGEST_CALIBRATION:
            raise SourceError("{}: a calibration has at most {} bytes", path, LARGEST_CALIBRATION)
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
