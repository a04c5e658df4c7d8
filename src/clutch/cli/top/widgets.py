"""The two things that scroll: the list of tasks and lines of text. Both draw only the lines that are visible."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.color import Color
from textual.events import Resize
from textual.filter import LineFilter
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Input

from clutch.cli.top.lines import QUIET, heading_line, in_ascii, task_line
from clutch.cli.top.transcript import Paragraph
from clutch.cli.top.tree import Row

CURSOR = Style(reverse=True)
STALE = Style(dim=True)


class AsciiFilter(LineFilter):
    """Draws everything in ASCII, also what Textual adds, for a terminal that is not UTF-8."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        del background
        return [Segment(in_ascii(text), style, control) for text, style, control in segments]


class View(ScrollView):
    """`is_stale`: the gateway does not answer, and what is shown may have changed."""

    DEFAULT_CSS = "View { scrollbar-size: 0 0; }"
    can_focus = False
    is_stale = False

    def strip(self, text: Text, style: Style | None = None) -> Strip:
        """Return a line that fills the width."""
        strip = Strip(text.render(self.app.console)).adjust_cell_length(self.size.width, self.rich_style)
        strip = strip.apply_style(STALE) if self.is_stale else strip
        return strip if style is None else strip.apply_style(style)


class TaskListView(View):
    """The rows of the tree. The cursor stands on a task and stays on it, wherever the task moves."""

    def __init__(self, clock: Callable[[], float], id: str) -> None:
        super().__init__(id=id)
        self._clock = clock
        self.rows: Sequence[Row] = ()
        self.selected: str | None = None
        self.stalled_s: float | None = None
        self.empty_text = ""

    @property
    def place(self) -> int | None:
        """The row of the cursor."""
        tasks = ((place, row.task_id) for place, row in enumerate(self.rows) if row.task is not None)
        return next((place for place, task_id in tasks if task_id == self.selected), None)

    def show(self, rows: Sequence[Row]) -> None:
        before = self.place
        old, self.rows = self.rows, rows
        if self.place is None:
            self.selected = self._nearest(old, before)
        place = self.place
        if before is not None and place is not None and self.scroll_offset.y:
            # Rows came or went above the cursor: the row that the user looks at stays on its line.
            self.scroll_to(y=self.scroll_offset.y + place - before, animate=False)
        self.virtual_size = Size(self.size.width, len(rows))
        self._keep_in_sight()
        self.refresh()

    def _nearest(self, old: Sequence[Row], before: int | None) -> str | None:
        """Return the task to select when the selected one is not shown any more: the first one above it that is."""
        there = {row.task_id for row in self.rows if row.task_id is not None}
        above = [] if before is None else [row.task_id for row in old[:before] if row.task_id in there]
        return above[-1] if above else next((row.task_id for row in self.rows if row.task_id), None)

    def move(self, step: int) -> None:
        """Move the cursor over tasks; headings are no place for it."""
        tasks = [row.task_id for row in self.rows if row.task_id is not None]
        if tasks:
            now = tasks.index(self.selected) if self.selected in tasks else 0
            self.select(tasks[min(max(0, now + step), len(tasks) - 1)])

    def select(self, task_id: str) -> None:
        self.selected = task_id
        self._keep_in_sight()
        self.refresh()

    def _keep_in_sight(self) -> None:
        place, height = self.place, self.size.height
        if place is None or not height:
            return
        # The heading above the first task is shown with it.
        first = place - 1 if place and self.rows[place - 1].task is None else place
        top = min(max(self.scroll_offset.y, place - height + 1), first)
        if top != self.scroll_offset.y:
            self.scroll_to(y=top, animate=False)

    def on_resize(self, event: Resize) -> None:
        del event
        self.virtual_size = Size(self.size.width, len(self.rows))
        self._keep_in_sight()

    def render_line(self, y: int) -> Strip:
        place, width = y + self.scroll_offset.y, self.size.width
        if not self.rows and y == 0:
            return self.strip(Text.assemble((self.empty_text, QUIET)))
        if place >= len(self.rows):
            return Strip.blank(width, self.rich_style)
        row = self.rows[place]
        if row.task is None:
            return self.strip(heading_line(row, width))
        line = task_line(row, row.task, width, self._clock(), self.stalled_s)
        return self.strip(line, CURSOR if row.task_id == self.selected else None)


