"""Clutch works between entering and leaving; outside of it every call says so at once, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import clutch
from clutch import Clutch, ClutchError, StateDirectoryInUse, Task
from clutch.api.gateway import PROGRAM
from clutch.api.slash import MAIN_SESSION
from clutch.core.messages import Answer, Input
from clutch.engine.actions import TaskActions
from clutch.ports import ModelRequest, OnDelta
from clutch.store.state_directory import StateDirectory
from clutch.transactions.read import transcripts
from tests.patience import PATIENCE_S
from tests.policies import QUICK

pytestmark = pytest.mark.anyio

CALLS: dict[str, Callable[[Clutch], Awaitable[Any]]] = {
    "spawn": lambda c: c.spawn("something"),
    "get": lambda c: c.get("t_z"),
    "say": lambda c: c.say("hello"),
    "reply": lambda c: c.reply(),
    "wait_idle": lambda c: c.wait_idle(),
}


class Yes:
    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        return Answer("yes", model="yes")


def made(state: Path) -> Clutch:
    return Clutch(state=state, models=Yes(), policy=QUICK, workspace=state.parent)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_call_before_entering_says_how_to_enter(
    tmp_path: Path, call: Callable[[Clutch], Awaitable[Any]]
) -> None:
    with pytest.raises(ClutchError, match="async with Clutch"):
        await call(made(tmp_path / "state"))
    assert not (tmp_path / "state").exists()


async def test_every_call_after_leaving_says_that_it_is_closed(tmp_path: Path) -> None:
    async with made(tmp_path / "state") as c:
        task = await c.spawn("end before I leave")
        await task
    calls: list[Callable[[], Awaitable[Any]]] = [
        *(lambda call=call: call(c) for call in CALLS.values()),
        lambda: result_of(task),
        task.kill,
        lambda: task.steer("too late"),
    ]
    for call in calls:
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(ClutchError, match="this Clutch is closed"):
                await call()


async def result_of(task: Task) -> Any:
    return await task


async def test_whoever_listens_when_it_closes_is_told(tmp_path: Path) -> None:
    async with made(tmp_path / "state") as c:
        listening = asyncio.create_task(c.reply())
        done, _ = await asyncio.wait([listening], timeout=5 * QUICK.work.tick_s)
        assert not done
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(ClutchError, match="this Clutch is closed"):
            await listening


async def test_it_is_entered_once(tmp_path: Path) -> None:
    c = made(tmp_path / "state")
    async with c:
        with pytest.raises(ClutchError, match="entered before; make a new one"):
            await c.__aenter__()
        assert (await (await c.spawn("still works"))).is_ok
    with pytest.raises(ClutchError, match="entered before; make a new one"):
        async with c:
            raise AssertionError


async def test_one_that_could_not_be_entered_is_closed(tmp_path: Path) -> None:
    async with made(tmp_path / "state"):
        c = made(tmp_path / "state")
        with pytest.raises(StateDirectoryInUse, match=r"pid \d+\); .*stop it, or use another"):
            async with c:
                raise AssertionError
        with pytest.raises(ClutchError, match="this Clutch is closed"):
            await c.say("hello")


class WaitNotice(logging.Handler):
    """Notices that a program waits until the owner of its state directory is served."""

    def __init__(self) -> None:
        super().__init__()
        self.came = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "is not served yet" in record.getMessage():
            self.came.set()


async def test_one_that_starts_together_with_the_owner_waits_until_that_is_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As two workers of one web server do: the owner has the directory and is not served yet."""
    monkeypatch.setattr("clutch.wiring.clutch.OWNER_START_S", PATIENCE_S)
    caplog.set_level("INFO", "clutch")
    logging.getLogger("clutch").addHandler(notice := WaitNotice())
    home = tmp_path / "state"
    async with asyncio.timeout(PATIENCE_S):
        with StateDirectory(home):
            other = Clutch(home)
            opening = asyncio.ensure_future(other.__aenter__())
            await notice.came.wait()
        logging.getLogger("clutch").removeHandler(notice)
        async with Clutch(home, models=Yes(), policy=QUICK, workspace=tmp_path):
            assert (await opening).is_client
            assert (await (await other.spawn("something"))).text == "yes"
            await other.__aexit__(None, None, None)


async def test_beside_an_owner_that_is_never_served_opening_fails_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clutch.wiring.clutch.OWNER_START_S", 10 * PATIENCE_S)
    home = tmp_path / "state"
    async with Clutch(home, models=Yes(), policy=QUICK, workspace=tmp_path, serve=False):
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(StateDirectoryInUse, match=r"\(pid \d+\)"):
                await Clutch(home).__aenter__()
    async with Clutch(home, models=Yes(), policy=QUICK, workspace=tmp_path), Clutch(home) as other:
        assert other.is_client, "the mark goes with its owner"


def test_every_public_name_is_there() -> None:
    for name in clutch.__all__:
        assert getattr(clutch, name) is not None
    assert dir(clutch) == sorted(clutch.__all__)
    for name in ("InvalidInput", "SpawnRefused", "NotFound", "NotPossible", "UnknownTask", "StoreLost"):
        assert issubclass(getattr(clutch, name), ClutchError)


def test_importing_the_package_loads_nothing_else() -> None:
    script = (
        "import clutch, sys; clutch.ClutchError; print({'asyncio', 'pydantic', 'apsw'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# ---- a main session that was deleted -----------------------------------------------------------------


@pytest.mark.parametrize("keep_transcript", [False, True])
async def test_words_and_tasks_for_a_main_session_that_was_deleted_are_not_lost(
    tmp_path: Path, keep_transcript: bool
) -> None:
    """Deleted, it begins anew; archived, it comes back with what was said in it."""
    async with made(tmp_path / "state") as c:
        await c.say("one")
        assert await c.reply() == "yes"
        first, _ = await c.local_gateway.session(MAIN_SESSION)
        await TaskActions(c.services).delete(PROGRAM, first, keep_transcript=keep_transcript)
        async with asyncio.timeout(PATIENCE_S):
            assert (await (await c.spawn("something", on_full="reject"))).text == "yes"
            await c.say("two")
            said, second = list[str](), 0
            while "two" not in said:  # the result of the child may have had a turn of its own before
                assert await c.reply() == "yes"
                second, _ = await c.local_gateway.session(MAIN_SESSION)
                entries = await c.services.db.read(transcripts.transcript, second)
                said = [entry.text for entry in entries if isinstance(entry, Input)]
        assert (second == first) == keep_transcript
        assert ("one" in said) == keep_transcript
