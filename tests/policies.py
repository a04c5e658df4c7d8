"""Policies for tests that run a whole engine."""

from __future__ import annotations

from typing import Final

from clutch.core.policy import Announcing, Policy, Work

#: Short ticks and a short stop, and a result is announced at once. By default one waits a second for its siblings,
#: which the tests of announcements cover with clocks of their own.
QUICK: Final = Policy(work=Work(tick_s=0.02, stop_s=0.05), announcing=Announcing(debounce_s=0.01))
