"""Every exception a caller may meet, in one tree. The docstring is the default message.

A message names the thing and the remedy. What can happen to a task is a value, not an exception:
these are for broken promises of the caller or of the world.
"""

from __future__ import annotations

import inspect


class ClutchError(Exception):
    """Something went wrong in Clutch."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or inspect.cleandoc(type(self).__doc__ or ClutchError.__doc__ or ""))


class StoreError(ClutchError):
    """The database refused or failed; nothing of this transaction was written."""


class StoreBusy(StoreError):
    """The database stayed locked by somebody else; nothing was written. Try again."""


class DiskFull(StoreError):
    """The disk of the database is full; nothing was written. Free some space, then try again."""


class ConstraintViolated(StoreError):
    """The transaction broke a rule of the schema (unique, not null, check); nothing was written."""


class StoreLost(StoreError):
    """The connection to the database was lost; whether the transaction was committed is unknown.

    Ask again with the same idempotency key: it finds what was committed, or does it now."""


class SchemaTooNew(StoreError):
    """The database was written by a newer Clutch. Upgrade Clutch, or restore an older backup."""


class UnsupportedStore(StoreError):
    """This database cannot keep the promises made here."""


class StateDirectoryInUse(StoreError):
    """Another process uses this state directory. Stop it, or use another state directory."""


class UnsafeStateDirectory(StoreError):
    """The state directory is not one of its own, or could be read or replaced by somebody else."""


class InvalidInput(ClutchError):
    """A value somebody gave breaks a rule; `field` and `rule` say which."""

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field}: {rule}")
        self.field = field
        self.rule = rule


class SpawnRefused(ClutchError):
    """A limit or a right forbids this spawn; the message names the config key and both numbers."""


class NotFound(ClutchError):
    """There is no such thing here."""
