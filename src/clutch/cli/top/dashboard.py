"""The program of `clutch top`: what is on the screen, and what each key does.

What the gateway reports is collected and drawn at most every `TICK_S`, however many events come. The selection is the
id of a task, so nothing moves under the cursor; a decision carries the id and hash of the item that was shown."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import typer
from rich.text import Text
from rich.traceback import Traceback
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.events import Key, Resize
from textual.filter import LineFilter
from textual.widgets import Input, Static

from clutch.cli import output
from clutch.cli.top import dialogs, lines
from clutch.cli.top.actions import DashboardActions
from clutch.cli.top.connection import Happened, Items, LiveConnection, LoadedTasks, Lost, News, Watching
from clutch.cli.top.dialogs import InboxScreen, Overlay
from clutch.cli.top.lines import BAD, QUIET, STRONG, Item
from clutch.cli.top.transcript import Paragraph, ShownTranscript
from clutch.cli.top.tree import Task, TaskTree
from clutch.cli.top.widgets import AsciiFilter, Field, Lines, TaskListView
from clutch.core.text.format import visible
from clutch.errors import ClutchError
from clutch.surfaces.http_client import GatewayClient, task_path

TICK_S = 0.125  #: at most eight repaints a second
CLOCK_S = 1.0
SETTLED_S = 0.15  #: a transcript is read when the cursor has rested for so long
NOTICE_S = 8.0
WIDE = 120  #: columns from which list and transcript stand side by side
TABS = ("transcript", "result", "details", "why")
LIVE_STEPS = ("tool:start", "tool:end", "usage")


def run(state: Path | None, client: GatewayClient) -> None:
    # Without the mouse, the terminal selects text as it does elsewhere.
    app = Dashboard(LiveConnection(state, client))
    app.run(mouse=False)
    if app.return_code:
        raise typer.Exit(app.return_code)


def is_utf8() -> bool:
    """Whether the terminal takes UTF-8, as far as the locale says."""
    named = (os.environ.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    return "utf8" in (next((one for one in named if one), "utf8")).lower().replace("-", "")


class Dashboard(DashboardActions):
    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = None
    CSS = (
        dialogs.CSS
        + """
    #main { layout: horizontal; height: 1fr; }
    #list { width: 3fr; padding-right: 1; }
    #pane { width: 2fr; border-left: solid ansi_default; padding-left: 1; }
    #head, #foot, #demo, #filter, #tabs { height: 1; }
    #inbox { height: 2; }
    #title { height: auto; max-height: 3; }
    .narrow #main { layout: vertical; }
    .narrow #list { width: 100%; height: 3fr; padding-right: 0; }
    .narrow #pane { width: 100%; height: 2fr; border-left: none; padding-left: 0; border-top: solid ansi_default; }
    .opened #list { display: none; }
    .opened #pane { width: 100%; height: 100%; border: none; padding-left: 0; }
    """
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)"),
        Binding("down", "move(1)"),
        Binding("pageup", "page(-1)"),
        Binding("pagedown", "page(1)"),
        Binding("home", "move(-100000)"),
        Binding("end", "move(100000)"),
        Binding("left", "fold(-1)"),
        Binding("right", "fold(1)"),
        Binding("enter", "open"),
        Binding("escape", "close"),
        Binding("space", "peek"),
        Binding("slash", "filter"),
        Binding("s", "spawn"),
        Binding("m", "message"),
        Binding("p", "pause"),
        Binding("k", "kill"),
        Binding("r", "retry"),
        Binding("a", "approve"),
        Binding("i", "inbox"),
        Binding("c", "costs"),
        Binding("t", "thinking"),
        Binding("question_mark", "help"),
        Binding("q", "quit"),
        Binding("ctrl+c,ctrl+d", "leave", priority=True),
    ]

    def __init__(self, connection: LiveConnection) -> None:
        super().__init__(ansi_color=True)
        self._ascii = () if is_utf8() else (AsciiFilter(),)
        self.connection = connection
        self.known = TaskTree()
        self.items: Sequence[Item] = []
        self._summary: dict[str, Any] | None = None
        self._is_demo = False
        self._is_live = False
        self._lost_at: float | None = None
        self.transcript: ShownTranscript | None = None
        self._tab: str | None = None  #: of the task that is open in full screen
        self._document: list[Paragraph] | None = None  #: result or explanation of that task, as it was read
        self._notice, self._notice_at = "", 0.0
        self.moved_at = self._drawn_at = 0.0
        self.task_list = TaskListView(self.now, id="list")
        self.pane = Lines(follows=True, id="text")

    def get_line_filters(self) -> Sequence[LineFilter]:
        return (*super().get_line_filters(), *self._ascii)

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        yield Static(Text(lines.DEMO, lines.ATTENTION), id="demo")
        yield Static(id="inbox", markup=False)
        yield Field("Filter: label, id, status, agent", id="filter")
        with Container(id="main"):
            yield self.task_list
            with Vertical(id="pane"):
                yield Static(id="title", markup=False)
                yield Static(id="tabs", markup=False)
                yield self.pane
        yield Static(id="foot", markup=False)

    def on_mount(self) -> None:
        self._parts = {
            one: self.query_one(f"#{one}")
            for one in ("head", "demo", "inbox", "filter", "title", "tabs", "foot")
        }
        for name in ("demo", "inbox", "filter", "tabs"):
            self._parts[name].display = False
        self.draw()
        self.connection.open()
        self.set_interval(TICK_S, self._tick)

    def on_unmount(self) -> None:
        self.connection.close()

    def _fatal_error(self) -> None:
        # Textual would print the values of variables with the error, and among them the token of the gateway.
        self.panic(Traceback(show_locals=False))

    def on_resize(self, event: Resize) -> None:
        self.screen_stack[0].set_class(event.size.width < WIDE, "narrow")
        self.call_after_refresh(self.draw)

    def now(self) -> float:
        """Return the moment up to which the state is known: clocks stop when the connection is lost."""
        return self._lost_at or time.time()

    # ---- what the gateway reports ------------------------------------------------------------------------

    def _tick(self) -> None:
        if not self.screen_stack:
            return  # the program ends
        news = list(self.connection.take())
        for one in news:
            self._apply(one)
        is_due = self._is_live and time.monotonic() - self._drawn_at >= CLOCK_S
        if news or is_due or self._notice:
            self.draw()
        self._follow_selection()

    def _apply(self, news: News) -> None:
        match news:
            case LoadedTasks(tasks, summary, stalled_s):
                self.known.load(tasks)
                self._summary, self.task_list.stalled_s = summary, stalled_s
                self._is_live, self._lost_at = True, None
                if self.transcript is not None:
                    self.transcript.is_stale = True
            case Lost(at, why):
                self._is_live = False
                if self._lost_at is None:
                    self._lost_at = at
                    self.say(why)
            case Items(items):
                self.items = items
                for screen in self.screen_stack:
                    if isinstance(screen, InboxScreen):
                        screen.show(items)
            case Watching(task_id):
                if self.transcript is not None and self.transcript.task_id == task_id:
                    self.transcript.is_stale = True
            case Happened("overview", said):
                self._summary, self._is_demo = said["summary"], said["isDemo"]
            case Happened(name, said):
                self._happened(name, said)

    def _happened(self, name: str, said: dict[str, Any]) -> None:
        if (task := said.get("task")) is not None:
            self.known.keep(task)
        shown = self.transcript
        if shown is None or said.get("taskId") != shown.task_id:
            return
        if name == "assistant:text":
            shown.live += said["text"]
        elif task is not None or name in LIVE_STEPS:
            shown.is_stale = True
            self._read_document(is_again=True)
            self.read_receipt()

    def _follow_selection(self) -> None:
        """Read the transcript of the selected task, and what came to it since."""
        selected, shown = self.task_list.selected, self.transcript
        if selected is None or not self._is_live or time.monotonic() - self.moved_at < SETTLED_S:
            return
        self.connection.watch(selected)
        if shown is None or shown.task_id != selected:
            started = self.known.tasks[selected]["startedAt"] if selected in self.known.tasks else None
            shown = self.transcript = ShownTranscript(selected, output.at(started))
        if shown.is_stale and not shown.is_reading:
            shown.is_stale, shown.is_reading = False, True
            path, after = task_path(selected, "transcript"), shown.after
            self.ask(lambda client: client.get(path, after=after), lambda page: self._read(shown, page))

    def _read(self, shown: ShownTranscript, page: Any) -> None:
        shown.is_reading = False
        if isinstance(page, ClutchError):
            return  # the stream says what is wrong with the gateway
        is_first = not shown.is_loaded
        shown.is_loaded = True
        shown.started = shown.started or output.at((self.selected or {}).get("startedAt"))
        shown.add(page["messages"])
        shown.is_stale = shown.is_stale or page["next"] is not None
        if shown is self.transcript:
            self._draw_pane(is_new=is_first)

    # ---- drawing -----------------------------------------------------------------------------------------

    @property
    def selected(self) -> Task | None:
        return self.known.tasks.get(self.task_list.selected or "")

    @property
    def item(self) -> Item | None:
        """The decision at the top: that of the selected task, otherwise the first."""
        own = (one for one in self.items if one["taskId"] == self.task_list.selected)
        return next(own, self.items[0] if self.items else None)

    def _put(self, name: str, text: Text | None) -> None:
        """Show a text in a part of the screen; None hides the part."""
        part = self._parts[name]
        assert isinstance(part, Static)
        part.display = text is not None
        if text is not None and str(getattr(part, "shown", None)) != repr((text, text.spans)):
            part.shown = repr((text, text.spans))  # type: ignore[attr-defined]  # what is drawn is not drawn again
            part.update(text)

    def draw(self) -> None:
        self._drawn_at = time.monotonic()
        width = self.size.width
        since = (
            "Connecting"
            if self._lost_at is None
            else f"Reconnecting, data from {lines.minute(self._lost_at)}"
        )
        self._put(
            "head", lines.header(self._summary, "Live" if self._is_live else since, self._is_live, width)
        )
        self._parts["demo"].display = self._is_demo
        item = self.item
        self._put("inbox", None if item is None else lines.inbox_lines(item, len(self.items), width))
        self.task_list.is_stale = self.pane.is_stale = not self._is_live
        nothing = (
            f"No task matches {self.known.text!r}." if self.known.text else "No tasks yet: s starts one."
        )
        self.task_list.empty_text = nothing if self._summary is not None else ""
        self.task_list.show(self.known.rows())
        self._draw_pane()
        self._draw_foot()

    def _draw_pane(self, *, is_new: bool = False) -> None:
        task = self.selected
        if task is None:
            self._put("title", None)
            return self.pane.show([], is_new=True)
        path = " / ".join(lines.name_of(one) for one in self.known.lineage(task["taskId"]))
        state = lines.state_text(task, self.now(), self.task_list.stalled_s)
        style = lines.status_style(task)
        self._put("title", Text.assemble((path, STRONG), (f"  {task['taskId']}\n", QUIET), (state, style)))
        tabs = [(f" {name} ", f"{STRONG} reverse" if name == self._tab else QUIET) for name in TABS]
        self._put("tabs", Text.assemble(*tabs, ("  ←→ tab   Esc list", QUIET)) if self._tab else None)
        self.pane.show(self._content(task), is_new=is_new)

    def _content(self, task: Task) -> list[Paragraph]:
        if self._tab == "details":
            return dialogs.paragraphs(lines.details(task))
        if self._tab in ("result", "why"):
            return (
                self._document if self._document is not None else dialogs.paragraphs([Text("Loading", QUIET)])
            )
        shown = self.transcript
        if shown is None or shown.task_id != task["taskId"]:
            return dialogs.paragraphs([Text("Loading", QUIET)])
        return shown.paragraphs(task)

    def _draw_foot(self) -> None:
        if self._notice and time.monotonic() - self._notice_at < NOTICE_S:
            return self._put("foot", Text(output.fitted(self._notice, self.size.width), STRONG))
        self._notice = ""
        is_typing = self._parts["filter"].has_focus
        self._put("foot", Text(lines.FILTER_KEYS, STRONG) if is_typing else lines.footer(self.size.width))

    def say(self, text: str) -> None:
        """Show a message in the last line for a while."""
        self._notice, self._notice_at = visible(text.strip().replace("\n", "; "), 400), time.monotonic()
        self._draw_foot()

    def on_key(self, event: Key) -> None:
        """Textual looks a key up when all before it are done, and then it may be above another screen."""
        since = self.screen.since if isinstance(self.screen, Overlay) else Overlay.left_at
        if event.time < since:
            event.prevent_default()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """A key that a dialog does not know does nothing behind it."""
        del parameters
        return action == "leave" or len(self.screen_stack) == 1

    def action_leave(self) -> None:
        self.exit()

    # ---- moving ------------------------------------------------------------------------------------------

    def action_move(self, step: int) -> None:
        if self._tab is not None:
            return self.pane.scroll_by(step)
        self.moved_at = time.monotonic()
        self.task_list.move(step)
        self.draw()

    def action_page(self, step: int) -> None:
        room = (self.pane if self._tab is not None else self.task_list).size.height
        self.action_move(step * max(1, room - 1))

    def action_fold(self, step: int) -> None:
        """Unfold or fold; where there is nothing to fold, go to the parent or to the first subagent."""
        if self._tab is not None:
            return self._open_tab(TABS[(TABS.index(self._tab) + step) % len(TABS)])
        place = self.task_list.place
        if place is None or (task := self.task_list.rows[place].task) is None:
            return
        row, parent = self.task_list.rows[place], task["parentTaskId"]
        if row.children and row.is_open is (step < 0):
            self.known.fold(task["taskId"], is_open=step > 0)
            self.draw()
        elif step > 0 and row.children:
            self.action_move(1)
        elif step < 0 and parent in self.known.tasks:
            self.task_list.select(parent)
            self.action_move(0)

    def action_open(self) -> None:
        if self.selected is not None and self._tab is None:
            self._open_tab("transcript")

    def _open_tab(self, name: str | None) -> None:
        self._tab, self._document = name, None
        self.pane.follows = name in (None, "transcript")
        self.screen_stack[0].set_class(name is not None, "opened")
        self._draw_pane(is_new=True)
        self._read_document()

    def _read_document(self, *, is_again: bool = False) -> None:
        """Read the result or the explanation that is open."""
        task, tab = self.selected, self._tab
        if task is None or tab not in ("result", "why") or (is_again and not self._is_live):
            return
        if tab == "result" and task["outcome"] is None:
            self._document = dialogs.paragraphs(
                [Text("The result appears here when the task has ended.", QUIET)]
            )
            return self._draw_pane()

        def show(found: Any) -> None:
            if self._tab != tab or self.task_list.selected != task["taskId"]:
                return
            made = [Text(str(found), BAD)] if isinstance(found, ClutchError) else _document_lines(tab, found)
            self._document = dialogs.paragraphs(made)
            self._draw_pane()

        self.ask(lambda client: client.get(task_path(task["taskId"], tab)), show)

    def action_close(self) -> None:
        """Leave the open task; in the list, take the filter back."""
        if self._tab is not None:
            self._open_tab(None)
        else:
            self.set_focus(None)
            field = self.query_one("#filter", Field)
            field.clear()
            self._filter("")

    def action_thinking(self) -> None:
        if self.transcript is not None:
            self.transcript.toggle()
            self._draw_pane()

    # ---- filter ------------------------------------------------------------------------------------------

    def action_filter(self) -> None:
        if self._tab is None:
            self._parts["filter"].display = True
            self.set_focus(self._parts["filter"])
            self._draw_foot()

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.id == "filter" and event.value != self.known.text:
            self._filter(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input.id == "filter":
            self.set_focus(None)
            self._filter(event.value)

    def _filter(self, text: str) -> None:
        self.known.text = text
        self._parts["filter"].display = bool(text) or self._parts["filter"].has_focus
        self.draw()


def _document_lines(tab: str, found: Any) -> list[Text]:
    return lines.result_lines(found) if tab == "result" else [Text(lines.text_of(found["text"]))]
