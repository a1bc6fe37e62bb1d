"""Reports as files: Markdown, HTML, and several beside each other."""

import json
import re
from collections.abc import Callable, Iterator
from datetime import date
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from msgspec.structs import replace

import vramcast
from tests.cli.asking import vramcast as compared_vramcast
from tests.report.test_replay_report import ANSWER, FAILED
from tests.report.written.pages import Page
from vramcast.domain.answer import Answer
from vramcast.domain.failure import Diagnosis
from vramcast.domain.planning import PlanAnswer
from vramcast.domain.program import Category
from vramcast.domain.trace_job import TraceAnswer
from vramcast.domain.verdict import Fit
from vramcast.errors import InvalidSpec, SourceError
from vramcast.recordings.lives import CATEGORIES
from vramcast.report.looks import COLOURS, HUES, LOOKS
from vramcast.report.messages import LANGUAGES, Words
from vramcast.report.sentences import TONES, word_of
from vramcast.report.shown import ShownTrace
from vramcast.report.written import FORMATS, check_report, report_of
from vramcast.report.written.html import html
from vramcast.report.written.markdown import escaped, inline, markdown
from vramcast.report.written.parts import Code, Items, Pairs, Report, Section, Sources, Table, Text
from vramcast.report.written.pictures import printable
from vramcast.units import format_bytes

# Reports as files and in notebooks say what their answers say, and nothing in a name is taken for markup.

pytest.importorskip("numpy", reason="a search over training plans needs NumPy")

TODAY = date(2026, 11, 21)
EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
HOSTILE = "<script>alert(1)</script>|`*_x_*`\n# [a](javascript:b) & \"'</title>\x1b[2J\u202e"
MOST = 200_000
"""Characters of the output of a notebook."""

MADE: dict[str, tuple[str, Callable[[], Any]]] = {
    "train": ("train", lambda: vramcast.train("llama-3.1-8b", gpus="2x8xh100-sxm-80gb", engine="megatron", tp=2, pp=2)),
    "fails": ("train", lambda: vramcast.train(
        "llama-3.1-8b", gpus="aws:p4d.24xlarge", engine="torchtitan", shards="everything", seq_len=8192, micro_batch=4,
        tokens="1T")),
    "serve": ("serve", lambda: vramcast.serve(
        "qwen3-32b", gpus="2xh100-sxm-80gb", context=32768, concurrency=8, engine="vllm@0.19")),
    "find": ("serve", lambda: vramcast.serve(
        "llama-3.1-70b", gpus="l40s", context=32768, concurrency=4, find="fewest-gpus")),
    "inverse": ("plan train", lambda: vramcast.plan(
        "train", "llama-3.2-1b", on="a100-sxm4-40gb", seq_len=1024, find="largest-batch", engine="pytorch")),
    "search": ("plan train", lambda: vramcast.plan(
        "train", "llama-3.2-1b", on=["8xl40s", "aws:g6e.48xlarge"], seq_len=1024, global_batch=16, engine="torchtitan",
        top=3, tokens="1B")),
    "diagnosis": ("oom", lambda: vramcast.diagnose(
        EXAMPLES / "fragmented.log", snapshot=EXAMPLES / "fragmented.pickle")),
    "recording": ("replay", lambda: vramcast.replay(
        EXAMPLES / "crash.pickle.gz", leaks=True, alloc_conf="expandable_segments:True")),
    "trace": ("trace", lambda: ShownTrace(**{name: getattr(FAILED, name) for name in FAILED.__struct_fields__})),
}
SWEEP = {"defaults": {"command": "train", "gpus": "h100"},
         "axes": {"model": ["llama-3.2-1b", "<b>no|such</b>"], "micro-batch": [1, 2]}}


@cache
def made(name: str) -> Any:
    return MADE[name][1]()


def report(name: str, kind: str, language: str = "en", answer: Any = None, asked: str = "") -> str:
    answer = made(name) if answer is None else answer
    return report_of(MADE[name][0], answer, kind, language, asked=asked, today=TODAY)


