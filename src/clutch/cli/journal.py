"""What a gateway says to its log: one line per event, without colours, without secrets.

In the foreground it goes to stderr, with the marks of priority that journald reads where journald listens; in the
background to `gateway.log`, which is its owner's only and never grows beyond its bound twice.
"""

from __future__ import annotations

import logging
import os
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from clutch.core.redaction import redact
from clutch.core.shown import visible

LOG_FILE = "gateway.log"
LINE_CHARS_MAX = 8000
ON_TERMINAL = "%(levelname)s: %(message)s"
IN_FILE = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_PRIORITY = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}


class OneLine(logging.Formatter):
    """A traceback is part of its line. What looks like a secret is taken out whoever wrote it."""

    def __init__(self, form: str, *, is_journal: bool = False) -> None:
        super().__init__(form)
        self._is_journal = is_journal

    def format(self, record: logging.LogRecord) -> str:
        line = visible(redact(super().format(record)).text, LINE_CHARS_MAX)
        return f"<{_PRIORITY.get(record.levelno, 5)}>{line}" if self._is_journal else line


class PrivateFile(RotatingFileHandler):
    def __init__(self, home: Path, bytes_max: int) -> None:
        self._home = home
        super().__init__(home / LOG_FILE, maxBytes=bytes_max, backupCount=1)

    def _open(self) -> TextIOWrapper:
        """It may tell what tasks are about."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self.file = os.open(self._home / LOG_FILE, flags, 0o600)
        os.fchmod(self.file, 0o600)
        return os.fdopen(self.file, "a", encoding="utf-8")


def to_terminal() -> None:
    handler = logging.StreamHandler()
    is_journal = "JOURNAL_STREAM" in os.environ
    handler.setFormatter(OneLine("%(message)s" if is_journal else ON_TERMINAL, is_journal=is_journal))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)


def to_file(home: Path, bytes_max: int) -> None:
    """Also what the interpreter itself may have to say at its end."""
    handler = PrivateFile(home, bytes_max)
    handler.setFormatter(OneLine(IN_FILE))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    for output in (1, 2):
        os.dup2(handler.file, output)
