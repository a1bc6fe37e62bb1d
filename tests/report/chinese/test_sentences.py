"""Chinese output has no English sentence in it: every one that the source holds has its Chinese form."""

from __future__ import annotations

import re
import time
from string import Formatter

import pytest

from tests.report.chinese.collected import SENTENCE, Sentence, refusals, remarks, words_in
from vramcast.report.chinese import SUBJECTS, catalogue, in_chinese, name_in_chinese, template, templates

ENGLISH = re.compile(r"(?<![\w/.`'-])[A-Za-z][a-z']+(?:,? [a-z][a-z']+){2,}")
"""Three words in a row that are no name."""
COMMANDS = re.compile(r"`[^`]*`|pip install [\w, ]+|npm \w+ [\w@]+|zstd -d|truth/[^ ]*")

READ_BY_US = (
    "allocator/caching.py", "allocator/failure.py", "allocator/heap.py", "allocator/search.py",
    "allocator/views.py", "catalogue/contexts.py", "catalogue/cudnn.py", "catalogue/gpus.py",
    "catalogue/instances.py", "catalogue/index.py", "catalogue/models.py", "catalogue/multiprocessors.py",
    "catalogue/pipelines.py", "catalogue/prices.py", "catalogue/tables.py", "sources/prices/",
)
"""Files whose sentences no visitor reads: defects of the catalogue's own tables and of a simulation driven by hand, and
replies of price lists to an update."""

IN_FILES = {
    "Up to {} share a machine, each on cards of its own:", "{} is built by the training script, not by DeepSpeed",
    "{}: model_name_or_path must be a checkpoint already quantised to {}", "{} layers and ends over {} stages",
    "with tp or cp kernels must start in the order they are queued, before Blackwell", "ranks that divide every layer",
    "stages, one after the other", "ranks that divide every sequence", "ranks that divide the experts",
    "positions of a sample", "samples of one data-parallel rank per forward and backward",
    "One step takes {} s: {} tokens/s in all.", "All machines cost {} {} an hour.",
    "With the prompts' time a user gets {} tokens/s, all together {} tokens/s.",
    "Up to {} of them share a machine, each on cards of its own.",
}
"""Comments in files that are written, which are English for whoever runs them."""


def said_to_visitors(sentences: list[Sentence]) -> list[Sentence]:
    kept = (one for one in sentences if not one.place.startswith(READ_BY_US) and words_in(one.text) >= SENTENCE)
    return list({one.text: one for one in kept}.values())


EVERY_REMARK = list(remarks())
REFUSALS = said_to_visitors(list(refusals()))
REMARKS = said_to_visitors([one for one in EVERY_REMARK if one.text not in IN_FILES])


def test_the_source_is_searched() -> None:
    assert len(REFUSALS) > 500
    assert len(REMARKS) > 90
    known = {one.text for one in REMARKS}
    assert "every expert receives the same number of tokens" in known  # a constant
    assert "{} with a loss scale: {} has no bf16 tensor cores" in known  # yielded
    assert "no plan of {} is known here" in known  # a reason


def test_every_sentence_of_the_source_has_a_chinese_form() -> None:
    """Each that has none is to get a row in a catalogue of report/words/zh."""
    chinese = {one: in_chinese(one.example) for one in REFUSALS + REMARKS}
    assert {one: text for one, text in chinese.items()
            if text == one.example or ENGLISH.search(COMMANDS.sub("", text))} == {}


def test_comments_of_files_that_are_left_out_stand_in_the_source() -> None:
    assert {one.text for one in EVERY_REMARK} >= IN_FILES


def test_no_template_is_so_wide_that_it_makes_other_sentences_its_own() -> None:
    for english in templates():
        found = template(english, "")
        if found.gaps:
            letters = re.sub(r"[^A-Za-z\u4e00-\u9fff]", "", "".join(found.literals))
            assert len(letters) >= 3, english


def test_templates_stand_in_one_table_and_name_no_gap_that_is_not_there() -> None:
    assert len(templates()) > 700
    rows = [(english, chinese) for subject in (*SUBJECTS, "ledger") for english, chinese in catalogue(subject)]
    for english, chinese in rows:
        gaps = {name for _, name, _, _ in Formatter().parse(english) if name is not None}
        assert {name for _, name, _, _ in Formatter().parse(chinese) if name is not None} <= gaps, english
    sentences = [english for subject in SUBJECTS for english, _ in catalogue(subject)]
    assert len(sentences) == len(set(sentences))


def test_what_nobody_translated_stays_as_it_is() -> None:
    for text in ("", "x", "a sentence of nobody", "8,192 x 4,096 x 2 B", "torch/nn/parallel/distributed.py", "中文"):
        assert in_chinese(text) == text
    assert name_in_chinese("decoder.layers/mlp.gate") == "decoder.layers/mlp.gate"
    assert name_in_chinese("exp_avg") == "exp_avg"


def test_values_are_kept() -> None:
    said = in_chinese("context=131072 is longer than the 1024 positions gpt2 was trained with")
    assert all(value in said for value in ("131072", "1024", "gpt2"))
    assert in_chinese("weights=fp9 is not known; use fp8, int4 or nf4").startswith("weights=fp9 ")


def test_several_sentences_in_one_are_each_found() -> None:
    one = "pp=96 is more than the 61 layers of deepseek-v3; use fewer stages"
    said = in_chinese(one)
    assert in_chinese(f"no plan is possible: {one}; {one}") == f"没有可行的方案：{said}；{said}"
    both = in_chinese("needs --allow offload, at least 890.43 GiB, at most 1.02 TiB of main memory in each machine")
    assert both == "需要 --allow offload，每台机器需内存 890.43 GiB 至 1.02 TiB"
    assert in_chinese(f"ds_config.json: {one}") == f"ds_config.json：{said}"


@pytest.mark.parametrize("text", [
    "no plan is possible: " + "; " * 1900, "unknown model " + "'" * 3900, "a; b: c, d + e" * 280,
    " (" * 1000 + ")" * 1000,
    "tp=" * 1300, "; ".join(["tp=3 does not divide num_heads=8 of gpt2; use 1 or 2"] * 40),
])
def test_a_hostile_text_takes_no_time(text: str) -> None:
    began = time.process_time()
    in_chinese(text)
    assert time.process_time() - began < 30  # a pattern that tries every split takes minutes
