"""Words to people: they wait until their channel is there, are sent with a stable key, and nothing is dropped."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from clutch.core.delivery import SendUnsure
from clutch.core.policy import Announcing, Policy, Work
from clutch.engine.outbox import OutboxSender
from clutch.errors import StoreError
from clutch.ports import Channel
from clutch.store.transaction import Tx
from clutch.transactions import delivery, outbox
from clutch.transactions.sessions import Stale
from clutch.wiring import Engine, running_engine
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

RULES = Announcing(first_s=0.001, fast_tries=3, slow=False)
QUICK = Policy(work=Work(tick_s=0.02, stop_s=0.05), announcing=RULES)


class Recording:
    """A channel that raises what it is given, one per send, and then takes everything."""

    def __init__(self, *troubles: BaseException) -> None:
        self.troubles = list(troubles)
        self.sent: list[tuple[str, str, str]] = []
        self.tries = 0

    async def send(self, target: str, body: str, key: str) -> str | None:
        self.tries += 1
        if self.troubles:
            raise self.troubles.pop(0)
        self.sent.append((target, body, key))
        return f"receipt {len(self.sent)}"


class Hanging:
    def __init__(self) -> None:
        self.is_asked = asyncio.Event()

    async def send(self, target: str, body: str, key: str) -> str | None:
        self.is_asked.set()
        await asyncio.Event().wait()
        return None


@dataclass(frozen=True)
class Place:
    state: Path | None = None
    database: str | None = None


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "sqlite":
        return Place(state=tmp_path / "state")
    return Place(database=request.getfixturevalue("postgres_dsn"))


def engine(place: Place, policy: Policy = QUICK, **channels: Channel) -> Any:
    return running_engine(state=place.state, database=place.database, policy=policy, channels=channels)


async def post(running: Engine, key: str, body: str = "hello", channel: str = "mail") -> None:
    await running.db.tx((), outbox.post, 1, key, f"{channel}:ada", body)


def row(now: float, key: str) -> Tx[dict[str, Any]]:
    names = ("owner", "attempts", "due", "done_at", "receipt", "error", "outcome")
    rows = yield (
        "SELECT owner, attempts, due, done_at, receipt, error, outcome FROM outbox WHERE idem = ?",
        (key,),
    )
    return dict(zip(names, rows[0], strict=True))


async def until(running: Engine, key: str, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The row, once it is so. Looked at after every commit that tells of a change."""
    changed = asyncio.Event()
    running.db.listen(lambda hints: changed.set())
    async with asyncio.timeout(PATIENCE_S):
        while not is_so(found := await running.db.read(row, key)):
            await changed.wait()
            changed.clear()
    return found


def is_done(found: dict[str, Any]) -> bool:
    return found["done_at"] is not None


def has_error(found: dict[str, Any]) -> bool:
    return found["error"] is not None


async def test_a_stop_frees_what_was_not_sent_and_what_a_hanging_channel_was_given_is_unsure(
    place: Place,
) -> None:
    stack = AsyncExitStack()
    channels: dict[str, Any] = {"mail": Hanging(), "other": Hanging()}
    running = await stack.enter_async_context(engine(place, **channels))
    for name, channel in channels.items():
        await post(running, name, channel=name)
        await channel.is_asked.wait()
        await post(running, f"{name} next", channel=name)
    leaving = asyncio.create_task(stack.aclose())
    for _ in range(5):
        await asyncio.sleep(0)
    assert running.services.stopping.is_set()
    await leaving
    async with engine(place) as again:
        left = [await again.db.read(row, name) for name in channels]
        free = [await again.db.read(row, f"{name} next") for name in channels]
    assert [(one["owner"], one["due"], one["outcome"]) for one in left] == [(None, None, "unsure")] * 2
    assert [(one["owner"], one["due"] is None, one["outcome"]) for one in free] == [(None, False, None)] * 2


