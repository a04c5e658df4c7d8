"""What every path of the HTTP API has in common: errors as objects, strict input, and keys that do things once."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from clutch import Clutch
from clutch.errors import InvalidInput, NoGateway, StateDirectoryInUse, UnsafeStateDirectory
from clutch.store.transaction import Tx
from clutch.surfaces import discovery
from clutch.surfaces.discovery import Address, Loaded
from clutch.surfaces.http.routes import AppState, Replays, Reply
from clutch.surfaces.http_client import Declined, connect
from clutch.surfaces.listen import ListenSettings, listeners
from clutch.transactions.idempotency import Kept
from tests.surfaces.served import A_PROGRAM, Served, served

MESSAGES = "/v1/sessions/agent:main:main/messages"


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("gateway") / "state") as here:
        yield here


def letters(now: float) -> Tx[int]:
    return int((yield "SELECT COUNT(*) FROM inbox", ())[0][0])


def count_letters(db: Served) -> int:
    return db.run(db.clutch.services.db.read(letters))


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/v1/tasks", {"GET", "HEAD", "POST"}),
        ("PUT", "/v1/tasks/t_1", {"GET", "HEAD"}),
        ("GET", "/v1/tasks/t_1/kill", {"POST"}),
        ("POST", "/v1/sessions", {"GET", "HEAD"}),
        ("PATCH", "/v1/chat/completions", {"POST"}),
    ],
)
def test_a_method_that_a_path_does_not_have_is_a_405_that_names_those_it_has(
    db: Served, method: str, path: str, allowed: set[str]
) -> None:
    heard = db.raw(method, path)
    assert (heard.status, heard.code) == (405, "method_not_allowed")
    assert set(heard.headers["allow"].split(", ")) == allowed
    assert method in heard.body["error"]["message"]
    assert db.raw("GET", "/v1/no-such-path").status == 404


def test_health_tells_what_there_is(db: Served) -> None:
    said = db.client.get("/v1/health")
    assert said["status"] == "ok"
    assert said["database"] == "sqlite"
    assert said["workers"] == 1
    assert {type(said[name]) for name in ("schema", "running", "queued", "undelivered")} == {int}


def test_the_file_says_where_it_is_and_whose_it_is(db: Served) -> None:
    said = json.loads((db.home / "gateway.json").read_text())
    assert said["url"] == db.clutch.url
    assert said["pid"] == os.getpid()
    assert set(said) == {"url", "pid", "version", "startedAt", "background", "config", "workspace"}
    assert said["startedAt"].endswith("Z")


@pytest.mark.anyio
async def test_the_second_piece_of_an_answer_does_not_wait_until_the_first_is_acknowledged() -> None:
    undelayed: asyncio.Queue[int] = asyncio.Queue()

    def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = writer.get_extra_info("socket")
        undelayed.put_nowait(line.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    with listeners(ListenSettings()) as (listener,):
        async with await asyncio.start_server(connected, sock=listener):
            with socket.create_connection(listener.getsockname()):
                assert await undelayed.get()


def test_an_unknown_field_is_named(db: Served) -> None:
    before = count_letters(db)
    with pytest.raises(Declined) as declined:
        db.client.post(MESSAGES, {"text": "hello", "chanel": "x"})
    assert declined.value.status == 400
    assert declined.value.said["field"] == "chanel"
    assert count_letters(db) == before


@pytest.mark.parametrize(
    ("body", "field"),
    [(b"{", "body"), (b"[]", "body"), (b'{"text": 3}', "text"), (b"{}", "text"), (b'{"text": " "}', "text")],
)
def test_what_is_wrong_is_named_and_nothing_is_written(db: Served, body: bytes, field: str) -> None:
    before = count_letters(db)
    heard = db.raw("POST", MESSAGES, body, content_type="application/json; charset=utf-8")
    assert (heard.status, heard.code) == (400, "invalid_input")
    assert heard.body["error"]["field"] == field
    assert heard.body["error"]["rule"]
    assert count_letters(db) == before


def test_unknown_and_repeated_parameters_are_named(db: Served) -> None:
    assert db.raw("GET", "/v1/health?deep=1").body["error"]["field"] == "deep"
    assert db.raw("GET", "/v1/health?deep=1&deep=2").body["error"]["field"] == "deep"


def test_the_same_key_and_body_do_it_once_and_get_the_same_answer(db: Served) -> None:
    before = count_letters(db)
    first = db.post(MESSAGES, {"text": "once"}, idempotency_key="k1")
    again = db.post(MESSAGES, {"text": "once"}, idempotency_key="k1")
    assert (first.status, first.raw) == (again.status, again.raw) == (202, again.raw)
    assert "idempotent-replay" not in first.headers
    assert again.headers["idempotent-replay"] == "true"
    assert count_letters(db) == before + 1


def test_the_same_key_for_something_else_is_a_conflict(db: Served) -> None:
    db.post(MESSAGES, {"text": "this"}, idempotency_key="k2")
    before = count_letters(db)
    for path, text in ((MESSAGES, "that"), ("/v1/sessions/agent:main:chat:other/messages", "this")):
        heard = db.post(path, {"text": text}, idempotency_key="k2")
        assert (heard.status, heard.code) == (409, "idempotency_conflict")
    assert count_letters(db) == before


def test_many_at_once_with_one_key_do_it_once(db: Served) -> None:
    before = count_letters(db)
    with ThreadPoolExecutor(8) as pool:
        heard = list(pool.map(lambda _: db.post(MESSAGES, {"text": "x"}, idempotency_key="k3"), range(8)))
    assert {one.status for one in heard} == {202}
    assert len({one.raw for one in heard}) == 1
    assert sum("idempotent-replay" in one.headers for one in heard) == 7
    assert count_letters(db) == before + 1


def test_an_answer_that_another_gateway_kept_first_is_the_answer_of_both() -> None:
    """Both gateways of one database looked before either had answered."""

    async def read(*asked: object) -> None:
        del asked

    async def write(*asked: object) -> Kept:
        del asked
        return Kept("a digest", 202, '{"of": "the other"}')

    async def act() -> Reply[object]:
        return Reply({"of": "this one"}, 201)

    replays = Replays(cast("AppState", SimpleNamespace(read=read, write=write)))
    heard = asyncio.run(replays.once("k", "a digest", act))
    assert (heard.status_code, json.loads(bytes(heard.body))) == (202, {"of": "the other"})
    assert heard.headers["idempotent-replay"] == "true"


def test_twin_spawns_with_one_key_are_one_task_and_one_answer(db: Served) -> None:
    body = {"task": "once only", "label": "twin"}
    with ThreadPoolExecutor(8) as pool:
        heard = list(pool.map(lambda _: db.post("/v1/tasks", body, idempotency_key="k5"), range(8)))
    assert {one.status for one in heard} == {201}
    assert len({one.raw for one in heard}) == 1
    assert sum("idempotent-replay" in one.headers for one in heard) == 7
    assert len(db.raw("GET", "/v1/tasks?label=twin").body["tasks"]) == 1


def test_the_same_key_with_another_query_is_a_conflict(db: Served) -> None:
    for name in ("one", "two"):
        db.post(f"/v1/sessions/agent:main:chat:{name}/messages", {"text": "x"})
    path = "/v1/sessions/agent:main:chat:one?kill=true&force=true"
    first = db.raw("DELETE", path, idempotency_key="k6")
    assert first.status == 200
    assert db.raw("DELETE", path, idempotency_key="k6").raw == first.raw
    heard = db.raw("DELETE", path.replace("&force=true", ""), idempotency_key="k6")
    assert (heard.status, heard.code) == (409, "idempotency_conflict")


def test_a_refusal_is_not_kept_under_its_key(db: Served) -> None:
    assert db.post("/v1/sessions/agent:!/messages", {"text": "x"}, idempotency_key="k4").status == 400
    assert db.post(MESSAGES, {"text": "x"}, idempotency_key="k4").status == 202
    assert (
        db.post(MESSAGES, {"text": "x"}, idempotency_key="\x7f").body["error"]["field"] == "Idempotency-Key"
    )


def test_a_key_is_its_caller_s_own(db: Served) -> None:
    """Another session, or another token, that happens to use the same key is not given somebody else's answer."""
    for session in ("agent:main:chat:mcp-a", "agent:main:chat:mcp-b"):
        task = db.post("/v1/tasks", {"task": "slow"}, clutch_session=session).body["taskId"]
        ended = db.post("/v1/tasks/last/kill", {}, idempotency_key="1", clutch_session=session)
        assert task.encode() in ended.raw
    (db.home / "token.write").touch(0o600)
    (db.home / "token.write").write_text("w" * 43)
    mine = db.post(MESSAGES, {"text": "mine"}, idempotency_key="own")
    other = db.post(MESSAGES, {"text": "theirs"}, idempotency_key="own", authorization=f"Bearer {'w' * 43}")
    assert other.status == 202
    assert other.body["letterId"] != mine.body["letterId"], "both were said"


