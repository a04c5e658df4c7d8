"""Conversations over HTTP: entries and unread messages as of one moment, their cursor, the event `chat`, commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clutch.api.slash import COMMANDS
from clutch.core.model import RunState, TaskStatus
from clutch.core.status import session_status
from clutch.errors import ClutchError
from clutch.surfaces.http_client import session_path
from tests.surfaces.served import Served
from tests.surfaces.test_http_events import watching

MAIN = "agent:main:main"


def say(db: Served, text: str, session: str = MAIN, **options: Any) -> str:
    return str(db.client.post(session_path(session, "messages"), {"text": text, **options})["letterId"])


def settled(db: Served, session: str = MAIN) -> None:
    assert db.client.get(session_path(session, "settled"), timeoutSeconds=30)["settled"]


def conversation(db: Served, session: str = MAIN, **place: Any) -> dict[str, Any]:
    return dict(db.client.get(session_path(session, "conversation"), **place))


def chats(events: Iterator[Any], status: str | None) -> Any:
    """Read the stream up to a `chat` event of the main session with this status."""
    wanted = (status, MAIN)
    read = (one.data for one in events if one.name == "chat")
    return next(one for one in read if (one["status"], one["sessionKey"]) == wanted)


def next_chat(events: Iterator[Any]) -> Any:
    return next(one.data for one in events if one.name == "chat")


def test_a_message_is_unread_or_in_the_transcript_and_never_both(db: Served) -> None:
    with watching(db, "?include=overview") as events:
        say(db, "slow one")
        running = chats(events, "running")
        letter = say(db, "the next")
        found = conversation(db)
        assert [one["body"]["text"] for one in found["messages"]] == ["slow one"]
        assert [(one["letterId"], one["text"]) for one in found["waiting"]] == [(letter, "the next")]
        assert (found["chat"]["waiting"], found["chat"]["head"]) == (1, running["head"])
        db.let_go()
        ended = chats(events, None)
    settled(db)
    found = conversation(db)
    assert found["waiting"] == []
    assert [one["body"]["text"] for one in found["messages"]][0::2] == ["slow one", "the next"]
    assert all(one["endedAt"] and not one["stopped"] and one["error"] is None for one in found["turns"])
    assert ended["sessionKey"] == MAIN


def test_a_stream_begins_with_every_conversation_and_the_others_get_none_again(db: Served) -> None:
    other = "agent:main:chat:other"
    for session in (MAIN, other):
        say(db, "hello", session)
        settled(db, session)
    query = "?include=overview"
    with watching(db, query) as first:
        assert {next_chat(first)["sessionKey"] for _ in range(2)} == {MAIN, other}
        for _ in range(3):
            with watching(db, query) as joined:
                assert {next_chat(joined)["sessionKey"] for _ in range(2)} == {MAIN, other}
        say(db, "slow one")
        seen: list[Any] = []
        while not seen or seen[-1]["status"] != "running":
            seen.append(next_chat(first))
        assert {one["sessionKey"] for one in seen} == {MAIN}
        with watching(db, query) as joined:  # a change that others have not been sent yet reaches all
            db.let_go()
            for events in (first, joined):
                assert chats(events, None)["lastLine"] == "heard: slow one"


def test_a_conversation_is_read_from_its_end_and_by_cursor(db: Served) -> None:
    for number in range(5):
        say(db, f"message {number}")
        settled(db)
    newest = conversation(db, limit=4)
    assert [one["seq"] for one in newest["messages"]] == [7, 8, 9, 10]
    earlier = conversation(db, limit=4, before=newest["earlier"])
    assert [one["seq"] for one in earlier["messages"]] == [3, 4, 5, 6]
    first = conversation(db, limit=4, before=earlier["earlier"])
    assert ([one["seq"] for one in first["messages"]], first["earlier"]) == ([1, 2], None)
    later = conversation(db, limit=4, after=2)
    assert ([one["seq"] for one in later["messages"]], later["more"]) == ([3, 4, 5, 6], True)
    (chat,) = db.client.get("/v1/chats")["chats"]
    assert (chat["sessionKey"], chat["head"], chat["lastLine"]) == (MAIN, 10, "heard: message 4")
    assert (chat["status"], chat["children"]) == (None, 0)


def test_a_stopped_turn_says_so(db: Served) -> None:
    with watching(db, "?include=overview") as events:
        say(db, "slow one")
        chats(events, "running")
        assert db.client.post(session_path(MAIN, "halt"))["stopped"]
        chats(events, None)
    (turn,) = conversation(db)["turns"]
    assert turn["stopped"]
    db.let_go()


def test_an_unknown_session_is_not_created_by_reading_it(db: Served) -> None:
    with pytest.raises(ClutchError, match="no session"):
        conversation(db, "agent:main:chat:nothing")
    assert db.client.get(session_path("agent:main:chat:nothing", "files"), prefix="")["files"] == []
    assert db.client.get("/v1/chats")["chats"] == []
    for _ in range(2):
        db.client.post("/v1/sessions/agent:main:chat:nothing")
    found = conversation(db, "agent:main:chat:nothing")
    assert (found["messages"], found["chat"]["head"], found["chat"]["lastLine"]) == ([], 0, "")
    with pytest.raises(ClutchError, match="there is no agent 'nobdy'"):
        db.client.post("/v1/sessions/agent:nobdy:main")


def test_files_are_added_only_if_the_client_asks_for_it(db: Served, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("albatross")
    say(db, "read @notes.md")
    settled(db)
    say(db, "read @notes.md", files=True)
    settled(db)
    texts = [one["body"]["text"] for one in conversation(db)["messages"] if one["kind"] == "input"]
    assert ["albatross" in text for text in texts] == [False, True]
    with pytest.raises(ClutchError, match="state directory of Clutch"):
        say(db, "read @state/token", files=True)


def test_the_names_of_all_commands_are_listed(db: Served) -> None:
    found = db.client.get("/v1/commands")["commands"]
    assert [one["name"] for one in found] == list(COMMANDS)
    assert all(one["usage"].startswith("/") for one in found)


@pytest.mark.parametrize(
    ("run", "owned", "failed", "letters", "children", "wanted"),
    [
        (RunState.RUNNING, True, False, 0, 3, TaskStatus.RUNNING),
        (RunState.RUNNING, False, False, 0, 0, TaskStatus.QUEUED),
        (RunState.ANSWERED, False, False, 0, 0, TaskStatus.QUEUED),
        (RunState.ASKING, False, False, 0, 0, TaskStatus.NEEDS_ANSWER),
        (RunState.PARKED, False, True, 0, 0, TaskStatus.FAILING),
        (RunState.PARKED, False, False, 0, 0, TaskStatus.WAITING),
        (None, False, False, 1, 2, TaskStatus.QUEUED),
        (None, False, False, 0, 2, TaskStatus.WAITING),
        (None, False, False, 0, 0, None),
    ],
)
def test_the_status_of_a_main_session(
    run: RunState | None, owned: bool, failed: bool, letters: int, children: int, wanted: TaskStatus | None
) -> None:
    found = session_status(run, is_owned=owned, has_failed=failed, letters=letters, children=children)
    assert found == wanted
