"""Markdown is read back as what was written, whatever the texts are."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.report.written.pages import Page
from vramcast.report.written.html import html
from vramcast.report.written.markdown import markdown
from vramcast.report.written.parts import Code, Items, Pairs, Report, Section, Sources, Table, Text
from vramcast.report.written.pictures import printable

markdown_it = pytest.importorskip("markdown_it")
READER = markdown_it.MarkdownIt("commonmark", {"html": True}).enable("table").enable("strikethrough")

TEXTS = st.text(st.sampled_from("ab 01._-+=#*`~|<>&$[]()!\\/:\n\t\"'é显") | st.characters(codec="utf-8"), max_size=30)
"""Mostly what Markdown takes for markup."""


END = "\N{END OF PROOF}"
"""Behind every text, so that it is found again."""


def seen(text: str) -> str:
    """A text as it is shown, white space left out."""
    return "".join(character for character in printable(text) if not character.isspace())


def report(text: str) -> Report:
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
    page = Page(READER.render(markdown(report(text + END))))
    plain = Page(READER.render(markdown(report("x" + END))))
    assert page.tags == plain.tags
    assert seen(page.text).count(seen(text) + END) == plain.text.count(END)


@given(TEXTS)
def test_a_page_holds_every_text_and_no_other_tags(text: str) -> None:
    page, plain = Page(html(report(text + END))), Page(html(report("x" + END)))
    assert [tag for tag in page.tags if tag not in ("a", "span")] == plain.tags
    links = [value or "" for name, value in page.attributes if name == "href"]
    assert all(link.startswith(("http://", "https://")) for link in links)
    assert seen(page.text).count(seen(text) + END) == plain.text.count(END)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
