"""Documents of others are read or refused, in one sentence and in time that grows as they do."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.catalogue.documents import NoDocument, parse_toml, parse_yaml
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
TOML: Final[dict[str, Callable[[int], str]]] = {
    "dotted": lambda n: "a." * n + "a=1", "header": lambda n: "[" + "a." * n + "a]", "digits": lambda n: "a=" + "9" * n,
    "brackets": lambda n: "a=" + "[" * n, "inline": lambda n: "a=" + "{a=" * n,
    "dotted inside": lambda n: 'x={y="a", ' + "b." * n + "b=1}", "spaced": lambda n: "a . " * n + "a=1",
    "quoted": lambda n: '"a".' * n + "a=1", "unclosed": lambda n: 'a = """' + "b." * n,
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


@pytest.mark.parametrize("name", TOML)
def test_toml_of_a_mebibyte_is_refused_at_once(name: str) -> None:
    began = time.process_time()
    with pytest.raises(NoDocument):
        parse_toml(TOML[name](LARGEST)[: LARGEST - 2] + "=1")
    assert time.process_time() - began < SECONDS


@pytest.mark.parametrize(
    "text", ["!!timestamp x", "!!bool zz", "!!int ''", "2001-99-99", "!!float x", "<<: 1", "!!set [1]"]
)
def test_values_that_are_none_of_their_tag_are_refused(text: str) -> None:
    with pytest.raises(NoDocument):
        parse_yaml(text)


def test_settings_as_people_write_them_are_read() -> None:
    text = "path: ./" + "folder/" * 40 + "\nrate: 1.5e-05\nlist: [1, 2]\nat: 12:30\nkeep: '" + "9" * 100 + "'\n"
    assert parse_yaml(text) == yaml.safe_load(text)
    text = 'path = "' + "a." * 200 + '"\n[a.b.c]\nx = """' + "a.b." * 100 + '"""\ny = 1.5 # ' + "a." * 100 + "\n"
    assert parse_toml(text) == tomllib.loads(text)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(['"', "'", '"""', "a", ".", "=", "1", "\n", "[", "]", "{", "}", ",", " ", "#", "\\"])))
def test_any_text_gives_what_the_library_reads_or_one_error(pieces: list[str]) -> None:
    text = "".join(pieces)
    for ours, theirs in ((parse_toml, tomllib.loads), (parse_yaml, yaml.safe_load)):
        try:
            found = ours(text)
        except NoDocument:
            continue
        assert repr(found) == repr(theirs(text))  # type: ignore[operator]


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
