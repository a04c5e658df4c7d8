"""Channels for tests: they record what was sent, and fail when the test asks for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sent:
    target: str
    body: str
    key: str


class RecordingChannel:
    """A channel that keeps what was sent in `sent`. `operators`, `approvers`: accounts, as in the config."""

    def __init__(self, *, operators: Sequence[str] = (), approvers: Sequence[str] = ()) -> None:
        self.operators, self.approvers = tuple(operators), tuple(approvers)
        self.sent: list[Sent] = []
        self._failures: deque[Exception] = deque()

    def fail_next(self, *failures: Exception) -> None:
        """The next sends raise these, one each: ConnectionError is tried again, PermissionError is not."""
        self._failures.extend(failures)

    async def send(self, target: str, body: str, key: str) -> str | None:
        """Record a message and return a receipt, or raise the next failure."""
        if self._failures:
            raise self._failures.popleft()
        self.sent.append(Sent(target, body, key))
        return f"receipt-{len(self.sent)}"

    def bodies(self, target: str) -> list[str]:
        """The messages a user at this target has received. Two sends with the same key are one message."""
        shown = {one.key: one.body for one in self.sent if one.target == target}
        return list(shown.values())


class ThreadedChannel(RecordingChannel):
    """A recording channel whose users talk in threads."""

    def __init__(self, *, operators: Sequence[str] = (), approvers: Sequence[str] = ()) -> None:
        super().__init__(operators=operators, approvers=approvers)
        self.threads: dict[str, str] = {}  #: title by name

    async def open_thread(self, target: str, title: str, key: str) -> str:
        del target
        if self._failures:
            raise self._failures.popleft()
        self.threads[key] = title
        return key
