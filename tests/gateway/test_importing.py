"""What OpenClaw left behind comes in once, with its outcome, and what nobody had heard is told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clutch.core.messages import Answer, Input
from clutch.core.model import LetterKind, Outcome
from clutch.core.policy import Limits, Policy
from clutch.engine.ids import BlockIds
from clutch.errors import InvalidInput
from clutch.gateway import importing
from clutch.gateway.importing import Imported, Source
from clutch.ports import ModelRequest
from clutch.protocol import control, queries
from clutch.protocol.promises.form import Scope, filled
from clutch.protocol.promises.invariants import QUERIES
from clutch.store.door import Door, Row, Tx
from tests.engine.house import POLICY, House, JumpClock
from tests.gateway.openclaw_state import (
    FLAT,
    MAIN,
    T,
    calls,
    ended,
    fingerprint,
    gave,
    run,
    said,
    write,
)

pytestmark = pytest.mark.anyio

DEEP = replace(POLICY, limits=Limits(depth_max=3))
TABLES = ("sessions", "tasks", "runs", "messages", "events", "inbox", "usage", "outbox")
SCOPES = (Scope.TASK, Scope.LIFE, Scope.SESSION, Scope.BIRTH)


def select(now: float, sql: str, *parameters: Any) -> Tx[list[Row]]:
    return list((yield sql, parameters))


async def rows(door: Door, sql: str, *parameters: Any) -> list[Row]:
    return await door.read(select, sql, *parameters)


async def everything(door: Door) -> dict[str, list[Row]]:
    return {name: sorted(await rows(door, f"SELECT * FROM {name}"), key=repr) for name in TABLES}  # noqa: S608


async def bring_in(door: Door, directory: Path, policy: Policy = DEEP) -> tuple[list[Imported], Source]:
    source = importing.read(directory)
    return await importing.bring_in(door, policy, BlockIds(), source), source


async def promises_hold(door: Door, *scopes: Scope) -> None:
    """The invariants of the simulator, asked of the whole database."""
    for query in QUERIES:
        if query.scope in (scopes or SCOPES):
            assert await rows(door, filled(query, DEEP, blob="{blob}")) == [], query.promise


def small_state(directory: Path) -> Path:
    """Three that matter: told, ended and untold, not ended; and one that was killed."""
    runs = [
        run("told", FLAT, **ended(), frozenResultText="Found 3 things", cleanupCompletedAt=T + 61_000),
        run(
            "untold",
            "agent:main:subagent:two",
            "agent:main:telegram:group:-1",
            **ended("error", error="boom"),
        ),
        run("running", "agent:main:subagent:three"),
        run("killed", "agent:main:subagent:four", **ended(), suppressAnnounceReason="killed"),
    ]
    index = {
        MAIN: {"sessionId": "m"},
        FLAT: {"sessionId": "s1", "spawnedBy": MAIN, "spawnDepth": 1},
        "agent:main:subagent:two": {"sessionId": "s2"},
    }
    talk: list[dict[str, Any] | str] = [
        {"type": "session", "version": 3, "id": "s1"},
        said("user", "Research"),
        calls("read", "c1", "I look."),
        gave("c1", "text"),
        "{broken",
        said("assistant", "Found 3 things"),
    ]
    return write(
        directory, runs, index, {"s1": talk, "s2": [said("user", "x"), said("assistant", "half done")]}
    )


async def test_finished_ones_keep_what_became_of_them(tmp_path: Path, door: Door) -> None:
    imported, source = await bring_in(door, small_state(tmp_path))
    assert [(one.file, one.line) for one in source.problems] == [("agents/main/sessions/s1.jsonl", 5)]
    found = await rows(
        door, "SELECT label, outcome, error, result, phase, delivery FROM tasks ORDER BY label"
    )
    assert found == [
        ("killed", "killed", "killed", None, "completed", "skipped"),
        ("running", "lost", importing.LOST, None, "announcing", "waiting"),
        ("told", "ok", None, "Found 3 things", "completed", "delivered"),
        ("untold", "error", "boom", "half done", "announcing", "waiting"),
    ]
    assert importing.counts(imported) == {
        "imported": 4,
        "known": 0,
        "toAnnounce": 2,
        "ok": 1,
        "error": 1,
        "timeout": 0,
        "killed": 1,
        "lost": 1,
    }
    ((task_id, created_at, ended_at),) = await rows(
        door, "SELECT id, created_at, ended_at FROM tasks WHERE label = 'told'"
    )
    assert (created_at, ended_at) == (T / 1000, T / 1000 + 60)
    assert await rows(door, "SELECT key FROM sessions WHERE id = ?", task_id) == [(FLAT,)]
    transcript = await door.read(queries.transcript, task_id)
    assert [type(one).__name__ for one in transcript] == ["Input", "Answer", "Results", "Answer"]
    booked = await rows(
        door, "SELECT input, output, usd FROM usage WHERE session_id = ? ORDER BY call_no", task_id
    )
    assert booked == [(15, 5, "0.01"), (0, 0, None)]
    await promises_hold(door)


@pytest.mark.scenario(213)
async def test_unannounced_ones_are_told_once_and_a_second_import_changes_nothing(
    tmp_path: Path, door: Door, clock: JumpClock
) -> None:
    async def script(request: ModelRequest) -> str:
        return "I have heard it"

    directory = small_state(tmp_path)
    before = fingerprint(directory)
    imported, _ = await bring_in(door, directory)
    stored = await everything(door)
    again, _ = await bring_in(door, directory)
    assert [one.is_new for one in imported] == [True] * 4
    assert [(one.task_id, one.is_new) for one in again] == [(one.task_id, False) for one in imported]
    assert await everything(door) == stored
    assert fingerprint(directory) == before

    house = House(door, script, clock, DEEP)
    ((house.main,),) = await rows(door, "SELECT id FROM sessions WHERE key = ?", MAIN)
    await house.hire()
    await house.until_quiet()
    (told,) = await house.inputs(house.main)
    assert '"untold" (failed: boom)' in told
    assert '"running" (lost)' in told
    assert "half done" in told
    assert '"told"' not in told
    assert '"killed"' not in told
    ended_up = await rows(
        door, "SELECT label, phase, delivery FROM tasks WHERE label <> 'killed' ORDER BY label"
    )
    assert ended_up == [(label, "completed", "delivered") for label in ("running", "told", "untold")]
    assert len(house.model.requests) == 1
    settled = await everything(door)
    await bring_in(door, directory)
    assert await everything(door) == settled
    await house.close()
    await promises_hold(door, *SCOPES, Scope.END)


@pytest.mark.scenario(25)
@pytest.mark.parametrize(("depth_max", "role"), [(3, "orchestrator"), (2, "leaf")])
async def test_depth_of_an_imported_child_is_its_chain_and_its_role_follows(
    tmp_path: Path, door: Door, depth_max: int, role: str
) -> None:
    """Nothing says how deep they are but who asked whom; the registry has forgotten the one in the middle."""
    child, grandchild = "agent:main:subagent:c", "agent:main:subagent:g"
    index = {
        child: {"sessionId": "c", "spawnedBy": MAIN, "status": "done", "label": "middle", "updatedAt": T},
        grandchild: {"sessionId": "g", "spawnedBy": child},
    }
    directory = write(
        tmp_path,
        [run("deep", grandchild, child, **ended())],
        index,
        {"c": [said("assistant", "I delegated")]},
    )
    await bring_in(door, directory, replace(POLICY, limits=Limits(depth_max=depth_max)))
    found = await rows(
        door,
        "SELECT t.label, s.depth, p.label, s.role FROM tasks t JOIN sessions s ON s.id = t.id"
        " LEFT JOIN tasks p ON p.id = t.requester_id ORDER BY s.depth",
    )
    assert found == [("middle", 1, None, "orchestrator"), ("deep", 2, "middle", role)]
    assert await rows(door, "SELECT outcome, result, delivery FROM tasks WHERE label = 'middle'") == [
        ("ok", "I delegated", "delivered")
    ]
    letter = "SELECT s.key, i.late FROM inbox i JOIN sessions s ON s.id = i.session_id WHERE i.state = 0"
    assert await rows(door, letter) == [(MAIN, 1)]
    await promises_hold(door)


@pytest.mark.scenario(25)
async def test_sessions_that_name_each_other_as_parents_are_imported_all_the_same(
    tmp_path: Path, door: Door
) -> None:
    keys = [f"agent:main:subagent:{name}" for name in "abc"]
    index = {
        key: {"sessionId": key[-1], "spawnedBy": above}
        for key, above in zip(keys, [*keys[1:], keys[0]], strict=True)
    }
    await bring_in(door, write(tmp_path, [run(key[-1], key, **ended()) for key in keys], index))
    depths = await rows(door, "SELECT depth FROM sessions WHERE is_task = 1 ORDER BY depth")
    assert depths == [(1,), (2,), (3,)]
    await promises_hold(door)


async def test_an_imported_task_goes_on_where_it_was(tmp_path: Path, door: Door, clock: JumpClock) -> None:
    heard: list[ModelRequest] = []

    async def script(request: ModelRequest) -> str:
        heard.append(request)
        return "and now four"

    await bring_in(door, small_state(tmp_path))
    house = House(door, script, clock, DEEP)
    ((house.main,),) = await rows(door, "SELECT id FROM sessions WHERE key = ?", MAIN)
    await house.hire()
    await house.until_quiet()
    task = await house.task("told")
    await door.alone(control.again, DEEP, task.id, "continue", "again:1", "look once more", "person")
    await house.until_quiet()
    (request,) = [
        one for one in heard if any(isinstance(said, Answer) and said.calls for said in one.transcript)
    ]
    assert [getattr(said, "text", "") for said in request.transcript if isinstance(said, Input)][
        -1
    ] == "look once more"
    task = await house.task("told")
    assert (task.generation, task.outcome, task.result) == (2, Outcome.OK, "and now four")
    await house.close()


async def test_runs_of_one_session_are_one_task_and_the_newest_says_what_became_of_it(
    tmp_path: Path, door: Door
) -> None:
    key = "agent:main:subagent:x"
    old = run("old", key, **ended("error"), suppressAnnounceReason="steer-restart")
    new = run("new", key, **ended(), createdAt=T + 5) | {"createdAt": T + 5}
    directory = write(tmp_path, [new, old])
    _, source = await bring_in(door, directory)
    assert source.superseded == 1
    assert await rows(door, "SELECT label, outcome, idem FROM tasks") == [("new", "ok", "openclaw:new")]
    write(tmp_path, [new, old, run("newest", key, **ended()) | {"createdAt": T + 9}])
    (again,), _ = await bring_in(door, directory)
    assert not again.is_new
    assert len(await rows(door, "SELECT id FROM tasks")) == 1


async def test_each_agent_hears_of_its_own(tmp_path: Path, door: Door) -> None:
    """Whoever asked is told, also of the work of another agent."""
    runs = [
        run("mine", "agent:research:subagent:a", "agent:main:main", **ended()),
        run("theirs", "agent:research:subagent:b", "agent:research:discord:channel:1", **ended()),
    ]
    await bring_in(door, write(tmp_path, runs))
    found = await rows(
        door,
        "SELECT t.label, s.key, c.agent_id FROM inbox i JOIN sessions s ON s.id = i.session_id"
        " JOIN tasks t ON t.id = i.task_id JOIN sessions c ON c.id = t.id ORDER BY t.label",
    )
    assert found == [
        ("mine", "agent:main:main", "research"),
        ("theirs", "agent:research:main", "research"),
    ]


async def test_nothing_imported_takes_a_place_that_new_work_needs(
    tmp_path: Path, door: Door, clock: JumpClock
) -> None:
    async def script(request: ModelRequest) -> str:
        return "done"

    keys = [f"agent:main:subagent:{number}" for number in range(60)]
    await bring_in(
        door, write(tmp_path, [run(key[-2:], key, **ended(), cleanupCompletedAt=T) for key in keys])
    )
    house = House(door, script, clock, DEEP)
    ((house.main,),) = await rows(door, "SELECT id FROM sessions WHERE key = ?", MAIN)
    await house.hire()
    await house.say("go", LetterKind.USER)
    await house.until_quiet()
    assert await house.replies() == ["done"]
    assert await rows(door, "SELECT COUNT(*) FROM tasks WHERE retained = 1") == [(0,)]
    await house.close()


async def test_a_rehearsal_writes_nothing(tmp_path: Path, door: Door) -> None:
    source = importing.read(small_state(tmp_path))
    before = await everything(door)
    new = await importing.rehearse(door.read, DEEP, BlockIds(), source)
    assert ([one.is_new for one in new], await everything(door)) == ([True] * 4, before)
    await bring_in(door, tmp_path)
    known = await importing.rehearse(door.read, DEEP, BlockIds(), importing.read(tmp_path))
    assert [one.is_new for one in known] == [False] * 4


# ---- the directory -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent", "is_taken"), [("a-b_c", True), ("Main", False), ("x" * 65, False), ("a/b", False)]
)
def test_an_agent_with_a_name_we_do_not_know_is_reported_and_not_renamed(
    tmp_path: Path, agent: str, is_taken: bool
) -> None:
    source = importing.read(write(tmp_path, [run("r", f"agent:{agent}:subagent:x", **ended())]))
    assert bool(source.children) is is_taken
    assert bool(source.problems) is not is_taken


@pytest.mark.parametrize("name", ["../../../secret", "/etc/passwd", "..", "", "\0"])
def test_a_transcript_is_never_looked_for_outside_its_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret.jsonl").write_text(json.dumps(said("assistant", "secret")))
    key = "agent:main:subagent:x"
    index = {key: {"sessionId": name, "sessionFile": f"{name}.jsonl" if name else name}}
    source = importing.read(write(tmp_path / "state", [run("r", key, **ended())], index))
    assert source.children[key].transcript is None


def test_a_directory_of_something_else_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"subagents/runs.json"):
        importing.read(tmp_path)
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "openclaw.sqlite").write_bytes(b"SQLite format 3\0")
    with pytest.raises(InvalidInput, match="only JSON files are read"):
        importing.read(tmp_path)


@pytest.mark.parametrize("name", ["subagents/runs.json", "agents/main/sessions/sessions.json"])
def test_a_registry_or_index_that_is_cut_off_stops_the_import_before_anything_is_lost(
    tmp_path: Path, name: str
) -> None:
    """What was finished and not yet told stands only there, and a second import changes nothing."""
    key = "agent:main:subagent:x"
    write(tmp_path, [], {key: {"sessionId": "s", "status": "done", "endedAt": T}})
    (tmp_path / name).write_text('{"version": 2,\n"runs": {"r": ')
    with pytest.raises(InvalidInput, match=f"{name}:2 is not JSON.*nothing was imported.*move it away"):
        importing.read(tmp_path)


def test_a_session_whose_record_makes_no_sense_is_left_for_a_later_import(tmp_path: Path) -> None:
    key = "agent:main:subagent:x"
    write(tmp_path, [], {key: {"sessionId": "s", "status": "done", "endedAt": T}})
    registry = tmp_path / "subagents" / "runs.json"
    registry.write_text(json.dumps({"version": 2, "runs": {"r": {"childSessionKey": key}}}))
    source = importing.read(tmp_path)
    assert (source.children, [one.file for one in source.problems]) == ({}, ["subagents/runs.json"])
