"""Browsers: the files of the dashboard, one-time codes, and the sessions that the codes were exchanged for.

A session outlives the gateway, so that an open page reconnects by itself after a restart. The state directory keeps
only digests: its file opens nothing for a reader, and a session is valid only as long as the token behind it is.

While the gateway is down another account can listen at its port, and the browser sends the cookie there: it sends
cookies by host, to every port. So the cookie alone opens nothing. The page also has a key, which it does not send. Each
gateway process has a random name, its run. The gateway proves to the page that it knows the session, and the page sends
a MAC of the run, which is worthless to every later process. A session is valid at the port where it was opened: a
gateway at another port neither proves itself to an impostor in between nor takes what the impostor was sent."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from starlette.responses import Response

from clutch.core.devices import device_name
from clutch.core.policy import Serving
from clutch.errors import UnsafeStateDirectory
from clutch.surfaces.discovery import read_private, write_private

#: A browser keeps nothing.
PRIVATE = {"cache-control": "no-store", "referrer-policy": "no-referrer", "x-content-type-options": "nosniff"}
SESSIONS_FILE = "browsers.json"
CODES_MAX, SESSIONS_MAX = 32, 100  #: of one token
SEEN_S = 300.0  #: how old the last visit of a device in the file may be: not every request writes it


class OneTimeCode(NamedTuple):
    """`is_used`: it was sent once. `session`: the digest of the cookie that it was then exchanged for."""

    token: str
    until: float
    is_phone: bool
    is_used: bool = False
    session: str | None = None


class BrowserSession(NamedTuple):
    """A browser that is signed in: a device. `token`, `key`: digests of the token it was opened with and of the key of
    its page. `until`, `paired_at`, `seen_at`: moments of the wall clock. `port`: where it was opened. `id`: its name in
    commands, which opens nothing."""

    token: str
    until: float
    port: int
    key: str
    id: str
    name: str
    is_phone: bool
    paired_at: float
    seen_at: float


class Browsers:
    """`port`: where the gateway listens. `file`: where sessions are kept; None: in memory only."""

    def __init__(
        self, rules: Serving, port: int, file: Path | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self._rules, self._port, self._file, self._now = rules, port, file, now
        self.run = secrets.token_urlsafe(16)
        self._codes: dict[str, OneTimeCode] = {}
        self._sessions = _read(file)
        self._saved_at = now()
        self.on_end: Callable[[str], object] = str  #: ends the requests of a device

    def code(self, token: str, *, is_phone: bool = False) -> str:
        for name in _oldest(self._codes, token, CODES_MAX):
            del self._codes[name]
        made = secrets.token_urlsafe(32)
        lasts_s = self._rules.phone_code_s if is_phone else self._rules.code_s
        self._codes[made] = OneTimeCode(token, self._now() + lasts_s, is_phone)
        return made

    def redeemed(self, code: str) -> str | None:
        """Return the token of a code, once. A second use signs out the first browser: one of the two was not meant."""
        found = self._codes.get(code)
        if found is None:
            return None
        if found.is_used:
            del self._codes[code]
            self._end(found.session)
            return None
        self._codes[code] = found._replace(is_used=True)
        return found.token if found.until > self._now() else None

    def opened(self, token: str, code: str | None = None, user_agent: str = "") -> tuple[str, str]:
        """Open a session and return its cookie and the key of its page, 256 random bits each."""
        made, key, now = secrets.token_urlsafe(32), secrets.token_urlsafe(32), self._now()
        used = None if code is None else self._codes.get(code)
        if code is not None and used is None:
            return made, key  # the code was used a second time meanwhile: this cookie opens nothing
        self._sessions = {name: one for name, one in self._sessions.items() if one.until > now}
        for name in _oldest(self._sessions, _digest(token), SESSIONS_MAX):
            self._end(name)
        is_phone = used is not None and used.is_phone
        until = now + (self._rules.phone_s if is_phone else self._rules.browser_s)
        about = (f"d_{secrets.token_hex(4)}", device_name(user_agent), is_phone, now, now)
        self._sessions[_digest(made)] = BrowserSession(
            _digest(token), until, self._port, _digest(key), *about
        )
        if code is not None and used is not None:
            self._codes[code] = used._replace(session=_digest(made))
        self._save()
        return made, key

    def _session(self, cookie: str) -> BrowserSession | None:
        found = self._sessions.get(_digest(cookie))
        is_valid = found is not None and found.until > self._now() and found.port == self._port
        return found if is_valid else None

    def lasts_s(self, cookie: str) -> float:
        """Return how long a session that was just opened stays valid."""
        found = self._session(cookie)
        return 0.0 if found is None else found.until - self._now()

    def proof(self, cookie: str, nonce: str) -> str:
        """Return what only the gateway of this session can answer."""
        found = self._session(cookie)
        return "" if found is None else _mac(found.key, f"gateway {nonce} {self.run}")

    def is_page(self, cookie: str, sent: str) -> bool:
        """Return whether the page of the session sent this. Without TLS, pages of other hosts have no cryptography in
        their browser: they send the key itself."""
        found = self._session(cookie)
        if found is None:
            return False
        is_mac = secrets.compare_digest(_mac(found.key, f"page {self.run}").encode(), sent.encode())
        return is_mac or secrets.compare_digest(found.key, _digest(sent))

    def token_of(self, cookie: str, tokens: Iterable[str]) -> str | None:
        """Return which of the valid tokens a cookie stands for."""
        found = self._session(cookie)
        return None if found is None else _token_of(found, tokens)

    # ---- devices -----------------------------------------------------------------------------------------

    def visited(self, cookie: str) -> str | None:
        """Return the id of the device with this cookie, and note that it was here."""
        found, now = self._session(cookie), self._now()
        if found is None:
            return None
        self._sessions[_digest(cookie)] = found._replace(seen_at=now)
        if now - self._saved_at > SEEN_S:
            self._save()
        return found.id

    def devices(self, tokens: Iterable[str]) -> list[BrowserSession]:
        """Return the devices that are signed in with one of these tokens, the latest visit first."""
        known, now = list(tokens), self._now()
        found = [one for one in self._sessions.values() if one.until > now and _token_of(one, known)]
        return sorted(found, key=lambda one: -one.seen_at)

    def signed_out(self, tokens: Iterable[str]) -> frozenset[str]:
        """Return the devices whose token is not valid any more."""
        known = list(tokens)
        return frozenset(one.id for one in self._sessions.values() if _token_of(one, known) is None)

    def is_device(self, device: str) -> bool:
        now = self._now()
        return any(one.id == device and one.until > now for one in self._sessions.values())

    def revoke(self, device: str) -> None:
        """Sign a device out and end its open requests now."""
        self._end(next((name for name, one in self._sessions.items() if one.id == device), None))

    def _end(self, session: str | None) -> None:
        ended = None if session is None else self._sessions.pop(session, None)
        if ended is not None:
            self._save()
            self.on_end(ended.id)

    def _save(self) -> None:
        """A session that cannot be saved, on a full disk, lasts until the gateway stops."""
        self._saved_at = self._now()
        if self._file is not None:
            with suppress(OSError):
                write_private(self._file, json.dumps(self._sessions))


def _read(file: Path | None) -> dict[str, BrowserSession]:
    """A file that is damaged or could be read by others opens nothing."""
    if file is None:
        return {}
    try:
        kept = json.loads(read_private(file))
        return {str(name): _checked(BrowserSession(*one)) for name, one in kept.items()}
    except (OSError, ValueError, TypeError, LookupError, AttributeError, UnsafeStateDirectory):
        return {}


def _checked(one: BrowserSession) -> BrowserSession:
    moments = (float(one.until), float(one.paired_at), float(one.seen_at))
    texts = (one.token, one.key, one.id, one.name)
    if not all(isinstance(text, str) for text in texts) or not isinstance(one.port, int):
        raise TypeError("not a session")
    return one._replace(until=moments[0], paired_at=moments[1], seen_at=moments[2])


def _token_of(one: BrowserSession, tokens: Iterable[str]) -> str | None:
    return next((token for token in tokens if secrets.compare_digest(_digest(token), one.token)), None)


def _digest(secret: str) -> str:
    """Both secrets are random and long: a plain hash tells nothing about them."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _mac(key: str, text: str) -> str:
    return hmac.new(key.encode(), text.encode(), "sha256").hexdigest()


