"""What a visitor may name: no file, no address, no code, whatever the option."""

import builtins
import io
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.web.asking import SERVE, TRAIN, post, refused
from vramcast.question.option import TABLES, Option, table_of
from vramcast.question.options import CONFIG_OPTIONS, Kind
from vramcast.web import visitor
from vramcast.web.exchange import Sources
from vramcast.web.visitor import FILES, LISTS, TEXTS, hub_of

QUESTIONS: dict[str, dict[str, Any]] = {
    "train": TRAIN,
    "serve": SERVE,
    "plan/train": {"model": "llama-3.2-1b", "on": "l4", "techniques": True, "engine": "pytorch"},
    "plan/serve": {"model": "qwen3-0.6b", "on": "l4", "concurrency": 1, "context": 1024},
}
EVERY_OPTION = [
    (path, name) for path, question in QUESTIONS.items()
    for name in dict.fromkeys((*question, *table_of(path.replace("/", " "))))
]
BAIT = "bait.toml"


@pytest.fixture
def no_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with a file that must not be opened, and no network."""
    bait = tmp_path / BAIT
    bait.write_text('[clusters.mybox]\ngpu = "h100-sxm-80gb"\ngpus_per_node = 8\n')
    monkeypatch.chdir(tmp_path)
    real_open, real_io, real_os = builtins.open, io.open, os.open

    def watched(real: Any) -> Any:
        def opened(file: Any, *rest: Any, **more: Any) -> Any:
            assert BAIT not in str(file) and "passwd" not in str(file), f"{file} was opened"
            return real(file, *rest, **more)

        return opened

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the network was asked")

    for place, name, real in ((builtins, "open", real_open), (io, "open", real_io), (os, "open", real_os)):
        monkeypatch.setattr(place, name, watched(real))
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return bait


@pytest.mark.parametrize(("path", "name"), EVERY_OPTION)
def test_no_option_opens_a_file_or_asks_the_network(path: str, name: str, no_way_out: Path) -> None:
    question = QUESTIONS[path]
    for text in (str(no_way_out), BAIT, "/etc/passwd", "http://127.0.0.1:9/x", "file:///etc/passwd", "os:system"):
        for value in (text, [text], f"x={text}"):
            said = post(path, question | {name: value})
            assert said.status in (200, 422), said
            assert "mybox" not in str(said.document)


def test_every_option_of_free_text_is_allowed_or_refused_on_purpose() -> None:
    texts = {
        name
        for table in (table_of(path.replace("/", " ")) for path in QUESTIONS)
        for name, option in table.items()
        if option.kind is Kind.TEXT or (option.kind is Kind.NAMES and option.section != "axis")
    }
    assert texts <= TEXTS | LISTS | set(FILES)
    assert set(FILES) <= texts | set(CONFIG_OPTIONS)  # how a file is read is not for visitors either


@pytest.mark.parametrize("text", [
    "/etc/passwd", "./model", "../x/config.json", "config.json", "model.gguf", "run.sh", "C:\\models\\x", "a/b/c",
    "https://huggingface.co/Qwen/Qwen3-8B", "http://169.254.169.254/latest/meta-data", "file:///etc/passwd", "a\0b/c",
])
@pytest.mark.parametrize("hubs", [frozenset(), frozenset(("huggingface",))])
def test_models_by_path_or_address_are_refused(text: str, hubs: frozenset[str], no_way_out: Path) -> None:
    for path, question in (("train", TRAIN), ("serve", SERVE)):
        assert "names no file" in refused(path, question | {"model": text}, sources=Sources(hubs))


def test_a_draft_model_is_found_as_the_model_is(no_way_out: Path) -> None:
    assert "names no file" in refused("serve", SERVE | {"draft": "/etc/passwd"})
    assert "--hub huggingface" in refused("serve", SERVE | {"draft": "Somebody/Model"})


@pytest.mark.parametrize(("text", "named"), [
    ("Qwen/Qwen3-8B", "huggingface"), ("hf:Qwen/Qwen3-8B@main", "huggingface"),
    ("modelscope:Qwen/Qwen3-8B", "modelscope"),
    *((text, None) for text in ("Qwen/Qwen3-8B@../..", "Qwen/Qwen3-8B@.git", "../Qwen", "qwen3-8b", "a/b/c",
                                "https://huggingface.co/Qwen/Qwen3-8B")),
])
def test_ids_of_hubs_are_told_from_paths(text: str, named: str | None) -> None:
    assert hub_of(text) == named


def test_an_option_that_becomes_a_file_tomorrow_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"notes": Option("job", "notes", Kind.TEXT, "a file of notes")}
    monkeypatch.setitem(TABLES, "train", lambda: table)
    assert not visitor.may_be_asked("notes", table)
    with pytest.raises(Exception, match="cannot be asked from the web"):
        visitor.options_of({"notes": "x"}, "train")
