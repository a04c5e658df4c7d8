"""Web Push: encrypts a notification for one browser (RFC 8291) and sends it to its push service (RFC 8030, RFC 8292).

Written here because the known library pulls two HTTP stacks and a package without wheels, and what it does is the sixty
lines below. A receiver of the outbox: when it is sent again is decided there, and a message that arrives twice replaces
itself (`Topic`, and the tag in it)."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

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
from clutch.core.policy import Serving
from clutch.errors import InvalidInput, extra
from clutch.ports import Subscriptions

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec

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
