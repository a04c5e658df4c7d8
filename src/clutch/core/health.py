"""What the operator sees of a gateway: workers, queues, and what of the config file is in force."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

PERIODS_MAX = 3  #: missed periods of a loop before it counts as late


def is_late(at: float, period_s: float, now: float) -> bool:
    """Return whether a background loop that last ran at `at` has missed too many periods."""
    return now - at > PERIODS_MAX * period_s


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A process that registered. `sessions`: how many it owns."""

    id: int
    host: str
    pid: int
    version: str
    started_at: float
    lease_until: float
    sessions: int

    def is_stale(self, own_id: int, now: float, *, has_leases: bool) -> bool:
        """Return whether it is dead: its lease is over. Without leases only the process with the lock is alive."""
        return self.lease_until < now if has_leases else self.id != own_id


@dataclass(frozen=True, slots=True)
class LaneView:
    name: str
    cap: int
    running: int
    queued: int


@dataclass(frozen=True, slots=True)
class WorkState:
    workers: Sequence[WorkerView]
    lanes: Sequence[LaneView]
    deferred: int
    undelivered: int
    outbox: int
    unsent: int
    database_bytes: int


# ---- the config ----------------------------------------------------------------------------------------------


class FindingState(StrEnum):
    """Why something of the file is not in force."""

    INVALID = "invalid"  #: the file breaks a rule; nothing of it is loaded
    REFUSED = "refused"  #: the file is valid, and the gateway cannot work with it
    NEEDS_RESTART = "needs restart"
    NOT_LOADED = "not loaded"  #: changed after the gateway looked at the file


@dataclass(frozen=True, slots=True)
class ConfigFinding:
    """`key` None: the file as a whole. Values as they would be written; None: not known."""

    key: str | None
    state: FindingState
    detail: str
    in_force: str | None
    in_file: str | None
    remedy: str


@dataclass(frozen=True, slots=True)
class ConfigSetting:
    """A setting in force that differs from its default."""

    key: str
    value: str
    default: str
    needs_restart: bool


@dataclass(frozen=True, slots=True)
class ConfigReport:
    """`from_program`: arguments of the program that win over the file."""

    file: str
    exists: bool
    settings: Sequence[ConfigSetting]
    findings: Sequence[ConfigFinding]
    from_program: Sequence[str]
