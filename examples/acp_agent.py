"""A small agent that speaks the Agent Client Protocol (ACP): it asks for permission, then writes one file.

`acp_child.py` starts it where no other agent is named, so that the example runs without an API key.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import acp
from acp.schema import (
    InitializeResponse,
    NewSessionResponse,
    PermissionOption,
    PromptResponse,
    ToolCallUpdate,
)


class SmallAgent:
    def on_connect(self, client: Any) -> None:
        self.client = client

    async def initialize(self, protocol_version: int, **more: Any) -> InitializeResponse:
        return InitializeResponse(protocol_version=protocol_version)

    async def new_session(self, cwd: str, **more: Any) -> NewSessionResponse:
        self.folder = Path(cwd)
        return NewSessionResponse(session_id="one")

    async def prompt(self, session_id: str, prompt: list[Any], **more: Any) -> PromptResponse:
        title, text = "Write greeting.txt", "hello\n"
        started = acp.start_edit_tool_call("c1", title, str(self.folder / "greeting.txt"), text)
        await self.client.session_update(session_id, started)
        once = PermissionOption(option_id="once", name="Allow once", kind="allow_once")
        call = ToolCallUpdate(tool_call_id="c1", title=title, raw_input={"text": text})
        answer = await self.client.request_permission(session_id=session_id, tool_call=call, options=[once])
        is_allowed = getattr(answer.outcome, "option_id", None) == "once"
        if is_allowed:
            (self.folder / "greeting.txt").write_text(text)
        status = acp.update_tool_call("c1", status="completed" if is_allowed else "failed")
        await self.client.session_update(session_id, status)
        said = "Wrote greeting.txt." if is_allowed else "Wrote nothing."
        await self.client.session_update(session_id, acp.update_agent_message_text(said))
        return PromptResponse(stop_reason="end_turn")


if __name__ == "__main__":
    agent: Any = SmallAgent()
    asyncio.run(acp.run_agent(agent))