async def test_a_cancelled_courier_ends_also_where_the_store_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that fails is why everything is cancelled: what is not noted must not keep the process from ending."""
    channel = Hanging()
    async with engine(Place(state=tmp_path / "state")) as running:
        courier = OutboxSender(running.worker, "mail", channel)
        await post(running, "k1")

        async def unwilling(*given: Any) -> Any:
            raise StoreError("gone")

        with pytest.RaisesGroup(ZeroDivisionError):
            async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
                courier.start(group)
                await channel.is_asked.wait()
                monkeypatch.setattr(running.db, "tx", unwilling)
                raise ZeroDivisionError
        monkeypatch.undo()


async def test_words_are_sent_again_where_the_store_failed_after_the_send_and_once_more(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither that they were sent nor that they are free could be written: nobody else would ever send them."""
    mail, failures = Recording(), [delivery.done, outbox.free, outbox.free]

    def unwilling(ask: Callable[..., Any]) -> Callable[..., Any]:
        async def asked(*given: Any) -> Any:
            if failures and failures[0] in given:
                failures.pop(0)
                raise StoreError("not now")
            return await ask(*given)

        return asked

    async with engine(place, mail=mail) as running:
        for name in ("tx", "alone"):
            monkeypatch.setattr(running.db, name, unwilling(getattr(running.db, name)))
        await post(running, "k1")
        found = await until(running, "k1", is_done)
    assert failures == []
    assert (found["owner"], [key for _, _, key in mail.sent]) == (None, ["k1", "k1"])


async def test_words_for_a_channel_nobody_attached_wait_and_are_then_sent_once(place: Place) -> None:
    other, mail = Recording(), Recording()
    async with engine(place, other=other) as running:
        await post(running, "k1")
        await post(running, "k2", channel="other")
        await until(running, "k2", is_done)
        waiting = await running.db.read(row, "k1")
    assert (waiting["attempts"], waiting["done_at"], waiting["owner"]) == (0, None, None)
    async with engine(place, mail=mail) as running:
        found = await until(running, "k1", is_done)
    assert found["receipt"] == "receipt 1"
    async with engine(place, mail=mail) as running:
        await post(running, "k3")
        await until(running, "k3", is_done)
    assert mail.sent == [("ada", "hello", "k1"), ("ada", "hello", "k3")]


async def test_a_courier_with_nothing_to_free_writes_nothing(place: Place) -> None:
    async with engine(place, mail=Recording()) as running:
        await post(running, "k1")
        await until(running, "k1", is_done)
        assert "free" not in running.db.stats.by_function


async def test_words_of_one_channel_arrive_in_order(place: Place) -> None:
    mail = Recording()
    async with engine(place) as running:
        for number in range(45):
            await post(running, f"k{number}", str(number))
    async with engine(place, mail=mail) as running:
        await until(running, "k44", is_done)
    assert [body for _, body, _ in mail.sent] == [str(number) for number in range(45)]


async def test_a_failed_send_is_tried_again_with_the_same_key(place: Place) -> None:
    mail = Recording(ConnectionError("no route"), ConnectionError("no route"))
    async with engine(place, mail=mail) as running:
        await post(running, "k1")
        found = await until(running, "k1", is_done)
    assert (mail.tries, found["attempts"], found["error"]) == (3, 3, None)
    assert mail.sent == [("ada", "hello", "k1")]


async def test_words_that_cannot_be_sent_stay_with_their_error(place: Place) -> None:
    mail = Recording(*[ConnectionError("no route")] * 3)
    async with engine(place, mail=mail) as running:
        await post(running, "k1")
        found = await until(running, "k1", lambda found: found["attempts"] == 3 and not found["owner"])
    assert (found["due"], found["done_at"]) == (None, None)
    assert found["error"] == "ConnectionError: no route"


async def test_a_permanent_error_is_not_tried_again(place: Place) -> None:
    mail = Recording(PermissionError("you are blocked"))
    async with engine(place, mail=mail) as running:
        await post(running, "k1")
        found = await until(running, "k1", has_error)
    assert (found["due"], found["done_at"], mail.tries) == (None, None, 1)


async def test_a_send_without_an_answer_is_unsure_and_not_sent_again(place: Place) -> None:
    policy = Policy(work=QUICK.work, announcing=Announcing(send_timeout_s=0.01))
    async with engine(place, policy, mail=Hanging()) as running:
        await post(running, "k1")
        found = await until(running, "k1", has_error)
    assert (found["outcome"], found["error"]) == ("unsure", "no answer within 0.01 s")
    assert (found["due"], found["done_at"]) == (None, None)


