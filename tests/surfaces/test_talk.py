"""Typing: keys become text, lines, history and completions, and what is drawn stays within its lines."""

from __future__ import annotations

import io
import os
import select
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.cli.asking import print_object
from clutch.cli.talk import files
from clutch.cli.talk.chatting import Chatting
from clutch.cli.talk.ear import Ear, News, Words, replies
from clutch.cli.talk.editor import Candidates, Editor, Submitted
from clutch.cli.talk.notices import Notices
from clutch.cli.talk.pieces import Pieces
from clutch.cli.talk.top import newest_first
from clutch.cli.talk.typing import Key, Keyboard, Text
from clutch.cli.talk.window import Window
from clutch.core.policy import Notify
from clutch.errors import InvalidInput


def keys(raw: str) -> list[Key | Text]:
    board = Keyboard()
    return [*board.feed(raw.encode()), *board.give_up()]


def typed(editor: Editor, raw: str) -> list[object]:
    return [done for key in keys(raw) if (done := editor.press(key)) is not None]


def test_keys_are_told_apart_also_when_they_come_in_pieces() -> None:
    assert keys("é\x1b[A\x1b\r\x1b") == [Text("é"), Key.UP, Key.NEWLINE, Key.ESCAPE]
    board = Keyboard()
    assert list(board.feed(b"\x1b")) == []
    assert board.is_waiting
    assert list(board.feed(b"[D\xc3")) == [Key.LEFT]
    assert list(board.feed(b"\xa9")) == [Text("é")]
    assert list(board.feed(b"\x1b[200~two\rlines \x1b[2J")) == []
    assert list(board.feed(b"\x07\x1b[201~")) == [Text("two\nlines [2J")]


@given(st.binary(max_size=60), st.integers(0, 60))
def test_no_bytes_break_the_keyboard_or_leave_a_control_in_the_text(raw: bytes, cut: int) -> None:
    board, editor = Keyboard(), Editor()
    for key in [*board.feed(raw[:cut]), *board.feed(raw[cut:]), *board.give_up()]:
        editor.press(key)
    assert all(one.isprintable() or one == "\n" for one in editor.text)
    assert 0 <= editor.at <= len(editor.text)


def test_a_line_is_edited_and_sent() -> None:
    editor = Editor()
    assert typed(editor, "helo\x1b[Dl\x05 world\x17there\r") == [Submitted("hello there")]
    assert editor.text == ""
    assert editor.history == ["hello there"]


def test_several_lines_by_backslash_alt_enter_or_paste_are_one_message() -> None:
    editor = Editor()
    assert typed(editor, "a\\\rb\x1b\rc\x1b[200~\nd\x1b[201~\r") == [Submitted("a\nb\nc\nd")]


def test_history_is_walked_and_what_was_begun_is_not_lost() -> None:
    editor = Editor(["first", "second"])
    typed(editor, "begun\x1b[A\x1b[A\x1b[A")
    assert editor.text == "first"
    typed(editor, "\x1b[B\x1b[B")
    assert editor.text == "begun"


def test_tab_completes_as_far_as_it_is_clear() -> None:
    def complete(before: str) -> Sequence[str]:
        return [word for word in ("/status", "/steer", "/stop") if word.startswith(before)]

    editor = Editor(complete=complete)
    assert typed(editor, "/s\t") == []
    assert editor.text == "/st"
    assert typed(editor, "\t") == [Candidates(("/status", "/steer", "/stop"))]
    typed(editor, "a\t")
    assert editor.text == "/status "


def test_ctrl_c_clears_a_line_before_it_means_more() -> None:
    editor = Editor()
    assert typed(editor, "abc\x03") == []
    assert editor.text == ""
    assert typed(editor, "\x03\x04\x1b") == [Key.INTERRUPT, Key.END_OF_FILE, Key.ESCAPE]


class Paper:
    """A terminal of so many columns that understands what the window writes, and nothing else."""

    def __init__(self, columns: int) -> None:
        self.columns, self.rows, self.row, self.column = columns, [""], 0, 0

    def write(self, text: str) -> None:
        while text:
            if text.startswith("\x1b["):
                end = next(place for place, one in enumerate(text) if one.isalpha())
                self._move(text[2:end], text[end])
                text = text[end + 1 :]
                continue
            self._put(text[0])
            text = text[1:]

    def _move(self, count: str, verb: str) -> None:
        match verb:
            case "A":
                self.row -= int(count)
            case "C":
                self.column += int(count)
            case "J":
                del self.rows[self.row + 1 :]
                self.rows[self.row] = self.rows[self.row][: self.column]
            case _:
                raise AssertionError(verb)

    def _put(self, one: str) -> None:
        if one == "\r":
            self.column = 0
        elif one == "\n":
            self.row += 1
            self.rows += [""] * (self.row + 1 - len(self.rows))
        else:
            assert one == "\a" or one.isprintable(), ascii(one)
            line = self.rows[self.row].ljust(self.column)
            self.rows[self.row] = line[: self.column] + one + line[self.column + 1 :]
            self.column += 1
            assert self.column < self.columns, "it would wrap"


@pytest.mark.parametrize("width", [20, 80])
def test_words_scroll_by_while_a_line_is_typed_and_nothing_is_left_over(width: int) -> None:
    paper, out, editor = Paper(width), io.StringIO(), Editor()
    window = Window(editor, "> ", out, lambda: width)
    window.status = "3 running · 1 waiting · 12 done · $0.42"
    words = "one two three four five six seven eight nine ten eleven"
    for piece in (words[:13], words[13:40], words[40:]):
        typed(editor, "x" * 15)
        window.stream(piece)
    window.say("\x1b[2Jnasty\u202e")
    typed(editor, "\x1b\rmore")
    window.redraw()
    paper.write(out.getvalue())
    *said, status, first, second = paper.rows
    assert " ".join(said).split() == [*words.split(), "\\x1b[2Jnasty\\u202e"]
    assert status.startswith("3 running")
    assert second == "  more"
    assert (paper.row, paper.column) == (len(paper.rows) - 1, 6)
    assert first.startswith("> x")


