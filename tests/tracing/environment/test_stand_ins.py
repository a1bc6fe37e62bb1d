"""What stands in for data and tokenizers that a script would fetch."""

import pytest

pytest.importorskip("torch")

from vramcast.tracing.environment.graphs import _documented
from vramcast.tracing.environment.rows import (
    DESCRIPTION,
    _column,
    _few_indices,
    _few_parts,
    _few_skipped,
    _lacks,
    _of_few,
    columns_in,
)


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
    ("rows['sides'] = 1; rows['sides']; {'embeds': embeds.cpu()}; batch['embeds']; row['body']", (), ["body"]),
    ("RLOOTrainer(); rows.map(prompt, remove_columns=['messages', 'problem']); x['problem']", (),
     ["prompts", "solution", "messages", "problem"]),
    ("SFTTrainer(rows)", ("--dataset_field", "query", "response"), ["messages", "response", "query"]),
])
def test_columns_are_those_that_a_script_or_its_command_names(text, arguments, columns):
    assert list(columns_in(text, {*arguments})) == columns


def test_texts_of_rows_differ_and_are_of_one_length(session):
    made, _ = _column(None, "anchor", 16, session.simulation, has_images=False)
    assert len(set(made)) == 16 and {*map(len, made)} == {4 * 1024}


SENTENCES = "SparseEncoderTrainer(model, rows['train']);"


@pytest.mark.parametrize(("text", "subset", "columns"), [
    ("", "qrels", ["query-id", "corpus-id", "score"]), ("", "corpus", ["_id", "text"]),
    ("dict(zip(corpus['passage_id'], corpus['passage']))", "corpus", ["passage_id", "passage"]),
    ("x.remove_columns(['coarse']).rename_column('fine', 'label'), x['label'], x['text']", "",
     ["text", "fine", "coarse"]),
    ("", "", ["anchor", "positive"]), ("dataset['question'], x['answer']", "", ["question", "answer"]),
    ("dataset['id'], dataset.add_column('id', x)", "triplet", ["anchor", "positive", "negative"]),
    ("dataset['sentence1'], dataset['sentence2'], dataset['score']", "pair-class", ["sentence1", "sentence2", "label"]),
])
def test_texts_of_sentence_pairs_are_those_of_the_subset_or_those_read(text, subset, columns):
    assert list(columns_in(SENTENCES + text, set(), subset)) == columns


@pytest.mark.parametrize(("act", "few", "asked", "rows"), [
    ("train_test_split", _few_parts, {"test_size": 10_000}, 4), ("train_test_split", _few_parts, {"test_size": 2}, 2),
    ("train_test_split", _few_parts, {"test_size": 0.25}, 2), ("skip", _few_skipped, {"n": 8}, 8),
    ("skip", _few_skipped, {"n": 3}, 5), ("select", _few_indices, {"indices": range(10, 13)}, 3),
    ("select", _few_indices, {"indices": range(6, 20)}, 2), ("select", _few_indices, {"indices": range(20, 8)}, 8),
    ("select", _few_indices, {"indices": []}, 0),
])
def test_rows_that_stand_in_and_what_is_made_of_them_are_asked_for_no_more_than_there_are(act, few, asked, rows):
    kind = pytest.importorskip("datasets").Dataset
    made = kind.from_dict({"text": [""] * 8})
    made.info.description = DESCRIPTION
    of_few = _of_few(getattr(kind, act), few)
    found = of_few(made.map(lambda row: row).select(range(8)), **asked)
    assert len(found["test"] if act == "train_test_split" else found) == rows
    if act == "select" and 12 in asked["indices"]:
        with pytest.raises(IndexError):
            of_few(kind.from_dict({"text": [""] * 8}), **asked)  # its own rows


def test_a_tokenizer_that_stands_in_pads_starts_and_ends_where_its_family_does():
    pytest.importorskip("transformers")
    from vramcast.tracing.environment.repositories import _model_files, _specials
    from vramcast.tracing.extensions.stand_ins import prepare_torchvision

    prepare_torchvision()  # as every run does: transformers' processors import it
    assert _specials({"model_type": "bert", "vocab_size": 30522})["pad"][1] == 0
    gpt = _specials({"model_type": "gpt2", "vocab_size": 50257, "eos_token_id": 50256})
    assert "pad" not in gpt and gpt["bos"][1] == 50256
    for family, longest in (("roberta", 512), ("bert", 514)):  # one has positions after that of padding alone
        files = _model_files({"model_type": family, "max_position_embeddings": 514, "pad_token_id": 1}, "of/a-model")
        assert files["tokenizer_config.json"].args[0]["model_max_length"] == longest


@pytest.mark.parametrize(("name", "base"), [
    ("trl-lib/pythia-1b-deduped-tldr-rm", "eleutherai/pythia-1b-deduped"), ("me/pythia-1b-deduped-sft-4bit", ""),
    ("me/pythia-1b-deduped-sft-awq", ""), ("me/pythia-1b-deduped-long", ""), ("me/model-sft", ""),
])
def test_a_network_that_is_named_after_the_one_it_was_trained_from_has_its_config(name, base):
    pytest.importorskip("transformers")
    from vramcast.tracing.environment.repositories import base_of

    assert base_of(name) == base
