"""The parts of a chat: lines about subagents and tools, Markdown in blocks, and the panel with its keys."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, cast
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clutch.cli import output
from clutch.cli.chat.activity import ChatActivity, SubagentLines, tool_line
from clutch.cli.chat.markdown import Block, Blocks, drawn
from clutch.cli.chat.panel import Panel
from clutch.cli.chat.stream import TAIL_PAGE, said_last
from clutch.cli.chat.terminal import Key
from clutch.cli.output import columns, plain
from clutch.errors import ClutchError, NoGateway
from clutch.surfaces.http_client import Declined, GatewayClient
from tests.surfaces.display import Display
from tests.surfaces.test_talk import SESSION, command, conversation, shown

__all__ = ["shown"]


def task(name: str, **changes: Any) -> dict[str, Any]:
    usage = {"subtree": {"input": 0, "output": 0, "calls": 0, "usd": None}}
    made: dict[str, Any] = {
        "taskId": name, "parentTaskId": None, "label": f"label {name}", "status": "running", "outcome": None,
        "depth": 1, "doingNow": "thinking", "doingSince": None, "lastProgressAt": None, "startedAt": None,
        "endedAt": None, "usage": usage, "delivery": {"status": None, "text": ""}, "generation": 1,
    }  # fmt: skip
    return {**made, **changes}


def test_stop_stops_the_turn_and_stop_all_asks_before_it_stops_subagents(
    tmp_path: Path, shown: Display
) -> None:
    chat = conversation(tmp_path)
    chat._panel.show_tasks([task("t_1"), task("t_2", outcome="ok"), task("t_3")], "2 running")
    chat._submit("/stop")
    assert "No turn is running." in shown.text
    assert chat._to_send.empty()
    chat._activity.begin(0.0)
    chat._submit("/stop")
    assert chat._to_send.qsize() == 1
    chat._submit("/stop all")
    assert ("label t_1" in shown.text, "label t_2" in shown.text) == (True, False), "what stops is named"
    assert chat._panel.rows(80, is_empty=True)[0] == "Stop this turn and 2 subagents?"
    assert chat._panel.take("n")
    assert chat._to_send.qsize() == 1
    chat._submit("/stop all")
    assert chat._panel.take("y")
    assert chat._to_send.qsize() == 2
    assert not chat._panel.take("y"), "one key, one answer"


def test_a_line_for_each_spawn_and_each_end_is_made_once_when_events_come_late_or_twice() -> None:
    lines = SubagentLines(command)
    ended = task("t_1", outcome="ok", status="done", delivery={"status": "delivered", "text": "delivered"})
    news = [{"seq": 1, "task": ended}, {"seq": 1, "task": ended}, {"seq": 4, "task": ended}]
    made = [line.text for event in news for line in lines.of_event(event)]
    assert made == [
        "↳ spawned “label t_1” · t_1 · queued",
        "↳ done “label t_1” · t_1 · -",
        "↳ delivered “label t_1” · t_1",
    ]
    again = {
        "seq": 9,
        "task": {**ended, "generation": 2, "status": "failed", "outcome": "error", "doingNow": "no"},
    }
    assert [line.text for line in lines.of_event(again)][:2] == [
        "↳ failed “label t_1” · t_1 · -",
        "  no -> clutch retry t_1 --state here",
    ]


def test_what_an_agent_does_now_is_shown_with_seconds() -> None:
    activity = ChatActivity()
    assert activity.rows(0.0) == []
    activity.begin(10.0)
    assert activity.rows(16.0) == ["thinking… 6 s"]
    event = {"runId": "r", "text": "search", "tool": {"call": "0", "argument": "TODO"}}
    activity.begin_tool(event, 16.0)
    assert activity.rows(19.0) == ['search "TODO" · 3 s']
    activity.end_tool(event, 20.0)
    activity.write()
    assert activity.rows(21.0) == []
    activity.end()
    assert activity.rows(30.0) == []


@pytest.mark.parametrize(
    ("tool", "changes", "line"),
    [
        ("search", {"lines": 13, "bytes": 3140}, 'search "TODO" → 12 matches, 3.1 kB · 40 ms'),
        ("read", {"lines": 1, "bytes": 12}, 'read "TODO" → 1 line, 12 B · 40 ms'),
        ("read", {"error": "no such file", "seconds": 6.4}, 'read "TODO" → failed: no such file · 6 s'),
        ("shell", {"bytes": 2_400_000, "seconds": 154}, 'shell "TODO" → 0 lines, 2.4 MB · 2m34s'),
    ],
)
def test_a_tool_line_has_argument_size_and_duration(tool: str, changes: dict[str, Any], line: str) -> None:
    given = {"call": "0", "argument": "TODO", "lines": 0, "bytes": 0, "seconds": 0.04, "error": None}
    assert tool_line({"text": tool, "tool": {**given, **changes}}).text == line


# ---- Markdown -------------------------------------------------------------------------------------------


@given(st.text(alphabet="a*#`~-| \n1.", max_size=120), st.integers(1, 7))
@settings(deadline=None)
def test_an_answer_is_cut_into_the_same_blocks_however_it_arrives(text: str, step: int) -> None:
    whole, pieces = Blocks(), Blocks()
    made = [block for at in range(0, len(text), step) for block in pieces.add(text[at : at + step])]
    assert [*made, *pieces.end()] == [*whole.add(text), *whole.end()]
    assert (pieces.rest, whole.rest) == ("", "")


def test_nothing_that_is_settled_changes_and_nothing_is_lost() -> None:
    blocks = Blocks()
    assert blocks.add("one\ntwo\n\n  more") == []
    assert blocks.rest == "one\ntwo\n\n  more"
    assert [block.text for block in blocks.add(" of it\nthree\n\nnext")] == [
        "one\ntwo\n\n  more of it\nthree"
    ]
    assert [block.text for block in blocks.add("\n```py\nx = 1\n  y")] == ["next", "x = 1"]
    assert [block.text for block in blocks.end()] == ["  y"]


@pytest.mark.parametrize("width", [20, 80, 160])
def test_markdown_fits_the_width_and_code_stays_as_it_is(width: int) -> None:
    code = "x = " + "y + " * 60 + "1"
    text = f"# Head\n\nSome **bold** words {'and more ' * 30}\n\n- one\n- two\n\n```\n{code}\n```\n"
    blocks = Blocks()
    lines = [line for block in [*blocks.add(text), *blocks.end()] for line in drawn(block, width)]
    assert code in lines, "a line that is copied has no break and no border"
    assert max(columns(line) for line in lines if line != code) <= width
    assert (lines[0], [line.strip() for line in lines[-3:-1]]) == ("Head", ["• one", "• two"])
    assert "**" not in "".join(lines)


@pytest.mark.parametrize(
    "nasty", ["&#8238;x", "&#27;[2J", "<b>x</b>", "[a](\x1b]0;x)", "`\x9b2J`", "\u202ex"]
)
def test_no_markdown_names_a_character_that_acts_on_the_terminal_or_hides(nasty: str) -> None:
    lines = drawn(Block(plain(f"before {nasty} after")), 80)
    assert all(line.isprintable() for line in lines)
    assert "before" in lines[0]
    assert "after" in lines[-1]
    assert "<b>" not in nasty or nasty in lines[0]


# ---- what was said before ---------------------------------------------------------------------------------


def test_only_as_much_of_a_conversation_is_read_as_is_shown() -> None:
    class Pages:
        asked: ClassVar[list[int | None]] = []

        def get(self, path: str, *, limit: int, before: int | None) -> dict[str, Any]:
            assert path == f"/v1/sessions/{quote(SESSION, safe='')}/conversation"
            self.asked.append(before)
            end = 1000 if before is None else before
            said = [{"kind": "answer", "body": {"text": text}} for text in ("", " ", "yes")]
            lines = [{"seq": seq, **said[seq % 3]} for seq in range(end - limit, end)]
            return {"messages": lines, "earlier": end - limit}

    found = [*islice(said_last(cast(GatewayClient, Pages()), SESSION), 12)]
    assert [one["seq"] for one in found] == [998 - 3 * place for place in range(12)]
    assert Pages.asked == [None, 1000 - TAIL_PAGE]


# ---- the panel ------------------------------------------------------------------------------------------


class Host:
    """A chat that writes down what its panel asks for."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.sent: list[Any] = []
        self.shown: list[str] = []
        self.typed: list[tuple[str, Any]] = []
        self.said: list[str] = []

    def open_task(self, task_id: str) -> None:
        self.opened.append(task_id)

    def send(self, call: Any) -> None:
        self.sent.append(call)

    def show_item(self, item: Any) -> None:
        self.shown.append(item["id"])

    def type_text(self, prompt: str, then: Any) -> None:
        self.typed.append((prompt, then))

    def say(self, text: str, style: str = "") -> None:
        self.said.append(text)


