"""Every word that the page asks for by name stands in one of its tables."""

import re
from pathlib import Path
from typing import Final

import vramcast.web

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
