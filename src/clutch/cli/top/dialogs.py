"""What is asked for in a dialog above the list: a text, a confirmation, a decision of the inbox."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.events import Key, Resize
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from clutch.cli.top.lines import ATTENTION, BAD, QUIET, STRONG, TITLES, Item, asker, whole_item
from clutch.cli.top.transcript import Paragraph
from clutch.cli.top.widgets import Field, Lines

CSS = """
ModalScreen { align: center middle; }
.dialog { width: 100%; max-width: 110; height: auto; max-height: 100%; border: round ansi_default; padding: 0 1; }
.dialog Lines, .dialog Static { height: auto; }
.dialog Field, .hint { margin-top: 1; }
Field { height: 1; }
"""


@dataclass(frozen=True, slots=True)
class DialogChoice:
    """One thing that Enter or `y` can do. `name` is what the caller gets, `title` what the user reads."""

    name: str
    title: str
    needs_text: bool = True


@dataclass(frozen=True, slots=True)
class Given:
    way: str
    text: str


def paragraphs(lines: Sequence[Text]) -> list[Paragraph]:
    return [Paragraph(line, indent=0) for line in lines]


class Overlay(ModalScreen[Given | None]):
    """A screen above the list. A key that was pressed before it was there, or before it was gone, does nothing: the
    user has pressed it for something else."""

    since = inf  #: when it was mounted
    left_at: ClassVar[float] = 0.0  #: when the last one was closed

    def on_mount(self) -> None:
        self.since = time.monotonic()

    def leave(self, given: Given | None = None) -> None:
        Overlay.left_at = time.monotonic()
        _ = self.dismiss(given)


class Dialog(Overlay):
    """Asks for a text with `placeholder`, otherwise for `y`; without ways it only shows something. Escape leaves."""

    AUTO_FOCUS = "Field"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", priority=True),
        Binding("tab", "next_way", priority=True),
        Binding("up", "scroll_lines(-1)"),
        Binding("down", "scroll_lines(1)"),
        Binding("pageup", "scroll_lines(-10)"),
        Binding("pagedown", "scroll_lines(10)"),
    ]

    def __init__(
        self,
        title: str,
        lines: Sequence[Text],
        ways: Sequence[DialogChoice] = (),
        placeholder: str | None = None,
    ) -> None:
        super().__init__()
        self._title, self._ways, self._placeholder = title, ways, placeholder
        self._way = 0
        self.body = Lines(paragraphs(lines))
        self._hint = Static(markup=False, classes="hint")

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(Text(self._title, STRONG))
            yield self.body
            if self._placeholder is not None:
                yield Field(self._placeholder)
            yield self._hint

    def on_mount(self) -> None:
        super().on_mount()
        self.say("")

    def on_resize(self, event: Resize) -> None:
        # Beside border, title, field and keys. The rest of a longer text scrolls.
        self.body.styles.max_height = max(1, event.size.height - 8)

    def say(self, problem: str) -> None:
        """Show the keys, or what is wrong."""
        if problem:
            self._hint.update(Text(problem, BAD))
        elif self._placeholder is None:
            keys = f"y {self._ways[0].title}   n, Esc cancel" if self._ways else "Esc closes"
            self._hint.update(Text(keys, STRONG))
        else:
            others = "" if len(self._ways) == 1 else "   Tab: " + self._next.title
            self._hint.update(
                Text.assemble((f"⏎ {self._chosen.title}", STRONG), (f"{others}   Esc cancel", QUIET))
            )

    @property
    def _chosen(self) -> DialogChoice:
        return self._ways[self._way]

    @property
    def _next(self) -> DialogChoice:
        return self._ways[(self._way + 1) % len(self._ways)]

    def action_leave(self) -> None:
        self.leave()

    def action_next_way(self) -> None:
        if self._ways:
            self._way = (self._way + 1) % len(self._ways)
            self.say("")

    def action_scroll_lines(self, lines: int) -> None:
        self.body.scroll_by(lines)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if self._chosen.needs_text and not event.value.strip():
            return self.say("The text must not be blank.")
        self.leave(Given(self._chosen.name, event.value))

    def key_y(self, event: Key) -> None:
        if self._ways and self._placeholder is None and event.time > self.since:
            self.leave(Given(self._ways[0].name, ""))

    def key_n(self) -> None:
        if self._placeholder is None:
            self.leave()

    def key_q(self) -> None:
        if not self._ways:
            self.leave()


def decision_dialog(item: Item, decision: str) -> Dialog:
    """Show all that the decision covers. Approving takes a `y`; a rejection takes a comment, a question an answer."""
    title = f"{TITLES.get(item['kind'], item['kind'])}: {asker(item)}"
    if decision == "approve":
        verb = "run it" if "tool" in item["detail"] else "approve"
        return Dialog(title, whole_item(item), [DialogChoice("approve", verb)])
    placeholder = "Your answer" if decision == "answer" else "Why: the task reads it"
    return Dialog(title, whole_item(item), [DialogChoice(decision, decision)], placeholder)


Decide = Callable[[Item, str], None]


class InboxScreen(Overlay):
    """The decisions that wait. One that is decided stays where it is, so that no other takes its place."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,i,q", "leave"),
        Binding("up", "move(-1)"),
        Binding("down", "move(1)"),
        Binding("a,enter", "decide"),
        Binding("r", "reject"),
        Binding("pageup", "scroll_lines(-10)"),
        Binding("pagedown", "scroll_lines(10)"),
    ]

    def __init__(self, items: Sequence[Item], first: Item | None, decide: Decide) -> None:
        super().__init__()
        self._decide = decide
        self._items: list[Item] = list(items)
        self._said: dict[str, str] = {}  #: what became of an item, by its key
        self._place = 0 if first is None else self._items.index(first)
        self._list, self._body = Lines(), Lines()

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(Text("Inbox", STRONG))
            yield self._list
            yield Static(" ")
            yield self._body
            keys = "↑↓ select   a approve or answer   r reject with a comment   Esc closes"
            yield Static(Text(keys, STRONG), classes="hint")

    def on_mount(self) -> None:
        super().on_mount()
        self._draw()

    def on_resize(self, event: Resize) -> None:
        self._list.styles.max_height = max(1, (event.size.height - 7) // 3)
        self._body.styles.max_height = max(1, (event.size.height - 7) * 2 // 3)

    def show(self, items: Sequence[Item]) -> None:
        """Take the decisions that wait now. New ones come to the end."""
        known, waiting = {key_of(one) for one in self._items}, {key_of(one) for one in items}
        for key in known - waiting:
            self._said.setdefault(key, "decided")
        self._items += [one for one in items if key_of(one) not in known]
        self._draw()

    def said(self, item: Item, text: str) -> None:
        self._said[key_of(item)] = text
        self._draw()

    def _draw(self) -> None:
        lines = [self._line(place, one) for place, one in enumerate(self._items)]
        self._list.show(paragraphs(lines or [Text("Nothing to decide.", QUIET)]))
        if self._items:
            self._body.show(paragraphs(whole_item(self._items[self._place])), is_new=True)

    def _line(self, place: int, item: Item) -> Text:
        said = self._said.get(key_of(item))
        line = (
            f"{'▸' if place == self._place else ' '} {TITLES.get(item['kind'], item['kind'])} · {asker(item)}"
        )
        return Text(line if said is None else f"{line} · {said}", QUIET if said else ATTENTION)

    def action_leave(self) -> None:
        self.leave()

    def action_move(self, step: int) -> None:
        self._place = min(max(0, self._place + step), max(0, len(self._items) - 1))
        self._draw()

    def action_scroll_lines(self, lines: int) -> None:
        self._body.scroll_by(lines)

    def action_decide(self) -> None:
        if self._open is not None:
            self._decide(self._open, "answer" if self._open["kind"] == "question" else "approve")

    def action_reject(self) -> None:
        if self._open is not None:
            self._decide(self._open, "reject")

    @property
    def _open(self) -> Item | None:
        """The selected item, if it is not decided."""
        item = self._items[self._place] if self._items else None
        return None if item is None or key_of(item) in self._said else item


def key_of(item: Any) -> str:
    return f"{item['id']} {item['hash']}"
