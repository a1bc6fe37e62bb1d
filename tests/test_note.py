"""A sentence keeps what it was made of, through processes and encoders."""

import pickle
from copy import deepcopy

import msgspec
import pytest

from vramcast.errors import InvalidSpec, Note, VramcastError, joined, listed, text_of
from vramcast.report.chinese import in_chinese

INNER = Note("ep={}: {} has no experts to divide; use ep=1", 8, "gpt2")
OUTER = Note("{}: {}", "job.toml", INNER)


@pytest.mark.parametrize("copied", [deepcopy(OUTER), pickle.loads(pickle.dumps(OUTER))])
def test_a_copy_of_a_note_speaks_chinese(copied: Note) -> None:
    assert copied == OUTER == "job.toml: ep=8: gpt2 has no experts to divide; use ep=1"
    assert in_chinese(copied) == "job.toml：ep=8：gpt2 没有可切分的专家；请用 ep=1"


def test_an_error_keeps_its_note_through_a_process() -> None:
    error: VramcastError = pickle.loads(pickle.dumps(InvalidSpec(INNER.template, 8, "a: b")))
    assert in_chinese(str(error)) == "ep=8：a: b 没有可切分的专家；请用 ep=1"
    assert in_chinese(str(InvalidSpec(OUTER))) == in_chinese(OUTER)


def test_lists_and_several_sentences_are_notes() -> None:
    assert in_chinese(joined("; ", (INNER, INNER))) == "；".join([in_chinese(INNER)] * 2)
    assert in_chinese(listed(("tp", "pp", "ep"), "and")) == "tp、pp 与 ep"
    assert listed(["tp"]) == "tp"


def test_braces_of_a_text_without_values_stay() -> None:
    assert str(InvalidSpec("{'a': 1} is no plan")) == "{'a': 1} is no plan"


def test_encoders_write_the_text() -> None:
    assert msgspec.json.encode([OUTER], enc_hook=text_of) == msgspec.json.encode([str(OUTER)])
    with pytest.raises(NotImplementedError):
        msgspec.json.encode(object(), enc_hook=text_of)
