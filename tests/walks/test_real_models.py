"""Whole stories through the public API, against a server that speaks the providers' wire formats."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pytest

from clutch import AdapterKind, Clutch, InvalidInput, Limits, Policy, Provider, Sandbox, ToolSettings
from clutch.core.messages import Usage
from clutch.core.model import Lane
from clutch.core.policy import Announcing, Life, Work
from clutch.testing.providers import (
    Failure,
    Fault,
    Gate,
    How,
    Piece,
    Providers,
    Reply,
    Silence,
    Text,
    ToolCall,
    WireRequest,
    turns,
)
from clutch.transactions.read import transcripts
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

Behave: TypeAlias = Callable[[WireRequest], Reply | Failure | Silence]
BODY_BYTES_MAX = 6000
ONE_ROOM = Policy(
    limits=Limits(),
    life=Life(provider_retries_s=(0.01, 0.01)),
    announcing=Announcing(debounce_s=0.01),
    work=Work(lanes={Lane.MAIN: 4, Lane.SUBAGENT: 8}, tick_s=0.05, stop_s=0.5),
)
#: name of the provider, its adapter, the language it speaks
ADAPTERS = {
    "direct": (AdapterKind.DIRECT, "openai-chat"),
    "chat": (AdapterKind.LIBRARY, "openai-chat"),
    "anthropic": (AdapterKind.LIBRARY, "anthropic"),
}


@asynccontextmanager
async def story(
    tmp_path: Path, adapter: str, behave: Behave, policy: Policy = ONE_ROOM
) -> AsyncIterator[tuple[Clutch, Providers]]:
    kind, speaks = ADAPTERS[adapter]
    (tmp_path / "work").mkdir(exist_ok=True)
    async with Providers(behave) as server:
        url = server.anthropic_url if speaks == "anthropic" else server.openai_url
        provider = Provider("lab", base_url=url, api_key="k", adapter=kind, speaks=speaks)
        clutch = Clutch(
            state=tmp_path / "state",
            model="lab:m",
            providers=[provider],
            policy=policy,
            workspace=tmp_path / "work",
            settings=ToolSettings(sandbox=Sandbox.ON),
        )
        async with asyncio.timeout(PATIENCE_S), clutch:
            yield clutch, server


def said(request: WireRequest) -> int:
    """How often the model has answered in this conversation."""
    return sum(turn.role in ("assistant", "call") for turn in turns(request))


def is_child(request: WireRequest) -> bool:
    return any(turn.role == "system" and "You are a subagent" in turn.text for turn in turns(request))


def last_text(request: WireRequest) -> str:
    return turns(request)[-1].text


@pytest.mark.parametrize("adapter", ADAPTERS)
async def test_a_parent_delegates_a_child_works_with_tools_and_the_result_comes_back(
    tmp_path: Path, adapter: str
) -> None:
    def behave(request: WireRequest) -> Reply:
        if is_child(request):
            if not said(request):
                return Reply([ToolCall("read", ('{"path":', '"notes.txt"}'))], usage=Usage(100, 10))
            return Reply([Text(f"The note says {last_text(request)!r}")], usage=Usage(120, 20))
        if not said(request):
            spawn = json.dumps({"task": "read the notes, please, all", "label": "notes"})
            return Reply(
                [ToolCall("sessions_spawn", (spawn,)), ToolCall("sessions_yield")], usage=Usage(50, 5)
            )
        return Reply(
            [Text("Told: water the plants" if "water the plants" in last_text(request) else "Nothing")]
        )

    async with story(tmp_path, adapter, behave) as (clutch, server):
        (tmp_path / "work/notes.txt").write_text("water the plants\n")
        await clutch.say("What do the notes say?")
        assert await clutch.reply() == "Told: water the plants"
        await clutch.wait_idle()
        assert not server.log.repeated
        ledger = await clutch.services.db.read(_ledger)
    billed = server.log.billed
    assert ledger == (len(server.log.calls), billed.input, billed.output)
    first_of_child = next(call.request for call in server.log.calls if is_child(call.request))
    assert first_of_child.size <= BODY_BYTES_MAX, first_of_child.size


def _ledger(now: float):  # type: ignore[no-untyped-def]
    del now
    rows = yield "SELECT COUNT(*), SUM(input), SUM(output) FROM usage WHERE state = 1", ()
    return tuple(int(value) for value in rows[0])


@pytest.mark.parametrize("adapter", ADAPTERS)
async def test_a_watcher_sees_each_chunk_before_the_next_is_sent(tmp_path: Path, adapter: str) -> None:
    words = ["one ", "two ", "three ", "four"]
    gates = [asyncio.Event() for _ in words]
    pieces: list[Piece] = [
        piece for word, gate in zip(words, gates, strict=True) for piece in (Text(word), Gate(gate))
    ]
    async with story(tmp_path, adapter, lambda _: Reply(pieces)) as (clutch, _):

        async def watch() -> None:
            seen = ""
            async for event in clutch.events():
                if event.name == "assistant:text":
                    seen += str(event.data)
                    for count, gate in enumerate(gates, 1):
                        if seen.startswith("".join(words[:count])):
                            gate.set()

        watching = asyncio.create_task(watch())
        await asyncio.sleep(0)
        await clutch.say("count")
        assert await clutch.reply() == "one two three four"
        watching.cancel()


async def test_a_watcher_that_never_reads_slows_nobody(tmp_path: Path) -> None:
    many: list[Piece] = [Text("x")] * 3000
    async with story(tmp_path, "direct", lambda _: Reply(many)) as (clutch, _):
        asleep = clutch.events()
        first = asyncio.ensure_future(anext(asleep))
        await asyncio.sleep(0)
        await clutch.say("talk")
        assert await clutch.reply() == "x" * 3000
        assert (await first).name == "lifecycle:start"
        await asleep.aclose()


async def test_a_rate_limit_parks_the_run_without_a_slot_and_it_goes_on_by_itself(tmp_path: Path) -> None:
    refused = False

    def behave(request: WireRequest) -> Reply | Failure:
        nonlocal refused
        if is_child(request) and not refused:
            refused = True
            return Failure(Fault.RATE_LIMIT, headers={"Retry-After": "3"})
        return Reply([Text("done")])

    async with story(tmp_path, "direct", behave) as (clutch, server):
        task = await clutch.spawn("work")
        seen: set[tuple[str, str]] = set()
        while not await _ended(clutch, task.id):
            seen |= await _standing(clutch)
            await asyncio.sleep(0.02)
        assert (await task).text == "done"
    assert ("paused", "quota") in seen
    assert len([call for call in server.log.calls if is_child(call.request)]) == 2


async def _ended(clutch: Clutch, task_id: str) -> bool:
    del task_id
    return all(row.outcome is not None for row in await _tree(clutch))


async def _standing(clutch: Clutch) -> set[tuple[str, str]]:
    return {(row.phase, row.reason) for row in await _tree(clutch)}


async def _tree(clutch: Clutch) -> list[transcripts.TreeRow]:
    root, _ = await clutch.local_gateway.session("agent:main:main")
    return await clutch.services.db.read(transcripts.tree, root)


@pytest.mark.parametrize("adapter", ADAPTERS)
async def test_a_kill_reaches_the_provider_at_once(tmp_path: Path, adapter: str) -> None:
    arrived = asyncio.Event()

    def behave(request: WireRequest) -> Reply | Silence:
        if is_child(request):
            arrived.set()
            return Silence()
        return Reply([Text("ok")])

    async with story(tmp_path, adapter, behave) as (clutch, server):
        task = await clutch.spawn("wait")
        await arrived.wait()
        (call,) = [call for call in server.log.calls if is_child(call.request)]
        await task.kill("enough")
        await asyncio.wait_for(call.ended.wait(), PATIENCE_S)
        assert call.how is How.LEFT
        assert (await task).outcome == "killed"


async def test_a_command_is_killed_with_its_task(tmp_path: Path) -> None:
    def behave(request: WireRequest) -> Reply:
        if is_child(request) and not said(request):
            return Reply([ToolCall("shell", (json.dumps({"command": "echo $$ > pid; sleep 600"}),))])
        return Reply([Text("ok")])

    async with story(tmp_path, "direct", behave) as (clutch, _):
        task = await clutch.spawn("sleep")
        while not (tmp_path / "work/pid").exists():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.02)
        await task.kill("enough")
        while await asyncio.to_thread(_sleepers):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.02)


def _sleepers() -> list[str]:
    found = []
    for status in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = status.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:2] == [b"sleep", b"600"]:
            found.append(str(status))
    return found


async def test_a_wrong_model_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="did you mean 'anthropic'"):
        async with Clutch(state=tmp_path / "a", model="antropic:x"):
            pass
    provider = Provider("lab", base_url="http://127.0.0.1:1/v1", api_key_env="LAB_KEY")
    with pytest.raises(InvalidInput, match="LAB_KEY"):
        async with Clutch(state=tmp_path / "b", model="lab:x", providers=[provider]):
            pass


async def test_a_child_with_a_model_or_a_runtime_nobody_knows_is_refused_before_any_side_effect(
    tmp_path: Path,
) -> None:
    async with story(tmp_path, "direct", lambda _: Reply([Text("ok")])) as (clutch, _):
        with pytest.raises(InvalidInput, match="there is no provider 'nobody'"):
            _ = await clutch.spawn("x", model="nobody:m")
        with pytest.raises(InvalidInput, match="there is no 'robot' here; known: subagent"):
            _ = await clutch.spawn("x", runtime="robot")
        assert await _tree(clutch) == []


async def test_a_dead_address_is_given_up_after_a_few_tries(tmp_path: Path) -> None:
    life = Life(provider_retries_s=(0.01, 0.01), error_grace_s=0.05)
    dead = Provider("lab", base_url="http://127.0.0.1:9/v1", api_key="k", adapter=AdapterKind.DIRECT)
    async with Clutch(
        state=tmp_path / "state",
        model="lab:m",
        providers=[dead],
        policy=replace(ONE_ROOM, life=life),
        workspace=tmp_path,
    ) as clutch:
        result = await asyncio.wait_for((await clutch.spawn("x")).result(), PATIENCE_S)
    assert result.outcome == "error"
    assert "Cannot connect" in (result.error or "")
    assert "(3 times)" in (result.error or "")
