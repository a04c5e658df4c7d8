"""The Tasks extension of MCP: `spawn` and `wait` answer with a task, which the client reads, updates and cancels.

An MCP task is a task of ours and has its id. There is no state here: each answer is made from what `wait` and `inbox`
say at that moment, so every gateway of the state directory gives it, also after a crash. The library knows the
extension point, but not the messages of this extension; they follow SEP-2663.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CancelTaskRequestParams,
    ClientCapabilities,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    GetTaskRequestParams,
    MissingRequiredClientCapabilityErrorData,
    RequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError
from starlette.requests import Request

from clutch.core import ids
from clutch.core.model import Outcome
from clutch.core.questions import Decision, QuestionKind
from clutch.errors import ClutchError
from clutch.surfaces.mcp import TOOLS, McpBackend
from clutch.surfaces.mcp_results import Context, answered, error_object, progress_text, refuse

EXTENSION = "io.modelcontextprotocol/tasks"
POLL_MS = 1_000
KEY_CHARS = 16  #: of the digest in the key of an input request
DECLINED = "The user of the MCP client declined."
INBOX = "; waits for a decision: `clutch inbox`"
#: What became of an item that was outstanding a moment ago: the response to it is ignored.
_SETTLED = frozenset({"not_found", "plan_changed", "already_finished"})


class UpdateTaskParams(RequestParams):
    """Each response is checked when its key is outstanding: others are ignored, whatever they say."""

    task_id: str
    input_responses: dict[str, Any]


def is_declared(context: Context) -> bool:
    """Return whether this request declares the extension. Earlier revisions cannot carry a task as an answer."""
    own = ClientCapabilities(extensions={EXTENSION: {}})
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS and context.session.check_client_capability(
        own
    )


def check_request(context: Context, task_id: str) -> None:
    """Check what comes before the task itself: revision, extension, and over HTTP the header by which requests are
    routed, which the library checks for methods of the core only. Raises MCPError."""
    if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        raise MCPError(METHOD_NOT_FOUND, "Method not found", context.method)
    if not is_declared(context):
        required = ClientCapabilities(extensions={EXTENSION: {}})
        data = MissingRequiredClientCapabilityErrorData(required_capabilities=required)
        said = data.model_dump(by_alias=True, mode="json", exclude_none=True)
        raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, f"this request must declare {EXTENSION}", said)
    header = context.request.headers.get(MCP_NAME_HEADER) if isinstance(context.request, Request) else None
    if header is not None and decode_header_value(header) != task_id:
        raise MCPError(HEADER_MISMATCH, f"the header {MCP_NAME_HEADER} must have the taskId of the request")


# --------------------------------------------------------------------------------------------------
# The methods.


async def created(backend: McpBackend, task_id: str) -> dict[str, Any]:
    """Return the answer of a tool that is a task: its handle. Raises ClutchError."""
    return handle(await _waited(backend, task_id))


def handle(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the handle of the task that `wait` has answered with. What it asks is in the answer to `tasks/get`."""
    return {**_handle(body["task"], _status(body, ())), "resultType": "task"}


async def get(backend: McpBackend, context: Context, params: GetTaskRequestParams) -> dict[str, Any]:
    """Return the task as it is now, with its result, its error or what it asks. Raises MCPError."""
    try:
        body = await _waited(backend, _exact(params.task_id))
        items = await _outstanding(backend, body, context)
    except ClutchError as error:
        refuse(error)
    status, task = _status(body, items), body["task"]
    shown = {**_handle(task, status), "resultType": "complete"}
    if body["status"] == "needs_you" and not items:  # the client cannot show a form
        shown["statusMessage"] += INBOX
    match status:
        case "input_required":
            return {**shown, "inputRequests": {key: _request(item) for key, item in items.items()}}
        case "completed":
            return {**shown, "result": ended(body)}
        case "failed":
            return {
                **shown,
                "error": {"code": INTERNAL_ERROR, "message": task["errorText"] or task["status"]},
            }
        case _:
            return shown


async def update(backend: McpBackend, context: Context, params: UpdateTaskParams) -> dict[str, Any]:
    """Answer items of the inbox. Responses to what is not outstanding are ignored. Raises MCPError."""
    try:
        body = await _waited(backend, _exact(params.task_id))
        items = await _outstanding(backend, body, context)
        for key in items.keys() & params.input_responses.keys():
            await _decide(backend, items[key], _elicited(key, params.input_responses[key]))
    except ClutchError as error:
        refuse(error)
    return {"resultType": "complete"}


async def cancel(backend: McpBackend, params: CancelTaskRequestParams) -> dict[str, Any]:
    """Kill the task and all of its descendants. One that has ended stays as it is. Raises MCPError."""
    try:
        wanted = {"target": _exact(params.task_id), "reason": "cancelled by an MCP client"}
        await backend.call(TOOLS["kill"], wanted)
    except ClutchError as error:
        if error_object(error)["code"] != "already_finished":
            refuse(error)
    return {"resultType": "complete"}


# --------------------------------------------------------------------------------------------------
# From our task to theirs.