class Posts:
    def __init__(self) -> None:
        self.made: list[tuple[str, Any]] = []

    def post(self, path: str, body: Any) -> dict[str, str]:
        self.made.append((path, body))
        return {"status": "answered"}


def item(name: str, kind: str = "approval", **detail: Any) -> dict[str, Any]:
    return {
        "id": name, "hash": f"hash of {name}", "kind": kind, "status": "needs approval", "label": "survey",
        "sessionKey": SESSION, "taskId": "t_1", "text": "what it asks", "detail": detail,
    }  # fmt: skip


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(output, "now", lambda: now[0])
    return now


def decided(host: Host) -> list[tuple[str, Any]]:
    posts = Posts()
    for call in host.sent:
        call(posts)
    return posts.made


def test_a_key_decides_only_what_has_been_on_the_screen_for_a_moment(clock: list[float]) -> None:
    host = Host()
    panel = Panel(host, SESSION)
    panel.show_items([item("q_1", tool="write", args={"path": "a"})], [])
    assert (host.shown, panel.take("a")) == (["q_1"], False), (
        "the key was on its way before the item was shown"
    )
    clock[0] += 1
    panel.edited_at = clock[0]
    assert not panel.take("a"), "the user is typing"
    clock[0] += 1
    assert panel.rows(80, is_empty=True)[1] == "a approves · r rejects · Esc later"
    assert panel.rows(80, is_empty=False)[1] == "clear the line to decide with a key"
    assert panel.take("a")
    assert decided(host) == [("/v1/inbox/q_1", {"decision": "approve", "text": "", "hash": "hash of q_1"})]
    panel.show_items([item("q_1", tool="write", args={"path": "a"})], [])
    assert not panel.take("a"), "it is decided, although the inbox still has it"