def figures(answer: Any, language: str) -> Iterator[str]:
    """What a report on an answer must say, as it stands on a page."""
    if isinstance(answer, PlanAnswer):
        yield answer.command
        yield from (format_bytes(plan.fullest.needed_bytes) for plan in answer.plans)
        yield from (format_bytes(technique.device_bytes) for technique in answer.techniques)
        yield from figures(replace(answer.plans[0], assumptions=(), warnings=()), language)
    elif isinstance(answer, Answer):
        answer = Words(language).spoken(answer)
        for rank in answer.ranks[:1] if isinstance(answer, TraceAnswer) else answer.ranks:
            for entry in rank.ledger:
                yield from (format_bytes(entry.num_bytes), f"{entry.num_bytes:,} B", entry.source)
            for peak in rank.phases.values():
                yield from (format_bytes(size) for size in (peak.device_bytes, peak.allocated_bytes) if size)
            yield from map(format_bytes, rank.interval_bytes if not isinstance(answer, TraceAnswer) else ())
        yield from (format_bytes(one.device_bytes) for one in answer.changes if not one.concurrency)
        yield from (*answer.assumptions, *answer.warnings)
    elif isinstance(answer, Diagnosis):
        finding = answer.findings[0]
        yield from (str(remark.values.get("value", "")) for remark in finding.meaning.values())
        yield from (fix.setting.split("=")[0] for fix in finding.fixes)
        yield f"{finding.confidence:.0%}"
    else:
        (device,) = answer.devices
        yield format_bytes(device.replayed.peak_reserved_bytes)
        yield from (format_bytes(group.size_bytes) for group in device.held.by_category)
        yield from (format_bytes(variant.peak_reserved_bytes) for variant in device.variants)
        yield from (f"{failure.event:,}" for failure in device.failures)


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("kind", FORMATS)
def test_a_report_has_the_figures_of_its_answer(name: str, language: str, kind: str) -> None:
    text, answer = report(name, kind, language), made(name)
    text = Page(text).text if kind == "html" else text
    for said in (*figures(answer, language), "2026-11-21", vramcast.__version__):
        assert any(form in text for form in ((said,) if kind == "html" else (said, escaped(said), inline(said)))), said
    if name == "inverse":
        assert str(answer.found.what) in text
    if name == "trace":
        assert all(one in text for one in ("net.py:7 forward", "mylib.op", "Tried to allocate 1.00 MiB"))


@pytest.mark.parametrize("name", [*MADE, "sweep"])
def test_output_of_a_notebook_is_small_well_formed_and_takes_the_colours_around_it(name: str) -> None:
    text = (vramcast.sweep(SWEEP, workers=1) if name == "sweep" else made(name))._repr_html_()
    assert len(text) < MOST
    page = Page(text)
    assert not {"script", "html", "body", "img", "iframe", "b><no"} & set(page.tags)
    assert not [attribute for attribute, _ in page.attributes if attribute.startswith("on") or attribute == "src"]
    style = text[text.index("<style>") : text.index("</style>")]
    assert not re.search(r"background(-color)?:\s*(white|#fff)", style)
    assert not re.search(r"^(?![ }]|<style|@|\.vramcast|$)", style, re.M), "a rule outside our own elements"
    if name == "sweep":
        assert "4 questions: 2 fit, 0 do not, 2 cannot be answered" in page.text and "<b>no|such</b>" in page.text
    if name in ("train", "recording", "trace"):  # pictures say in words what they show
        labels = [value or "" for attribute, value in page.attributes if attribute == "aria-label"]
        assert any("GiB" in label or "MiB" in label for label in labels)


