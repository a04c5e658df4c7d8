"""Devices: a phone is paired by a one-time link, listed, signed out at once, and known after a restart."""

from __future__ import annotations

import http.client
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import segno

from clutch.core.policy import Serving
from clutch.errors import InvalidInput
from clutch.surfaces.http.browser import CODES_MAX, SESSIONS_MAX, Browsers
from clutch.surfaces.listen import GatewayReach, phone_url
from tests.patience import PATIENCE_S
from tests.security.test_doors import OWN, browser_for
from tests.surfaces.served import Served, served, write_token
from tests.surfaces.typed import typed

PIXEL = "Mozilla/5.0 (Linux; Android 15) AppleWebKit/537.36 Chrome/130.0 Mobile Safari/537.36"


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "state") as here:
        yield here


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[Served]:
    """A gateway that a proxy makes reachable as lan.test."""
    home = tmp_path / "state"
    home.mkdir(0o700)
    (home / "clutch.json").write_text('{gateway: {allowedHosts: ["lan.test"]}}')
    with served(home, workspace=tmp_path / "work") as here:
        yield here


def devices(db: Served, **headers: Any) -> list[dict[str, Any]]:
    return list(db.raw("GET", "/v1/devices", **headers).body["devices"])


# ---- the code --------------------------------------------------------------------------------------------


def test_s5_a_code_for_a_phone_is_good_once_and_for_ten_minutes() -> None:
    now = [0.0]
    browsers = Browsers(Serving(), 1, now=lambda: now[0])
    early, late = browsers.code("token", is_phone=True), browsers.code("token", is_phone=True)
    now[0] = 599.0
    assert browsers.redeemed(early) == "token"
    assert browsers.redeemed(early) is None
    now[0] = 600.0
    assert browsers.redeemed(late) is None
    assert browsers.redeemed("guessed") is None


def test_s5_the_second_use_of_a_code_signs_out_the_first_phone() -> None:
    browsers, ended = Browsers(Serving(), 1), list[str]()
    browsers.on_end = ended.append
    code = browsers.code("token", is_phone=True)
    assert browsers.redeemed(code) == "token"
    cookie, _ = browsers.opened("token", code)
    (phone,) = browsers.devices(["token"])
    assert browsers.redeemed(code) is None
    assert browsers.token_of(cookie, ["token"]) is None
    assert ended == [phone.id]


def test_s5_a_code_that_is_used_twice_before_the_first_is_let_in_opens_nothing() -> None:
    browsers = Browsers(Serving(), 1)
    code = browsers.code("token")
    assert browsers.redeemed(code) == "token"
    assert browsers.redeemed(code) is None
    cookie, _ = browsers.opened("token", code)
    assert browsers.token_of(cookie, ["token"]) is None


def test_a_phone_stays_signed_in_for_a_month_and_a_browser_for_half_a_day() -> None:
    now = [0.0]
    browsers = Browsers(Serving(), 1, now=lambda: now[0])
    for is_phone in (True, False):
        code = browsers.code("token", is_phone=is_phone)
        browsers.redeemed(code)
        browsers.opened("token", code, PIXEL)
    assert {one.is_phone: one.until for one in browsers.devices(["token"])} == {
        True: 30 * 86400.0,
        False: 12 * 3600.0,
    }
    now[0] = 12 * 3600.0
    assert [one.is_phone for one in browsers.devices(["token"])] == [True]


def test_s5_a_browser_session_makes_no_codes(db: Served) -> None:
    phone = browser_for(db)
    for body in ({}, {"phone": True}):
        said = db.post("/v1/browser/code", body, **phone)
        assert (said.status, said.body["error"]["code"]) == (403, "forbidden")
        assert "run `clutch open` in a terminal" in said.body["error"]["message"]
    assert db.post("/v1/browser/code", {}).status == 201


def test_s5_an_empty_authorization_does_not_hide_that_a_cookie_asks(db: Served) -> None:
    phone = browser_for(db) | {"authorization": ""}
    assert db.post("/v1/browser/code", {}, **phone).status == 401
    assert db.post("/v1/browser/session", {}, **phone).status == 401
    assert len(devices(db)) == 1


def test_s5_a_session_that_has_expired_is_no_device() -> None:
    now = [0.0]
    browsers = Browsers(Serving(), 1, now=lambda: now[0])
    browsers.opened("token")
    (mine,) = browsers.devices(["token"])
    now[0] = mine.until - 1.0
    assert browsers.is_device(mine.id)
    now[0] = mine.until
    assert not browsers.is_device(mine.id)


