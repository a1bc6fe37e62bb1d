"""Functions of the page by themselves: addresses, commands, numbers and words, all in one browser tab."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vramcast
from vramcast.web.exchange import LARGEST_SNAPSHOT, LARGEST_TEXT

from .conftest import PATIENCE_MS, REPOSITORY


@pytest.fixture(scope="module")
def page(chromium: Any, server: str) -> Iterator[Any]:
    """The page with its modules."""
    found = chromium.new_page()
    found.set_default_timeout(PATIENCE_MS)
    found.goto(f"http://{server}/#/train")
    yield found
    found.close()


def called(page: Any, module: str, name: str, *arguments: Any) -> Any:
    """What a function of a module returns."""
    return page.evaluate(
        "async ([module, name, given]) => (await import(module))[name](...given)", [module, name, arguments]
    )


def test_every_word_is_there_in_both_languages_with_the_same_places(page: Any) -> None:
    for key, texts in page.evaluate("async () => (await import('/words.js')).WORDS").items():
        assert set(texts) == {"en", "zh"}, key
        assert set(re.findall(r"\{\w+\}", texts["en"])) == set(re.findall(r"\{\w+\}", texts["zh"])), key


@pytest.mark.parametrize(("low", "high", "expected"), [
    (36, 8975, [2000, 4000, 6000, 8000]), (0, 10, [0, 2, 4, 6, 8, 10]), (0.0283, 0.0318, [0.029, 0.03, 0.031]),
])
def test_axes_have_round_values_wherever_they_begin(page: Any, low: float, high: float, expected: list[float]) -> None:
    assert called(page, "/parts/scale.js", "ticksBetween", low, high, 5) == pytest.approx(expected)


def test_the_page_counts_as_the_truth_does(page: Any) -> None:
    from truth.score import percentile

    values = [0.01, 0.2, 0.03, 0.5, 0.0, 0.07, 0.11]
    for share in (0.5, 0.95):
        assert called(page, "/truth_statistics.js", "percentile", values, share) == pytest.approx(
            percentile(values, share)
        )


def test_the_page_knows_the_limits_of_the_service(page: Any) -> None:
    known = page.evaluate(
        "async () => { const { LARGEST_RECORDING, LARGEST_TEXT } = await import('/uploads.js');"
        " return [LARGEST_RECORDING, LARGEST_TEXT]; }"
    )
    assert known == [LARGEST_SNAPSHOT, LARGEST_TEXT]


def test_the_command_of_a_hostile_link_is_harmless_in_a_shell(page: Any) -> None:
    hostile = '{"model": "$(id)", "gpus": "t4; id", "x;id|sh": "1", "report": "/etc/passwd", "__proto__": "1", ' \
        '"compile": "`id`"}'
    kinds = {"model": "text", "gpus": "text", "compile": "flag", "seq-len": "count"}
    written = (
        "async ([question, kinds]) => (await import('/parts/take.js')).commandOf('train', JSON.parse(question), kinds)"
    )
    assert page.evaluate(written, [hostile, kinds]) == "vramcast train '$(id)' --gpus 't4; id' --compile"
    assert page.evaluate(written, ['{"model": "--report=/etc/passwd", "seq-len": "4k"}', kinds]) == (
        "vramcast train --seq-len 4k"
    )


NAMES = st.text(min_size=1, max_size=12).filter(lambda text: text != "__proto__")


def test_any_question_survives_its_address(page: Any) -> None:
    there_and_back = """async (questions) => {
      const { parsed, written, questionOf, questionText } = await import('/hash.js');
      const route = { page: 'train', rest: [], queries: questions.map(questionText) };
      return parsed(new URL('#' + written(route).slice(1), location.href).hash).queries.map(questionOf);
    }"""

    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.dictionaries(NAMES, st.text(min_size=1, max_size=20)), min_size=1, max_size=4))
    def survives(questions: list[dict[str, str]]) -> None:
        whole = json.loads(json.dumps(questions).encode("utf-8", "surrogatepass"))
        assert page.evaluate(there_and_back, whole) == whole

    survives()


def test_gpus_are_read_and_written_as_the_command_line_does(page: Any) -> None:
    for text in ("t4", "8xh100", "2x8xh100-sxm-80gb", "aws:p5.48xlarge", "4xaws:p5.48xlarge", "1xl40s", "rtx-4090"):
        read = called(page, "/parts/gpus_field.js", "gpusOf", text)
        assert called(page, "/parts/gpus_field.js", "gpusText", read) == text
    given = {"machines": "2", "each": "", "card": "h100"}
    assert called(page, "/parts/gpus_field.js", "gpusText", given) == "2x1xh100"
    assert vramcast.train("llama-3.2-1b", gpus="2x1xh100").question["gpus"].startswith("2x1x")


def test_labels_are_read_as_options(page: Any) -> None:
    read = called(page, "/plan_question.js", "optionsIn", "--gpus 8xh100 --compile --alloc-conf a:1")
    assert read == {"gpus": "8xh100", "compile": "true", "alloc-conf": "a:1"}
    whole = called(
        page, "/plan_question.js", "planQuestion",
        {"model": "m", "tp": "1,2,4", "zero": "1", "on": "h100", "seq-len": "8k"}, {"shards": "nothing", "gpus": "t4"},
        ["model", "tp", "zero", "shards", "seq-len", "gpus"],
    )
    assert whole == {"model": "m", "seq-len": "8k", "shards": "nothing", "gpus": "t4"}


def test_the_files_of_the_page_name_no_other_host() -> None:
    for path in (REPOSITORY / "src" / "vramcast" / "web" / "page").rglob("*.js"):
        hosts = set(re.findall(r"https?://([\w.-]+)", Path(path).read_text(encoding="utf-8")))
        assert hosts <= {"www.w3.org"}, path
