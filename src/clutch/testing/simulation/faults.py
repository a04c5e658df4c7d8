"""What can go wrong in a simulated world, how often, and how often it did.

Rates are chances per opportunity: per transaction, per model call, per hint and gateway, or per visit of the
nemesis. They are set so that over many worlds no kind is rarer than one in a hundred faults.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Fault(StrEnum):
    # the process
    CRASH_BEFORE_COMMIT = "crash_before_commit"  #: nothing was written
    CRASH_AFTER_COMMIT = "crash_after_commit"  #: it was, and no process knows
    CRASH_ANYWHERE = "crash_anywhere"
    POWER_CUT = "power_cut"  #: all gateways at once
    FREEZE_SHORT = "freeze_short"  #: shorter than the lease
    FREEZE_PAST_LEASE = "freeze_past_lease"
    ORDERLY_RESTART = "orderly_restart"
    # the store
    STORE_BUSY = "store_busy"
    DISK_FULL = "disk_full"
    STORE_LOST = "store_lost"  #: before the commit
    STORE_LOST_COMMITTED = "store_lost_committed"  #: after it: the caller cannot tell
    # hints
    HINT_LOST = "hint_lost"
    HINT_DOUBLED = "hint_doubled"
    HINT_LATE = "hint_late"
    # the provider
    PROVIDER_HANG = "provider_hang"
    PROVIDER_RATE_LIMIT = "provider_rate_limit"
    PROVIDER_OVERLOADED = "provider_overloaded"
    PROVIDER_CUT_STREAM = "provider_cut_stream"
    PROVIDER_AUTH = "provider_auth"
    PROVIDER_EMPTY = "provider_empty"  #: a natural end without a word
    PROVIDER_CUT_ANSWER = "provider_cut_answer"  #: stopped by length, half a text
    # the tools
    TOOL_FAILED = "tool_failed"
    CLEANUP_FAILED = "cleanup_failed"
    WORKSPACE_FAILED = "workspace_failed"  #: the files of a spawn cannot be made
    WORKSPACE_HANGS = "workspace_hangs"  #: they take longer than a spawn may
    # the channel
    CHANNEL_DOWN = "channel_down"
    CHANNEL_REFUSES = "channel_refuses"  #: for good: the thread is gone
    CHANNEL_UNHEARD = "channel_unheard"  #: it was sent, and no answer came
    CHANNEL_CUT = "channel_cut"  #: it was sent, and the connection was cut before an answer
    CHANNEL_NO_RECEIPT = "channel_no_receipt"
    # the clock
    CLOCK_FORWARD = "clock_forward"
    CLOCK_BACK = "clock_back"
    CLOCK_SKEW = "clock_skew"  #: one gateway's clock differs from the others'
    # the requester
    REQUESTER_BUSY = "requester_busy"  #: a main session sits in a very long model call
    REQUESTER_GONE = "requester_gone"  #: a main session is closed while its children work


class Dead(BaseException):
    """The process that asked is gone. Not an Exception: the dead handle nothing."""


RATES: Final[Mapping[Fault, float]] = MappingProxyType(
    {
        Fault.CRASH_BEFORE_COMMIT: 0.0025,
        Fault.CRASH_AFTER_COMMIT: 0.006,
        Fault.FREEZE_SHORT: 0.0012,
        Fault.FREEZE_PAST_LEASE: 0.002,
        Fault.STORE_BUSY: 0.002,
        Fault.DISK_FULL: 0.0012,
        Fault.STORE_LOST: 0.0015,
        Fault.STORE_LOST_COMMITTED: 0.005,
        Fault.HINT_LOST: 0.003,
        Fault.HINT_DOUBLED: 0.003,
        Fault.HINT_LATE: 0.005,
        Fault.PROVIDER_HANG: 0.008,
        Fault.PROVIDER_RATE_LIMIT: 0.010,
        Fault.PROVIDER_OVERLOADED: 0.010,
        Fault.PROVIDER_CUT_STREAM: 0.010,
        Fault.PROVIDER_AUTH: 0.008,
        Fault.PROVIDER_EMPTY: 0.02,
        Fault.PROVIDER_CUT_ANSWER: 0.02,
        Fault.TOOL_FAILED: 0.016,
        Fault.CLEANUP_FAILED: 0.2,
        Fault.WORKSPACE_FAILED: 0.2,
        Fault.WORKSPACE_HANGS: 0.18,
        Fault.CHANNEL_DOWN: 0.14,
        Fault.CHANNEL_REFUSES: 0.14,
        Fault.CHANNEL_UNHEARD: 0.14,
        Fault.CHANNEL_CUT: 0.14,
        Fault.CHANNEL_NO_RECEIPT: 0.2,
        Fault.REQUESTER_BUSY: 0.025,
    }
)

#: What the nemesis does when it comes, and how much rather.
NEMESIS: Final[Mapping[Fault, int]] = MappingProxyType(
    {
        Fault.CRASH_ANYWHERE: 6,
        Fault.POWER_CUT: 2,
        Fault.ORDERLY_RESTART: 2,
        Fault.CLOCK_FORWARD: 2,
        Fault.CLOCK_BACK: 2,
        Fault.CLOCK_SKEW: 2,
        Fault.REQUESTER_GONE: 3,
    }
)


class Dice:
    """Decides who is struck, and counts. Cold dice never strike: that is how a world is healed."""

    def __init__(
        self, rng: random.Random, severity: float, provider: float, tell: Callable[[str], None]
    ) -> None:
        self.rng = rng
        self.counted: Counter[Fault] = Counter()
        self._rates = {
            fault: rate * severity * (provider if fault.startswith("provider") else 1.0)
            for fault, rate in RATES.items()
        }
        self._is_hot = severity > 0
        self._tell = tell

    def cool(self) -> None:
        self._is_hot = False

    @property
    def is_hot(self) -> bool:
        return self._is_hot

    def strikes(self, fault: Fault, about: object = "") -> bool:
        if not self._is_hot or self.rng.random() >= self._rates[fault]:
            return False
        self.note(fault, about)
        return True

    def note(self, fault: Fault, about: object = "") -> None:
        self.counted[fault] += 1
        self._tell(f"FAULT {fault} {about}")

    def visit(self) -> Fault:
        """What the nemesis does this time."""
        return self.rng.choices(list(NEMESIS), weights=list(NEMESIS.values()))[0]
