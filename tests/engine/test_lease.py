"""How long a worker may use what is its own: by a clock that nobody can set, and never past the first burial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from clutch.core.workers import certain_s
from clutch.engine.lease import Lease
from clutch.ports import ModelRequest
from clutch.store.postgres_clock import DatabaseClock
from clutch.transactions.sessions import Stale
from tests.engine.conftest import Build

pytestmark = pytest.mark.anyio

DAY_S = 86_400.0


class SetClock(DatabaseClock):
    """A machine and a server whose clocks are set while a steady one goes on."""

    def __init__(self) -> None:
        self.at, self.ahead_s = 1000.0, 0.0
        super().__init__()

    def steady(self) -> float:
        return self.at

    def wall(self) -> float:
        return self.at + self.ahead_s


class Locks:
    async def hold(self, number: int) -> None: ...

    async def dead(self, numbers: Sequence[int]) -> list[int]:
        return []


async def script(request: ModelRequest) -> str:
    return "hello"


@pytest.mark.parametrize("has_locks", [False, True])
@pytest.mark.parametrize("step_s", [-DAY_S, 0.0, DAY_S])
async def test_a_lease_is_as_long_as_it_is_however_the_clocks_are_set(
    build: Build, has_locks: bool, step_s: float
) -> None:
    house = await build(script)
    services = replace((await house.hire()).services, lives=Locks() if has_locks else None)
    clock, lease_s = SetClock(), services.policy.work.lease_s
    lease = Lease(services, clock, lambda: None, has_leases=True)
    lease.begin()
    clock.ahead_s = step_s
    clock.measured(clock.wall(), 0.0)
    # A free lock buries sooner, and a process does not always know that it has lost its own.
    clock.at += 0.99 * (certain_s(lease_s) if has_locks else lease_s)
    lease.check()
    clock.at += 0.02 * lease_s
    assert lease.is_over
    with pytest.raises(Stale):
        lease.check()