def ended(body: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of `wait` for a task that has ended, as the result of a tool. One that failed is an error:
    clients need not know our objects to see that."""
    is_error = body["task"]["outcome"] != Outcome.OK
    return answered(body, is_error=is_error).model_dump(by_alias=True, mode="json", exclude_none=True)


def _status(body: Mapping[str, Any], items: Mapping[str, Any] | tuple[()]) -> str:
    """`failed` is for errors of the protocol: of ours only `lost` is one, the others are results."""
    match body["task"]["outcome"]:
        case None:
            return "input_required" if items else "working"
        case Outcome.KILLED:
            return "cancelled"
        case Outcome.LOST:
            return "failed"
        case _:
            return "completed"


def _handle(task: Mapping[str, Any], status: str) -> dict[str, Any]:
    moments = (task["createdAt"], task["startedAt"], task["lastProgressAt"], task["endedAt"])
    return {
        "taskId": task["taskId"],
        "status": status,
        "statusMessage": progress_text(task),
        "createdAt": task["createdAt"],
        "lastUpdatedAt": max(
            moment for moment in moments if moment is not None
        ),  # text of this form sorts by time
        "ttlMs": None,
        "pollIntervalMs": POLL_MS,
    }


def _exact(task_id: str) -> str:
    """Return the id. A label or `last` names a task for a person; here it would name another one tomorrow."""
    number = ids.parse_task_id(task_id)
    if number is None or ids.task_id(number) != task_id:
        raise MCPError(INVALID_PARAMS, f"taskId: {task_id[: ids.SHOWN_INPUT_MAX]!r} is not the id of a task")
    return task_id


async def _waited(backend: McpBackend, task_id: str) -> dict[str, Any]:
    return await backend.call(TOOLS["wait"], {"target": task_id, "timeoutSeconds": 0})


# --------------------------------------------------------------------------------------------------
# Items of the inbox as forms. The key of a request stands for what was shown: an item that has changed has another one.


async def _outstanding(
    backend: McpBackend, body: Mapping[str, Any], context: Context
) -> dict[str, Mapping[str, Any]]:
    """Return what the task and those below it ask, by key; nothing for a client that shows no forms."""
    if body["status"] != "needs_you" or not _shows_forms(context.session.client_capabilities):
        return {}
    own, inbox = body["task"]["taskId"], await backend.call(TOOLS["inbox"], {})
    asked = [item for item in inbox["items"] if any(step["taskId"] == own for step in item["path"])]
    return {_key(item): item for item in asked}


def _shows_forms(declared: ClientCapabilities | None) -> bool:
    """An elicitation capability without a mode means forms."""
    shown = None if declared is None else declared.elicitation
    return shown is not None and (shown.form is not None or shown.url is None)


def _key(item: Mapping[str, Any]) -> str:
    """A plan that is submitted again unchanged is another request; its key has another time."""
    shown = f"{item['hash']} {item['askedAt']}".encode()
    return f"{item['id']}-{hashlib.sha256(shown).hexdigest()[:KEY_CHARS]}"


def _request(item: Mapping[str, Any]) -> dict[str, Any]:
    params = ElicitRequestFormParams(message=_message(item), requested_schema=_form(item))
    return ElicitRequest(params=params).model_dump(by_alias=True, mode="json", exclude_none=True)


def _message(item: Mapping[str, Any]) -> str:
    place = "" if item["directory"] is None else f"\n\nIn the directory {item['directory']}"
    return f"{item['label'] or item['taskId']} ({item['kind']}): {item['text']}{place}"


def _form(item: Mapping[str, Any]) -> dict[str, Any]:
    if item["kind"] == QuestionKind.QUESTION:
        answer = {"type": "string", "title": "Answer"} | (
            {"enum": item["choices"]} if item["choices"] else {}
        )
        return {"type": "object", "properties": {"answer": answer}, "required": ["answer"]}
    effects = "; ".join(f"{decision}: {effect}" for decision, effect in item["consequences"].items())
    choices = [Decision.APPROVE.value, Decision.REJECT.value]
    decision = {"type": "string", "title": "Decision", "enum": choices, "description": effects}
    reason = {"type": "string", "title": "Reason"}
    return {
        "type": "object",
        "properties": {"decision": decision, "reason": reason},
        "required": ["decision"],
    }


def _elicited(key: str, response: Any) -> ElicitResult:
    try:
        return ElicitResult.model_validate(response, by_name=False)
    except ValidationError as error:
        raise MCPError(
            INVALID_PARAMS, f"inputResponses.{key}: must be the result of an elicitation"
        ) from error


async def _decide(backend: McpBackend, item: Mapping[str, Any], response: ElicitResult) -> None:
    """A form that was dismissed stays outstanding; one that was declined is rejected."""
    content = response.content or {}
    match response.action:
        case "cancel":
            return
        case "decline":
            decision, text = Decision.REJECT.value, DECLINED
        case _ if item["kind"] == QuestionKind.QUESTION:
            decision, text = Decision.ANSWER.value, str(content.get("answer", ""))
        case _:
            decision, text = str(content.get("decision", "")), str(content.get("reason") or "")
    try:
        said = {"id": item["id"], "decision": decision, "text": text, "hash": item["hash"]}
        await backend.call(TOOLS["answer"], said)
    except ClutchError as error:
        if error_object(error)["code"] not in _SETTLED:
            raise
