"""A typed Python function is a tool: checked arguments, an end, a limit, and clear words when it cannot be."""

from __future__ import annotations

import asyncio
import contextvars
import datetime as dt
import json
import re
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from pydantic import BaseModel, Field

from clutch.errors import InvalidInput
from clutch.ports import ToolContext, ToolFailed
from clutch.tools import python_tool
from clutch.tools.registry import Tools
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from fractions import Fraction

pytestmark = pytest.mark.anyio

CONTEXT = ToolContext("/w", "agent:main:main", "key-1")


class Unit(StrEnum):
    C = "celsius"
    F = "fahrenheit"


class Place(BaseModel):
    city: str
    near: list[Place] | None = None


@dataclass
class Report:
    day: dt.date
    degrees: float


def one_tool(function: Callable[..., Any], **flags: Any) -> Tools:
    tools = Tools()
    tools.tool(**flags)(function)
    return tools


async def test_the_signature_is_the_schema_and_the_docstring_the_description() -> None:
    tools = Tools()

    @tools.tool(
        read_only=True, replay_safe=True, needs_approval=True, timeout_s=5, concurrency=2, is_outward=True
    )
    async def forecast(
        city: Annotated[str, Field(description="Where.")],
        days: int = 3,
        unit: Unit | None = None,
        *,
        context: ToolContext,
    ) -> str:
        """What the weather will be.

        For a few days."""
        return f"{city} {days} {unit} {context.key}"

    spec = tools.specs()[0]
    assert (spec.name, spec.description) == ("forecast", "What the weather will be.\n\nFor a few days.")
    assert (spec.read_only, spec.replay_safe, spec.needs_approval, spec.is_outward) == (True,) * 4
    assert (spec.timeout_s, spec.concurrency) == (5, 2)
    assert spec.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where."},
            "days": {"type": "integer", "default": 3},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        },
        "required": ["city"],
    }
    assert await tools.run("forecast", {"city": "Ulm", "unit": "celsius"}, CONTEXT) == "Ulm 3 celsius key-1"
    assert await forecast("Ulm", context=CONTEXT) == "Ulm 3 None key-1", "it is still a function"


@pytest.mark.parametrize(
    ("args", "rule"),
    [
        ({}, "city: is required"),
        ({"city": 1}, "city: must be a valid string"),
        ({"city": "x", "days": "3"}, "days: must be a valid integer"),
        ({"city": "x", "days": True}, "days: must be a valid integer"),
        ({"city": "x", "dais": 3}, "dais: is not a known field; did you mean 'days'? known are: city, days"),
        ({"city": "x", "context": {}}, "context: is not a known field"),
    ],
)
async def test_wrong_arguments_are_told_and_nothing_runs(args: dict[str, object], rule: str) -> None:
    ran = []

    def forecast(city: str, days: int = 3, *, context: ToolContext) -> str:
        """The weather."""
        ran.append(city)
        return ""

    with pytest.raises(ToolFailed, match=f"^{re.escape(rule)}"):
        await one_tool(forecast).run("forecast", args, CONTEXT)
    assert ran == []


async def test_types_of_json_become_types_of_python() -> None:
    async def show(
        day: dt.date, place: Place, unit: Unit, pair: tuple[int, str], json: str, copy: int
    ) -> str:
        """Show."""
        return f"{day!r} {place.city} {place.near and place.near[0].city} {unit!r} {pair} {json} {copy}"

    args = {
        "day": "2026-02-01",
        "place": {"city": "Ulm", "near": [{"city": "Bonn"}]},
        "unit": "celsius",
        "pair": [1, "x"],
        "json": "names of methods",
        "copy": 1,
    }
    assert await one_tool(show).run("show", args, CONTEXT) == (
        "datetime.date(2026, 2, 1) Ulm Bonn <Unit.C: 'celsius'> (1, 'x') names of methods 1"
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("text", "text"),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        (Place(city="Ulm"), '{"city":"Ulm","near":null}'),
        (Report(dt.date(2026, 1, 2), 1.5), '{"day":"2026-01-02","degrees":1.5}'),
        ([Place(city="Ulm")], '[{"city":"Ulm","near":null}]'),
        (3, "3"),
        (None, "done"),
    ],
)
async def test_a_result_that_is_no_text_becomes_json(value: object, text: str) -> None:
    def give() -> Any:
        """Give."""
        return value

    assert await one_tool(give).run("give", {}, CONTEXT) == text


