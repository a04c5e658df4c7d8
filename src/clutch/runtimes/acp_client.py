"""What an external agent says and asks, as our own events. It knows no process.

Files and terminals are not served: the agent learns this at the start, the library refuses what it asks for anyway,
and it uses its own, in its own process, which runs in the sandbox of the session. Only its requests for
permission reach a person."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from acp.schema import AllowedOutcome, DeniedOutcome, PermissionOption, RequestPermissionResponse

from clutch.contain import BackgroundTasks
from clutch.core.messages import Call
from clutch.ports import RuntimeJob, Verdict

TEXT_CHARS_MAX = 1024 * 1024  # of one message; a result is cut far below that
GAVE_CHARS_MAX = 4000
SHOWN_CHARS_MAX = 20_000  # a person decides about what is shown, so nothing of it may be left out
TITLE_CHARS_MAX = 500
CANCELLED = RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))


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
        args = {"title": title} | ({"path": path} if path else {})
        return Call(name, args, update.tool_call_id)

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
        async with BackgroundTasks() as tasks:
            asking = tasks.call(self._ask(shown), "clutch-acp-permission")
            self._asking.add(asking)
            try:
                return self._decided(shown, options, await asking, allow)
            except asyncio.CancelledError:
                if asking.cancelled() and not self.is_listening:
                    return CANCELLED
                raise
            finally:
                self._asking.discard(asking)
                self.heard_at = asyncio.get_running_loop().time()

    async def _ask(self, call: Call) -> Verdict:
        return await self._job.ask(call)

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
