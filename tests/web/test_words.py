"""Every word that the page asks for by name stands in one of its tables."""

import re
from pathlib import Path
from typing import Final

import vramcast.web
from tests.web.asking import get

PAGE: Final = Path(vramcast.web.__file__).parent / "page"
SAID: Final = re.compile(r'^\s*"([\w.-]+)":\s*\{', re.M)
COMMENT: Final = re.compile(r"/\*.*?\*/", re.S)
ASKED: Final = re.compile(r'\bt\(\s*(?:[^()"]*\?\s*"([\w.-]+)"\s*:\s*)?"([\w.-]+)"')


def test_no_word_is_missing() -> None:
    known = {name for path in (PAGE / "words").glob("*.js") for name in SAID.findall(path.read_text(encoding="utf-8"))}
    assert len(known) > 300
    missing = {
        f"{path.name}: {name}"
        for path in PAGE.rglob("*.js") if path.parent.name != "words"
        for names in ASKED.findall(COMMENT.sub("", path.read_text(encoding="utf-8")))
        for name in names if name and name not in known
    }
    assert not missing


def test_every_fact_of_the_catalogue_has_a_label() -> None:
    known = set(SAID.findall((PAGE / "words" / "tables.js").read_text(encoding="utf-8")))
    rows = [row for name in ("gpus", "instances") for row in get(name).document[name]]
    facts = {one for row in rows for name, value in row.items()
             for one in (name, *(value if isinstance(value, dict) else ()))}
    assert len(facts) > 40 and not {f"fact.{name}" for name in facts} - known
