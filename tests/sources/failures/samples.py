"""Messages in the words of the sources that print them, figures made up: family, wording, text, some of the figures."""

import json
from pathlib import Path
from typing import Any, Final

GIB: Final = 1 << 30
MIB: Final = 1 << 20


def _row(line: str) -> tuple[str, str, str, dict[str, Any]]:
    row = json.loads(line)
    return row["family"], row["wording"], row["text"], row["figures"]


SAMPLES: Final[list[tuple[str, str, str, dict[str, Any]]]] = [
    _row(line) for line in Path(__file__).with_name("samples.jsonl").read_text("utf-8").splitlines()
]
