"""One POST of JSON to an address that a person wrote into a config or a program, and what its answer means.

No redirect is followed: the address is all that somebody vouched for. It may hold a secret, so what went wrong names
its host and nothing else of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from clutch.errors import InvalidInput

if TYPE_CHECKING:
    import aiohttp

ANSWER_BYTES_MAX = 64 * 1024
CONNECT_S = 10.0  # how long an answer may take is the business of whoever asks


def check_url(field: str, url: object) -> None:
    try:
        place = urlsplit(str(url))
        is_right = place.scheme in ("http", "https") and bool(place.hostname) and place.port != 0
    except ValueError:
        is_right = False
    if not is_right:
        raise InvalidInput(field, "must be an address that begins with http:// or https:// and names a host")


async def post(
    url: str, told: Mapping[str, Any], headers: Mapping[str, str], key: str
) -> dict[str, Any] | None:
    """The object it answers with, if it does. Raises PermissionError for a 4xx, which no repetition changes, else
    ConnectionError."""
    import aiohttp  # only where there is somebody to tell

    host, sent = urlsplit(url).hostname, {**headers, "Idempotency-Key": key}
    patience = aiohttp.ClientTimeout(total=None, connect=CONNECT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=patience) as client,
            client.post(url, json=told, headers=sent, allow_redirects=False) as response,
        ):
            if 400 <= response.status < 500 and response.status not in (408, 429):
                raise PermissionError(f"{host} says {response.status}")
            if response.status >= 300:
                raise ConnectionError(f"{host} says {response.status}")
            return _object(host, await _read(response))
    except aiohttp.ClientError as error:
        raise ConnectionError(f"{host} cannot be reached: {type(error).__name__}") from error


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """All of it, in however many pieces it comes; of too much the beginning."""
    body = b""
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > ANSWER_BYTES_MAX:
            break
    return body


def _object(host: str | None, body: bytes) -> dict[str, Any] | None:
    """What is no object was not meant for us; one that is broken may have been a veto."""
    try:
        said = json.loads(body)
    except ValueError as error:
        if body.lstrip().startswith(b"{"):
            raise ConnectionError(f"{host} answers with an object that is broken or too long") from error
        return None
    return said if isinstance(said, dict) else None