async def test_a_result_that_cannot_become_json_is_told() -> None:
    def give() -> object:
        """Give."""
        return object()

    with pytest.raises(ToolFailed, match="returned a object, which cannot become JSON"):
        await one_tool(give).run("give", {}, CONTEXT)


def no_type(city) -> str:  # type: ignore[no-untyped-def]
    """x"""
    return ""


def many(*cities: str) -> str:
    """x"""
    return ""


def any_words(**words: str) -> str:
    """x"""
    return ""


def by_place(city: str, /) -> str:
    """x"""
    return ""


def odd_type(callback: Callable[[], None]) -> str:
    """x"""
    return ""


def thread_type(lock: threading.Thread) -> str:
    """x"""
    return ""


def unknown_type(share: Fraction) -> str:
    """x"""
    return ""


def bad_default(days: int = "3") -> str:  # type: ignore[assignment]
    """x"""
    return ""


def no_docstring(city: str) -> str:
    return city


async def stream(city: str) -> AsyncIterator[str]:
    """x"""
    yield city


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (no_type, "tool 'no_type', parameter 'city': has no type; write for example `city: str`"),
        (many, "tool 'many', parameter 'cities': must be named in a call; list every parameter"),
        (any_words, "tool 'any_words', parameter 'words': must be named in a call"),
        (by_place, "tool 'by_place', parameter 'city': must be named in a call"),
        (odd_type, "tool 'odd_type', parameter 'callback': has a type that JSON does not know; use str"),
        (thread_type, "tool 'thread_type', parameter 'lock': has a type that JSON does not know; use str"),
        (unknown_type, "tool 'unknown_type', parameter 'share': has an unknown type 'Fraction'; import"),
        (bad_default, "tool 'bad_default', parameter 'days': has the default '3', which is not of its type"),
        (no_docstring, "tool 'no_docstring': has no description; write a docstring"),
        (stream, "tool 'stream': is a generator; return the whole result instead"),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_refused_with_parameter_and_remedy(
    function: Callable[..., Any], message: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        one_tool(function)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    "flags", [{"timeout_s": 0}, {"timeout_s": -1.0}, {"timeout_s": float("nan")}, {"concurrency": 0}]
)
def test_limits_that_let_nothing_run_are_refused(flags: dict[str, Any]) -> None:
    async def fine(city: str) -> str:
        """x"""
        return city

    with pytest.raises(InvalidInput, match=rf"^tool 'fine', {next(iter(flags))}: must be .*; leave it out"):
        one_tool(fine, **flags)


async def test_a_call_that_takes_too_long_is_cancelled_and_told() -> None:
    cancelled = asyncio.Event()

    async def slow() -> str:
        """x"""
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return ""

    with pytest.raises(ToolFailed, match=r"^slow: no answer within 0\.05 s; it was given up$"):
        await one_tool(slow, timeout_s=0.05).run("slow", {}, CONTEXT)
    assert cancelled.is_set()


async def test_a_timeout_of_the_tool_itself_is_its_own_error() -> None:
    async def impatient() -> str:
        """x"""
        raise TimeoutError("the server of the tool")

    with pytest.raises(ToolFailed, match=r"^TimeoutError: the server of the tool$"):
        await one_tool(impatient, timeout_s=60).run("impatient", {}, CONTEXT)


async def test_a_thread_that_was_given_up_keeps_its_seat_until_it_ends() -> None:
    free = threading.Event()
    runs = []

    def slow() -> str:
        """x"""
        runs.append(1)
        assert free.wait(30)
        return "at last"

    tools = one_tool(slow, timeout_s=0.05, concurrency=1)
    for _ in range(2):
        with pytest.raises(ToolFailed, match="no answer within"):
            await tools.run("slow", {}, CONTEXT)
    assert runs == [1], "the second call found no seat, and did not run later either"
    free.set()
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                assert await tools.run("slow", {}, CONTEXT) == "at last"
                break
            except ToolFailed:
                continue
    assert runs == [1, 1]


async def test_a_thread_is_used_again_and_ends_when_nobody_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: list[Any] = []
    monkeypatch.setattr(python_tool, "_idle", waiting)
    used: list[threading.Thread] = []

    def remember() -> str:
        """x"""
        used.append(threading.current_thread())
        return ""

    tools = one_tool(remember)
    for _ in range(3):
        await tools.run("remember", {}, CONTEXT)
        while not waiting:  # noqa: ASYNC110 - a thread tells nobody that it waits
            await asyncio.sleep(0)
    monkeypatch.setattr(python_tool, "IDLE_S", 0.01)
    await tools.run("remember", {}, CONTEXT)
    assert len(set(used)) == 1
    used[0].join(10)
    assert (used[0].is_alive(), waiting) == (False, [])
    await tools.run("remember", {}, CONTEXT)
    assert used[-1] is not used[0]


