"""Letting a browser in: a one-time code, made for whoever has a token, is changed for a cookie that stands for it.

The page that is opened with the code sends it as `Authorization: Code …`; no token is ever in an address, in a history
or within reach of a script. A cookie opens things for our own page only: see `guard`.
"""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from clutch.core.authority import Scope
from clutch.surfaces.http import answers
from clutch.surfaces.http.bodies import Body, Query
from clutch.surfaces.http.guard import BROWSER_PATH, cookie_name
from clutch.surfaces.http.routes import Ask, Entry


async def code(ask: Ask[Body, Query]) -> Response:
    """A code that lets a browser in, once and soon, with the scopes of this token."""
    rules = ask.house.gateway.kit.policy.serving
    said = {"code": ask.house.browsers.code(ask.token), "expiresInSeconds": rules.code_s}
    return JSONResponse(said, 201)  # no `Reply`, which an `Idempotency-Key` would write to the database


async def let_in(ask: Ask[Body, Query]) -> Response:
    """Change the code in `Authorization: Code …` for a cookie."""
    lasts_s = ask.house.gateway.kit.policy.serving.browser_s
    said = JSONResponse({"status": "open", "expiresInSeconds": lasts_s})
    kind, _, given = ask.headers["authorization"].partition(" ")
    value = ask.house.browsers.cookie(ask.token, given.strip() if kind.lower() == "code" else None)
    said.set_cookie(cookie_name(ask.headers), value, max_age=int(lasts_s), httponly=True, samesite="strict")
    return said


ENTRIES = (
    Entry("POST", "/v1/browser/code", Scope.READ, code, answer=answers.Code, status=201),
    Entry("POST", BROWSER_PATH, Scope.READ, let_in, answer=answers.LetIn),
)
