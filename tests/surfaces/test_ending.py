"""Ending a gateway: told to, drained, or idle; and how one is started for a command that needs it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from clutch.api.gateway import Leaving
from clutch.api.problems import error_of
from clutch.cli import serve
from clutch.errors import Draining, NoGateway
from clutch.surfaces import discovery
from clutch.surfaces.http_client import task_path
from tests.patience import PATIENCE_S
from tests.surfaces.served import FAST, Served, served
from tests.surfaces.test_http_tasks import declined, ended, seen, spawned


@contextmanager
def leaving(here: Served, idle_exit_s: float | None = None) -> Iterator[tuple[Leaving, Future[Any]]]:
    """Like `clutch serve`, but for the end of the process."""
    made = here.clutch.local_gateway.leaving = Leaving(here.clutch, idle_exit_s)
    watching = asyncio.run_coroutine_threadsafe(made.watch(), here.loop)
    yield made, watching
    watching.cancel()


def test_a_drain_takes_nothing_new_says_what_it_waits_for_and_ends_when_that_is_over(tmp_path: Path) -> None:
    with served(tmp_path / "state", policy=FAST) as here, leaving(here) as (made, watching):
        task = spawned(here.client, "slow survey", label="survey", notifyParent=True)
        seen(here.client, task, lambda one: one["phase"] == "running")
        said = here.client.post("/v1/drain")
        assert (said["status"], said["pid"]) == ("draining", os.getpid())
        assert [(one["taskId"], one["phase"]) for one in said["waitingFor"]] == [(task, "running")]
        assert here.client.get("/v1/health")["status"] == "draining"
        refused = declined(lambda: spawned(here.client, "another"))
        assert (refused.status, refused.code) == (503, "unavailable")
        assert "clutch drain" in refused.said["remedy"]
        assert isinstance(error_of(refused.said), Draining), (
            "for a program it is what it would be in this one"
        )
        words = {"text": "hello"}
        assert (
            declined(lambda: here.client.post("/v1/sessions/agent:main:main/messages", words)).status == 503
        )
        here.let_go()
        watching.result(PATIENCE_S)
        assert made.why == "drained"
        assert here.client.get(task_path(task))["delivery"]["state"] == "delivered"


def test_a_drain_that_takes_too_long_becomes_a_stop(tmp_path: Path) -> None:
    with served(tmp_path / "state", policy=FAST) as here, leaving(here) as (made, watching):
        task = spawned(here.client, "slow survey")
        seen(here.client, task, lambda one: one["phase"] == "running")
        here.client.post("/v1/drain", {"timeoutSeconds": 0.05})
        watching.result(PATIENCE_S)
        assert "next start" in made.why


def test_a_program_is_not_ended_by_others(tmp_path: Path) -> None:
    with served(tmp_path / "state") as here:
        for path in ("/v1/stop", "/v1/drain"):
            refused = declined(lambda path=path: here.client.post(path))  # type: ignore[misc]
            assert (refused.code, refused.said["rule"]) == ("forbidden", "embedded")


def test_an_idle_gateway_leaves_and_one_with_work_stays(tmp_path: Path) -> None:
    with served(tmp_path / "state", policy=FAST) as here, leaving(here, 0.05) as (made, watching):
        task = spawned(here.client, "slow survey")
        with pytest.raises(TimeoutError):
            watching.result(0.5)
        here.let_go()
        watching.result(PATIENCE_S)
        assert "no work and no request" in made.why
        assert ended(here.client, task)["task"]["outcome"] == "ok"


def test_its_log_is_private_has_a_line_per_event_no_secret_and_a_bound(tmp_path: Path) -> None:
    handler = serve.PrivateFile(tmp_path, 2000)
    handler.setFormatter(serve.OneLine(serve.IN_FILE))
    log = logging.getLogger("test_ending")
    log.addHandler(handler)
    try:
        raise ValueError("with\nlines and a key sk-abcdefghijklmnopqrstuv")
    except ValueError:
        log.exception("failed for \x1b[31m Bearer abcdefgh12345678")
    (line,) = (tmp_path / serve.LOG_FILE).read_text().splitlines()
    assert "ValueError" in line
    assert "\x1b" not in line
    assert "sk-abc" not in line
    assert "abcdefgh12345678" not in line
    for number in range(100):
        log.warning("line %s %s", number, "x" * 50)
    handler.close()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["gateway.log", "gateway.log.1"]
    assert all(file.stat().st_size <= 2000 for file in files)
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)


def test_what_is_printed_to_the_log_is_redacted_by_line(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        out = serve.Redacting(file.fileno())
        print("got sk-abcdefghij", end="", file=out)
        print("klmnopqrstuv\nand more", end="", file=out)
        assert "and" not in (tmp_path / "log").read_text()
        out.flush()
    assert (tmp_path / "log").read_text() == "got [redacted]\nand more"


def test_what_may_be_started_for_whom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(discovery.NO_START, raising=False)
    fresh, known, elsewhere = (tmp_path / name for name in ("fresh", "known", "elsewhere"))
    known.mkdir()
    (known / "clutch.db").touch()
    elsewhere.mkdir()
    (elsewhere / "token").touch()
    assert discovery.may_start(fresh, is_new_work=True)
    assert not discovery.may_start(fresh, is_new_work=False)
    assert discovery.may_start(known, is_new_work=False)
    assert not discovery.may_start(elsewhere, is_new_work=True)
    monkeypatch.setenv(discovery.NO_START, "1")
    assert not discovery.may_start(known, is_new_work=True)


def test_a_directory_of_somebody_elses_files_gets_no_gateway_and_no_file(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").touch()
    with pytest.raises(NoGateway, match="holds other files"):
        discovery.start(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["letter.txt"]


@pytest.mark.slow
def test_two_commands_at_once_start_one_gateway_that_outlives_them(tmp_path: Path) -> None:
    state = tmp_path / "state"
    env = {name: value for name, value in os.environ.items() if name != discovery.NO_START}

    elsewhere = tmp_path.with_name(f"{tmp_path.name}-elsewhere")
    elsewhere.mkdir()

    def clutch(*words: str, folder: Path = tmp_path) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "clutch", *words, "--state", str(state), "--json"]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env, cwd=folder)

    both = [clutch("spawn", f"say {word}") for word in ("one", "two")]
    said = [json.loads(one.communicate(timeout=60)[0]) for one in both]
    try:
        assert [one["status"] for one in said] == ["accepted", "accepted"]
        found = discovery.find(state)
        assert found is not None
        assert os.getsid(found.pid) == found.pid  # a Ctrl-C in the terminal does not reach it
        assert stat.S_IMODE((state / serve.LOG_FILE).stat().st_mode) == 0o600
        note = f"Agents work in {tmp_path}, not in this folder."
        assert note in clutch("spawn", "say three", folder=elsewhere).communicate(timeout=60)[1]
        assert note not in clutch("spawn", "say four").communicate(timeout=60)[1]
    finally:
        ending = json.loads(clutch("stop").communicate(timeout=60)[0])
    assert (ending["status"], ending["pid"]) == ("stopped", found.pid)
    assert discovery.find(state) is None
    assert json.loads(clutch("stop").communicate(timeout=60)[0])["status"] == "none"
