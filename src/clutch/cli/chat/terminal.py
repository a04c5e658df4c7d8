"""The terminal of `clutch chat` and `clutch attach`: text scrolls by above the line being typed and the rows around it.

prompt_toolkit reads the keys, edits the line and draws the rows at the bottom. Loading it takes longer than `clutch ps`
takes to answer, so only commands that read keys import this module. Text from models and other users passes
`output.plain` before it is written."""

from __future__ import annotations

import asyncio
import os
import re
import select
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import StrEnum
from typing import Any

from prompt_toolkit.application import Application, create_app_session
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.data_structures import Size
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.key_binding import KeyBindings, KeyPress, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import (
    BufferControl,
    ConditionalContainer,
    Dimension,
    FormattedTextControl,
    HSplit,
    Layout,
    Window,
)
from prompt_toolkit.output.vt100 import Vt100_Output

from clutch.cli.chat.markdown import Block, Blocks, drawn
from clutch.cli.output import WIDTH, coloured, columns, plain

#: An Escape with no further byte for this long is the key itself, not the beginning of a key sequence.
ESCAPE_S = 0.05
#: Characters. No terminal is so wide, and a longer line is not measured for each piece that is cut off it.
LINE_MAX = 1000
ROWS = 24  #: of a terminal that does not know its size
ROWS_MAX = 8  #: rows of the text being typed; a longer text scrolls
ARRIVING_MAX = 6  #: rows of the text that still arrives; its beginning is printed when it is complete
REFRESH_S = 1.0
CANDIDATES_MAX = 40  #: completions shown at once
TAB = "    "

#: Returns what may replace the last word of the text before the cursor.
Complete = Callable[[str], Sequence[str]]
_LAST_WORD = re.compile(r"\S*\Z")


class Key(StrEnum):
    """What a conversation is notified of, besides a submitted text."""

    EDIT = "edit"  #: the text being typed has changed
    INTERRUPT = "interrupt"  #: Ctrl-C on an empty line; on another line it clears the line
    END_OF_FILE = "end-of-file"  #: Ctrl-D on an empty line, or the terminal is closed
    ESCAPE = "escape"


class TerminalInput(Vt100Input):
    """The keys of this process's terminal."""

    def read_keys(self) -> list[KeyPress]:
        keys = super().read_keys()
        # A closed terminal stays readable, and each read fails with an error that the library ignores: without this
        # check the event loop would spin.
        if not keys and not os.isatty(self.fileno()):
            self.stdin_reader.closed = True
        return keys


def opened() -> AbstractContextManager[object]:
    """Make the terminal of this process the one that screens use."""

    def size() -> Size:
        # Not `shutil.get_terminal_size`, which prefers COLUMNS of the environment to the size of this terminal.
        found = os.get_terminal_size(sys.stdout.fileno())
        return Size(rows=found.lines or ROWS, columns=found.columns or WIDTH)

    # The cursor position is never asked for: some terminals do not answer, and the library would warn of them.
    out = Vt100_Output(sys.stdout, size, term=os.environ.get("TERM"), enable_cpr=False)
    return create_app_session(TerminalInput(sys.stdin), out)


def cleaned(text: str) -> str:
    """Return the lines and visible characters of a typed or pasted text."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").replace("\t", TAB).split("\n")
    return "\n".join("".join(one for one in line if one.isprintable()) for line in lines)


# --------------------------------------------------------------------------------------------------
# Single keys, for commands that ask for a decision or draw the whole screen.


class Keyboard:
    def __init__(self) -> None:
        self._input = TerminalInput(sys.stdin)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Deliver each key at once and echo none; the terminal's former mode is restored at the end."""
        with self._input.raw_mode():
            yield

    def wait(self, timeout_s: float | None = None) -> list[str]:
        """Return the keys that arrived: characters, or names such as `escape` and `c-c`; none after the timeout.

        A closed terminal is Ctrl-D."""
        if not self._is_ready(timeout_s):
            return []
        keys = self._input.read_keys()
        if not keys:
            keys = self._input.read_keys() if self._is_ready(ESCAPE_S) else self._input.flush_keys()
        return [Keys.ControlD] if self._input.closed else [press.key for press in keys]

    def _is_ready(self, timeout_s: float | None) -> bool:
        return bool(select.select([self._input.fileno()], [], [], timeout_s)[0])


# --------------------------------------------------------------------------------------------------
# The lower edge of the terminal.

#: Takes a key that was pressed alone while no text is typed; returns False for a key that it has no use for.
Take = Callable[[str], bool]
#: Returns rows to draw. They are drawn again every second, because some of them show seconds.
Rows = Callable[[], Sequence[str]]