def test_the_code_of_a_browser_is_not_kept(db: Served) -> None:
    first, again = (db.post("/v1/browser/code", {}, idempotency_key="code") for _ in range(2))
    assert first.status == again.status == 201
    assert first.body["code"] != again.body["code"]


def test_kept_answers_outlive_the_gateway(tmp_path: Path) -> None:
    with served(tmp_path / "state") as here:
        first = here.post(MESSAGES, {"text": "once"}, idempotency_key="k")
    with served(tmp_path / "state") as here:
        again = here.post(MESSAGES, {"text": "once"}, idempotency_key="k")
        assert again.headers["idempotent-replay"] == "true"
        assert count_letters(here) == 1
    assert first.raw == again.raw


# ---- finding it ------------------------------------------------------------------------------------------


def test_a_closed_clutch_leaves_no_address_and_keeps_its_token(tmp_path: Path) -> None:
    with served(tmp_path / "state") as here:
        assert discovery.find(here.home) is not None
    assert not (tmp_path / "state" / "gateway.json").exists()
    assert (tmp_path / "state" / "token").exists()
    with pytest.raises(NoGateway, match="clutch serve"):
        connect(tmp_path / "state")


def test_a_long_error_of_the_config_hides_no_gateway(tmp_path: Path) -> None:
    claim = discovery.claim(tmp_path)
    assert claim is not None
    long = Loaded(str(tmp_path / ("\U0001f4c1" * 60) / "clutch.json"), error="\U0001f525" * 1000)
    claim.publish(Address("http://127.0.0.1:1", 1, "1", "now", config=long))
    try:
        assert discovery.find(tmp_path) == claim.address
    finally:
        claim.release()


