"""Web Push: the key pair of this database, and the subscription of each device. What is sent is rows of the outbox."""

from __future__ import annotations

from collections.abc import Collection

from clutch.core.devices import PushKey, PushKind, Subscription, parse_notification
from clutch.store.transaction import Tx
from clutch.transactions.outbox import OPEN_BESIDE
from clutch.transactions.read.inbox import is_asking


def key(now: float) -> Tx[PushKey | None]:
    del now
    rows = yield "SELECT private, public FROM push_keys", ()
    return PushKey(*rows[0]) if rows else None


def keep_key(now: float, made: PushKey) -> Tx[PushKey]:
    """Return the key pair of this database: the first one stays, which another gateway may have made since."""
    yield "INSERT INTO push_keys(id, private, public) VALUES(1, ?, ?) ON CONFLICT(id) DO NOTHING", tuple(made)
    return (yield from key(now)) or made


def subscribe(now: float, device: str, one: Subscription, until: float) -> Tx[None]:
    """A device has one subscription, and a browser one device: an older one of either is replaced."""
    del now
    yield "DELETE FROM push_subscriptions WHERE device = ? OR endpoint = ?", (device, one.endpoint)
    yield (
        "INSERT INTO push_subscriptions(device, endpoint, p256dh, auth, until) VALUES(?, ?, ?, ?, ?)",
        (device, *one, until),
    )


def find(now: float, device: str) -> Tx[Subscription | None]:
    rows = yield (
        "SELECT endpoint, p256dh, auth FROM push_subscriptions WHERE device = ? AND until > ?",
        (device, now),
    )
    return Subscription(*rows[0]) if rows else None


def subscribed(now: float) -> Tx[frozenset[str]]:
    rows = yield "SELECT device FROM push_subscriptions WHERE until > ?", (now,)
    return frozenset(row[0] for row in rows)


def forget(now: float, devices: Collection[str]) -> Tx[None]:
    """These devices are signed out, or want no notifications. What has expired leaves, too."""
    yield "DELETE FROM push_subscriptions WHERE device {any} OR until <= ?", (list(devices), now)


def is_current(now: float, key: str) -> Tx[bool]:
    """Whether a notification still says the truth: its session waits for a decision, its conversation has no open
    task."""
    rows = yield "SELECT session_id, body FROM outbox WHERE idem = ?", (key,)
    if not rows:
        return False
    session_id, body = rows[0]
    match parse_notification(body).kind:
        case PushKind.ATTENTION:
            return (yield from is_asking(now, [session_id]))
        case PushKind.DONE:
            return not (yield OPEN_BESIDE, (session_id,))
        case PushKind.TEST:
            return True