@pytest.mark.parametrize("is_async", [True, False])
async def test_no_more_calls_run_at_once_than_are_allowed(is_async: bool) -> None:
    running: list[int] = []
    most: list[int] = []
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def work() -> str:
        """x"""
        running.append(1)
        most.append(len(running))
        if len(most) == 3:
            loop.call_later(0.02, gate.set)
        await gate.wait()
        running.pop()
        return ""

    def in_thread() -> str:
        """x"""
        return asyncio.run_coroutine_threadsafe(work(), loop).result(30)

    tools = one_tool(work if is_async else in_thread, concurrency=3)
    name = tools.specs()[0].name
    await asyncio.gather(*(tools.run(name, {}, CONTEXT) for _ in range(12)))
    assert (len(most), max(most)) == (12, 3)


async def test_a_plain_function_sees_the_context_of_its_caller_and_never_stops_the_loop() -> None:
    caller = contextvars.ContextVar("caller", default="nobody")
    caller.set("the test")
    ticked = threading.Event()

    def wait() -> str:
        """x"""
        assert ticked.wait(30)
        return f"{caller.get()} {threading.current_thread().daemon}"

    waiting = asyncio.ensure_future(one_tool(wait).run("wait", {}, CONTEXT))
    asyncio.get_running_loop().call_later(0.01, ticked.set)
    assert await waiting == "the test True"


@pytest.mark.parametrize(
    "error", [RuntimeError("broken"), SystemExit(3), StopIteration(), KeyboardInterrupt()]
)
async def test_whatever_a_plain_function_raises_only_its_call_fails(error: BaseException) -> None:
    def fail() -> str:
        """x"""
        raise error

    with pytest.raises(ToolFailed, match=f"broken|{type(error).__name__}"):
        await one_tool(fail).run("fail", {}, CONTEXT)


def test_the_same_tools_serve_one_event_loop_after_another() -> None:
    async def work(number: int) -> str:
        """x"""
        await asyncio.sleep(0)
        return str(number)

    tools = one_tool(work, concurrency=1)

    async def both() -> list[str]:
        return await asyncio.gather(*(tools.run("work", {"number": n}, CONTEXT) for n in range(3)))

    for _ in range(2):
        assert asyncio.run(both()) == ["0", "1", "2"]


async def test_other_spellings_count_only_where_they_are_accepted() -> None:
    def shell(command: str) -> str:
        """x"""
        return command

    for accepts in (True, False):
        tools = Tools(aliases=accepts)
        tools.tool()(shell)
        aliases = {spec.name: spec.aliases for spec in tools.specs()}
        assert aliases["shell"] == (("bash",) if accepts else ())
        assert ("spawn_subagent" in aliases["sessions_spawn"]) is accepts
        with pytest.raises(ToolFailed, match="no tool named 'bash'; there are: shell"):
            await tools.run("bash", {"command": "ls"}, CONTEXT)


async def test_tools_come_and_go() -> None:
    def here(city: str) -> str:
        """x"""
        return city

    tools = one_tool(here)
    tools.remove("here")
    assert "here" not in [spec.name for spec in tools.specs()]
    tools.tool()(here)
    assert await tools.run("here", {"city": "x"}, CONTEXT) == "x"


def test_a_type_that_contains_itself_is_described_by_name() -> None:
    def visit(place: Place) -> str:
        """x"""
        return place.city

    schema = one_tool(visit).specs()[0].parameters
    assert schema["properties"]["place"] == {"$ref": "#/$defs/Place"}
    near = schema["$defs"]["Place"]["properties"]["near"]
    assert near == {"items": {"$ref": "#/$defs/Place"}, "type": "array"}
    assert "title" not in json.dumps(schema)


def test_a_field_that_is_called_like_a_word_of_the_schema_stays() -> None:
    def book(title: str, default: int = 0, description: bool = False) -> str:
        """x"""
        return title

    properties = one_tool(book).specs()[0].parameters["properties"]
    assert properties == {
        "title": {"type": "string"},
        "default": {"type": "integer", "default": 0},
        "description": {"type": "boolean"},
    }
