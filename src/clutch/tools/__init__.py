"""Tools of agents: the registry that checks arguments and runs them, built-in tools, sandbox and MCP servers."""

from __future__ import annotations