def test_s7_too_many_sign_ins_sign_out_the_oldest_of_the_same_token_only() -> None:
    browsers, ended = Browsers(Serving(), 1), list[str]()
    browsers.on_end = ended.append
    browsers.opened("owner")
    browsers.opened("reader")
    (owner,), (first,) = browsers.devices(["owner"]), browsers.devices(["reader"])
    for _ in range(SESSIONS_MAX):
        browsers.opened("reader")
    assert ended == [first.id]
    assert browsers.is_device(owner.id)
    assert len(browsers.devices(["reader"])) == SESSIONS_MAX


def test_s7_too_many_codes_push_out_the_oldest_of_the_same_token_only() -> None:
    browsers = Browsers(Serving(), 1)
    owner, first = browsers.code("owner"), browsers.code("reader")
    for _ in range(CODES_MAX):
        browsers.code("reader")
    assert browsers.redeemed(first) is None
    assert browsers.redeemed(owner) == "owner"


# ---- the list, and signing out ---------------------------------------------------------------------------


def test_a_device_is_listed_with_its_name_and_the_callers_own_is_marked(db: Served) -> None:
    phone, other = browser_for(db), browser_for(db)
    assert [one["isThis"] for one in devices(db)] == [False, False]
    own = devices(db, **phone)
    assert sorted(one["isThis"] for one in own) == [False, True]
    assert {one["name"] for one in own} == {"Browser"}
    assert len({one["id"] for one in own}) == 2
    assert devices(db, **other) != own
    said = typed("devices", "--json", state=db.home).body["devices"]
    assert {one["id"] for one in said} == {one["id"] for one in own}
    text = typed("devices", state=db.home)
    assert own[0]["id"] in text.out
    assert "LAST SEEN" in text.out


def test_s7_a_revoked_device_and_its_open_stream_end_at_once(db: Served) -> None:
    phone, other = browser_for(db), browser_for(db)
    line = http.client.HTTPConnection("127.0.0.1", db.port, timeout=PATIENCE_S)
    line.request(
        "GET", "/v1/events", headers={name.replace("_", "-"): value for name, value in phone.items() if value}
    )
    stream = line.getresponse()
    assert stream.readline() == b": here\n"
    (mine,) = (one["id"] for one in devices(db, **phone) if one["isThis"])
    said = typed("devices", "revoke", mine, "--json", state=db.home)
    assert said.body["id"] == mine
    stream.read()  # ends in form; a connection that stays open would run into the timeout
    line.close()
    assert db.raw("GET", "/v1/health", **phone).status == 401
    assert db.raw("GET", "/v1/health", **other).status == 200
    again = typed("devices", "revoke", mine, state=db.home)
    assert again.code == 1
    assert "no device" in again.err


def test_a_device_can_revoke_itself_and_gets_its_answer(db: Served) -> None:
    phone = browser_for(db)
    (mine,) = (one["id"] for one in devices(db, **phone) if one["isThis"])
    assert db.post(f"/v1/devices/{mine}/revoke", {}, **phone).status == 200
    assert db.raw("GET", "/v1/health", **phone).status == 401


def test_s7_a_token_sees_and_revokes_its_own_devices_only(db: Served) -> None:
    owner = browser_for(db)
    write_token(db.home / "token.read", "r" * 43)
    reader = {"authorization": f"Bearer {'r' * 43}"}
    guest = browser_for(db, **reader)
    (mine,) = devices(db, **reader)
    assert mine["id"] in {one["id"] for one in devices(db, **owner)}
    (other,) = (one["id"] for one in devices(db, **owner) if one["isThis"])
    assert db.post(f"/v1/devices/{other}/revoke", {}, **reader).status == 404
    assert db.post(f"/v1/devices/{mine['id']}/revoke", {}, **guest).status == 200
    assert db.raw("GET", "/v1/health", **owner).status == 200


def test_s5_a_cookie_alone_lists_and_revokes_nothing(db: Served) -> None:
    phone = browser_for(db)
    (mine,) = (one["id"] for one in devices(db, **phone))
    bare = {"cookie": phone["cookie"], **OWN}
    assert db.raw("GET", "/v1/devices", **bare).status == 403
    assert db.post(f"/v1/devices/{mine}/revoke", {}, **bare, x_clutch_page="1").status == 401
    assert len(devices(db)) == 1


