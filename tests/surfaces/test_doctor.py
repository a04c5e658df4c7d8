"""`clutch doctor` finds what is broken in the tables, in the state directory and in the gateway, and nothing else."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import stat
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from clutch import McpServer, ToolSettings
from clutch.cli import doctor, output
from clutch.cli.doctor import Check, examine
from clutch.models.provider import Provider
from clutch.surfaces.discovery import GATEWAY_FILE, Address
from clutch.surfaces.http_client import task_path
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
    with closing(sqlite3.connect(home / "clutch.db")) as tables, tables:
        tables.execute("UPDATE tasks SET outcome = NULL")
    said = typed("doctor", "--json", state=home)
    assert (said.code, said.body["ok"]) == (1, False)
    lost = said.body["invariants"]
    assert {"T1", "N19"} <= {one["invariant"] for one in lost["broken"]}
    assert lost["held"] < lost["total"]
    assert "T1 a task has an outcome exactly when it has finished" in typed("doctor", state=home).out


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
        "token is private now; other users may have read it before: clutch token --rotate --state"
        in fixed.err
    )
    after = {one["id"]: one["ok"] for one in fixed.body["checks"]}
    assert after["state-directory"]
    assert after["permissions"]
    assert after["gateway"]
    assert not (home / GATEWAY_FILE).exists()
    assert (home.stat().st_mode & 0o777, (home / "token").stat().st_mode & 0o777) == (0o700, 0o600)


def test_a_loop_that_missed_three_rounds_fails() -> None:
    now = output.now()
    beats = {"sweeper": now - 179, "outbox tty": now - 181}
    said = {name: {"at": output.moment_of(at), "everySeconds": 60.0} for name, at in beats.items()}
    found = {check.id: check.is_ok for check in doctor.of_pulses(Path("/else"), said)}
    assert found == {"sweeper": True, "outbox tty": False}
    (late,) = (check.remedy for check in doctor.of_pulses(Path("/else"), said) if not check.is_ok)
    assert late == "stop the gateway and start it again: clutch serve --state /else"


def test_a_clock_that_went_back_fails() -> None:
    assert doctor.of_clock(None).is_ok
    assert doctor.of_clock(output.now()).is_ok
    assert not doctor.of_clock(output.now() + 3600).is_ok


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
    with closing(sqlite3.connect(tmp_path / "clutch.db")) as tables, tables:
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
        assert doctor.of_provider(here, is_online=False).detail == f"answers at 127.0.0.1:{port}"
    gone = doctor.of_provider(here, is_online=False)
    assert (gone.is_ok, f"no answer from 127.0.0.1:{port}" in gone.detail) == (False, True)
    far = doctor.of_provider(Provider("far", base_url="https://llm.invalid/v1"), is_online=False)
    assert (far.is_ok, "not connected without --online" in far.detail) == (True, True)
    keyless = doctor.of_provider(Provider("keyless", api_key_env="NO_SUCH_KEY"), is_online=False)
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


def test_workspace_on_the_import_path_is_a_warning_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "clutch.json").write_text(
        json.dumps({"agents": {"defaults": {"workspace": str(tmp_path / "work")}}})
    )
    (tmp_path / "work").mkdir()

    def found() -> Check:
        [check] = [one for one in examine(tmp_path / "state").checks if one.id == "import-path"]
        return check

    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert found() == Check("import-path", True, "PYTHONPATH names no workspace")
    monkeypatch.chdir(tmp_path)
    for named in (str(tmp_path / "work"), "work", f"/nowhere{os.pathsep}work/lib"):
        monkeypatch.setenv("PYTHONPATH", named)
        assert (found().is_ok, found().word) == (True, "warn")
        assert found().remedy == "unset PYTHONPATH, or give the agents another workspace"


def test_gateway_that_looks_for_modules_in_a_workspace_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path / "state", policy=FAST) as here:
        monkeypatch.syspath_prepend(tmp_path / "lib")
        told = [one for one in here.client.get("/v1/health")["problems"] if one["subject"] == "import-path"]
        assert str(tmp_path / "lib") in told[0]["detail"]
        said = typed("doctor", state=here.home)
    assert "warn  import-path: Python looks for modules in" in said.out
    assert "-> keep the program outside of the workspace" in said.out


def test_a_database_deleted_under_the_gateway_refuses_work_and_is_reported(tmp_path: Path) -> None:
    home = tmp_path / "state"
    with served(home) as running:
        for file in home.glob("clutch.db*"):
            file.rename(file.with_name(f"moved-{file.name}"))
        refused = running.post("/v1/tasks", {"task": "say hello"})
        health = running.raw("GET", "/v1/health")
        report = typed("doctor", "--json", state=home)
        for file in home.glob("moved-*"):
            file.rename(file.with_name(file.name.removeprefix("moved-")))
        assert running.raw("GET", "/v1/health").status == 200, "the same files are back"
    assert (refused.status, refused.code) == (503, "unavailable")
    assert "clutch.db was deleted while Clutch was running" in refused.body["error"]["message"]
    assert health.status == 503
    (check,) = [one for one in report.body["checks"] if one["id"] == "gateway-answers"]
    assert report.code == 1
    assert not check["ok"]
    assert "restore a backup" in check["detail"]


def test_mcp_servers_of_the_config_are_looked_at_without_a_gateway(tmp_path: Path) -> None:
    """None of them is started: the script would leave a mark."""
    script = tmp_path / "server.sh"
    script.write_text(f"touch {tmp_path}/started")
    servers = {
        "gone": {"command": "no-such-server"},
        "hidden": {"command": "sh", "args": [str(script)]},
        "fetched": {"command": "npx", "env": {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}},
        "open": {"command": "sh", "args": [str(script)], "visible": [str(tmp_path)]},
        "far": {"url": "http://127.0.0.1:9/mcp"},
    }
    npx = tmp_path / "bin" / "npx"
    npx.parent.mkdir()
    npx.write_text("#!/bin/sh\n")
    npx.chmod(0o755)
    home = tmp_path / "state"
    home.mkdir(mode=0o700)
    (home / "clutch.json").write_text(json.dumps({"mcp": {"servers": servers}}))
    (home / "clutch.json").chmod(0o600)
    ran = typed("doctor", "--json", state=home)
    found = {
        one["id"].removeprefix("mcp "): one for one in ran.body["checks"] if one["id"].startswith("mcp ")
    }
    assert {name: one["ok"] for name, one in found.items()} == {
        "gone": False, "hidden": False, "fetched": False, "open": True, "far": True,
    }  # fmt: skip
    assert found["gone"]["detail"] == "command 'no-such-server' is not found"
    assert found["hidden"]["detail"] == f"the sandbox does not show {script}"
    assert "mcp.servers.hidden.visible" in found["hidden"]["remedy"]
    assert "the network is off in its sandbox" in found["fetched"]["detail"]
    assert found["open"] == {
        "id": "mcp open",
        "ok": True,
        "detail": "no problem is visible; doctor does not start it",
        "remedy": None,
    }
    assert ran.code == 1
    assert not (tmp_path / "started").exists()


def test_mcp_server_that_does_not_start_is_seen_everywhere(tmp_path: Path) -> None:
    """By `doctor`, the health path, `clutch inbox` and `/status`: server, cause and remedy."""
    settings = ToolSettings(mcp_servers=(McpServer(name="search", command="no-such-server"),))
    with served(tmp_path / "state", policy=FAST, settings=settings) as here:
        ended(here.client, spawned(here.client, "quick one"), "delivered")
        [told] = [one for one in here.client.get("/v1/health")["problems"] if one["subject"] == "mcp search"]
        doctor, inbox = typed("doctor", state=here.home), typed("inbox", state=here.home)
        status = here.run(here.clutch.command("/status"))
    cause = "MCP server \"search\" did not start: command 'no-such-server' is not found"
    remedy = "install it, or set mcp.servers.search.command to the full path of the program"
    assert (told["detail"], told["remedy"], told["isError"]) == (cause, remedy, True)
    assert f"FAIL  mcp search: {cause}\n      -> {remedy}" in doctor.out
    assert doctor.code == 1
    assert f"Problem: {cause}\n  -> {remedy}" in inbox.err
    assert f"Problem: {cause}. Remedy: {remedy}" in status
