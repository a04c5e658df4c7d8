"""The rows of the security table of the HTTP API, each against a real server on a real socket."""

from __future__ import annotations

import json
import secrets
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from clutch.surfaces.http.app import ENTRIES
from clutch.surfaces.http.auth import FAILURES_MAX
from clutch.surfaces.http.server import HEAD_WITHIN_S, SILENT_MAX
from clutch.surfaces.http_client import connect
from clutch.testing.channels import RecordingChannel
from tests.patience import PATIENCE_S
from tests.surfaces.served import A_PROGRAM, Served, served, write_token

FOREIGN_HOSTS = (
    "evil.example", "127.evil.com", "localhost.evil", "127.0.0.1.evil.example", "0.0.0.1", "127.0.0.2", "[::2]",
    "localhost:1:2", "user@localhost", "localhost/", "ⓛocalhost".encode().decode("latin-1"), "",
)  # fmt: skip
MESSAGES = "/v1/sessions/agent:main:main/messages"
OWN_HOSTS = ("127.0.0.1", "localhost", "LOCALHOST:80", "[::1]:7", "127.0.0.1:65535")
FOREIGN_ORIGINS = (
    "http://evil.example", "null", "https://127.0.0.1:{port}", "http://127.0.0.1:1", "http://localhost.evil:{port}",
    "http://127.0.0.1:{port}.evil.example", "file://", "",
    "http://[",
)  # fmt: skip


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("gateway") / "state") as here:
        yield here


def filled(path: str) -> str:
    """A path of the table with something in the place of its parameters."""
    return "/".join("t_1" if part.startswith("{") else part for part in path.split("/"))


EVERY = [(entry.method, filled(entry.path)) for entry in ENTRIES]
IDS = [f"{method} {path}" for method, path in EVERY]


@pytest.mark.parametrize(("method", "path"), EVERY, ids=IDS)
def test_s1_no_path_answers_without_the_token(db: Served, method: str, path: str) -> None:
    for given in (None, "", "Bearer", "Bearer ", f"Basic {db.token}", f"Bearer {db.token}x", db.token):
        heard = db.raw(method, path, authorization=given)
        assert heard.status in (401, 429), given
        assert heard.code in ("unauthorized", "rate_limited")
        assert db.token not in heard.raw.decode()


def test_s1_a_path_that_is_not_there_says_nothing_to_strangers(db: Served) -> None:
    assert db.raw("GET", "/nothing", authorization=None).status in (401, 429)
    assert db.raw("GET", "/v1/nothing", authorization=None).status in (401, 429)
    assert db.raw("GET", "/v1/nothing").code == "not_found"
    assert db.raw("PUT", "/v1/health", authorization=None).status in (401, 429)


def test_s1_the_token_has_256_bits_and_stays_the_same(tmp_path: Path) -> None:
    with served(tmp_path / "state") as one:
        first = one.token
    with served(tmp_path / "state") as other:
        assert other.token == first
    assert len(first) >= 43  # 32 bytes in base64
    assert first.isascii()


