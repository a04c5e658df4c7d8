"""Every exception a caller may meet, in one tree. The docstring is the default message.

A message names the thing and the remedy. What can happen to a task is a value, not an exception:
these are for broken promises of the caller or of the world.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager


class ClutchError(Exception):
    """Something went wrong in Clutch."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or inspect.cleandoc(type(self).__doc__ or ClutchError.__doc__ or ""))


class StoreError(ClutchError):
    """The database refused or failed; nothing of this transaction was written."""


class StoreBusy(StoreError):
    """The database stayed locked by another process; nothing was written. Try again."""


class TooSlow(StoreError):
    """The database stopped a statement that took too long; nothing was written."""


class DiskFull(StoreError):
    """The disk of the database is full; nothing was written. Free some space, then try again."""


class StoreRefused(StoreError):
    """The database does not take this statement (no such table, no right to it, a value it cannot hold); nothing was
    written, and asking again changes nothing."""


class StoreMoved(StoreRefused):
    """The database is part of a move to another one (`clutch move`), so no gateway may work on it. The message names
    the other end and the command that continues."""


class ConstraintViolated(StoreError):
    """The transaction broke a rule of the schema (unique, not null, check); nothing was written."""


class StoreLost(StoreError):
    """The connection to the database was lost; whether the transaction was committed is unknown.

    Ask again with the same idempotency key: it finds what was committed, or does it now."""

    def __init__(self, message: str | None = None, *, is_unsent: bool = False) -> None:
        super().__init__(message)
        #: nothing was sent, so nothing was committed
        self.is_unsent = is_unsent


class StoreUnreadable(StoreError):
    """The database file is damaged, or not a Clutch database. Nothing was changed or deleted: restore a backup."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{inspect.cleandoc(type(self).__doc__ or '')} ({why})")


class StoreIOError(StoreError):
    """The disk of the database cannot be read or written; nothing of this transaction was written."""


class StoreGone(StoreError):
    """The database file was deleted or replaced while this process had it open. Nothing is accepted until it is back.

    Put the same file back, or stop this process, restore a backup (`docs/operate/backup.md`) and start again."""

    def __init__(self, path: str, what: str) -> None:
        remedy = "put the same file back, or stop this process, restore a backup and start again"
        super().__init__(f"{path} was {what} while Clutch was running; nothing is accepted: {remedy}")


class SchemaTooNew(StoreError):
    """The database was written by a newer Clutch. Upgrade Clutch, or restore an older backup."""


class UnsupportedStore(StoreError):
    """This database cannot keep the promises made here."""


class StateDirectoryInUse(StoreError):
    """Another process uses this state directory. Stop it, or use another state directory."""

    def __init__(self, message: str | None = None, remedy: str | None = None) -> None:
        super().__init__(message)
        self.remedy = remedy  #: a command, where its owner can be talked to


class GatewayInUse(StateDirectoryInUse):
    """Another gateway serves this state directory. Stop it, or use another state directory."""


class NoGateway(ClutchError):
    """No gateway serves this state directory. Start one: `clutch serve`, or a program with `Clutch(...)`."""

    def __init__(self, message: str | None = None, remedy: str = "clutch serve") -> None:
        super().__init__(message)
        self.remedy = remedy


class MissingExtra(ClutchError):
    """An optional part of Clutch is not installed; the message names the extra that brings it."""


@contextmanager
def extra(name: str, purpose: str) -> Iterator[None]:
    """Import packages of the extra `name` in this block: without them, MissingExtra says how to install them."""
    try:
        yield
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        if missing == "clutch":
            raise  # a mistake of ours
        if error.path is not None:  # it is there: the import guard refuses it, or its version does not fit
            raise MissingExtra(f"{purpose} cannot be loaded: {error}") from error
        raise MissingExtra(
            f"{purpose} needs the package {missing!r}, which is not installed: pip install 'clutch-agents[{name}]'"
        ) from error


class Draining(ClutchError):
    """This gateway takes no new work: it ends what it has, then it stops. Ask again when it has gone."""


class UnsafeStateDirectory(StoreError):
    """The state directory is not one of its own, or could be read or replaced by another user."""


class InvalidInput(ClutchError):
    """A value breaks a rule; `field` and `rule` say which."""

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field}: {rule}")
        self.field = field
        self.rule = rule


class SpawnRefused(ClutchError):
    """A limit or a right forbids this spawn; the message names the config key and both numbers, `limit` has them."""

    def __init__(self, message: str | None = None, limit: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.limit = dict(limit or {})


class IdempotencyConflict(ClutchError):
    """This key was used before, for something else. Take another key, or ask for the same again."""


class Forbidden(ClutchError):
    """The caller may not do this; `rule` says which rule denied it."""

    def __init__(self, rule: str, reason: str) -> None:
        super().__init__(reason)
        self.rule = rule


class TaskFailed(ClutchError):
    """A task did not end well; raised by `TaskResult.raise_for_outcome` only."""

    def __init__(self, task_id: str, outcome: str, reason: str | None) -> None:
        super().__init__(f"task {task_id} ended with {outcome}: {reason or 'no reason was recorded'}")
        self.task_id, self.outcome, self.reason = task_id, outcome, reason


class RateLimited(ClutchError):
    """Too soon after the last time."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(f"{message}; try again in {retry_after_s:.1f} s")
        self.retry_after_s = retry_after_s


class NotFound(ClutchError):
    """There is no such thing here. `candidates` are what there is instead."""

    def __init__(self, message: str | None = None, candidates: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.candidates = tuple(candidates)


class AmbiguousTarget(ClutchError):
    """More than one thing is meant by this; `candidates` are some of them."""

    def __init__(self, message: str | None = None, candidates: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.candidates = tuple(candidates)


class ConfigInvalid(InvalidInput):
    """The config file cannot be taken. `problems` are all of them, one line each: file, line, column, key, rule."""

    def __init__(self, file: str, problems: Sequence[str]) -> None:
        rule = "\n".join(problems)
        super().__init__(file, rule)
        self.problems = tuple(problems)
        self.args = (rule,)
