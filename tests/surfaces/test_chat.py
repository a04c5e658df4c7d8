"""`clutch chat`: in a real terminal, and with a pipe on stdin."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from clutch.cli.chat import message
from clutch.core.messages import Answer, Call, Input, Results
from clutch.errors import ClutchError, NoGateway
from clutch.models.demo_model import OfflineModel
from clutch.ports import Delta, DeltaKind, ModelRequest, OnDelta
from clutch.surfaces.http_client import GatewayClient, task_path
from tests.surfaces.pseudo import terminal
from tests.surfaces.served import FAST, Served, served
from tests.surfaces.test_http_tasks import seen, spawned
from tests.surfaces.typed import typed


class Talkative:
    """Says what it heard in two pieces; `slow …` waits in between, `delegate` starts a child that is slow."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        told = [message for message in request.transcript if isinstance(message, Input)]
        newest = told[-1]
        if newest.text == "delegate" and not isinstance(request.transcript[-1], Results):
            return Answer("", (Call("sessions_spawn", {"task": "slow child", "label": "helper"}),))
        if newest.text == "delegate aloud" and not isinstance(request.transcript[-1], Results):
            on_delta(Delta(DeltaKind.TEXT, "On it."))
            return Answer("On it.", (Call("sessions_spawn", {"task": "slow child", "label": "helper"}),))
        first = "heard: " if newest.source != "announce" else "told: "
        on_delta(Delta(DeltaKind.TEXT, first))
        if newest.text.rpartition("\n")[2].startswith("slow"):
            await self.go.wait()
        rest = " ".join(newest.text.split()[:4])
        on_delta(Delta(DeltaKind.TEXT, rest))
        return Answer(first + rest, model="talkative")


@pytest.fixture
def first(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "state", Talkative(), FAST) as here:
        yield here


