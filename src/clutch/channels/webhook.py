"""`channels.NAME`: people behind a webhook, such as a room of a chat program or a bridge of one's own.

What they are to read comes from the outbox, so it is sent at least once and under a stable key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from clutch.channels.posting import check_url, post
from clutch.core.checks import check
from clutch.core.routes import CHANNEL_NAME, INTERNAL_CHANNELS
from clutch.errors import InvalidInput
from clutch.ports import ThreadFailed

THREAD_CHARS_MAX = 200


@dataclass(frozen=True, slots=True)
class WebhookChannel:
    """POSTs `{"text", "to"?, "account"?, "thread"?, "key"}`; `to` is what stands behind the name in a route. A 4xx is
    not tried again; no answer within `announce.timeoutMs` is `unsure`."""

    name: str
    url: str = field(repr=False)  #: gets a POST of JSON for each message; may hold a secret
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  #: sent with every request
    threads: bool = False  #: asked to open one, the receiver answers {"thread": "its name"}

    def __post_init__(self) -> None:
        check(self)
        if not CHANNEL_NAME.fullmatch(self.name) or self.name in INTERNAL_CHANNELS:
            rule = (
                f"a name is up to 32 of a-z, 0-9, - and _, and none of {', '.join(sorted(INTERNAL_CHANNELS))}"
            )
            raise InvalidInput("name", rule)
        check_url("url", self.url)

    async def send(self, target: str, body: str, key: str) -> str | None:
        said = await self._posted({"text": body, **_address(target), "key": key})
        return None if "id" not in said else str(said["id"])[:THREAD_CHARS_MAX]

    async def open_thread(self, target: str, title: str, key: str) -> str:
        if not self.threads:
            raise ThreadFailed(f"thread: channels.{self.name}.threads is false")
        try:
            said = await self._posted({"openThread": title, **_address(target), "key": key})
        except OSError as error:
            raise ThreadFailed(f"thread: the channel {self.name!r}: {error}") from error
        name = said.get("thread")
        if not isinstance(name, str) or not 0 < len(name) <= THREAD_CHARS_MAX:
            raise ThreadFailed(f"thread: the channel {self.name!r} named none")
        return name

    async def _posted(self, told: dict[str, Any]) -> dict[str, Any]:
        return await post(self.url, told, self.headers, told["key"]) or {}


def _address(target: str) -> dict[str, str]:
    """As `core.routes.target` writes it."""
    if target.startswith("{"):
        parts: dict[str, str] = json.loads(target)
        return parts
    return {"to": target} if target else {}
