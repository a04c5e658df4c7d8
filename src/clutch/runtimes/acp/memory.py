"""Which session of an external agent belongs to which of ours, so that it can be loaded again.

Files and no table: the agent keeps its sessions on this machine, and on another one the name would mean nothing.
Beside each lies the end of what the agent last printed for people. All of it may be lost: then a session starts anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from clutch.core.redaction import redact

KEPT_S = 30 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Remembered:
    agent: str
    session_id: str
    key: str  #: of the run that was last under way in it


class Memory:
    """Its functions block, shortly."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def recall(self, session_key: str, agent: str) -> Remembered | None:
        try:
            found = Remembered(**json.loads(self._place(session_key, "json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None
        return found if found.agent == agent else None

    def remember(self, session_key: str, what: Remembered) -> None:
        self._write(self._place(session_key, "json"), json.dumps(asdict(what)))

    def log(self, session_key: str, words: str) -> None:
        if words:
            self._write(self._place(session_key, "log"), redact(words).text)

    def forget_old(self) -> None:
        for place in self._folder.glob("*.*"):
            try:
                if place.stat().st_mtime < time.time() - KEPT_S:
                    place.unlink()
            except OSError:
                continue  # somebody else was faster

    def _place(self, session_key: str, suffix: str) -> Path:
        return self._folder / f"{hashlib.sha256(session_key.encode()).hexdigest()[:32]}.{suffix}"

    def _write(self, place: Path, text: str) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = place.with_suffix(f".{os.getpid()}.new")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(new, place)
