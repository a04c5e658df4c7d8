"""Outbox → one channel: claim what is due, send it in order, write down what became of it.

One courier per attached channel, so that a channel that hangs holds up nobody else. Sending is at least
once: a process that dies between the send and the note sends again, with the same key. Decides nothing
about when to try again (`protocol.sending`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from clutch.engine.dispatcher import Worker
from clutch.errors import ClutchError, StoreError
from clutch.ports import Channel
from clutch.protocol import outbox, sending
from clutch.protocol.outbox import Parcel
from clutch.protocol.sessions import Stale
from clutch.store.door import LOOK

log = logging.getLogger(__name__)

BATCH_MAX = 20  # claimed at once; the rest stays free for another worker's courier
ERROR_CHARS_MAX = 200


async def work(worker: Worker, channels: Mapping[str, Channel]) -> None:
    """A worker and its couriers, until it is stopped."""
    couriers = [Courier(worker, name, channel) for name, channel in channels.items()]
    worker.before_leaving = [courier.stop for courier in couriers]
    async with asyncio.TaskGroup() as group:
        for courier in couriers:
            courier.start(group)
        await worker.run()
        for courier in couriers:
            await courier.stop()  # a worker that was declared dead meanwhile has not said so


class Courier:
    def __init__(self, worker: Worker, name: str, channel: Channel) -> None:
        self.worker, self.name, self.channel = worker, name, channel
        self._is_stopping = False
        self._hinted = asyncio.Event()
        worker.kit.door.listen(self._hear)

    def _hear(self, hints: Sequence[Any]) -> None:
        if any(hint in (("outbox", self.name), LOOK) for hint in hints):
            self._hinted.set()

    def start(self, group: asyncio.TaskGroup) -> None:
        self._life = group.create_task(self._run())

    async def stop(self) -> None:
        """Before its worker leaves. What is being sent gets a while; cut off, it is sent again later."""
        self._is_stopping = True
        self._hinted.set()
        await asyncio.wait([self._life], timeout=self.worker.kit.policy.work.stop_s)
        self._life.cancel()
        await asyncio.wait([self._life])
        try:
            await self._free()
        except StoreError as error:  # whoever leaves frees everything
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
                await asyncio.sleep(self.worker.kit.policy.work.tick_s)

    async def _deliver(self) -> None:
        while not self._is_stopping:
            self._hinted.clear()
            self._beat()
            if not await self._pass():
                await self._rest()

    def _beat(self) -> None:
        """One send may take as long as its timeout, and a pass is many sends."""
        kit = self.worker.kit
        kit.pulses.beat(f"courier {self.name}", self.worker.clock.now(), kit.policy.announcing.send_timeout_s)

    async def _free(self) -> None:
        """Nothing is being sent now; whatever still bears our name is due again."""
        await self.worker.kit.door.alone(outbox.free, self.worker.id, self.name)

    def _complain(self, error: ClutchError) -> None:
        log.warning("store not available", extra={"channel": self.name, "error": str(error)})

    async def _pass(self) -> bool:
        """True: something was sent or tried, so there may be more."""
        kit, owner = self.worker.kit, self.worker.id
        moment = await kit.door.read(outbox.next_due, self.name)
        if moment is None or moment > self.worker.clock.now():
            return False
        parcels = await kit.door.alone(outbox.claim, owner, self.name, BATCH_MAX)
        for parcel in parcels:
            if self._is_stopping:
                break
            await self._send(owner, parcel)
            self._beat()
        return bool(parcels)

    async def _send(self, owner: int, parcel: Parcel) -> None:
        kit = self.worker.kit
        patience = asyncio.timeout(kit.policy.announcing.send_timeout_s)
        known = (kit.policy, owner, parcel)
        keys = () if parcel.task_id is None else (parcel.task_id,)
        try:
            async with patience:
                receipt = await self.channel.send(parcel.target, parcel.body, parcel.key)
        except PermissionError as error:
            await kit.door.tx(keys, sending.refused, *known, _said(error))
        except Exception as error:  # noqa: BLE001 - a channel is a stranger's code; whatever it raised is tried again
            if patience.expired():
                await kit.door.tx(keys, sending.unheard, *known)
                return
            log.warning("not sent", extra={"channel": self.name, "key": parcel.key, "error": _said(error)})
            await kit.door.tx(keys, sending.failed, *known, _said(error))
        else:
            await kit.door.tx(keys, sending.done, *known, receipt)

    async def _rest(self) -> None:
        kit = self.worker.kit
        pause_s = kit.policy.work.tick_s
        moment = await kit.door.read(outbox.next_due, self.name)
        if moment is not None:
            pause_s = min(pause_s, max(0.001, moment - self.worker.clock.now()))
        try:
            async with asyncio.timeout(pause_s):
                await self._hinted.wait()
        except TimeoutError:
            pass


def _said(error: Exception) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()[:ERROR_CHARS_MAX]
