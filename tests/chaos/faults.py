"""What each kind of fault does to the fleet, and how it is healed. A fault heals itself, also when the run is cut."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from tests.chaos import story
from tests.chaos.fleet import DATABASE, OUR_NAME, TROUBLE, Fleet
from tests.chaos.node import Node
from tests.chaos.plan import Fault, FaultKind
from tests.chaos.provider import FAILURES
from tests.postgres_server import caught_up

SKEW_MAX_S: Final = 600.0
AT_WORK_S: Final = 3.0
SLOW_LINK_S: Final = (0.02, 0.15)  #: per packet and direction
HELD_MARGIN_S: Final = (
    3.0  #: transactions that began before the old primary refused writes end within this time
)


def possible(fleet: Fleet) -> set[FaultKind]:
    kinds = set(FaultKind)
    if not all(disk.can_fill for disk in fleet.disks):
        fleet.say("disk_full is left out: no right to mount a small file system")
        kinds.discard(FaultKind.DISK_FULL)
    return kinds


async def make(fleet: Fleet, fault: Fault) -> None:
    await FAULTS[fault.kind](fleet, fault)


async def _kill(fleet: Fleet, fault: Fault) -> None:
    node = fleet.nodes[fault.node]
    async with node.changing, fleet.disturbed(fault.kind, node, f"{fault.lasts:.1f} s away"):
        await _killed(fleet, node, fault.lasts)


async def _killed(fleet: Fleet, node: Node, away_s: float) -> None:
    await _at_work(fleet, node)
    fleet.interrupt(node)
    await node.kill()
    await asyncio.sleep(away_s)
    await node.start(DATABASE)


async def _at_work(fleet: Fleet, node: Node) -> None:
    """Return when it waits for a model, or when that takes long: a kill of an idle gateway shows little."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(AT_WORK_S):
            await fleet.provider.ledger.busy(node.name)


async def _stop(fleet: Fleet, fault: Fault) -> None:
    node, lasts_s = fleet.nodes[fault.node], fault.lasts * story.LEASE_S
    async with node.changing, fleet.disturbed(fault.kind, node, f"{lasts_s:.1f} s"):
        node.stop()
        try:
            await asyncio.sleep(lasts_s)
        finally:
            node.resume()


async def _skew(fleet: Fleet, fault: Fault) -> None:
    """Half of them step the clock of a running gateway, the others start one with a wrong clock."""
    node = fleet.nodes[fault.node]
    shift_s = (2 * (fault.chance * 2 % 1) - 1) * SKEW_MAX_S
    is_step = fault.chance < 0.5
    async with (
        node.changing,
        fleet.disturbed(
            fault.kind, node, f"{shift_s:+.0f} s {'while it runs' if is_step else 'at its start'}"
        ),
    ):
        if is_step:
            node.set_clock(shift_s)
        else:
            node.set_clock(shift_s)
            await _killed(fleet, node, 0.0)


async def _cut_link(fleet: Fleet, fault: Fault) -> None:
    node, is_reset = fleet.nodes[fault.node], fault.chance < 0.5
    how = "connections are reset" if is_reset else "nothing passes"
    async with fleet.disturbed(fault.kind, node, f"{fault.lasts:.1f} s, {how}"):
        for link in node.links:
            if is_reset:
                link.reset()
            else:
                link.hold()
        await _healed(node, fault.lasts)


async def _slow_link(fleet: Fleet, fault: Fault) -> None:
    node, delay_s = fleet.nodes[fault.node], _between(SLOW_LINK_S, fault.chance)
    async with fleet.disturbed(fault.kind, node, f"{fault.lasts:.1f} s, {1000 * delay_s:.0f} ms each way"):
        for link in node.links:
            link.slow(delay_s)
        await _healed(node, fault.lasts)


async def _healed(node: Node, after_s: float) -> None:
    try:
        await asyncio.sleep(after_s)
    finally:
        for link in node.links:
            link.heal()


async def _restart_server(fleet: Fleet, fault: Fault) -> None:
    async with fleet.disturbed(fault.kind, None, f"{fault.lasts:.1f} s away"):
        await asyncio.to_thread(fleet.primary.crash)
        await asyncio.sleep(fault.lasts)
        await asyncio.to_thread(fleet.primary.start)


