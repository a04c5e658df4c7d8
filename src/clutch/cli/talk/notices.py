"""What a person wants to be told of who may look elsewhere: that somebody needs them, that all is done.

Each notice carries the command that leads there. A terminal rings; where there is a desktop, it shows them, too.
"""

from __future__ import annotations

import html
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from clutch.core.policy import Notify
from clutch.core.shown import visible

TEXT_CHARS_MAX = 300
ALIVE: Final = ("running", "queued", "waiting", "needsYou")


EVERYTHING: Final = frozenset(Notify)


class Notice(NamedTuple):
    text: str
    command: str


@dataclass(slots=True)
class Notices:
    """Remembers what was told, so that each thing is told once. `command` writes one that runs as it stands here."""

    command: Callable[..., str]
    wishes: frozenset[Notify] = EVERYTHING
    _asked: set[str] = field(default_factory=set)
    _were_alive: int = 0

    def of_inbox(self, items: Sequence[Mapping[str, Any]]) -> Iterator[Notice]:
        new = [item for item in items if item["id"] not in self._asked]
        self._asked = {item["id"] for item in items}
        for item in new if Notify.NEEDS_ME in self.wishes else ():
            who, what = (
                item["label"] or item["sessionKey"],
                visible(" ".join(item["text"].split()), TEXT_CHARS_MAX),
            )
            how = "words" if item["kind"] == "question" else "approve|reject"
            there = self.command("inbox")
            told = f"Needs you: {visible(who, 60)}: {what}\n  -> /answer {item['id']} {how}, or `{there}`"
            yield self._shown(Notice(told, there))

    def of_summary(self, summary: Mapping[str, Any]) -> Iterator[Notice]:
        alive = sum(summary[name] for name in ALIVE)
        is_over, self._were_alive = bool(self._were_alive and not alive), alive
        if is_over and Notify.ALL_DONE in self.wishes:
            there = self.command("ps")
            yield self._shown(Notice(f"All background work is done. -> `{there}`", there))

    def _shown(self, notice: Notice) -> Notice:
        _on_desktop(notice)
        return notice


def _on_desktop(notice: Notice) -> None:
    """Where there is one. It must not hold up anything, and whether it was seen nobody knows."""
    program = shutil.which("notify-send")
    if program is None or not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return
    words = html.escape(f"{notice.text}\n{notice.command}", quote=False)  # desktops read them as markup
    process = subprocess.Popen(  # noqa: S603 - the desktop's own program, with words that are one argument
        [program, "--app-name=clutch", "Clutch", words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    threading.Thread(target=process.wait, daemon=True).start()  # no zombie stays
