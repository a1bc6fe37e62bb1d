"""`python -m tools.snapshots [--check] [--source FORMAT=DIRECTORY] [FORMAT ...]`."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

from tools.snapshots import installed, sources
from tools.snapshots.installed import Found
from tools.snapshots.sources import FORMATS


def rendered(found: Found, *, read: str, before: dict[str, Any]) -> str:
    """The snapshot as text, a name per line; names that earlier ones had are kept as removed."""
    removed = _removed(found, before)
    head = {"package": found.package, "version": found.version, "read": read, "how": found.how}
    lines = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    blocks = [_block("sections", found.sections)] + ([_block("removed", removed)] if removed else [])
    return "{\n" + "\n".join(lines) + "\n" + ",\n".join(blocks) + "\n}\n"


def _removed(found: Found, before: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Section -> names that it has no more: the package says so, an earlier snapshot did, or they vanished now."""
    removed: dict[str, dict[str, str]] = {}
    for section, present in found.sections.items():
        earlier = before.get("removed", {}).get(section, {})
        gone = _vanished(before, section, found) | earlier | found.removed.get(section, {})
        kept = {name: text for name, text in sorted(gone.items()) if name not in present}
        if kept:
            removed[section] = kept
    return removed


def _vanished(before: dict[str, Any], section: str, found: Found) -> dict[str, str]:
    """Names the last snapshot had and this one has not, where the package moved on meanwhile."""
    if not before or before["version"] == found.version or section not in found.sections:
        return {}
    names = before["sections"].get(section, {})
    return {name: f"gone in {found.version}" for name in names if name not in found.sections[section]}


def _block(key: str, table: dict[str, Any]) -> str:
    rows = []
    for section, names in table.items():
        inner = ",\n".join(f"   {json.dumps(name)}: {json.dumps(value)}" for name, value in names.items())
        rows.append(f"  {json.dumps(section)}: {{\n{inner}\n  }}")
    return f" {json.dumps(key)}: {{\n" + ",\n".join(rows) + "\n }"


def found_of(name: str, folders: dict[str, Path]) -> Found | None:
    """What a format's package declares, None where neither package nor source is at hand."""
    if name in sources.READERS:
        return sources.READERS[name](folders[name]) if name in folders else None
    try:
        return installed.READERS[name]()
    except (ImportError, PackageNotFoundError):
        return None


def main() -> int:
    """Write or compare the snapshots."""
    known = (*installed.READERS, *sources.READERS)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("formats", nargs="*", choices=[*known, []], metavar="FORMAT")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--source", action="append", default=[], metavar="FORMAT=DIRECTORY")
    given = parser.parse_args()
    folders = {name: Path(folder) for name, _, folder in (text.partition("=") for text in given.source)}
    failed = False
    for name in given.formats or known:
        path = FORMATS / f"{name}.json"
        before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        found = found_of(name, folders)
        if found is None:
            print(f"{name}: package or source not at hand, left as it is")
            continue
        text = rendered(found, read=datetime.date.today().isoformat(), before=before)
        same = before and json.loads(text) | {"read": ""} == before | {"read": ""}
        failed |= given.check and not same
        print(f"{name}: {found.package} {found.version} {'as it was' if same else 'differs'}")
        if not given.check and not same:
            path.write_text(text, encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
