"""`clutch doctor` finds what is broken in the tables, in the state directory and in the gateway, and nothing else."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from clutch.cli import checks, screen
from clutch.models.settings import Provider
from clutch.surfaces.address import GATEWAY_FILE, Address
from clutch.surfaces.client import task_path
from tests.surfaces.served import FAST, Served, served
from tests.surfaces.test_http_tasks import ended, seen, spawned
from tests.surfaces.typed import typed


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("first") / "state", policy=FAST) as here:
        yield here


def test_a_database_at_work_keeps_every_promise_and_its_loops_come_round(first: Served) -> None:
    told = spawned(first.client, "quick one", label="quick")
    ended(first.client, told, "delivered")
    killed = spawned(first.client, "slow one")
    first.client.post(task_path(killed, "kill"), {"reason": "enough"})
    asked = spawned(first.client, "ask me")
    seen(first.client, asked, lambda one: one["reason"] == "needs-you")
    planned = spawned(first.client, "think first", planMode=True)
    seen(first.client, planned, lambda one: one["phase"] == "awaiting_approval")
    working = spawned(first.client, "slow two")
    seen(first.client, working, lambda one: one["phase"] == "running")
    said = typed("doctor", "--json", state=first.home).body
    assert said["schema"] == "clutch.doctor/1"
    assert said["invariants"]["broken"] == []
    assert said["invariants"]["held"] == said["invariants"]["total"] >= 25
    found = {check["id"]: check for check in said["checks"]}
    assert {"sweeper", "heartbeat", "integrity", "clock", "disk", "permissions", "sandbox"} <= set(found)
    assert [name for name, check in found.items() if not check["ok"]] in ([], ["sandbox"])
    assert said["ok"] is found["sandbox"]["ok"]


def test_a_row_that_breaks_a_promise_is_named_with_the_promise(tmp_path: Path) -> None:
    home = tmp_path / "state"
    with served(home, policy=FAST) as here:
        task = spawned(here.client, "quick one")
        ended(here.client, task, "delivered")
    with sqlite3.connect(home / "clutch.db") as tables:
        tables.execute("UPDATE tasks SET outcome = NULL")
    said = typed("doctor", "--json", state=home)
    assert (said.code, said.body["ok"]) == (1, False)
    lost = said.body["invariants"]
    assert {"T1", "N19"} <= {one["invariant"] for one in lost["broken"]}
    assert lost["held"] < lost["total"]
    assert "T1 a task has an outcome exactly when it has settled" in typed("doctor", state=home).err


def test_what_others_could_read_is_found_and_mended(tmp_path: Path) -> None:
    home = tmp_path / "state"
    with served(home):
        pass
    home.chmod(0o755)
    (home / "token").chmod(0o644)
    dead = Address("http://127.0.0.1:1", os.getpid(), "0", "then")
    (home / GATEWAY_FILE).write_text(dead.to_json())
    (home / GATEWAY_FILE).chmod(0o600)
    before = {one["id"]: one for one in typed("doctor", "--json", state=home).body["checks"]}
    for name in ("state-directory", "permissions", "gateway"):
        assert before[name]["ok"] is False
        assert before[name]["remedy"].startswith("clutch doctor --fix")
    fixed = typed("doctor", "--fix", "--json", state=home)
    assert (
        "token is yours alone now; whoever has read it can still use it: clutch token --rotate --state"
        in fixed.err
    )
    after = {one["id"]: one["ok"] for one in fixed.body["checks"]}
    assert after["state-directory"]
    assert after["permissions"]
    assert after["gateway"]
    assert not (home / GATEWAY_FILE).exists()
    assert (home.stat().st_mode & 0o777, (home / "token").stat().st_mode & 0o777) == (0o700, 0o600)


def test_a_loop_that_missed_three_rounds_fails() -> None:
    now = screen.now()
    beats = {"sweeper": now - 179, "courier tty": now - 181}
    said = {name: {"at": screen.moment_of(at), "everySeconds": 60.0} for name, at in beats.items()}
    found = {check.id: check.is_ok for check in checks.of_pulses(Path("/else"), said)}
    assert found == {"sweeper": True, "courier tty": False}
    (late,) = (check.remedy for check in checks.of_pulses(Path("/else"), said) if not check.is_ok)
    assert late == "stop the gateway and start it again: clutch serve --state /else"


def test_a_clock_that_went_back_fails() -> None:
    assert checks.of_clock(None).is_ok
    assert checks.of_clock(screen.now()).is_ok
    assert not checks.of_clock(screen.now() + 3600).is_ok


def test_a_bundle_has_no_secret_and_no_words_of_anybody(first: Served, tmp_path: Path) -> None:
    task = spawned(first.client, "quick secret errand", label="my private errand")
    ended(first.client, task, "delivered")
    (first.home / "clutch.json").write_text(
        """{models: {providers: {lab: {apiKey: "canary"}}}, // abcdefghijklmnopqrstuvwxyz
            mcp: {servers: {far: {url: "https://h.example/canary/mcp"},
                            near: {command: "x", args: ["--key", "canary"]}}},
            agents: {list: [{id: "ada", identity: "knows the canary"}]},
            database: "postgresql://u:canary@h/d", headless: true}"""
    )
    (first.home / "clutch.json").chmod(0o600)
    target = tmp_path / "bundle.tar.gz"
    typed("doctor", "--bundle", target, state=first.home)
    assert target.stat().st_mode & 0o777 == 0o600
    with tarfile.open(target) as archive:
        parts = {Path(one.name).name: archive.extractfile(one) for one in archive}
        texts = {name: part.read().decode() for name, part in parts.items() if part is not None}
    whole = "".join(texts.values())
    assert {"doctor.json", "versions.json", "tasks.jsonl", "clutch.json"} == set(texts)
    assert task in {json.loads(line)["taskId"] for line in texts["tasks.jsonl"].splitlines()}
    assert json.loads(texts["clutch.json"])["headless"] is True
    for secret in (first.token, "errand", "canary", "abcdefghijklmnopqrstuvwxyz"):
        assert secret not in whole


@pytest.mark.parametrize(
    ("version", "told"), [("999", "upgrade Clutch"), ("2", "the next gateway brings it up to date")]
)
def test_tables_of_another_clutch_are_named_and_not_read(version: str, told: str, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "clutch.db") as tables:
        tables.execute("CREATE TABLE meta(name, value)")
        tables.execute("INSERT INTO meta VALUES('schema_version', ?)", (version,))
    looked = typed("ps", "--json", state=tmp_path)
    assert (looked.code, looked.body["ok"]) == (1, False)
    assert f"schema version {version}" in looked.err
    (found,) = [
        one for one in typed("doctor", "--json", state=tmp_path).body["checks"] if one["id"] == "database"
    ]
    assert (found["ok"], told in found["detail"], found["remedy"]) == (False, True, None)


def test_nothing_there_yet_is_no_fault(tmp_path: Path) -> None:
    said = typed("doctor", "--json", state=tmp_path / "none").body
    assert [check["ok"] for check in said["checks"] if check["id"] == "state-directory"] == [True]
    assert not (tmp_path / "none").exists()


def test_a_provider_of_the_config_is_asked_on_this_machine_and_beyond_it_only_when_told_to(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        here = Provider("here", base_url=f"http://127.0.0.1:{port}/v1")
        assert checks.of_provider(here, is_online=False).detail == f"answers at 127.0.0.1:{port}"
    gone = checks.of_provider(here, is_online=False)
    assert (gone.is_ok, f"nobody answers at 127.0.0.1:{port}" in gone.detail) == (False, True)
    far = checks.of_provider(Provider("far", base_url="https://llm.invalid/v1"), is_online=False)
    assert (far.is_ok, "not asked beyond this machine" in far.detail) == (True, True)
    keyless = checks.of_provider(Provider("keyless", api_key_env="NO_SUCH_KEY"), is_online=False)
    assert (keyless.is_ok, "NO_SUCH_KEY" in keyless.detail) == (False, True)


def test_a_config_that_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "clutch.json").write_text('{"notfy": []}')
    (tmp_path / "clutch.json").chmod(0o600)
    (found,) = [
        one for one in typed("doctor", "--json", state=tmp_path).body["checks"] if one["id"] == "config"
    ]
    assert (found["ok"], "notify" in found["detail"]) == (False, True)


def test_a_folder_that_is_not_ours_is_left_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o755)
    (folder / "token").write_text("not for clutch")
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "photos").mkdir(mode=0o755)
    (tmp_path / "photos" / "one.jpg").touch()
    for name in ("link", "photos"):
        assert typed("doctor", "--fix", "--json", state=tmp_path / name).code == 1
    assert [stat.S_IMODE(one.stat().st_mode) for one in (folder, tmp_path / "photos")] == [0o755, 0o755]


def test_a_bundle_takes_the_place_of_nothing(tmp_path: Path, first: Served) -> None:
    there = tmp_path / "notes"
    there.write_text("mine")
    said = typed("doctor", "--bundle", there, "--json", state=first.home)
    assert (said.code, there.read_text()) == (2, "mine")
    assert said.body["error"]["field"] == "--bundle"
