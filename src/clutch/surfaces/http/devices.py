"""The HTTP paths of devices: signing a browser or a phone in, the list of those that are, and signing one out.

A client with a token gets a one-time code, which the browser exchanges for a cookie. The page that is opened with the
code sends it as `Authorization: Code …`; no token is ever in an address, in a history or within reach of a script. A
cookie is accepted from our own page only: see `_check_own_page` in `auth.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from typing import Annotated, Any
from uuid import uuid4

from pydantic import Field
from starlette.responses import JSONResponse, Response

from clutch.api import report_objects, views
from clutch.api.actions import ActionBody
from clutch.api.problems import Problem
from clutch.core.authority import Scope
from clutch.core.devices import ENDPOINT_CHARS_MAX, Subscription, check_endpoint, check_keys
from clutch.errors import StoreError
from clutch.surfaces.http.auth import BROWSER_PATH, PROOF_PATH, cookie_name, cookie_of
from clutch.surfaces.http.browser import BrowserSession
from clutch.surfaces.http.routes import Ask, Body, Query, Reply, route
from clutch.transactions import outbox, push

FORGET_S = 2.0  #: how long signing a device out waits for the database


class CodeBody(Body):
    phone: Annotated[bool, Field(description="For a phone: the code and the session last longer.")] = False


@route("POST", "/v1/browser/code", Scope.READ, answer=report_objects.Code, status=201)
async def code(ask: Ask[CodeBody]) -> Response:
    """A code that lets a browser in, once and soon, with the scopes of this token. A browser session gets none."""
    if ask.device is not None:  # a device that was signed out would come back with a code that it has kept
        raise Problem(
            "forbidden",
            "a browser session cannot make sign-in codes; run `clutch open` in a terminal",
            rule="device",
        )
    rules, is_phone = ask.app.gateway.services.policy.serving, ask.body.phone
    made = ask.app.browsers.code(ask.token, is_phone=is_phone)
    said = {"code": made, "expiresInSeconds": rules.phone_code_s if is_phone else rules.code_s}
    return JSONResponse(said, 201)  # not a `Reply`: an `Idempotency-Key` would write it to the database


@route("POST", BROWSER_PATH, Scope.READ, answer=report_objects.LetIn)
async def let_in(ask: Ask) -> Response:
    """Change the code in `Authorization: Code …` for a cookie."""
    if "authorization" not in ask.headers:  # a cookie opened this, and a cookie is no way to another one
        raise Problem(
            "invalid_input",
            "Authorization: must be given: `Code …` with a one-time code, or `Bearer …` with the token",
            field="Authorization",
            remedy="clutch open",
        )
    browsers = ask.app.browsers
    kind, _, given = ask.headers["authorization"].partition(" ")
    used = given.strip() if kind.lower() == "code" else None
    value, key = browsers.opened(ask.token, used, ask.headers.get("user-agent", ""))
    lasts_s = round(browsers.lasts_s(value))
    said = JSONResponse({"status": "open", "expiresInSeconds": lasts_s, "pageKey": key})
    is_tls = ask.headers.get("origin", "").startswith("https:")  # a proxy in front
    name = cookie_name(ask.headers)
    said.set_cookie(name, value, max_age=lasts_s, httponly=True, samesite="strict", secure=is_tls)
    return said


class ProofQuery(Query):
    nonce: Annotated[str, Field(min_length=16, max_length=64)]


@route("GET", PROOF_PATH, Scope.READ)
async def proof(ask: Ask[ActionBody, ProofQuery]) -> Reply[report_objects.GatewayProof]:
    """Prove to a page with a cookie that this is the gateway it signed in to. Empty proof: no session at this port."""
    browsers = ask.app.browsers
    return Reply({"run": browsers.run, "proof": browsers.proof(cookie_of(ask.headers), ask.query.nonce)})


# --------------------------------------------------------------------------------------------------
# The list. A caller sees and signs out what its own token has signed in; with the scope `admin`, everything.


@route("GET", "/v1/devices")
async def listed(ask: Ask) -> Reply[report_objects.Devices]:
    """The browsers and phones that are signed in, the latest seen first, and where a phone can reach the gateway."""
    reach, notified = ask.app.reach, await ask.app.read(push.subscribed)
    return Reply(
        {
            "devices": [_device(ask, one, notified) for one in _own(ask)],
            "reach": {"hosts": list(reach.hosts), "addresses": list(reach.addresses), "port": reach.port},
        }
    )


@route("POST", "/v1/devices/{id}/revoke", Scope.READ)
async def revoke(ask: Ask) -> Reply[report_objects.Revoked]:
    """Sign a device out. Its open page and its event stream end at once."""
    device = ask.path["id"]
    if not any(one.id == device for one in _own(ask)):
        raise Problem("not_found", f"no device {device[:64]!r} is signed in", remedy="clutch devices")
    # Here, not only when `Tokens.watch` looks: a gateway that dies before that would notify it again. First, because
    # `watch` ends the request of a device that has signed itself out. Without a database it is signed out all the same.
    with suppress(StoreError, TimeoutError):
        async with asyncio.timeout(FORGET_S):
            await ask.app.write(push.forget, [device])
    ask.app.browsers.revoke(device)
    return Reply({"status": "revoked", "id": device})


def _own(ask: Ask[Any, Any]) -> list[BrowserSession]:
    tokens = ask.app.tokens() if Scope.ADMIN in ask.caller.scopes else [ask.token]
    return ask.app.browsers.devices(tokens)


def _device(
    ask: Ask[Any, Any], one: BrowserSession, notified: Collection[str]
) -> report_objects.DeviceObject:
    return {
        "id": one.id,
        "name": one.name,
        "hasPush": one.id in notified,
        "isPhone": one.is_phone,
        "isThis": one.id == ask.device,
        "pairedAt": views.moment(one.paired_at),
        "seenAt": views.moment(one.seen_at),
        "expiresAt": views.moment(one.until),
    }


# --------------------------------------------------------------------------------------------------
# Notifications (Web Push) of the device that asks. A subscription ends with the session of its device.


class PushBody(Body):
    """As the browser's `PushSubscription` says it."""

    endpoint: Annotated[str, Field(max_length=ENDPOINT_CHARS_MAX)]
    p256dh: Annotated[str, Field(max_length=128)]
    auth: Annotated[str, Field(max_length=64)]


