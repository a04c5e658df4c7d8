"""Who may come in at all, decided from the head of a request before anything else of it is read.

In this order: the host it believes to talk to (a page whose name was rebound to loopback does not know ours),
no change of protocol, no foreign page (`Origin`, `Sec-Fetch-Site`), no secret in the address, the token (not for
the files of our own page), and how fast it asks. Which scope a path needs is the route's affair. A stranger gets one
answer per connection. Nothing here logs: an address may hold what nobody should read.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from clutch.core.authority import OperatorCaller
from clutch.gateway.leaving import Visits
from clutch.surfaces.address import LOOPBACK
from clutch.surfaces.http.pages import page
from clutch.surfaces.http.tokens import Tokens
from clutch.surfaces.problems import Problem

CALLER = "clutch.caller"  #: in the scope: who asks, as the server knows it
TOKEN = "clutch.token"  #: ... and by which token  # noqa: S105
BROWSER_PATH = "/v1/browser/session"  #: where a one-time code is changed for a cookie, and nowhere else
OWN_PAGE = "x-clutch-page"  #: a header that no form and no link can send
FAILURES_MAX, FAILURES_WITHIN_S = 10, 60.0
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9.-]+)(?::\d{1,5})?", re.ASCII)
_SECRETS_IN_ADDRESS = frozenset({"token", "access_token", "authorization", "api_key", "apikey"})


def cookie_name(headers: Mapping[str, str]) -> str:
    """A browser keeps cookies by host, whatever the port: two gateways here must not take each other's away."""
    return f"clutch_{headers['host'].rpartition(':')[2]}"


class Guard:
    """`tokens` says who holds which token, each time it is asked. `names`: what a request may call this gateway."""

    def __init__(self, app: ASGIApp, tokens: Tokens, visits: Visits, names: frozenset[str]) -> None:
        self._app, self._tokens, self._visits, self._names = app, tokens, visits, names
        self._failures: deque[float] = deque(maxlen=FAILURES_MAX)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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

    async def _until_shown_out(self, token: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Whoever's token was changed meanwhile hears no more; what it has begun to hear is ended in form."""
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if token in self._tokens.callers():
                raise
            with suppress(RuntimeError):  # nothing was said yet
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _caller(self, scope: Scope, headers: Headers) -> tuple[str, OperatorCaller]:
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
            return Problem("rate_limited", "too many wrong tokens; wait a little", retry_after_s=wait_s)
        self._failures.append(now)
        return Problem(
            "unauthorized",
            "this gateway wants its token",
            remedy="send `Authorization: Bearer …` with what stands in the file `token` of the state directory",
        )


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


def _check_own_page(scope: Scope, headers: Headers) -> None:
    """A browser sends its cookie along whoever asks; only our own page can say these."""
    # Whose page it is, `_check_page` knows.
    is_own = headers.get("sec-fetch-site") == "same-origin" or "origin" in headers
    is_asked = scope["method"] == "GET" or OWN_PAGE in headers
    if not (is_own and is_asked):
        raise Problem("forbidden", f"a cookie opens this for our own page only ({OWN_PAGE})", rule="cookie")


def _check_address(scope: Scope) -> None:
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
    if problem.code == "unauthorized":
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(in_words(problem), problem.status, headers)
