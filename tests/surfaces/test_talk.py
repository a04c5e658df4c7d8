"""Typing: keys become text, lines, history and completions, and what is drawn stays within its lines."""

from __future__ import annotations

import asyncio
import io
import os
import select
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prompt_toolkit.application import create_app_session
from prompt_toolkit.data_structures import Size
from prompt_toolkit.input import DummyInput, PipeInput, create_pipe_input
from prompt_toolkit.output.vt100 import Vt100_Output

from clutch.cli.chat import message
from clutch.cli.chat.session import SessionChat
from clutch.cli.chat.stream import ChatEvent, ChatReply, EventListener, Notices, Pieces, replies
from clutch.cli.chat.terminal import Complete, Key, Screen
from clutch.cli.output import print_object
from clutch.cli.show import nested
from clutch.core.attachments import FILE_BYTES_MAX
from clutch.core.policy import Notify
from clutch.errors import InvalidInput
from tests.surfaces.display import Display

SESSION = "agent:main:main"


class Typist:
    """Types into a screen whose keys come from a pipe and whose rows are drawn on a display."""

    def __init__(
        self, width: int = 80, *, history: Sequence[str] = (), complete: Complete = lambda _: ()
    ) -> None:
        self.width, self._history, self._complete = width, history, complete
        self.submitted: list[str] = []
        self.pressed: list[Key] = []
        self.display = Display(width, may_wrap=False)
        self.text = ""
        self.out = io.StringIO()

    def type(self, raw: str | bytes) -> Typist:
        """Type the keys, then close the terminal."""
        with self._screen() as (screen, keys, wakes):
            keys.send_bytes(raw.encode() if isinstance(raw, str) else raw)
            keys.close()
            screen.run(wakes, lambda: None)
            self.text = screen._buffer.text
        self.display.write(self.out.getvalue())
        return self

    def type_then(self, text: str, after: Callable[[Screen], None]) -> None:
        """Type keys that insert the text, then call the function in the event loop and close the terminal."""
        with self._screen() as (screen, keys, wakes):

            def typed(_: object) -> None:
                if screen._buffer.text == text:
                    asyncio.get_running_loop().call_soon(act)

            def act() -> None:
                after(screen)
                keys.close()

            screen._buffer.on_text_changed += typed
            keys.send_text(text.replace("\n", "\x1b\r"))
            screen.run(wakes, lambda: None)
        self.display.write(self.out.getvalue())

    @contextmanager
    def _screen(self) -> Iterator[tuple[Screen, PipeInput, int]]:
        wakes, bell = os.pipe()
        with create_pipe_input() as keys, create_app_session(keys, _output(self.out, self.width)):
            submit, press = self.submitted.append, self.pressed.append
            screen = Screen("> ", submit, press, history=self._history, complete=self._complete)
            yield screen, keys, wakes
        os.close(wakes)
        os.close(bell)


def _output(out: io.StringIO, width: int) -> Vt100_Output:
    return Vt100_Output(out, lambda: Size(rows=24, columns=width), term="xterm", enable_cpr=False)


@given(st.binary(max_size=60))
@settings(max_examples=60, deadline=None)
def test_no_bytes_break_the_editor_or_leave_a_control_in_the_text(raw: bytes) -> None:
    typist = Typist().type(raw)
    assert all(one.isprintable() or one == "\n" for text in (typist.text, *typist.submitted) for one in text)


def test_a_line_is_edited_and_sent() -> None:
    typist = Typist().type("helo\x1b[Dl\x05 world\x17there\r")
    assert (typist.submitted, typist.text) == (["hello there"], "")


def test_several_lines_by_backslash_alt_enter_or_paste_are_one_message() -> None:
    assert Typist().type("a\\\rb\x1b\rc\x1b[200~\nd\x1b[201~\r").submitted == ["a\nb\nc\nd"]


def test_a_paste_brings_lines_and_visible_characters_only() -> None:
    pasted = "\x1b[200~two\rlines \x1b[2J\x07\u202e\tend\x1b[201~\r"
    assert Typist().type(pasted).submitted == ["two\nlines [2J    end"]


def test_history_is_walked_and_what_was_begun_is_not_lost() -> None:
    history = ["first", "second"]
    assert Typist(history=history).type("begun\x1b[A\x1b[A\x1b[A").text == "first"
    assert Typist(history=history).type("begun\x1b[A\x1b[A\x1b[A\x1b[B\x1b[B").text == "begun"


