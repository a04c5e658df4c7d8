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

from clutch.cli.chat import chat
from clutch.cli.chat.chat import Chatting
from clutch.cli.chat.stream import ChatEvent, ChatReply, EventListener, Notices, Pieces, replies
from clutch.cli.chat.terminal import Candidates, Editor, Key, Keyboard, Submitted, TypedText, Window
from clutch.cli.output import print_object
from clutch.cli.show import nested
from clutch.core.policy import Notify
from clutch.errors import InvalidInput


def keys(raw: str) -> list[Key | TypedText]:
    board = Keyboard()
    return [*board.feed(raw.encode()), *board.give_up()]


def typed(editor: Editor, raw: str) -> list[object]:
    return [done for key in keys(raw) if (done := editor.press(key)) is not None]


def test_keys_are_told_apart_also_when_they_come_in_pieces() -> None:
    assert keys("é\x1b[A\x1b\r\x1b") == [TypedText("é"), Key.UP, Key.NEWLINE, Key.ESCAPE]
    board = Keyboard()
    assert list(board.feed(b"\x1b")) == []
    assert board.is_waiting
    assert list(board.feed(b"[D\xc3")) == [Key.LEFT]
    assert list(board.feed(b"\xa9")) == [TypedText("é")]
    assert list(board.feed(b"\x1b[200~two\rlines \x1b[2J")) == []
    assert list(board.feed(b"\x07\x1b[201~")) == [TypedText("two\nlines [2J")]


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
    whole = chat.with_files("read @notes.md and @missing, me@example.org", tmp_path)
    assert whole == "read @notes.md and @missing, me@example.org\n\nnotes.md:\n````\n```\ncode\n```\n\n````"
    with pytest.raises(InvalidInput, match="not a text"):
        chat.with_files("see @picture", tmp_path)
    (tmp_path / "large").write_bytes(b"x" * (chat.FILE_BYTES_MAX + 1))
    with pytest.raises(InvalidInput, match="more than 48 KiB"):
        chat.with_files("see @large", tmp_path)
    assert list(chat.completions("@no", tmp_path)) == ["@notes.md"]


def test_history_is_private_and_bounded(tmp_path: Path) -> None:
    chat.write_history(tmp_path, [str(number) for number in range(chat.HISTORY_MAX + 5)] + ["two\nlines"])
    assert (tmp_path / chat.HISTORY_FILE).stat().st_mode & 0o777 == 0o600
    kept = chat.read_history(tmp_path)
    assert (len(kept), kept[-1]) == (chat.HISTORY_MAX, "two\nlines")


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
    ear, counter = EventListener(tmp_path), Counter()
    with ear.open():
        threading.Thread(target=replies(ear, "agent:main:main"), args=(counter,), daemon=True).start()
        assert select.select([ear.wakes], [], [], 5)[0]
        (news,) = ear.heard()
        assert not counter.is_told.wait(0.1)
        Chatting(tmp_path, "agent:main:main", tmp_path, Notices(command))._hear(news)
        assert "the answer" in capsys.readouterr().out
        assert counter.is_told.wait(5)
    assert counter.heard == [None, 7]


def test_a_family_stands_where_the_first_of_its_tasks_does() -> None:
    pairs = [("w", "b"), ("a", None), ("a1", "a"), ("b", None), ("b1", "b"), ("x", "y"), ("y", "x")]
    tasks = [{"taskId": name, "parentTaskId": parent} for name, parent in pairs]
    tops = nested(tasks)
    assert [one["taskId"] for one in tops] == ["b", "a"]
    assert [one["taskId"] for one in tops[0]["nodes"]] == ["w", "b1"]


@pytest.mark.parametrize("place", range(4))
def test_a_reply_is_shown_once_wherever_it_comes_among_its_own_pieces(
    place: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = "agent:main:main"
    chat = Chatting(tmp_path, session, tmp_path, Notices(command))
    for run, pieces in (("one", ("first ", "second\n", "third\n")), ("two", ("first ", "other"))):
        news = [
            ChatEvent("assistant:text", {"sessionKey": session, "runId": run, "text": one}) for one in pieces
        ]
        news.insert(place, ChatEvent("reply", ChatReply("".join(pieces).strip())))
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


@pytest.mark.parametrize("place", range(8))
def test_a_turn_of_text_call_text_is_shown_once_and_on_lines_of_its_own(
    place: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A spawn has no `tool:start`; each answer of the model ends with its usage. The reply may come at any moment."""
    session = "agent:main:main"
    chat = Chatting(tmp_path, session, tmp_path, Notices(command))

    def live(name: str, text: str = "") -> ChatEvent:
        return ChatEvent(name, {"sessionKey": session, "runId": "r", "text": text})

    news = [
        live("assistant:text", "On "), live("assistant:text", "it."), live("usage"),
        live("assistant:text", "Sent "), live("assistant:text", "two."), live("usage"),
    ]  # fmt: skip
    news.insert(place, ChatEvent("reply", ChatReply("Sent two.")))
    for one in news:
        chat._hear(one)
    chat._window.clear()
    paper = Paper(80)
    paper.write(capsys.readouterr().out)
    lines = [line.removeprefix("> ").rstrip() for line in paper.rows if line.strip("> ")]
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
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = "agent:main:main"
    chat = Chatting(tmp_path, session, tmp_path, Notices(command))
    first, last = (
        ChatEvent("assistant:text", {"sessionKey": session, "runId": "r", "text": text})
        for text in ("first ", "last")
    )
    for one in (
        first,
        ChatEvent("reply", ChatReply("Model: offline")),
        ChatEvent("reply", ChatReply("first last")),
        last,
    ):
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


@pytest.mark.parametrize(
    ("line", "asks"), [("/attach", True), ("/answer", True), ("/answer q_1", True), ("/attach x", False)]
)
def test_a_command_of_the_chat_without_what_it_needs_says_how_it_is_written(line: str, asks: bool) -> None:
    word, _, rest = line.partition(" ")
    assert (chat.usage_of(word, rest) is not None) == asks
    if asks:
        assert str(chat.usage_of(word, rest)).startswith(f"Usage: {word} ")


@pytest.mark.parametrize(
    ("typed_", "meant"), [('"my label"', "my label"), ("'a'", "a"), ("t_1", "t_1"), ('say "hi"', 'say "hi"')]
)
def test_quotes_around_a_label_are_no_part_of_it(typed_: str, meant: str) -> None:
    assert chat.target(typed_) == meant


def test_stop_names_the_subagents_it_would_stop_and_stops_them_when_it_is_said_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = "agent:main:main"
    chat = Chatting(tmp_path, session, tmp_path, Notices(command))
    chat._tasks = [{"outcome": None, "rootKey": key} for key in (session, session, "agent:main:chat:other")]
    chat._submit("/stop")
    assert chat._to_send.empty()
    assert "2 subagents are running" in capsys.readouterr().out
    chat._submit("/status")
    chat._submit("/stop")
    assert chat._to_send.qsize() == 1
    chat._submit("/stop")
    assert chat._to_send.qsize() == 2
    chat._submit("/stop all")
    assert chat._to_send.qsize() == 3
    chat._tasks = []
    chat._submit("/stop")
    assert chat._to_send.qsize() == 4
