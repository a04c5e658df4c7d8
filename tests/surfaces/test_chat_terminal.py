"""`clutch chat` in a real terminal of 80 and of 160 columns: Markdown, tools, subagents, the panel, and decisions."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clutch.cli.chat.stream import unread
from clutch.core.messages import Answer, Call, Input, Results
from clutch.ports import Delta, DeltaKind, ModelRequest, OnDelta
from clutch.surfaces.http_client import task_path
from clutch.tools.registry import ToolSettings
from clutch.tools.sandbox.policy import Sandbox
from tests.patience import PATIENCE_S
from tests.surfaces.pseudo import Terminal, terminal
from tests.surfaces.served import FAST, Served, served
from tests.surfaces.test_http_tasks import seen, spawned

CODE = "total=" + "first_value+" * 16 + "last_value"  # without a blank, which the display drops at its edge
MARKDOWN = f"""# What I found

Three **important** files, {"and more words " * 12}here.

- one
- two

```python
{CODE}
```

Done with `everything`."""
#: The calls with which the model begins its answer to these words.
CALLS = {
    "look": (Call("search", {"pattern": "TODO"}), Call("read", {"path": "missing.txt"})),
    "team": tuple(
        Call("sessions_spawn", {"task": f"slow {name}", "label": f"Part {name}"}) for name in ("one", "two")
    ),
    "run it": (Call("shell", {"command": "touch ran\ntouch again"}),),
    "ask": (Call("ask_human", {"question": "Which colour?", "choices": ["red", "blue"]}),),
}


class Worker:
    """Makes the calls of `CALLS`; `markdown` streams a text, `slow …` waits until it is let go."""

    def __init__(self) -> None:
        self.go, self.next_piece = asyncio.Event(), asyncio.Semaphore(0)

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        told = [one for one in request.transcript if isinstance(one, Input)][-1]
        word = told.text.rpartition("\n")[2]
        if word == "markdown":
            for place in range(0, len(MARKDOWN), 9):
                on_delta(Delta(DeltaKind.TEXT, MARKDOWN[place : place + 9]))
                await asyncio.sleep(0)
            return Answer(MARKDOWN, model="worker")
        if word in CALLS and not isinstance(request.transcript[-1], Results):
            return Answer("", CALLS[word], model="worker")
        if word.startswith("slow"):
            await self.go.wait()
        return Answer(f"heard: {word}" if told.source == "user" else f"done: {word}", model="worker")


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Served]:
    (tmp_path / "notes.md").write_text("TODO: water the plants\nTODO: sleep\n")
    settings = ToolSettings(sandbox=Sandbox.OFF, shell_needs_approval=True)
    with served(tmp_path / "state", Worker(), FAST, settings=settings) as one:
        yield one


def left(person: Terminal) -> None:
    person.type("\x04")
    assert person.ended() == 0


def rows_with(person: Terminal, words: str) -> list[str]:
    return [line for line in person.display.lines if words in line]


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 160])
def test_an_answer_is_drawn_as_markdown_once_and_its_code_can_be_copied(here: Served, columns: int) -> None:
    with terminal("chat", state=here.home, columns=columns) as person:
        person.until_row(">")
        person.type("markdown\r")
        person.until_row("Done with everything.")
        person.type("/status\r")
        person.until("State: idle")
        left(person)
        lines = person.display.lines
        assert lines.count("What I found") == 1
        assert [line.strip() for line in lines if line.startswith(" • ")] == ["• one", "• two"]
        assert CODE in "".join(lines), "the terminal wraps it; no character stands in between"
        assert not any("**" in line or "```" in line for line in lines)
        paragraph = lines[lines.index("What I found") + 2]
        assert paragraph.startswith("Three important files, and more words")
        assert (len(paragraph) > 80) == (columns == 160), "the width is used"


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 160])
def test_tools_have_argument_size_and_duration_and_thinking_has_seconds(here: Served, columns: int) -> None:
    with terminal("chat", state=here.home, columns=columns) as person:
        person.until_row(">")
        person.type("look\r")
        person.until_row(r'search "TODO" → 2 matches, \d+ B · .*s')
        person.until_row(r'read "missing.txt" → failed: .*missing.txt.*')
        person.until("heard: look")
        person.type("slow one\r")
        person.until_row(r"thinking… [1-9]\d* s")
        here.let_go()
        person.until("heard: slow one")
        left(person)
        assert len(rows_with(person, 'search "TODO"')) == 1
        assert rows_with(person, "thinking…") == [], "it is no line of the conversation"


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 160])
def test_subagents_have_lines_and_a_panel_that_opens_messages_and_stops_them(
    here: Served, columns: int
) -> None:
    with terminal("chat", state=here.home, columns=columns) as person:
        person.until_row(">")
        person.type("team\r")
        person.until_row("↳ spawned “Part one” · t_.* · .*")
        person.until_row("  running +Part two +thinking.* t_.*")
        person.until_row("2 running.*↓ subagents")
        person.type("\x1b[B")
        person.until_row("▸ running +Part one .*")
        person.until_row("Enter opens and messages · x stops · a approves · Esc returns")
        person.type("\x1b[B")
        person.until_row("▸ running +Part two .*")
        person.type("\r")
        person.until_row("message>")
        person.type("also the docs\r")
        person.until("(accepted)")
        person.type("\x1b")
        person.until_row("2 running.*")
        person.type("\x1b[B")
        person.until_row("▸ running +Part one .*")
        person.type("x")
        person.until_row("Stop “Part one” .t_.*. for good.")
        person.type("n")
        person.until_row("Nothing was done.")
        person.type("x")
        person.until_row("Stop “Part one” .t_.*. for good.")
        person.type("y")
        person.until_row("↳ killed “Part one” · t_.*")
        person.type("\x1b")
        here.let_go()
        person.until_row("↳ done “Part two” · t_.*")
        person.until_row("↳ delivered “Part two” · t_.*")
        person.until("done: ")
        left(person)
        assert len(rows_with(person, "↳ spawned")) == 2
        assert len(rows_with(person, "↳ done “Part two”")) == 1
        two = next(one for one in here.client.get("/v1/tasks")["tasks"] if one["label"] == "Part two")
        lines = here.client.get(task_path(two["taskId"], "transcript"))["messages"]
        assert any("also the docs" in str(line["body"]) for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 160])
def test_a_shell_command_is_shown_whole_and_approved_with_two_keys(
    here: Served, columns: int, tmp_path: Path
) -> None:
    with terminal("chat", state=here.home, columns=columns) as person:
        person.until_row(">")
        person.type("run it\r")
        person.until_row("  command: touch ran")
        person.until_row("    touch again")
        person.until_row("a approves · r rejects · Esc later")
        person.type("an")
        person.until_row("> an")
        person.until_row("clear the line to decide with a key")
        person.type("\x03")
        person.until_row("a approves · r rejects · Esc later")
        person.type("a")
        person.until_row("Run exactly this command.")
        assert not (tmp_path / "ran").exists()
        person.type("y")
        person.until_row("q_.*: approved")
        person.until("heard: run it")
        assert (tmp_path / "ran").exists()
        left(person)


@pytest.mark.slow
def test_a_plan_is_rejected_with_a_reason_and_a_question_is_answered_by_its_number(here: Served) -> None:
    with terminal("chat", state=here.home) as person:
        person.until_row(">")
        person.type("ask\r")
        person.until_row("  2  blue")
        person.until_row("1 red · 2 blue · a answers · r rejects · Esc later")
        person.type("2")
        person.until_row("q_.*: answered")
        person.until("heard: ask")
        task = spawned(here.client, "think first", planMode=True, label="planner")
        person.until_row("Needs approval: planner .*")
        person.until_row("a approves · r rejects · Esc later · the answer waits for this plan")
        person.type("r")
        person.until_row("reason>")
        person.type("too long\r")
        person.until_row(f"{task}: revising")
        seen(here.client, task, lambda one: one["plan"]["round"] == 1)
        left(person)


@pytest.mark.slow
def test_the_panel_approves_what_was_put_off(here: Served, tmp_path: Path) -> None:
    spawned(here.client, "run it", label="builder")
    with terminal("chat", state=here.home) as person:
        person.until_row("a approves · r rejects · Esc later")
        person.type("\x1b")
        person.until_row("1 in the inbox.*↓ subagents")
        person.type("\x1b[B")
        person.until_row("▸ needs approval +builder.*")
        person.type("a")
        person.until_row("Approve this for “builder” .*")
        person.type("y")
        person.until_row("q_.*: approved")
        person.until_row("↳ done “builder”.*")
        left(person)
    assert (tmp_path / "ran").exists()


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 160])
def test_stop_stops_the_turn_and_stop_all_asks_first(here: Served, columns: int) -> None:
    with terminal("chat", state=here.home, columns=columns) as person:
        person.until_row(">")
        person.type("team\r")
        person.until("heard: team")
        person.until_row("2 running.*")
        person.type("slow question\r")
        person.until_row(r"thinking… \d+ s")
        person.type("/stop\r")
        person.until("Stopping this turn; subagents keep running.")
        person.type("/stop all\r")
        person.until("These stop for good")
        person.until_row("  running · Part one .*")
        person.until_row("Stop this turn and 2 subagents.")
        person.type("n")
        person.until("Nothing was done.")
        assert all(one["outcome"] is None for one in here.client.get("/v1/tasks")["tasks"])
        person.type("/stop all\r")
        person.until_row("Stop this turn and 2 subagents.")
        person.type("y")
        # Whether the turn of before has ended meanwhile is not known.
        person.until_row(r".*[Ss]topped (this turn and )?2 subagents\.")
        person.until_row("↳ killed “Part two”.*")
        left(person)


@pytest.mark.slow
def test_a_chat_that_is_opened_again_shows_the_last_messages_once(here: Served) -> None:
    with terminal("chat", state=here.home) as person:
        person.until_row(">")
        for number in range(5):
            person.type(f"message {number}\r")
            person.until(f"heard: message {number}")
        # A reply that was shown is confirmed by the next request for replies.
        deadline = time.monotonic() + PATIENCE_S
        while [*unread(here.client, "agent:main:main")]:
            assert time.monotonic() < deadline, "the last reply was never confirmed"
        left(person)
        assert rows_with(person, "── ") == [], "there was nothing to show at the first time"
    with terminal("chat", state=here.home, columns=160) as person:
        person.until_row("── .* ──")
        person.until_row(">")
        lines = person.display.lines
        assert any(line.startswith("… earlier messages: `clutch logs") for line in lines)
        assert [line for line in lines if re.match("> message|heard", line)] == [
            text for number in (2, 3, 4) for text in (f"> message {number}", f"heard: message {number}")
        ]
        left(person)
    here.client.post("/v1/sessions/agent:main:main/messages", {"text": "from elsewhere"})
    here.client.get("/v1/sessions/agent:main:main/settled")
    with terminal("chat", state=here.home) as person:
        person.until("heard: from elsewhere")
        person.type("/status\r")
        person.until("State: idle")
        left(person)
        assert len(rows_with(person, "heard: from elsewhere")) == 1, "an unread reply is not repeated"
