"""A small external agent: speaks ACP over stdio with the official library, and does what its prompt says.

    clutch-test: echo|stream|fail|wait …   as `clutch.testing.runtimes` wants it
    clutch-test: edit PATH                 makes one call that changes a file, with a permission first
    clutch-test: sulk PATH                 the same, and ends its turn as cancelled when it is not given
    clutch-test: orphan PATH               starts a process that leaves the group, writes its number, waits
    clutch-test: die                       ends in the middle
    clutch-test: until PATH                says "there" when there is such a file
    clutch-test: probe PATH                says all its variables, what is in the file, and what the client makes of
                                           being asked for it
    clutch-test: recall                    says everything it was ever told in this session
    clutch-test: form                      asks for a name and a colour, and says what came back
    clutch-test: page                      asks to open a page, and says what came back
    clutch-test: delegate                  has a subagent that searches and asks before it edits

Run as `python acp_agent.py [SESSIONS]`; with a directory it keeps its sessions there and can load them.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any, cast

import acp
from acp.schema import (
    AgentCapabilities,
    ElicitationFormSessionMode,
    ElicitationIntegerPropertySchema,
    ElicitationSchema,
    ElicitationStringPropertySchema,
    ElicitationUrlSessionMode,
    InitializeResponse,
    LoadSessionResponse,
    NewSessionResponse,
    PermissionOption,
    PromptResponse,
    ToolCallUpdate,
    Usage,
)
from pydantic import AnyUrl

COMMAND = re.compile(r"clutch-test: (\w+) ?(.*)")
OPTIONS = [
    PermissionOption(option_id="always", name="Always", kind="allow_always"),
    PermissionOption(option_id="once", name="Once", kind="allow_once"),
    PermissionOption(option_id="no", name="No", kind="reject_once"),
]


def read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        return f"cannot: {error.strerror}"


def write(path: str, text: str) -> None:
    new = Path(f"{path}.new")
    new.write_text(text)
    new.rename(path)


def leave_the_group() -> int:
    return subprocess.Popen(["/bin/sleep", "600"], start_new_session=True).pid


MAP_NORESERVE = 0x4000  # Python has no name for it


class Obedient:
    def __init__(self, sessions: Path | None) -> None:
        self._sessions = sessions
        self._told: dict[str, list[str]] = {}
        self._cancelled = asyncio.Event()
        self._client: Any = None
        self._meta: dict[str, Any] = {}

    def on_connect(self, conn: Any) -> None:
        self._client = conn

    async def initialize(self, protocol_version: int, **more: Any) -> InitializeResponse:
        can_load = AgentCapabilities(load_session=self._sessions is not None)
        return InitializeResponse(protocol_version=protocol_version, agent_capabilities=can_load)

    async def new_session(self, cwd: str, **more: Any) -> NewSessionResponse:
        name = uuid.uuid4().hex
        self._told[name] = []
        os.chdir(cwd)
        return NewSessionResponse(session_id=name)

    async def load_session(self, cwd: str, session_id: str, **more: Any) -> LoadSessionResponse:
        assert self._sessions is not None
        try:
            self._told[session_id] = json.loads((self._sessions / session_id).read_text())
        except OSError:
            raise acp.RequestError.invalid_params({"session": session_id}) from None
        os.chdir(cwd)
        for words in self._told[session_id]:
            await self._client.session_update(
                session_id, acp.update_agent_message_text(f"(long ago) {words}")
            )
        return LoadSessionResponse()

    async def cancel(self, session_id: str, **more: Any) -> None:
        self._cancelled.set()

    async def prompt(self, session_id: str, prompt: list[Any], **more: Any) -> PromptResponse:
        text = "".join(block.text for block in prompt)
        told = self._told[session_id]
        told.append(text)
        if self._sessions is not None:
            (self._sessions / session_id).write_text(json.dumps(told))
        self._meta = more
        verb, words = COMMAND.findall(text)[-1]
        said = await getattr(self, f"_{verb}")(session_id, words)
        await self._say(session_id, said)
        if self._cancelled.is_set():
            return PromptResponse(stop_reason="cancelled")
        usage = Usage(total_tokens=30, input_tokens=20, output_tokens=10)
        return PromptResponse(stop_reason="end_turn", usage=usage)

    async def _say(self, session_id: str, text: str) -> None:
        await self._client.session_update(session_id, acp.update_agent_message_text(text))

    async def _echo(self, session_id: str, words: str) -> str:
        return words

    async def _trace(self, session_id: str, words: str) -> str:
        return str(self._meta.get("traceparent"))

    async def _stream(self, session_id: str, words: str) -> str:
        await self._client.session_update(session_id, acp.update_agent_thought_text("hm"))
        for word in words.split()[:-1]:
            await self._say(session_id, word)
        return words.split()[-1]

    async def _fail(self, session_id: str, words: str) -> str:
        raise acp.RequestError(-32603, words)

    async def _wait(self, session_id: str, words: str) -> str:
        await self._cancelled.wait()
        return ""

    async def _until(self, session_id: str, words: str) -> str:
        while read(words).startswith("cannot"):  # noqa: ASYNC110 - another process makes it, without an event
            await asyncio.sleep(0.02)
        return "there"

    async def _die(self, session_id: str, words: str) -> str:
        print("out of paper, api_key=sk-live-0123456789abcdefXYZ", file=sys.stderr, flush=True)
        os._exit(3)

    async def _probe(self, session_id: str, words: str) -> str:
        try:
            served = str(await self._client.read_text_file(session_id=session_id, path=words))
        except acp.RequestError as error:
            served = f"refused: {error.code}"
        return json.dumps({"env": dict(os.environ), "read": read(words), "served": served})

    async def _reserve(self, session_id: str, words: str) -> str:
        """Address space that is never used, as runtimes of JavaScript do."""
        held = mmap.mmap(-1, int(words) << 30, flags=mmap.MAP_PRIVATE | MAP_NORESERVE)
        return f"reserved {len(held) >> 30} GiB"

    async def _hog(self, session_id: str, words: str) -> str:
        self._held = bytearray(int(words) << 20)
        return await self._wait(session_id, words)

    async def _recall(self, session_id: str, words: str) -> str:
        return json.dumps(self._told[session_id])

    async def _form(self, session_id: str, words: str) -> str:
        name = ElicitationStringPropertySchema(type="string", title="Name")
        number = ElicitationIntegerPropertySchema(
            type="integer", title="How many", description="at least one"
        )
        colour = ElicitationStringPropertySchema(type="string", enum=["red", "blue"])
        fields: Any = {"name": name, "count": number, "colour": colour, "why": name}
        schema = ElicitationSchema(properties=fields, required=["count", "colour"])
        mode = ElicitationFormSessionMode(session_id=session_id, requested_schema=schema)
        said = await self._client.create_elicitation("What shall I paint?", mode)
        return json.dumps(said.model_dump(exclude_none=True))

    async def _page(self, session_id: str, words: str) -> str:
        mode = ElicitationUrlSessionMode(
            session_id=session_id, elicitation_id="e1", url=AnyUrl("https://example.org/connect?x=1")
        )
        said = await self._client.create_elicitation("Please connect.", mode)
        return json.dumps(said.model_dump(exclude_none=True))

    async def _delegate(self, session_id: str, words: str) -> str:
        """As Claude's adapter reports its `Task`."""

        async def report(update: Any, **meta: str) -> None:
            update.field_meta = {"claudeCode": meta}
            await self._client.session_update(session_id, update)

        below = {"parentToolUseId": "p1"}
        await report(acp.start_tool_call("p1", "Find the bug", kind="think"), toolName="Task")
        await report(acp.start_tool_call("c1", "grep TODO", kind="search"), toolName="Grep", **below)
        await report(acp.update_agent_message_text("words of the subagent"), **below)
        call = ToolCallUpdate(tool_call_id="c1", title="grep TODO", raw_input={"pattern": "TODO"})
        asked = await self._client.request_permission(session_id=session_id, tool_call=call, options=OPTIONS)
        await report(acp.update_tool_call("c1", status="completed"), **below)
        await report(acp.update_tool_call("p1", status="completed"), toolName="Task")
        return f"delegated: {asked.outcome.option_id}"

    async def _orphan(self, session_id: str, words: str) -> str:
        write(words, f"{leave_the_group()} {os.getpid()}")
        return await self._wait(session_id, words)

    async def _sulk(self, session_id: str, words: str) -> str:
        said = await self._edit(session_id, words)
        self._cancelled.set()
        return said

    async def _edit(self, session_id: str, words: str) -> str:
        await self._say(session_id, "I will change it.")
        path = os.path.join(os.getcwd(), words)
        started = acp.start_edit_tool_call("c1", f"Edit {words}", path, "new\n")
        await self._client.session_update(session_id, started)
        call = ToolCallUpdate(tool_call_id="c1", title=f"Edit {words}", raw_input={"text": "new\n"})
        asked = await self._client.request_permission(session_id=session_id, tool_call=call, options=OPTIONS)
        chosen = getattr(asked.outcome, "option_id", "cancelled")
        if chosen != "once":
            failed = acp.update_tool_call("c1", status="failed")
            await self._client.session_update(session_id, failed)
            return f"not changed: {chosen}"
        write(path, "new\n")
        await self._client.session_update(session_id, acp.update_tool_call("c1", status="completed"))
        return "changed"


if __name__ == "__main__":
    kept = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    asyncio.run(acp.run_agent(cast(Any, Obedient(kept))))
