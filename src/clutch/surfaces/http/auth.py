"""Who may come in at all, decided from the head of a request before anything else of it is read.

In this order: the host it believes to talk to (a page whose name was rebound to loopback does not know ours),
no change of protocol, no foreign page (`Origin`, `Sec-Fetch-Site`), no secret in the address, the token (not for
the files of our own page), and how fast it asks. Which scope a path needs is the route's affair. A stranger gets one
answer per connection. Nothing here logs: an address may hold what nobody should read."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import parse_qsl

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from clutch.api import objects
from clutch.api.problems import Problem
from clutch.api.shutdown import Visits
from clutch.core.authority import OperatorCaller, Scope
from clutch.surfaces.discovery import LOOPBACK
from clutch.surfaces.http.routes import PRIVATE, Ask, Body, HttpRoute, Query
from clutch.surfaces.http.tokens import Tokens

# --------------------------------------------------------------------------------------------------
# The page for a browser: a few files that hold nothing of anybody's and are therefore shown without a token.
#
# What stands in them comes from the API, which lets the page in by its cookie. Its policy runs our own script and
# loads nothing from elsewhere, whatever a model may have written into a label.

FILES = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
HEADERS = {
    **PRIVATE,
    "connection": "close",  # as for every stranger
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}


def page(method: str, path: str) -> Response | None:
    """None: this is none of them."""
    if method != "GET" or path not in FILES:
        return None
    name, media = FILES[path]
    return Response(_content(name), media_type=media, headers=HEADERS)


@cache
def _content(name: str) -> bytes:
    return resources.files("clutch.surfaces.web").joinpath(name).read_bytes()


CALLER = "clutch.caller"  #: in the scope: who asks, as the server knows it
TOKEN = "clutch.token"  #: ... and by which token  # noqa: S105
BROWSER_PATH = "/v1/browser/session"  #: where a one-time code is changed for a cookie, and nowhere else
OWN_PAGE = "x-clutch-page"  #: a header that no form and no link can send
SIGN_IN = (
    "send `Authorization: Bearer …` with what stands in the file `token` of the state directory;"
    " in a browser, run `clutch open`"
)
FAILURES_MAX, FAILURES_WITHIN_S = 10, 60.0
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9.-]+)(?::\d{1,5})?", re.ASCII)
_SECRETS_IN_ADDRESS = frozenset({"token", "access_token", "authorization", "api_key", "apikey"})


def cookie_name(headers: Mapping[str, str]) -> str:
    """A browser keeps cookies by host, whatever the port: two gateways here must not take each other's away."""
    return f"clutch_{headers['host'].rpartition(':')[2]}"