def test_tab_completes_as_far_as_it_is_clear() -> None:
    def complete(before: str) -> Sequence[str]:
        return [word for word in ("/status", "/steer", "/stop", "/st\x1b[2J") if word.startswith(before)]

    assert Typist(complete=complete).type("/s\t").text == "/st"
    typist = Typist(complete=complete).type("/s\t\ta\t")
    assert typist.text == "/status "
    assert "/status  /steer  /stop" in typist.display.lines


def test_ctrl_c_clears_a_line_before_it_means_more() -> None:
    typist = Typist().type("abc\x03\x03\x04")
    assert (typist.text, typist.submitted) == ("", [])
    assert typist.pressed == [Key.EDIT] * 4 + [Key.INTERRUPT, Key.END_OF_FILE, Key.END_OF_FILE]


def test_a_lone_escape_is_a_key_and_alt_enter_is_not() -> None:
    pressed: list[Key] = []
    wakes, bell = os.pipe()
    with create_pipe_input() as keys, create_app_session(keys, _output(io.StringIO(), 80)):

        def press(key: Key) -> None:
            pressed.append(key)
            screen.leave() if key is Key.ESCAPE else None

        screen = Screen("> ", lambda _: None, press)
        keys.send_text("a\x1b\rb\x1b")
        screen.run(wakes, lambda: None)
    assert pressed == [Key.EDIT] * 3 + [Key.ESCAPE]
    os.close(wakes)
    os.close(bell)


@pytest.mark.parametrize("width", [20, 80])
def test_words_scroll_by_while_a_line_is_typed_and_nothing_is_left_over(width: int) -> None:
    words = "one two three four five six seven eight nine ten eleven"

    def speak(screen: Screen) -> None:
        screen.above = lambda: ["3 running · 1 waiting · 12 done · $0.42"[: screen.width]]
        for piece in (words[:13], words[13:40], words[40:]):
            screen.stream(piece)
        screen.say("\x1b[2Jnasty\u202e")
        screen._app._redraw()
        drawn.write(typist.out.getvalue())

    drawn = Display(width, may_wrap=False)
    typist = Typist(width)
    typist.type_then("x" * 45 + "\nmore", speak)
    at = next(row for row, line in enumerate(drawn.lines) if line.startswith("3 running"))
    assert " ".join(drawn.lines[:at]).split() == [*words.split(), "\\x1b[2Jnasty\\u202e"]
    typed = [line for line in drawn.lines[at + 1 :] if line]
    assert "".join(line[2:] for line in typed[:-1]) == "x" * 45
    assert (typed[0][:3], typed[-1]) == ("> x", "  more")
    assert drawn.lines[drawn.row][: drawn.column] == "  more"
    left = [line for line in typist.display.lines if line]
    assert " ".join(left).split() == [*words.split(), "\\x1b[2Jnasty\\u202e"]


@pytest.fixture
def shown() -> Iterator[Display]:
    """What a conversation that does not run prints, on a display of 80 columns."""
    display = Display(may_wrap=False)

    class Out(io.StringIO):
        def write(self, text: str) -> int:
            display.write(text)
            return len(text)

    with create_app_session(DummyInput(), _output(Out(), 80)):
        yield display


def conversation(home: Path) -> SessionChat:
    return SessionChat(home, SESSION, home, Notices(command))


def test_a_mentioned_file_is_brought_along_and_one_that_cannot_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("```\ncode\n```\n")
    (tmp_path / "picture").write_bytes(b"\xff\xfe\x00")
    said: list[str] = []
    whole = message.with_files("read @notes.md and @missing, me@example.org", tmp_path, said.append)
    assert said == [f"Attached {tmp_path}/notes.md (13 B), read with your own rights."]
    assert whole == "read @notes.md and @missing, me@example.org\n\nnotes.md:\n````\n```\ncode\n```\n\n````"
    with pytest.raises(InvalidInput, match="is not UTF-8 text"):
        message.with_files("see @picture", tmp_path, said.append)
    (tmp_path / "large").write_bytes(b"x" * (FILE_BYTES_MAX + 1))
    with pytest.raises(InvalidInput, match="more than 48 KiB"):
        message.with_files("see @large", tmp_path, said.append)
    assert list(message.completions("@no", tmp_path)) == ["@notes.md"]
    for name in ("lock", "token"):
        (tmp_path / name).write_text("secret")
    (tmp_path / "link").symlink_to("token")
    for name in ("token", "link"):
        with pytest.raises(InvalidInput, match="state directory of Clutch"):
            message.with_files(f"see @{name}", tmp_path, said.append)
    assert len(said) == 1, "nothing was sent"


def test_history_is_private_and_bounded(tmp_path: Path) -> None:
    message.write_history(
        tmp_path, [str(number) for number in range(message.HISTORY_MAX + 5)] + ["two\nlines"]
    )
    assert (tmp_path / message.HISTORY_FILE).stat().st_mode & 0o777 == 0o600
    kept = message.read_history(tmp_path)
    assert (len(kept), kept[-1]) == (message.HISTORY_MAX, "two\nlines")