@route("POST", "/v1/devices/push/key", Scope.WRITE)
async def push_key(ask: Ask) -> Reply[report_objects.PushKeyObject]:
    """The public key that a browser subscribes with. It is made when the first device asks."""
    services = ask.app.gateway.services
    found = await ask.app.read(push.key)
    if found is None:
        if services.new_push_key is None:
            raise Problem("unavailable", "this gateway sends no notifications")
        found = await ask.app.write(push.keep_key, await asyncio.to_thread(services.new_push_key))
    return Reply({"publicKey": found.public})


@route("POST", "/v1/devices/push", Scope.WRITE)
async def push_on(ask: Ask[PushBody]) -> Reply[report_objects.PushState]:
    """Notify this device when a task needs a decision and when all tasks of a conversation are finished, in generic
    words."""
    one = Subscription(ask.body.endpoint, ask.body.p256dh, ask.body.auth)
    check_endpoint(one.endpoint, ask.app.gateway.services.policy.serving.push_hosts)
    check_keys(one.p256dh, one.auth)
    mine = _this(ask)
    await ask.app.write(push.subscribe, mine.id, one, mine.until)
    return Reply({"status": "on"})


@route("DELETE", "/v1/devices/push", Scope.WRITE)
async def push_off(ask: Ask) -> Reply[report_objects.PushState]:
    """Send this device no more notifications."""
    await ask.app.write(push.forget, [_this(ask).id])
    return Reply({"status": "off"})


@route("POST", "/v1/devices/push/test", Scope.WRITE)
async def push_test(ask: Ask) -> Reply[report_objects.PushState]:
    """Send this device a notification that says that notifications work."""
    mine = _this(ask)
    if await ask.app.read(push.find, mine.id) is None:
        raise Problem("not_found", "this device has no notifications turned on")
    await ask.app.write(outbox.push_test, mine.id, ask.key or uuid4().hex)
    return Reply({"status": "queued"})


def _this(ask: Ask[Any, Any]) -> BrowserSession:
    found = next((one for one in ask.app.browsers.devices([ask.token]) if one.id == ask.device), None)
    if found is None:
        raise Problem(
            "forbidden", "turn notifications on in the dashboard of a signed-in browser", rule="device"
        )
    return found


ENTRIES = (code, let_in, proof, listed, revoke, push_key, push_on, push_off, push_test)
