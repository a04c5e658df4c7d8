"""What OpenClaw left behind comes in once, with its outcome, and what nobody had heard is told."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clutch.core.messages import Answer, Input
from clutch.core.model import LetterKind, Outcome
from clutch.core.policy import Limits, Policy
from clutch.engine.services import BlockIds
from clutch.errors import InvalidInput
from clutch.importers import openclaw
from clutch.importers.openclaw import Imported, OpenClawFiles
from clutch.ports import ModelRequest
from clutch.store.transaction import Database, Row, Tx
from clutch.testing.invariants.simulated import BOTH_DATABASES
from clutch.transactions import control
from clutch.transactions.invariants.core import QUERIES, InvariantScope, filled
from clutch.transactions.read import transcripts
from tests.api.openclaw_state import (
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
    write_table,
)
from tests.engine.house import POLICY, House, JumpClock

pytestmark = pytest.mark.anyio

DEEP = replace(POLICY, limits=Limits(depth_max=3))
TABLES = ("sessions", "tasks", "runs", "messages", "events", "inbox", "usage", "outbox")
SCOPES = (InvariantScope.TASK, InvariantScope.LIFE, InvariantScope.SESSION, InvariantScope.BIRTH)


def select(now: float, sql: str, *parameters: Any) -> Tx[list[Row]]:
    return list((yield sql, parameters))


async def rows(db: Database, sql: str, *parameters: Any) -> list[Row]:
    return await db.read(select, sql, *parameters)


async def everything(db: Database) -> dict[str, list[Row]]:
    return {name: sorted(await rows(db, f"SELECT * FROM {name}"), key=repr) for name in TABLES}  # noqa: S608


async def bring_in(
    db: Database, directory: Path, policy: Policy = DEEP
) -> tuple[list[Imported], OpenClawFiles]:
    source = openclaw.read(directory)
    return await openclaw.bring_in(db, policy, BlockIds(), source), source


async def promises_hold(db: Database, *scopes: InvariantScope) -> None:
    """The invariants of the simulator, asked of the whole database."""
    for query in (*QUERIES, *BOTH_DATABASES):
        if query.scope in (scopes or SCOPES):
            assert await rows(db, filled(query, DEEP, blob="{blob}")) == [], query.promise


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


async def test_finished_ones_keep_what_became_of_them(tmp_path: Path, db: Database) -> None:
    imported, source = await bring_in(db, small_state(tmp_path))
    assert [(one.file, one.line) for one in source.problems] == [("agents/main/sessions/s1.jsonl", 5)]
    found = await rows(db, "SELECT label, outcome, error, result, phase, delivery FROM tasks ORDER BY label")
    assert found == [
        ("killed", "killed", "killed", None, "completed", "skipped"),
        ("running", "lost", openclaw.LOST, None, "announcing", "waiting"),
        ("told", "ok", None, "Found 3 things", "completed", "delivered"),
        ("untold", "error", "boom", "half done", "announcing", "waiting"),
    ]
    assert openclaw.counts(imported) == {
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
        db, "SELECT id, created_at, ended_at FROM tasks WHERE label = 'told'"
    )
    assert (created_at, ended_at) == (T / 1000, T / 1000 + 60)
    assert await rows(db, "SELECT key FROM sessions WHERE id = ?", task_id) == [(FLAT,)]
    transcript = await db.read(transcripts.transcript, task_id)
    assert [type(one).__name__ for one in transcript] == ["Input", "Answer", "Results", "Answer"]
    booked = await rows(
        db, "SELECT input, output, usd FROM usage WHERE session_id = ? ORDER BY call_no", task_id
    )
    assert booked == [(15, 5, "0.01"), (0, 0, None)]
    await promises_hold(db)


@pytest.mark.scenario(213)
async def test_unannounced_ones_are_told_once_and_a_second_import_changes_nothing(
    tmp_path: Path, db: Database, clock: JumpClock
) -> None:
    async def script(request: ModelRequest) -> str:
        return "I have heard it"

    directory = small_state(tmp_path)
    before = fingerprint(directory)
    imported, _ = await bring_in(db, directory)
    stored = await everything(db)
    again, _ = await bring_in(db, directory)
    assert [one.is_new for one in imported] == [True] * 4
    assert [(one.task_id, one.is_new) for one in again] == [(one.task_id, False) for one in imported]
    assert await everything(db) == stored
    assert fingerprint(directory) == before

    house = House(db, script, clock, DEEP)
    ((house.main,),) = await rows(db, "SELECT id FROM sessions WHERE key = ?", MAIN)
    worker = await house.hire()
    await house.until_quiet()
    await house.crash(worker)  # its sweeper archives what ended long ago, some time later
    (told,) = await house.inputs(house.main)
    assert '"untold" (failed: boom)' in told
    assert '"running" (lost)' in told
    assert "half done" in told
    assert '"told"' not in told
    assert '"killed"' not in told
    ended_up = await rows(
        db, "SELECT label, phase, delivery FROM tasks WHERE label <> 'killed' ORDER BY label"
    )
    assert ended_up == [(label, "completed", "delivered") for label in ("running", "told", "untold")]
    assert len(house.model.requests) == 1
    settled = await everything(db)
    await bring_in(db, directory)
    assert await everything(db) == settled
    await house.close()
    await promises_hold(db, *SCOPES, InvariantScope.END)


@pytest.mark.scenario(25)
@pytest.mark.parametrize(("depth_max", "role"), [(3, "orchestrator"), (2, "leaf")])
async def test_depth_of_an_imported_child_is_its_chain_and_its_role_follows(
    tmp_path: Path, db: Database, depth_max: int, role: str
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
    await bring_in(db, directory, replace(POLICY, limits=Limits(depth_max=depth_max)))
    found = await rows(
        db,
        "SELECT t.label, s.depth, p.label, s.role FROM tasks t JOIN sessions s ON s.id = t.id"
        " LEFT JOIN tasks p ON p.id = t.requester_id ORDER BY s.depth",
    )
    assert found == [("middle", 1, None, "orchestrator"), ("deep", 2, "middle", role)]
    assert await rows(db, "SELECT outcome, result, delivery FROM tasks WHERE label = 'middle'") == [
        ("ok", "I delegated", "delivered")
    ]
    letter = "SELECT s.key, i.late FROM inbox i JOIN sessions s ON s.id = i.session_id WHERE i.state = 0"
    assert await rows(db, letter) == [(MAIN, 1)]
    await promises_hold(db)


@pytest.mark.scenario(25)
async def test_sessions_that_name_each_other_as_parents_are_imported_all_the_same(
    tmp_path: Path, db: Database
) -> None:
    keys = [f"agent:main:subagent:{name}" for name in "abc"]
    index = {
        key: {"sessionId": key[-1], "spawnedBy": above}
        for key, above in zip(keys, [*keys[1:], keys[0]], strict=True)
    }
    await bring_in(db, write(tmp_path, [run(key[-1], key, **ended()) for key in keys], index))
    depths = await rows(db, "SELECT depth FROM sessions WHERE is_task = 1 ORDER BY depth")
    assert depths == [(1,), (2,), (3,)]
    await promises_hold(db)


async def test_an_imported_task_goes_on_where_it_was(tmp_path: Path, db: Database, clock: JumpClock) -> None:
    heard: list[ModelRequest] = []

    async def script(request: ModelRequest) -> str:
        heard.append(request)
        return "and now four"

    await bring_in(db, small_state(tmp_path))
    house = House(db, script, clock, DEEP)
    ((house.main,),) = await rows(db, "SELECT id FROM sessions WHERE key = ?", MAIN)
    await house.hire()
    await house.until_quiet()
    task = await house.task("told")
    await db.alone(control.again, DEEP, task.id, "continue", "again:1", text="look once more", actor="person")
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
    tmp_path: Path, db: Database
) -> None:
    key = "agent:main:subagent:x"
    old = run("old", key, **ended("error"), suppressAnnounceReason="steer-restart")
    new = run("new", key, **ended(), createdAt=T + 5) | {"createdAt": T + 5}
    directory = write(tmp_path, [new, old])
    _, source = await bring_in(db, directory)
    assert source.superseded == 1
    assert await rows(db, "SELECT label, outcome, idem FROM tasks") == [("new", "ok", "openclaw:new")]
    write(tmp_path, [new, old, run("newest", key, **ended()) | {"createdAt": T + 9}])
    (again,), _ = await bring_in(db, directory)
    assert not again.is_new
    assert len(await rows(db, "SELECT id FROM tasks")) == 1


async def test_each_agent_hears_of_its_own(tmp_path: Path, db: Database) -> None:
    """Whoever asked is told, also of the work of another agent."""
    runs = [
        run("mine", "agent:research:subagent:a", "agent:main:main", **ended()),
        run("theirs", "agent:research:subagent:b", "agent:research:discord:channel:1", **ended()),
    ]
    await bring_in(db, write(tmp_path, runs))
    found = await rows(
        db,
        "SELECT t.label, s.key, c.agent_id FROM inbox i JOIN sessions s ON s.id = i.session_id"
        " JOIN tasks t ON t.id = i.task_id JOIN sessions c ON c.id = t.id ORDER BY t.label",
    )
    assert found == [
        ("mine", "agent:main:main", "research"),
        ("theirs", "agent:research:main", "research"),
    ]


async def test_nothing_imported_takes_a_place_that_new_work_needs(
    tmp_path: Path, db: Database, clock: JumpClock
) -> None:
    async def script(request: ModelRequest) -> str:
        return "done"

    keys = [f"agent:main:subagent:{number}" for number in range(60)]
    await bring_in(db, write(tmp_path, [run(key[-2:], key, **ended(), cleanupCompletedAt=T) for key in keys]))
    house = House(db, script, clock, DEEP)
    ((house.main,),) = await rows(db, "SELECT id FROM sessions WHERE key = ?", MAIN)
    await house.hire()
    await house.say("go", LetterKind.USER)
    await house.until_quiet()
    assert await house.replies() == ["done"]
    assert await rows(db, "SELECT COUNT(*) FROM tasks WHERE retained = 1") == [(0,)]
    await house.close()


async def test_a_rehearsal_writes_nothing(tmp_path: Path, db: Database) -> None:
    source = openclaw.read(small_state(tmp_path))
    before = await everything(db)
    new = await openclaw.rehearse(db.read, DEEP, BlockIds(), source)
    assert ([one.is_new for one in new], await everything(db)) == ([True] * 4, before)
    await bring_in(db, tmp_path)
    known = await openclaw.rehearse(db.read, DEEP, BlockIds(), openclaw.read(tmp_path))
    assert [one.is_new for one in known] == [False] * 4


# ---- the directory -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent", "is_taken"), [("a-b_c", True), ("Main", False), ("x" * 65, False), ("a/b", False)]
)
def test_an_agent_with_a_name_we_do_not_know_is_reported_and_not_renamed(
    tmp_path: Path, agent: str, is_taken: bool
) -> None:
    source = openclaw.read(write(tmp_path, [run("r", f"agent:{agent}:subagent:x", **ended())]))
    assert bool(source.children) is is_taken
    assert bool(source.problems) is not is_taken


@pytest.mark.parametrize("name", ["../../../secret", "/etc/passwd", "..", "", "\0"])
def test_a_transcript_is_never_looked_for_outside_its_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret.jsonl").write_text(json.dumps(said("assistant", "secret")))
    key = "agent:main:subagent:x"
    index = {key: {"sessionId": name, "sessionFile": f"{name}.jsonl" if name else name}}
    source = openclaw.read(write(tmp_path / "state", [run("r", key, **ended())], index))
    assert source.children[key].transcript is None


def test_a_directory_of_something_else_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"subagents/runs.json"):
        openclaw.read(tmp_path)
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "openclaw.sqlite").write_bytes(b"SQLite format 3\0" + bytes(200))
    with pytest.raises(InvalidInput, match=r"state/openclaw.sqlite:1 cannot be read: .*nothing was imported"):
        openclaw.read(tmp_path)


IN_COLUMNS = (
    "run_id TEXT PRIMARY KEY, child_session_key TEXT NOT NULL, requester_session_key TEXT NOT NULL,"
    " task TEXT, label TEXT, model TEXT, created_at INTEGER NOT NULL, started_at INTEGER, ended_at INTEGER,"
    " outcome_json TEXT, ended_reason TEXT, cleanup_completed_at INTEGER, frozen_result_text TEXT"
)
IN_ONE_TEXT = (
    "run_id TEXT PRIMARY KEY, child_session_key TEXT NOT NULL, controller_session_key TEXT,"
    " requester_session_key TEXT NOT NULL, created_at INTEGER NOT NULL, payload_json TEXT NOT NULL DEFAULT '{}'"
)


def in_columns(run_id: str, **more: Any) -> dict[str, Any]:
    keys = {
        "run_id": run_id,
        "child_session_key": f"agent:main:subagent:{run_id}",
        "requester_session_key": MAIN,
    }
    return {**keys, "created_at": T, **more}


def test_runs_are_read_from_the_table_with_a_column_for_each_field(tmp_path: Path) -> None:
    done = in_columns(
        "done",
        task="count",
        label="counter",
        model="anthropic/m",
        ended_at=T + 60_000,
        outcome_json='{"status": "ok"}',
        cleanup_completed_at=T + 61_000,
        frozen_result_text="three",
    )
    failed = in_columns("failed", task="x", ended_at=T, outcome_json='{"status": "error", "error": "boom"}')
    source = openclaw.read(write_table(tmp_path, IN_COLUMNS, [done, failed, in_columns("open", task="y")]))
    found = {one.run.run_id: one.run for one in source.children.values()}
    assert (found["done"].outcome, found["done"].text, found["done"].is_delivered) == (
        Outcome.OK,
        "three",
        True,
    )
    assert (found["done"].label, found["done"].task, found["done"].ended_at) == (
        "counter",
        "count",
        T / 1000 + 60,
    )
    assert (found["failed"].outcome, found["failed"].error) == (Outcome.ERROR, "boom")
    assert (found["open"].outcome, source.problems) == (None, [])


def test_runs_are_read_from_the_table_with_one_text_and_nothing_is_written_beside_it(tmp_path: Path) -> None:
    said = {"label": "a", "execution": {"endedAt": T + 5000, "outcome": {"status": "timeout"}}}
    inner = {"completionTarget": "parent", "label": "b", "endedAt": T, "outcome": {"status": "ok"}}
    other = {"completionTarget": "child", "label": "c"}
    rows = [
        in_columns("flat", payload_json=json.dumps(said)),
        in_columns("deeper", payload_json=json.dumps({"parentCompletion": inner})),
        in_columns("not", payload_json=json.dumps({"parentCompletion": other})),
        in_columns("broken", payload_json="{"),
    ]
    before = fingerprint(write_table(tmp_path, IN_ONE_TEXT, rows))
    source = openclaw.read(tmp_path)
    assert fingerprint(tmp_path) == before
    found = {one.run.run_id: (one.run.label, one.run.outcome) for one in source.children.values()}
    assert found["flat"] == ("a", Outcome.TIMEOUT)
    assert found["deeper"] == ("b", Outcome.OK)
    assert found["not"] == found["broken"] == (None, None)
    assert [(one.file, one.what[:11]) for one in source.problems] == [
        ("state/openclaw.sqlite", "is not JSON")
    ]


def test_what_is_committed_in_the_log_of_a_running_openclaw_is_read(tmp_path: Path) -> None:
    write_table(tmp_path, IN_ONE_TEXT, [])
    with closing(sqlite3.connect(tmp_path / "state" / "openclaw.sqlite")) as running:
        with running:
            running.execute(
                "INSERT INTO subagent_runs (run_id, child_session_key, requester_session_key, created_at)"
                " VALUES ('r', 'agent:main:subagent:r', 'agent:main:main', 1)"
            )
        assert [one.run.run_id for one in openclaw.read(tmp_path).children.values()] == ["r"]


def test_a_table_in_an_unknown_layout_is_refused_with_the_versions_that_are_known(tmp_path: Path) -> None:
    write_table(tmp_path, "foo TEXT, bar TEXT", [], version=99)
    with pytest.raises(InvalidInput, match=r"schema version 99\): OpenClaw 2026.6 to 2026.10 are read"):
        openclaw.read(tmp_path)


@pytest.mark.parametrize("name", ["subagent-registry.json", "subagents/subagent-registry.json"])
def test_the_registry_of_the_first_versions_is_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "subagents").mkdir()
    key = "agent:main:subagent:x"
    (tmp_path / name).write_text(json.dumps({"runs": {"r": run("r", key, **ended())}}))
    assert openclaw.read(tmp_path).children[key].run.outcome is Outcome.OK


@pytest.mark.parametrize("name", ["subagents/runs.json", "agents/main/sessions/sessions.json"])
def test_a_registry_or_index_that_is_cut_off_stops_the_import_before_anything_is_lost(
    tmp_path: Path, name: str
) -> None:
    """What was finished and not yet told stands only there, and a second import changes nothing."""
    key = "agent:main:subagent:x"
    write(tmp_path, [], {key: {"sessionId": "s", "status": "done", "endedAt": T}})
    (tmp_path / name).write_text('{"version": 2,\n"runs": {"r": ')
    with pytest.raises(InvalidInput, match=f"{name}:2 is not JSON.*nothing was imported.*move it away"):
        openclaw.read(tmp_path)


def test_a_session_whose_record_makes_no_sense_is_left_for_a_later_import(tmp_path: Path) -> None:
    key = "agent:main:subagent:x"
    write(tmp_path, [], {key: {"sessionId": "s", "status": "done", "endedAt": T}})
    registry = tmp_path / "subagents" / "runs.json"
    registry.write_text(json.dumps({"version": 2, "runs": {"r": {"childSessionKey": key}}}))
    source = openclaw.read(tmp_path)
    assert (source.children, [one.file for one in source.problems]) == ({}, ["subagents/runs.json"])