def test_devices_and_what_was_revoked_are_known_after_a_restart(tmp_path: Path) -> None:
    file, now = tmp_path / "browsers.json", [0.0]
    before = Browsers(Serving(), 1, file, lambda: now[0])
    kept, gone = before.opened("token", None, PIXEL)[0], before.opened("token")[0]
    now[0] = 1000.0
    before.visited(kept)
    (revoked,) = (one.id for one in before.devices(["token"]) if one.name == "Browser")
    before.revoke(revoked)
    after = Browsers(Serving(), 1, file, lambda: now[0])
    (left,) = after.devices(["token"])
    assert (left.name, left.paired_at, left.seen_at) == ("Chrome on Android", 0.0, 1000.0)
    assert after.visited(kept) == left.id
    assert after.visited(gone) is None
    assert after.devices(["another"]) == []
    assert file.stat().st_mode & 0o777 == 0o600


# ---- pairing ---------------------------------------------------------------------------------------------


def test_a_phone_is_paired_through_a_proxy_and_the_code_matches_the_link(behind: Served) -> None:
    said = typed("open", "--phone", state=behind.home)
    assert said.code == 0, said.err
    *drawn, link = said.out.rstrip("\n").splitlines()
    assert link.startswith("https://lan.test/#")
    expected = io.StringIO()
    segno.make_qr(link, error="l").terminal(expected, compact=True)
    assert drawn == expected.getvalue().rstrip("\n").splitlines()
    assert "10m00s" in said.err
    code = link.partition("#")[2]
    heard = behind.raw(
        "POST",
        "/v1/browser/session",
        authorization=f"Code {code}",
        host="lan.test",
        origin="https://lan.test",
        user_agent=PIXEL,
    )
    assert heard.status == 200
    assert "Secure" in heard.headers["set-cookie"]
    assert f"Max-Age={30 * 86400}" in heard.headers["set-cookie"]
    (phone,) = devices(behind)
    assert (phone["name"], phone["isPhone"]) == ("Chrome on Android", True)
    assert behind.raw("POST", "/v1/browser/session", authorization=f"Code {code}").status in (401, 429)
    assert devices(behind) == []  # the second use signs out the first


def test_pairing_answers_with_json_and_takes_the_public_address(behind: Served) -> None:
    said = typed("open", "--phone", "--url", "https://lan.test:8443/", "--json", state=behind.home).body
    assert said["url"].startswith("https://lan.test:8443/#")
    assert said["expiresInSeconds"] == 600
    wrong = typed("open", "--phone", "--url", "https://other.test", "--json", state=behind.home)
    assert (wrong.code, wrong.body["error"]["field"]) == (2, "--url")
    assert "gateway.allowedHosts" in wrong.err


def test_a_gateway_on_loopback_names_the_three_missing_settings_and_makes_no_code(db: Served) -> None:
    said = typed("open", "--phone", state=db.home)
    assert (said.code, said.out) == (2, "")
    for part in (
        "gateway.host (now 127.0.0.1)",
        "gateway.allowRemote (now false)",
        "gateway.allowedHosts (now empty)",
    ):
        assert part in said.err
    assert "--url https://clutch.example.org:8443" in said.err
    assert str(db.home / "clutch.json") in said.err


def test_without_the_extra_the_link_is_printed_with_the_way_to_install_it(
    behind: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "segno", None)
    said = typed("open", "--phone", state=behind.home)
    assert said.code == 0
    (link,) = said.out.splitlines()
    assert link.startswith("https://lan.test/#")
    assert "pip install 'clutch-agents[phone]'" in said.err


HERE = "192.168.1.20"


@pytest.mark.parametrize(
    ("hosts", "addresses", "url"),
    [
        ((), ("127.0.0.1",), None),
        (("a.test",), ("127.0.0.1",), "https://a.test"),
        (("a.test",), ("0.0.0.0",), "http://a.test:25882"),  # noqa: S104
        (("a.test", HERE), ("0.0.0.0",), f"http://{HERE}:25882"),  # noqa: S104
        (("a.test", "10.0.0.5"), ("127.0.0.1", "10.0.0.5"), "http://10.0.0.5:25882"),
        (("fd00::5",), ("127.0.0.1", "fd00::5"), "http://[fd00::5]:25882"),
    ],
)
def test_the_address_for_a_phone_is_one_that_the_gateway_answers_to(
    hosts: tuple[str, ...], addresses: tuple[str, ...], url: str | None
) -> None:
    assert phone_url(GatewayReach(hosts, addresses, 25882), None, HERE) == url


@pytest.mark.parametrize(
    "named",
    [
        "a.test",
        "ftp://a.test",
        "https://",
        "https://a.test/path",
        "https://u@a.test",
        "https://a.test:0",
        "https://[a",
        "https://a.test?x",
    ],
)
def test_a_public_address_is_a_scheme_a_host_and_a_port(named: str) -> None:
    with pytest.raises(InvalidInput, match="--url"):
        phone_url(GatewayReach(("a.test",), ("127.0.0.1",), 1), named, None)
