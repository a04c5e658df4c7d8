"""Tokens that change, browsers that are let in, and callers that ask too often: at a real server on a real socket."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from clutch.core.policy import Serving
from clutch.surfaces.discovery import rotate_token
from clutch.surfaces.http.browser import Browsers
from tests.patience import PATIENCE_S
from tests.policies import QUICK
from tests.surfaces.served import Served, served, write_token
from tests.surfaces.typed import typed

NONCE = "0123456789abcdef"
OWN: dict[str, Any] = {"sec_fetch_site": "same-origin", "authorization": None}
SQL = (
    "'; DROP TABLE tasks; --",
    '" OR 1=1 --',
    "1); DELETE FROM sessions; --",
    "%_\\",
    "{lock} {any} ?",
    "$1 :name @x",
)


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("gateway") / "state") as here:
        yield here


def browser_for(db: Served, **headers: str | None) -> dict[str, Any]:
    """Return the headers of a page that is signed in."""
    code = db.post("/v1/browser/code", {}, **headers).body["code"]
    heard = db.raw("POST", "/v1/browser/session", authorization=f"Code {code}")
    assert heard.status == 200
    said = heard.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in said.split(";")}
    assert said.startswith(f"clutch_{db.port}=")  # beside that of another gateway of this machine
    own: dict[str, Any] = {"cookie": said.partition(";")[0], **OWN}
    key = hashlib.sha256(heard.body["pageKey"].encode()).hexdigest()
    proof = db.raw("GET", f"/v1/browser/proof?nonce={NONCE}", x_clutch_page="1", **own).body
    assert proof["proof"] == mac(key, f"gateway {NONCE} {proof['run']}")
    return {**own, "x_clutch_page": mac(key, f"page {proof['run']}")}


def mac(key: str, text: str) -> str:
    return hmac.new(key.encode(), text.encode(), "sha256").hexdigest()


def test_s5_a_code_is_changed_for_a_cookie_once_and_at_one_place(db: Served) -> None:
    code = db.post("/v1/browser/code", {}).body["code"]
    assert db.token not in code
    assert db.raw("GET", "/v1/health", authorization=f"Code {code}").status in (401, 429)
    assert db.raw("POST", "/v1/browser/session", authorization=f"Code {code}").status == 200
    assert db.raw("POST", "/v1/browser/session", authorization=f"Code {code}").status in (401, 429)


def test_a_cookie_is_not_changed_for_another_one(db: Served) -> None:
    heard = db.raw("POST", "/v1/browser/session", **browser_for(db))
    assert (heard.status, heard.code, heard.body["error"]["field"]) == (400, "invalid_input", "Authorization")
    assert "set-cookie" not in heard.headers


def test_s5_a_code_is_good_for_half_a_minute() -> None:
    now = [0.0]
    browsers = Browsers(Serving(), 1, now=lambda: now[0])
    early, late = browsers.code("token"), browsers.code("token")
    now[0] = 29.0
    assert browsers.redeemed(early) == "token"
    now[0] = 30.0
    assert browsers.redeemed(late) is None


def test_s4_a_cookie_opens_things_for_our_own_page_only(db: Served) -> None:
    browser = browser_for(db)
    cookie = browser["cookie"]
    assert db.raw("GET", "/v1/health", **browser).status == 200
    stranger = db.raw("GET", "/v1/health", cookie=cookie, authorization=None)
    assert (stranger.status, stranger.body["error"]["rule"]) == (403, "cookie")
    for site in ("cross-site", "same-site"):
        assert (
            db.raw("GET", "/v1/health", cookie=cookie, authorization=None, sec_fetch_site=site).status == 403
        )
    words = {"text": "hello"}
    path = "/v1/sessions/agent:main:main/messages"
    assert db.post(path, words, cookie=cookie, **OWN).body["error"]["rule"] == "cookie"
    assert db.post(path, words, **browser).status == 202


def test_s5_a_cookie_without_the_key_of_its_page_opens_nothing(tmp_path: Path) -> None:
    with served(tmp_path / "state") as here:
        cookie = browser_for(here)["cookie"]
        for path in ("/v1/health", "/v1/tasks", "/v1/events"):
            assert here.raw("GET", path, cookie=cookie, **OWN).body["error"]["rule"] == "cookie"
            assert here.raw("GET", path, cookie=cookie, x_clutch_page="1", **OWN).status == 401
        asked = here.raw(
            "GET", f"/v1/browser/proof?nonce={NONCE}", cookie=cookie, x_clutch_page="1", **OWN
        ).body
        for known in (*asked.values(), "\xe9"):
            assert here.raw("GET", "/v1/health", cookie=cookie, x_clutch_page=known, **OWN).status == 401


def test_s5_what_a_page_sends_opens_one_gateway_process_at_one_port(tmp_path: Path) -> None:
    file = tmp_path / "browsers.json"
    first = Browsers(Serving(), 1, file)
    cookie, key = first.opened("token")
    digest = hashlib.sha256(key.encode()).hexdigest()
    sent = mac(digest, f"page {first.run}")
    assert first.is_page(cookie, sent)
    again, elsewhere = Browsers(Serving(), 1, file), Browsers(Serving(), 2, file)
    assert not again.is_page(cookie, sent)
    assert again.is_page(cookie, mac(digest, f"page {again.run}"))
    assert again.proof(cookie, "n") == mac(digest, f"gateway n {again.run}")
    assert again.token_of(cookie, ["token"]) == "token"
    assert not elsewhere.is_page(cookie, mac(digest, f"page {elsewhere.run}"))
    assert not elsewhere.is_page(cookie, key)
    assert elsewhere.proof(cookie, "n") == ""
    assert elsewhere.token_of(cookie, ["token"]) is None


def test_s7_a_cookie_has_the_scopes_of_the_token_behind_it(db: Served) -> None:
    write_token(db.home / "token.read", "r" * 43)
    browser = browser_for(db, authorization=f"Bearer {'r' * 43}")
    heard = db.post("/v1/stop", {}, **browser)
    assert (heard.status, heard.body["error"]["rule"]) == (403, "scope")


def test_s7_a_rotated_token_ends_streams_and_cookies_within_a_second(tmp_path: Path) -> None:
    with served(tmp_path / "state") as here:
        old, browser = here.token, browser_for(here)
        line = http.client.HTTPConnection("127.0.0.1", here.port, timeout=PATIENCE_S)
        line.request("GET", "/v1/events", headers={"Authorization": f"Bearer {old}"})
        stream = line.getresponse()
        assert stream.readline() == b": here\n"
        assert typed("token", "--rotate", "--json", state=here.home).body["status"] == "rotated"
        rotated_at = time.monotonic()
        stream.read()
        assert time.monotonic() - rotated_at < PATIENCE_S / 2  # half a second, and a busy machine
        line.close()
        assert here.token != old
        assert here.raw("GET", "/v1/health", authorization=f"Bearer {old}").status == 401
        assert here.raw("GET", "/v1/health", **browser).status == 401
        assert here.raw("GET", "/v1/health").status == 200


def test_s20_a_new_token_is_its_owners_only(tmp_path: Path) -> None:
    rotate_token(tmp_path)
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["token"]


def test_s23_whoever_asks_too_often_is_told_when_to_come_back(tmp_path: Path) -> None:
    policy = replace(QUICK, serving=Serving(requests_per_s=0.5, requests_burst=3))
    with served(tmp_path / "state", policy=policy) as here:
        heard = [here.raw("GET", "/v1/health") for _ in range(4)]
        assert [one.status for one in heard] == [200, 200, 200, 429]
        assert 0 < heard[-1].body["error"]["retryAfterSeconds"] <= 2
        write_token(here.home / "token.read", "r" * 43)
        assert here.raw("GET", "/v1/health", authorization=f"Bearer {'r' * 43}").status == 200


def test_s17_words_of_sql_are_words_in_every_field(db: Served) -> None:
    for text in SQL:
        said = db.post("/v1/tasks", {"task": text, "label": text, "idempotencyKey": text})
        assert said.status == 201, said.raw
        found = db.client.get("/v1/tasks", label=text)["tasks"]
        assert [one["label"] for one in found] == [text]
        assert db.raw("GET", f"/v1/tasks/{quote(text, safe='')}").status in (200, 404, 409)
        db.client.post("/v1/sessions/agent:main:main/messages", {"text": text}, key=text)


def test_s5_a_browser_session_is_kept_as_digests_and_ends_with_its_token(tmp_path: Path) -> None:
    file, now = tmp_path / "browsers.json", [0.0]
    before = Browsers(Serving(), 1, file, lambda: now[0])
    code = before.code("token")
    assert before.redeemed(code) == "token"
    cookie, key = before.opened("token", code)
    assert file.stat().st_mode & 0o777 == 0o600
    assert not any(secret in file.read_text() for secret in (cookie, key))
    after = Browsers(Serving(), 1, file, lambda: now[0])
    assert after.token_of(cookie, ["other", "token"]) == "token"
    assert after.token_of(cookie, ["other"]) is None
    assert after.token_of("guessed", ["token"]) is None
    assert before.redeemed(code) is None  # a second use signs out the first browser, also after a restart
    assert Browsers(Serving(), 1, file, lambda: now[0]).token_of(cookie, ["token"]) is None
    later, _ = after.opened("token")
    now[0] = Serving().browser_s
    assert after.token_of(later, ["token"]) is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"a": 1}', '{"a": ["x"]}', '{"a": ["x", "y"]}', '{"a": ["x", 9e9]}']
)
def test_a_damaged_file_of_sessions_signs_all_browsers_out(tmp_path: Path, text: str) -> None:
    file = tmp_path / "browsers.json"
    file.write_text(text)
    file.chmod(0o600)
    assert Browsers(Serving(), 1, file).token_of("x", ["token"]) is None
