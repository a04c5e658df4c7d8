"""The OpenAPI document says what is so: answers fit their forms, and nothing it allows breaks the gateway."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from clutch.api import objects
from clutch.api.schema import ProblemAnswer
from clutch.surfaces.http.app import ENTRIES
from clutch.surfaces.http_client import task_path
from clutch.surfaces.mcp import TOOLS
from clutch.tools.session_tools import SpawnArguments
from tests.surfaces.served import FAST, Served, served
from tests.surfaces.test_http_tasks import ended, seen, spawned

MAIN = "agent:main:main"
NO_JSON = {"/v1/events", "/metrics"}
#: Streams, and what waits by its nature.
UNENDING = {
    "/v1/events",
    "/v1/tasks/{target}/wait",
    "/v1/tasks/{target}/send",
    "/v1/sessions/{key}/replies",
    "/v1/sessions/{key}/settled",
}
EXAMPLES = 4  #: of each kind, for each operation


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """With one task of every kind of end."""
    with served(tmp_path_factory.mktemp("gateway") / "state", policy=FAST) as here:
        client = here.client
        ended(client, spawned(client, "quick one", label="done"), "delivered")
        seen(client, spawned(client, "ask me", label="asking"), lambda one: one["reason"] == "needs-you")
        planned = spawned(client, "plan it", label="planned", planMode=True)
        seen(client, planned, lambda one: one["phase"] == "awaiting_approval")
        killed = spawned(client, "slow one", label="killed", budget={"tokens": 9000})
        client.post(task_path(killed, "kill"), {"reason": "enough"})
        client.post(f"/v1/sessions/{MAIN}/messages", {"text": "hello"})
        yield here


def test_every_path_says_what_it_answers() -> None:
    assert {entry.path for entry in ENTRIES if entry.answer is None} == NO_JSON


def test_a_spawn_may_say_what_the_tool_takes(db: Served) -> None:
    told = db.client.get("/v1/openapi.json")["components"]["schemas"]["SpawnBody"]["properties"]
    assert set(told) == {field.alias for field in SpawnArguments.model_fields.values()} | {
        "requester",
        "onFull",
    }


def test_every_operation_is_described_in_whole_sentences(db: Served) -> None:
    for path, operations in db.client.get("/v1/openapi.json")["paths"].items():
        for method, operation in operations.items():
            said, _, scope = operation["description"].rpartition(" Scope: ")
            assert said.endswith("."), (method, path, said)
            assert scope.rstrip(".") == operation["x-scope"]
            assert "\n" not in said
    for tool in TOOLS.values():
        assert tool.about.endswith("."), (tool.name, tool.about)


def test_every_parameter_of_a_spawn_is_described(db: Served) -> None:
    told = db.client.get("/v1/openapi.json")["components"]["schemas"]["SpawnBody"]["properties"]
    for name, said in {**told, **TOOLS["spawn"].input_schema()["properties"]}.items():
        assert len(said.get("description", "")) > 10, name


def test_a_dry_run_creates_nothing_and_answers_200(db: Served) -> None:
    before = db.client.get("/v1/tasks")["tasks"]
    heard = db.post("/v1/tasks", {"task": "would it?", "dryRun": True})
    assert (heard.status, heard.body["status"], heard.body["taskId"]) == (200, "accepted", None)
    assert db.client.get("/v1/tasks")["tasks"] == before
    assert "200" in db.client.get("/v1/openapi.json")["paths"]["/v1/tasks"]["post"]["responses"]


@pytest.mark.parametrize("target", ["done", "asking", "planned", "killed"])
def test_what_is_read_has_its_form(db: Served, target: str) -> None:
    for entry in ENTRIES:
        if entry.method != "GET" or entry.answer is None:
            continue
        key = MAIN if "{key}" in entry.path else "main" if "/models/" in entry.path else target
        if entry.path.startswith("/v1/responses/"):
            asked = {"model": "main", "input": f"show {target}", "background": True}
            key = db.post("/v1/responses", asked).body["id"]
        path = re.sub(r"{\w+}", quote(key, safe=""), entry.path)
        query = {"wait": "?timeoutSeconds=0", "settled": "?timeoutSeconds=0", "proof": f"?nonce={'n' * 16}"}
        heard = db.raw("GET", path + query.get(path.rpartition("/")[2], ""))
        form = ProblemAnswer if heard.status == 404 else entry.answer
        assert heard.status in (200, 404), (path, heard.raw)
        receipt = "{message}" in entry.path or "schedules/{name}" in entry.path
        decided = path.startswith("/v1/inbox/") and target in ("done", "killed")
        assert heard.status == 200 or path.endswith("/result") or "/files/" in path or receipt or decided, (
            path
        )
        TypeAdapter(form).validate_json(heard.raw)


def test_what_is_done_has_its_form(db: Served) -> None:
    task = spawned(db.client, "slow one", label="handled")
    for verb, body, said in (
        ("steer", {"text": "slow and elsewhere"}, objects.SteeredObject),
        ("send", {"text": "slow hello", "waitSeconds": 0}, objects.Sent),
        ("pause", {}, objects.Changed),
        ("resume", {}, objects.Changed),
        ("kill", {}, objects.KilledObject),
        ("retry", {}, objects.Spawned),
        ("kill", {}, objects.KilledObject),
        ("remove", {}, objects.TaskObject),
    ):
        heard = db.post(task_path(task, verb), body)
        assert heard.status in (200, 201), (verb, heard.raw)
        TypeAdapter(said).validate_json(heard.raw)
    refused = db.post("/v1/tasks", {"task": "x", "agentId": "nobody"})
    TypeAdapter(objects.SpawnRefusedObject).validate_json(refused.raw)


def test_metrics_are_lines_that_prometheus_reads(db: Served) -> None:
    text = db.raw("GET", "/metrics").raw.decode()
    sample = re.compile(r'clutch_[a-z_]+({[a-z]+="([^"\\\n]|\\.)*"(,[a-z]+="([^"\\\n]|\\.)*")*})? [-+0-9.e]+')
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(sample.fullmatch(line) for line in lines)
    said = dict(line.rsplit(" ", 1) for line in lines)
    assert said['clutch_tasks{phase="awaiting_approval"}'] == "1"
    assert float(said["clutch_tasks_total"]) >= 4
    assert float(said["clutch_store_batch_seconds_total"]) > 0
    assert float(said['clutch_loop_age_seconds{loop="heartbeat"}']) < 60
    assert float(said['clutch_model_calls_total{model="slow"}']) >= 3
    assert {"clutch_watchers", "clutch_queued", "clutch_undelivered", "clutch_needs_you"} <= set(said)


def cases(db: Served) -> list[Any]:
    schema = schemathesis.openapi.from_dict(db.client.get("/v1/openapi.json"))
    schema.config.update(base_url=db.clutch.url)
    found: list[Any] = [one.ok() for one in schema.get_all_operations() if isinstance(one, Ok)]
    return [one for one in found if one.path not in UNENDING]


def test_nothing_that_the_document_allows_or_forbids_breaks_the_gateway(db: Served) -> None:
    """0 server errors, no status and no answer that the document does not know."""
    targets = st.sampled_from(["done", "asking", "planned", "killed", "last", "#1", MAIN, "t_1"])
    headers = {"Authorization": f"Bearer {db.token}"}
    modes = list(schemathesis.GenerationMode)
    operations = cases(db)
    assert len(operations) > 30

    statuses: Counter[int] = Counter()

    def fuzz(operation: Any, mode: Any) -> None:
        @settings(
            max_examples=EXAMPLES,
            phases=[Phase.generate],
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(st.data())
        def asked(data: st.DataObject) -> None:
            case = data.draw(operation.as_strategy(generation_mode=mode))
            if case.path_parameters and data.draw(st.booleans()):
                case.path_parameters = {name: data.draw(targets) for name in case.path_parameters}
            checks = [not_a_server_error, status_code_conformance, response_schema_conformance]
            statuses[case.call_and_validate(headers=headers, checks=checks).status_code // 100] += 1

        asked()

    for operation in operations:
        for mode in modes:
            fuzz(operation, mode)
    assert set(statuses) == {2, 4}
    assert min(statuses.values()) >= 30
