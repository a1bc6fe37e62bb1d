"""What a release is made of says the same everywhere, and its recipe and formula come from the sdist's metadata."""

import io
import re
import shlex
import tarfile
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.cli.asking import vramcast
from tools import release
from vramcast.version import __version__

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CI = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))["jobs"]


@pytest.fixture
def sdist(tmp_path: Path) -> Path:
    """An sdist, as far as its metadata goes."""
    lines = ["Metadata-Version: 2.4", "Name: vramcast", f"Version: {__version__}", f"Summary: {PROJECT['description']}",
             *(f"Project-URL: {label}, {url}" for label, url in PROJECT["urls"].items()),
             f"License-Expression: {PROJECT['license']}", f"Requires-Python: {PROJECT['requires-python']}",
             *(f"Requires-Dist: {one}" for one in PROJECT["dependencies"]), "Requires-Dist: numba; extra == 'fast'"]
    path = tmp_path / f"vramcast-{__version__}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        data = "\n".join(lines).encode()
        entry = tarfile.TarInfo(f"vramcast-{__version__}/PKG-INFO")
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    return path


def test_recipe_and_formula_name_what_an_installation_needs(
    sdist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [release.Source(name, f"https://x.y/{name}.tar.gz", digit * 64) for name, digit in
               (("rich", "1"), ("click", "2"))]
    monkeypatch.setattr(release, "pinned", lambda _: sources)
    release.write(sdist, tmp_path / "out")
    recipe = yaml.safe_load((tmp_path / "out" / "recipe.yaml").read_text())
    assert recipe["package"] == {"name": "vramcast", "version": __version__}
    needed = [re.sub(r"(?=>=)", " ", one) for one in PROJECT["dependencies"]]
    assert recipe["requirements"]["run"] == [f"python {PROJECT['requires-python']}", *needed]
    formula = (tmp_path / "out" / "vramcast.rb").read_text()
    assert re.findall(r'resource "(\w+)"', formula) == ["click", "rich"] and f'sha256 "{"2" * 64}"' in formula
    assert recipe["source"]["sha256"] in formula and recipe["source"]["url"] in formula


def test_what_packages_are_tried_with_fits() -> None:
    commands = [release.CHECK, *(step["run"] for step in CI["wheel"]["steps"] if "vramcast " in step.get("run", ""))]
    assert len(commands) == 3
    for command in commands:
        done = vramcast(*shlex.split(command)[1:])
        assert done.returncode == 0 and "fits" in done.stdout, command


def test_every_python_that_is_named_is_tried_and_every_address_is_one() -> None:
    named = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", text)]
    assert CI["wheel"]["strategy"]["matrix"]["python"] == named
    assert PROJECT["requires-python"] == f">={named[0]}"
    home = PROJECT["urls"]["Homepage"]
    for place in ("docs/integrations.md", "examples/pre-commit/.pre-commit-config.yaml",
                  "packaging/space/README.md", "pyproject.toml"):
        found = set(re.findall(r"https://github\.com/[\w-]+/[\w-]+", (ROOT / place).read_text(encoding="utf-8")))
        assert found == {home}, place
    hook = (ROOT / "examples/pre-commit/.pre-commit-config.yaml").read_text(encoding="utf-8")
    assert f"rev: v{__version__}" in hook


def test_the_space_serves_the_static_page() -> None:
    _, head, _ = (ROOT / "packaging/space/README.md").read_text(encoding="utf-8").split("---\n", 2)
    about = yaml.safe_load(head)
    assert (about["sdk"], about["app_file"]) == ("static", "index.html")
    assert len(about["short_description"]) <= 60  # the Hub refuses longer ones
