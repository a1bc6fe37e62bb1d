"""Shell scripts as command lines: what a shell would put in stands in the words, what only a run knows stays open."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.errors import SourceError
from vramcast.formats.shell import read_script


def last(text: str) -> list[str]:
    return list(read_script(text, "x.sh").commands[-1])


@pytest.mark.parametrize(("script", "words"), [
    ('A="\n --x 1 \\\n --y 2\n"\nrun $A', "run --x 1 --y 2"),
    ("A=(\n --x 1 # one\n --y 2\n)\nA+=(--z)\nrun ${A[@]}", "run --x 1 --y 2 --z"),
    ("A=()\nA=(--z)\nrun ${A[@]}", "run --z"),
    ('A="--x 1"\nA+=" --y 2"\nB="$A --z"\nrun $B', "run --x 1 --y 2 --z"),
    ("N=${N:-4}\nM=$((N * 2 + 1))\nrun --n ${N} --m $M", "run --n 4 --m 9"),
    ('C="torchrun a.py --x 1"\neval $C', "torchrun a.py --x 1"),
    ("bash -c 'run --x 1 \\\n --y 2'", "run --x 1 --y 2"),
    ("X=1 run --x $X > log.txt", "run --x 1"),
    ("A=8\nrun --a $A 2>&1 | tee log", "tee log"),
    ("run --x 1 \\\n  --y $Y \"$@\" # end", "run --x 1 --y ${Y}"),
    ("set -- --x 1\nrun \"$@\" ${*}", "run --x 1 --x 1"),
    ("start() { run \"$@\"; }\nstart --x 1", "run --x 1"),
    ("start() {\n  run \"$@\"\n}", "run ${@}"),  # of a function
    ("if [ -f x ]; then set -- --x 1; fi\nrun \"$@\"", "run ${@}"),
    ("--x 1\n--y 2", "--x 1 --y 2"),
    ("cat <<EOF\nit's text\nEOF\nrun --x", "run --x"),
    ("run --x `date` --y $(nproc)", "run --x ${`date`} --y ${(nproc)}"),
])
def test_words_are_those_that_a_shell_would_pass(script: str, words: str) -> None:
    found = last(script)
    assert " ".join(found) == words


@pytest.mark.parametrize(("script", "words"), [
    ("TP=2\nif [ $1 ]; then TP=4; fi\nrun --tp $TP", "run --tp 2"),  # as it runs without arguments
    ('D=fp8\nif [[ "$D" == "fp8" ]]; then\nA=(--a 1)\nelse\nA=(--b 2)\nfi\nrun ${A[@]}', "run --a 1"),
    ("N=16\nif [ $N -gt 8 ]; then TP=8; elif [ $N -gt 4 ]; then TP=4; else TP=1; fi\nrun --tp $TP", "run --tp 8"),
    ("if [ -z ${TP} ]; then TP=2; fi\nrun --tp $TP", "run --tp 2"),
    ("[ -z $X ] && TP=2\n[ -n \"$X\" ] && TP=4\nrun --tp $TP", "run --tp 2"),
    ("T=${3:-MOCK}\nif [[ $T == MOCK ]] || [[ -z $T ]]; then V=1; else V=2; fi\nrun --v $V", "run --v 1"),
    ("TP=1\nif [ -f x ]; then TP=8; fi\nrun --tp $TP", "run --tp ${TP}"),
    ("case $(hostname) in\n a) TP=1;;\n b) TP=2;;\nesac\nrun --tp $TP", "run --tp ${TP}"),
    ("TP=1\nwhile [[ $# -gt 0 ]]; do case $1 in --tp) TP=$2;; esac; shift; done\nrun --tp $TP", "run --tp 1"),
    ("for tp in 1 2; do run --tp $tp; done", "run --tp 2"),
    (": ${TP:=4}\nrun --tp $TP", "run --tp 4"),
    ("D=${D:-$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)}\n"
     'if [ "$D" = npu ]; then TP=1; else TP=8; fi\nrun --tp $TP', "run --tp 8"),  # of which none of ours is one
])
def test_branches_are_taken_as_the_script_decides_them(script: str, words: str) -> None:
    commands = [command for command in read_script(script, "x.sh").commands if command[0] == "run"]
    assert " ".join(commands[-1]) == words


@pytest.mark.parametrize("line", ['$env:A = "4"', "$Env:A=4", "set A=4", "setenv A 4", '  set "A=4"', "SET A=4\r"])
def test_variables_of_other_shells_are_those_of_the_environment(line: str) -> None:
    script = read_script(f"{line}\nrun --n $A\n", "x.ps1")
    assert (script.variables["A"], " ".join(script.commands[-1])) == ("4", "run --n 4")


@pytest.mark.parametrize(("script", "loose"), [
    ("run --x 1 \\\n # --y 2 \\\n --z 3", ("--z",)), ("run --x 1 \n--y 2", ("--y",)), ("--x 1\n--y 2", ()),
    ("run --x 1 \\\n --y 2", ()), ("run --x 1 \\ # why\n --y 2", ("--y",)), ("run --x 1 \\ \n -c 2", ("-c",)),
    ("run a.x=1 \\  # why\n a.y=2 \\\n b=3", ("a.y=2",)),
])
def test_arguments_that_a_shell_would_not_pass_are_told_apart(script: str, loose: tuple[str, ...]) -> None:
    found = read_script(script, "x.sh")
    assert (found.loose, " " in found.commands[-1]) == (loose, False)


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
