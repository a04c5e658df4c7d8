"""One configured server over all its lives: started when first needed, shared by everyone, started again.

Every failure is a ToolFailed that names the server and the remedy; no failure reaches another server. A life
ends when the server dies, or when it answered neither a call nor the question for its tools. The next use
starts it again: at once after the first failure, then with growing pauses until a call is answered.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clutch.core.pins import ToolOffer
from clutch.core.shown import visible
from clutch.errors import ClutchError
from clutch.ports import ToolContext, ToolFailed
from clutch.tools.mcp.differences import words
from clutch.tools.mcp.life import Life
from clutch.tools.mcp.naming import BadTool, Definition, changes, plain, vet
from clutch.tools.mcp.pins import Pins
from clutch.tools.mcp.settings import McpServer
from clutch.tools.mcp.wire import Gone, Refused, Wire

if TYPE_CHECKING:
    from mcp_types import CallToolResult

PAUSE_MAX_S = 60.0
RELIST_PAUSE_S = 1.0  # a server that announces changes without end is asked no more often than this
REASON_CHARS_MAX = 1500


class Server:
    def __init__(self, settings: McpServer, pins: Pins, folder: Path, on_tools: Callable[[], None]) -> None:
        self.settings = settings
        self.trouble: str | None = None  #: why it cannot be used now
        self._title = f'MCP server "{settings.name}"'
        self._pins = pins
        self._on_tools = on_tools
        self._folder = folder
        self._offered: Mapping[str, Definition] | None = None  #: None = not asked yet in this process
        self.refused: Mapping[str, str] = {}  #: tools that cannot be offered, and why
        self._rejected: Mapping[str, str] = {}  #: tools that a person does not want as they are now
        self._life: Life | None = None
        self._starting: asyncio.Task[Life] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._has_news = False
        self._failures = 0
        self._not_before = 0.0
        self._is_closed = False

    def usable(self) -> list[Definition]:
        """The approved definitions that the server still offers; a model never sees other words."""
        pinned = self._pins.tools(self.settings.name).values()
        return [
            tool for tool in pinned if self.settings.allows(tool.name) and self.why_not(tool.name) is None
        ]

    def offers(self) -> list[ToolOffer]:
        """What a person must approve: tools that are new, or no longer what was approved."""
        pinned = self._pins.tools(self.settings.name)
        return [
            _offer(self.settings.name, pinned.get(tool.name), tool)
            for tool in (self._offered or {}).values()
            if self.settings.allows(tool.name) and self.why_not(tool.name) is not None
        ]

    async def ask(self) -> None:
        """A person is asked about them, once."""
        if self._offered is not None:
            self._rejected = await self._pins.ask(self.settings.name, self.offers())

    def listed(self) -> set[str]:
        """Every tool it offers or offered, usable or not; none that the settings leave out."""
        names = {*self._pins.tools(self.settings.name), *(self._offered or {}), *self.refused}
        return {name for name in names if self.settings.allows(name)}

    def why_not(self, tool: str) -> str | None:
        """Why a tool is disabled, with the remedy; None when it is not."""
        before = self._pins.tools(self.settings.name).get(tool)
        if tool in self.refused:
            return f"is refused: {self.refused[tool]}; the server must be corrected"
        after = before if self._offered is None else self._offered.get(tool)
        if after is None:
            return "is not offered by the server; use another tool"
        approval = self._approval(tool)
        if before is None:
            return f"is new since the server was approved; {approval}"
        if different := changes(before, after):
            return f"is disabled: its {' and '.join(different)} changed since it was approved; {approval}"
        return None

    def _approval(self, tool: str) -> str:
        if (question := self._rejected.get(tool)) is not None:
            return f"a person rejected it ({question}), and only a person can take that back"
        return "a person must look at it in the inbox and approve it"

    async def call(self, tool: str, args: Mapping[str, Any], context: ToolContext) -> CallToolResult:
        """Raises ToolFailed."""
        life = await self.up()
        await self._heard_news()
        self._check(tool)
        limit = self.settings.call_timeout_s
        try:
            async with asyncio.timeout(limit):
                result = await life.connection.call(tool, args, _key(context))
        except TimeoutError as error:
            life.is_doubtful = True
            raise ToolFailed(
                f"{self._title} did not answer the call within {limit:g} s; whether it took effect is unknown. "
                f"Ask it for less, or a person raises mcp.servers.{self.settings.name}.call_timeout_s"
            ) from error
        except Gone as error:
            life.wire.ended.set()
            raise ToolFailed(
                f"{self._title} ended during the call; whether it took effect is unknown"
                f"{self._last_words(life.wire)}. It is started again at the next use"
            ) from error
        except Refused as error:
            raise ToolFailed(f"{self._title}: {self._clean(str(error))}") from error
        self._failures = 0
        return result

    async def refresh(self) -> None:
        """What it offered before it ended, or before its last news, may be the past; so may what was approved.
        Raises ToolFailed."""
        await self.up()
        await self._heard_news()
        if await self._pins.look():
            self._on_tools()
        await self.ask()

    async def up(self) -> Life:
        """The running connection, started if need be; many may wait for one start. Raises ToolFailed."""
        if self._is_closed:
            raise ToolFailed(f"{self._title} is closed: Clutch is stopping")
        if self._starting is None:
            if self._life is not None and self._life.is_sound:
                return self._life
            self._starting = asyncio.create_task(self._started())
            self._starting.add_done_callback(self._is_started)
        starting = self._starting
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            if starting.cancelled() and self._is_closed:  # the start was, not whoever waits for it
                raise ToolFailed(f"{self._title} is closed: Clutch is stopping") from None
            raise

    async def close(self) -> None:
        self._is_closed = True
        tasks = [task for task in (self._starting, self._asking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._life is not None:
            await self._life.end()

    def _is_started(self, task: asyncio.Task[Life]) -> None:
        self._starting = None
        if not task.cancelled():
            task.exception()  # whoever waited has it, and perhaps nobody waited to the end

    async def _started(self) -> Life:
        if self._life is not None:
            if await self._answers(self._life):
                return self._life
            self._life.wire.is_up = False  # no use in asking it to stop
            await self._life.end()
        pause = self._not_before - asyncio.get_running_loop().time()
        if pause > 0:
            raise ToolFailed(f"{self.trouble}. It can be tried again in {pause:.0f} s")
        life = Life(self.settings, Wire())
        try:
            await life.begin(self._folder, self._news, lambda: self._ended(life))
            await self._take_in(await life.tools())
        except Exception as error:  # a stranger's program, a library's task groups
            await life.end()
            raise ToolFailed(self._failed(self._why(error, life.wire))) from error
        self._life = life
        self.trouble = None
        if self._has_news:
            self._news()
        return life

    async def _answers(self, life: Life) -> bool:
        """Whether a server that left a call unanswered still does anything."""
        try:
            await self._take_in(await life.tools())
        except (Gone, Refused, TimeoutError):
            return False
        life.is_doubtful = False
        return True

    def _ended(self, life: Life) -> None:
        if self._life is life:
            self._life = None
            if not self._is_closed:
                self._failed(f"ended{self._last_words(life.wire)}; see its own log for why")

    def _failed(self, why: str) -> str:
        self.trouble = f"{self._title} {why}"
        pause = 0.0 if self._failures == 0 else min(PAUSE_MAX_S, 2.0 ** (self._failures - 1))
        self._failures += 1
        self._not_before = asyncio.get_running_loop().time() + pause
        return self.trouble

    def _news(self) -> None:
        self._has_news = True
        if self._life is not None and self._asking is None and not self._is_closed:
            self._asking = asyncio.create_task(self._ask_again(self._life))

    async def _ask_again(self, life: Life) -> None:
        try:
            while self._has_news:
                self._has_news = False
                await self._take_in(await life.tools())
                if self._has_news:
                    await asyncio.sleep(RELIST_PAUSE_S)
        except (Gone, Refused, TimeoutError, OSError, ClutchError):
            life.is_doubtful = True  # the next use asks again, or starts it anew
        finally:
            self._asking = None

    async def _heard_news(self) -> None:
        if self._asking is not None:
            await asyncio.wait([self._asking], timeout=self.settings.connect_timeout_s)

    async def _take_in(self, tools: list[Definition]) -> None:
        offered, refused = await asyncio.to_thread(_sorted_out, tools)
        await self._pins.see(self.settings.name, offered)
        self._offered, self.refused = offered, refused
        self._on_tools()
        await self.ask()

    def _check(self, tool: str) -> None:
        if (why := self.why_not(tool)) is not None:
            raise ToolFailed(f"tool {visible(tool, 80)} of {self._title} {why}")

    def _why(self, error: BaseException, wire: Wire) -> str:
        """What went wrong at a start, and what a person can do about it."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        field = f"mcp.servers.{self.settings.name}.{'url' if self.settings.command is None else 'command'}"
        match error:
            case TimeoutError():
                limit = self.settings.connect_timeout_s
                why, remedy = (
                    f"did not answer within {limit:g} s of its start",
                    f"check {field}, or raise connect_timeout_s",
                )
            case OSError():
                why, remedy = f"cannot be started: {error.strerror or error}", f"check {field} and cwd"
            case Gone():
                why, remedy = "ended during its start", f"run {field} by hand to see why"
            case Refused():
                why, remedy = self._clean(str(error)), f"check {field} and the server's own log"
            case _:
                why, remedy = self._clean(f"failed with {type(error).__name__}: {error}"), f"check {field}"
        return f"{why}{self._last_words(wire)}; {remedy}"

    def _last_words(self, wire: Wire) -> str:
        words = self._clean(wire.last_words(self.settings.without_secrets))
        return f" ({words})" if words else ""

    def _clean(self, text: str) -> str:
        return plain(self.settings.without_secrets(text), REASON_CHARS_MAX)


def _offer(server: str, before: Definition | None, after: Definition) -> ToolOffer:
    approved = None if before is None else before.as_json()
    return ToolOffer(after.name, approved, after.as_json(), words(server, before, after))


def _sorted_out(tools: Iterable[Definition]) -> tuple[dict[str, Definition], dict[str, str]]:
    offered: dict[str, Definition] = {}
    refused: dict[str, str] = {}
    for tool in tools:
        try:
            vet(tool)
            if offered.setdefault(tool.name, tool) is not tool:
                raise BadTool("the server lists it twice")
        except BadTool as error:
            refused[tool.name] = str(error)
    return {name: tool for name, tool in offered.items() if name not in refused}, refused


def _key(context: ToolContext) -> str:
    """Stable like the key of the call, and tells a stranger nothing about the session."""
    return hashlib.sha256(context.key.encode()).hexdigest()[:32]