def test_answers_in_a_notebook_show_their_figures_and_at_a_prompt_one_line() -> None:
    answer = made("fails")
    text = Page(answer._repr_html_()).text
    assert format_bytes(answer.fullest.needed_bytes) in text
    for entry in sorted(answer.fullest.ledger, key=lambda entry: -entry.num_bytes)[:20]:
        assert format_bytes(entry.num_bytes) in text and entry.source in text
    assert all(format_bytes(change.device_bytes) in text for change in answer.changes)
    assert repr(answer).startswith("<ShownAnswer does not fit: ") and "\n" not in repr(answer)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(("fit", "length"), list(zip(Fit, (8192, 9216, 11264, 12288), strict=True)))
def test_a_verdict_is_one_word_and_one_tone(
    monkeypatch: pytest.MonkeyPatch, language: str, fit: Fit, length: int
) -> None:
    monkeypatch.setenv("LC_ALL", {"en": "en_US.UTF-8", "zh": "zh_CN.UTF-8"}[language])
    answer = vramcast.train("llama-3.1-8b", gpus="8xh100-sxm-80gb", engine="torchtitan", seq_len=length)
    word = word_of(fit, Words(language))
    assert answer.verdict is fit
    head = f'<div class="verdict {TONES[fit]}"><p class="answer">{word}'
    assert head in report_of("train", answer, "html", language, today=TODAY) and head in answer._repr_html_()
    assert str(answer).startswith((f"{word}: ", f"{word}："))
    assert answer._repr_markdown_().startswith(f"**{word}")


def unfenced(text: str) -> str:
    return re.sub(r"^```text\n.*?^```$", "", text, flags=re.S | re.M)


def columns(text: str) -> set[int]:
    return {line.count("|") for line in unfenced(text).splitlines() if line.startswith("|")}


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", ["train", "trace"])
def test_nothing_in_a_name_is_markup(name: str, language: str) -> None:
    answer = made(name) if name == "train" else ANSWER
    rank = answer.fullest
    entry = replace(rank.ledger[0], path=f"{HOSTILE}/{HOSTILE}", formula=HOSTILE, source=HOSTILE)
    rank = replace(rank, role=HOSTILE, ledger=(entry, *rank.ledger[1:]))
    names = {"target": HOSTILE} if name == "trace" else {"model": HOSTILE, "engine": HOSTILE, HOSTILE: HOSTILE}
    hostile = replace(
        answer, ranks=(rank, *answer.ranks[1:]), assumptions=(HOSTILE,), warnings=(HOSTILE,),
        question=answer.question | names,
    )
    if name == "trace":
        unknown = replace(ANSWER.unknown_operators[0], name=HOSTILE)
        hostile = replace(hostile, stopped=HOSTILE, unknown_operators=(unknown,))
    html = report(name, "html", language, hostile, HOSTILE)
    page = Page(html)
    assert set(page.tags) <= {"path", *Page(report("train", "html", language, asked="x")).tags}
    assert not [value for name, value in page.attributes if name == "href" and not (value or "").startswith("#")]
    text = report(name, "md", language, hostile)
    assert "<script>" not in unfenced(text) and "[a](" not in unfenced(text)
    assert columns(text) == columns(report(name, "md", language, answer))
    for said in (html, text):
        assert "\x1b" not in said and "\u202e" not in said
        said.encode("utf-8")


def test_a_search_that_finds_nothing_reports_what_is_nearest_and_a_text_without_failure_none() -> None:
    found = made("search")
    nothing = replace(
        found, plans=(), labels=(), front=(), reasons=(), nearest_failing=found.plans[0], nearest_label="--tp 2",
    )
    text = Page(report("search", "html", answer=nothing)).text
    assert "--tp 2" in text and "The nearest plan" in text
    assert format_bytes(found.plans[0].fullest.needed_bytes) in text
    assert "all is well" not in Page(report("diagnosis", "html", answer=vramcast.diagnose("all is well"))).text


def test_nothing_printed_ends_a_fenced_block() -> None:
    assert "`````text\na\n````\n<b>\n`````\n" in report("train", "md", asked="a\n````\n<b>")


def test_engines_nobody_measured_are_not_given_the_accuracy_of_others() -> None:
    text = report("train", "md", answer=vramcast.train("llama-3.2-1b", gpus="2xh100", engine="torchtune", seq_len=1024))
    assert "No measured run of torchtune is known here" in text and "median error" not in text