def test_s1_it_listens_on_loopback_only(db: Served) -> None:
    """Whatever other address this machine has, nobody answers there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing; tells which address would be used
        outside = probe.getsockname()[0]
    for address in {outside, "127.0.0.2"} - {"127.0.0.1"}:
        with socket.socket() as line:
            assert line.connect_ex((address, db.port)) != 0


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_s2_a_name_rebound_to_loopback_is_refused(db: Served, host: str) -> None:
    heard = db.raw("GET", "/v1/health", host=host)
    assert heard.status in (400, 421)
    assert b"workers" not in heard.raw


@pytest.mark.parametrize("host", OWN_HOSTS)
def test_s2_its_own_names_are_answered(db: Served, host: str) -> None:
    assert db.raw("GET", "/v1/health", host=host).status == 200


@pytest.mark.parametrize("origin", FOREIGN_ORIGINS)
def test_s3_a_page_from_elsewhere_is_refused_even_with_the_token(db: Served, origin: str) -> None:
    heard = db.raw("GET", "/v1/health", origin=origin.format(port=db.port))
    assert heard.code == "forbidden"
    assert "access-control-allow-origin" not in heard.headers


def test_s3_no_other_protocol_is_spoken(db: Served) -> None:
    heard = db.raw(
        "GET", "/v1/events", connection="Upgrade", upgrade="websocket", sec_websocket_version="13",
        sec_websocket_key="dGhlIHNhbXBsZSBub25jZQ==",
    )  # fmt: skip
    assert heard.code == "invalid_input"
    assert "sec-websocket-accept" not in heard.headers


@pytest.mark.parametrize("site", ["cross-site", "same-site", "anything"])
def test_s4_a_browser_that_says_where_it_comes_from_is_believed(db: Served, site: str) -> None:
    assert db.raw("GET", "/v1/health", sec_fetch_site=site).code == "forbidden"


def test_s4_no_cookie_opens_anything(db: Served) -> None:
    heard = db.raw("GET", "/v1/health", authorization=None, cookie=f"token={db.token}; session={db.token}")
    assert heard.status in (401, 429)


def test_s5_a_token_in_the_address_is_refused_before_it_is_used(db: Served) -> None:
    for name in ("token", "access_token", "TOKEN", "authorization"):
        heard = db.raw("GET", f"/v1/health?{name}={db.token}")
        assert heard.code == "invalid_input"
        assert db.token not in heard.raw.decode()


def test_s5_nothing_is_logged_or_kept_by_a_browser(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    with served(tmp_path / "state") as db:  # begun in a program that wants to know everything
        heard = db.raw("GET", f"/v1/health?token={db.token}")
        good = db.raw("GET", "/v1/health")
    assert heard.status == 400
    assert db.token not in caplog.text
    assert good.headers["cache-control"] == "no-store"
    assert good.headers["referrer-policy"] == "no-referrer"


def test_s6_guessing_is_slowed_down_and_never_keeps_the_owner_out(tmp_path: Path) -> None:
    with served(tmp_path / "state") as here:
        guesses = [
            here.raw("GET", "/v1/health", authorization="Bearer guess") for _ in range(FAILURES_MAX + 3)
        ]
        assert [one.status for one in guesses] == [401] * FAILURES_MAX + [429] * 3
        assert 0 < guesses[-1].body["error"]["retryAfterSeconds"] <= 60
        assert int(guesses[-1].headers["retry-after"]) >= 1
        assert here.raw("GET", "/v1/health").status == 200


@pytest.mark.slow
def test_s6_whoever_says_nothing_is_cut_and_only_so_many_are_held(tmp_path: Path) -> None:
    with served(tmp_path / "state") as here:
        here.raw("GET", "/v1/health")
        lines = [socket.create_connection(("127.0.0.1", here.port)) for _ in range(SILENT_MAX + 8)]
        lines[0].sendall(b"GET /v1/health HTTP/1.1\r\nHost: loc")
        assert here.raw("GET", "/v1/health").status == 200
        for line in lines:
            line.settimeout(HEAD_WITHIN_S + 3)
            assert is_cut(line)


def test_s6_many_who_come_at_once_and_speak_are_all_answered(tmp_path: Path) -> None:
    """A gateway that was busy finds them all waiting, and has read nothing of any of them yet."""
    with served(tmp_path / "state") as here:
        here.raw("GET", "/v1/health")
        come, own = threading.Event(), f"Authorization: Bearer {here.token}"
        here.loop.call_soon_threadsafe(come.wait)
        lines = [socket.create_connection(("127.0.0.1", here.port)) for _ in range(2 * SILENT_MAX)]
        for line in lines:
            line.sendall(f"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n{own}\r\n\r\n".encode())
        come.set()
        for line in lines:
            line.settimeout(10)
            assert line.recv(12) == b"HTTP/1.1 200"
            line.close()


def is_cut(line: socket.socket) -> bool:
    with line:
        try:
            return line.recv(1) == b""
        except ConnectionResetError:
            return True


def test_s7_scopes_are_the_servers_affair(db: Served) -> None:
    write_token(db.home / "token.read", reading := secrets.token_urlsafe(32))
    own = f"Bearer {reading}"
    assert db.raw("GET", "/v1/health", authorization=own).status == 200
    for claimed in ("x_scopes", "scope", "x_clutch_scopes"):
        heard = db.post(MESSAGES, {"text": "x"}, authorization=own, **{claimed: "write,admin"})
        assert (heard.code, heard.body["error"]["rule"]) == ("forbidden", "scope")


def test_s7_a_changed_token_opens_nothing_from_then_on(tmp_path: Path) -> None:
    with served(tmp_path / "state") as here:
        old = f"Bearer {here.token}"
        assert here.raw("GET", "/v1/health", authorization=old).status == 200
        write_token(here.home / "token", secrets.token_urlsafe(32))
        assert here.raw("GET", "/v1/health", authorization=old).status == 401
        assert here.raw("GET", "/v1/health").status == 200


def test_s31_a_command_needs_a_known_channel_a_bound_thread_and_a_named_sender(tmp_path: Path) -> None:
    web = RecordingChannel(operators=["ada"])
    with served(tmp_path / "state", channels={"web": web}) as here:

        def said(channel: str, thread: str, text: str, account: str = "") -> int:
            body = {"channel": channel, "thread": thread, "account": account, "text": text}
            return here.post("/v1/threads/messages", body).status

        task = here.post("/v1/tasks", {"task": "slow one", "label": "one"}).body["taskId"]
        for account in ("", "ada", "bob"):
            assert said("nowhere", "th1", "/subagents kill all", account) == 404
            assert said("nowhere", "th1", "hello", account) == 404
            assert said("web", "th1", f"/subagents kill {task}", account) == 404
            assert said("web", "th1", "hello", account) == 404
        assert said("web", "th1", "/focus one", "bob") == 404
        assert said("web", "th1", "/focus one", "ada") == 202
        assert said("web", "th1", f"/subagents kill {task}", "bob") == 403
        assert said("web", "th1", f"/subagents kill {task}") == 403
        assert here.raw("GET", f"/v1/tasks/{task}").body["outcome"] is None
        assert said("web", "th1", f"/subagents kill {task}", "ada") == 202
        assert here.raw("GET", f"/v1/tasks/{task}").body["outcome"] == "killed"


def test_s18_a_body_that_says_it_is_too_large_is_not_read(db: Served) -> None:
    with socket.create_connection(("127.0.0.1", db.port)) as line:
        line.settimeout(10)
        head = f"POST {MESSAGES} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {db.token}\r\n"
        line.sendall(
            f"{head}Content-Type: application/json\r\nContent-Length: {64 * 1024 * 1024}\r\n\r\n".encode()
        )
        said = line.makefile("rb").read()
    assert said.startswith(b"HTTP/1.1 413 ")
    assert json.loads(said.partition(b"\r\n\r\n")[2])["error"]["code"] == "too_large"


def test_s18_a_body_that_does_not_say_how_large_it_is_is_cut(db: Served) -> None:
    with socket.create_connection(("127.0.0.1", db.port)) as line:
        line.settimeout(10)
        head = f"POST {MESSAGES} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {db.token}\r\n"
        line.sendall(f"{head}Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        sent = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        pushed = 0
        try:
            for _ in range(1024):
                line.sendall(sent)
                pushed += len(sent)
            said = line.recv(64)
        except (ConnectionResetError, BrokenPipeError):
            said = b"cut"
    assert pushed < 32 * 1024 * 1024
    assert said == b"cut" or said.startswith(b"HTTP/1.1 413 ")
    assert db.raw("GET", "/v1/health").status == 200


def test_s18_an_error_repeats_at_most_a_glance_of_what_was_given(db: Served) -> None:
    canary = "canary" * 10_000
    bodies = ({canary: 1}, {"text": [canary]}, {"text": {canary: canary}}, [canary], canary)
    for body in bodies:
        heard = db.post(MESSAGES, body)
        assert heard.code == "invalid_input"
        assert len(heard.raw) < 2048
    assert len(db.raw("GET", f"/v1/tasks?{'x' * 4000}=1").raw) < 2048


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None]
)
def test_s4_only_json_is_read(db: Served, kind: str | None) -> None:
    heard = db.raw("POST", MESSAGES, b'{"text":"csrf"}', content_type=kind)
    assert (heard.code, heard.body["error"]["field"]) == ("invalid_input", "Content-Type")


def test_s20_the_files_are_their_owners_only(db: Served) -> None:
    assert stat.S_IMODE(db.home.stat().st_mode) == 0o700
    for name in ("token", "gateway.json", "clutch.db", "lock"):
        assert stat.S_IMODE((db.home / name).stat().st_mode) == 0o600, name


def test_s5_the_token_is_kept_in_its_file_and_nowhere_else(tmp_path: Path) -> None:
    with served(tmp_path / "state") as here:
        canary = here.token
        here.client.get("/v1/health")
        here.post(MESSAGES, {"text": "hello"}, idempotency_key="k")
        here.raw("GET", f"/v1/tasks?token={canary}")
        here.raw("GET", "/v1/tasks", authorization=f"Bearer {canary}x")
    held = [
        path.name for path in here.home.rglob("*") if path.is_file() and canary.encode() in path.read_bytes()
    ]
    assert held == ["token"]


@pytest.mark.slow
def test_s18_a_flood_costs_no_memory(tmp_path: Path) -> None:
    """64 MiB on each of eight connections; what was read of one is let go before the next."""
    with subprocess.Popen(
        [sys.executable, "-c", A_PROGRAM, str(tmp_path / "s")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().rpartition(":")[2])
        client = connect(tmp_path / "s")
        client.get("/v1/health")
        flood(port, client.token)
        before = resident_bytes(process.pid)
        for _ in range(8):
            flood(port, client.token)
        assert client.get("/v1/health")["status"] == "ok"
        # Less than half of one flood: no body is kept. An allocator's own few megabytes come and go.
        assert resident_bytes(process.pid) - before < 32 * 1024 * 1024
        process.kill()


def resident_bytes(pid: int) -> int:
    (line,) = [
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")
    ]
    return int(line.split()[1]) * 1024


def flood(port: int, token: str) -> None:
    head = f"POST {MESSAGES} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as line:
        line.sendall(f"{head}Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        try:
            for _ in range(1024):
                line.sendall(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        except (ConnectionResetError, BrokenPipeError):
            return
    raise AssertionError("64 MiB were taken")