def command(*words: str) -> str:
    return f"clutch {' '.join(words)} --state here"


def test_an_object_on_a_terminal_does_nothing_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    print_object("chat", {"reply": "\x9b2J\u202e é"})
    assert '"\\u009b2J\\u202e é"' in capsys.readouterr().out


def test_a_desktop_is_given_words_and_no_markup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "shown")
    program = tmp_path / "notify-send"
    program.write_text(f'#!/bin/sh\nprintf %s "$3" > "{tmp_path / "shown"}"\n')
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DISPLAY", ":0")
    item = {
        "id": "q_1", "kind": "question", "status": "needs an answer", "label": "a&b", "sessionKey": "k",
        "text": "<a href=x>this</a>?",
    }  # fmt: skip
    shown = os.open(tmp_path / "shown", os.O_RDWR | os.O_NONBLOCK)
    list(Notices(command).of_inbox([item]))
    assert select.select([shown], [], [], 5)[0]
    assert b"a&amp;b: &lt;a href=x&gt;this&lt;/a&gt;?" in os.read(shown, 4096)
    os.close(shown)


class Counter:
    """A gateway with one reply, which it gives until it is told that it was heard."""

    def __init__(self) -> None:
        self.heard: list[int | None] = []
        self.is_told = threading.Event()

    def post(self, path: str, body: dict[str, Any], *, patience_s: float) -> dict[str, Any]:
        self.heard.append(body["heard"])
        if body["heard"] is not None:
            self.is_told.set()
            threading.Event().wait()  # for the next reply
        return {"id": 7, "reply": "the answer"}


def test_a_reply_is_confirmed_only_when_it_was_shown(tmp_path: Path, shown: Display) -> None:
    ear, counter = EventListener(tmp_path), Counter()
    with ear.open():
        threading.Thread(target=replies(ear, "agent:main:main"), args=(counter,), daemon=True).start()
        assert select.select([ear.wakes], [], [], 5)[0]
        (news,) = ear.heard()
        assert not counter.is_told.wait(0.1)
        conversation(tmp_path)._hear(news)
        assert "the answer" in shown.lines
        assert counter.is_told.wait(5)
    assert counter.heard == [None, 7]


def test_a_family_stands_where_the_first_of_its_tasks_does() -> None:
    pairs = [("w", "b"), ("a", None), ("a1", "a"), ("b", None), ("b1", "b"), ("x", "y"), ("y", "x")]
    tasks = [{"taskId": name, "parentTaskId": parent} for name, parent in pairs]
    tops = nested(tasks)
    assert [one["taskId"] for one in tops] == ["b", "a", "x", "y"]  # each other's parents stand last
    assert [one["taskId"] for one in tops[0]["nodes"]] == ["w", "b1"]


@pytest.mark.parametrize("place", range(4))
def test_a_reply_is_shown_once_wherever_it_comes_among_its_own_pieces(
    place: int, tmp_path: Path, shown: Display
) -> None:
    chat = conversation(tmp_path)
    for run, pieces in (("one", ("first ", "second\n", "third\n")), ("two", ("first ", "other"))):
        news = [
            ChatEvent("assistant:text", {"sessionKey": SESSION, "runId": run, "text": one}) for one in pieces
        ]
        news.insert(place, ChatEvent("reply", ChatReply("".join(pieces).strip())))
        for one in news:
            chat._hear(one)
    chat._screen.end_stream()
    assert [line for line in shown.lines if line] == [
        "first second",
        "third",
        "first other",
    ]


@pytest.mark.parametrize(
    ("first", "second"), [(one, two) for one in range(5) for two in range(2, 5) if one <= two]
)
def test_words_that_come_in_pieces_and_whole_are_shown_once(first: int, second: int) -> None:
    """The whole of the second never comes before the last piece of the first."""
    pieces, shown = Pieces(), ""
    for place in range(5):
        for whole in [text for text, at in (("one two", first), ("three four", second)) if at == place]:
            shown += pieces.whole(whole) or ""
        shown += pieces.piece(("one ", "two", "three ", "four")[place]) if place < 4 else ""
    assert shown.replace(" ", "") == "onetwothreefour"


