"""What a sweep's file asks, and what it is told when it asks nonsense."""

import itertools
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.errors import InvalidSpec, SourceError, UnknownName, VramcastError
from vramcast.question.option import table_of
from vramcast.sweeps.results import TYPES
from vramcast.sweeps.spec import COMMANDS, KINDS, read_sweep

TRAIN = {"command": "train", "gpus": "8xh100-sxm-80gb"}


def asked(tables: dict[str, Any], **defaults: Any) -> list[dict[str, Any]]:
    read = read_sweep(tables, defaults=defaults)
    found = list(read.questions())
    assert read.size == len(found)
    return found


def test_the_last_axis_turns_fastest_and_defaults_are_said_by_every_question() -> None:
    found = asked({"defaults": TRAIN, "axes": {"model": ["a", "b"], "micro-batch": [1, 2]}})
    assert [(q["model"], q["micro-batch"]) for q in found] == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]
    assert all(q["gpus"] == TRAIN["gpus"] for q in found)


def test_zipped_lists_walk_together_as_one_axis() -> None:
    found = asked({"defaults": TRAIN, "axes": {"model": ["a"]}, "zip": [{"tp": [1, 2], "micro-batch": [4, 2]}]})
    assert [(q["tp"], q["micro-batch"]) for q in found] == [(1, 4), (2, 2)]


def test_an_exclusion_leaves_out_any_of_its_values_however_they_are_written() -> None:
    axes = {"model": ["a", "b"], "seq-len": ["4k", "8k", "16k"]}
    found = asked({"defaults": TRAIN, "axes": axes, "exclude": [{"model": "a", "seq-len": [8192, "16k"]}]})
    assert [(q["model"], q["seq-len"]) for q in found] == [("a", "4k"), ("b", "4k"), ("b", "8k"), ("b", "16k")]


def test_parts_and_written_rows_follow_one_another_on_top_of_shared_defaults() -> None:
    found = asked({
        "defaults": {"model": "a"},
        "part": [
            {"defaults": {"command": "train", "seq-len": 1024}, "axes": {"gpus": ["h100", "t4"]}},
            {"defaults": {"command": "serve"}, "rows": [{"gpus": "l4", "context": 4096}]},
        ],
    })
    assert [(q["command"], q["gpus"]) for q in found] == [("train", "h100"), ("train", "t4"), ("serve", "l4")]


@pytest.mark.parametrize(("tables", "error", "says"), [
    ({"axes": {"model": ["a"]}}, InvalidSpec, "which command?"),
    ({"defaults": TRAIN, "axes": {"micro-bach": [1]}}, UnknownName, "did you mean micro-batch"),
    ({"defaults": TRAIN, "axes": {"context": [1]}}, UnknownName, "unknown option 'context'"),
    ({"defaults": {"command": "trian"}, "axes": {"model": ["a"]}}, UnknownName, "did you mean train"),
    ({"defaults": TRAIN, "axes": {"model": []}}, InvalidSpec, "axis model is empty"),
    ({"defaults": TRAIN, "axes": {"model": "a"}}, InvalidSpec, "must be a list"),
    ({"defaults": TRAIN}, InvalidSpec, "has no questions"),
    ({"defaults": TRAIN, "axis": {"model": ["a"]}}, UnknownName, "did you mean axes"),
    ({"defaults": TRAIN, "axes": {"tp": [1]}, "zip": [{"tp": [1], "pp": [1]}]}, InvalidSpec, "tp is an axis twice"),
    ({"defaults": TRAIN, "zip": [{"tp": [1, 2], "pp": [1]}]}, InvalidSpec, "equally long; these are tp 2, pp 1"),
    ({"defaults": TRAIN, "axes": {"model": ["a"]}, "exclude": [{"model": "a"}]}, InvalidSpec, "leave nothing of 1"),
    ({"defaults": TRAIN, "axes": {"model": ["a"]}, "exclude": [{"model": "b"}]}, InvalidSpec, "true of no question"),
    ({"defaults": TRAIN, "axes": {"model": ["a"]}, "exclude": [{"tp": 1}]}, InvalidSpec, "which no question says"),
    ({"defaults": TRAIN, "axes": {"model": ["a"]}, "exclude": [{}]}, InvalidSpec, "leave out everything"),
    ({"part": [{"axes": {"model": ["a"]}}], "axes": {}}, InvalidSpec, "only [defaults]"),
    ({"defaults": TRAIN, "axes": {"seq-len": list(range(1, 1002)), "tp": list(range(1, 1002))}}, InvalidSpec,
     "1,002,001 questions, more than 1,000,000; leave out values, or allow it with --limit 1002001"),
])
def test_nonsense_gets_one_sentence_before_anything_is_computed(
    tables: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error) as caught:
        read_sweep(tables, defaults={})
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


ROWS = {
    "csv": "command,model,gpus,compile,tp\ntrain,a,h100,true,\nserve,b,l4,,2\n",
    "jsonl": '{"command":"train","model":"a","gpus":"h100","compile":true}\n\n'
             '{"command":"serve","model":"b","gpus":"l4","tp":"2","compile":null}\n',
}


