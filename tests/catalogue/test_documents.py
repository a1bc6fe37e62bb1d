"""Documents of others are read or refused, in one sentence and in time that grows as they do."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
import yaml

from vramcast.catalogue.tables import NoDocument, parse_yaml
from vramcast.errors import SourceError
from vramcast.formats.reading import read_config
from vramcast.question.files import read_job

LARGEST: Final = 1 << 20
SECONDS: Final = 20.0  # the worst took minutes
YAML: Final[dict[str, Callable[[int], str]]] = {
    "brackets": lambda n: "[" * n, "braces": lambda n: "{a: " * n, "dashes": lambda n: "- " * n,
    "questions": lambda n: "? " * n, "sixties": lambda n: "a: " + "1:" * n + "1", "anchors": lambda n: "&a " * n,
    "fractions": lambda n: "a: " + "1:" * n + "1.5", "digits": lambda n: "a: " + "9" * n,
    "commas": lambda n: "[" + "a ," * n, "documents": lambda n: "---\n" * n, "tags": lambda n: "!a " * n,
}


@pytest.mark.parametrize("name", YAML)
def test_yaml_of_a_mebibyte_is_refused_at_once(name: str) -> None:
    began = time.process_time()
    with pytest.raises(NoDocument):
        parse_yaml(YAML[name](LARGEST)[:LARGEST])
    assert time.process_time() - began < SECONDS


BOMB: Final = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 40))
CHAIN: Final = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 5000))


@pytest.mark.parametrize("text", [BOMB, BOMB.replace("[", "{<<: [").replace("]", "]}"), CHAIN, "a: &a [*a]"])
def test_aliases_are_read_as_far_as_what_they_repeat_is_a_document(text: str) -> None:
    usual = "a: &a {b: 1}\nc: {<<: *a, d: *a}\n"
    assert parse_yaml(usual) == yaml.safe_load(usual)
    with pytest.raises(NoDocument):
        parse_yaml(text)


@pytest.mark.parametrize(
    "text", ["!!timestamp x", "!!bool zz", "!!int ''", "2001-99-99", "!!float x", "<<: 1", "!!set [1]"]
)
def test_values_that_are_none_of_their_tag_are_refused(text: str) -> None:
    with pytest.raises(NoDocument):
        parse_yaml(text)


@pytest.mark.parametrize("name", ["job.yaml", "job.toml"])
def test_files_of_either_kind_are_refused_with_their_name(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("a: " + "[" * 20_000 if name.endswith("yaml") else "a." * 20_000 + "a = 1")
    with pytest.raises(SourceError, match=name):
        read_job(path)


def test_configurations_are_refused_with_their_name(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("a: " + "[" * 20_000)
    with pytest.raises(SourceError, match="more than 64 levels"):
        read_config(path)
