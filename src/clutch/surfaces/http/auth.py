"""Authentication, from the headers of a request before its body is read.

Checked in this order: the host name (a page whose name was rebound to loopback does not know ours), no change of
protocol, no foreign page (`Origin`, `Sec-Fetch-Site`), no secret in the address, the token (not for the files of our
own page), the request rate. The route checks the scope. A refused client gets one answer per connection. Nothing here
logs: an address may contain a secret."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from clutch.api.gateway import Visits
from clutch.api.problems import Problem
from clutch.core.authority import OperatorCaller, Scope
from clutch.core.policy import Serving
from clutch.core.rate_limit import Bucket
from clutch.errors import StoreError, UnsafeStateDirectory
from clutch.surfaces.discovery import LOOPBACK, TOKEN_FILE, read_private
from clutch.surfaces.http.browser import SESSIONS_FILE, Browsers, page

# --------------------------------------------------------------------------------------------------
# Which token gives which scopes: `token` all of them, `token.read`, `token.read+write` … what their names say.
#
# The files are looked at for each request, so a token that was changed is refused at once; `Tokens.watch` ends the
# requests that were begun with it. A browser has no token but a cookie, which it got for a one-time code.

OWNER_ACTOR = "person"  #: in timelines: a caller with the owner's own token
LOOK_S = 0.5  #: a stream that was begun with a token that is gone ends within a second


def callers(home: Path) -> Mapping[str, OperatorCaller]:
    """Return the caller of each token. A token that cannot be read, or that other users could read, is left out."""
    found: dict[str, OperatorCaller] = {}
    for name in os.listdir(home):
        scopes = _scopes_named(name)
        if scopes is None:
            continue
        with suppress(OSError, UnsafeStateDirectory):
            if token := read_private(home / name):
                found[token] = OperatorCaller(scopes, OWNER_ACTOR if name == TOKEN_FILE else name)
    return found


def _scopes_named(name: str) -> frozenset[Scope] | None:
    """Return the scopes in a file name; None for other files and for unknown scopes."""
    if name == TOKEN_FILE:
        return frozenset({Scope.ADMIN})
    kind, _, ending = name.partition(".")
    scopes = set(ending.split("+"))
    if kind != TOKEN_FILE or not scopes <= set(Scope):
        return None
    return frozenset(map(Scope, scopes))


class Tokens:
    """The tokens of one state directory, and the requests under way with each."""

    def __init__(self, home: Path, rules: Serving, port: int) -> None:
        self._home, self._rules = home, rules
        #: Requests under way: the token of each, and the device it came from, if it was one.
        self._inside: dict[asyncio.Task[object], tuple[str, str | None]] = {}
        self._buckets: dict[str, Bucket] = {}
        self._files: list[str] = []
        self._looked: list[tuple[int, int]] | None = None
        self._callers: Mapping[str, OperatorCaller] = {}
        self.browsers = Browsers(rules, port, home / SESSIONS_FILE)
        self.browsers.on_end = self._end_device
        self._ended: set[str] = set()  #: devices that are signed out since the last look
        self._forgotten: frozenset[str] = frozenset()  #: ... and those that the store knows to be so

    def callers(self) -> Mapping[str, OperatorCaller]:
        """Return the callers; read again when the directory or one of its tokens has changed."""
        looks = _looks(self._home, self._files)
        if looks != self._looked:
            self._files = [name for name in os.listdir(self._home) if _scopes_named(name) is not None]
            self._looked = _looks(self._home, self._files)
            self._callers = callers(self._home)
        return self._callers

    def wait_s(self, token: str) -> float:
        """Count a request. Return 0 if it may be made now, else how long the caller has to wait."""
        now, rate, burst = time.monotonic(), self._rules.requests_per_s, self._rules.requests_burst
        bucket = self._buckets.get(token, Bucket(burst, now))
        wait_s = bucket.wait_s(now, rate, burst) if rate else 0.0
        self._buckets[token] = bucket.taken(now, rate, burst)
        return wait_s

    @contextmanager
    def inside(self, token: str, device: str | None) -> Iterator[None]:
        task = asyncio.current_task()
        assert task is not None, "a request is answered in a task"
        self._inside[task] = token, device
        try:
            yield
        finally:
            self._inside.pop(task, None)

    def is_valid(self, token: str, device: str | None) -> bool:
        """Return whether requests with this token, from this device, are answered."""
        return token in self.callers() and (device is None or self.browsers.is_device(device))

    def _end_device(self, device: str) -> None:
        """End the requests of a device that was signed out; the one that asked for it is answered."""
        self._ended.add(device)
        for task, (_, mine) in list(self._inside.items()):
            if mine == device and task is not asyncio.current_task():
                task.cancel()

    async def watch(self, forget: Callable[[Collection[str]], Awaitable[None]]) -> None:
        """End the requests of tokens that are not valid any more, and the notifications of devices that are signed out
        (`forget`)."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self._forget_ended(forget)
            for task, (token, device) in list(self._inside.items()):
                if not self.is_valid(token, device):
                    self._buckets.pop(token, None)
                    self._inside.pop(task, None)
                    task.cancel()

    async def _forget_ended(self, forget: Callable[[Collection[str]], Awaitable[None]]) -> None:
        ended = self.browsers.signed_out(self.callers()) | self._ended
        if ended <= self._forgotten:
            return
        with suppress(StoreError):  # the next look tries again
            await forget(ended - self._forgotten)
            self._forgotten |= ended
            self._ended -= ended


