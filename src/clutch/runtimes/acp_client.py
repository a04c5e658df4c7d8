"""What an external agent says and asks, as our own events. It knows no process.

Files and terminals are not served: the agent learns this at the start, the library refuses what it asks for anyway,
and it uses its own, in its own process, which runs in the sandbox of the session. Only its requests for
permission and its questions reach a person.

A subagent of the agent is a call, `subagent`, and what that does are calls that name it: Clutch can neither steer nor
stop one alone, so it is no task."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from acp.schema import (
    AcceptElicitationResponse,
    AllowedOutcome,
    CancelElicitationResponse,
    DeclineElicitationResponse,
    DeniedOutcome,
    ElicitationFormRequestMode,
    ElicitationFormSessionMode,
    PermissionOption,
    RequestPermissionResponse,
)

from clutch.contain import BackgroundTasks
from clutch.core.messages import Call
from clutch.ports import SUBAGENT_CALL, HumanQuestion, RuntimeJob, Verdict
from clutch.runtimes.acp_forms import CONSENT, FormField, FormValue, fields_of, page_question

TEXT_CHARS_MAX = 1024 * 1024  # of one message; a result is cut far below that
GAVE_CHARS_MAX = 4000
SHOWN_CHARS_MAX = 20_000  # a person decides about what is shown, so nothing of it may be left out
TITLE_CHARS_MAX = 500
ANSWER_TRIES = 3  # of one field; a person who answers three times what cannot be read wants something else
CANCELLED = RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
STARTS_AGENT = frozenset({"Task", "Agent"})  #: names of Claude's tool; older versions say `Task`

ElicitationAnswer: TypeAlias = (
    AcceptElicitationResponse | DeclineElicitationResponse | CancelElicitationResponse
)


class Listener:
    """The client's side of one session. `heard_at`: when it gave its last sign of life."""

    def __init__(self, job: RuntimeJob, agent: str) -> None:
        self._job, self._agent = job, agent
        self.is_listening = False  #: a session that is loaded tells its past again, which is not news
        self.heard_at = asyncio.get_running_loop().time()
        self._words: list[str] = []  #: since its last call
        self._chars = 0
        self._said = ""  #: before it
        self._calls: dict[str, Call] = {}
        self._asking: set[asyncio.Future[Verdict]] = set()
        self.refused: str | None = None  #: the last permission that was not given, and why

    @property
    def is_asking(self) -> bool:
        return bool(self._asking)

    @property
    def last_words(self) -> str:
        return "".join(self._words).strip() or self._said

    def leave(self) -> None:
        """Whatever is asked is asked no more."""
        for asking in self._asking:
            asking.cancel()

    # ---- what it does --------------------------------------------------------------------------------

    async def session_update(self, session_id: str, update: Any, **more: Any) -> None:
        del session_id, more
        self.heard_at = asyncio.get_running_loop().time()
        if not self.is_listening:
            return
        match update.session_update:
            case "agent_message_chunk" | "agent_thought_chunk" if "parentToolUseId" in _meta(
                update, "claudeCode"
            ):
                pass  # the words of a subagent, which are no part of the result
            case "agent_message_chunk":
                self._say(getattr(update.content, "text", ""))
            case "agent_thought_chunk":
                self._job.think(getattr(update.content, "text", ""))
            case "tool_call" | "tool_call_update":
                self._work(update)
            case _:
                pass  # plans, modes, commands: nothing that a person must see to follow the work

    def _say(self, text: str) -> None:
        self._chars += len(text)
        if text and self._chars <= TEXT_CHARS_MAX:
            self._words.append(text)
            self._job.say(text)

    def _work(self, update: Any) -> None:
        is_new = update.tool_call_id not in self._calls
        call = self._calls[update.tool_call_id] = self._call(update, self._calls.get(update.tool_call_id))
        if is_new:
            self._said = self.last_words
            self._words, self._chars = [], 0
            self._job.begin(call)
        if update.status in ("completed", "failed"):
            del self._calls[update.tool_call_id]
            self._job.end(call, _gave(update), update.status == "failed")

    def _call(self, update: Any, before: Call | None) -> Call:
        """Named by its kind: `edit` and the like are words our own ledger knows."""
        known = {} if before is None else dict(before.args)
        title = str(update.title or known.get("title") or "")[:TITLE_CHARS_MAX]
        path = self._path(update) or known.get("path")
        name = update.kind or (before.name if before else "other")
        if _is_subagent(update) or (before is not None and before.name == SUBAGENT_CALL):
            name = SUBAGENT_CALL
        args = {"title": title} | ({"path": path} if path else {})
        if (above := self._above(update) or known.get(SUBAGENT_CALL)) is not None:
            args[SUBAGENT_CALL] = above
        return Call(name, args, update.tool_call_id)

    def _above(self, update: Any) -> str | None:
        """Return the title of the subagent that makes this call. None: the agent itself, as far as it says."""
        parent = _meta(update, "claudeCode").get("parentToolUseId")
        known = self._calls.get(parent) if isinstance(parent, str) else None
        if known is not None:
            return str(known.args["title"])
        return None if parent is None else str(parent)[:TITLE_CHARS_MAX]

    def _path(self, update: Any) -> str | None:
        named = [one.path for one in update.locations or ()]
        named += [one.path for one in update.content or () if one.type == "diff"]
        if not named:
            return None
        beneath = os.path.relpath(named[0], self._job.workspace)
        return named[0] if beneath.startswith("..") else beneath

    # ---- what it asks --------------------------------------------------------------------------------

    async def request_permission(
        self, session_id: str, tool_call: Any, options: list[PermissionOption], **more: Any
    ) -> RequestPermissionResponse:
        del session_id, more
        allow = _option(options, "allow_once", "allow_always")
        call = self._call(tool_call, self._calls.get(tool_call.tool_call_id))
        shown = self._shown(call, tool_call, allow)
        if allow is None or len(json.dumps(shown.args)) > SHOWN_CHARS_MAX:
            return self._decided(shown, options, Verdict(False, "too long to be shown"), allow)
        verdict = await self._verdict(shown)
        return CANCELLED if verdict is None else self._decided(shown, options, verdict, allow)

    async def _verdict(self, asked: Call | HumanQuestion) -> Verdict | None:
        """Return the decision of the user. None: the run has ended meanwhile."""
        async with BackgroundTasks() as tasks:
            asking = tasks.call(self._ask(asked), "clutch-acp-question")
            self._asking.add(asking)
            try:
                return await asking
            except asyncio.CancelledError:
                if asking.cancelled() and not self.is_listening:
                    return None
                raise
            finally:
                self._asking.discard(asking)
                self.heard_at = asyncio.get_running_loop().time()

    async def _ask(self, asked: Call | HumanQuestion) -> Verdict:
        if isinstance(asked, HumanQuestion):
            return await self._job.ask_human(asked)
        return await self._job.ask(asked)

    async def create_elicitation(self, message: str, mode: Any, **more: Any) -> ElicitationAnswer:
        """Put a form, or a page to open, to the user as questions. What is asked before the session is open, such as a
        login, is cancelled: an agent is logged in with its own command."""
        del more
        if not self.is_listening:
            return CancelElicitationResponse(action="cancel")
        if not isinstance(mode, ElicitationFormSessionMode | ElicitationFormRequestMode):
            verdict = await self._verdict(page_question(message, str(mode.url)))
            return _elicited(verdict, None)
        fields = fields_of(mode.requested_schema.model_dump(by_alias=True, exclude_none=True))
        if fields is None:
            return DeclineElicitationResponse(action="decline")
        content: dict[str, Any] = {}
        for field in fields or [CONSENT]:
            verdict, value = await self._filled_in(field, message)
            if value is None:
                return _elicited(verdict, None)
            content |= {field.name: value} if field.name else {}
        return _elicited(Verdict(True), content)

    async def complete_elicitation(self, elicitation_id: str, **more: Any) -> None:
        """The page was used. Nothing waits for that here: the user has said when."""
        del elicitation_id, more

    async def _filled_in(self, field: FormField, message: str) -> tuple[Verdict | None, FormValue | None]:
        wrong = ""
        for _ in range(ANSWER_TRIES):
            verdict = await self._verdict(field.question(message, wrong))
            if verdict is None or not verdict.is_approved:
                return verdict, None
            try:
                return verdict, field.value(verdict.text)
            except ValueError as error:
                wrong = f"Not accepted: {error}."
        return None, None

    def _decided(
        self,
        call: Call,
        options: Sequence[PermissionOption],
        verdict: Verdict,
        allow: PermissionOption | None,
    ) -> RequestPermissionResponse:
        if not verdict.is_approved:
            what = str(call.args.get("title") or call.name)[:TITLE_CHARS_MAX]
            self.refused = f"{what!r}: {verdict.text}" if verdict.text else repr(what)
        return _answer(options, verdict, allow)

    def _shown(self, call: Call, update: Any, allow: PermissionOption | None) -> Call:
        more: dict[str, Any] = {"agent": self._agent, "allows": allow.name if allow else ""}
        if update.raw_input is not None:
            more["input"] = update.raw_input
        diffs = [one for one in update.content or () if one.type == "diff"]
        if diffs:
            more["changes"] = [{"path": one.path, "to": one.new_text} for one in diffs]
        return Call(call.name, {**call.args, **more})


