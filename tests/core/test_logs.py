"""Records of our loggers are redacted before any handler has them."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

import clutch
from clutch.logs import logger

SECRET = "sk-abcdefghijklmnopqrstuv"


def test_a_secret_in_message_arguments_extras_and_traceback_reaches_no_handler(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = logger("clutch.test_logs")
    try:
        raise ValueError(f"wrong key {SECRET}")
    except ValueError:
        log.exception("failed: %s", f"%0a{SECRET}", extra={"error": f'"\\n{SECRET}"', "count": 3})
    (record,) = caplog.records
    assert (record.getMessage(), vars(record)["count"]) == ("failed: %0a[redacted]", 3)
    assert vars(record)["error"] == '"\\n[redacted]"'
    shown = logging.Formatter("%(message)s %(error)s").format(record)
    assert "ValueError: wrong key [redacted]" in shown
    assert SECRET not in shown + repr(vars(record)["exc_text"])


def test_no_module_makes_a_logger_of_its_own() -> None:
    (package,) = clutch.__path__
    made = [
        str(path.relative_to(package))
        for path in Path(package).rglob("*.py")
        if re.search(r"^log(ger)? = logging\.getLogger", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert made == []
