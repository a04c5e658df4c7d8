"""A web page as text: title, headings, paragraphs, lists, tables, links with their address, code.

Runs as `python -m clutch.tools.html_text`, the page as JSON on stdin, the text as JSON on stdout: a page can be written
so that the HTML parser of Python takes minutes, so an alarm ends the process. Standard library only. It leaves out what
a browser would not show.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from html.parser import HTMLParser
from urllib.parse import urljoin

ALARM_S = 10
LINK_CHARS_MAX = 500
DEPTH_MAX = 10  # of lists; deeper ones are not indented further
HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
# fmt: off
DROPPED = frozenset((
    "script", "style", "noscript", "template", "svg", "math", "iframe", "object", "canvas", "audio",
    "video", "select", "datalist", "dialog",
))
#: Elements that begin and end a line.
BLOCKS = frozenset((
    "address", "article", "aside", "blockquote", "body", "br", "dd", "div", "dl", "dt", "fieldset",
    "figcaption", "figure", "footer", "form", "header", "hr", "li", "main", "nav", "ol", "p", "pre", "section",
    "summary", "details", "table", "tbody", "thead", "tr", "ul", "title", *HEADINGS,
))
#: Elements that may have no end tag, so a hidden one cannot be skipped up to its end tag.
UNCLOSED = frozenset(("p", "li", "td", "th", "tr", "dt", "dd", "br", "hr", "img", "input", "link", "meta", "body"))
# fmt: on
_HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)

Attributes = list[tuple[str, str | None]]


class _Reader(HTMLParser):
    def __init__(self, base: str) -> None:
        super().__init__(convert_charrefs=True)
        self.base = base
        self.title = ""
        self.lines: list[str] = []
        self._pieces: list[str] = []  # of the line under way
        self._prefix = ""
        self._dropped: tuple[str, int] | None = None  # which element, and how many of it are open
        self._lists = 0
        self._verbatim = False
        self._links: list[tuple[str, int]] = []  # address, and how much had been read before

    def handle_starttag(self, tag: str, attrs: Attributes) -> None:
        if self._dropped is not None:
            name, depth = self._dropped
            self._dropped = (name, depth + (tag == name))
            return
        if tag in DROPPED or (tag not in UNCLOSED and _is_hidden(attrs)):
            self._dropped = (tag, 1)
            return
        if tag in BLOCKS:
            self._end_line()
        match tag:
            case "ul" | "ol":
                self._lists += 1
            case "li":
                self._prefix = "  " * (min(self._lists, DEPTH_MAX) - 1) + "- "
            case "td" | "th" if self._pieces:
                self._pieces.append(" | ")
            case "pre" if not self._verbatim:
                self.lines.append("```")
                self._verbatim = True
            case "code" if not self._verbatim:
                self._pieces.append("`")
            case "a":
                self._links.append((self._address(attrs), self._read))
            case "h1" | "h2" | "h3" | "h4" | "h5" | "h6":
                self.lines.append("")
                self._prefix = "#" * int(tag[1]) + " "
            case _:
                pass

    def handle_endtag(self, tag: str) -> None:
        if self._dropped is not None:
            name, depth = self._dropped
            depth -= tag == name
            self._dropped = (name, depth) if depth else None
            return
        match tag:
            case "title":
                self.title = self.title or self._taken()
            case "ul" | "ol":
                self._lists = max(0, self._lists - 1)
            case "a" if self._links:
                self._end_link()
            case "code" if not self._verbatim:
                self._pieces.append("`")
            case "pre" if self._verbatim:
                self._end_verbatim()
            case _:
                pass
        if tag in BLOCKS:
            self._end_line()
        if tag in ("p", "table", "ul", "ol", "blockquote", "dl", *HEADINGS) and not self._lists:
            self.lines.append("")

    def handle_data(self, data: str) -> None:
        if self._dropped is None:
            self._pieces.append(data)

    @property
    def _read(self) -> int:
        return len(self.lines) + len(self._pieces)

    def _address(self, attrs: Attributes) -> str:
        try:
            address = urljoin(self.base, (dict(attrs).get("href") or "").strip())
        except ValueError:
            return ""
        is_elsewhere = address.partition("#")[0] != self.base.partition("#")[0]
        is_shown = address.startswith(("http://", "https://")) and is_elsewhere and address.isprintable()
        return address if is_shown and len(address) <= LINK_CHARS_MAX else ""

    def _end_link(self) -> None:
        address, before = self._links.pop()
        if address and self._read > before and "".join(self._pieces[-1:]).strip() != address:
            self._pieces.append(f" ({address})")

    def _end_verbatim(self) -> None:
        self.lines.extend(["".join(self._pieces).strip("\n"), "```"])
        self._pieces, self._verbatim = [], False

    def _taken(self) -> str:
        text = " ".join("".join(self._pieces).split())
        self._pieces = []
        return text

    def _end_line(self) -> None:
        if self._verbatim:
            self._pieces.append("\n")
            return
        text = self._taken()
        if text:
            self.lines.append(self._prefix + text)
            self._prefix = ""

    def close(self) -> None:
        super().close()
        if self._verbatim:
            self._end_verbatim()
        self._end_line()


def _is_hidden(attrs: Attributes) -> bool:
    given = dict(attrs)
    return (
        "hidden" in given
        or given.get("aria-hidden") == "true"
        or bool(_HIDDEN.search(given.get("style") or ""))
    )


def readable(html: str, base: str) -> str:
    """Return a page as text. `base`: the address of the page, for relative links."""
    reader = _Reader(base)
    reader.feed(html)
    reader.close()
    title = [f"Title: {reader.title}", ""] if reader.title else []
    return re.sub(r"\n{3,}", "\n\n", "\n".join([*title, *reader.lines])).strip("\n")


def main() -> None:
    question = json.load(sys.stdin)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(question["alarm_s"])
    json.dump(readable(question["html"], question["base"]), sys.stdout)


if __name__ == "__main__":
    main()
