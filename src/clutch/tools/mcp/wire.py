"""What is known about the far end of one connection: whether it is still there, and its last words."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

STDERR_BYTES_KEPT = 4096
STDERR_CHARS_SHOWN = 600


class Gone(Exception):
    """The connection ended; whether the last call took effect is unknown."""


class Refused(Exception):
    """The server answered with an error, or with something that is no answer."""


@dataclass(slots=True)
class Wire:
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    is_up: bool = False  #: the handshake is done: it is asked to stop, not killed
    exit_code: int | None = None
    noise: int = 0  #: lines on stdout that are no messages
    first_noise: str = ""
    _stderr: bytes = b""

    def heard(self, data: bytes) -> None:
        self._stderr = (self._stderr + data)[-STDERR_BYTES_KEPT:]

    def heard_noise(self, line: bytes) -> None:
        self.noise += 1
        self.first_noise = self.first_noise or line[:80].decode("utf-8", "replace")

    def last_words(self, without_secrets: Callable[[str], str]) -> str:
        """Secrets go before anything is cut: half of one would not be found."""
        said = without_secrets(self._stderr.decode("utf-8", "replace")).strip()[-STDERR_CHARS_SHOWN:]
        words = []
        if self.exit_code is not None:
            words.append(f"exit code {self.exit_code}")
        if self.noise:
            words.append(
                f"{self.noise} lines on stdout that are no messages, the first: {self.first_noise!r}"
            )
        if said:
            words.append(f"its stderr ends with: {said}")
        return "; ".join(words)