class Lines(View):
    """Paragraphs, wrapped at words. A reader at the end stays at the end; one who has scrolled up stays there."""

    def __init__(
        self, paragraphs: Sequence[Paragraph] = (), *, follows: bool = False, id: str | None = None
    ) -> None:
        super().__init__(id=id)
        self._paragraphs: list[Paragraph] = list(paragraphs)
        self._strips: list[list[Strip]] = []  #: of each paragraph, for the present width
        self._flat: list[Strip] = []
        self._width = 0
        self.follows = follows
        self._is_at_end = follows

    def show(self, paragraphs: Sequence[Paragraph], *, is_new: bool = False) -> None:
        """`is_new`: it is about something else, and begins at its beginning or, if it follows, at its end."""
        kept = 0
        for old, new in zip(self._paragraphs, paragraphs, strict=False):
            if old is not new:
                break
            kept += 1
        self._paragraphs = list(paragraphs)
        del self._strips[kept:]
        if is_new:
            self._is_at_end = self.follows
        self._wrap()
        if is_new and not self.follows:
            self.scroll_to(y=0, animate=False)

    def scroll_by(self, lines: int) -> None:
        target = min(max(0, self.scroll_offset.y + lines), max(0, len(self._flat) - self.size.height))
        self._is_at_end = self.follows and target >= len(self._flat) - self.size.height
        self.scroll_to(y=target, animate=False)

    def on_resize(self, event: Resize) -> None:
        del event
        self._wrap()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        del container, viewport
        self._wrap_at(width)
        return len(self._flat)

    def _wrap_at(self, width: int) -> None:
        if width != self._width:
            self._width, self._strips = width, []
        for one in self._paragraphs[len(self._strips) :]:
            self._strips.append(self._wrapped(one))
        self._flat = [strip for strips in self._strips for strip in strips]

    def _wrap(self) -> None:
        if not self.size.width:
            return
        self._wrap_at(self.size.width)
        self.virtual_size = Size(self._width, len(self._flat))
        if self._is_at_end:
            self.scroll_to(y=max(0, len(self._flat) - self.size.height), animate=False)
        height = self.styles.height
        self.refresh(layout=height is not None and height.is_auto)

    def _wrapped(self, paragraph: Paragraph) -> list[Strip]:
        room = max(10, self._width - paragraph.indent)
        lines = paragraph.text.wrap(self.app.console, room, overflow="fold")
        marks = [paragraph.mark, *[""] * (len(lines) - 1)]
        return [
            self._line(f"{mark:>{max(0, paragraph.indent - 1)}} " if paragraph.indent else "", line)
            for mark, line in zip(marks, lines, strict=True)
        ]

    def _line(self, before: str, text: Text) -> Strip:
        text.rstrip()
        return Strip(Text.assemble((before, QUIET), text).render(self.app.console))

    def render_line(self, y: int) -> Strip:
        place = y + self.scroll_offset.y
        if place >= len(self._flat):
            return Strip.blank(self.size.width, self.rich_style)
        strip = self._flat[place].adjust_cell_length(self.size.width, self.rich_style)
        return strip.apply_style(STALE) if self.is_stale else strip


class Field(Input):
    """One line to type. A pasted text brings no character that would act on the terminal."""

    def __init__(self, placeholder: str, id: str | None = None) -> None:
        super().__init__(placeholder=placeholder, compact=True, select_on_focus=False, id=id)

    def validate_value(self, value: str) -> str:
        return "".join(one for one in value.replace("\n", " ").replace("\t", " ") if one.isprintable())
