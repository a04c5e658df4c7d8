"""`why` and `replay` from a second terminal: what it waits for, the command that opens it, and every step it took."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from clutch.surfaces.http_client import task_path
from tests.surfaces.served import FAST, Served, served
from tests.surfaces.test_cli import clutch
from tests.surfaces.test_http_tasks import ended, seen, spawned

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("first") / "state", policy=FAST) as here:
        yield here


@pytest.mark.scenario(202)
def test_why_names_the_gate_and_its_command_opens_it_as_printed(first: Served) -> None:
    task = spawned(first.client, "slow survey", label="survey")
    seen(first.client, task, lambda one: one["phase"] == "running")
    first.pause_between_two_runs(task)
    seen(first.client, task, lambda one: one["phase"] == "paused")
    told = clutch("why", "survey", "--json", state=first.home).body
    assert (told["schema"], told["ok"], told["task"]["taskId"]) == ("clutch.why/1", True, task)
    assert (told["stuck"]["gate"], told["stuck"]["waitingFor"]) == ("paused", [task])
    assert [line["seq"] for line in told["timeline"]] == list(range(1, len(told["timeline"]) + 1))
    assert told["timeline"][0]["event"] == "spawned"
    name, *words = shlex.split(told["stuck"]["command"])
    assert name == "clutch"
    assert clutch(*words, state=first.home).code == 0
    after = clutch("why", task, "--json", state=first.home).body
    assert after["stuck"] is None or after["stuck"]["gate"] != "paused"
    first.client.post(task_path(task, "kill"), {})


@pytest.mark.scenario(202)
def test_why_tells_a_delivered_task_in_words_and_with_its_attempt(first: Served) -> None:
    task = spawned(first.client, "quick one", label="quick", notifyParent=True)
    ended(first.client, task, "delivered")
    said = clutch("why", task, state=first.home)
    assert said.code == 0
    head, *lines = said.out.splitlines()
    assert head == f'{task} "quick": done'
    assert lines[0].endswith("Accepted and queued.")
    assert any(line.endswith("Delivered to agent:main:main.") for line in lines)
    told = first.client.get(task_path(task, "why"))
    attempt = told["deliveries"][-1]  # others may have kept its requester busy before
    assert list(attempt) == [
        "key", "toSession", "toDepth", "why", "routeMode", "tried", "path", "attempt", "at", "nextAt", "outcome",
        "reason", "runId", "transcriptSeq",
    ]  # fmt: skip
    assert (attempt["toSession"], attempt["toDepth"], attempt["outcome"]) == (
        "agent:main:main",
        0,
        "delivered",
    )
    assert told["stuck"] is None


def test_replay_goes_through_the_journal_step_by_step(first: Served) -> None:
    task = spawned(first.client, "quick one", label="replayed")
    ended(first.client, task, "delivered")
    done = clutch("replay", task, "--json", state=first.home)
    steps = [json.loads(line) for line in done.out.splitlines()]
    assert [step["n"] for step in steps] == list(range(1, len(steps) + 1))
    kinds = [step["kind"] for step in steps]
    assert kinds[:4] == ["letter", "phase", "phase", "input"]
    assert {"answer", "phase"} <= set(kinds[4:])
    page = first.client.get(task_path(task, "replay"), after=2, limit=1)
    assert ([step["n"] for step in page["steps"]], page["next"]) == ([3], 3)
    words = clutch("replay", task, state=first.home)
    assert len(words.out.splitlines()) == len(steps)


def test_an_unknown_task_is_said_to_be_unknown(first: Served) -> None:
    for command in ("why", "replay"):
        done = clutch(command, "nobody", "--json", state=first.home)
        assert (done.code, done.body["error"]["code"]) == (1, "not_found")


def test_without_a_gateway_both_work_and_why_says_that_nobody_does(tmp_path: Path) -> None:
    with served(tmp_path / "state", policy=FAST) as here:
        task = spawned(here.client, "slow survey", label="left behind")
        seen(here.client, task, lambda one: one["phase"] == "running")
    told = clutch("why", task, "--json", state=here.home).body
    assert (told["stuck"]["gate"], told["stuck"]["command"]) == (
        "lease",
        shlex.join(["clutch", "serve", "--state", str(here.home)]),
    )
    assert clutch("replay", task, "--json", state=here.home).code == 0


def test_why_of_a_failed_task_ends_with_its_error_and_the_command_that_retries(first: Served) -> None:
    task = spawned(first.client, "slow survey", label="late", runTimeoutSeconds=1)
    ended(first.client, task, "ended")
    said = clutch("why", task, state=first.home)
    error, remedy = said.out.splitlines()[-2:]
    shown = clutch("ps", "--json", state=first.home).body["tasks"]
    (doing,) = (one["doingNow"] for one in shown if one["taskId"] == task)
    assert error == f"Error: {doing}"
    assert shlex.split(remedy.partition("-> ")[2])[:3] == ["clutch", "retry", task]
