"""What stands in for data and tokenizers that a script would fetch."""

import pytest

pytest.importorskip("torch")

from vramcast.tracing.environment.graphs import _documented
from vramcast.tracing.environment.rows import _lacks, _split, columns_in


class Citations:
    """Papers.

    .. list-table::
        :header-rows: 1

        * - Name
          - #nodes
          - #edges
          - #features
          - #classes
        * - Cora
          - 2,708
          - 10,556
          - 1,433
          - 7
        * - CiteSeer
          - 3,327
          - 9,104
          - 3,703
          - 6
    """


class Untold:
    """No table."""


@pytest.mark.parametrize(("kind", "name", "nodes"), [
    (Citations, "CiteSeer", "3,327"), (Citations, "cora", "2,708"), (Citations, "PubMed", None), (Untold, "", None),
])
def test_sizes_of_a_graph_are_those_of_its_own_row_of_the_documentation(kind, name, nodes):
    assert (_documented(kind, name) or {}).get("#nodes") == nodes


@pytest.mark.parametrize(("files", "lacks"), [
    ({"train": "no_such_file.json"}, True), (["/no/such/file.csv"], True), (None, False), (__file__, False),
    ("https://example.org/x.json", False), ("data/*.json", False),
])
def test_local_files_of_rows_that_are_not_there_are_noticed(files, lacks):
    assert _lacks(files) is lacks


@pytest.mark.parametrize(("text", "arguments", "columns"), [
    ("tokenizer(samples['quote']); model(batch[\"input_ids\"]); config['quiet']; row['body']", (), ["quote", "body"]),
    ("RLOOTrainer(); rows.map(prompt, remove_columns=['messages', 'problem']); x['problem']", (),
     ["prompts", "solution", "messages", "problem"]),
    ("SFTTrainer(rows)", ("--dataset_field", "query", "response"), ["messages", "response", "query"]),
])
def test_columns_are_those_that_a_script_or_its_command_names(text, arguments, columns):
    assert list(columns_in(text, {*arguments})) == columns


@pytest.mark.parametrize(("test_size", "rows"), [(10_000, 4), (2, 2), (0.25, 2)])
def test_a_part_of_more_rows_than_stand_in_is_half_of_them(test_size, rows):
    library = pytest.importorskip("datasets")

    class Rows(library.Dataset):
        train_test_split = _split

    made = library.Dataset.from_dict({"text": [""] * 8})
    made.__class__ = Rows
    assert len(made.train_test_split(test_size=test_size)["test"]) == rows


def test_a_tokenizer_that_stands_in_pads_where_its_family_does():
    pytest.importorskip("transformers")
    from vramcast.tracing.environment.repositories import _specials

    assert _specials({"model_type": "bert", "vocab_size": 30522})["pad"][1] == 0
    assert "pad" not in _specials({"model_type": "gpt2", "vocab_size": 50257, "eos_token_id": 50256})
