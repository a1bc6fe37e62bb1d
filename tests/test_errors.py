"""What an unknown name is answered with."""

import pytest

from vramcast.errors import UnknownName


@pytest.mark.parametrize(("kind", "name", "known", "message"), [
    ("loss", "mes", ["mse", "sum"], "unknown loss 'mes'; did you mean mse?"),
    ("loss", "zzzzz", ["mse", "sum"], "unknown loss 'zzzzz'; known: mse, sum"),
    ("GPU", "zzzzz", ["h100"], "unknown GPU 'zzzzz'; `vramcast gpus` lists all"),
    ("module", "zzzzz", ["layer"] * 100, "unknown module 'zzzzz'"),
])
def test_an_unknown_name_says_what_would_work(kind, name, known, message):
    assert str(UnknownName.of(kind, name, known)) == message