def test_a_mentioned_file_is_brought_along_and_one_that_cannot_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("```\ncode\n```\n")
    (tmp_path / "picture").write_bytes(b"\xff\xfe\x00")
    whole = files.with_files("read @notes.md and @missing, me@example.org", tmp_path)
    assert whole == "read @notes.md and @missing, me@example.org\n\nnotes.md:\n````\n```\ncode\n```\n\n````"
    with pytest.raises(InvalidInput, match="not a text"):
        files.with_files("see @picture", tmp_path)
    (tmp_path / "large").write_bytes(b"x" * (files.FILE_BYTES_MAX + 1))
    with pytest.raises(InvalidInput, match="more than 48 KiB"):
        files.with_files("see @large", tmp_path)
    assert list(files.completions("@no", tmp_path)) == ["@notes.md"]


def test_history_is_private_and_bounded(tmp_path: Path) -> None:
    files.write_history(tmp_path, [str(number) for number in range(files.HISTORY_MAX + 5)] + ["two\nlines"])
    assert (tmp_path / files.HISTORY_FILE).stat().st_mode & 0o777 == 0o600
    kept = files.read_history(tmp_path)
    assert (len(kept), kept[-1]) == (files.HISTORY_MAX, "two\nlines")


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
    item = {"id": "q_1", "kind": "question", "label": "a&b", "sessionKey": "k", "text": "<a href=x>this</a>?"}
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


def test_a_reply_is_confirmed_only_when_it_was_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ear, counter = Ear(tmp_path), Counter()
    with ear.open():
        threading.Thread(target=replies(ear, "agent:main:main"), args=(counter,), daemon=True).start()
        assert select.select([ear.wakes], [], [], 5)[0]
        (news,) = ear.heard()
        assert not counter.is_told.wait(0.1)
        Chatting(tmp_path, "agent:main:main", tmp_path, Notices(command))._hear(news)
        assert "the answer" in capsys.readouterr().out
        assert counter.is_told.wait(5)
    assert counter.heard == [None, 7]


def test_top_has_what_works_first_and_then_what_ended_last() -> None:
    def ended(name: str, parent: str | None, at: str) -> dict[str, str | None]:
        return {"taskId": name, "parentTaskId": parent, "endedAt": at, "outcome": "ok"}

    long, short = ended("a", None, "09"), ended("b", None, "05")
    working = {"taskId": "w", "parentTaskId": "b", "endedAt": None, "outcome": None}
    tasks = [long, short, ended("a1", "a", "03"), ended("b1", "b", "04"), working]
    assert [one["taskId"] for one in newest_first(tasks)] == ["w", "a", "a1", "b", "b1"]


@pytest.mark.parametrize("place", range(4))
def test_a_reply_is_shown_once_wherever_it_comes_among_its_own_pieces(
    place: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = "agent:main:main"
    chat = Chatting(tmp_path, session, tmp_path, Notices(command))
    for run, pieces in (("one", ("first ", "second\n", "third\n")), ("two", ("first ", "other"))):
        news = [News("assistant:text", {"sessionKey": session, "runId": run, "text": one}) for one in pieces]
        news.insert(place, News("reply", Words("".join(pieces).strip())))
        for one in news:
            chat._hear(one)
    chat._window.clear()
    paper = Paper(80)
    paper.write(capsys.readouterr().out)
    assert [line.removeprefix("> ") for line in paper.rows if line.strip("> ")] == [
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


def test_the_answer_to_a_command_interrupts_a_turn_and_does_not_repeat_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = "agent:main:main"
    chat = Chatting(tmp_path, session, tmp_path, Notices(command))
    first, last = (
        News("assistant:text", {"sessionKey": session, "runId": "r", "text": text})
        for text in ("first ", "last")
    )
    for one in (first, News("reply", Words("Model: offline")), News("reply", Words("first last")), last):
        chat._hear(one)
    chat._window.clear()
    paper = Paper(80)
    paper.write(capsys.readouterr().out)
    assert [line.rstrip() for line in paper.rows if line.strip("> ")] == ["first", "Model: offline", "last"]


def test_each_thing_is_told_once_and_with_the_command_that_leads_there() -> None:
    item = {"id": "q_1", "kind": "question", "label": "survey", "sessionKey": "k", "text": "Which one?"}
    notices = Notices(command)
    (told,) = notices.of_inbox([item])
    assert "survey: Which one?" in told.text
    assert "/answer q_1" in told.text
    assert "`clutch inbox --state here`" in told.text
    assert list(notices.of_inbox([item])) == []
    assert list(notices.of_inbox([])) == []
    assert len(list(notices.of_inbox([item]))) == 1
    counted = {"running": 1, "queued": 0, "waiting": 0, "needsYou": 0, "done": 2}
    assert list(notices.of_summary(counted)) == []
    (done,) = notices.of_summary({**counted, "running": 0})
    assert "`clutch ps --state here`" in done.text
    assert list(notices.of_summary({**counted, "running": 0})) == []
    quiet = Notices(command, frozenset({Notify.ALL_DONE}))
    assert list(quiet.of_inbox([item])) == []
