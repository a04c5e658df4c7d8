"""Outbox → one channel: claim what is due, send it in order, write down what became of it.

One sender per attached channel, so that a channel that hangs holds up no other. What may have been read is not
sent again (`core.delivery`); only a process that dies between the send and the note sends again, with the same key.
Decides nothing about when to try again (`transactions.delivery`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from clutch.contain import cause, contained
from clutch.core.delivery import may_have_arrived
from clutch.core.policy import Policy
from clutch.core.text.format import duration
from clutch.engine.worker import Worker
from clutch.errors import ClutchError, StoreError
from clutch.logs import logger
from clutch.ports import Channel
from clutch.store.transaction import LOOK
from clutch.transactions import delivery, outbox
from clutch.transactions.outbox import OutboxMessage
from clutch.transactions.sessions import Stale

log = logger(__name__)

BATCH_MAX = 20  # claimed at once; the rest stays free for another worker's sender
ERROR_CHARS_MAX = 200
STOPPED = "the gateway stopped before the channel answered"


async def work(worker: Worker, channels: Mapping[str, Channel]) -> None:
    """A worker and its senders, until it is stopped."""
    senders = [OutboxSender(worker, name, channel) for name, channel in channels.items()]
    worker.before_leaving = [sender.stop for sender in senders]
    async with asyncio.TaskGroup() as group:
        for sender in senders:
            sender.start(group)
        await worker.run()
        for sender in senders:
            await sender.stop()  # a worker that was declared dead meanwhile has not said so


class OutboxSender:
    def __init__(self, worker: Worker, name: str, channel: Channel) -> None:
        self.worker, self.name, self.channel = worker, name, channel
        self._is_stopping = False
        self._hinted = asyncio.Event()
        worker.services.db.listen(self._hear)

    def _hear(self, hints: Sequence[Any]) -> None:
        if any(hint in (("outbox", self.name), LOOK) for hint in hints):
            self._hinted.set()

    def start(self, group: asyncio.TaskGroup) -> None:
        self._life = group.create_task(self._run())

    async def stop(self) -> None:
        """Before its worker leaves. What is being sent gets a while; cut off, it is unsure whether it arrived."""
        self._is_stopping = True
        self._hinted.set()
        await asyncio.wait([self._life], timeout=self.worker.services.policy.work.stop_s)
        self._life.cancel()
        await asyncio.wait([self._life])
        try:
            await self._free()
        except StoreError as error:  # a worker that leaves frees everything
            self._complain(error)

    async def _run(self) -> None:
        """After trouble from the beginning: what still bears our name would never be due again."""
        await self.worker.ready.wait()
        while not self._is_stopping:
            try:
                await self._free()
                await self._deliver()
            except (StoreError, Stale) as error:  # declared dead: our worker comes back under a new number
                self._complain(error)
                await asyncio.sleep(self.worker.services.policy.work.tick_s)

    async def _deliver(self) -> None:
        while not self._is_stopping:
            self._hinted.clear()
            self._beat()
            moment = await self.worker.services.db.read(outbox.next_due, self.name)
            if not await self._pass(moment):
                await self._rest(moment)

    def _beat(self) -> None:
        """One send may take as long as its timeout, and a pass is many sends."""
        services = self.worker.services
        services.pulses.beat(
            f"outbox {self.name}", self.worker.clock.now(), services.policy.announcing.send_timeout_s
        )

    async def _free(self) -> None:
        """Nothing is being sent now; whatever still bears our name is due again."""
        db, mine = self.worker.services.db, (self.worker.id, self.name)
        if await db.read(outbox.is_stranded, *mine):
            await db.alone(outbox.free, *mine)

    def _complain(self, error: ClutchError) -> None:
        log.warning(
            "Outbox of channel %s: %s (next try in %g s)",
            self.name,
            error,
            self.worker.services.policy.work.tick_s,
        )

    async def _pass(self, moment: float | None) -> bool:
        """True: something was sent or tried, so there may be more."""
        services, owner = self.worker.services, self.worker.id
        if moment is None or moment > self.worker.clock.now():
            return False
        parcels = await services.db.alone(outbox.claim, owner, self.name, BATCH_MAX)
        for parcel in parcels:
            if self._is_stopping:
                break
            # Nothing awaits between this check and the send: a process that was frozen after its claim must not send
            # what another worker has sent meanwhile.
            self.worker.lease.check()
            await self._send(owner, parcel)
            self._beat()
        return bool(parcels)

    async def _send(self, owner: int, parcel: OutboxMessage) -> None:
        services = self.worker.services
        patience = asyncio.timeout(services.policy.announcing.send_timeout_s)
        known = (services.policy, owner, parcel)
        keys = () if parcel.task_id is None else (parcel.task_id,)
        try:
            async with patience:
                with contained():
                    receipt = await self.channel.send(parcel.target, parcel.body, parcel.key)
        except PermissionError as error:
            await services.db.tx(keys, delivery.refused, *known, _said(error))
            self._warn(parcel, "not sent", _said(error))
        except asyncio.CancelledError:
            try:
                await services.db.tx(keys, delivery.unconfirmed, *known, STOPPED)
            except (
                StoreError
            ) as error:  # it may be why everything ends: the cancellation must not be lost for it
                self._complain(error)
            raise
        except Exception as error:  # noqa: BLE001 - a channel is foreign code
            if patience.expired() or may_have_arrived(error):
                await self._unsure(keys, known, _said(error) if not patience.expired() else self._late())
                return
            due = await services.db.tx(keys, delivery.failed, *known, _said(error))
            self._warn(parcel, "failed", _said(error), due)
        else:
            await services.db.tx(keys, delivery.done, *known, receipt)

    async def _unsure(
        self, keys: tuple[int, ...], known: tuple[Policy, int, OutboxMessage], why: str
    ) -> None:
        await self.worker.services.db.tx(keys, delivery.unconfirmed, *known, why)
        self._warn(known[2], "may not have arrived", why)

    def _late(self) -> str:
        return f"no answer within {self.worker.services.policy.announcing.send_timeout_s:g} s"

    def _warn(self, parcel: OutboxMessage, what: str, error: str, due: float | None = None) -> None:
        """To which target, why it failed, which attempt it was, and when the next one is."""
        target = f" → {parcel.target}" if parcel.target else ""
        after_s = None if due is None else max(0.0, due - self.worker.clock.now())
        following = "not retried" if after_s is None else f"next in {duration(after_s)}"
        log.warning("%s%s %s: %s (attempt %d, %s)", self.name, target, what, error, parcel.attempt, following)

    async def _rest(self, moment: float | None) -> None:
        services = self.worker.services
        pause_s = services.look_s
        if moment is not None:
            pause_s = min(pause_s, max(0.001, moment - self.worker.clock.now()))
        try:
            async with asyncio.timeout(pause_s):
                await self._hinted.wait()
        except TimeoutError:
            pass


def _said(error: Exception) -> str:
    text = " ".join(cause(error).split())
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()[:ERROR_CHARS_MAX]
