"""Tools of MCP servers: configured by the user, pinned when first seen, called over one shared connection.

`definitions` describes servers and tools and compares them with the approved ones, `server` keeps one connection alive,
`tools` is the toolbox. `connection` imports the MCP library, which takes more than a second: it is loaded in a thread
when the first server is needed.
"""

from __future__ import annotations

from clutch.tools.mcp.definitions import McpServer
from clutch.tools.mcp.tools import McpTools

__all__ = ["McpServer", "McpTools"]
