"""Web Push: the published example of RFC 8291, and notifications that a real push service on loopback decrypts."""

from __future__ import annotations

import asyncio
import json
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from clutch.channels import PushChannel, encrypt, new_key, signed
from clutch.core.devices import (
    PushKey,
    PushKind,
    Subscription,
    check_endpoint,
    check_keys,
    decoded,
    encoded,
    notification_text,
    parse_notification,
)
from clutch.core.policy import Serving
from clutch.errors import InvalidInput
from clutch.surfaces.http.browser import SESSIONS_MAX
from clutch.tools.registry import ToolSettings
from clutch.tools.sandbox.policy import Sandbox
from clutch.transactions.push import subscribed
from tests.patience import PATIENCE_S
from tests.security.test_doors import browser_for
from tests.surfaces.served import FAST, Served, served
from tests.surfaces.test_page import spawned
from tests.surfaces.typed import typed

# ---- RFC 8291, section 5 ---------------------------------------------------------------------------------

PUBLIC = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4"
SECRET = "BTBZMqHH6r4Tts7J_aSIgg"
SENDER = "yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw"
SALT = "DGv6ra1nlYgDCS1FRnbzlw"
MESSAGE = (
    "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A_"
    "yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN"
)


def test_the_encryption_gives_the_bytes_of_the_published_example() -> None:
    text = b"When I grow up, I want to be a watermelon"
    assert encoded(encrypt(text, PUBLIC, SECRET, decoded(SALT), SENDER)) == MESSAGE


# ---- a browser and its push service ----------------------------------------------------------------------


@dataclass
class Receiver:
    """The keys of a browser, which decrypts by itself what its push service got."""

    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    secret: bytes = b"0123456789abcdef"

    @property
    def point(self) -> bytes:
        return self.key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)

    def subscription(self, endpoint: str) -> dict[str, str]:
        return {"endpoint": endpoint, "p256dh": encoded(self.point), "auth": encoded(self.secret)}

    def read(self, body: bytes) -> bytes:
        salt, (size, length), rest = body[:16], struct.unpack("!IB", body[16:21]), body[21:]
        assert (size, length) == (4096, 65)
        sender, sealed = rest[:65], rest[65:]
        shared = self.key.exchange(
            ec.ECDH(), ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), sender)
        )
        info = b"WebPush: info\0" + self.point + sender
        ikm = HKDF(SHA256(), 32, self.secret, info).derive(shared)
        key = HKDF(SHA256(), 16, salt, b"Content-Encoding: aes128gcm\0").derive(ikm)
        nonce = HKDF(SHA256(), 12, salt, b"Content-Encoding: nonce\0").derive(ikm)
        opened = AESGCM(key).decrypt(nonce, sealed, None)
        assert opened[-1] == 2
        return opened[:-1]


@dataclass
class PushService:
    port: int
    got: Queue[tuple[dict[str, str], bytes]] = field(default_factory=Queue)
    answers: list[int] = field(default_factory=list)  #: the next statuses; then 201

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}/send/abc"


@contextmanager
def push_service() -> Iterator[PushService]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status = service.answers.pop(0) if service.answers else 201
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()
            service.got.put(({name.lower(): value for name, value in self.headers.items()}, body))

        def log_message(self, *args: Any) -> None:
            del args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    service = PushService(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass
class Phone:
    """A signed-in page with notifications on."""

    db: Served
    service: PushService
    headers: dict[str, Any]
    receiver: Receiver = field(default_factory=Receiver)

    @property
    def id(self) -> str:
        found = self.db.raw("GET", "/v1/devices", **self.headers).body["devices"]
        return str(next(one["id"] for one in found if one["isThis"]))

    @property
    def is_on(self) -> bool:
        found = self.db.raw("GET", "/v1/devices").body["devices"]
        return any(one["hasPush"] for one in found)

    def turn_on(self) -> None:
        body = self.receiver.subscription(self.service.endpoint)
        said = self.db.post("/v1/devices/push", body, **self.headers)
        assert said.status == 200, said.raw

    def next(self) -> dict[str, Any]:
        _, body = self.service.got.get(timeout=PATIENCE_S)
        return dict(json.loads(self.receiver.read(body)))


@pytest.fixture
def phone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Phone]:
    monkeypatch.setattr("clutch.transactions.outbox.DONE_PAUSE_S", 0.0)
    with push_service() as service:
        policy = replace(FAST, serving=Serving(push_hosts=frozenset({service.host})))
        settings = ToolSettings(sandbox=Sandbox.OFF, shell_needs_approval=True)
        with served(tmp_path / "state", policy=policy, settings=settings) as here:
            made = Phone(here, service, browser_for(here))
            assert here.post("/v1/devices/push/key", {}, **made.headers).status == 200
            made.turn_on()
            yield made


