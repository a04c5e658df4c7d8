"""Messages, tool calls and subagents as session updates of the Agent Client Protocol. Nothing here asks or sends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

import acp
from acp.schema import ToolCallProgress, ToolCallStart

from clutch.cli.chat.stream import USER_SOURCE
from clutch.core.status import call_text
from clutch.core.text.format import main_argument, visible

Update: TypeAlias = Any  #: one of the library's classes of session updates
Message: TypeAlias = Mapping[str, Any]
TaskView: TypeAlias = Mapping[str, Any]

TEXT_CHARS_MAX: Final = 4000  #: of a result in a tool call; the whole is in the transcript
TITLE_CHARS_MAX: Final = 200
ENDED: Final[Mapping[bool, Any]] = {True: "completed", False: "failed"}  #: by success
SESSION_TOOLS: Final = "sessions_"
PENDING: Final = frozenset({"starting", "queued"})
#: The kinds that editors have icons for; every other tool is `other`.
KINDS: Final[Mapping[str, str]] = {
    "read": "read", "list": "read", "search": "search", "write": "edit", "edit": "edit", "shell": "execute",
    "web_fetch": "fetch",
}  # fmt: skip


def answer_text(message: Message) -> str:
    """Return what the agent wrote in an answer; empty for every other message."""
    return str(message["body"]["text"]) if message["kind"] == "answer" else ""


def user_text(message: Message) -> str:
    """Return what the user wrote; empty for every other message."""
    is_user = message["kind"] == "input" and message["body"]["source"] == USER_SOURCE
    return str(message["body"]["text"]) if is_user else ""


class ToolCalls:
    """The tool calls of a transcript, read in order: an answer begins them, the next results end them."""

    def __init__(self) -> None:
        self._answer = 0

    def updates(self, message: Message) -> Iterator[Update]:
        match message["kind"]:
            case "answer":
                self._answer = message["seq"]
                for place, call in enumerate(message["body"]["calls"]):
                    yield self._begun(place, call)
            case "results":
                for result in message["body"]["results"]:
                    yield self._ended(result)
            case _:
                pass

    def _begun(self, place: int, call: Mapping[str, Any]) -> ToolCallStart:
        title = call_text(call["name"], main_argument(call["args"]))
        return acp.start_tool_call(
            self._name(place),
            visible(title, TITLE_CHARS_MAX),
            kind=kind_of(call["name"]),
            status="in_progress",
            raw_input=call["args"],
        )

    def _ended(self, result: Mapping[str, Any]) -> ToolCallProgress:
        status = ENDED[not result["failed"]]
        # What a tool of sessions gives is for the model; each subagent has a call of its own.
        is_shown = result["failed"] or not result["name"].startswith(SESSION_TOOLS)
        return acp.update_tool_call(
            self._name(result["index"]), status=status, content=_content(result["text"] if is_shown else "")
        )

    def _name(self, place: int) -> str:
        return f"call-{self._answer}-{place}"


def kind_of(tool: str) -> Any:
    return KINDS.get(tool, "other")


class SubagentCalls:
    """Each subagent as one tool call, which is updated until the task ends. An update is made once."""

    def __init__(self) -> None:
        self._shown: dict[str, tuple[str, str]] = {}

    def is_news(self, task: TaskView) -> bool:
        return self._shown.get(task["taskId"]) != (_status(task), _doing(task))

    def delivered(self, one: Mapping[str, Any]) -> Update:
        """Return the tool call of a result that the agent has read, for a conversation that is shown again."""
        status = ENDED[one["outcome"] == "ok"]
        self._shown[one["taskId"]] = (status, "")
        return acp.start_tool_call(one["taskId"], _title(one["label"]), kind="think", status=status)

    def hide(self, task: TaskView) -> None:
        """Treat a task as shown: it had ended before this conversation was opened here."""
        self._shown.setdefault(task["taskId"], (_status(task), _doing(task)))

    def update(self, task: TaskView, result: str) -> Update:
        """Return the update for a task as it is now. `result`: of one that has ended."""
        is_new = task["taskId"] not in self._shown
        status, doing = self._shown[task["taskId"]] = (_status(task), _doing(task))
        content = _content(result or doing)
        if is_new:
            title = _title(task["label"], int(task["depth"]))
            return acp.start_tool_call(task["taskId"], title, kind="think", status=status, content=content)
        return acp.update_tool_call(task["taskId"], status=status, content=content)


def _title(label: str, depth: int = 1) -> str:
    return f"{'↳ ' * (depth - 1)}subagent “{visible(label, TITLE_CHARS_MAX)}”"


def _status(task: TaskView) -> Any:
    if task["outcome"] is None:
        return "pending" if task["status"] in PENDING else "in_progress"
    return ENDED[task["outcome"] == "ok"]


def _doing(task: TaskView) -> str:
    """`t_12 · running · search "TODO"`; of a task that has failed the error."""
    if task["outcome"] is not None:
        return str(task["errorText"] or "")
    return " · ".join(part for part in (task["taskId"], task["status"], task["doingNow"]) if part)


def _content(text: str) -> list[Any]:
    if not text.strip():
        return []
    cut = text if len(text) <= TEXT_CHARS_MAX else f"{text[:TEXT_CHARS_MAX]}…"
    return [acp.tool_content(acp.text_block(cut))]
