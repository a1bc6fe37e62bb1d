"""HTML as its reader sees it: texts, tags, attributes."""

from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img", "input", "link"}
"""Elements without an end; those of SVG end by a slash."""


class Page(HTMLParser):
    """Tags that open and close, texts, attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    @property
    def text(self) -> str:
        """Everything that is not in a tag."""
        return "".join(self.texts)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