def test_the_legend_tells_bars_apart() -> None:
    memory = (*Category, "allocator", "slack")
    step = ("products", "attention", "pointwise", "tensor", "context", "expert", "pipeline", "gradients", "gathered",
            "optimizer", "offload", "host", "stragglers")
    phases = ("weights", "cache", "activations", "compute", "communication", "launch")
    for kinds in (memory, step, phases):
        assert len({LOOKS[kind].character for kind in kinds}) == len(kinds)
        assert len({LOOKS[kind].colour for kind in kinds}) == len(kinds)


def test_the_page_has_the_colours_of_reports() -> None:
    colours = (files("vramcast") / COLOURS).read_text(encoding="utf-8")
    hues = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", colours))
    assert hues == HUES
    rules = (files("vramcast") / "web/page/answer.css").read_text(encoding="utf-8")
    found = {name.replace("-", " "): hue for name, hue in
             re.findall(r"\.cat-([a-z-]+) \{ fill: var\(--([a-z-]+)\)", rules) if name != "other"}
    assert found.keys() >= {*CATEGORIES, "slack"}  # kinds of a recording are told from one another
    assert found == {name: LOOKS[name].hue for name in found}


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "is.md").mkdir()
    for name, kind, why in (
        ("out.pdf", InvalidSpec, r"must end in \.html or \.md"), ("out", InvalidSpec, "must end in"),
        ("out.HTML.txt", InvalidSpec, "must end in"), ("none/out.md", SourceError, "name a folder"),
        ("is.md", SourceError, "is a folder"),
    ):
        with pytest.raises(kind, match=why):
            check_report(tmp_path / name)
    for command, form, why in (("train", "pdf", "no format 'pdf'"), ("sell", "md", "no command 'sell'")):
        with pytest.raises(InvalidSpec, match=why):
            report_of(command, made("train"), form, "en")


# What changed a traced peak, from two answers that `--json` wrote.

MIB = 1 << 20


def written(path: Path, widths: dict[str, int], first_line: int, **other: Any) -> str:
    """An answer whose modules hold so many MiB each, from a line of one file on."""
    total = sum(widths.values()) * MIB
    holdings = {
        "module": [{"name": name, "bytes": size * MIB, "blocks": 1} for name, size in widths.items()],
        "line": [{"name": f"train.py:{first_line + number} step", "bytes": size * MIB, "blocks": 1}
                 for number, size in enumerate(widths.values())],
    }
    peak = {f"{level}_bytes": total for level in ("allocated", "reserved", "device")}
    ledger = [{"path": f"weights/{name}", "bytes": size * MIB, "basis": "traced"} for name, size in widths.items()]
    document = {
        "schema": 1, "question": {"target": "train.py", "gpu": "t4"}, "fits": True, "verdict": "fits", "peak": peak,
        "needed_bytes": total, "capacity_bytes": 1000 * MIB, "ranks": [{"role": "all", "ledger": ledger}],
        "holdings": holdings,
    }
    path.write_text(json.dumps(document | other))
    return str(path)


def test_the_module_that_grew_is_named_and_lines_that_only_moved_are_not(tmp_path: Path) -> None:
    before = written(tmp_path / "a.json", {"0": 10, "2": 20}, 5)
    after = written(tmp_path / "b.json", {"0": 10, "2": 50}, 9)
    found = json.loads(compared_vramcast("compare", before, after, "--json").stdout)
    moved = {"before": 20 * MIB, "after": 50 * MIB}
    assert found["change_bytes"] == 30 * MIB and found["entries"] == [
        {"name": "weights/2", **moved}]
    assert found["modules"] == [{"name": "2", **moved}]
    assert found["functions"] == [{"name": "train.py step", "before": 30 * MIB, "after": 60 * MIB}]
    shown = compared_vramcast("compare", before, after, "--lang", "en").stdout
    assert shown.startswith("30.00 MiB -> 60.00 MiB per GPU (+30.00 MiB, +100.0%); 1000.00 MiB usable: fits")


