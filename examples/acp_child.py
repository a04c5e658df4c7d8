"""Claude Code, or any other agent that speaks the Agent Client Protocol (ACP), as a child.

    python acp_child.py                                         # acp_agent.py beside this file, no API key
    python acp_child.py --agent claude "Fix the failing test"   # Claude Code

    npm install -g @agentclientprotocol/claude-agent-acp        # installs the adapter that "claude" starts

    needs approval: edit: approved
    ok: Wrote greeting.txt.

`claude`, `codex`, `gemini` and `opencode` are known by name; `AcpAgent(name=..., command=..., args=...)` is any other.
The agent runs in the sandbox (bubblewrap) and sees the system, this folder and its own login. What it asks a person
comes to the inbox, which `clutch inbox --state acp-state` shows in another terminal, too.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

from clutch import AcpAgent, Clutch

#: A program outside of /usr is shown to the sandbox with its interpreter; `visible` names other folders it reads.
HERE = str(Path(__file__).parent)
SMALL = AcpAgent(name="small", command=sys.executable, args=(f"{HERE}/acp_agent.py",), visible=(HERE,))


async def main(agent: str | AcpAgent, prompt: str) -> None:
    clutch = Clutch("acp-state", acp=[agent])

    @clutch.hook("attention_required")
    async def approve(event: dict[str, Any]) -> None:
        """Approve what the agent asks. A real program shows `question.detail` to a person first."""
        for question in await clutch.inbox():
            if question.task_id == event["task"]:
                print(f"needs approval: {question.detail['tool']}: approved")
                await clutch.answer(question, "approve")

    async with clutch:
        task = await clutch.spawn(prompt, runtime="acp")  # the first agent; with several: "acp:NAME"
        result = await task
        print(f"{result.outcome}: {result.error or result.text}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="An ACP agent as a child.")
    parser.add_argument("prompt", nargs="?", default="Write a greeting to greeting.txt")
    parser.add_argument("--agent", default=SMALL, help="claude, codex, gemini or opencode")
    given = parser.parse_args()
    asyncio.run(main(given.agent, given.prompt))
