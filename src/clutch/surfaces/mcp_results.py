"""What MCP handlers answer: the body of a tool, the error object of every surface, and the line of progress."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn, TypeAlias

from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, CallToolResult, TextContent

from clutch.api.problems import problem_of
from clutch.core.text.format import UNKNOWN, used_tokens
from clutch.errors import ClutchError
from clutch.surfaces.http_client import Declined

Context: TypeAlias = ServerRequestContext[Any, Any]

#: Errors that the same request meets again, in the vocabulary of JSON-RPC; all others are failures of the gateway.
_OF_THE_CALLER = frozenset(
    {"invalid_input", "not_found", "ambiguous", "forbidden", "unauthorized", "too_large"}
)


def answered(body: dict[str, Any], *, is_error: bool = False) -> CallToolResult:
    """Return the body as text and as an object: older clients show their model the text only."""
    return CallToolResult(content=[_text(body)], structured_content=body, is_error=is_error)


def failed(error: ClutchError) -> CallToolResult:
    """As text only: clients check structured content against the schema of an answer, which an error does not have."""
    return CallToolResult(content=[_text({"error": dict(error_object(error))})], is_error=True)


def refuse(error: ClutchError, **data: str) -> NoReturn:
    """Answer a method that has no place for a tool error. Raises MCPError with the error object in its data."""
    said = error_object(error)
    code = INVALID_PARAMS if said["code"] in _OF_THE_CALLER else INTERNAL_ERROR
    raise MCPError(code, str(said["message"]), {**data, "error": dict(said)}) from error


def error_object(error: ClutchError) -> Mapping[str, Any]:
    match error:
        case Declined():
            return {"code": error.code, "message": str(error), **error.said}
        case _:
            said: Mapping[str, Any] = problem_of(error).to_json()["error"]
            return said


def progress_text(task: Mapping[str, Any]) -> str:
    """`running · search "TODO" · 12k tok`"""
    used = task["usage"]["subtree"]
    count = used_tokens(used["input"] + used["output"], used["calls"])
    said = (task["status"], task["doingNow"], "" if count == UNKNOWN else f"{count} tok")
    return " · ".join(part for part in said if part)


def _text(body: Mapping[str, Any]) -> TextContent:
    return TextContent(text=json.dumps(body, ensure_ascii=False))