def test_a_shell_command_is_confirmed(clock: list[float]) -> None:
    host = Host()
    panel = Panel(host, SESSION)
    panel.show_items([item("q_1", tool="shell", args={"command": "rm -r x"})], [])
    clock[0] += 1
    assert panel.take("a")
    assert host.sent == []
    assert panel.rows(80, is_empty=True)[0] == "Run exactly this command?"
    assert not panel.take("k"), "another key is the beginning of a text"
    assert host.sent == []
    assert (panel.take("a"), panel.take("y")) == (True, True)
    assert [body["decision"] for _, body in decided(host)] == ["approve"]


def test_an_item_that_changed_is_shown_again_and_the_old_decision_cannot_hit_it(clock: list[float]) -> None:
    host = Host()
    panel = Panel(host, SESSION)
    panel.show_items([item("t_1", "plan")], [])
    clock[0] += 1
    changed = {**item("t_1", "plan"), "hash": "another"}
    panel.show_items([changed], [])
    assert host.shown == ["t_1", "t_1"]
    assert not panel.take("a"), "a key that was meant for the old plan"
    clock[0] += 1
    assert panel.take("r")
    (prompt, then) = host.typed[0]
    then("too long")
    assert (prompt, decided(host)[0][1]) == (
        "reason> ",
        {"decision": "reject", "text": "too long", "hash": "another"},
    )


def test_a_question_is_answered_by_a_number_or_by_a_text_and_escape_decides_later(clock: list[float]) -> None:
    host = Host()
    panel = Panel(host, SESSION)
    asked = [item("q_1", "question", choices=["red", "blue"]), item("q_2", "question")]
    panel.show_items(asked, [])
    clock[0] += 1
    assert panel.take("escape")
    assert host.shown == ["q_1", "q_2"], "the next one"
    clock[0] += 1
    assert panel.take("a")
    assert host.typed[0][0] == "answer> "
    panel.show_tasks([task("t_1", status="needs an answer")], "1 in the inbox")
    panel.show_items(asked[:1], [])
    assert not panel.take("2"), "it waits until it is asked for"
    assert (panel.take("down"), panel.take("a")) == (True, True)
    assert host.shown[-1] == "q_1"
    clock[0] += 1
    assert panel.take("2")
    assert decided(host)[0][1]["text"] == "blue"


def test_a_plan_says_that_the_answer_waits_for_it(clock: list[float]) -> None:
    panel = Panel(Host(), SESSION)
    plan = item("t_1", "plan")
    panel.show_items([plan], [task("t_1", status="needs approval")])
    clock[0] += 1
    held = "a approves · r rejects · Esc later · the answer waits for this plan"
    assert held in "\n".join(panel.rows(100, is_empty=True))
    assert panel.take("escape")
    said = "1 decision left for later · Esc shows them again · the answer waits for the plan of “survey”"
    assert said in panel.rows(100, is_empty=True)


