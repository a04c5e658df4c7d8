"""Resources of MCP: the results and transcripts of the tasks of a client, as the HTTP paths answer them.

A transcript is read in pages: `next` is the `after` of the following one. A page has a bound, so that a client that
puts it into a prompt is not flooded, and a message longer than that is cut.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from mcp_types import (
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    TextResourceContents,
)

from clutch.errors import ClutchError, NotFound
from clutch.surfaces.mcp import RESOURCES, TOOLS, McpBackend
from clutch.surfaces.mcp_results import refuse

SCHEME, KIND = "clutch", "application/json"
TASKS_LISTED = 50  #: on a page; each has up to two resources
PAGE_CHARS_MAX = 128 * 1024
MESSAGE_CHARS_MAX = 32 * 1024
TEMPLATES = [
    ResourceTemplate(
        uri_template=f"{SCHEME}://tasks/{{taskId}}/result",
        name="result",
        description="What a task that has ended said last, with its value and files.",
        mime_type=KIND,
    ),
    ResourceTemplate(
        uri_template=f"{SCHEME}://tasks/{{taskId}}/transcript{{?after}}",
        name="transcript",
        description="The messages of a task, oldest first; `next` is the `after` of the following page.",
        mime_type=KIND,
    ),
]


async def listed(backend: McpBackend, cursor: str | None) -> ListResourcesResult:
    """Return the resources of a page of the client's tasks. Raises MCPError."""
    try:
        more = {} if cursor is None else {"cursor": cursor}
        page = await backend.call(TOOLS["list"], {"limit": TASKS_LISTED, **more})
    except ClutchError as error:
        refuse(error)
    found = [one for task in page["tasks"] for one in _of(task)]
    return ListResourcesResult(resources=found, next_cursor=page["next"])


def templates() -> ListResourceTemplatesResult:
    return ListResourceTemplatesResult(resource_templates=TEMPLATES)


async def read(backend: McpBackend, params: ReadResourceRequestParams) -> ReadResourceResult:
    """Raises MCPError."""
    try:
        name, target, query = _parsed(params.uri)
        body = await backend.call(RESOURCES[name], {**query, "target": target})
    except ClutchError as error:
        refuse(error, uri=params.uri)
    text = json.dumps(_bounded(body) if name == "transcript" else body, ensure_ascii=False)
    return ReadResourceResult(contents=[TextResourceContents(uri=params.uri, mime_type=KIND, text=text)])


def _of(task: Mapping[str, Any]) -> Iterator[Resource]:
    for name in RESOURCES:
        if name != "result" or task["outcome"] is not None:
            uri, title = f"{SCHEME}://tasks/{task['taskId']}/{name}", f"{task['label']}: {name}"
            yield Resource(uri=uri, name=f"{task['taskId']}/{name}", title=title, mime_type=KIND)


def _parsed(uri: str) -> tuple[str, str, dict[str, str]]:
    """Return the name of the resource, its task and its query."""
    try:
        parts = urlsplit(uri)
        query = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
    except ValueError as error:
        raise NotFound(f"there is no resource {uri[:200]!r}") from error
    match (parts.scheme, parts.netloc, parts.path.split("/")):
        case (str(scheme), "tasks", ["", str(target), str(name)]) if scheme == SCHEME and name in RESOURCES:
            return name, target, query
        case _:
            raise NotFound(f"there is no resource {uri[:200]!r}; `resources/templates/list` has their forms")


def _bounded(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first messages of a page, as many as fit; the next page begins behind them."""
    fitting: list[Mapping[str, Any]] = []
    left, following = PAGE_CHARS_MAX, body["next"]
    for message in map(_cut, body["messages"]):
        left -= len(json.dumps(message, ensure_ascii=False))
        if left < 0:
            following = fitting[-1]["seq"]  # the first one always fits
            break
        fitting.append(message)
    return {"messages": fitting, "next": following}


def _cut(message: Mapping[str, Any]) -> Mapping[str, Any]:
    text = json.dumps(message["body"], ensure_ascii=False)
    if len(text) <= MESSAGE_CHARS_MAX:
        return message
    return {**message, "body": text[:MESSAGE_CHARS_MAX], "truncated": True}
