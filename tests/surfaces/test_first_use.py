"""A newcomer's first hour at a terminal: what is wrong is said at once, in the place where the user looks."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from clutch.cli import output
from clutch.core.messages import Answer, Usage
from clutch.core.policy import Life
from clutch.errors import ConfigInvalid
from clutch.ports import ModelError, ModelRequest, OnDelta, Trouble
from clutch.surfaces import discovery
from clutch.surfaces.discovery import NO_START
from clutch.surfaces.http_client import task_path
from clutch.testing.providers import (
    Behaviour,
    Failure,
    Fault,
    Providers,
    Reply,
    Text,
    WireRequest,
)
from tests.patience import PATIENCE_S
from tests.surfaces.served import FAST, Served, served
from tests.surfaces.test_http_tasks import seen
from tests.surfaces.test_listening import EVERYWHERE
from tests.surfaces.typed import Done, typed

# ---- a wrong key ---------------------------------------------------------------------------------------------


class Refusing:
    """A provider whose key is wrong, for the child and for its parent."""

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        raise ModelError(Trouble.AUTH, "no such key (status 401)")


@pytest.mark.slow
def test_a_wrong_api_key_is_said_at_once_and_everywhere(tmp_path: Path) -> None:
    with served(tmp_path / "state", Refusing(), FAST) as here:
        ran = typed("run", "--wait", "--json", "Say hello", state=here.home)
        assert (ran.code, ran.body["exitCode"]) == (1, 1)
        task = ran.body["task"]
        assert task["error"] == "auth: no such key (status 401)"
        assert task["delivery"]["text"] == "skipped (not requested; the caller reads it)"
        ended, started = output.at(task["endedAt"]), output.at(task["startedAt"])
        assert ended is not None
        assert started is not None
        assert ended - started < Life().error_grace_s
        again = typed("run", "--wait", "Say hello", state=here.home)
        assert (again.code, again.out) == (1, "")
        assert "auth: no such key (status 401) -> clutch retry " in again.err
        for command in ("ps", "tree", "top"):
            shown = typed(command, state=here.home).out
            assert "auth: no such key" in shown, command
            assert f"-> clutch retry {task['taskId']}" in shown, command
        assert (
            "! failed: auth: no such key (status 401)" in typed("logs", task["taskId"], state=here.home).out
        )
        last = typed("logs", task["taskId"], "--json", state=here.home).out.splitlines()[-1]
        assert json.loads(last)["body"] == {
            "outcome": "error",
            "status": "failed",
            "error": "auth: no such key (status 401)",
        }


# ---- what is loaded ------------------------------------------------------------------------------------------


def configure(home: Path, settings: Any) -> Path:
    path = home / "clutch.json"
    path.write_text(settings if isinstance(settings, str) else json.dumps(settings))
    path.chmod(0o600)
    return path


def in_a_process(*words: object, state: Path, **more: str) -> Done:
    """A real `clutch`, which may start a gateway in the background; no key of this machine is given to it."""
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    kept.pop(NO_START, None)
    ran = subprocess.run(
        [sys.executable, "-m", "clutch", *map(str, words), "--state", str(state)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
        env=kept | {"NO_COLOR": "1"} | more,
    )
    return Done(ran.returncode, ran.stdout, ran.stderr)


def test_a_config_that_was_refused_is_said_by_every_command_in_one_line(tmp_path: Path) -> None:
    with served(tmp_path / "state", policy=FAST) as here:
        assert typed("ps", state=here.home).err == "no tasks\n"
        configure(here.home, "{modle: 1,\n agents: 2}")
        changed = typed("ps", state=here.home)
        assert changed.err.splitlines()[0].endswith(f"end the program that serves it (pid {os.getpid()}).")
        with pytest.raises(ConfigInvalid):
            here.run(here.clutch.reload())
        for words in (("ps",), ("inbox",), ("spawn", "hi", "--dry-run"), ("tree",)):
            first = typed(*words, state=here.home).err.splitlines()[0]
            assert first.startswith("Config not loaded; the gateway keeps the previous one: "), words
            assert "modle: not known" in first
            assert "agents: must be an object" in first
            assert first.endswith(f"Correct the file, then: `clutch config check --state {here.home}`."), (
                first
            )
            assert "Restart" not in first, "a restart would refuse the file as well"
        configure(here.home, {"announce": {"queue": {"debounceMs": 5}}})
        here.run(here.clutch.reload())
        assert typed("ps", state=here.home).err == "no tasks\n"
        configure(
            here.home,
            {"worker": {"tick": "1s"}, "models": {"providers": {"lab": {"baseUrl": "http://127.0.0.1:9"}}}},
        )
        here.run(here.clutch.reload())
        told = typed("ps", state=here.home).err.splitlines()[0]
        assert told.startswith("Config partly loaded: models.providers changed. Restart to apply: ")


def _problems(here: Served) -> list[Any]:
    """Without what concerns the process of the tests: a test before may have used its folder as a workspace."""
    said = here.client.get("/v1/health")["problems"]
    return [one for one in said if one["subject"] != "import-path"]


def test_health_and_status_report_what_of_the_config_is_not_loaded(tmp_path: Path) -> None:
    with served(tmp_path / "state", policy=FAST) as here:
        assert _problems(here) == []
        configure(here.home, "{modle: 1}")
        with pytest.raises(ConfigInvalid):
            here.run(here.clutch.reload())
        (refused,) = _problems(here)
        status = here.run(here.clutch.command("/status"))
        (check,) = [
            one
            for one in typed("doctor", "--json", state=here.home).body["checks"]
            if one["id"] == "config-loaded"
        ]
        inbox = typed("inbox", state=here.home).err
        configure(here.home, {})
        here.run(here.clutch.reload())
        assert _problems(here) == []
        configure(here.home, {"models": {"providers": {"lab": {"baseUrl": "http://127.0.0.1:9"}}}})
        (changed,) = _problems(here)
        here.run(here.clutch.reload())
        (waiting,) = _problems(here)
    assert refused["subject"] == "config-loaded"
    assert refused["detail"].startswith("Config not loaded; the gateway keeps the previous one: ")
    assert "modle: not known" in refused["detail"]
    assert refused["remedy"] == f"restart to apply: end the program that serves it (pid {os.getpid()})"
    assert refused["isError"]
    assert f"Problem: {refused['detail']}. Remedy: {refused['remedy']}" in status
    assert not check["ok"]
    assert inbox.count("Config not loaded") == 1
    assert changed["detail"] == f"Config not loaded: {tmp_path}/state/clutch.json has changed"
    assert waiting["detail"] == "Config partly loaded: models.providers changed"


@pytest.mark.slow
def test_init_restarts_the_gateway_that_a_command_started_and_until_then_every_command_says_what_is_not_loaded(
    tmp_path: Path,
) -> None:
    home = tmp_path / "state"
    try:
        assert in_a_process("run", "--wait", "hello", state=home).code == 0
        first = discovery.find(home)
        assert first is not None
        assert first.is_background
        lab = {"baseUrl": "http://127.0.0.1:9/v1", "apiKey": "sk-lab"}
        configure(home, {"agents": {"defaults": {"model": "lab:one"}}, "models": {"providers": {"lab": lab}}})
        ran = in_a_process("run", "hello", state=home)
        (line,) = [line for line in ran.err.splitlines() if line.startswith("Config not loaded")]
        assert "models.providers changed, which needs a restart" in line
        assert f"`clutch stop --state {home}`" in line
        checked = in_a_process("config", "check", "--json", state=home)
        assert (checked.code, checked.body["notLoaded"]) == (0, line)
        doctor = in_a_process("doctor", "--json", state=home)
        (loaded,) = [one for one in doctor.body["checks"] if one["id"] == "config-loaded"]
        assert (doctor.code, loaded["ok"], loaded["detail"]) == (1, False, line)
        made = in_a_process("init", "--force", "--json", state=home)
        assert (made.code, made.body["gateway"]) == (0, "restarted")
        second = discovery.find(home)
        assert second is not None
        assert second.pid != first.pid
        assert "not loaded" not in in_a_process("ps", state=home).err
    finally:
        in_a_process("stop", state=home)


@contextmanager
def provider(behave: Callable[[WireRequest], Behaviour]) -> Iterator[Providers]:
    """A provider on loopback, in a thread of its own."""
    is_up, stop, made = (
        threading.Event(),
        asyncio.Event(),
        list[tuple[Providers, asyncio.AbstractEventLoop]](),
    )

    async def live() -> None:
        async with Providers(behave) as server:
            made.append((server, asyncio.get_running_loop()))
            is_up.set()
            await stop.wait()

    with ThreadPoolExecutor(1) as pool:
        living = pool.submit(asyncio.run, live())
        assert is_up.wait(PATIENCE_S)
        (server, loop) = made[0]
        try:
            yield server
        finally:
            loop.call_soon_threadsafe(stop.set)
            living.result(PATIENCE_S)


def _next_command(text: str) -> list[str]:
    """The command that the last line of a report names."""
    return shlex.split(text.splitlines()[-1].split("`")[1])[1:]


def greeted(request: WireRequest) -> Behaviour:
    del request
    return Reply([Text("Hello from the loopback provider.")], usage=Usage(12, 2))


@pytest.mark.slow
def test_init_tests_the_key_and_ends_with_a_command_that_works(tmp_path: Path) -> None:
    home = tmp_path / "state"
    with provider(greeted) as server:
        keys = {"OPENAI_API_KEY": "sk-loopback", "OPENAI_BASE_URL": server.openai_url}
        try:
            made = in_a_process("init", state=home, **keys)
            assert made.code == 0, made.err
            assert re.search(r"Tested openai:\S+: OK, answered in \d", made.out)
            assert server.log.count == 1
            words = _next_command(made.out)
            assert words[:3] == ["run", "--wait", "Say hello"]
            ran = in_a_process(*words[:-2], state=home, **keys)
            assert (ran.code, ran.out) == (0, "Hello from the loopback provider.\n")
        finally:
            in_a_process("stop", state=home)
        calls = server.log.count
        quiet = in_a_process("init", "--force", "--no-test", "--json", state=home, **keys)
        assert (quiet.code, quiet.body["test"], server.log.count) == (0, None, calls)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "result", "fix"),
    [
        (
            Fault.AUTH,
            "rejected",
            "The provider rejected the key. Set a valid OPENAI_API_KEY, then `clutch",
        ),
        (Fault.NOT_FOUND, "no such model", "Name another: `clutch init --force"),
        (Fault.RATE_LIMIT, "failed", "The provider refused the call"),
        (None, "unreachable", "Check the network and its address"),
    ],
)
def test_init_says_what_is_wrong_with_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault | None, result: str, fix: str
) -> None:
    home = tmp_path / "state"
    with provider(lambda _: Failure(fault or Fault.AUTH)) as server:
        url = server.openai_url if fault is not None else "http://127.0.0.1:9/v1"
        keys = {"OPENAI_API_KEY": "sk-loopback-secret", "OPENAI_BASE_URL": url}
        for name in [name for name in os.environ if name.endswith("_API_KEY")]:
            monkeypatch.delenv(name)
        for name, value in keys.items():
            monkeypatch.setenv(name, value)
        made = typed("init", state=home)
        assert (made.code, f": {result}: " in made.out, fix in made.out) == (1, True, True), made.out
        assert "sk-loopback-secret" not in made.out + made.err
        said = typed("init", "--force", "--json", state=home).body
        assert (said["ok"], said["test"]["result"]) == (False, result)
        words = _next_command(made.out)
        assert words[-4:-2] == ["--model", "offline"]
        if fault is not Fault.AUTH:
            return  # the same command each time
        try:
            assert in_a_process(*words[:-2], state=home, **keys).code == 0, "the demo model works"
        finally:
            in_a_process("stop", state=home)


@pytest.mark.slow
def test_open_as_the_first_command_starts_a_gateway_and_prints_the_link(tmp_path: Path) -> None:
    home = tmp_path / "state"
    try:
        opened = in_a_process("open", "--print", state=home)
        assert opened.code == 0
        assert opened.out.startswith("http://127.0.0.1:")
    finally:
        in_a_process("stop", state=home)


def test_what_sessions_keep_is_said_by_check_and_explain(tmp_path: Path) -> None:
    with served(tmp_path / "state", policy=FAST) as here:
        here.client.post("/v1/sessions/agent:main:main/messages", {"text": "/status"})
    new = tmp_path / "elsewhere"
    new.mkdir()
    configure(here.home, {"agents": {"defaults": {"workspace": str(new), "subagents": {"maxSpawnDepth": 2}}}})
    checked = typed("config", "check", state=here.home)
    assert checked.code == 0
    assert f"workspace {new} is for new sessions; agent:main:main keeps {tmp_path}" in checked.out
    explained = typed("config", "explain", "agents.defaults.workspace", state=here.home).out
    assert "while it runs; sessions that exist keep theirs" in explained
    depth = typed("config", "explain", "agents.defaults.subagents.maxSpawnDepth", state=here.home).out
    assert "keep theirs" not in depth, "the rights of main sessions follow the config"


# ---- a fresh machine, and the command for people who are lost ------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [("ps",), ("tree",), ("top",), ("inbox",), ("dead",), ("cost",), ("why",), ("why", "last"), ("logs",)],
)
def test_a_fresh_machine_leads_on(tmp_path: Path, words: tuple[str, ...]) -> None:
    home = tmp_path / "state"
    shown = typed(*words, state=home)
    assert (shown.code, shown.out) == (0, "")
    first = shlex.join(["clutch", "run", "--wait", "question: sizes", "--state", str(home)])
    assert shown.err.startswith(f"No tasks yet in {home}. Start one: `{first}` (demo model, no API key)")
    assert f"`clutch init --state {home}`" in shown.err
    if words[0] != "logs":  # one object per line of the transcript, of which there is none
        assert typed(*words, "--json", state=home).body["ok"]
    assert not home.exists(), "looking creates nothing"
    assert typed("logs", "t_7f3a", state=home).code == 1, "a task that never was is an error"


def test_the_database_of_a_used_directory_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    """A gateway on PostgreSQL leaves a token and no file of its database."""
    typed("token", "--rotate", state=tmp_path / "state")
    shown = typed("ps", "--json", state=tmp_path / "state")
    assert (shown.code, shown.body["error"]["code"]) == (9, "unavailable")
    assert f"clutch serve --state {tmp_path / 'state'}" in shown.err


def test_status_of_a_fresh_machine_says_what_to_type(tmp_path: Path) -> None:
    home = tmp_path / "state"
    shown = typed("status", state=home)
    assert (shown.code, home.exists()) == (0, False)
    lines = dict(line.split(maxsplit=1) for line in shown.out.splitlines()[:-1])
    assert lines["Gateway"] == "not running; it starts with the next command that needs it"
    assert lines["Model"].startswith("offline: WARNING: demo model")
    assert lines["Config"] == "no file, every setting has its default"
    assert lines["State"].startswith(f"{home} (0 B used, ")
    said = typed("status", "--json", state=home).body
    assert said["next"] == [
        f"clutch init --state {home}",
        f"clutch run --wait 'question: sizes' --state {home}",
    ]
    assert (said["gateway"], said["model"]) == (None, {"name": "offline", "isDemo": True})


def test_status_counts_a_state_directory_whose_files_are_removed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, look = tmp_path / "state", os.lstat
    folder = home / "workspaces"
    folder.mkdir(0o700, parents=True)
    for name in ("first", "second"):
        (folder / name).write_bytes(b"12345")

    def late(path: Any, **options: Any) -> os.stat_result:
        found = look(path, **options)
        if Path(path).parent == folder:
            for one in folder.iterdir():
                one.unlink()
        return found

    monkeypatch.setattr(os, "lstat", late)
    said = typed("status", "--json", state=home)
    assert (said.code, said.body["disk"]["used"]) == (0, 5)


def test_status_shows_the_gateway_and_without_it_the_last_saved_state(tmp_path: Path) -> None:
    with served(tmp_path / "state", policy=FAST) as here:
        for task in ("ask me", "slow one"):
            here.client.post("/v1/tasks", {"task": task})
        asking = here.client.get(task_path("ask me", "wait"), timeoutSeconds=30)
        assert asking["status"] == "needs_you"
        seen(here.client, "slow one", lambda one: one["phase"] == "running")
        said = typed("status", "--json", state=here.home).body
        text = typed("status", state=here.home).out
        assert said["gateway"] | {"startedAt": ""} == {
            "url": here.clutch.url,
            "pid": os.getpid(),
            "version": said["version"],
            "startedAt": "",
            "background": False,
            "status": "ok",
            "database": "sqlite",
            "workspace": str(tmp_path),
        }
        assert f"Folder    {tmp_path} (where agents work)" in text
        assert (said["tasks"]["running"], said["inbox"], said["spentToday"]["calls"] > 0) == (1, 1, True)
        assert said["model"] == {"name": None, "isDemo": False}, "the program has its own"
        assert said["next"][0] == f"clutch inbox --state {here.home}"
        assert f"running at {here.clutch.url}, pid {os.getpid()}, since " in text
        assert "1 item to decide" in text
        assert said["disk"]["used"] > 0
        assert said["config"] == {"file": None, "loaded": True, "problem": None, "notLoadedKeys": []}
        configure(here.home, {"models": {"providers": {"lab": {"baseUrl": "http://127.0.0.1:9"}}}})
        here.run(here.clutch.reload())
        changed = typed("status", "--json", state=here.home).body
        assert (changed["config"]["loaded"], changed["config"]["notLoadedKeys"]) == (
            False,
            ["models.providers"],
        )
        assert "Restart to apply: end the program" in changed["config"]["problem"]
        assert changed["next"][0] == f"clutch config check --state {here.home}"
        (here.home / "clutch.json").unlink()
    later = typed("status", "--json", state=here.home)
    assert (later.code, later.body["gateway"], later.body["inbox"]) == (0, None, 1)
    assert "Gateway not running. Showing the last saved state" in later.err
    configure(here.home, {"agents": {"defaults": {"model": 7}}})
    broken = typed("status", "--json", state=here.home)
    assert (broken.code, "agents.defaults.model" in broken.body["config"]["problem"]) == (0, True)


def test_what_was_asked_for_is_printed_to_stdout(tmp_path: Path) -> None:
    home = tmp_path / "state"
    rotated = typed("token", "--rotate", state=home)
    assert (rotated.out, rotated.err) == (f"rotated: {home / 'token'}\n", "")
    doctor = typed("doctor", state=home)
    assert doctor.out.startswith("ok    state-directory: ")
    assert doctor.err == ""


def test_replies_that_went_through_a_pipe_are_not_marked_as_read(tmp_path: Path) -> None:
    with served(tmp_path / "state", policy=FAST) as here:
        for line in ("/model", "/agents"):
            here.client.post("/v1/sessions/agent:main:main/messages", {"text": line})
        for _ in range(2):
            logs = typed("logs", "main", state=here.home)
            assert ("Model: " in logs.out, "main · " in logs.out) == (True, True)
            assert "2 replies not marked as read" in logs.err
        assert "2 replies to read" in typed("ps", state=here.home).err


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"agents": {"defaults": {"model": "nowhere:one"}}}, "nowhere"),
        ({"agents": {"defaults": {"model": "openai:gpt-5"}}}, "OPENAI_API_KEY"),
        ({"agents": {"list": [{"id": "main", "model": "nowhere:one"}]}}, "nowhere"),
        ({"gateway": {"host": EVERYWHERE}}, "gateway.allowRemote"),
        ({"gateway": {"host": EVERYWHERE, "allowRemote": True}}, "gateway.allowedHosts"),
        ({"gateway": {"host": EVERYWHERE, "allowRemote": True, "allowedHosts": ["lan.test"]}}, "token"),
    ],
)
def test_check_and_doctor_refuse_what_serve_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], why: str
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    home = tmp_path / "state"
    home.mkdir(0o700)
    file = configure(home, settings)
    checked = typed("config", "check", "--json", state=home)
    assert (checked.code, checked.body["file"]) == (1, str(file))
    (problem,) = checked.body["problems"]
    assert why in problem
    doctor = typed("doctor", "--json", state=home)
    (config,) = [one for one in doctor.body["checks"] if one["id"] == "config"]
    assert (config["ok"], why in config["detail"]) == (False, True)
    serve = typed("serve", "--json", state=home)
    assert serve.code != 0
    assert serve.body["error"]["message"] in problem
