"""The JSON objects of devices: browsers and phones that are signed in, and how one is signed in.

As in `api/objects.py`: names are camelCase, times RFC 3339 text, and fields may be added, never renamed."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from clutch.api.objects import Moment


class Code(TypedDict):
    code: str
    expiresInSeconds: float


class LetIn(TypedDict):
    status: Literal["open"]
    expiresInSeconds: float
    pageKey: str  #: stays in the page, which proves with it that the cookie is its own


class GatewayProof(TypedDict):
    run: str  #: the name of this gateway process
    proof: (
        str  #: HMAC-SHA256 of `gateway NONCE RUN`; its key is the SHA-256 of `pageKey`, in hexadecimal digits
    )


class DeviceObject(TypedDict):
    id: str  #: for `revoke`; it opens nothing
    name: str  #: the family of the browser and its system
    hasPush: bool  #: it is notified
    isPhone: bool  #: paired with `clutch open --phone`
    isThis: bool  #: the caller's own
    pairedAt: Moment
    seenAt: Moment
    expiresAt: Moment


class ReachObject(TypedDict):
    hosts: list[str]  #: `gateway.allowedHosts`
    addresses: list[str]  #: where the gateway listens
    port: int


class Devices(TypedDict):
    devices: list[DeviceObject]
    reach: ReachObject


class PushKeyObject(TypedDict):
    publicKey: str  #: for `applicationServerKey` of a browser, in base64url


class PushState(TypedDict):
    status: Literal["on", "off", "queued"]


class Revoked(TypedDict):
    status: Literal["revoked"]
    id: str
