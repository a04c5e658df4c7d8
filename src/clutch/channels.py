"""Channels to users: adapters that send one text and report whether it arrived."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from clutch.contain import cause, contained
from clutch.core.delivery import CHANNEL_NAME, INTERNAL_CHANNELS, SendUnsure
from clutch.core.devices import (
    STALE_S,
    PushKey,
    PushKind,
    check_endpoint,
    decoded,
    encoded,
    parse_notification,
    payload,
)
from clutch.core.model import Hook
from clutch.core.policy import Serving
from clutch.core.validation import check
from clutch.errors import InvalidInput, extra
from clutch.logs import logger
from clutch.ports import HookFailed, Subscriptions, ThreadFailed

if TYPE_CHECKING:
    import aiohttp
    from cryptography.hazmat.primitives.asymmetric import ec


# --------------------------------------------------------------------------------------------------
# One POST of JSON to an address from a config or a program, and what its answer means.
#
# No redirect is followed: the operator configured this address and no other. It may hold a secret, so what went wrong
# names its host and nothing else of it.

ANSWER_BYTES_MAX = 64 * 1024
GATEWAY_TIMEOUT = 504  # a proxy passed the request on and got no answer
CONNECT_S = 10.0  # how long an answer may take is decided by the caller


def check_url(field: str, url: object) -> None:
    try:
        place = urlsplit(str(url))
        is_right = place.scheme in ("http", "https") and bool(place.hostname) and place.port != 0
    except ValueError:
        is_right = False
    if not is_right:
        raise InvalidInput(field, "must be an address that begins with http:// or https:// and names a host")


async def post(
    url: str, told: Mapping[str, Any], headers: Mapping[str, str], key: str
) -> dict[str, Any] | None:
    """The object it answers with, if it does. Raises PermissionError for a 4xx, which no repetition changes; SendUnsure
    where the request may have been read and no answer says what became of it; else ConnectionError."""
    import aiohttp  # loaded for the first message

    host, sent = urlsplit(url).hostname, {**headers, "Idempotency-Key": key}
    patience = aiohttp.ClientTimeout(total=None, connect=CONNECT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=patience) as client,
            client.post(url, json=told, headers=sent, allow_redirects=False) as response,
        ):
            if 400 <= response.status < 500 and response.status not in (408, 429):
                raise PermissionError(f"{host} says {response.status}")
            if response.status == GATEWAY_TIMEOUT:
                raise SendUnsure(f"{host} says {response.status}")
            if response.status >= 300:
                raise ConnectionError(f"{host} says {response.status}")
            return _object(host, await _read(response))
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL) as error:
        raise ConnectionError(f"{host} cannot be reached: {type(error).__name__}") from error
    except aiohttp.ClientError as error:
        raise SendUnsure(f"{host} closed the connection without an answer: {type(error).__name__}") from error


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """All of it, in however many pieces it comes; of too much the beginning."""
    body = b""
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > ANSWER_BYTES_MAX:
            break
    return body


def _object(host: str | None, body: bytes) -> dict[str, Any] | None:
    """What is no object was not meant for us; one that is broken may have been a veto."""
    try:
        said = json.loads(body)
    except ValueError as error:
        if body.lstrip().startswith(b"{"):
            raise SendUnsure(f"{host} answers with an object that is broken or too long") from error
        return None
    return said if isinstance(said, dict) else None


# --------------------------------------------------------------------------------------------------
# `channels.NAME`: people behind a webhook, such as a channel of a chat program or a bridge of one's own.
#
# What they are to read comes from the outbox, so it is sent at least once and under a stable key.

THREAD_CHARS_MAX = 200


@dataclass(frozen=True, slots=True)
class WebhookChannel:
    """POSTs `{"text", "to"?, "account"?, "thread"?, "key"}`; `to` is what stands behind the name in a route. A 4xx is
    not tried again; a connection that is cut and no answer within `announce.timeoutMs` are `unsure`."""

    name: str
    url: str = field(repr=False)  #: Address that receives a POST of JSON for each message. May be a secret.
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  #: Headers of every request.
    threads: bool = False  #: The receiver can open threads: it answers {"thread": "its name"}.
    #: Accounts that may give slash commands, besides the bound one. "*" = all.
    operators: tuple[str, ...] = ()
    approvers: tuple[str, ...] = ()  #: Accounts that may also approve and reject. "*" = all.

    def __post_init__(self) -> None:
        check(self)
        if not CHANNEL_NAME.fullmatch(self.name) or self.name in INTERNAL_CHANNELS:
            rule = (
                f"a name is up to 32 of a-z, 0-9, - and _, and none of {', '.join(sorted(INTERNAL_CHANNELS))}"
            )
            raise InvalidInput("name", rule)
        check_url("url", self.url)

    async def send(self, target: str, body: str, key: str) -> str | None:
        said = await self._posted({"text": body, **_address(target), "key": key})
        return None if "id" not in said else str(said["id"])[:THREAD_CHARS_MAX]

    async def open_thread(self, target: str, title: str, key: str) -> str:
        if not self.threads:
            raise ThreadFailed(f"thread: channels.{self.name}.threads is false")
        try:
            said = await self._posted({"openThread": title, **_address(target), "key": key})
        except OSError as error:
            raise ThreadFailed(f"thread: the channel {self.name!r}: {error}") from error
        name = said.get("thread")
        if not isinstance(name, str) or not 0 < len(name) <= THREAD_CHARS_MAX:
            raise ThreadFailed(f"thread: the channel {self.name!r} named none")
        return name

    async def _posted(self, told: dict[str, Any]) -> dict[str, Any]:
        return await post(self.url, told, self.headers, told["key"]) or {}


def _address(target: str) -> dict[str, str]:
    """As `core.routes.target` writes it."""
    if target.startswith("{"):
        parts: dict[str, str] = json.loads(target)
        return parts
    return {"to": target} if target else {}


# --------------------------------------------------------------------------------------------------
# Hooks: Python functions and webhooks that hear of a subagent's life, or are asked about it.
#
# What they receive comes from the outbox, so it is at least once and under a stable key; a receiver that fails gets
# it again, and so do the others of that hook. Each gets a few seconds, and none of them can stop a task.

log = logger(__name__)

GROUP = "clutch.hooks"  #: entry points of installed packages: the name of a hook and a function
TIMEOUT_S = 5.0  # a task waits for a spawning hook; it should not wait longer for foreign code

#: Gets what happened as a dictionary, `event` and `key` with it. May be a plain function; then it runs in a thread.
Receiver: TypeAlias = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Webhook:
    """POSTs JSON. `events`: names of hooks; none = all. A 4xx is not tried again."""

    url: str  #: Address that receives a POST of JSON for each event.
    events: tuple[str, ...] = ()  #: Events to send. Empty = all.
    headers: Mapping[str, str] | None = None  #: Headers of every request.

    def __post_init__(self) -> None:
        check_url("Webhook.url", self.url)

    async def __call__(self, told: dict[str, Any]) -> Any:
        return await post(self.url, told, self.headers or {}, str(told.get("key", "")))


class HookRegistry:
    """The receivers of each hook. It is a channel for events, and answers questions (`ask`)."""

    def __init__(self, webhooks: Sequence[Webhook] = (), timeout_s: float = TIMEOUT_S) -> None:
        self._receivers: dict[Hook, list[Receiver]] = {}
        self._timeout_s = timeout_s
        for webhook in webhooks:
            for name in webhook.events or tuple(Hook):
                self.add(name, webhook)

    @property
    def names(self) -> frozenset[Hook]:
        return frozenset(self._receivers)

    def add(self, name: str, receiver: Receiver) -> None:
        if name not in tuple(Hook):
            raise InvalidInput("hook", f"there is no {name[:64]!r}; there are {', '.join(Hook)}")
        self._receivers.setdefault(Hook(name), []).append(receiver)

    def add_installed(self) -> None:
        """Those of installed packages. One that cannot be loaded is left out: it must not keep Clutch from starting."""
        for point in entry_points(group=GROUP):
            try:
                with contained():
                    self.add(point.name, point.load())
            except Exception:
                log.exception("Hook %s (%s) not loaded; Clutch starts without it", point.name, point.value)

    async def send(self, target: str, body: str, key: str) -> str | None:
        """Send to all receivers, whichever fails; then raise the first failure that may pass."""
        told = json.loads(body) | {"event": target, "key": key}
        answers = await asyncio.gather(
            *(self._call(one, told) for one in self._receivers.get(Hook(target), ()))
        )
        failures = [answer for answer in answers if isinstance(answer, HookFailed)]
        passing = [failure for failure in failures if not failure.is_permanent]
        if passing:
            raise ConnectionError(str(passing[0]))
        if failures:
            raise PermissionError(str(failures[0]))
        return None

    async def ask(self, name: Hook, about: Mapping[str, Any]) -> list[Mapping[str, Any] | HookFailed]:
        """What each has to say; one that says nothing is left out."""
        told = {**about, "event": name}
        answers = await asyncio.gather(*(self._call(one, told) for one in self._receivers.get(name, ())))
        return [answer for answer in answers if isinstance(answer, Mapping | HookFailed)]

    async def _call(self, receiver: Receiver, told: dict[str, Any]) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s):
                with contained():
                    if inspect.iscoroutinefunction(receiver) or isinstance(receiver, Webhook):
                        return await receiver(dict(told))
                    answer = await asyncio.to_thread(receiver, dict(told))
                    return await answer if inspect.isawaitable(answer) else answer
        except TimeoutError:
            return HookFailed(f"no answer within {self._timeout_s:g} s")
        except Exception as error:  # noqa: BLE001 - a hook is foreign code; nothing it raises may go further
            failed = HookFailed(cause(error)[:200])
            failed.is_permanent = isinstance(error, PermissionError)
            return failed


# --------------------------------------------------------------------------------------------------
# Web Push: encrypts a notification for one browser (RFC 8291) and sends it to its push service (RFC 8030, RFC 8292).
#
# Written here because the known library pulls two HTTP stacks and a package without wheels, and what it does is the
# sixty lines below. A receiver of the outbox: when it is sent again is decided there, and a message that arrives
# twice replaces itself (`Topic`, and the tag in it).

RECORD_BYTES = 4096  #: the usual size of a record; ours has about a hundred bytes
SIGNED_S = 12 * 3600  #: validity of a signature; push services allow a day
KEPT_S = 24 * 3600  #: how long a push service keeps a message for a phone that is off
SEND_S = 8.0  #: below `announcing.send_timeout_s`: what runs into that is not sent again by itself
GONE = (404, 410)  #: the browser has ended its subscription


class Sealed(NamedTuple):
    body: bytes
    authorization: str


def new_key() -> PushKey:
    """Make the key pair that push services know a gateway by. Raises MissingExtra."""
    with extra("phone", "Web Push"):
        from cryptography.hazmat.primitives.asymmetric import ec
    made = ec.generate_private_key(ec.SECP256R1())
    number = made.private_numbers().private_value
    return PushKey(encoded(number.to_bytes(32, "big")), encoded(_point(made)))


def _private(text: str) -> ec.EllipticCurvePrivateKey:
    with extra("phone", "Web Push"):
        from cryptography.hazmat.primitives.asymmetric import ec
    return ec.derive_private_key(int.from_bytes(decoded(text), "big"), ec.SECP256R1())


def _point(key: ec.EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def encrypt(content: bytes, p256dh: str, auth: str, salt: bytes, sender: str) -> bytes:
    """Encrypt for the browser with this public key and secret. `salt`, `sender`: fresh for each message."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    def derived(secret: bytes, salted: bytes, info: bytes, length: int) -> bytes:
        return HKDF(SHA256(), length, salted, info).derive(secret)

    own, other = _private(sender), decoded(p256dh)
    shared = own.exchange(ec.ECDH(), ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), other))
    secret = derived(shared, decoded(auth), b"WebPush: info\0" + other + _point(own), 32)
    key = derived(secret, salt, b"Content-Encoding: aes128gcm\0", 16)
    nonce = derived(secret, salt, b"Content-Encoding: nonce\0", 12)
    header = salt + struct.pack("!IB", RECORD_BYTES, 65) + _point(own)
    return header + AESGCM(key).encrypt(nonce, content + b"\x02", None)  # 2: the last record