def test_the_address_of_a_dead_gateway_is_not_believed(tmp_path: Path) -> None:
    """Its port may be somebody else's by now, and whoever listens there must not be sent the token."""
    left = discovery.Address("http://127.0.0.1:9", os.getpid(), "0", "2026-01-01T00:00:00.000Z")
    (tmp_path / "gateway.json").touch(0o600)
    (tmp_path / "gateway.json").write_text(left.to_json())
    assert discovery.find(tmp_path) is None


def test_a_killed_gateway_is_gone_and_the_next_one_takes_its_place(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with subprocess.Popen(
        [sys.executable, "-c", A_PROGRAM, str(state)], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        found = discovery.find(state)
        assert found is not None
        assert (found.url, found.pid) == (url, process.pid)
        assert connect(state).get("/v1/health")["status"] == "ok"
        process.kill()
    assert (state / "gateway.json").exists()
    assert discovery.find(state) is None
    with served(state) as here:
        assert here.client.get("/v1/health")["status"] == "ok"


def test_a_second_engine_is_told_where_the_first_can_be_asked(db: Served) -> None:
    async def open_it() -> None:
        async with Clutch(state=db.home, embedded=True):
            pass

    with pytest.raises(StateDirectoryInUse) as refused:
        asyncio.run(open_it())
    assert str(db.clutch.url) in str(refused.value)
    assert f"clutch ps --state {db.home}" in str(refused.value)


def test_a_token_that_others_could_read_is_not_used(tmp_path: Path) -> None:
    with served(tmp_path / "state") as here:
        (here.home / "token").chmod(0o644)
        with pytest.raises(UnsafeStateDirectory, match="chmod 600"):
            connect(here.home)


def test_a_file_of_somebody_elses_making_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("{}")
    (tmp_path / "gateway.json").symlink_to(tmp_path / "other")
    with pytest.raises(UnsafeStateDirectory, match="symbolic link"):
        discovery.find(tmp_path)


def test_a_port_that_is_taken_is_said_and_leaves_nothing_open(tmp_path: Path, db: Served) -> None:
    with pytest.raises(InvalidInput, match="port"), served(tmp_path / "state", port=db.port):
        pass
    assert not (tmp_path / "state" / "gateway.json").exists()
    with served(tmp_path / "state") as here:
        assert here.client.get("/v1/health")["status"] == "ok"


def test_without_any_port_to_listen_on_a_program_works_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("clutch.surfaces.listen.HERE", "192.0.2.1")  # an address that no machine has
    with served(tmp_path / "state") as here:
        assert here.clutch.url is None
        assert here.run(_outcome(here)) == "ok"
    assert "Commands in other terminals cannot reach this program" in caplog.text


async def _outcome(here: Served) -> str:
    return (await (await here.clutch.spawn("quick one"))).outcome


def test_without_serving_there_is_no_door(tmp_path: Path) -> None:
    with served(tmp_path / "state", serve=False) as here:
        assert here.clutch.url is None
        assert not (here.home / "gateway.json").exists()
        assert not (here.home / "token").exists()


def test_nothing_of_the_http_libraries_is_loaded_before_somebody_knocks(tmp_path: Path) -> None:
    code = (
        "import asyncio,sys\nimport clutch\nfrom clutch import Clutch\n"
        "loaded = lambda: sorted({'starlette','uvicorn'} & set(sys.modules))\n"
        "async def main():\n"
        " from clutch.surfaces.http_client import connect\n"
        " async with Clutch(state=sys.argv[1]) as c:\n"
        "  print(loaded())\n"
        "  await asyncio.to_thread(lambda: connect(__import__('pathlib').Path(sys.argv[1])).get('/v1/health'))\n"
        "  print(loaded())\n"
        "asyncio.run(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "s")],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.splitlines() == ["[]", "['starlette', 'uvicorn']"]
    assert done.stderr == ""


def test_the_garbage_of_a_program_that_embeds_it_stays_its_own_business(tmp_path: Path) -> None:
    gc.unfreeze()
    with served(tmp_path / "state") as here:
        here.client.get("/v1/health")
        assert gc.get_freeze_count() == 0


HEAPS = """
import ctypes, sys, threading
from clutch.cli.serve import share_one_heap
share_one_heap()
together = threading.Barrier(4)
def work():
    kept = [bytes(1000) for _ in range(100)]
    together.wait()
threads = [threading.Thread(target=work) for _ in range(4)]
[one.start() for one in threads]
[one.join() for one in threads]
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
libc.malloc_info(0, file := ctypes.c_void_p(libc.fdopen(1, b"w")))
libc.fflush(file)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have other habits")
def test_threads_of_a_process_of_ours_share_one_heap() -> None:
    told = subprocess.run(
        [sys.executable, "-c", HEAPS], capture_output=True, text=True, check=True, timeout=60
    )
    assert told.stdout.count("<heap nr=") == 1