def test_what_was_left_for_later_comes_back_with_escape(clock: list[float]) -> None:
    host = Host()
    panel = Panel(host, SESSION)
    own = [{**item(name, "question"), "taskId": None} for name in ("q_1", "q_2")]  # of the main agent
    panel.show_items(own, [])
    for _ in own:
        clock[0] += 1
        assert panel.take("escape")
    panel.show_items(own, [])
    assert panel.rows(80, is_empty=True) == ["2 decisions left for later · Esc shows them again"]
    assert not panel.take("a"), "the beginning of a text"
    assert panel.take("escape")
    assert host.shown == ["q_1", "q_2", "q_1"], "whole, as before"
    assert not panel.take("a"), "not before it could be read"
    clock[0] += 1
    assert panel.take("a")
    host.typed[0][1]("blue")
    assert [path for path, _ in decided(host)] == ["/v1/inbox/q_1"]
    panel.show_items(own, [])
    clock[0] += 1
    assert (panel.take("escape"), panel.take("escape")) == (True, True)
    assert host.shown[3:] == ["q_2", "q_2"], "what was decided does not come back"


@pytest.mark.parametrize("error", [Declined(409, {"message": "changed"}), NoGateway("gone", "")])
def test_a_decision_that_was_refused_is_offered_again(clock: list[float], error: ClutchError) -> None:
    class Refuses:
        def post(self, path: str, body: Any) -> None:
            raise error

    host = Host()
    panel = Panel(host, SESSION)
    asked = [item("q_1", tool="write", args={"path": "a"})]
    panel.show_items(asked, [])
    clock[0] += 1
    assert panel.take("a")
    with pytest.raises(type(error)):
        host.sent[0](Refuses())
    panel.show_items(asked, [])
    clock[0] += 1
    assert panel.take("a") == isinstance(error, Declined), "without a gateway it is kept, and sent again"


def test_the_first_letter_of_an_answer_decides_nothing(
    tmp_path: Path, shown: Display, clock: list[float]
) -> None:
    chat = conversation(tmp_path)
    chat._panel.show_items([item("q_1", "question")], [])
    clock[0] += 1
    assert chat._take("a")
    clock[0] += 1
    assert not chat._take("a"), "of `a red one`"
    assert chat._below() == ["Enter sends · Esc returns"]
    assert not chat._take("escape")
    chat._press(Key.ESCAPE)
    assert chat._below()[1] == "a answers · r rejects · Esc later"
    assert "what it asks" in shown.text


def test_the_panel_is_walked_and_says_how_many_more_there_are(clock: list[float]) -> None:
    host = Host()
    panel = Panel(host, SESSION)
    assert not panel.take("down"), "there is nothing to enter"
    tasks = [task(f"t_{number}") for number in range(8)] + [task("t_c", parentTaskId="t_0", depth=2)]
    panel.show_tasks(tasks, "9 running")
    rows = panel.rows(80, is_empty=True)
    assert (rows[5].strip(), rows[6]) == ("+ 4 more", "9 running · ↓ subagents")
    assert "    label t_c" in rows[1], "below its own parent"
    assert not panel.take("x"), "the panel is not entered"
    for _ in range(4):
        assert panel.take("down")
    assert any(row.startswith("▸") and "t_2" in row for row in panel.rows(80, is_empty=True))
    assert panel.take("x")
    assert panel.take("n")
    assert host.sent == []
    panel.show_tasks([one for one in tasks if one["taskId"] != "t_2"], "8 running")
    assert any(row.startswith("▸") and "t_3" in row for row in panel.rows(80, is_empty=True))
    assert panel.take("enter")
    assert host.opened == ["t_3"]
    assert not panel.take("x"), "the panel is left"
    for width in (40, 80, 160):
        assert max(map(columns, panel.rows(width, is_empty=True))) <= width


def test_stopping_a_task_names_what_is_below_it(clock: list[float]) -> None:
    host = Host()
    panel = Panel(host, SESSION)
    panel.show_tasks([task("t_1"), task("t_2", parentTaskId="t_1", depth=2), task("t_3")], "")
    assert (panel.take("down"), panel.take("x")) == (True, True)
    assert ("t_2" in host.said[-1], "t_3" in host.said[-1]) == (True, False)
    assert panel.rows(80, is_empty=True)[0] == "Stop “label t_1” (t_1) and 1 subagent below it for good?"
