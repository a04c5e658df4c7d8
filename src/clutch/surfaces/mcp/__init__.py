"""The gateway for MCP clients: `tools` are the paths of HTTP under other names, `server` speaks the protocol,
`stdio` is `clutch mcp`, `mount` is `/mcp`.

Only `server`, `stdio` and `mount` know the MCP library, which takes a second to load.
"""
