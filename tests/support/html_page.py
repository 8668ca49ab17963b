"""Read back a page we wrote: its tables, links, ids and words, with the standard library."""

from dataclasses import dataclass, field
from html.parser import HTMLParser


@dataclass
class Table:
    caption: str = ""
    rows: list[list[str]] = field(default_factory=list)

    def row(self, head: str) -> list[str]:
        rows = [row[1:] for row in self.rows if row and row[0] == head]
        assert len(rows) == 1, f"{len(rows)} rows begin with {head!r} in {self.caption!r}"
        return rows[0]


class Page(HTMLParser):
    """What is in a page; ``elements`` are (tag, attributes) in document order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[Table] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.open: list[str] = []
        self._nested: list[Table] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in {"meta", "link", "br", "input", "img", "hr"}:
            self.open.append(tag)
        if tag == "table":
            self._nested.append(Table())
            self.tables.append(self._nested[-1])
        if tag == "tr":
            self._nested[-1].rows.append([])
        if tag in {"td", "th"} and self._nested:
            self._nested[-1].rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            self._nested.pop()
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if "script" in self.open:
            self.scripts.append(data)
            return
        if "style" in self.open:
            return
        self.words.append(data)
        if not self._nested:
            return
        if self.open[-1] == "caption":
            self._nested[-1].caption += data.strip()
        elif self._nested[-1].rows and self._nested[-1].rows[-1] and "svg" not in self.open:
            self._nested[-1].rows[-1][-1] = " ".join((self._nested[-1].rows[-1][-1] + " " + data).split())

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    @property
    def ids(self) -> list[str]:
        return [attrs["id"] for _, attrs in self.elements if attrs.get("id")]

    def table(self, caption: str) -> Table:
        (match,) = [table for table in self.tables if table.caption == caption]
        return match
