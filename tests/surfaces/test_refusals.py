"""An action that a task's state does not allow is refused with the same code and message on every surface."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import pytest

from clutch import ClutchError, Task
from clutch.api.problems import problem_of
from clutch.surfaces.http_client import GatewayClient, session_path, task_path
from clutch.surfaces.mcp import TOOLS
from clutch.surfaces.mcp_server import session_key
from tests.surfaces.served import FAST, Served, served
from tests.surfaces.test_http_tasks import declined, ended, seen, spawned
from tests.surfaces.test_mcp import error, over_http
from tests.surfaces.typed import typed

CLIENT = "tester"
SESSION = session_key("main", CLIENT)  #: what an MCP client of this name sees
HASH = "0" * 16

#: What each action is given, as the body of a request, the words of a line and the call of a handle.
BODIES: Mapping[str, Mapping[str, Any]] = {
    "steer": {"text": "x"},
    "send": {"text": "x"},
    "continue": {"text": "x"},
    "approve": {"planHash": HASH},
    "reject": {"planHash": HASH, "reason": "x"},
}
WORDS = {"steer": ["x"], "send": ["x"], "continue": ["x"], "reject": ["x"]}
OPTIONS = {"approve": ["--hash", HASH], "reject": ["--hash", HASH]}
HANDLES: Mapping[str, Callable[[Task], Awaitable[object]]] = {
    "steer": lambda task: task.steer("x"),
    "send": lambda task: task.send("x"),
    "retry": lambda task: task.retry(),
    "continue": lambda task: task.continue_("x"),
    "remove": lambda task: task.archive(),
    "redeliver": lambda task: task.redeliver(),
    "dismiss": lambda task: task.dismiss(),
    "approve": lambda task: task.approve(HASH),
    "reject": lambda task: task.reject(HASH, "x"),
}
#: A decision in a chat is about the plan as it is when the line is read, so it has no hash that could be wrong.
NOT_IN_CHAT = {"approve", "reject"}

STATE, OVER, CHANGED = (403, "forbidden"), (409, "already_finished"), (409, "plan_changed")
TABLE = [
    ("running", "retry", STATE),
    ("running", "continue", STATE),
    ("running", "remove", STATE),
    ("running", "redeliver", STATE),
    ("running", "dismiss", STATE),
    ("running", "approve", STATE),
    ("running", "reject", STATE),
    ("finished", "steer", OVER),
    ("finished", "send", OVER),
    ("finished", "redeliver", OVER),
    ("finished", "dismiss", OVER),
    ("planned", "approve", CHANGED),
    ("planned", "reject", CHANGED),
]


def make_running(client: GatewayClient) -> str:
    task = spawned(client, "slow one", requester=SESSION)
    seen(client, task, lambda one: one["phase"] == "running")
    return task


def make_finished(client: GatewayClient) -> str:
    task = spawned(client, "quick one", requester=SESSION)
    ended(client, task, "delivered")
    return task


def make_planned(client: GatewayClient) -> str:
    task = spawned(client, "a plan", requester=SESSION, planMode=True)
    seen(client, task, lambda one: one["phase"] == "awaiting_approval")
    return task


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("refusals") / "state", policy=FAST) as found:
        yield found


@pytest.fixture(scope="module")
def tasks(here: Served) -> Mapping[str, str]:
    made = {"running": make_running, "finished": make_finished, "planned": make_planned}
    return {state: make(here.client) for state, make in made.items()}


async def refused(act: Awaitable[object]) -> ClutchError:
    with pytest.raises(ClutchError) as caught:
        await act
    return caught.value


@pytest.mark.anyio
@pytest.mark.parametrize(("state", "verb", "expected"), TABLE)
async def test_every_surface_refuses_alike(
    here: Served, tasks: Mapping[str, str], state: str, verb: str, expected: tuple[int, str]
) -> None:
    task, body = tasks[state], BODIES.get(verb, {})
    over_api = declined(lambda: here.client.post(task_path(task, verb), body))
    assert (over_api.status, over_api.code) == expected
    assert over_api.said.get("rule") == ("state" if expected is STATE else None)
    message = str(over_api)
    assert task in message or expected is CHANGED

    line = typed(verb, task, *WORDS.get(verb, ()), *OPTIONS.get(verb, ()), "--json", state=here.home)
    assert (line.body["error"]["code"], line.body["error"]["message"]) == (expected[1], message)

    in_process = problem_of(here.run(refused(HANDLES[verb](here.run(here.clutch.get(task))))))
    assert (in_process.code, str(in_process)) == (expected[1], message)

    if verb not in NOT_IN_CHAT:
        said = {"line": f"/subagents {verb} {task} {' '.join(WORDS.get(verb, ()))}"}
        assert here.client.post(session_path(SESSION, "command"), said)["text"] == message

    if verb in TOOLS:
        async with over_http(here, CLIENT) as client:
            answer = error(await client.call_tool(verb, {"target": task, **body}))
        assert (answer["code"], answer["message"]) == (expected[1], message)


def test_a_finished_task_is_told_how_it_goes_on(here: Served, tasks: Mapping[str, str]) -> None:
    over = declined(lambda: here.client.post(task_path(tasks["finished"], "steer"), BODIES["steer"]))
    assert "continue" in str(over)
