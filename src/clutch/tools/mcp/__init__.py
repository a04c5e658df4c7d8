"""Tools of MCP servers: named in the settings, pinned at first sight, called over one shared connection.

`settings` says what a server is, `naming` how its words become ours, `pins` what was approved, `differences`
what a person is shown of a change, `server` keeps one connection alive, `box` is the toolbox. `connection`,
`stdio` and `http` import the MCP library, which takes more than a second: they are loaded in a thread when the
first server is needed, and by nobody else.
"""

from __future__ import annotations

from clutch.tools.mcp.box import McpTools
from clutch.tools.mcp.settings import McpServer

__all__ = ["McpServer", "McpTools"]