async def _disk_full(fleet: Fleet, fault: Fault) -> None:
    """The server may end with its disk: it cannot write its log. It is started again when there is room."""
    disk = fleet.disk_of(fleet.primary)
    async with fleet.disturbed(fault.kind, None, f"{fault.lasts:.1f} s"):
        await asyncio.to_thread(disk.fill)
        try:
            await asyncio.sleep(fault.lasts)
        finally:
            disk.free()
        if not await _answers(fleet):
            fleet.say("the server had ended with its disk, and is started again")
            await asyncio.to_thread(fleet.primary.restart)


async def _answers(fleet: Fleet) -> bool:
    try:
        await fleet.rows("SELECT 1")
    except TROUBLE:
        return False
    return True


async def _promote(fleet: Fleet, fault: Fault) -> None:
    """The order of a planned failover: no commit is lost, and connections to the old primary stay open in half of the
    cases. Afterwards the old primary is rebuilt as the standby of the new one."""
    keeps = fault.chance < 0.5
    note = "connections stay open" if keeps else "connections are ended"
    async with fleet.disturbed(fault.kind, None, note):
        old, new = fleet.primary, fleet.standby
        await asyncio.to_thread(old.demote)
        await _writers_gone(fleet, is_patient=keeps)
        await asyncio.to_thread(caught_up, old, new)
        await asyncio.to_thread(new.promote)
        fleet.changed_primary()
        await asyncio.sleep(fault.lasts)
    await asyncio.to_thread(old.stop)
    fleet.standby = await asyncio.to_thread(new.standby, old.directory)
    await asyncio.to_thread(fleet.standby.start)


_END_WRITERS: Final = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend'
AND application_name <> $1 AND pid <> pg_backend_pid() AND ($2 OR xact_start < now() - $3 * interval '1 second')
"""


async def _writers_gone(fleet: Fleet, *, is_patient: bool) -> None:
    """A transaction that began before may still commit on the old primary: wait for it, or end all connections."""
    if is_patient:
        await asyncio.sleep(HELD_MARGIN_S)
    await fleet.rows(_END_WRITERS, OUR_NAME, not is_patient, HELD_MARGIN_S)


async def _held_snapshot(fleet: Fleet, fault: Fault) -> None:
    async with fleet.disturbed(fault.kind, None, f"{fault.lasts:.1f} s"):
        with contextlib.suppress(*TROUBLE):
            connection = await fleet.connect()
            try:
                await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                await connection.fetch("SELECT count(*) FROM pg_class")
                await asyncio.sleep(fault.lasts)
            finally:
                connection.terminate()


async def _slow_provider(fleet: Fleet, fault: Fault) -> None:
    async with fleet.disturbed(fault.kind, None, f"{fault.lasts:.1f} s"):
        fleet.provider.is_slow = True
        try:
            await asyncio.sleep(fault.lasts)
        finally:
            fleet.provider.is_slow = False


async def _failing_provider(fleet: Fleet, fault: Fault) -> None:
    """One way to fail at a time: what a 429 teaches slows gateways down for a minute, and would hide the other ways."""
    number = int(fault.chance * FAILURES)
    async with fleet.disturbed(fault.kind, None, f"{fault.lasts:.1f} s, failure {number}"):
        fleet.provider.fails_with = number
        try:
            await asyncio.sleep(fault.lasts)
        finally:
            fleet.provider.fails_with = None


def _between(bounds: tuple[float, float], share: float) -> float:
    return bounds[0] + share * (bounds[1] - bounds[0])


FAULTS: Final[Mapping[FaultKind, Callable[[Fleet, Fault], Awaitable[None]]]] = {
    FaultKind.KILL: _kill,
    FaultKind.STOP: _stop,
    FaultKind.SKEW_CLOCK: _skew,
    FaultKind.CUT_LINK: _cut_link,
    FaultKind.SLOW_LINK: _slow_link,
    FaultKind.RESTART_SERVER: _restart_server,
    FaultKind.PROMOTE_STANDBY: _promote,
    FaultKind.DISK_FULL: _disk_full,
    FaultKind.HELD_SNAPSHOT: _held_snapshot,
    FaultKind.SLOW_PROVIDER: _slow_provider,
    FaultKind.FAILING_PROVIDER: _failing_provider,
}