def _oldest(known: Mapping[str, OneTimeCode | BrowserSession], token: str, most: int) -> list[str]:
    """Return what has to leave before one more of this token. Those of another token stay: a token that may only read
    must not sign out the others."""
    own = [name for name, one in known.items() if one.token == token]
    return own[: max(0, len(own) + 1 - most)]


# --------------------------------------------------------------------------------------------------
# The browser pages, of tasks and of the API: files without any data of the user, therefore served without a token.
#
# A page reads its data from the API with its cookie. Its content policy runs our own scripts only and loads nothing
# from elsewhere, whatever a model may have written into a label.

MEDIA = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
    "png": "image/png",
    "webmanifest": "application/manifest+json",
}
#: A service worker is in charge of the paths beside it and below: this one of the whole page.
PAGES = {
    "page.html": "/",
    "docs.html": "/v1/docs",
    "sw.js": "/sw.js",
    "manifest.webmanifest": "/manifest.webmanifest",
}
HEADERS = {
    **PRIVATE,
    "connection": "close",  # as for every client without a token
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        " manifest-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}


@cache
def files() -> dict[str, tuple[bytes, str]]:
    """Return content and media type by path. A view is a file: adding one adds its path."""
    found: dict[str, tuple[bytes, str]] = {}
    top = resources.files("clutch.surfaces").joinpath("web")
    for folder, names in (("", top), ("views/", top.joinpath("views"))):
        for one in names.iterdir():
            ending = one.name.rpartition(".")[2]
            if ending in MEDIA:
                path = PAGES.get(one.name, f"/web/{folder}{one.name}")
                found[path] = (one.read_bytes(), MEDIA[ending])
    return found


def page(method: str, path: str) -> Response | None:
    """Return a file of the page; None for all other paths."""
    if method != "GET" or path not in files():
        return None
    content, media = files()[path]
    return Response(content, media_type=media, headers=HEADERS)
