"""Which token opens what: `token` everything, `token.read`, `token.read+write` … what their names say.

Files are looked at for each request, so one that was changed opens nothing any more; whoever is inside by it is shown
out by `watch`. A browser has no token: it has a cookie, got for a one-time code, that stands for one.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from clutch.core.authority import OperatorCaller, Scope
from clutch.core.policy import Serving
from clutch.core.rate_limit import Bucket
from clutch.errors import UnsafeStateDirectory
from clutch.surfaces.discovery import TOKEN_FILE, read_token

OWNER_ACTOR = "person"  #: in timelines: whoever holds the owner's own token
LOOK_S = 0.5  #: a stream that was begun with a token that is gone ends within a second
CODES_MAX, BROWSERS_MAX = 32, 100


def callers(home: Path) -> Mapping[str, OperatorCaller]:
    """One that cannot be read opens nothing, nor does one that others could read: `read_token` says so to its user."""
    found: dict[str, OperatorCaller] = {}
    for name in os.listdir(home):
        scopes = _scopes_named(name)
        if scopes is None:
            continue
        with suppress(OSError, UnsafeStateDirectory):
            if token := read_token(home / name):
                found[token] = OperatorCaller(scopes, OWNER_ACTOR if name == TOKEN_FILE else name)
    return found


def _scopes_named(name: str) -> frozenset[Scope] | None:
    """None: not the name of a token, or of one with a scope that does not exist."""
    if name == TOKEN_FILE:
        return frozenset({Scope.ADMIN})
    kind, _, ending = name.partition(".")
    scopes = set(ending.split("+"))
    if kind != TOKEN_FILE or not scopes <= set(Scope):
        return None
    return frozenset(map(Scope, scopes))


class Tokens:
    """Those of one state directory, and who is inside by which."""

    def __init__(self, home: Path, rules: Serving) -> None:
        self._home, self._rules = home, rules
        self._inside: dict[str, set[asyncio.Task[object]]] = {}
        self._buckets: dict[str, Bucket] = {}
        self._files: list[str] = []
        self._looked: list[tuple[int, int]] | None = None
        self._callers: Mapping[str, OperatorCaller] = {}
        self.browsers = Browsers(rules)

    def callers(self) -> Mapping[str, OperatorCaller]:
        """Read again when the directory or one of its tokens is not what it was."""
        looks = _looks(self._home, self._files)
        if looks != self._looked:
            self._files = [name for name in os.listdir(self._home) if _scopes_named(name) is not None]
            self._looked = _looks(self._home, self._files)
            self._callers = callers(self._home)
        return self._callers

    def wait_s(self, token: str) -> float:
        """0: it may ask now, and has. Else how long it has to wait."""
        now, rate, burst = time.monotonic(), self._rules.requests_per_s, self._rules.requests_burst
        bucket = self._buckets.get(token, Bucket(burst, now))
        wait_s = bucket.wait_s(now, rate, burst) if rate else 0.0
        self._buckets[token] = bucket.taken(now, rate, burst)
        return wait_s

    @contextmanager
    def inside(self, token: str) -> Iterator[None]:
        task = asyncio.current_task()
        assert task is not None, "a request is answered in a task"
        others = self._inside.setdefault(token, set())
        others.add(task)
        try:
            yield
        finally:
            others.discard(task)

    async def watch(self) -> None:
        """Shows out whoever came in with what opens nothing any more."""
        while True:
            await asyncio.sleep(LOOK_S)
            inside = [token for token, tasks in self._inside.items() if tasks]
            for token in set(inside).difference(self.callers() if inside else ()):
                self._buckets.pop(token, None)
                for task in self._inside.pop(token):
                    task.cancel()


def _looks(home: Path, names: Sequence[str]) -> list[tuple[int, int]] | None:
    """Which files they are and when they or their modes were last changed. None: one of them is gone."""
    try:
        found = [os.stat(path, follow_symlinks=False) for path in (home, *(home / name for name in names))]
    except FileNotFoundError:
        return None
    return [(one.st_ino, one.st_ctime_ns) for one in found]


class Browsers:
    """Codes that are used once and soon, and the cookies they were changed for. All of it is forgotten at the end."""

    def __init__(self, rules: Serving, now: Callable[[], float] = time.monotonic) -> None:
        self._rules, self._now = rules, now
        self._codes: dict[str, tuple[str, float]] = {}
        self._cookies: dict[str, tuple[str, float]] = {}
        self._used: dict[str, str] = {}  #: codes, and what they were changed for

    def code(self, token: str) -> str:
        return _kept(self._codes, token, self._now() + self._rules.code_s, CODES_MAX)

    def redeemed(self, code: str) -> str | None:
        """The token it stands for, once. Whoever comes second shows out the first: one of the two was not meant."""
        self._cookies.pop(self._used.pop(code, ""), None)
        return _valid(self._codes.pop(code, None), self._now())

    def cookie(self, token: str, code: str | None = None) -> str:
        made = _kept(self._cookies, token, self._now() + self._rules.browser_s, BROWSERS_MAX)
        if code is not None:
            _make_room(self._used, CODES_MAX)
            self._used[code] = made
        return made

    def token_of(self, cookie: str) -> str | None:
        return _valid(self._cookies.get(cookie), self._now())


def _kept(known: dict[str, tuple[str, float]], token: str, until: float, most: int) -> str:
    """Under a name of 256 bits that nobody guesses."""
    _make_room(known, most)
    name = secrets.token_urlsafe(32)
    known[name] = (token, until)
    return name


def _make_room(known: dict[str, Any], most: int) -> None:
    """The oldest goes when there are too many."""
    while len(known) >= most:
        del known[next(iter(known))]


def _valid(found: tuple[str, float] | None, now: float) -> str | None:
    return None if found is None or found[1] <= now else found[0]
