"""Shell scripts as command lines: what a shell would put in stands in the words, what only a run knows stays open."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.errors import SourceError
from vramcast.question.configs.shell import read_script


def last(text: str) -> list[str]:
    return list(read_script(text, "x.sh").commands[-1])


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ('A="\n --x 1 \\\n --y 2\n"\nrun $A', "run --x 1 --y 2"),
        ("A=(\n --x 1 # one\n --y 2\n)\nA+=(--z)\nrun ${A[@]}", "run --x 1 --y 2 --z"),
        ('A="--x 1"\nA+=" --y 2"\nB="$A --z"\nrun $B', "run --x 1 --y 2 --z"),
        ("N=${N:-4}\nM=$((N * 2 + 1))\nrun --n ${N} --m $M", "run --n 4 --m 9"),
        ('C="torchrun a.py --x 1"\neval $C', "eval torchrun a.py --x 1"),
        ("bash -c 'run --x 1 \\\n --y 2'", "bash -c run --x 1 --y 2"),
        ("X=1 run --x $X > log.txt", "run --x 1"),
        ("A=8\nrun --a $A 2>&1 | tee log", "tee log"),
        ("run --x 1 \\\n  --y $Y \"$@\" # end", "run --x 1 --y ${Y} ${@}"),
        ("--x 1\n--y 2", "--x 1 --y 2"),
        ("cat <<EOF\nit's text\nEOF\nrun --x", "run --x"),
        ("run --x `date` --y $(nproc)", "run --x ${`date`} --y ${(nproc)}"),
    ],
)
def test_words_are_those_that_a_shell_would_pass(script: str, words: str) -> None:
    found = last(script)
    assert " ".join(found) == words


def test_variables_of_a_redirected_command_are_in_the_first_of_the_pipe() -> None:
    script = read_script("A=8\nrun --a $A 2>&1 | tee log", "x.sh")
    assert script.commands == (("run", "--a", "8"), ("tee", "log"))


def test_what_no_command_uses_is_named() -> None:
    script = read_script('A="--x 1"\nB="--y 2"\nrun $A', "x.sh")
    assert script.unused == {"B": ("--y", "2")}


def test_a_variable_set_twice_is_said() -> None:
    script = read_script("TP=2\nif [ $1 ]; then TP=4; fi\nrun --tp $TP", "x.sh")
    assert script.commands[-1] == ("run", "--tp", "4")
    assert script.notes == ("TP is set several times; read as 4",)


@pytest.mark.parametrize("script", ["run 'open", 'run "open', "run ${open", "A=(\n'"])
def test_quotes_that_do_not_end_are_refused(script: str) -> None:
    with pytest.raises(SourceError, match="quot"):
        read_script(script, "x.sh")


def test_a_script_that_grows_without_bound_is_refused() -> None:
    doubling = "A=" + "x" * 1000 + "\n" + 'A="$A$A"\n' * 40
    with pytest.raises(SourceError, match="characters"):
        read_script(doubling, "x.sh")


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab=$(){}[]\"'`\\\n #-;|<>@*1+:", max_size=120))
def test_no_script_leads_to_anything_but_words_or_a_sentence(text: str) -> None:
    try:
        script = read_script(text, "x.sh")
    except SourceError as error:
        assert len(str(error)) < 300
    else:
        assert all(isinstance(word, str) for command in script.commands for word in command)
