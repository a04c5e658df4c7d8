"""What a second process can do to what runs in the first: over a real socket, in the formats everybody is given."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from clutch.cli import output
from clutch.core import ids
from clutch.core.agents import AgentDefaults, OnFull, Subagents
from clutch.core.messages import Input
from clutch.core.policy import Limits, Policy
from clutch.errors import InvalidInput
from clutch.ports import ModelError, ModelRequest, Trouble
from clutch.store.transaction import ManyRows, Tx
from clutch.surfaces.http_client import Declined, GatewayClient, task_path
from clutch.testing.models import ScriptedModel
from tests.patience import PATIENCE_S
from tests.policies import QUICK
from tests.surfaces.served import FAST, Served, served, write_token
from tests.surfaces.typed import typed


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("gateway") / "state", policy=FAST) as here:
        yield here


@pytest.fixture
def client(db: Served) -> GatewayClient:
    return db.client


def spawned(client: GatewayClient, task: str, **wanted: Any) -> str:
    said = client.post("/v1/tasks", {"task": task, **wanted})
    assert said["status"] == "accepted"
    return str(said["taskId"])


def ended(client: GatewayClient, target: str, until: str = "ended") -> dict[str, Any]:
    said: dict[str, Any] = client.get(task_path(target, "wait"), timeoutSeconds=20, until=until)
    assert said["status"] == "done", said
    return said


def seen(client: GatewayClient, target: str, is_there: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The task once it looks like that; each look waits for a change."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_there(task := client.get(task_path(target))):
        assert time.monotonic() < deadline, task
        client.get(task_path(target, "wait"), timeoutSeconds=0.05)
    return dict(task)


def declined(ask: Callable[[], Any]) -> Declined:
    with pytest.raises(Declined) as caught:
        ask()
    return caught.value


def test_a_task_is_spawned_awaited_and_read(client: GatewayClient) -> None:
    task = spawned(client, "say hello", label="greeter", notifyParent=True)
    said = ended(client, task, "delivered")
    assert said["task"]["outcome"] == "ok"
    assert said["task"]["delivery"]["state"] == "delivered"
    assert "say hello" in said["result"]["text"]
    assert client.get(task_path(task, "result")) == said["result"]
    lines = client.get(task_path(task, "transcript"))["messages"]
    assert [line["kind"] for line in lines] == ["input", "answer"]
    assert client.get(task_path(task, "transcript"), after=1)["messages"] == lines[1:]
    assert declined(lambda: client.get(task_path(task, "transcript"), after=2**63)).code == "invalid_input"
    assert declined(lambda: client.get("/v1/tasks", label="\0")).code == "invalid_input"
    assert client.get(task_path(task, "tree"))["root"]["task"]["taskId"] == task


def test_what_counts_as_stalled_is_said_once_for_a_list(tmp_path: Path) -> None:
    policy = replace(QUICK, life=replace(QUICK.life, stalled_s=7.0))
    with served(tmp_path / "state", policy=policy) as here:
        task = spawned(here.client, "slow one")
        page = here.client.get("/v1/tasks")
    assert page["stalledAfterSeconds"] == 7.0
    shown = {
        **next(one for one in page["tasks"] if one["taskId"] == task),
        "status": "running",
        "lastProgressAt": page["tasks"][0]["createdAt"],
    }
    began = output.at(shown["lastProgressAt"]) or 0.0
    assert output.doing(shown, began + 8, page["stalledAfterSeconds"]).endswith(" · stalled")
    assert "stalled" not in output.doing(shown, began + 6, page["stalledAfterSeconds"])


def test_a_list_has_active_tasks_then_the_newest_finished_in_pages(client: GatewayClient) -> None:
    session = "agent:main:chat:pages"
    made = [spawned(client, f"number {number}", requester=session) for number in range(5)]
    for task in made:
        ended(client, task)
    alive = spawned(client, "slow number", requester=session)
    first = client.get("/v1/tasks", requester=session, limit=3)
    second = client.get("/v1/tasks", requester=session, limit=3, cursor=first["next"])
    shown = first["tasks"] + second["tasks"]
    assert shown[0]["taskId"] == alive
    assert sorted(task["taskId"] for task in shown[1:]) == sorted(made)
    assert (times := [task["endedAt"] for task in shown[1:]]) == sorted(times, reverse=True)
    assert second["next"] is None
    assert sum(first["summary"][name] for name in ("running", "queued", "waiting", "done")) == 6
    client.post(task_path(alive, "kill"), {})


def test_more_than_two_hundred_running_tasks_are_shown_by_every_list(tmp_path: Path) -> None:
    with served(tmp_path / "state", policy=FAST) as here:
        done = spawned(here.client, "quick")
        ended(here.client, done, "settled")
        task = spawned(here.client, "slow one")
        seen(here.client, task, lambda one: one["phase"] == "running")
        number = ids.parse_task_id(task)
        assert number is not None
        here.run(here.clutch.services.db.alone(_clone, number, 250))
        for limit in (1, 200):
            page = here.client.get("/v1/tasks", recentMinutes=30, limit=limit)
            assert len([one for one in page["tasks"] if one["phase"] == "running"]) == 251
            assert page["next"] == "finished"
            rest = here.client.get("/v1/tasks", recentMinutes=30, limit=limit, cursor=page["next"])
            assert [one["taskId"] for one in rest["tasks"]] == [done]
        for command in ("ps", "tree", "top"):
            said = typed(command, "--json", state=here.home).body
            assert len([one for one in said["tasks"] if one["phase"] == "running"]) == 251
        more = typed("ps", "--json", "--cursor", "finished", state=here.home).body
        assert [one["taskId"] for one in more["tasks"]] == [done]
        listed = here.run(here.clutch.command("/subagents list"))
        assert "Active: 251" in listed
        here.run(here.clutch.services.db.alone(_unclone))
        here.let_go()


def _clone(now: float, task_id: int, count: int) -> Tx[None]:
    """Rows of tasks like that one; no session works on them."""
    same = (
        "requester_id, root_id, depth, spawn_order, label, task, spec, timeout_s, expects_completion, has_cleanup,"
        " seq, phase, reason, generation, delivery, delivery_reason, attempts, plan, plan_round, created_at"
    )
    yield (
        f"INSERT INTO tasks(id, idem, {same}) SELECT ?, ?, {same} FROM tasks WHERE id = ?",  # noqa: S608
        ManyRows((task_id + number, f"clone {number}", task_id) for number in range(1, count + 1)),
    )


def _unclone(now: float) -> Tx[None]:
    yield "DELETE FROM tasks WHERE idem LIKE 'clone %'", ()


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"limit": 201}, "limit"), ({"limit": "many"}, "limit"), ({"phase": "asleep"}, "phase"),
        ({"cursor": "x"}, "cursor"), ({"sort": "label"}, "sort"),
    ],
)  # fmt: skip
def test_a_wrong_parameter_of_a_list_is_named(
    client: GatewayClient, query: dict[str, Any], field: str
) -> None:
    error = declined(lambda: client.get("/v1/tasks", **query))
    assert (error.status, error.said["field"]) == (400, field)


def test_what_is_not_there_is_not_found(client: GatewayClient) -> None:
    for part in ("", "/tree", "/result", "/wait", "/transcript"):
        assert declined(partial(client.get, f"/v1/tasks/t_zzzz{part}")).code == "not_found"
    for verb in ("kill", "pause", "resume", "retry", "redeliver", "dismiss", "remove"):
        assert declined(partial(client.post, f"/v1/tasks/t_zzzz/{verb}")).code == "not_found"


def test_a_running_task_has_no_result_and_waiting_for_it_changes_nothing(db: Served) -> None:
    client = db.client
    task = spawned(client, "slow one")
    seen(client, task, lambda one: one["phase"] == "running")
    error = declined(lambda: client.get(task_path(task, "result")))
    assert (error.status, error.code) == (404, "not_found")
    assert "running" in str(error)
    waited = client.get(task_path(task, "wait"), timeoutSeconds=0)
    assert (waited["status"], waited["result"]) == ("pending", None)
    assert client.get(task_path(task))["phase"] == "running"
    client.post(task_path(task, "kill"))


def test_a_dry_kill_lists_the_task_and_says_that_nothing_was_stopped(client: GatewayClient) -> None:
    task = spawned(client, "slow one")
    for target in (task, "all"):
        said = client.post(task_path(target, "kill"), {"dryRun": True})
        assert said["dryRun"] is True
        assert task in said["stopped"]
    assert client.get(task_path(task))["outcome"] is None
    assert "dryRun" not in client.post(task_path(task, "kill"))


def test_a_kill_stops_the_task_and_says_what_it_stopped(client: GatewayClient) -> None:
    task = spawned(client, "slow one")
    assert client.post(task_path(task, "kill"), {"reason": "not needed"}) == {
        "stopped": [task], "stillStopping": [], "alreadyFinished": [], "notStopped": [],
    }  # fmt: skip
    killed = client.get(task_path(task))
    assert (killed["outcome"], killed["error"]) == ("killed", "not needed")
    assert client.post(task_path(task, "kill"))["alreadyFinished"] == [task]


def test_a_steered_task_does_the_new_thing_under_the_same_id(client: GatewayClient) -> None:
    task = spawned(client, "slow one")
    running = seen(client, task, lambda one: one["phase"] == "running")
    said = client.post(task_path(task, "steer"), {"text": "quick instead"})
    assert (said["status"], said["taskId"], said["supersedes"]) == ("accepted", task, running["runId"])
    assert said["runId"] not in (None, running["runId"])
    assert "quick instead" in ended(client, task)["result"]["text"]
    assert client.get(task_path(task))["runId"] == said["runId"]
    again = client.post(task_path(task, "continue"), {"text": "slow on"})
    assert again["runId"] not in (None, said["runId"])
    assert client.get(task_path(task))["runId"] == again["runId"]
    client.post(task_path(task, "kill"))


def test_a_sent_message_gets_its_reply(client: GatewayClient) -> None:
    task = spawned(client, "slow one")
    seen(client, task, lambda one: one["phase"] == "running")
    assert client.post(task_path(task, "send"), {"text": "also this", "waitSeconds": 0}) == {
        "status": "accepted"
    }
    client.post(task_path(task, "kill"))


def test_a_paused_task_stands_still_until_it_is_resumed(client: GatewayClient) -> None:
    task = spawned(client, "slow one")
    seen(client, task, lambda one: one["phase"] == "running")
    assert client.post(task_path(task, "pause")) == {"changed": [task]}
    assert client.post(task_path(task, "pause")) == {"changed": []}
    assert client.post(task_path(task, "resume")) == {"changed": [task]}
    client.post(task_path(task, "kill"))


def test_a_finished_task_runs_again_or_goes_on(client: GatewayClient) -> None:
    task = spawned(client, "first words", notifyParent=True)
    ended(client, task, "delivered")
    assert client.post(task_path(task, "retry"), {"text": "other words"})["generation"] == 2
    assert "other words" in ended(client, task, "delivered")["result"]["text"]
    again = client.post(task_path(task, "continue"), {"text": "more words"})
    assert set(client.post("/v1/tasks", {"task": "another", "dryRun": True})) - {"dryRun", "forecast"} <= set(
        again
    )
    assert (again["status"], again["mode"], again["context"]) == ("accepted", "run", "isolated")
    assert "pushed to you" in again["note"]
    assert "more words" in ended(client, task, "delivered")["result"]["text"]
    assert client.post(task_path(task, "remove"))["taskId"] == task


def test_a_plan_is_approved_by_the_hash_that_was_shown(client: GatewayClient) -> None:
    task = spawned(client, "think first", planMode=True, label="planner")
    waiting = seen(client, task, lambda one: one["phase"] == "awaiting_approval")
    assert client.get(task_path(task, "wait"), timeoutSeconds=20)["status"] == "needs_you"
    (item,) = [one for one in client.get("/v1/inbox")["items"] if one["taskId"] == task]
    assert (item["kind"], item["label"], item["hash"]) == ("plan", "planner", waiting["plan"]["hash"])
    error = declined(lambda: client.post(task_path(task, "approve"), {"planHash": "0" * 16}))
    assert (error.status, error.code) == (409, "plan_changed")
    said = client.post(task_path(task, "approve"), {"planHash": item["hash"], "text": "go"})
    assert (said["status"], said["taskId"], said["round"]) == ("approved", task, 0)
    assert ended(client, task)["task"]["outcome"] == "ok"


def test_a_plan_is_sent_back_or_ended(client: GatewayClient) -> None:
    task = spawned(client, "think first", planMode=True)
    first = seen(client, task, lambda one: one["phase"] == "awaiting_approval")
    body = {"planHash": first["plan"]["hash"], "reason": "too long"}
    assert client.post(task_path(task, "reject"), body)["status"] == "revising"
    second = seen(client, task, lambda one: one["phase"] == "awaiting_approval" and one["plan"]["round"] == 1)
    body = {"planHash": second["plan"]["hash"], "reason": "no", "then": "end"}
    assert client.post(task_path(task, "reject"), body)["status"] == "ended"
    assert ended(client, task)["task"]["outcome"] == "error"


def test_a_question_is_answered_once_and_only_as_it_was_shown(client: GatewayClient) -> None:
    task = spawned(client, "ask me")
    seen(client, task, lambda one: one["reason"] == "needs-you")
    (item,) = [one for one in client.get("/v1/inbox")["items"] if one["taskId"] == task]
    assert (item["kind"], item["text"], item["detail"]["choices"]) == ("question", "Which one?", ["a", "b"])
    path = f"/v1/inbox/{item['id']}"
    wrong = {"decision": "answer", "text": "a", "hash": "0" * 64}
    assert declined(lambda: client.post(path, wrong)).code == "plan_changed"
    right = {"decision": "answer", "text": "b", "hash": item["hash"]}
    assert declined(lambda: client.post(path, {**right, "text": "c"})).said["field"] == "text"
    assert client.post(path, right) == {"status": "answered", "taskId": task}
    assert declined(lambda: client.post(path, right)).code == "not_found"
    assert declined(lambda: client.post("/v1/inbox/nowhere", right)).code == "not_found"
    assert ended(client, task)["task"]["outcome"] == "ok"


@pytest.mark.parametrize("text", ["", " \n\t", "\u2003"])
def test_an_empty_answer_is_refused_over_http_by_the_cli_and_in_python(db: Served, text: str) -> None:
    task = spawned(db.client, "ask openly")
    seen(db.client, task, lambda one: one["reason"] == "needs-you")
    (item,) = [one for one in db.client.get("/v1/inbox")["items"] if one["taskId"] == task]
    body = {"decision": "answer", "text": text, "hash": item["hash"]}
    refused = declined(lambda: db.client.post(f"/v1/inbox/{item['id']}", body))
    assert (refused.code, refused.said["field"]) == ("invalid_input", "text")
    assert "must not be blank" in refused.said["message"]
    said = typed("answer", item["id"], text, state=db.home)
    assert (said.code, "must not be blank" in said.err) == (2, True)
    (question,) = [one for one in db.run(db.clutch.inbox()) if one.task_id == task]
    with pytest.raises(InvalidInput, match="must not be blank"):
        db.run(db.clutch.answer(question, "answer", text))
    assert db.client.post(f"/v1/inbox/{item['id']}", {**body, "text": "Ada"})["status"] == "answered"
    assert ended(db.client, task)["task"]["outcome"] == "ok"


@pytest.mark.parametrize("next_s", [600.0, 1.0])
def test_whoever_removes_a_task_waits_for_its_next_try_unless_that_comes_much_later(
    tmp_path: Path, next_s: float
) -> None:
    rejected = 0

    def fails_in_the_main_session(request: ModelRequest) -> str | ModelError:
        nonlocal rejected
        is_child = any(isinstance(one, Input) and one.source == "task" for one in request.transcript)
        if is_child or rejected:
            return "done"
        rejected += 1
        return ModelError(Trouble.BAD_REQUEST, "no")

    late = replace(FAST, announcing=replace(FAST.announcing, first_s=next_s, fast_max_s=next_s))
    with served(tmp_path / "state", ScriptedModel(fails_in_the_main_session), late) as here:
        task = spawned(here.client, "x", notifyParent=True)
        seen(here.client, task, lambda one: one["delivery"]["nextAt"] is not None)
        began = time.monotonic()
        if next_s > 60:
            assert declined(lambda: here.client.post(task_path(task, "remove"))).code == "forbidden"
        else:
            assert here.client.post(task_path(task, "remove"))["taskId"] == task
        assert time.monotonic() - began < PATIENCE_S


# ---- spawning ----------------------------------------------------------------------------------------------


def test_the_same_key_is_the_same_task(client: GatewayClient) -> None:
    first, again = (client.post("/v1/tasks", {"task": "once"}, key="spawn-1") for _ in range(2))
    assert first == again


def test_a_spawn_with_a_wrong_parameter_names_it(db: Served) -> None:
    for body, field in (({"task": "x", "chanel": "y"}, "chanel"), ({"task": 3}, "task"), ({}, "task")):
        heard = db.post("/v1/tasks", body)
        assert heard.status == 400
        assert heard.body["status"] == "error"
        assert field in heard.body["error"]
    assert db.post("/v1/tasks", {"task": "x", "onFull": "maybe"}).body["error"]["field"] == "onFull"
    assert db.post("/v1/tasks", {"task": "x", "requester": "main"}).body["error"]["field"] == "requester"


def test_a_spawn_over_a_limit_is_refused_naming_it(tmp_path: Path) -> None:
    policy = replace(QUICK, limits=Limits(children_max=1))
    with served(tmp_path / "state", policy=policy) as here:
        assert here.post("/v1/tasks", {"task": "slow one"}).status == 201
        heard = here.post("/v1/tasks", {"task": "slow two", "onFull": "reject"})
        assert (heard.status, heard.body["status"]) == (403, "forbidden")
        assert "maxChildrenPerAgent" in heard.body["error"]


def test_whether_a_spawn_waits_for_room_is_as_configured_where_it_does_not_say(tmp_path: Path) -> None:
    defaults = AgentDefaults(subagents=Subagents(on_full=OnFull.REJECT))
    policy = replace(QUICK, limits=Limits(children_max=1), defaults=defaults)
    with served(tmp_path / "state", policy=policy) as here:
        assert here.post("/v1/tasks", {"task": "slow one"}).status == 201
        heard = here.post("/v1/tasks", {"task": "slow two"})
        assert (heard.status, heard.body["limit"]["onFull"]) == (403, "reject")


def test_many_spawn_at_once_through_the_door_and_the_limit_holds(tmp_path: Path) -> None:
    policy = replace(QUICK, limits=Limits(children_max=3))
    with served(tmp_path / "state", policy=policy) as here:
        body = {"task": "slow one", "onFull": "reject"}
        with ThreadPoolExecutor(8) as pool:
            heard = list(pool.map(lambda _: here.post("/v1/tasks", body).status, range(16)))
        assert sorted(heard) == [201] * 3 + [403] * 13


def actors(now: float, task_id: int) -> Tx[set[str]]:
    return {row[0] for row in (yield "SELECT actor FROM events WHERE task_id = ?", (task_id,))}


def test_every_act_is_in_the_timeline_with_its_actor(db: Served) -> None:
    task = spawned(db.client, "slow one")
    write_token(db.home / "token.read+write", other := secrets.token_urlsafe(32))
    db.client.post(task_path(task, "pause"))
    assert db.post(task_path(task, "kill"), {}, authorization=f"Bearer {other}").status == 200
    number = ids.parse_task_id(task)
    assert number is not None
    assert {"person", "token.read+write"} <= db.run(db.clutch.services.db.read(actors, number))


def test_a_task_is_meant_by_its_label_its_key_its_beginning_or_its_number(client: GatewayClient) -> None:
    session = "agent:main:chat:targets"
    made = [
        spawned(client, "x", label=label, requester=session)
        for label in ("a/b?c#d%2f", "twin one", "twin two")
    ]
    key = client.get(task_path(made[0]))["sessionKey"]
    for target in ("a/b?c#d%2f", "a/b", key, key[:-2], made[0]):
        assert client.get(task_path(target))["taskId"] == made[0], target
    listed = [one["taskId"] for one in client.get("/v1/tasks", requester=session, numbered=True)["tasks"]]
    assert sorted(listed) == sorted(made)
    assert [client.get(task_path(f"#{number}"))["taskId"] for number in (1, 2, 3)] == listed
    assert client.get(task_path("last"))["taskId"] == made[2]
    error = declined(lambda: client.get(task_path("twin")))
    assert (error.status, error.code) == (409, "ambiguous")
    assert {one.split()[0] for one in error.said["candidates"]} == set(made[1:])
    unknown = declined(lambda: client.get(task_path("nobody")))
    assert (unknown.status, unknown.code, len(unknown.said["candidates"]) > 0) == (404, "not_found", True)
    assert declined(lambda: client.get(task_path("x" * 301))).code == "invalid_input"


def test_an_answer_is_plain_json_without_a_secret(db: Served) -> None:
    heard = db.raw("GET", "/v1/tasks")
    assert heard.headers["content-type"] == "application/json"
    assert db.token not in json.dumps(heard.body)


def test_a_stop_answers_whoever_waits(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        with served(tmp_path / "state", policy=Policy(work=QUICK.work)) as here:
            client = here.client
            task = spawned(client, "slow one")
            waiting = pool.submit(client.get, task_path(task, "wait"), timeoutSeconds=60)
            seen(client, task, lambda one: one["phase"] == "running")
        assert waiting.result(10)["status"] == "pending"


@pytest.mark.parametrize("by", ["root", "agent", "model", "day"])
def test_what_was_used_is_added_up(client: GatewayClient, by: str) -> None:
    task = spawned(client, "quick one", requester="agent:main:chat:spender")
    calls = ended(client, task)["task"]["usage"]["own"]["calls"]
    said = client.get("/v1/usage", by=by)
    rows = {row["name"]: row for row in said["usage"]}
    assert (said["by"], len(rows) > 0) == (by, True)
    assert sum(row["calls"] for row in rows.values()) >= calls == 1
    if by == "day":
        assert all(datetime.fromisoformat(name) for name in rows)
    if by == "root":
        assert rows["agent:main:chat:spender"]["calls"] >= 1


def test_the_agents_are_listed_with_their_models(client: GatewayClient) -> None:
    assert [agent["agentId"] for agent in client.get("/v1/agents")["agents"]] == ["main"]


def test_sessions_are_listed_with_their_tasks_and_can_be_read(client: GatewayClient) -> None:
    chat = "agent:main:chat:listed"
    task = spawned(client, "quick one", requester=chat, notifyParent=True)
    key = ended(client, task, "delivered")["task"]["sessionKey"]
    found = {one["sessionKey"]: one for one in client.get("/v1/sessions", limit=200)["sessions"]}
    assert (found[chat]["kind"], found[chat]["task"]) == ("chat", None)
    assert (found[key]["kind"], found[key]["task"]["taskId"]) == ("subagent", task)
    path = f"/v1/sessions/{quote(key, safe='')}/transcript"
    assert client.get(path) == client.get(task_path(task, "transcript"))
    said = client.get(f"/v1/sessions/{quote(chat, safe='')}/transcript")["messages"]
    assert any(line["kind"] == "answer" for line in said)


def test_words_to_a_main_agent_start_its_turn(client: GatewayClient) -> None:
    path = "/v1/sessions/agent%3Amain%3Achat%3Aspoken"
    assert client.post(f"{path}/messages", {"text": "good morning"})["letterId"].startswith("user:")
    deadline = time.monotonic() + PATIENCE_S
    while len(said := client.get(f"{path}/transcript")["messages"]) < 2:
        assert time.monotonic() < deadline, said
    assert "good morning" in said[1]["body"]["text"]
    assert (
        declined(lambda: client.post("/v1/sessions/nobody/messages", {"text": "x"})).said["field"]
        == "session"
    )


def test_a_session_is_deleted_only_when_nothing_of_it_works(client: GatewayClient) -> None:
    task = spawned(client, "slow one")
    key = seen(client, task, lambda one: one["phase"] == "running")["sessionKey"]
    path = f"/v1/sessions/{quote(key, safe='')}"
    error = declined(lambda: client.delete(path))
    assert (error.status, error.code, error.said["rule"]) == (403, "forbidden", "state")
    assert client.delete(path, kill=True) == {"status": "deleted", "sessionKey": key}
    assert client.get(task_path(task))["outcome"] == "killed"
