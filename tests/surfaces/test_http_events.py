"""Live events over a real socket: in order, no gap and no repetition across a reconnect, bounded for the slow."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from clutch.api.feed import LIVE_NAMES, FeedBatch, FeedEvent
from clutch.core import ids
from clutch.engine.live import Live
from clutch.surfaces.http.events import HELD_BYTES_MAX, Stream
from clutch.surfaces.http_client import task_path
from tests.patience import PATIENCE_S
from tests.surfaces.served import FAST, Served, served
from tests.surfaces.test_http_tasks import ended, seen, spawned


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("gateway") / "state", policy=FAST) as here:
        yield here


@dataclass(frozen=True, slots=True)
class Event:
    id: str | None
    name: str
    data: dict[str, Any]

    @property
    def line(self) -> tuple[str, int]:
        return self.data["taskId"], self.data["seq"]


@contextmanager
def watching(db: Served, query: str = "", **headers: str) -> Iterator[Iterator[Event]]:
    """Open once the gateway has said that it is there."""
    line = http.client.HTTPConnection("127.0.0.1", db.port, timeout=PATIENCE_S)
    try:
        line.request("GET", f"/v1/events{query}", headers={"Authorization": f"Bearer {db.token}", **headers})
        answer = line.getresponse()
        assert (answer.status, answer.getheader("content-type")) == (200, "text/event-stream; charset=utf-8")
        assert answer.readline() == b": here\n"
        yield read(answer)
    finally:
        line.close()


def read(answer: http.client.HTTPResponse) -> Iterator[Event]:
    fields: dict[str, str] = {}
    while raw := answer.readline().decode():
        name, _, value = raw.rstrip("\n").partition(": ")
        if name:
            fields[name] = value
        elif "data" in fields:
            yield Event(fields.get("id"), fields["event"], json.loads(fields["data"]))
            fields = {}


def kept(events: Iterator[Event], task: str, until: str = "completed") -> list[Event]:
    """Those that can be read again, of one task, until it is in that phase."""
    found = []
    for event in events:
        if event.id is not None and event.data["taskId"] == task:
            found.append(event)
            if event.data["to"] == until:
                return found
    raise AssertionError("the stream ended")


def test_a_task_is_seen_from_its_birth_to_its_end_in_order(db: Served) -> None:
    with watching(db) as events:
        task = spawned(db.client, "quick one")
        found = kept(events, task)
    assert [event.data["seq"] for event in found] == sorted({event.data["seq"] for event in found})
    assert [event.data["from"] for event in found][1:] == [event.data["to"] for event in found][:-1]
    assert {"lifecycle:start", "lifecycle:end", "announce", "phase"} <= {event.name for event in found}
    assert found[0].data["task"]["taskId"] == task
    assert {event.data["rootKey"] for event in found} == {"agent:main:main"}


def test_the_start_of_a_run_comes_before_everything_the_run_does(db: Served) -> None:
    """The start comes from the store, tools and usage from the process: two ways, one order."""
    for _ in range(5):
        with watching(db) as events:
            task = spawned(db.client, "look around")
            names = []
            for event in events:
                if event.data["taskId"] == task:
                    names.append(event.name)
                    if event.name == "lifecycle:end":
                        break
        live = [name for name in names if name in LIVE_NAMES]
        assert {"tool:start", "tool:end", "usage"} <= set(live)
        assert names.index("lifecycle:start") < names.index(live[0]), names


def test_after_a_reconnect_nothing_is_missing_and_nothing_comes_twice(db: Served) -> None:
    with watching(db) as events:
        task = spawned(db.client, "quick one")
        first = [
            next(event for event in events if event.id and event.data["taskId"] == task) for _ in range(2)
        ]
    ended(db.client, task, "settled")
    cursor = first[-1].id
    assert cursor is not None
    with watching(db, f"?after={cursor}") as events:
        rest = kept(events, task)
    with watching(db, **{"Last-Event-ID": cursor}) as events:
        assert kept(events, task) == rest
    with watching(db, f"?after=0.0:{ids.task_id(0)}:0&task={task}") as events:
        assert [event.line for event in kept(events, task)] == [event.line for event in first + rest]


def test_words_come_live_to_whoever_watches_this_task_and_are_not_kept(db: Served) -> None:
    bus, loop = db.clutch.services.bus, db.loop
    one, other = (spawned(db.client, "slow one") for _ in range(2))
    numbers = [ids.parse_task_id(task) for task in (other, one)]
    with watching(db, f"?task={one}") as events:
        for number in numbers:
            assert number is not None
            loop.call_soon_threadsafe(bus.publish, Live("assistant:text", number, 7, f"words of {number}"))
        event = next(event for event in events if event.name == "assistant:text")
    assert (event.id, event.data["text"], event.data["taskId"]) == (None, f"words of {numbers[1]}", one)
    assert set(event.data) == {"taskId", "sessionKey", "runId", "seq", "text"}
    said = Live("assistant:text", 1, 7, "words", "agent:main:main", is_task=False)
    with watching(db) as events:
        loop.call_soon_threadsafe(bus.publish, said)
        event = next(event for event in events if event.name == "assistant:text")
    assert (event.data["taskId"], event.data["sessionKey"]) == (None, "agent:main:main")
    for task in (one, other):
        db.client.post(task_path(task, "kill"))


def test_a_character_that_a_stream_cuts_in_two_arrives_in_two_pieces_and_harms_nobody(db: Served) -> None:
    with watching(db) as events:
        for half in ("smile \ud83d", "\ude00"):
            said = Live("assistant:text", 1, 7, half, "agent:main:main", is_task=False)
            db.loop.call_soon_threadsafe(db.clutch.services.bus.publish, said)
        pieces = (event.data["text"] for event in events if event.name == "assistant:text")
        assert next(pieces) + next(pieces) == "smile \ud83d\ude00"
    assert db.client.get("/v1/health")["status"] == "ok"


def test_words_keep_their_order_when_a_connection_is_full_for_a_while(db: Served) -> None:
    task = spawned(db.client, "slow one")
    number = ids.parse_task_id(task)
    assert number is not None
    with watching(db, f"?task={task}") as events:
        for start in range(
            0, 30, 3
        ):  # together more than a connection holds, and less than what lets a reader go
            for place in range(start, start + 3):
                live = Live("assistant:thinking", number, 7, f"{place} " + "x" * 30_000)
                db.loop.call_soon_threadsafe(db.clutch.services.bus.publish, live)
            assert db.client.get("/v1/health")["status"] == "ok"
        thoughts = (event for event in events if event.name == "assistant:thinking")
        assert [int(next(thoughts).data["text"].split()[0]) for _ in range(30)] == list(range(30))
    db.client.post(task_path(task, "kill"))


class Wire:
    """A connection that has room as long as the test says so."""

    held = 0

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def get_write_buffer_size(self) -> int:
        return self.held

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.written.append(data)


@pytest.mark.anyio
async def test_nothing_overtakes_what_waits_for_a_full_connection() -> None:
    stream, wire = Stream(None, None), Wire()
    stream.wire = cast("asyncio.Transport", wire)
    told = [FeedBatch([FeedEvent("phase", 1, 1, "{}", f"0.{number}:t_1:1")]) for number in range(5)]
    stream.hear(told[0])  # somebody else writes to the connection
    assert wire.written == []
    assert stream.take() == told[:1]
    stream.is_idle = True
    stream.hear(told[1])
    assert wire.written == [b"%x\r\n%b\r\n" % (len(told[1].written), told[1].written)]
    wire.held = HELD_BYTES_MAX
    stream.hear(told[2])
    wire.held = 0
    stream.hear(told[3])
    assert len(wire.written) == 1
    assert stream.take() == told[2:4]
    stream.hear(told[4])
    assert len(wire.written) == 2


def test_only_the_tree_that_was_asked_for(db: Served) -> None:
    mine = "agent:main:chat:watched"
    spawned(db.client, "quick one", requester=mine)
    with watching(db, f"?root={mine}") as events:
        spawned(db.client, "quick one")
        task = spawned(db.client, "quick one", requester=mine)
        found = next(event for event in events if event.id is not None and event.data["to"] == "queued")
    assert found.data["taskId"] == task


def test_whoever_does_not_read_is_let_go_with_the_place_to_come_back_to(db: Served) -> None:
    task = spawned(db.client, "slow one")
    seen(db.client, task, lambda one: one["phase"] == "running")
    number = ids.parse_task_id(task)
    assert number is not None
    with watching(db, f"?task={task}") as events:
        for _ in range(400):
            live = Live("assistant:text", number, 7, "x" * 50_000)
            db.loop.call_soon_threadsafe(db.clutch.services.bus.publish, live)
        assert db.client.get("/v1/health")["status"] == "ok"
        *_, last = events
    assert last.name == "gap"
    with watching(db, f"?after={last.data['cursor']}&task={task}") as events:
        db.client.post(task_path(task, "kill"))
        assert kept(events, task, "cleanup_pending")


@pytest.mark.parametrize("cursor", ["x", "1.0:t_1", "1.0:1:1", "nan:t_1:1", "-1:t_1:1", "1:t_1:1:1"])
def test_a_cursor_that_is_none_is_refused(db: Served, cursor: str) -> None:
    heard = db.raw("GET", f"/v1/events?after={cursor}")
    assert (heard.status, heard.body["error"]["field"]) == (400, "after")


# ---- include=overview ------------------------------------------------------------------------------------


def overview(events: Iterator[Event], **summary: int) -> Event:
    """Return the first overview with these counts, which comes before the stream was silent for six seconds."""
    silent = 0
    for event in events:
        silent += event.name == "alive"
        if event.name == "overview" and summary.items() <= event.data["summary"].items():
            return event
        assert silent < 3, f"no overview with {summary}"
    raise AssertionError("the stream ended")


def iter_until(events: Iterator[Event], name: str) -> Iterator[Event]:
    for event in events:
        yield event
        if event.name == name:
            return


def test_an_overview_that_returns_to_what_earlier_watchers_saw_is_sent(tmp_path: Path) -> None:
    with served(tmp_path / "state", policy=FAST) as db:
        with watching(db, "?include=overview") as events:
            first = spawned(db.client, "quick one")
            ended(db.client, first)
            overview(events, done=1)
            db.client.post(task_path(first, "remove"))
            before = overview(events, done=0)
        second = spawned(db.client, "quick one")
        ended(db.client, second)
        with watching(db, "?include=overview") as events:
            overview(events, done=1)
            db.client.post(task_path(second, "remove"))
            assert overview(events, done=0) == before


def test_a_stream_of_one_task_has_the_progress_of_no_other_task(db: Served) -> None:
    mine = spawned(db.client, "slow work")
    with watching(db, f"?task={mine}&include=overview") as one, watching(db, "?include=overview") as every:
        other = spawned(db.client, "look around")
        assert next(event for event in every if event.name == "progress").data["taskId"] == other
        db.let_go()
        found = list(iter_until(one, "lifecycle:end"))
    assert {event.data["taskId"] for event in found if event.name not in ("overview", "alive")} == {mine}


def test_a_stream_has_joined_before_its_overview_comes(db: Served) -> None:
    line = http.client.HTTPConnection("127.0.0.1", db.port, timeout=PATIENCE_S)
    with closing(line):
        line.request("GET", "/v1/events?include=overview", headers={"Authorization": f"Bearer {db.token}"})
        answer = line.getresponse()
        assert [answer.readline(), answer.readline(), answer.readline()] == [
            b": here\n",
            b"\n",
            b"event: overview\n",
        ]


def test_a_stream_with_overview_brings_counts_progress_and_signs_of_life(db: Served) -> None:
    line = http.client.HTTPConnection("127.0.0.1", db.port, timeout=PATIENCE_S)
    with closing(line):
        line.request("GET", "/v1/events?include=overview", headers={"Authorization": f"Bearer {db.token}"})
        events = read(line.getresponse())
        first = next(events)
        assert (first.name, first.data["isDemo"], first.data["inbox"]) == ("overview", False, [])
        task = spawned(db.client, "look around")
        asks = spawned(db.client, "ask openly", label="curious")
        names: set[str] = set()
        for event in events:
            names.add(event.name)
            if event.name == "progress" and event.data["taskId"] == task:
                assert event.data["task"]["taskId"] == task
                assert event.id is None  # it cannot be read again
            if event.name == "overview" and event.data["inbox"]:
                (item,) = db.client.get("/v1/inbox")["items"]
                assert event.data["inbox"] == [f"{item['id']} {item['hash']}"]
                assert event.data["summary"]["needsYou"] == 1
            if {"overview", "progress", "alive"} <= names and event.name == "overview":
                break
            if event.name == "alive" and "overview" in names:
                db.client.post(f"/v1/tasks/{asks}/kill", {})


def test_other_streams_have_no_events_of_the_dashboard(db: Served) -> None:
    with watching(db) as events:
        task = spawned(db.client, "look around")
        names = {event.name for event in _until_completed(events, task)}
    assert not names & {"overview", "progress", "alive"}


def _until_completed(events: Iterator[Event], task: str) -> Iterator[Event]:
    for event in events:
        yield event
        if event.id is not None and event.data["taskId"] == task and event.data["to"] == "completed":
            return


# ---- live=… ----------------------------------------------------------------------------------------------


def test_text_and_tool_calls_come_only_of_the_sessions_that_are_named(tmp_path: Path) -> None:
    with served(tmp_path / "state", policy=FAST) as db:
        mine = spawned(db.client, "slow work")
        seen(db.client, mine, lambda one: one["phase"] == "running")  # nothing happens between the two joins
        with watching(db, f"?live={mine},t_unknown") as chosen, watching(db, "?live=") as none:
            spawned(db.client, "look around")
            found, quiet = [*iter_until(chosen, "lifecycle:end")], [*iter_until(none, "lifecycle:end")]
            db.let_go()
            found += iter_until(chosen, "lifecycle:end")
            quiet += iter_until(none, "lifecycle:end")
    live = {event.data["taskId"] for event in found if event.name in LIVE_NAMES}
    assert live == {mine}
    assert not any(event.name in LIVE_NAMES for event in quiet)
    assert [event.line for event in quiet] == [event.line for event in found if event.id]


def test_a_stream_that_chooses_other_sessions_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """400 pieces of two sessions, while the choice changes forty times."""
    got: dict[str, list[str]] = {}
    with served(tmp_path / "state", policy=FAST) as db:
        one, two = (spawned(db.client, f"slow {name}") for name in ("one", "two"))
        for task in (one, two):
            seen(db.client, task, lambda task: task["phase"] == "running")
        with watching(db, f"?include=overview&live={one}") as events:
            stream = next(event for event in events if event.name == "stream").data["id"]
            for number in range(400):
                for task in (one, two):
                    piece = Live("assistant:text", ids.parse_task_id(task) or 0, 7, str(number))
                    db.loop.call_soon_threadsafe(db.clutch.services.bus.publish, piece)
                if number % 10 == 0:
                    live = f"{one},{two}" if number % 20 else one
                    assert db.post(f"/v1/events/{stream}/live", {"live": live}).body == {"status": "changed"}
            last = Live("assistant:text", ids.parse_task_id(one) or 0, 7, "end")
            db.loop.call_soon_threadsafe(db.clutch.services.bus.publish, last)
            for event in (event for event in events if event.name == "assistant:text"):
                got.setdefault(event.data["taskId"], []).append(event.data["text"])
                if event.data["text"] == "end":
                    break
        db.let_go()
        refused = db.post("/v1/events/none/live", {"live": ""})
        assert (refused.status, refused.code) == (404, "not_found")
    assert got[one] == [*map(str, range(400)), "end"]
    assert len(got[two]) == len(set(got[two]))
    assert set(got[two]) <= set(got[one])