@pytest.mark.parametrize("ending", ROWS)
def test_rows_of_csv_and_jsonl_are_questions_and_empty_cells_say_nothing(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"questions.{ending}"
    path.write_text("﻿" + ROWS[ending], encoding="utf-8")
    read = read_sweep(path, defaults={"seq-len": 512})
    assert list(read.questions()) == [
        {"seq-len": 512, "command": "train", "model": "a", "gpus": "h100", "compile": True},
        {"seq-len": 512, "command": "serve", "model": "b", "gpus": "l4", "tp": "2"},
    ]
    assert read.size == 2


@pytest.mark.parametrize(("name", "text", "says"), [
    ("q.csv", "command,modle\ntrain,a\n", "line 1: unknown option 'modle'; did you mean model, "),
    ("q.csv", "command,model\ntrain,a\ntrain\n", "line 3: 1 cells for 2 columns"),
    ("q.csv", "command,command\n", "stands twice"),
    ("q.csv", "command,model\n", "has no questions"),
    ("q.csv", "model\na\n", "which command?"),
    ("q.csv", 'command,model\ntrain,"a\n', "line 2"),
    ("q.jsonl", '{"command": "train"\n', "line 1: not JSON"),
    ("q.jsonl", "[1]\n", "line 1: a question is an object"),
    ("q.toml", "[axes\n", "not TOML"),
    ("q.yaml", "a: [\n", "not YAML"),
    ("q.yaml", "- 1\n", "made of tables"),
    ("q.txt", "", "a sweep is a .toml, .yaml, .yml, .csv, .jsonl, .ndjson file"),
])
def test_a_file_with_a_defect_is_refused_with_its_place(tmp_path: Path, name: str, text: str, says: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(VramcastError) as caught:
        read_sweep(path, defaults={})
    assert says in str(caught.value)
    assert name in str(caught.value)


def test_a_missing_file_and_a_binary_one_are_refused(tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_bytes(b"\xff\xfe\x00")
    for name, says in (("q.csv", "not a text file"), ("none.csv", "No such file"), ("none.toml", "No such file")):
        with pytest.raises(SourceError, match=says):
            read_sweep(tmp_path / name, defaults={})


JUNK = st.recursive(
    st.sampled_from([None, True, 0, -1, 4096, 1.5, "", "8k", "train", "serve", "a\nb", "\0"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["defaults", "axes", "zip", "exclude", "rows", "part", "command", "model", "tp", "x"]),
        inner, max_size=3,
    ), max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["defaults", "axes", "zip", "exclude", "rows", "part", "z"]), JUNK, max_size=4))
def test_any_tables_are_read_or_refused_in_one_sentence(tables: dict[str, Any]) -> None:
    try:
        read = read_sweep(tables, defaults={"command": "train"})
    except VramcastError as error:
        assert "\n" not in str(error)
    else:
        assert len(list(read.questions())) == read.size > 0


def test_a_large_product_is_walked_without_being_held() -> None:
    axes = {"seq-len": list(range(1, 501)), "micro-batch": list(range(1, 501))}
    tracemalloc.start()
    try:
        read = read_sweep({"defaults": TRAIN, "axes": axes}, defaults={})
        assert sum(1 for _ in itertools.islice(read.questions(), 250_000)) == 250_000
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_name_means_the_same_kind_of_column_for_every_command() -> None:
    for command in COMMANDS:
        for name, option in table_of(command).items():
            assert TYPES.get(option.kind, str) is TYPES.get(KINDS[name], str), name


def test_names_may_be_spelled_as_python_spells_them(tmp_path: Path) -> None:
    axes = {"seq_len": [1024, 2048], "micro_batch": [1, 2]}
    excluded = {"seq_len": 2048, "micro-batch": 2}
    found = asked({"defaults": TRAIN | {"model": "a"}, "axes": axes, "exclude": [excluded]})
    assert [(q["seq-len"], q["micro-batch"]) for q in found] == [(1024, 1), (1024, 2), (2048, 1)]
    path = tmp_path / "rows.csv"
    path.write_text("command,model,gpus,seq_len\ntrain,a,t4,4k\n")
    assert list(read_sweep(path, defaults={"micro_batch": 2}).questions()) == [
        {"command": "train", "model": "a", "gpus": "t4", "seq-len": "4k", "micro-batch": 2}
    ]


def test_both_spellings_of_a_name_are_refused() -> None:
    with pytest.raises(InvalidSpec, match="seq-len and seq_len are one option"):
        asked({"defaults": TRAIN, "axes": {"seq-len": [1], "seq_len": [2], "model": ["a"]}})


def test_of_several_unknown_names_the_first_of_the_file_is_said() -> None:
    for names in itertools.permutations(["sequence-length", "batches", "models"]):
        with pytest.raises(UnknownName, match=f"unknown option '{names[0]}'"):
            asked({"defaults": TRAIN, "axes": {key: [1] for key in names}})
