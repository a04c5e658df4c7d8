"""Who may come in at all, decided from the head of a request before anything else of it is read.

In this order: the host it believes to talk to (a page whose name was rebound to loopback does not know ours),
no change of protocol, no foreign page (`Origin`, `Sec-Fetch-Site`), no secret in the address, the token, and
how much it wants to send. Which scope a path needs is the route's affair. A stranger gets one answer per
connection. Nothing here logs: an address may hold what nobody should read.
"""

from __future__ import annotations

import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from urllib.parse import parse_qsl

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from clutch.core.authority import OperatorCaller
from clutch.gateway.leaving import Visits
from clutch.surfaces.address import LOOPBACK
from clutch.surfaces.problems import Problem

CALLER = "clutch.caller"  #: in the scope: who asks, as the server knows it
FAILURES_MAX, FAILURES_WITHIN_S = 10, 60.0
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9.-]+)(?::\d{1,5})?", re.ASCII)
_SECRETS_IN_ADDRESS = frozenset({"token", "access_token", "authorization", "api_key", "apikey"})

Callers = Callable[[], Mapping[str, OperatorCaller]]


class Guard:
    """`callers` says who holds which token, each time it is asked."""

    def __init__(self, app: ASGIApp, callers: Callers, visits: Visits) -> None:
        self._app, self._callers, self._visits = app, callers, visits
        self._failures: deque[float] = deque(maxlen=FAILURES_MAX)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "there is no lifespan and no WebSocket here"
        try:
            headers = Headers(scope=scope)
            _check_host(headers)
            _check_page(headers)
            _check_address(scope)
            scope[CALLER] = self._caller(headers)
            # A target may hold a slash; it is told from ours as long as nothing is decoded.
            scope["path"] = scope["raw_path"].decode("ascii")
        except Problem as problem:
            await refusal(problem)(scope, receive, send)
            return
        with self._visits.one():
            await self._app(scope, receive, send)

    def _caller(self, headers: Headers) -> OperatorCaller:
        kind, _, given = headers.get("authorization", "").partition(" ")
        found: OperatorCaller | None = None
        for token, caller in self._callers().items():
            if secrets.compare_digest(token.encode(), given.strip().encode()):
                found = caller  # no break: how long it takes must not tell which one it was
        if found is None or kind.lower() != "bearer":
            raise self._failed()
        return found

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


def _check_host(headers: Headers) -> None:
    named = _HOST.fullmatch(headers.get("host", "").lower())
    if named is None or named[1].strip("[]") not in LOOPBACK:
        raise Problem("wrong_host", "this gateway answers to 127.0.0.1 and localhost only")


def _check_page(headers: Headers) -> None:
    if "upgrade" in headers:
        raise Problem("invalid_input", "Upgrade: there is nothing here but HTTP", field="Upgrade")
    origin = headers.get("origin")
    own = headers.get("host", "").lower()
    if origin is not None and origin.lower() != f"http://{own}":
        raise Problem("forbidden", "a page from elsewhere may not ask this gateway", rule="origin")
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise Problem("forbidden", "a page from elsewhere may not ask this gateway", rule="sec-fetch-site")


def _check_address(scope: Scope) -> None:
    for name, _ in parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True):
        if name.lower() in _SECRETS_IN_ADDRESS:
            raise Problem(
                "invalid_input",
                "a secret does not belong into an address; use Authorization",
                field=name.lower(),
            )


def refusal(problem: Problem, *, closes: bool = True) -> JSONResponse:
    headers = {"connection": "close"} if closes else {}
    if problem.retry_after_s is not None:
        headers["retry-after"] = str(max(1, round(problem.retry_after_s)))
    if problem.code == "unauthorized":
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(problem.to_json(), problem.status, headers)