@pytest.mark.parametrize(
    "cut", [ConnectionResetError("reset"), BrokenPipeError(), SendUnsure("cut"), EOFError(), KeyError("id")]
)
async def test_a_connection_cut_after_the_send_is_unsure_and_not_sent_again(
    place: Place, cut: Exception
) -> None:
    mail = Recording(cut)
    async with engine(place, mail=mail) as running:
        await post(running, "k1")
        found = await until(running, "k1", has_error)
        await post(running, "k2")
        await until(running, "k2", is_done)
    async with engine(place, mail=mail) as running:
        await post(running, "k3")
        await until(running, "k3", is_done)
    assert (found["outcome"], found["due"]) == ("unsure", None)
    assert type(cut).__name__ in found["error"]
    assert [key for _, _, key in mail.sent] == ["k2", "k3"]


async def test_a_refused_connection_is_tried_again(place: Place) -> None:
    mail = Recording(ConnectionRefusedError("nobody listens"))
    async with engine(place, mail=mail) as running:
        await post(running, "k1")
        found = await until(running, "k1", is_done)
    assert (mail.tries, found["outcome"], found["error"]) == (2, None, None)


async def test_a_channel_that_hangs_holds_up_no_other(place: Place) -> None:
    policy = Policy(work=QUICK.work, announcing=Announcing(send_timeout_s=0.3))
    quick = Recording()
    async with engine(place, policy, mail=Hanging(), quick=quick) as running:
        await post(running, "k1")
        await post(running, "k2", channel="quick")
        await until(running, "k2", is_done)
        assert (await running.db.read(row, "k1"))["error"] is None


async def test_what_a_dead_process_was_sending_is_sent_again_with_the_same_key(place: Place) -> None:
    async with engine(place) as running:
        await post(running, "k1")
        (parcel,) = await running.db.alone(outbox.claim, running.worker.id, "mail", 10)
    mail = Recording()
    async with engine(place, mail=mail) as running:
        found = await until(running, "k1", is_done)
    assert mail.sent == [("ada", "hello", parcel.key)]
    assert found["attempts"] == 2


class Refusals(logging.Handler):
    """Notes that a sender has refused to send because its lease has run out."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "lease" in record.getMessage():
            self.seen.set()


@pytest.fixture
def refusals() -> Iterator[Refusals]:
    heard, log = Refusals(), logging.getLogger("clutch.engine.outbox")
    log.addHandler(heard)
    yield heard
    log.removeHandler(heard)


async def test_a_process_whose_lease_ran_out_sends_nothing_until_it_is_renewed(
    tmp_path: Path, refusals: Refusals
) -> None:
    mail = Recording()
    async with engine(Place(state=tmp_path / "state"), mail=mail) as running:
        running.worker.lease.until = 0.0
        await post(running, "k1")
        async with asyncio.timeout(60):
            await refusals.seen.wait()
        assert mail.tries == 0
        running.worker.lease.until = math.inf
        found = await until(running, "k1", is_done)
    assert mail.tries == 1
    assert found["attempts"] > 1


async def test_a_worker_that_was_declared_dead_claims_no_words(place: Place) -> None:
    async with engine(place) as running:
        await post(running, "k1")
        with pytest.raises(Stale):
            await running.db.alone(outbox.claim, 101, "mail", 7)


async def test_what_was_not_sent_is_logged_with_its_target_the_error_the_attempt_and_the_next_one(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    class Refusing:
        async def send(self, target: str, body: str, key: str) -> str | None:
            raise ConnectionRefusedError("connection refused")

    async with engine(place, mail=Refusing()) as running:
        await post(running, "one")
        await until(running, "one", lambda found: found["attempts"] > 1)
    first = next(record.getMessage() for record in caplog.records if "failed" in record.getMessage())
    assert first.startswith(
        "mail → ada failed: ConnectionRefusedError: connection refused (attempt 1, next in "
    )