@pytest.mark.slow
def test_a_person_talks_stops_a_turn_and_leaves_while_a_child_works_on(first: Served, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("water the plants")
    with terminal("chat", state=first.home, cwd=tmp_path) as person:
        person.until("Talking to agent:main:main")
        person.until_row(">")
        person.type("hello \\\r@no\t\r")
        person.until("heard: hello @notes.md notes.md: ```")
        person.type("/sta\t\r")
        person.until("State: idle")
        person.type("slow question\r")
        person.until_row("heard:")
        person.type("\x03")
        person.until("Stopping this turn")
        person.type("delegate\r")
        person.until("heard: delegate")
        person.until_row("1 running.*")
        person.type("\x03\x03")
        assert person.ended() == 0
    assert json.loads((first.home / "chat-history").read_text().splitlines()[-1]) == "delegate"
    assert (first.home / "chat-history").stat().st_mode & 0o777 == 0o600
    (child,) = first.client.get("/v1/tasks")["tasks"]
    assert (child["label"], child["outcome"]) == ("helper", None)
    first.let_go()
    with terminal("chat", state=first.home) as person:
        person.until_row("told: .+")
        assert person.display.text.count("told: ") == 1
        person.type("\x1b[A")
        person.until_row("> delegate")
        person.type("\x03\x04")
        assert person.ended() == 0
    assert typed("doctor", "--json", state=first.home).body["invariants"]["broken"] == []


@pytest.mark.slow
def test_a_turn_that_speaks_spawns_and_speaks_is_shown_once(first: Served) -> None:
    with terminal("chat", state=first.home) as person:
        person.until_row(">")
        person.type("delegate aloud\r")
        person.until("heard: delegate aloud")
        person.type("/status\r")
        person.until("State: idle")
        person.type("\x04")
        assert person.ended() == 0
        # Pieces of the first answer are missed when the stream of events is not connected yet.
        assert person.display.lines.count("On it.") <= 1
        assert person.display.lines.count("heard: delegate aloud") == 1, (
            "the whole reply is not printed again"
        )
        assert "On it.heard" not in person.display.text
    first.let_go()


@pytest.mark.slow
def test_model_text_never_acts_on_the_terminal(first: Served) -> None:
    """The display of the test refuses every control character and sequence that is not the chat's own."""
    with terminal("chat", state=first.home, columns=40) as person:
        person.until_row(">")
        nasty = "\x1b]0;owned\x07 \x9b2J\u202e \x1b[6n"
        first.client.post("/v1/sessions/agent:main:main/messages", {"text": nasty})
        person.until_row(r"heard: \\x1b]0;owned\\x07 \\x9b2J\\u202e")
        person.until_row(r"\\x1b\[6n")
        person.type("\x1b[200~two\rlines \x1b[2J\x1b[201~")
        person.until_row("> two")
        person.until_row(r"  lines \[2J")
        person.type("\r\x04")
        assert person.ended() == 0


@pytest.mark.slow
def test_a_closed_terminal_ends_the_chat_and_keeps_its_history(first: Served) -> None:
    with terminal("chat", state=first.home) as person:
        person.until_row(">")
        person.type("hello\r")
        person.until("heard: hello")
        person.hang_up()
        assert person.ended() == 0
    assert json.loads((first.home / "chat-history").read_text()) == "hello"


@pytest.mark.slow
def test_attach_within_a_chat_returns_to_it(first: Served) -> None:
    task = spawned(first.client, "slow work", label="worker")
    seen(first.client, task, lambda one: one["phase"] == "running")
    with terminal("chat", state=first.home) as person:
        person.until_row(">")
        person.type("/attach worker\r")
        person.until_row("steer>")
        person.type("\x1b")
        person.until_row(">")
        person.type("hello\r")
        person.until("heard: hello")
        person.type("\x04")
        assert person.ended() == 0


@pytest.mark.slow
def test_attach_watches_steers_and_detaches(first: Served) -> None:
    task = spawned(first.client, "slow work", label="worker")
    seen(first.client, task, lambda one: one["phase"] == "running")
    with terminal("attach", "worker", state=first.home) as person:
        person.until("> task: ")
        person.until_row("steer>")
        person.type("slow and elsewhere\r")
        person.until("(accepted)")
        person.type("\x1b")
        assert person.ended() == 0
    assert first.client.get(task_path(task))["outcome"] is None
    with terminal("attach", task, state=first.home) as person:
        person.until_row("steer>")
        first.let_go()
        person.until("done · worker")
        assert person.ended() == 0


def test_a_pipe_is_one_message_per_line_and_answers_are_printed(first: Served) -> None:
    said = typed("chat", state=first.home, stdin="hello\n\n/model\nand more\n")
    assert (said.code, said.out.splitlines()[0], said.out.splitlines()[-1]) == (
        0,
        "heard: hello",
        "heard: and more",
    )
    assert "Model: " in said.out
    first.let_go()
    lines = typed("chat", "--json", state=first.home, stdin="delegate\n").out.splitlines()
    told = [json.loads(line) for line in lines]
    assert [line["schema"] for line in told] == ["clutch.chat/1"] * 2
    assert told[0]["reply"] == "heard: delegate"
    assert told[1]["reply"].startswith("told: ")


@pytest.mark.slow
def test_the_offline_model_surveys_a_folder_without_a_key(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("TODO: water the plants\n")
    with served(tmp_path / "state", OfflineModel(lambda _: 0.0), FAST) as here:
        said = typed("chat", state=here.home, stdin="Survey the folder\n")
    assert said.code == 0
    assert "notes.md:1" in said.out


def test_a_pipe_that_meets_a_question_says_who_is_needed(tmp_path: Path) -> None:
    with served(tmp_path / "state", policy=FAST) as here:
        said = typed("chat", state=here.home, stdin="ask me\nnever sent\n")
    assert said.code == 5
    assert "clutch inbox" in said.err


def test_a_pipe_has_the_commands_of_a_terminal(tmp_path: Path) -> None:
    with served(tmp_path / "state", policy=FAST) as here:
        asked = typed("chat", state=here.home, stdin="/help\nask me\n")
        assert (asked.code, "/answer ID" in asked.err) == (5, True)
        (item,) = here.client.get("/v1/inbox")["items"]
        assert f"{item['id']}  needs an answer: " in asked.err
        said = typed("chat", state=here.home, stdin=f"/answer {item['id']} a\n/quit\nnever sent\n")
    assert (said.code, said.out.count("heard: ")) == (0, 1)


class Deaf(GatewayClient):
    """What it says arrives; the answer does not."""

    def post(self, *what: Any, **how: Any) -> Any:
        GatewayClient.post(self, *what, **how)
        raise NoGateway("gone")


def test_an_answer_that_arrived_before_the_gateway_went_is_not_missed_at_the_next_try(tmp_path: Path) -> None:
    with served(tmp_path / "state", policy=FAST) as here:
        typed("chat", state=here.home, stdin="ask me\n")
        (item,) = here.client.get("/v1/inbox")["items"]
        decide = message.answer(f"{item['id']} a")
        with pytest.raises(NoGateway):
            decide(Deaf(here.client.address, here.client.token))
        decide(here.client)
        with pytest.raises(ClutchError, match="is not in the inbox"):
            message.answer(f"{item['id']} a")(here.client)


def test_words_that_were_read_are_not_counted_as_to_be_read(tmp_path: Path) -> None:
    with served(tmp_path / "state", policy=FAST) as here:
        assert typed("run", "say hello", "--wait", state=here.home).code == 0
        assert "to read" not in typed("ps", state=here.home).err
        elsewhere = "agent:main:chat:other"
        for key in ("agent:main:main", elsewhere):
            here.client.post(f"/v1/sessions/{key}/messages", {"text": "hello"})
            here.client.get(f"/v1/sessions/{key}/settled")
        here.client.post("/v1/sessions/agent:main:main/messages", {"text": "/model"})
        listed = typed("ps", state=here.home).err
        assert "3 replies to read" in listed
        assert (f"chat --session {elsewhere}" in listed, "logs main" in listed) == (True, True)
        logs = typed("logs", "main", state=here.home).out
        assert (logs.count("heard: hello"), logs.count("Model: ")) == (1, 1), (
            "a command's answer is in no transcript"
        )
        with terminal("logs", "main", state=here.home) as person:
            person.until("Model: ")
            assert person.ended() == 0
        assert here.client.get("/v1/inbox")["repliesIn"] == [elsewhere], "at a terminal they were read"


@pytest.mark.slow
def test_what_is_typed_while_the_gateway_is_away_is_sent_when_it_is_back(tmp_path: Path) -> None:
    home = tmp_path / "state"
    with ExitStack() as open_:
        with served(home, policy=FAST):
            person = open_.enter_context(terminal("chat", state=home))
            person.until_row(">")
        person.until("Gateway not running")
        person.type("hello again\r")
        with served(home, policy=FAST):
            person.until("heard: hello again")
            person.type("\x04")
            assert person.ended() == 0


@pytest.mark.slow
def test_the_inbox_is_decided_with_keys_at_a_terminal(first: Served) -> None:
    task = spawned(first.client, "think first", planMode=True, label="planner")
    seen(first.client, task, lambda one: one["phase"] == "awaiting_approval")
    with terminal("inbox", state=first.home) as person:
        person.until("planner")
        person.until("[a]pprove  [r]eject")
        person.type("r")
        person.until("Why")
        person.type("too long\r")
        person.until("revising")
        assert person.ended() == 0
    seen(first.client, task, lambda one: one["plan"]["round"] == 1)


@pytest.mark.slow
def test_escape_leaves_the_inbox(first: Served) -> None:
    task = spawned(first.client, "think first", planMode=True, label="planner")
    seen(first.client, task, lambda one: one["phase"] == "awaiting_approval")
    with terminal("inbox", state=first.home) as person:
        person.until("[a]pprove  [r]eject")
        person.type("\x1b")
        assert person.ended() == 0


@pytest.mark.slow
def test_the_inbox_asks_again_for_an_empty_answer_and_ignores_keys_typed_before_an_item_is_shown(
    tmp_path: Path,
) -> None:
    with served(tmp_path / "state", policy=FAST) as here:
        curious = spawned(here.client, "ask openly", label="curious")
        seen(here.client, curious, lambda one: one["reason"] == "needs-you")
        planner = spawned(here.client, "think first", planMode=True, label="planner")
        seen(here.client, planner, lambda one: one["phase"] == "awaiting_approval")
        with terminal("inbox", state=here.home) as person:
            person.until("[a]nswer")
            person.type("a")
            person.until("Your answer")
            person.type("\r")
            person.until("must not be blank")
            person.until("[a]nswer")
            person.type("a")
            person.until("Your answer")
            person.type("Ada\ra")  # the second a comes before the plan is shown
            person.until("[a]pprove")
            person.type("q")
            assert person.ended() == 0
        assert here.client.get(task_path(planner))["phase"] == "awaiting_approval"