@pytest.mark.parametrize("place", range(8))
def test_a_turn_of_text_call_text_is_shown_once_and_on_lines_of_its_own(
    place: int, tmp_path: Path, shown: Display
) -> None:
    """A spawn has no `tool:start`; each answer of the model ends with its usage. The reply may come at any moment."""
    chat = conversation(tmp_path)

    def live(name: str, text: str = "") -> ChatEvent:
        return ChatEvent(name, {"sessionKey": SESSION, "runId": "r", "text": text})

    news = [
        live("assistant:text", "On "), live("assistant:text", "it."), live("usage"),
        live("assistant:text", "Sent "), live("assistant:text", "two."), live("usage"),
    ]  # fmt: skip
    news.insert(place, ChatEvent("reply", ChatReply("Sent two.")))
    for one in news:
        chat._hear(one)
    chat._screen.end_stream()
    lines = [line for line in shown.lines if line]
    wanted = {1: ["On", "Sent two.", "it."], 4: ["On it.", "Sent two."]}  # in the middle of the first answer
    assert lines == wanted.get(place, ["Sent two.", "On it."] if place == 0 else ["On it.", "Sent two."])


@pytest.mark.parametrize(
    ("first", "second"), [(one, two) for one in range(2, 7) for two in range(5, 7) if one <= two]
)
def test_both_answers_of_a_turn_come_whole_too_and_are_shown_once(first: int, second: int) -> None:
    pieces, shown = Pieces(), ""
    came = ["On ", "it.", None, "Sent ", "two.", None, ""]
    for place, piece in enumerate(came):
        shown += pieces.end_answer() if piece is None else pieces.piece(piece)
        for whole in [text for text, at in (("On it.", first), ("Sent two.", second)) if at == place]:
            shown += pieces.whole(whole) or ""
    assert shown == "On it.Sent two."


def test_the_answer_to_a_command_interrupts_a_turn_and_does_not_repeat_it(
    tmp_path: Path, shown: Display
) -> None:
    chat = conversation(tmp_path)
    first, last = (
        ChatEvent("assistant:text", {"sessionKey": SESSION, "runId": "r", "text": text})
        for text in ("first ", "last")
    )
    for one in (
        first,
        ChatEvent("reply", ChatReply("Model: offline")),
        ChatEvent("reply", ChatReply("first last")),
        last,
    ):
        chat._hear(one)
    chat._screen.end_stream()
    assert [line for line in shown.lines if line] == ["first", "Model: offline", "last"]


def test_pieces_that_come_after_two_whole_replies_are_not_shown_again(tmp_path: Path, shown: Display) -> None:
    chat = conversation(tmp_path)
    for reply in ("first last", "Model: offline"):
        chat._hear(ChatEvent("reply", ChatReply(reply)))
    for piece in ("first ", "last"):
        chat._hear(ChatEvent("assistant:text", {"sessionKey": SESSION, "runId": "r", "text": piece}))
    chat._screen.end_stream()
    assert [line for line in shown.lines if line] == ["first last", "Model: offline"]


def test_each_thing_is_told_once_and_with_the_command_that_leads_there() -> None:
    item = {
        "id": "q_1", "kind": "question", "status": "needs an answer", "label": "survey", "sessionKey": "k",
        "text": "Which one?",
    }  # fmt: skip
    notices = Notices(command)
    (told,) = notices.of_inbox([item])
    assert told.text.startswith("Needs an answer: survey: Which one?")
    assert "/answer q_1" in told.text
    assert "`clutch inbox --state here`" in told.text
    assert list(notices.of_inbox([item])) == []
    assert list(notices.of_inbox([])) == []
    assert len(list(notices.of_inbox([item]))) == 1
    counted = {"running": 1, "queued": 0, "waiting": 0, "needsYou": 0, "delivering": 0, "done": 2}
    assert list(notices.of_summary(counted)) == []
    (done,) = notices.of_summary({**counted, "running": 0})
    assert "`clutch ps --state here`" in done.text
    assert list(notices.of_summary({**counted, "running": 0})) == []
    quiet = Notices(command, frozenset({Notify.ALL_DONE}))
    assert list(quiet.of_inbox([item])) == []


@pytest.mark.parametrize(
    ("line", "asks"), [("/attach", True), ("/answer", True), ("/answer q_1", True), ("/attach x", False)]
)
def test_a_command_of_the_chat_without_what_it_needs_says_how_it_is_written(line: str, asks: bool) -> None:
    word, _, rest = line.partition(" ")
    assert (message.usage_of(word, rest) is not None) == asks
    if asks:
        assert str(message.usage_of(word, rest)).startswith(f"Usage: {word} ")


@pytest.mark.parametrize(
    ("typed_", "meant"), [('"my label"', "my label"), ("'a'", "a"), ("t_1", "t_1"), ('say "hi"', 'say "hi"')]
)
def test_quotes_around_a_label_are_no_part_of_it(typed_: str, meant: str) -> None:
    assert message.target(typed_) == meant