def test_a_decision_and_the_end_of_all_tasks_are_notified_in_generic_words(phone: Phone) -> None:
    spawned(phone.db, "run it", "the secret plan")
    headers, body = phone.service.got.get(timeout=PATIENCE_S)
    assert json.loads(phone.receiver.read(body)) == {"text": "A task needs your decision", "tag": "attention"}
    assert (headers["content-encoding"], headers["topic"]) == ("aes128gcm", "attention")
    assert int(headers["ttl"]) > 0
    (item,) = phone.db.client.get("/v1/inbox")["items"]
    phone.db.client.post(f"/v1/tasks/{item['taskId']}/kill", {"reason": "enough"})
    assert phone.next() == {"text": "All tasks of a conversation are finished", "tag": "done"}
    for name, value in headers.items():
        assert "secret" not in f"{name}{value}"


def test_the_end_is_notified_once_and_only_when_no_task_is_left(phone: Phone) -> None:
    spawned(phone.db, "slow one", "first")
    spawned(phone.db, "quick work", "second")
    phone.db.client.get("/v1/tasks", label="second")
    done = phone.db.client.get("/v1/tasks", label="second")["tasks"][0]["taskId"]
    phone.db.client.get(f"/v1/tasks/{done}/wait", timeoutSeconds=PATIENCE_S, patience_s=2 * PATIENCE_S)
    assert phone.service.got.empty()
    phone.db.let_go()
    assert phone.next()["tag"] == "done"
    assert phone.db.post("/v1/devices/push/test", {}, **phone.headers).status == 200
    assert phone.next()["tag"] == "test"  # nothing was sent in between: one sender keeps the order


def test_a_test_notification_is_signed_for_this_push_service(phone: Phone) -> None:
    assert phone.db.post("/v1/devices/push/test", {}, **phone.headers).body == {"status": "queued"}
    headers, body = phone.service.got.get(timeout=PATIENCE_S)
    assert json.loads(phone.receiver.read(body))["tag"] == "test"
    scheme, _, parts = headers["authorization"].partition(" ")
    token, public = (part.partition("=")[2] for part in parts.split(", "))
    assert scheme == "vapid"
    assert public == phone.db.post("/v1/devices/push/key", {}, **phone.headers).body["publicKey"]
    text, _, signature = token.rpartition(".")
    claims = json.loads(decoded(text.partition(".")[2]))
    assert claims["aud"] == f"http://{phone.service.host}"
    verify(public, text, decoded(signature))
    with pytest.raises(InvalidSignature):
        verify(public, f"{text}x", decoded(signature))


