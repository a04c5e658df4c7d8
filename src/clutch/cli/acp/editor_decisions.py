"""What waits in the inbox for a decision about a conversation, asked of the user in the editor.

An item is asked once while it stays as it is, and the decision carries the hash of what was shown. The inbox is the
record and the dialog is not: an item that the user leaves open can be decided anywhere else."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import acp
from acp.schema import (
    AcceptElicitationResponse,
    AllowedOutcome,
    DeclineElicitationResponse,
    ElicitationFormSessionMode,
    ElicitationSchema,
    ElicitationStringPropertySchema,
    PermissionOption,
    ToolCallStart,
    ToolCallUpdate,
)

from clutch.cli.acp.editor_updates import TITLE_CHARS_MAX, kind_of
from clutch.cli.chat.panel import DECIDED, Item, is_command
from clutch.contain import BackgroundTasks
from clutch.core.status import call_text
from clutch.core.text.format import is_plain, main_argument, visible
from clutch.errors import ClutchError
from clutch.surfaces.http_client import GatewayClient, item_path

T = TypeVar("T")
Ask = Callable[[Callable[[GatewayClient], T]], Awaitable[T]]
REASON: Final = "The user rejected it in the editor."  #: a rejected plan needs one
ANSWER_FIELD: Final = "answer"
PATH_CHARS_MAX: Final = 4096


class EditorChoice(NamedTuple):
    """What the user chose for an item. None instead of it: nothing yet."""

    decision: str
    text: str = ""


APPROVE, REJECT = EditorChoice("approve"), EditorChoice("reject", REASON)
_Options = Sequence[tuple[PermissionOption, EditorChoice | None]]


class EditorDecisions:
    """`ask` asks the gateway. `has_forms`: the editor can show a form with a text field."""

    def __init__(self, editor: Any, session_id: str, ask: Ask[Any], *, has_forms: bool) -> None:
        self._editor, self._session_id, self._ask, self._has_forms = editor, session_id, ask, has_forms
        self._asked: dict[tuple[str, str], Any] = {}
        self._tasks = BackgroundTasks()

    async def close(self) -> None:
        await self._tasks.close()

    async def show(self, items: Sequence[Item]) -> None:
        """Ask for each item that is new, and close what is decided."""
        now = {(item["id"], item["hash"]): item for item in items}
        for key in [key for key in self._asked if key not in now]:
            if not (asking := self._asked.pop(key)).done():
                asking.cancel()
                await self._end(key[0], "completed", "Decided elsewhere.")
        for key, item in now.items():
            if key not in self._asked:
                self._asked[key] = self._tasks.call(self._decide(item), f"clutch-acp-{item['id']}")

    async def _decide(self, item: Item) -> None:
        await self._editor.session_update(self._session_id, _begun(_call(item)))
        try:
            choice = await self._chosen(item)
            if choice is None:
                return await self._end(
                    item["id"], "failed", f"Not decided. `/answer {item['id']} …` decides."
                )
            body = {"decision": choice.decision, "text": choice.text, "hash": item["hash"]}
            await self._ask(lambda client: client.post(item_path(item["id"]), body))
            status = "failed" if choice.decision == "reject" else "completed"
            await self._end(item["id"], status, DECIDED[choice.decision])
        except ClutchError as error:
            await self._end(item["id"], "failed", str(error))
        except (acp.RequestError, ConnectionError) as error:
            await self._end(item["id"], "failed", f"The editor did not ask: {error}.")

    async def _chosen(self, item: Item) -> EditorChoice | None:
        if item["kind"] == "question":
            return await self._answered(item)
        choice = await self._picked(item, _yes_or_no("Approve once", "Reject"))
        if choice == APPROVE and is_command(item):
            # As in every chat: a shell command is confirmed once more, with the command in view.
            options = [*_yes_or_no("Run exactly this command", "Reject"), _option("Decide later", None)]
            return await self._picked(item, options)
        return choice

    async def _answered(self, item: Item) -> EditorChoice | None:
        if item["choices"]:
            offered = [_option(one, EditorChoice("answer", one)) for one in item["choices"]]
            return await self._picked(item, [*offered, _option("Reject the question", REJECT)])
        if not self._has_forms:
            how = f"`/answer {item['id']} TEXT` answers it."
            await self._say(f"{_who(item)} asks: {item['text']}\n{how}")
            return None
        field = ElicitationStringPropertySchema(type="string", title="Answer")
        schema = ElicitationSchema(properties={ANSWER_FIELD: field}, required=[ANSWER_FIELD])
        mode = ElicitationFormSessionMode(session_id=self._session_id, requested_schema=schema)
        said = await self._editor.create_elicitation(f"{_who(item)} asks: {item['text']}", mode)
        match said:
            case AcceptElicitationResponse():
                given = (said.content or {}).get(ANSWER_FIELD)
                return EditorChoice("answer", str(getattr(given, "root", given)))
            case DeclineElicitationResponse():
                return REJECT
            case _:
                return None

    async def _picked(self, item: Item, options: _Options) -> EditorChoice | None:
        """Return the choice of the user. None: the dialog was closed, or the turn was cancelled."""
        named = {str(place): (option, choice) for place, (option, choice) in enumerate(options)}
        shown = [option.model_copy(update={"option_id": place}) for place, (option, _) in named.items()]
        said = await self._editor.request_permission(
            session_id=self._session_id, tool_call=_call(item), options=shown
        )
        if not isinstance(said.outcome, AllowedOutcome) or said.outcome.option_id not in named:
            return None
        return named[said.outcome.option_id][1]

    async def _end(self, item_id: str, status: Any, text: str) -> None:
        content = [acp.tool_content(acp.text_block(text))]
        await self._editor.session_update(
            self._session_id, acp.update_tool_call(item_id, status=status, content=content)
        )

    async def _say(self, text: str) -> None:
        await self._editor.session_update(self._session_id, acp.update_agent_message_text(f"\n\n{text}\n"))


def _yes_or_no(yes: str, no: str) -> list[tuple[PermissionOption, EditorChoice | None]]:
    return [_option(yes, APPROVE), _option(no, REJECT)]


def _option(name: str, choice: EditorChoice | None) -> tuple[PermissionOption, EditorChoice | None]:
    is_given = choice is not None and choice.decision != "reject"
    kind: Any = "allow_once" if is_given else "reject_once"
    return PermissionOption(option_id="", name=name, kind=kind), choice


def _who(item: Item) -> str:
    return visible(item["label"] or item["sessionKey"] or "", TITLE_CHARS_MAX)


def _call(item: Item) -> ToolCallUpdate:
    """Return everything that is decided about, whole: what is approved is what was shown."""
    detail: Mapping[str, Any] = item["detail"]
    tool = str(detail.get("tool", ""))
    args = detail.get("args")
    named = call_text(tool, main_argument(args if isinstance(args, dict) else {})) if tool else item["kind"]
    return ToolCallUpdate(
        tool_call_id=item["id"],
        title=visible(f"{_who(item)}: {named}", TITLE_CHARS_MAX),
        kind=kind_of(tool),
        status="pending",
        content=[acp.tool_content(acp.text_block(_shown(item)))],
        raw_input=args if tool else None,
    )


def _begun(call: ToolCallUpdate) -> ToolCallStart:
    """Return the call that the request belongs to: an editor need not accept a call that it has not seen."""
    return ToolCallStart(session_update="tool_call", **call.model_dump(exclude_none=True))


def _shown(item: Item) -> str:
    lines = [f"{item['status'].capitalize()} ({item['id']}), asked by {_who(item)}"]
    detail = item["detail"]
    if "tool" in detail:
        lines += [
            _literal(f"{detail['tool']} {json.dumps(detail.get('args'), ensure_ascii=False, indent=2)}")
        ]
    else:
        lines += [_literal(item["text"])]
    if item["directory"] is not None:
        where = {True: "in the sandbox", False: "without the sandbox", None: ""}[item["isSandboxed"]]
        lines += [f"In {visible(item['directory'], PATH_CHARS_MAX)} {where}".rstrip()]
    lines += [f"{decision}: {effect}" for decision, effect in item["consequences"].items()]
    return "\n\n".join(lines)


def _literal(text: str) -> str:
    """Return the text as a block of code: an agent wrote it, editors render Markdown, and a comment, a link or an
    invisible character in it would hide a part of what is approved."""
    plain = "".join(one if one == "\n" or is_plain(one) else json.dumps(one)[1:-1] for one in text)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", plain)), default=0))
    return f"{fence}\n{plain}\n{fence}"
