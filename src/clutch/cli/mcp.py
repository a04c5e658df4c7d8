"""`clutch mcp`: stdin and stdout belong to the protocol, words go to stderr."""

from __future__ import annotations

import asyncio
from pathlib import Path

from clutch.cli.asking import answering, gateway


def serve(state: Path | None, *, agent_id: str, session: str | None) -> None:
    """The name is checked before a client has to find out."""
    with answering("mcp", as_json=False):
        from clutch.surfaces.mcp.server import session_key
        from clutch.surfaces.mcp.stdio import serve as serve_stdio

        session_key(agent_id, session or "client")
        gateway(state, is_new_work=True)
        asyncio.run(serve_stdio(lambda: gateway(state, is_new_work=True), agent_id, session))
