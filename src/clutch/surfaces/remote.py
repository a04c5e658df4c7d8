"""The backend of a `Clutch` whose state directory another process owns: it asks that gateway over HTTP.

One stream of events serves all callers that wait for a task. A gateway that is started again is found again, and the
stream resumes; when it stays away, every waiting call raises NoGateway.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias
from urllib.parse import quote
from uuid import uuid4

from clutch.api.actions import ANSWER, Answering, ApiAction, B, InThread, Sending, camel, json_of
from clutch.api.handles import Event, Known, Question, TaskResult, item_of, question_of
from clutch.api.problems import error_of
from clutch.api.reads import Filter
from clutch.api.spawn import OnFullWord, snake
from clutch.api.views import Object
from clutch.api.wait import CLOSED
from clutch.contain import BackgroundTasks
from clutch.core.attachments import StoredFile
from clutch.core.messages import Usage
from clutch.core.model import Outcome
from clutch.core.text.format import typed
from clutch.errors import ClutchError, InvalidInput, NoGateway, NotFound
from clutch.surfaces import http_client
from clutch.surfaces.discovery import named_state
from clutch.surfaces.http_client import Declined, task_path
from clutch.transactions.questions import UnknownQuestion

if TYPE_CHECKING:
    import aiohttp

ANSWER_S = 90.0  #: the longest wait of a handler is a minute, unless it is asked for a longer one
CONNECT_S = 5.0
WAIT_S = 50.0  #: one question; asked again until there is an answer
AGAIN_S, GONE_S = 0.2, 30.0  #: between two looks for a gateway that went away, and when to stop looking
EVENT_BYTES_MAX = 4 * 1024 * 1024
ResponseReader: TypeAlias = Callable[[int, bytes], Any]


def _data(name: str, said: Mapping[str, Any]) -> str | Usage | None:
    """Return the data of an event as a program gets it that has the engine in its own process."""
    if name == "usage":
        return Usage(**{snake(field): value for field, value in said["usage"].items()})
    error: str | None = said["task"]["error"] if name == "lifecycle:error" else None
    return str(said["text"]) if "text" in said else error


class RemoteBackend:
    """Entered, it works until it is left."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._waiters: dict[str, asyncio.Future[TaskResult[Any]]] = {}
        self._waits = asyncio.Event()
        self._session: aiohttp.ClientSession

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Self]:
        """Connect. Raises NoGateway when there is no answer."""
        aiohttp = await asyncio.to_thread(importlib.import_module, "aiohttp")
        self._broken: tuple[type[Exception], ...] = (aiohttp.ClientError, OSError, TimeoutError)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=ANSWER_S, sock_connect=CONNECT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=EVENT_BYTES_MAX,
        )
        async with self._session:
            await self._get("/v1/health")
            async with BackgroundTasks() as tasks:
                tasks.start(self._watch(), "watch a gateway")
                try:
                    yield self
                finally:
                    self.give_up(ClutchError(CLOSED))

    def give_up(self, error: ClutchError) -> None:
        for future in self._waiters.values():
            if not future.done():
                future.set_exception(error)
                future.exception()  # marks it as read: a future that no caller awaits must not log it
        self._waiters.clear()

    # ---- asking --------------------------------------------------------------------------------------

    async def _get(self, path: str, **query: Any) -> Any:
        said = {name: http_client.query_text(value) for name, value in query.items() if value is not None}
        return await self._ask("GET", path, params=said)

    async def _post(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        key: str | None = None,
        heard: ResponseReader = http_client.heard,
        waits_s: float | None = None,
    ) -> Any:
        headers = {"Idempotency-Key": key or uuid4().hex}
        timeout = self._patient(waits_s or 0.0)
        return await self._ask("POST", path, heard, json=body or {}, headers=headers, timeout=timeout)

    async def _ask(
        self,
        method: str,
        path: str,
        heard: ResponseReader = http_client.heard,
        *,
        headers: Mapping[str, str] = {},
        **sent: Any,
    ) -> Any:
        """Send a request. One with a key is sent again when it was cut off: the second finds what the first did."""
        for is_last in (not headers, True):
            where, opened = self._place(path)
            try:
                async with self._session.request(method, where, headers={**opened, **headers}, **sent) as got:
                    return heard(got.status, await got.read())
            except Declined as declined:
                raise error_of(declined.said) from declined
            except self._broken as error:
                if is_last:
                    raise self._gone(f"does not answer: {error}") from error
        raise AssertionError("the last one raises")

    def _place(self, path: str) -> tuple[Any, dict[str, str]]:
        from yarl import URL  # aiohttp's own; a path that is quoted stays as it is

        found = http_client.connect(self._home)
        return URL(f"{found.address.url}{path}", encoded=True), {"Authorization": f"Bearer {found.token}"}

    # ---- one task ------------------------------------------------------------------------------------

    async def ended(self, task_id: str) -> TaskResult[Any]:
        future = self._waiters.get(task_id)
        if future is None:
            future = self._waiters[task_id] = asyncio.get_running_loop().create_future()
            self._waits.set()
            await self._look(task_id)
        return await asyncio.shield(future)

    async def known(self, task_id: str) -> Known:
        return _known(await self.info(task_id))

    async def info(self, task_id: str) -> Object:
        return dict(await self._get(task_path(task_id)))

    async def why(self, task_id: str) -> Object:
        return dict(await self._get(task_path(task_id, "why")))

    async def read_file(self, task_id: str, name: str) -> bytes:
        said = await self._get(task_path(task_id, "files", quote(name, safe="")))
        return base64.b64decode(said["content"])

    async def act(self, action: ApiAction[B], target: str, body: B) -> Mapping[str, Any]:
        path = re.sub("{.*}", quote(target, safe=""), action.path)
        waits_s = body.wait_seconds if isinstance(body, Sending) else None
        return dict(await self._post(path, json_of(body), waits_s=waits_s))

    # ---- waiting callers -----------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Follow the events while callers wait. After each connection all awaited tasks are read: none was missed."""
        since = asyncio.get_running_loop().time()
        while True:
            await self._waits.wait()
            try:
                async with aclosing(self._stream()) as stream:
                    async for name, said in stream:
                        since = asyncio.get_running_loop().time()
                        await self._heard(name, said)
            except NoGateway as error:
                if asyncio.get_running_loop().time() - since > GONE_S:
                    self.give_up(error)
            except ClutchError as error:
                self.give_up(error)
            await asyncio.sleep(AGAIN_S)

    async def _heard(self, name: str, said: Mapping[str, Any]) -> None:
        if name == "":
            for task_id in list(self._waiters):
                await self._look(task_id)
        elif (task := said.get("task")) is not None and task["outcome"] and task["taskId"] in self._waiters:
            await self._look(task["taskId"])
        if not self._waiters:
            self._waits.clear()

    async def _look(self, task_id: str) -> None:
        try:
            said = await self._get(task_path(task_id, "wait"), timeoutSeconds=0)
        except NoGateway:
            return  # the next connection looks again
        except ClutchError as error:
            if (future := self._waiters.pop(task_id, None)) is not None and not future.done():
                future.set_exception(error)
            return
        if said["result"] is not None and (future := self._waiters.pop(task_id, None)) is not None:
            future.set_result(_result(said["task"], said["result"]))

    async def _stream(self) -> AsyncGenerator[tuple[str, Mapping[str, Any]], None]:
        """Names and data of events; a nameless one when it is connected. Raises NoGateway when it is cut."""
        where, headers = self._place("/v1/events")
        try:
            async with self._session.get(where, headers=headers, timeout=self._patient()) as got:
                if got.status != 200:
                    http_client.heard(got.status, await got.read())
                yield "", {}
                name = ""
                async for line in got.content:
                    field, _, value = line.decode().rstrip("\n").partition(": ")
                    if field == "event":
                        name = value
                    elif field == "data":
                        yield name, json.loads(value)
        except self._broken as error:
            raise self._gone(f"went away: {error}") from error
        except Declined as declined:
            raise error_of(declined.said) from declined
        raise self._gone("closed its stream of events")

    def _gone(self, why: str) -> NoGateway:
        return NoGateway(f"the gateway of {self._home} {why}", typed("doctor", state=named_state(self._home)))

    def _patient(self, waits_s: float = 0.0) -> aiohttp.ClientTimeout:
        import aiohttp

        return aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=ANSWER_S + waits_s)

    # ---- many ----------------------------------------------------------------------------------------

    async def spawn(self, args: Mapping[str, Any], session: str, on_full: OnFullWord | None) -> Object:
        """Spawn; a refusal is returned. While a limit may free a place later, it asks again."""
        wanted = {"requester": session, "onFull": on_full, **args}
        body = {name: value for name, value in wanted.items() if value is not None}
        while True:
            try:
                key = args.get("idempotencyKey")
                answer = dict(await self._post("/v1/tasks", body, key, http_client.heard_spawn))
            except InvalidInput as error:
                field = "session" if error.field == "requester" else error.field
                raise InvalidInput(field, error.rule) from error
            limit = answer.get("limit", {})
            waits = (on_full or limit.get("onFull")) == "queue" and not args.get("dryRun")
            if not waits or not limit.get("hasRoomLater"):
                return answer
            await asyncio.sleep(AGAIN_S)

    async def tasks(self, asked: Filter) -> list[Known]:
        query = {camel(name): value for name, value in asdict(asked).items()}
        return [_known(task) for task in (await self._get("/v1/tasks", **query))["tasks"]]

    async def events(self) -> AsyncGenerator[Event, None]:
        async with aclosing(self._stream()) as stream:
            async for name, said in stream:
                if name and "taskId" in said:
                    of = said.get("task", said)
                    place = (of["runId"], of["sessionKey"], said["seq"])
                    yield Event(name, said["taskId"], _data(name, said), *place)

    async def schedules(self) -> Object:
        return dict(await self._get("/v1/schedules"))

    async def schedule(self, name: str) -> Object:
        return dict(await self._get(f"/v1/schedules/{quote(name, safe='')}"))

    async def inbox(self) -> list[Question]:
        return [question_of(item) for item in (await self._get("/v1/inbox"))["items"]]

    async def answer(self, question: Question, answer: Answering) -> None:
        try:
            await self.act(ANSWER, item_of(question), answer)
        except NotFound as error:
            raise UnknownQuestion(str(error)) from error

    # ---- talking -------------------------------------------------------------------------------------

    async def say(self, text: str, session: str, key: str | None) -> str:
        return str((await self._post(_session(session, "messages"), {"text": text}, key))["letterId"])

    async def command(self, line: str, session: str, key: str | None) -> str:
        return str((await self._post(_session(session, "command"), {"line": line}, key))["text"])

    async def notify(self, text: str, session: str) -> bool:
        return bool((await self._post(_session(session, "notify"), {"text": text}))["isNew"])

    async def wake(self, session: str) -> None:
        await self._post(_session(session, "wake"))

    async def receive_thread_message(self, said: InThread, key: str | None) -> None:
        await self._post("/v1/threads/messages", json_of(said), key)

    async def reply(self, session: str) -> str:
        while True:
            said = await self._ask("POST", _session(session, "replies"), json={"waitSeconds": WAIT_S})
            if said["reply"] is not None:
                heard = {"heard": said["id"], "waitSeconds": 0}
                await self._ask("POST", _session(session, "replies"), json=heard)
                return str(said["reply"])

    async def wait_idle(self, session: str) -> None:
        while not (await self._get(_session(session, "settled"), timeoutSeconds=WAIT_S))["settled"]:
            pass


def _session(key: str, what: str) -> str:
    return f"/v1/sessions/{quote(key, safe='')}/{what}"


def _known(task: Object) -> Known:
    return Known(task["taskId"], task["label"], task["sessionKey"] or "")


def _result(task: Object, result: Object) -> TaskResult[Any]:
    files = tuple(StoredFile(one["name"], one["bytes"], one["sha256"]) for one in result["files"])
    outcome, error = Outcome(result["outcome"]), task["error"]
    return TaskResult(outcome, result["text"], error, result["value"], files, task["taskId"])
