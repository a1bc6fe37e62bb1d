"""What a release adds to its sdist: `python -m tools.release dist/vramcast-1.0.0.tar.gz OUT`.

Writes a conda recipe (recipe.yaml, format of rattler-build and conda-forge) and a Homebrew formula (vramcast.rb) with
the names, versions and addresses that stand in the sdist's metadata; the sdist itself is taken from the release on
GitHub. The formula pins what pip would install today, from the sdists that it would download.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Final, NamedTuple

import yaml

PYTHON: Final = "3.13"
"""What Homebrew builds with."""
CHECK: Final = "vramcast train llama-3.2-1b --gpus h100"
"""A command that answers without files and without a network."""
REQUIREMENT: Final = re.compile(r"(?P<name>[\w.-]+)(?P<bound>[^;]*)$")
"""A requirement of every installation: those of extras have a marker behind a semicolon."""


class Source(NamedTuple):
    """An sdist that can be downloaded."""

    name: str
    url: str
    sha256: str


def metadata(sdist: Path) -> Message:
    """PKG-INFO of an sdist."""
    with tarfile.open(sdist) as archive:
        file = archive.extractfile(f"{sdist.name.removesuffix('.tar.gz')}/PKG-INFO")
        assert file is not None
        return message_from_bytes(file.read())


def source_of(sdist: Path, about: Message) -> Source:
    """Where the release has it."""
    url = f"{addresses(about)['Source']}/releases/download/v{about['Version']}/{sdist.name}"
    return Source(about["Name"], url, hashlib.sha256(sdist.read_bytes()).hexdigest())


def addresses(about: Message) -> dict[str, str]:
    """Project-URL entries by their labels."""
    pairs = (tuple(line.split(", ", 1)) for line in about.get_all("Project-URL", []))
    return dict(pairs)


def requirements(about: Message) -> list[str]:
    """What every installation needs, as conda writes it: "click >=8.1"."""
    found = (REQUIREMENT.match(line) for line in about.get_all("Requires-Dist", []) if ";" not in line)
    return [f"{one['name']} {one['bound'].strip()}".strip() for one in found if one is not None]


def recipe(source: Source, about: Message) -> str:
    """The conda recipe."""
    python, urls = about["Requires-Python"], addresses(about)
    document = {
        "schema_version": 1,
        "package": {"name": source.name, "version": about["Version"]},
        "source": {"url": source.url, "sha256": source.sha256},
        "build": {
            "number": 0, "noarch": "python",
            "script": "${{ PYTHON }} -m pip install . -vv --no-deps --no-build-isolation",
            "python": {"entry_points": ["vramcast = vramcast.cli.main:process"]},
        },
        "requirements": {
            "host": [f"python {python}", "pip", "hatchling", "hatch-fancy-pypi-readme"],
            "run": [f"python {python}", *requirements(about)],
        },
        "tests": [{"python": {"imports": ["vramcast"], "pip_check": True}}, {"script": [CHECK]}],
        "about": {
            "homepage": urls["Homepage"], "repository": urls["Source"], "documentation": urls["Documentation"],
            "license": about["License-Expression"], "license_file": "LICENSE", "summary": about["Summary"],
        },
    }
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)


def formula(source: Source, about: Message, resources: Iterable[Source]) -> str:
    """The Homebrew formula."""
    blocks = "\n".join(
        f'  resource "{one.name}" do\n    url "{one.url}"\n    sha256 "{one.sha256}"\n  end\n'
        for one in sorted(resources))
    return f'''class Vramcast < Formula
  include Language::Python::Virtualenv

  desc "{about["Summary"]}"
  homepage "{addresses(about)["Homepage"]}"
  url "{source.url}"
  sha256 "{source.sha256}"
  license "{about["License-Expression"]}"

  depends_on "libyaml"
  depends_on "python@{PYTHON}"

{blocks}
  def install
    virtualenv_install_with_resources
    generate_completions_from_executable(bin/"vramcast", "completion")
  end

  test do
    assert_match "fits", shell_output("#{{bin}}/{CHECK}")
  end
end
'''


def pinned(sdist: Path) -> list[Source]:
    """What pip would install beside it today, as sdists."""
    words = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-binary", ":all:"]
    done = subprocess.run([*words, "--quiet", "--report", "-", str(sdist)], stdout=subprocess.PIPE, check=True)
    found = (one for one in json.loads(done.stdout)["install"] if not one["is_direct"])
    return [Source(one["metadata"]["name"].lower(), one["download_info"]["url"],
                   one["download_info"]["archive_info"]["hashes"]["sha256"]) for one in found]


def write(sdist: Path, out: Path) -> None:
    """Both files."""
    about = metadata(sdist)
    source = source_of(sdist, about)
    resources = pinned(sdist)
    out.mkdir(parents=True, exist_ok=True)
    (out / "recipe.yaml").write_text(recipe(source, about), encoding="utf-8")
    (out / f"{source.name}.rb").write_text(formula(source, about, resources), encoding="utf-8")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sdist", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    write(given.sdist, given.out)


if __name__ == "__main__":
    main()
