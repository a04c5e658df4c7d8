"""Devices: what a browser that signs in is called, and how it is notified.

The name is made of words that are listed here, whatever the browser sends: it is shown beside a button that signs the
device out, and a foreign text there could name another one."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Collection
from enum import StrEnum
from typing import NamedTuple
from urllib.parse import urlsplit

from clutch.core.validation import require

#: In this order: most browsers also name those that they descend from.
_BROWSERS = (
    ("Edg", "Edge"),
    ("OPR/", "Opera"),
    ("SamsungBrowser", "Samsung Internet"),
    ("Firefox/", "Firefox"),
    ("FxiOS", "Firefox"),
    ("CriOS", "Chrome"),
    ("Chrome/", "Chrome"),
    ("Safari/", "Safari"),
)
_SYSTEMS = (
    ("iPhone", "iPhone"),
    ("iPad", "iPad"),
    ("Android", "Android"),
    ("CrOS", "ChromeOS"),
    ("Windows", "Windows"),
    ("Mac OS X", "Mac"),
    ("Linux", "Linux"),
)


def device_name(user_agent: str) -> str:
    """Return the family of a browser and its system, such as `Chrome on Android`; `Browser` if neither is known."""
    browser = next((name for mark, name in _BROWSERS if mark in user_agent), "Browser")
    system = next((name for mark, name in _SYSTEMS if mark in user_agent), None)
    return browser if system is None else f"{browser} on {system}"


# --------------------------------------------------------------------------------------------------
# Web Push: what a notification says, and which addresses a browser may name for it.
#
# A notification passes a push service of the browser's vendor and is shown on a locked screen. So it has one of three
# texts and never a word of a task.

ENDPOINT_CHARS_MAX = 1024
STALE_S = 600.0  #: a notification that could not be sent for so long is not sent any more
#: Before a device is notified that all is finished: an agent that starts one task after another does so within it.
DONE_PAUSE_S = 10.0
_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9-]{1,63}(\.[a-z0-9-]{1,63})*\.[a-z]{2,63}", re.ASCII)


class PushKey(NamedTuple):
    """The key pair that push services know a gateway by, both in base64url."""

    private: str
    public: str


class Subscription(NamedTuple):
    """Where a browser is reached, its public key and its secret, as it has sent them."""

    endpoint: str
    p256dh: str
    auth: str


class PushKind(StrEnum):
    ATTENTION = "attention"
    DONE = "done"
    TEST = "test"


TEXTS = {
    PushKind.ATTENTION: "A task needs your decision",
    PushKind.DONE: "All tasks of a conversation are finished",
    PushKind.TEST: "Notifications of Clutch work",
}


class Notification(NamedTuple):
    """`at`: the moment of what it says."""

    kind: PushKind
    at: float


def notification_text(kind: PushKind, at: float) -> str:
    """Return what a row of the outbox keeps of a notification."""
    return f"{kind} {at!r}"


def parse_notification(text: str) -> Notification:
    kind, _, at = text.partition(" ")
    return Notification(PushKind(kind), float(at or 0))


def payload(kind: PushKind) -> bytes:
    """Return what the service worker of the page receives. A second one with the same tag replaces the first."""
    return json.dumps({"text": TEXTS[kind], "tag": kind}).encode()


def check_endpoint(url: str, hosts: Collection[str] = ()) -> None:
    """A push service has a public name and TLS. `hosts`: exceptions, `host:port`. Raises InvalidInput.

    An address instead of a name is refused here; where a name leads is checked when it is connected to."""
    rule = "must be an https address of a push service"
    try:
        place = urlsplit(url)
        port = place.port
    except ValueError:
        place, port = urlsplit(""), None
    is_plain = (
        url.isascii() and url.isprintable() and len(url) <= ENDPOINT_CHARS_MAX and "@" not in place.netloc
    )
    require("endpoint", rule, is_kept=is_plain and place.scheme in ("http", "https") and not place.fragment)
    if f"{place.hostname}:{port}" not in hosts:
        is_public = place.scheme == "https" and port in (None, 443)
        require("endpoint", rule, is_kept=is_public and bool(_NAME.fullmatch(place.hostname or "")))


def check_keys(p256dh: str, auth: str) -> None:
    """The public key of a browser is a point of P-256, and its secret has 16 bytes. Raises InvalidInput."""
    point = decoded(p256dh)
    require("p256dh", "must be an uncompressed point of P-256", is_kept=len(point) == 65 and point[0] == 4)
    require("auth", "must be 16 bytes in base64url", is_kept=len(decoded(auth)) == 16)


def decoded(text: str) -> bytes:
    """Return the bytes of a text in base64url; nothing for another text."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return b""


def encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
