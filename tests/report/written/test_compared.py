"""What changed a traced peak, from two answers that `--json` wrote."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.asking import vramcast

MIB = 1 << 20


def written(path: Path, widths: dict[str, int], first_line: int, **other: Any) -> str:
    """An answer whose modules hold so many MiB each, from a line of one file on."""
    total = sum(widths.values()) * MIB
    holdings = {
        "module": [{"name": name, "bytes": size * MIB, "blocks": 1} for name, size in widths.items()],
        "line": [{"name": f"train.py:{first_line + number} step", "bytes": size * MIB, "blocks": 1}
                 for number, size in enumerate(widths.values())],
    }
    peak = {f"{level}_bytes": total for level in ("allocated", "reserved", "device")}
    ledger = [{"path": f"weights/{name}", "bytes": size * MIB, "basis": "traced"} for name, size in widths.items()]
    document = {
        "schema": 1, "question": {"target": "train.py", "gpu": "t4"}, "fits": True, "verdict": "fits", "peak": peak,
        "needed_bytes": total, "capacity_bytes": 1000 * MIB, "ranks": [{"role": "all", "ledger": ledger}],
        "holdings": holdings,
    }
    path.write_text(json.dumps(document | other))
    return str(path)


def test_the_module_that_grew_is_named_and_lines_that_only_moved_are_not(tmp_path: Path) -> None:
    before = written(tmp_path / "a.json", {"0": 10, "2": 20}, 5)
    after = written(tmp_path / "b.json", {"0": 10, "2": 50}, 9)
    found = json.loads(vramcast("compare", before, after, "--json").stdout)
    moved = {"before": 20 * MIB, "after": 50 * MIB}
    assert found["change_bytes"] == 30 * MIB and found["entries"] == [
        {"name": "weights/2", **moved}]
    assert found["modules"] == [{"name": "2", **moved}]
    assert found["functions"] == [{"name": "train.py step", "before": 30 * MIB, "after": 60 * MIB}]
    shown = vramcast("compare", before, after, "--lang", "en").stdout
    assert shown.startswith("30.00 MiB -> 60.00 MiB per GPU (+30.00 MiB, +100.0%); 1000.00 MiB usable: fits")


def test_many_layers_that_grew_are_one_row(tmp_path: Path) -> None:
    layers = [f"layers.{number}.mlp" for number in range(20)]
    before = written(tmp_path / "a.json", dict.fromkeys(layers, 1), 5)
    after = written(tmp_path / "b.json", dict.fromkeys(layers, 2), 5)
    found = json.loads(vramcast("compare", before, after, "--json").stdout)
    assert found["modules"] == [{"name": "layers.*.mlp", "before": 20 * MIB, "after": 40 * MIB}]


@pytest.mark.parametrize(("budget", "code"), [
    ("59MiB", 1), ("60MiB", 0), ("+29MiB", 1), ("+30MiB", 0), ("+99%", 1), ("5%", 2), ("+x", 2),
])
def test_a_budget_is_a_size_or_what_may_be_added(budget: str, code: int, tmp_path: Path) -> None:
    before, after = written(tmp_path / "a.json", {"0": 30}, 5), written(tmp_path / "b.json", {"0": 60}, 5)
    assert vramcast("compare", before, after, "--budget", budget).returncode == code


@pytest.mark.parametrize(("text", "told"), [
    ("[]", "no answer to one plan"), ('{"plans": []}', "no answer to one plan"), ("{", "no answer to one plan"),
    ("schema", "an answer of schema 2 cannot be compared"),
])
def test_what_is_no_answer_is_refused(text: str, told: str, tmp_path: Path) -> None:
    good = written(tmp_path / "a.json", {"0": 30}, 5)
    bad = written(tmp_path / "b.json", {"0": 30}, 5, schema=2)
    if text != "schema":
        Path(bad).write_text(text)
    done = vramcast("compare", good, bad)
    assert done.returncode == 5 and told in done.stderr and done.stderr.count("\n") == 1