def test_many_layers_that_grew_are_one_row(tmp_path: Path) -> None:
    layers = [f"layers.{number}.mlp" for number in range(20)]
    before = written(tmp_path / "a.json", dict.fromkeys(layers, 1), 5)
    after = written(tmp_path / "b.json", dict.fromkeys(layers, 2), 5)
    found = json.loads(compared_vramcast("compare", before, after, "--json").stdout)
    assert found["modules"] == [{"name": "layers.*.mlp", "before": 20 * MIB, "after": 40 * MIB}]


@pytest.mark.parametrize(("budget", "code"), [
    ("59MiB", 1), ("60MiB", 0), ("+29MiB", 1), ("+30MiB", 0), ("+99%", 1), ("5%", 2), ("+x", 2),
])
def test_a_budget_is_a_size_or_what_may_be_added(budget: str, code: int, tmp_path: Path) -> None:
    before, after = written(tmp_path / "a.json", {"0": 30}, 5), written(tmp_path / "b.json", {"0": 60}, 5)
    assert compared_vramcast("compare", before, after, "--budget", budget).returncode == code


@pytest.mark.parametrize(("text", "told"), [
    ("[]", "no answer to one plan"), ('{"plans": []}', "no answer to one plan"), ("{", "no answer to one plan"),
    ("schema", "an answer of schema 2 cannot be compared"),
])
def test_what_is_no_answer_is_refused(text: str, told: str, tmp_path: Path) -> None:
    good = written(tmp_path / "a.json", {"0": 30}, 5)
    bad = written(tmp_path / "b.json", {"0": 30}, 5, schema=2)
    if text != "schema":
        Path(bad).write_text(text)
    done = compared_vramcast("compare", good, bad)
    assert done.returncode == 5 and told in done.stderr and done.stderr.count("\n") == 1


# Markdown is read back as what was written, whatever the texts are.

READER = MarkdownIt("commonmark", {"html": True}).enable("table").enable("strikethrough")

TEXTS = st.text(st.sampled_from("ab 01._-+=#*`~|<>&$[]()!\\/:\n\t\"'é显") | st.characters(codec="utf-8"), max_size=30)
"""Mostly what Markdown takes for markup."""


END = "\N{END OF PROOF}"
"""Behind every text, so that it is found again."""


def seen(text: str) -> str:
    """A text as it is shown, white space left out."""
    return "".join(character for character in printable(text) if not character.isspace())


def markdown_report(text: str) -> Report:
    cells = ((text, "1"), (text, "2"))
    parts = (
        Text(text), Items((text, text)), Items((text,), numbered=True), Pairs(("name", "value"), cells),
        Table((text, "n"), cells, right=frozenset({1}), strong=frozenset({0}), title=text), Sources((text,)),
    )
    sections = (Section(text, parts), Section(text, (Text(text), Code(text)), folded=True))
    return Report(language="en", title="t" + text, verdict=("v" + text, text), tone="good", sections=sections,
                  footer=(text, text))


@settings(max_examples=50)
@given(TEXTS)
def test_every_text_is_read_back_as_it_is(text: str) -> None:
    page = Page(READER.render(markdown(markdown_report(text + END))))
    plain = Page(READER.render(markdown(markdown_report("x" + END))))
    assert page.tags == plain.tags
    assert seen(page.text).count(seen(text) + END) == plain.text.count(END)


@given(TEXTS)
def test_a_page_holds_every_text_and_no_other_tags(text: str) -> None:
    page, plain = Page(html(markdown_report(text + END))), Page(html(markdown_report("x" + END)))
    assert [tag for tag in page.tags if tag not in ("a", "span")] == plain.tags
    links = [value or "" for name, value in page.attributes if name == "href"]
    assert all(link.startswith(("http://", "https://")) for link in links)
    assert seen(page.text).count(seen(text) + END) == plain.text.count(END)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