def _is_subagent(update: Any) -> bool:
    """Whether the call is an agent of its own: Claude's `Task`, a subagent of Codex, or a message to one."""
    codex = _meta(update, "codex")
    if "subagent" in codex or "collaboration" in codex:
        return True
    return _meta(update, "claudeCode").get("toolName") in STARTS_AGENT


def _meta(update: Any, whose: str) -> Mapping[str, Any]:
    known = (update.field_meta or {}).get(whose)
    return known if isinstance(known, Mapping) else {}


def _elicited(verdict: Verdict | None, content: dict[str, Any] | None) -> ElicitationAnswer:
    """None: the user was not there to choose, so nothing was declined."""
    if verdict is None:
        return CancelElicitationResponse(action="cancel")
    if not verdict.is_approved:
        return DeclineElicitationResponse(action="decline")
    return AcceptElicitationResponse(action="accept", content=content)


def _option(options: Sequence[PermissionOption], *kinds: str) -> PermissionOption | None:
    """The narrowest there is."""
    return next((one for kind in kinds for one in options if one.kind == kind), None)


def _answer(
    options: Sequence[PermissionOption], verdict: Verdict, allow: PermissionOption | None
) -> RequestPermissionResponse:
    taken = allow if verdict.is_approved else _option(options, "reject_once", "reject_always")
    if taken is None:
        return CANCELLED
    return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=taken.option_id))


def _gave(update: Any) -> str:
    told: list[str] = []
    for one in update.content or ():
        if one.type == "content":
            told.append(getattr(one.content, "text", ""))
        elif one.type == "diff":
            told.append(f"changed {one.path}")
    if not told and update.raw_output is not None:
        told.append(_plain(update.raw_output))
    return "\n".join(told)[:GAVE_CHARS_MAX]


def _plain(output: Any) -> str:
    if isinstance(output, Mapping):
        for name in ("output", "stdout", "text"):
            with suppress(KeyError):
                return str(output[name])
    return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False, default=str)
