"""A run's own small life: open, parked, ended. Provider failures and crashes, decided.

Main sessions have runs but no task, so this is where retry and parking belong. Counters only mean
something while the transcript has not grown: any commit in between starts them anew, which is why
they are compared with `progress_head` instead of being reset.
"""

from __future__ import annotations

from dataclasses import dataclass

from clutch.core.model import Wait
from clutch.core.policy import Life

#: `parked_until` of a run that waits for a person: no moment, so it is never due by itself ...
UNTIL_ANSWERED = 1e18
#: ... and of one that was answered: due before everything new, and none of its calls has been started.
ANSWERED = 0.0


@dataclass(frozen=True, slots=True)
class Counters:
    """Troubles of one run since its transcript last grew."""

    crashes: int = 0
    failures: int = 0
    progress_head: int = 0


@dataclass(frozen=True, slots=True)
class Park:
    """Wait without a slot and ask the provider again then."""

    until: float
    reason: str
    counters: Counters


@dataclass(frozen=True, slots=True)
class GiveUp:
    error: str


def since(counters: Counters, head: int) -> Counters:
    return counters if counters.progress_head == head else Counters(progress_head=head)


def taken_over(counters: Counters, head: int) -> Counters:
    """Its owner died holding it."""
    now = since(counters, head)
    return Counters(now.crashes + 1, now.failures, head)


def is_crash_loop(counters: Counters, life: Life) -> bool:
    return counters.crashes >= life.crash_limit


def provider_failed(
    counters: Counters,
    head: int,
    *,
    at: float,
    error: str,
    is_retryable: bool,
    retry_at: float | None,
    life: Life,
    is_sent: bool = True,
) -> Park | GiveUp:
    """Retryable: park and come back, a few times. A provider that names a time is believed, within bounds.

    `is_sent` False: it only had to wait in line, which is no failure of its own."""
    now = since(counters, head)
    failed = Counters(now.crashes, now.failures + is_sent, head)
    if not is_retryable:
        return GiveUp(error)
    if retry_at is not None:
        if life.quota_wait_max_s and retry_at - at > life.quota_wait_max_s:
            return GiveUp(f"{error}; the wait until {retry_at:.0f} is longer than models.maxWait")
        if failed.failures <= _quota_tries(life):
            return Park(max(retry_at, at), Wait.QUOTA, failed)
    elif failed.failures <= len(life.provider_retries_s):
        return Park(at + life.provider_retries_s[failed.failures - 1], Wait.PROVIDER, failed)
    return GiveUp(f"{error} ({failed.failures} times)")


def _quota_tries(life: Life) -> int:
    """A provider that keeps saying "later" must not park a run for ever."""
    return 10 * len(life.provider_retries_s)
