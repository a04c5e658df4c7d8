"""Markdown of agents on a terminal: an answer that still arrives is cut into blocks, and each is drawn once.

A block is complete when no later text can change how it looks. The lines of a code block are complete one by one, and
are printed as they are, so that they can be copied."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

from markdown_it import MarkdownIt
from rich.color import ColorSystem
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Heading, Markdown
from rich.style import Style
from rich.theme import Theme

from clutch.cli.output import coloured, plain

WIDTH_MAX = 120  #: longer lines are hard to read
CODE, BOLD = "36", "1"  #: SGR codes
_FENCE = re.compile(r"(\s*)(`{3,}|~{3,})[^`]*")
_HEADING = re.compile(r" {0,3}#{1,6}\s")
#: A new line in an answer is meant, as in every chat; in Markdown two blanks before it say so.
_SOFT_BREAK = re.compile(r"(?<!  )\n")


class Block(NamedTuple):
    text: str
    is_code: bool = False  #: one line of a code block
    begins: bool = True  #: a blank line separates it from the block before


class Blocks:
    """The text of one answer: `add` and `end` return the blocks that are complete, `rest` is what is not."""

    def __init__(self) -> None:
        self._line = ""  #: without its end yet
        self._lines: list[str] = []
        self._fence: tuple[str, int] | None = None  #: what closes the present code block, and its indentation
        self._is_first = False  #: the next line of code begins its block

    @property
    def rest(self) -> str:
        return "\n".join([*self._lines, self._line]) if self._line else "\n".join(self._lines).rstrip("\n")

    def add(self, piece: str) -> list[Block]:
        *lines, self._line = (self._line + piece).split("\n")
        blocks = [block for line in lines for block in self._complete(line)]
        if self._is_apart and self._fence is None and self._line[:1].strip():
            # The next block has begun: no reader waits for the end of its first line.
            blocks += self._flushed()
        return blocks

    @property
    def _is_apart(self) -> bool:
        return bool(self._lines) and not self._lines[-1].strip()

    def end(self) -> list[Block]:
        blocks = [*self._complete(self._line), *self._flushed()] if self._line else [*self._flushed()]
        self._line, self._fence = "", None
        return blocks

    def _complete(self, line: str) -> Iterator[Block]:
        opened = _FENCE.fullmatch(line)
        if self._fence is not None:
            yield from self._code(line)
        elif opened is not None:
            yield from self._flushed()
            self._fence, self._is_first = (opened[2], len(opened[1])), True
        elif _HEADING.match(line):
            yield from self._flushed()
            yield Block(line)
        else:
            # An indented line after a blank one belongs to the list above it.
            if self._is_apart and line.strip() and not line.startswith(" "):
                yield from self._flushed()
            if line.strip() or self._lines:
                self._lines.append(line)

    def _code(self, line: str) -> Iterator[Block]:
        assert self._fence is not None
        fence, indent = self._fence
        bare = line.strip()
        if bare.startswith(fence) and not bare.strip(fence[0]):
            self._fence = None
            return
        cut = min(indent, len(line) - len(line.lstrip()))
        yield Block(line[cut:], is_code=True, begins=self._is_first)
        self._is_first = False

    def _flushed(self) -> Iterator[Block]:
        text = "\n".join(self._lines).strip("\n")
        self._lines = []
        if text:
            yield Block(text)


# --------------------------------------------------------------------------------------------------
# Drawn. `rich` lays the text out; what it would print is checked once more, because Markdown can name any character.


class LeftHeading(Heading):
    """On the left like everything else; `rich` centres headings and draws boxes around them."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        del console, options
        self.text.justify = "left"
        yield self.text


class ChatMarkdown(Markdown):
    """HTML is text here: an element that `rich` does not draw would be hidden."""

    elements: ClassVar[dict[str, Any]] = {**Markdown.elements, "heading_open": LeftHeading}

    def __init__(self, text: str) -> None:
        super().__init__("", hyperlinks=False)
        parser = MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")
        self.parsed = parser.parse(_SOFT_BREAK.sub("  \n", text))


_STYLES = {
    "markdown.code": "cyan",
    **dict.fromkeys((f"markdown.h{level}" for level in range(1, 7)), "bold"),
    "markdown.item.number": "dim",
    "markdown.item.bullet": "dim",
    "markdown.block_quote": "italic",
}


def drawn(block: Block, width: int) -> list[str]:
    """Return the lines of a block. A line of code may be wider: the terminal wraps it, and copies it as one."""
    if block.is_code:
        return [coloured(block.text, CODE)]
    theme = Theme(_STYLES)
    wide = max(10, min(width, WIDTH_MAX))
    console = Console(file=io.StringIO(), width=wide, force_terminal=True, theme=theme, highlight=False)
    lines = console.render_lines(ChatMarkdown(block.text), pad=False)
    texts = ["".join(_styled(one.text, one.style) for one in line) for line in lines]
    while texts and not texts[-1].strip():
        texts.pop()
    while texts and not texts[0].strip():
        del texts[0]
    return [text.rstrip() for text in texts]


def _styled(text: str, style: Style | None) -> str:
    safe = plain(text.replace("\n", ""))
    if style is None or not coloured("x", BOLD).startswith("\x1b") or not safe.strip():
        return safe
    return style.render(safe, color_system=ColorSystem.STANDARD)
