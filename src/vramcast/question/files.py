"""Job files: the options of a question in TOML or YAML, read strictly and written back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from vramcast.catalogue.documents import NoDocument, parse_toml, parse_yaml
from vramcast.errors import SourceError, UnknownName
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