class Screen:
    """Prints text above the rows it keeps at the bottom: text that still arrives, `above`, the text being typed, and
    `below`.

    It uses the terminal of `opened`. All methods run in the thread of `run`."""

    def __init__(
        self,
        prompt: str,
        submit: Callable[[str], None],
        press: Callable[[Key], None],
        *,
        history: Sequence[str] = (),
        complete: Complete = lambda _before: (),
    ) -> None:
        self.prompt = prompt
        self.above: Rows = list
        self.below: Rows = list
        self.take: Take = lambda _key: False
        self._submit, self._press, self._candidates = submit, press, complete
        self._blocks = Blocks()
        self._is_apart = True  #: the next block of an answer needs no blank line before it
        self._history = InMemoryHistory([cleaned(one) for one in history])
        self._buffer = Buffer(history=self._history, on_text_changed=lambda _: press(Key.EDIT))
        self._app: Application[None] = Application(
            layout=self._layout(),
            key_bindings=self._bindings(),
            erase_when_done=True,
            terminal_size_polling_interval=None,
            refresh_interval=REFRESH_S,
        )
        self._app.ttimeoutlen = self._app.timeoutlen = ESCAPE_S

    @property
    def width(self) -> int:
        return max(10, self._app.output.get_size().columns - 1)

    @property
    def is_empty(self) -> bool:
        """Whether no text is being typed."""
        return not self._buffer.text

    @property
    def history(self) -> list[str]:
        """The submitted texts, oldest first."""
        return [*self._history.load_history_strings()][::-1]

    def run(self, wakes: int, hear: Callable[[], None]) -> None:
        """Draw and read keys until `leave`; call `hear` when the file descriptor `wakes` is readable."""
        try:
            asyncio.run(self._run(wakes, hear))
        except (EOFError, OSError):  # the terminal is closed
            self._press(Key.END_OF_FILE)
        else:
            self.end_stream()

    async def _run(self, wakes: int, hear: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._fail)
        loop.add_signal_handler(signal.SIGHUP, self._press, Key.END_OF_FILE)
        loop.add_reader(wakes, hear)
        try:
            await self._app.run_async(set_exception_handler=False)
        finally:
            loop.remove_reader(wakes)

    def _fail(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Let the error of a callback end `run`, which the event loop would only log."""
        error = context.get("exception") or RuntimeError(str(context["message"]))
        if self._app.is_running and not self._app.is_done:
            self._app.exit(exception=error)

    def leave(self) -> None:
        if self._app.is_running and not self._app.is_done:
            self._app.exit()

    # ---- above the line ------------------------------------------------------------------------------

    def say(self, text: str, style: str = "") -> None:
        """Print whole lines, after the text that still arrives. `style` is an SGR code, as for `output.coloured`."""
        self.end_stream()
        self._print([coloured(line, style) for line in wrapped(_shown(text), self.width)])

    def answer(self, text: str) -> None:
        """Print a whole text of an agent as Markdown."""
        self.end_stream()
        self.stream(text)
        self.end_stream()

    def stream(self, piece: str) -> None:
        """Show a piece of a text of an agent that is still arriving: its complete blocks are printed."""
        self._print_blocks(self._blocks.add(_shown(piece)))

    def end_stream(self) -> None:
        self._print_blocks(self._blocks.end())
        self._is_apart = True

    def ring(self) -> None:
        self._app.output.bell()
        self._app.output.flush()

    def redraw(self) -> None:
        self._app.invalidate()

    def _print_blocks(self, blocks: Sequence[Block]) -> None:
        lines: list[str] = []
        for block in blocks:
            if block.begins and not self._is_apart:
                lines.append("")
            lines += drawn(block, self.width)
            self._is_apart = False
        self._print(lines)

    def _print(self, lines: Sequence[str]) -> None:
        if lines:
            # The rows at the bottom are drawn again below the new lines. A line of code may be wider than the terminal,
            # which has to wrap it; the library has switched that off.
            self._app.renderer.erase()
            self._app.output.enable_autowrap()
            self._app.output.write_raw("".join(f"{line}\r\n" for line in lines))
            self._app.output.flush()
        self._app.invalidate()

    # ---- the rows at the bottom ----------------------------------------------------------------------

    def _layout(self) -> Layout:
        typed = Window(
            BufferControl(self._buffer),
            height=Dimension(min=1, max=ROWS_MAX),
            wrap_lines=True,
            dont_extend_height=True,
            get_line_prefix=lambda line, wrapped: self._prefix(is_first=not line and not wrapped),
        )
        rows = [
            _rows(self._arriving),
            _rows(self._above),
            typed,
            _rows(self._below),
        ]
        return Layout(HSplit(rows), focused_element=typed)

    def _above(self) -> Sequence[str]:
        return self.above()

    def _below(self) -> Sequence[str]:
        return self.below()

    def _arriving(self) -> Sequence[str]:
        rest = self._blocks.rest
        return wrapped(rest, self.width)[-ARRIVING_MAX:] if rest else ()

    def _prefix(self, *, is_first: bool) -> str:
        return self.prompt if is_first else " " * columns(self.prompt)

    # ---- keys ----------------------------------------------------------------------------------------

    def _bindings(self) -> KeyBindings:
        """What differs from the library's bindings, which are those of Emacs and readline."""
        bindings = KeyBindings()
        handlers: Sequence[tuple[tuple[Keys | str, ...], Callable[[KeyPressEvent], None]]] = (
            ((Keys.Any,), self._insert),
            ((Keys.BracketedPaste,), self._insert),
            (("enter",), self._enter),
            (("escape", "enter"), lambda _: self._buffer.insert_text("\n")),
            (("tab",), self._complete),
            (("c-c",), self._interrupt),
            (("<sigint>",), self._interrupt),
            (("c-d",), self._end_of_file),
            (("escape",), self._escape),
            (("up",), lambda event: self._move(event, event.current_buffer.auto_up)),
            (("down",), lambda event: self._move(event, event.current_buffer.auto_down)),
            # The library's binding clears the whole terminal; here the rows at the bottom are drawn again.
            (("c-l",), lambda _: self._app.renderer.erase()),
            # The library's bindings of these keys insert control characters.
            (("c-q",), lambda _: None),
            (("c-z",), lambda _: None),
        )
        for keys, handler in handlers:
            bindings.add(*keys)(handler)
        return bindings

    def _takes(self, event: KeyPressEvent, name: str) -> bool:
        """Offer a key to `take`. A key among others was typed or pasted as text, and is never a decision."""
        is_alone = not event.app.key_processor.input_queue and len(event.key_sequence) == 1
        return self.is_empty and is_alone and self.take(name)

    def _insert(self, event: KeyPressEvent) -> None:
        is_key = event.key_sequence[0].key != Keys.BracketedPaste
        if not (is_key and self._takes(event, event.data)):
            self._buffer.insert_text(cleaned(event.data))

    def _move(self, event: KeyPressEvent, otherwise: Callable[[], None]) -> None:
        if not self._takes(event, event.key_sequence[0].key):
            otherwise()

    def _escape(self, event: KeyPressEvent) -> None:
        if not self._takes(event, "escape"):
            self._press(Key.ESCAPE)

    def _enter(self, event: KeyPressEvent) -> None:
        """Submit the text; after a backslash at the end of a line, begin a new line."""
        if self._takes(event, "enter"):
            return
        buffer = self._buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            return buffer.insert_text("\n")
        text = buffer.text
        buffer.reset(append_to_history=bool(text.strip()))
        self._submit(text)

    def _interrupt(self, _event: KeyPressEvent) -> None:
        if self._buffer.text:
            self._buffer.reset()
            self._press(Key.EDIT)
        else:
            self._press(Key.INTERRUPT)

    def _end_of_file(self, _event: KeyPressEvent) -> None:
        if self._buffer.text:
            self._buffer.delete()
        else:
            self._press(Key.END_OF_FILE)

    def _complete(self, _event: KeyPressEvent) -> None:
        """Complete the word before the cursor as far as all candidates agree; show them where that adds nothing."""
        before = self._buffer.document.text_before_cursor
        word = _LAST_WORD.findall(before)[0]
        # The name of a file may contain characters that act on a terminal.
        found = [one for one in self._candidates(before) if one.isprintable()]
        longest = os.path.commonprefix(found)  # noqa: RUF071 (words, compared by character)
        if len(found) == 1 and not longest.endswith("/"):
            longest += " "
        if len(longest) > len(word):
            self._buffer.delete_before_cursor(len(word))
            self._buffer.insert_text(longest)
        elif found:
            self.say("  ".join(found[:CANDIDATES_MAX]), "2")


def _shown(text: str) -> str:
    return plain(text).replace("\t", TAB)


def wrapped(text: str, room: int) -> list[str]:
    """Return the lines of a text, cut between words where they are too wide."""
    lines: list[str] = []
    for line in text.split("\n"):
        while len(line) > LINE_MAX or columns(line) > room:
            fits = _fitting(line, room)
            cut = line.rfind(" ", 0, fits)
            cut = fits if cut <= 0 else cut
            lines.append(line[:cut])
            line = line[cut:].lstrip(" ")  # noqa: PLW2901 (the rest of it)
        lines.append(line)
    return lines


def _rows(made: Rows) -> ConditionalContainer:
    """Rows that are as many as there is to show."""
    window = Window(
        FormattedTextControl(lambda: ANSI("\n".join(made()))), dont_extend_height=True, wrap_lines=False
    )
    return ConditionalContainer(window, Condition(lambda: bool(made())))


def _fitting(text: str, room: int) -> int:
    """Return how many characters of the text fit into so many columns, at least one."""
    wide = 0
    for count, character in enumerate(text):
        wide += columns(character)
        if wide > room:
            return max(1, count)
    return len(text)