def _looks(home: Path, names: Sequence[str]) -> list[tuple[int, int]] | None:
    """Return the identity and last change of the files; None: one of them is gone."""
    try:
        found = [os.stat(path, follow_symlinks=False) for path in (home, *(home / name for name in names))]
    except FileNotFoundError:
        return None
    return [(one.st_ino, one.st_ctime_ns) for one in found]


CALLER = "clutch.caller"  #: in the scope: who asks, as the server knows it
TOKEN = "clutch.token"  #: ... and by which token  # noqa: S105
DEVICE = "clutch.device"  #: ... and the id of the browser that is signed in; None for other clients
BROWSER_PATH = "/v1/browser/session"  #: where a one-time code is changed for a cookie, and nowhere else
PROOF_PATH = (
    "/v1/browser/proof"  #: where a page asks whether this is its gateway, before it sends anything else
)
OWN_PAGE = (
    "x-clutch-page"  #: a header that no form and no link can send; its value opens this gateway process only
)
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


def cookie_of(headers: Mapping[str, str]) -> str:
    return cookie_parser(headers.get("cookie", "")).get(cookie_name(headers), "")


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
            # A target may hold a slash; it differs from ours as long as nothing is decoded.
            scope["path"] = scope["raw_path"].decode("ascii")
            if (shown := page(scope["method"], scope["path"])) is not None:
                return await shown(scope, receive, send)
            token, scope[CALLER] = self._caller(scope, headers)
            scope[TOKEN] = token
            scope[DEVICE] = (
                None if "authorization" in headers else self._tokens.browsers.visited(cookie_of(headers))
            )
            self._check_pace(token)
        except Problem as problem:
            await refusal(problem)(scope, receive, send)
            return
        with self._visits.one(), self._tokens.inside(token, scope[DEVICE]):
            await self._until_shown_out(token, scope, receive, send)

    async def _until_shown_out(self, token: str, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Answer the request. When its token or its device is not valid any more, a response that has begun is ended in
        form."""
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if self._tokens.is_valid(token, scope[DEVICE]):
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
            # Not with an empty header: without the header, and only then, a device asks.
            case "" if "authorization" not in headers and (cookie := cookie_of(headers)):
                _check_own_page(headers)
                browsers = self._tokens.browsers
                is_page = scope["path"] == PROOF_PATH or browsers.is_page(cookie, headers[OWN_PAGE])
                claimed = browsers.token_of(cookie, self._tokens.callers()) or "" if is_page else ""
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
        """Return the error for a wrong token. Only wrong tokens are limited: guessing does not lock out the user."""
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


def _check_own_page(headers: Headers) -> None:
    """Check the headers that only our own page can send: a browser sends its cookie with every page's request."""
    # Whose page it is, `_check_page` knows.
    is_own = headers.get("sec-fetch-site") == "same-origin" or "origin" in headers
    if not (is_own and OWN_PAGE in headers):
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
    problem: Problem, error_json: Callable[[Problem], Any] = Problem.to_json, *, closes: bool = True
) -> JSONResponse:
    headers = {"connection": "close"} if closes else {}
    if problem.retry_after_s is not None:
        headers["retry-after"] = str(max(1, round(problem.retry_after_s)))
    if problem.code == "turn_failed":
        headers["x-should-retry"] = "false"  # OpenAI's clients would say the message again
    if problem.code == "unauthorized":
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(error_json(problem), problem.status, headers)