class AuthMiddleware:
    """`tokens` says who holds which token, each time it is asked. `names`: what a request may call this gateway."""

    def __init__(self, app: ASGIApp, tokens: Tokens, visits: Visits, names: frozenset[str]) -> None:
        self._app, self._tokens, self._visits, self._names = app, tokens, visits, names
        self._failures: deque[float] = deque(maxlen=FAILURES_MAX)

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "there is no lifespan and no WebSocket here"
        try:
            headers = Headers(scope=scope)
            _check_host(headers, self._names)
            _check_page(headers)
            _check_address(scope)
            # A target may hold a slash; it is told from ours as long as nothing is decoded.
            scope["path"] = scope["raw_path"].decode("ascii")
            if (shown := page(scope["method"], scope["path"])) is not None:
                return await shown(scope, receive, send)
            token, scope[CALLER] = self._caller(scope, headers)
            scope[TOKEN] = token
            self._check_pace(token)
        except Problem as problem:
            await refusal(problem)(scope, receive, send)
            return
        with self._visits.one(), self._tokens.inside(token):
            await self._until_shown_out(token, scope, receive, send)

    async def _until_shown_out(self, token: str, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Whoever's token was changed meanwhile hears no more; what it has begun to hear is ended in form."""
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if token in self._tokens.callers():
                raise
            with suppress(RuntimeError):  # nothing was said yet
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _caller(self, scope: AsgiScope, headers: Headers) -> tuple[str, OperatorCaller]:
        kind, _, given = headers.get("authorization", "").partition(" ")
        match kind.lower():
            case "bearer":
                claimed = given.strip()
            case "code" if scope["path"] == BROWSER_PATH:
                claimed = self._tokens.browsers.redeemed(given.strip()) or ""
            case "" if cookie := cookie_parser(headers.get("cookie", "")).get(cookie_name(headers)):
                _check_own_page(scope, headers)
                claimed = self._tokens.browsers.token_of(cookie) or ""
            case _:
                claimed = ""
        found: tuple[str, OperatorCaller] | None = None
        for token, caller in self._tokens.callers().items():
            if secrets.compare_digest(token.encode(), claimed.encode()):
                found = token, caller  # no break: how long it takes must not tell which one it was
        if found is None:
            raise self._failed()
        return found

    def _check_pace(self, token: str) -> None:
        if wait_s := self._tokens.wait_s(token):
            raise Problem("rate_limited", "too many requests; wait a little", retry_after_s=round(wait_s, 3))

    def _failed(self) -> Problem:
        """Whoever has the right token is never kept out by others who guess."""
        now = time.monotonic()
        while self._failures and self._failures[0] < now - FAILURES_WITHIN_S:
            self._failures.popleft()
        if len(self._failures) == FAILURES_MAX:
            wait_s = round(self._failures[0] + FAILURES_WITHIN_S - now, 1)
            wrong = "too many requests with a wrong token"
            return Problem("rate_limited", wrong, remedy=SIGN_IN, retry_after_s=wait_s)
        self._failures.append(now)
        return Problem("unauthorized", "this gateway wants its token", remedy=SIGN_IN)


def _check_host(headers: Headers, names: frozenset[str]) -> None:
    named = _HOST.fullmatch(headers.get("host", "").lower())
    if named is None or named[1].strip("[]") not in names:
        raise Problem(
            "wrong_host", "this gateway answers to 127.0.0.1, localhost and what gateway.allowedHosts names"
        )


def _check_page(headers: Headers) -> None:
    if "upgrade" in headers:
        raise Problem("invalid_input", "Upgrade: there is nothing here but HTTP", field="Upgrade")
    origin = headers.get("origin")
    if origin is not None and origin.lower() not in _own_origins(headers.get("host", "").lower()):
        raise Problem("forbidden", "a page from elsewhere may not ask this gateway", rule="origin")
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise Problem("forbidden", "a page from elsewhere may not ask this gateway", rule="sec-fetch-site")


def _own_origins(host: str) -> tuple[str, ...]:
    """Under another name than loopback's there may be a proxy that speaks TLS."""
    named = _HOST.fullmatch(host)
    is_here = named is None or named[1].strip("[]") in LOOPBACK
    return (f"http://{host}",) if is_here else (f"http://{host}", f"https://{host}")


def _check_own_page(scope: AsgiScope, headers: Headers) -> None:
    """A browser sends its cookie along whoever asks; only our own page can say these."""
    # Whose page it is, `_check_page` knows.
    is_own = headers.get("sec-fetch-site") == "same-origin" or "origin" in headers
    is_asked = scope["method"] == "GET" or OWN_PAGE in headers
    if not (is_own and is_asked):
        raise Problem("forbidden", f"a cookie opens this for our own page only ({OWN_PAGE})", rule="cookie")


def _check_address(scope: AsgiScope) -> None:
    for name, _ in parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True):
        if name.lower() in _SECRETS_IN_ADDRESS:
            raise Problem(
                "invalid_input",
                "a secret does not belong into an address; use Authorization",
                field=name.lower(),
            )


def refusal(
    problem: Problem, in_words: Callable[[Problem], Any] = Problem.to_json, *, closes: bool = True
) -> JSONResponse:
    headers = {"connection": "close"} if closes else {}
    if problem.retry_after_s is not None:
        headers["retry-after"] = str(max(1, round(problem.retry_after_s)))
    if problem.code == "turn_failed":
        headers["x-should-retry"] = "false"  # OpenAI's clients would say the message again
    if problem.code == "unauthorized":
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(in_words(problem), problem.status, headers)


# --------------------------------------------------------------------------------------------------
# Letting a browser in: a one-time code, made for whoever has a token, is changed for a cookie that stands for it.
#
# The page that is opened with the code sends it as `Authorization: Code …`; no token is ever in an address, in a
# history or within reach of a script. A cookie is accepted from our own page only: see `_check_own_page`.


async def code(ask: Ask[Body, Query]) -> Response:
    """A code that lets a browser in, once and soon, with the scopes of this token."""
    rules = ask.house.gateway.services.policy.serving
    said = {"code": ask.house.browsers.code(ask.token), "expiresInSeconds": rules.code_s}
    return JSONResponse(said, 201)  # no `Reply`, which an `Idempotency-Key` would write to the database


async def let_in(ask: Ask[Body, Query]) -> Response:
    """Change the code in `Authorization: Code …` for a cookie."""
    if "authorization" not in ask.headers:  # a cookie opened this, and a cookie is no way to another one
        raise Problem(
            "invalid_input",
            "Authorization: must be given: `Code …` with a one-time code, or `Bearer …` with the token",
            field="Authorization",
            remedy="clutch open",
        )
    lasts_s = ask.house.gateway.services.policy.serving.browser_s
    said = JSONResponse({"status": "open", "expiresInSeconds": lasts_s})
    kind, _, given = ask.headers["authorization"].partition(" ")
    value = ask.house.browsers.cookie(ask.token, given.strip() if kind.lower() == "code" else None)
    said.set_cookie(cookie_name(ask.headers), value, max_age=int(lasts_s), httponly=True, samesite="strict")
    return said


ENTRIES = (
    HttpRoute("POST", "/v1/browser/code", Scope.READ, code, answer=objects.Code, status=201),
    HttpRoute("POST", BROWSER_PATH, Scope.READ, let_in, answer=objects.LetIn),
)
