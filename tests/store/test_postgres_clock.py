"""The clock of a database server as a process reads it: bounds of its error, steps, and a machine that is wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.store.postgres import PostgresStore
from clutch.store.postgres_clock import DRIFT, DatabaseClock
from clutch.store.transaction import Tx

#: Seconds until a question reaches the server, and until its answer is back.
TRIPS = st.lists(st.tuples(st.floats(0, 2), st.floats(0, 2), st.floats(0, 60)), min_size=1, max_size=20)
OFFSETS = st.floats(-1e6, 1e6)


class OtherClock(DatabaseClock):
    """`at`: the steady clock of a machine whose wall clock is ahead by `ahead_s`."""

    def __init__(self, ahead_s: float = 0.0) -> None:
        self.at, self.ahead_s = 1000.0, ahead_s
        super().__init__()

    def steady(self) -> float:
        return self.at

    def wall(self) -> float:
        return 1.7e9 + self.at + self.ahead_s


@given(TRIPS, OFFSETS, OFFSETS)
def test_the_error_is_at_most_half_of_the_quickest_trip(
    trips: list[tuple[float, float, float]], ahead_s: float, server_ahead_s: float
) -> None:
    clock, quickest = OtherClock(ahead_s), 1e9
    for there_s, back_s, pause_s in trips:
        clock.at += pause_s + there_s
        server = 1.7e9 + clock.at + server_ahead_s
        clock.at += back_s
        clock.measured(server, there_s + back_s)
        quickest = min(quickest + 2 * DRIFT * (pause_s + there_s + back_s), there_s + back_s)
        assert abs(clock.now() - (1.7e9 + clock.at + server_ahead_s)) <= clock.error_s + 1e-5
        assert clock.error_s <= quickest / 2 + 1e-5
        assert clock.wall_offset_s == pytest.approx(ahead_s - server_ahead_s, abs=clock.error_s + 1e-5)


@given(st.floats(1, 1e6), st.booleans())
def test_a_step_of_the_servers_clock_is_followed_at_the_next_answer(step_s: float, is_back: bool) -> None:
    clock, step = OtherClock(), -step_s if is_back else step_s
    clock.measured(5e8, 0.1)
    clock.at += 1
    clock.measured(5e8 + 1 + step, 0.1)
    assert clock.now() == pytest.approx(5e8 + 1 + step, abs=0.051)


@pytest.mark.anyio
@pytest.mark.parametrize("ahead_s", [-600.0, 600.0])
async def test_transactions_get_the_time_of_the_server_on_a_machine_that_is_wrong(
    postgres_dsn: str, ahead_s: float
) -> None:
    def clocks(now: float) -> Tx[float]:
        rows = yield "SELECT {clock}", ()
        return now - float(rows[0][0])

    class WrongClock(DatabaseClock):
        def wall(self) -> float:
            return super().wall() + ahead_s

    clock = WrongClock()
    async with PostgresStore(postgres_dsn, clock) as store:
        assert abs(await store.read(clocks)) < 60
        assert abs(await store.alone(clocks)) < 60
        assert abs((clock.wall_offset_s or 0.0) - ahead_s) < 60