def verify(public: str, text: str, signature: bytes) -> None:
    key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), decoded(public))
    numbers = (int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big"))
    key.verify(encode_dss_signature(*numbers), text.encode(), ec.ECDSA(SHA256()))


@pytest.mark.parametrize("status", [404, 410])
def test_a_subscription_that_the_browser_has_ended_is_removed(phone: Phone, status: int) -> None:
    phone.service.answers.append(status)
    phone.db.post("/v1/devices/push/test", {}, **phone.headers)
    phone.next()
    until(lambda: not rows(phone.db))
    assert phone.db.post("/v1/devices/push/test", {}, **phone.headers).status == 404


def test_a_push_service_in_trouble_gets_it_again_and_one_that_refuses_does_not(phone: Phone) -> None:
    phone.service.answers += [503, 201, 403]
    phone.db.post("/v1/devices/push/test", {}, **phone.headers)
    assert phone.next() == phone.next()
    phone.db.post("/v1/devices/push/test", {}, **phone.headers)
    phone.next()
    phone.db.post("/v1/devices/push/test", {}, **phone.headers)
    assert phone.next()["tag"] == "test"
    assert phone.service.got.empty()
    assert phone.db.client.get("/v1/inbox")["items"] == []  # no message that waits for a decision
    assert phone.is_on


def test_a_revoked_device_is_notified_no_more(phone: Phone) -> None:
    typed("devices", "revoke", phone.id, state=phone.db.home)
    assert rows(phone.db) == []  # before the answer: a gateway that dies now must not go on after its restart
    task = spawned(phone.db, "quick work", "after")
    phone.db.client.get(f"/v1/tasks/{task}/wait", timeoutSeconds=PATIENCE_S, patience_s=2 * PATIENCE_S)
    other = Phone(phone.db, phone.service, browser_for(phone.db))
    other.turn_on()
    other.db.post("/v1/devices/push/test", {}, **other.headers)
    assert other.next()["tag"] == "test"
    assert phone.service.got.empty()


def test_s7_a_device_that_makes_room_for_another_is_notified_no_more(phone: Phone) -> None:
    for _ in range(SESSIONS_MAX):
        phone.db.raw("POST", "/v1/browser/session")
    until(lambda: not rows(phone.db))


def test_s7_a_rotated_token_ends_the_notifications_of_its_devices(phone: Phone) -> None:
    typed("token", "--rotate", state=phone.db.home)
    until(lambda: not rows(phone.db))


def test_a_device_has_one_subscription_and_turns_it_off(phone: Phone) -> None:
    phone.turn_on()
    phone.turn_on()
    assert len(rows(phone.db)) == 1
    assert phone.db.raw("DELETE", "/v1/devices/push", **phone.headers).body == {"status": "off"}
    assert rows(phone.db) == []


def test_s7_only_a_signed_in_page_with_the_right_to_write_is_notified(phone: Phone) -> None:
    body = phone.receiver.subscription(phone.service.endpoint)
    heard = phone.db.post("/v1/devices/push", body)
    assert (heard.status, heard.body["error"]["rule"]) == (403, "device")


def rows(db: Served) -> list[str]:
    async def read() -> list[str]:
        found = await db.clutch.services.db.read(subscribed)
        return sorted(found)

    return asyncio.run_coroutine_threadsafe(read(), db.loop).result(PATIENCE_S)


def until(is_so: Callable[[], bool]) -> None:
    """The gateway says to no client that it has forgotten a device: ask until it has."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline


# ---- which addresses -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://fcm.googleapis.com/x",
        "https://127.0.0.1/x",
        "https://[::1]/x",
        "https://10.0.0.1/x",
        "https://localhost/x",
        "https://2130706433/x",
        "https://0x7f.1/x",
        "https://user@push.example.org/x",
        "https://push.example.org:8443/x",
        "https://push.example.org/x#y",
        "file:///etc/passwd",
        "https://",
        "https://[x",
        "",
        "https://push.example.org/" + "x" * 1024,
        "https://push.example.org/\n",
    ],
)
def test_s21_an_endpoint_is_a_public_name_with_tls(endpoint: str) -> None:
    with pytest.raises(InvalidInput, match="endpoint"):
        check_endpoint(endpoint)


def test_an_endpoint_of_a_push_service_is_accepted() -> None:
    check_endpoint("https://fcm.googleapis.com/fcm/send/abc:def")
    check_endpoint("https://updates.push.services.mozilla.com:443/wpush/v2/x")
    check_endpoint("http://127.0.0.1:99/x", {"127.0.0.1:99"})


@given(st.text())
def test_no_text_is_taken_for_the_key_of_a_browser(text: str) -> None:
    with pytest.raises(InvalidInput):
        check_keys(text, text)


class Known:
    """One subscription, as the store would know it."""

    def __init__(self, endpoint: str) -> None:
        self.one, self.own = Subscription(endpoint, PUBLIC, SECRET), new_key()

    async def key(self) -> PushKey | None:
        return self.own

    async def find(self, device: str) -> Subscription | None:
        del device
        return self.one

    async def forget(self, device: str) -> None:
        raise AssertionError(device)

    async def is_current(self, key: str) -> bool:
        return key != "over"


@pytest.mark.anyio
async def test_s21_a_name_that_leads_into_the_own_network_is_not_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    async def resolved(self: object, host: str, port: int = 0, family: int = 0) -> list[dict[str, Any]]:
        del self, family
        return [{"hostname": host, "host": "127.0.0.1", "port": port, "family": 2, "proto": 0, "flags": 0}]

    monkeypatch.setattr("aiohttp.resolver.ThreadedResolver.resolve", resolved)

    def is_public(address: str) -> bool:
        asked.append(address)
        return False

    channel = PushChannel(Known("https://rebound.example.org/x"), is_public, lambda: 0.0, Serving)
    with pytest.raises(ConnectionError, match=r"rebound\.example\.org cannot be reached"):
        await channel.send("d_1", notification_text(PushKind.TEST, 0.0), "key")
    assert asked == ["127.0.0.1"]


@pytest.mark.anyio
async def test_s21_a_stored_endpoint_is_checked_again_before_it_is_used() -> None:
    channel = PushChannel(Known("https://127.0.0.1/x"), lambda _: True, lambda: 0.0, Serving)
    with pytest.raises(PermissionError, match="endpoint"):
        await channel.send("d_1", notification_text(PushKind.TEST, 0.0), "key")


@pytest.mark.anyio
async def test_what_is_too_late_or_does_not_hold_any_more_is_not_sent() -> None:
    now = [0.0]
    # An address that is refused: what gets that far raises.
    channel = PushChannel(Known("https://127.0.0.1/x"), lambda _: True, lambda: now[0], Serving)
    body = notification_text(PushKind.ATTENTION, 0.0)
    assert await channel.send("d_1", body, "over") == "no longer current"
    now[0] = 599.0
    with pytest.raises(PermissionError):
        await channel.send("d_1", body, "key")
    now[0] = 600.0
    assert await channel.send("d_1", body, "key") == "too late"


@given(st.sampled_from(PushKind), st.floats(0, 1e11))
def test_a_notification_in_the_outbox_is_read_as_it_was_written(kind: PushKind, at: float) -> None:
    assert parse_notification(notification_text(kind, at)) == (kind, at)


def test_a_signature_is_valid_for_half_a_day() -> None:
    said = signed("https://push.example.org/x", new_key(), "mailto:a@b.test", 1000.0)
    claims = json.loads(decoded(said.removeprefix("vapid t=").split(".")[1]))
    assert claims == {"aud": "https://push.example.org", "exp": 1000 + 12 * 3600, "sub": "mailto:a@b.test"}
