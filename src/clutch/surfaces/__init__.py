"""How other processes find and use a gateway: HTTP, MCP, the browser page and the HTTP client."""
