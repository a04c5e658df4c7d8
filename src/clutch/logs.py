"""Loggers of this package: no record leaves them with something that has the shape of a secret.

A program that embeds Clutch has handlers of its own, so the record itself is redacted, before any handler has it.
"""

from __future__ import annotations

import logging

from clutch.core.redaction import redact

_FORMATTER = logging.Formatter()
_OURS = frozenset(vars(logging.makeLogRecord({})))  #: of every record; what else is there came as `extra`


def logger(name: str) -> logging.Logger:
    found = logging.getLogger(name)
    found.addFilter(redacted)  # the same one is added once
    return found


def redacted(record: logging.LogRecord) -> bool:
    """Always True: a record is changed, never dropped."""
    record.msg, record.args = redact(record.getMessage()).text, ()
    if record.exc_info and not record.exc_text:
        record.exc_text = redact(_FORMATTER.formatException(record.exc_info)).text
    for name, value in vars(record).items():
        if name not in _OURS and isinstance(value, str):
            setattr(record, name, redact(value).text)
    return True
