"""The HTTP paths of devices: signing a browser or a phone in, the list of those that are, and signing one out.

A client with a token gets a one-time code, which the browser exchanges for a cookie. The page that is opened with the
code sends it as `Authorization: Code …`; no token is ever in an address, in a history or within reach of a script. A
cookie is accepted from our own page only: see `_check_own_page` in `auth.py`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from starlette.responses import JSONResponse, Response

from clutch.api import devices, views
from clutch.api.actions import ActionBody
from clutch.api.problems import Problem
from clutch.core.authority import Scope
from clutch.surfaces.http.auth import BROWSER_PATH, PROOF_PATH, cookie_name, cookie_of
from clutch.surfaces.http.browser import BrowserSession
from clutch.surfaces.http.routes import Ask, Body, Query, Reply, route


class CodeBody(Body):
    phone: Annotated[bool, Field(description="For a phone: the code and the session last longer.")] = False


@route("POST", "/v1/browser/code", Scope.READ, answer=devices.Code, status=201)
async def code(ask: Ask[CodeBody]) -> Response:
    """A code that lets a browser in, once and soon, with the scopes of this token."""
    rules, is_phone = ask.app.gateway.services.policy.serving, ask.body.phone
    made = ask.app.browsers.code(ask.token, is_phone=is_phone)
    said = {"code": made, "expiresInSeconds": rules.phone_code_s if is_phone else rules.code_s}
    return JSONResponse(said, 201)  # not a `Reply`: an `Idempotency-Key` would write it to the database


@route("POST", BROWSER_PATH, Scope.READ, answer=devices.LetIn)
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
async def proof(ask: Ask[ActionBody, ProofQuery]) -> Reply[devices.GatewayProof]:
    """Prove to a page with a cookie that this is the gateway it signed in to. Empty proof: no session at this port."""
    browsers = ask.app.browsers
    return Reply({"run": browsers.run, "proof": browsers.proof(cookie_of(ask.headers), ask.query.nonce)})


# --------------------------------------------------------------------------------------------------
# The list. A caller sees and signs out what its own token has signed in; with the scope `admin`, everything.


@route("GET", "/v1/devices")
async def listed(ask: Ask) -> Reply[devices.Devices]:
    """The browsers and phones that are signed in, the latest seen first, and where a phone can reach the gateway."""
    reach = ask.app.reach
    return Reply(
        {
            "devices": [_device(ask, one) for one in _own(ask)],
            "reach": {"hosts": list(reach.hosts), "addresses": list(reach.addresses), "port": reach.port},
        }
    )


@route("POST", "/v1/devices/{id}/revoke", Scope.READ)
async def revoke(ask: Ask) -> Reply[devices.Revoked]:
    """Sign a device out. Its open page and its event stream end at once."""
    device = ask.path["id"]
    if not any(one.id == device for one in _own(ask)):
        raise Problem("not_found", f"no device {device[:64]!r} is signed in", remedy="clutch devices")
    ask.app.browsers.revoke(device)
    return Reply({"status": "revoked", "id": device})


def _own(ask: Ask[Any, Any]) -> list[BrowserSession]:
    tokens = ask.app.tokens() if Scope.ADMIN in ask.caller.scopes else [ask.token]
    return ask.app.browsers.devices(tokens)


def _device(ask: Ask[Any, Any], one: BrowserSession) -> devices.DeviceObject:
    return {
        "id": one.id,
        "name": one.name,
        "isPhone": one.is_phone,
        "isThis": one.id == ask.device,
        "pairedAt": views.moment(one.paired_at),
        "seenAt": views.moment(one.seen_at),
        "expiresAt": views.moment(one.until),
    }


ENTRIES = (code, let_in, proof, listed, revoke)
