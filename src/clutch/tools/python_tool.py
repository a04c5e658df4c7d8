"""A Python function as a tool: its signature becomes the arguments, its docstring the description.

    async def forecast(city: str, days: int = 3, *, context: ToolContext) -> str: ...

A parameter of type ToolContext receives the context of the call. A plain `def` runs in a thread. A parameter that
cannot be described to a model is refused when the tool is registered, with its name and the fix.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, get_type_hints
from weakref import WeakKeyDictionary

from pydantic import BaseModel, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic_core import PydanticSerializationError, to_json

from clutch.errors import InvalidInput
from clutch.ports import ToolContext, ToolFailed
from clutch.tools.arguments import Arguments

THREADS_MAX = 32  # of one tool without a limit of its own
IDLE_S = 10.0  # before an idle thread ends

T = TypeVar("T")
Call = Callable[[Any, ToolContext], Awaitable[str]]


class ConcurrencyLimit:
    """Calls of one tool at once. A semaphore belongs to one event loop, so each loop has its own."""

    def __init__(self, count: int | None) -> None:
        self._count = count
        self._of: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    def slot(self) -> AbstractAsyncContextManager[None]:
        return contextlib.nullcontext() if self._count is None else self.semaphore(self._count)

    def semaphore(self, count: int) -> asyncio.Semaphore:
        return self._of.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(count))


class ThreadPool:
    """Threads that a caller may abandon: a cancelled call keeps its slot until its function returns.

    They are not those of the event loop, which waits for all of its own when it closes."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._slots = ConcurrencyLimit(count)

    async def run(self, function: Callable[[], T]) -> T:
        slots = self._slots.semaphore(self._count)
        await slots.acquire()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[tuple[T | None, Exception | None]] = loop.create_future()

        def finish(value: T | None, error: Exception | None) -> None:
            slots.release()
            if not done.done():
                done.set_result((value, error))

        def work() -> None:
            value, error = _outcome(function)
            with contextlib.suppress(RuntimeError):  # the loop is closed, and with it the caller
                loop.call_soon_threadsafe(finish, value, error)

        _in_thread(partial(contextvars.copy_context().run, work))
        value, error = await done
        if error is not None:
            raise error
        return value  # type: ignore[return-value]  # a value without an error is what the function returned


_idle: list[SimpleQueue[Callable[[], None]]] = []  #: one for each thread that waits


def _in_thread(work: Callable[[], None]) -> None:
    """Run work in an idle thread if there is one: starting a thread blocks the event loop until the thread runs."""
    try:
        inbox = _idle.pop()
    except IndexError:
        inbox = SimpleQueue()
        threading.Thread(target=_serve, args=(inbox,), daemon=True).start()
    inbox.put(work)


def _serve(inbox: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        try:
            inbox.get(timeout=IDLE_S)()
        except Empty:
            try:
                _idle.remove(inbox)
            except ValueError:
                continue  # `_in_thread` took it at this moment, and work follows
            return
        _idle.append(inbox)


def _outcome(function: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return function(), None
    except Exception as error:  # noqa: BLE001 - raised again where the caller waits
        return None, error
    except BaseException as error:  # noqa: BLE001 - a tool that wants to end the process only ends its call
        return None, RuntimeError(f"the tool raised {type(error).__name__}")


@dataclass(frozen=True, slots=True)
class PythonTool:
    name: str
    description: str
    arguments: type[Arguments]
    call: Call


def python_tool(function: Callable[..., Any], name: str | None, concurrency: int | None) -> PythonTool:
    """Raises InvalidInput for a function that cannot be a tool."""
    name = name or str(getattr(function, "__name__", type(function).__name__))
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInput(f"tool {name!r}", "is a generator; return the whole result instead")
    description = inspect.getdoc(function)
    if not description:
        raise InvalidInput(f"tool {name!r}", "has no description; write a docstring")
    types = _types(name, function)
    contexts = [parameter for parameter, kind in types.items() if kind is ToolContext]
    fields = {key: kind for key, kind in types.items() if key not in contexts}
    defaults = inspect.signature(function).parameters
    described = {_field(key): _described(name, defaults[key], kind) for key, kind in fields.items()}
    arguments = create_model(f"{name}_arguments", __base__=Arguments, **described)  # type: ignore[call-overload]
    call = _caller(function, list(fields), contexts, ThreadPool(concurrency or THREADS_MAX))
    return PythonTool(name, description, arguments, call)


def _types(name: str, function: Callable[..., Any]) -> Mapping[str, Any]:
    parameters = inspect.signature(function).parameters
    for parameter in parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise _wrong(
                name, parameter.name, "must be named in a call; list every parameter, without * and /"
            )
        if parameter.annotation is parameter.empty:
            raise _wrong(name, parameter.name, f"has no type; write for example `{parameter.name}: str`")
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        unknown = getattr(error, "name", None) or str(error)
        users = (one.name for one in parameters.values() if unknown in str(one.annotation))
        remedy = "import or define it in the module of the function, not only for type checkers"
        raise _wrong(name, next(users, "return"), f"has an unknown type {unknown!r}; {remedy}") from error
    return {parameter: hints[parameter] for parameter in parameters}


def _described(name: str, parameter: inspect.Parameter, kind: Any) -> tuple[Any, Any]:
    try:
        adapter = TypeAdapter(kind)
        adapter.json_schema()
    except (PydanticUserError, PydanticUndefinedAnnotation) as error:
        remedy = "use str, int, float, bool, list, dict, an enum, a dataclass or a pydantic model"
        raise _wrong(name, parameter.name, f"has a type that JSON does not know; {remedy}") from error
    if parameter.default is parameter.empty:
        return kind, Field(alias=parameter.name)
    try:
        adapter.validate_python(parameter.default, strict=True)
    except ValidationError as error:
        rule = f"has the default {parameter.default!r}, which is not of its type"
        raise _wrong(name, parameter.name, f"{rule}; change one of them") from error
    return kind, Field(parameter.default, alias=parameter.name)


def _wrong(tool: str, parameter: str, rule: str) -> InvalidInput:
    return InvalidInput(f"tool {tool!r}, parameter {parameter!r}", rule)


def _field(parameter: str) -> str:
    """A parameter may be named like a method of a pydantic model; a field may not."""
    return f"given_{parameter}"


def _caller(function: Callable[..., Any], names: list[str], contexts: list[str], threads: ThreadPool) -> Call:
    async def call(arguments: Any, context: ToolContext) -> str:
        given = {name: getattr(arguments, _field(name)) for name in names}
        given.update(dict.fromkeys(contexts, context))
        if inspect.iscoroutinefunction(function):
            return _text(await function(**given))
        return _text(await threads.run(lambda: function(**given)))

    return call


def _text(result: object) -> str:
    match result:
        case str():
            return result
        case None:
            return "done"
        case BaseModel():
            return result.model_dump_json(by_alias=True)
        case _:
            try:
                return to_json(result).decode()
            except PydanticSerializationError as error:
                kind = type(result).__name__
                raise ToolFailed(f"the tool returned a {kind}, which cannot become JSON") from error
