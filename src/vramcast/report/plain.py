"""What every document of JSON is made with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict

SCHEMA: Final = 1


def known(found: Mapping[str, Any] | Struct) -> dict[str, Any]:
    """Of values by name, or of a noun's fields, those that are known: neither None nor an empty text."""
    values = asdict(found) if isinstance(found, Struct) else found
    return {name: value for name, value in values.items() if value is not None and value != ""}


def as_text(plain: Any) -> str:
    return json.dumps(plain, indent=1, ensure_ascii=False)