def signed(endpoint: str, key: PushKey, contact: str, now: float) -> str:
    """Return the header that proves to a push service who sends (VAPID)."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
    from cryptography.hazmat.primitives.hashes import SHA256

    place = urlsplit(endpoint)
    claims = {"aud": f"{place.scheme}://{place.netloc}", "exp": int(now) + SIGNED_S, "sub": contact}
    parts = ({"typ": "JWT", "alg": "ES256"}, claims)
    text = ".".join(encoded(json.dumps(part).encode()) for part in parts)
    r, s = decode_dss_signature(_private(key.private).sign(text.encode(), ec.ECDSA(SHA256())))
    return f"vapid t={text}.{encoded(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}, k={key.public}"


class PushChannel:
    """`is_public`: whether an address may be connected to. `rules`: the settings as they are now."""

    def __init__(
        self,
        known: Subscriptions,
        is_public: Callable[[str], bool],
        now: Callable[[], float],
        rules: Callable[[], Serving],
    ) -> None:
        self._known, self._is_public, self._now, self._rules = known, is_public, now, rules

    async def send(self, target: str, body: str, key: str) -> str | None:
        """`target`: a device. `body`, `key`: of a row of the outbox. Raises ConnectionError, PermissionError."""
        kind, at = parse_notification(body)
        if at + STALE_S <= self._now():
            return "too late"
        if not await self._known.is_current(key):
            return "no longer current"
        found, own = await self._known.find(target), await self._known.key()
        if found is None or own is None:
            return "no subscription"  # it was turned off, or its device was signed out
        try:
            check_endpoint(found.endpoint, self._rules().push_hosts)
        except InvalidInput as error:
            raise PermissionError(str(error)) from error

        def sealed() -> Sealed:
            content = encrypt(payload(kind), found.p256dh, found.auth, os.urandom(16), new_key().private)
            return Sealed(content, signed(found.endpoint, own, self._rules().push_contact, self._now()))

        made = await asyncio.to_thread(sealed)  # the first one loads a library
        status = await self._post(found.endpoint, made, kind)
        if status in GONE:
            await self._known.forget(target)
            return "subscription ended"
        if 400 <= status < 500 and status not in (408, 429):
            raise PermissionError(f"{urlsplit(found.endpoint).hostname} says {status}")
        if status >= 300:
            raise ConnectionError(f"{urlsplit(found.endpoint).hostname} says {status}")
        return None

    async def _post(self, endpoint: str, made: Sealed, kind: PushKind) -> int:
        import aiohttp

        place = urlsplit(endpoint)
        is_excepted = f"{place.hostname}:{place.port}" in self._rules().push_hosts
        headers = {
            "Authorization": made.authorization,
            "Content-Encoding": "aes128gcm",
            "Content-Type": "application/octet-stream",
            "TTL": str(KEPT_S),
            "Topic": kind.value,
            "Urgency": "high" if kind is PushKind.ATTENTION else "normal",
        }
        connector = aiohttp.TCPConnector() if is_excepted else aiohttp.TCPConnector(resolver=self._resolver())
        try:
            async with (
                aiohttp.ClientSession(
                    connector=connector, timeout=aiohttp.ClientTimeout(total=SEND_S)
                ) as client,
                client.post(endpoint, data=made.body, headers=headers, allow_redirects=False) as response,
            ):
                return response.status
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ConnectionError(f"{place.hostname} cannot be reached: {type(error).__name__}") from error

    def _resolver(self) -> Any:
        """Return a resolver that knows public addresses only, so that no name leads into the network of the gateway.
        The connection uses what was checked; nothing resolves the name a second time."""
        from aiohttp.abc import AbstractResolver, ResolveResult
        from aiohttp.resolver import ThreadedResolver

        is_public, resolver = self._is_public, ThreadedResolver()

        class PublicResolver(AbstractResolver):
            async def resolve(
                self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
            ) -> list[ResolveResult]:
                found = await resolver.resolve(host, port, family)
                public = [one for one in found if is_public(one["host"])]
                if not public:
                    raise OSError(f"{host} has no public address")
                return public

            async def close(self) -> None:
                await resolver.close()

        return PublicResolver()
