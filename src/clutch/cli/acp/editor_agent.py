"""Clutch as an agent of the Agent Client Protocol: what an editor may ask on stdin and stdout.

It owns nothing: a session of the editor is a main session of the gateway, which keeps the transcript and does the work.
A session is named by its key, so that any later process can load it."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, cast
from uuid import uuid4

import acp
from acp.schema import (
    AgentCapabilities,
    AvailableCommand,
    AvailableCommandInput,
    AvailableCommandsUpdate,
    CloseSessionResponse,
    Implementation,
    InitializeResponse,
    ListSessionsResponse,
    LoadSessionResponse,
    NewSessionResponse,
    PromptCapabilities,
    PromptResponse,
    ResumeSessionResponse,
    SessionCapabilities,
    SessionCloseCapabilities,
    SessionInfo,
    SessionListCapabilities,
    SessionResumeCapabilities,
    UnstructuredCommandInput,
)

from clutch import __version__
from clutch.cli.acp.editor_session import EditorSession
from clutch.cli.acp.editor_updates import Update
from clutch.cli.chat import message
from clutch.core import ids
from clutch.core.text.format import visible
from clutch.errors import ClutchError, InvalidInput
from clutch.surfaces.http_client import Declined, GatewayClient, connect, session_path

NAME: Final = "acp"  #: of the chats that an editor opens: `agent:main:chat:acp-…`
LINE_BYTES_MAX: Final = 64 * 1024 * 1024  #: a prompt may carry whole files
TITLE_CHARS_MAX: Final = 80
ANSWER: Final = AvailableCommand(
    name="answer",
    description="Decide what waits in the inbox: /answer ID text, /answer ID approve or /answer ID reject",
    input=AvailableCommandInput(UnstructuredCommandInput(hint="ID approve")),
)


@dataclass(frozen=True, slots=True)
class EditorWish:
    """The options of the command. `session`: the one conversation of every editor; None: each `session/new` is one."""

    home: Path
    agent: str
    session: str | None


class EditorAgent:
    """The methods have the names and parameters that the library calls."""

    def __init__(self, wish: EditorWish) -> None:
        self._wish = wish
        self._editor: Any = None
        self._sessions: dict[str, EditorSession] = {}
        self._has_forms = False

    def on_connect(self, conn: Any) -> None:
        self._editor = conn

    async def close(self) -> None:
        for key in [*self._sessions]:
            await self._leave(key)

    # ---- what the editor asks ------------------------------------------------------------------------

    async def initialize(
        self, protocol_version: int, client_capabilities: Any = None, **more: Any
    ) -> InitializeResponse:
        del more, protocol_version  # there is one version, and the editor leaves if it has another
        offered = getattr(client_capabilities, "elicitation", None)
        self._has_forms = getattr(offered, "form", None) is not None
        return InitializeResponse(
            protocol_version=acp.PROTOCOL_VERSION,
            agent_info=Implementation(name="clutch", title="Clutch", version=__version__),
            agent_capabilities=AgentCapabilities(
                load_session=True,
                prompt_capabilities=PromptCapabilities(embedded_context=True),
                session_capabilities=SessionCapabilities(
                    list=SessionListCapabilities(),
                    resume=SessionResumeCapabilities(),
                    close=SessionCloseCapabilities(),
                ),
            ),
            auth_methods=[],
        )

    async def new_session(self, cwd: str, mcp_servers: Any = None, **more: Any) -> NewSessionResponse:
        del more
        key = self._wish.session or f"agent:{self._wish.agent}:chat:{NAME}-{uuid4().hex}"
        await self._open(key, cwd, mcp_servers, replays=False)
        return NewSessionResponse(session_id=key)

    async def load_session(
        self, cwd: str, session_id: str, mcp_servers: Any = None, **more: Any
    ) -> LoadSessionResponse:
        del more
        await self._reopen(session_id, cwd, mcp_servers, replays=True)
        return LoadSessionResponse()

    async def resume_session(
        self, cwd: str, session_id: str, mcp_servers: Any = None, **more: Any
    ) -> ResumeSessionResponse:
        del more
        await self._reopen(session_id, cwd, mcp_servers, replays=False)
        return ResumeSessionResponse()

    async def close_session(self, session_id: str, **more: Any) -> CloseSessionResponse:
        """Follow the conversation no more. It stays, and its subagents keep running."""
        del more
        await self._leave(session_id)
        return CloseSessionResponse()

    async def list_sessions(self, cwd: str | None = None, **more: Any) -> ListSessionsResponse:
        """The conversations of the gateway; with `cwd` those whose workspace it is, or that have it in theirs."""
        del more
        chats = await _translated(asyncio.to_thread(lambda: self._client().get("/v1/chats")["chats"]))
        found = [_info(one, self._client().address.workspace or cwd or os.getcwd()) for one in chats]
        return ListSessionsResponse(sessions=[one for one in found if cwd is None or is_within(cwd, one.cwd)])

    async def prompt(self, session_id: str, prompt: Sequence[Any], **more: Any) -> PromptResponse:
        del more
        session, text = self._known(session_id), prompt_text(prompt)
        stop = await _translated(self._prompted(session, text))
        return PromptResponse(stop_reason=stop)

    async def cancel(self, session_id: str, **more: Any) -> None:
        del more
        await self._known(session_id).cancel()

    # ---- how -----------------------------------------------------------------------------------------

    async def _prompted(self, session: EditorSession, text: str) -> Any:
        word, _, rest = text.partition(" ")
        if (usage := message.usage_of(word, rest)) is not None:
            return await session.command(lambda _: usage)
        if word == "/answer":
            return await session.command(message.answer(rest.strip()))
        if message.is_command(text):
            path, key = session_path(session.key, "command"), uuid4().hex
            return await session.command(lambda client: client.post(path, {"line": text}, key=key)["text"])
        return await session.prompt(text)

    def _client(self) -> GatewayClient:
        return connect(self._wish.home)

    def _known(self, session_id: str) -> EditorSession:
        if session_id not in self._sessions:
            raise acp.RequestError(-32002, f"there is no open session {session_id[:80]!r}; load it first")
        return self._sessions[session_id]

    async def _leave(self, key: str) -> None:
        if (session := self._sessions.pop(key, None)) is not None:
            await session.close()

    async def _reopen(self, key: str, cwd: str, mcp_servers: Any, *, replays: bool) -> None:
        """Open a conversation that exists. A mistyped name must not become a new one."""
        if not isinstance(ids.parse_session_key(key), ids.SessionKey):
            raise acp.RequestError(-32002, f"{key[:80]!r} is no session; `session/list` lists them")
        path = session_path(key, "conversation")
        probe = EditorSession(self._editor, self._wish.home, key, has_forms=False)
        await _translated(probe.ask(lambda client: client.get(path, limit=1)))
        await self._open(key, cwd, mcp_servers, replays=replays)

    async def _open(self, key: str, cwd: str, mcp_servers: Any, *, replays: bool) -> None:
        await self._leave(key)
        session = EditorSession(self._editor, self._wish.home, key, has_forms=self._has_forms)
        opened = await _translated(session.ask(lambda client: client.post(session_path(key))))
        known = await _translated(session.ask(lambda client: client.get("/v1/commands")["commands"]))
        remarks = [*_remarks(Path(cwd), opened["workspace"], key), *_unused(mcp_servers)]
        if (inside := folder_inside(cwd, opened["workspace"])) is not None:
            about = f"The user's editor has the folder {inside} of your workspace open."
            await _translated(
                session.ask(lambda client: client.post(session_path(key, "notify"), {"text": about}))
            )
        await _translated(session.open(replays=replays, notices=[_commands(known), *remarks]))
        self._sessions[key] = (
            session  # one that could not be opened follows nothing: a prompt would wait for ever
        )


async def _translated(work: Any) -> Any:
    """Return what the work returns; its errors as those of the protocol, with our message."""
    try:
        return await work
    except Declined as error:
        code = -32002 if error.code == "not_found" else -32602 if error.status < 500 else -32603
        raise acp.RequestError(code, str(error)) from error
    except InvalidInput as error:
        raise acp.RequestError(-32602, str(error)) from error
    except ClutchError as error:
        raise acp.RequestError(-32603, str(error)) from error


def _commands(known: Sequence[Mapping[str, str]]) -> Update:
    own = [AvailableCommand(name=one["name"], description=one["usage"], input=_input(one)) for one in known]
    return AvailableCommandsUpdate(
        session_update="available_commands_update", available_commands=[*own, ANSWER]
    )


def _input(one: Mapping[str, str]) -> AvailableCommandInput | None:
    _, _, hint = one["usage"].partition(" ")
    return AvailableCommandInput(UnstructuredCommandInput(hint=hint)) if hint else None


# ---- where the agent works -------------------------------------------------------------------------------


def is_within(path: str, folder: str) -> bool:
    return Path(path).resolve().is_relative_to(Path(folder).resolve())


def folder_inside(cwd: str, workspace: str) -> str | None:
    """Return the editor's folder relative to the workspace; None: it is the workspace itself, or outside of it."""
    if not is_within(cwd, workspace):
        return None
    inside = Path(cwd).resolve().relative_to(Path(workspace).resolve())
    return None if inside == Path() else str(inside)


def _remarks(cwd: Path, workspace: str, key: str) -> Iterator[Update]:
    """What the user must know before the first prompt: the rules of the gateway decide where an agent works."""
    if not is_within(str(cwd), workspace):
        yield acp.update_agent_message_text(
            f"This conversation works in {workspace}, and not in {cwd}, the folder of the editor: it is the workspace"
            f" of the agent {ids.agent_of(key)!r} at this gateway. To work in the folder of the editor, give it a"
            " gateway of its own: `clutch acp --state DIR`.\n\n"
        )


def _unused(mcp_servers: Any) -> Iterator[Update]:
    if names := [visible(one.name, TITLE_CHARS_MAX) for one in mcp_servers or ()]:
        yield acp.update_agent_message_text(
            f"The MCP servers of the editor are not used: {', '.join(names)}. The operator of the gateway chooses its "
            "servers: `mcp.servers` in clutch.json.\n\n"
        )


def _info(chat: Mapping[str, Any], workspace: str) -> SessionInfo:
    title = visible(chat["lastLine"], TITLE_CHARS_MAX) or chat["sessionKey"]
    return SessionInfo(
        session_id=chat["sessionKey"], cwd=workspace, title=title, updated_at=chat["lastProgressAt"]
    )


# ---- prompts ---------------------------------------------------------------------------------------------


def prompt_text(blocks: Sequence[Any]) -> str:
    """Return the text of a prompt, with the files it carries. Raises RequestError for what an agent cannot read."""
    return "\n\n".join(filter(None, map(_block_text, blocks))).strip() or _refuse("the prompt is empty")


def _block_text(block: Any) -> str:
    match block.type:
        case "text":
            return str(block.text)
        case "resource_link":
            return f"[{block.name}]({block.uri})"
        case "resource" if hasattr(block.resource, "text"):
            return f"{block.resource.uri}:\n```\n{block.resource.text}\n```"
        case _:
            return _refuse(f"an agent reads text only, and not {block.type}")


def _refuse(rule: str) -> NoReturn:
    raise acp.RequestError(-32602, rule)


# ---- stdin and stdout ------------------------------------------------------------------------------------


async def serve(wish: EditorWish) -> None:
    """Serve until stdin ends. What anything else prints goes to stderr: stdout carries the protocol alone."""
    agent, protocol = EditorAgent(wish), os.fdopen(os.dup(1), "wb", 0)
    os.dup2(2, 1)
    loop = asyncio.get_running_loop()
    heard = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(heard), sys.stdin)
    transport, said = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, protocol)
    writer = asyncio.StreamWriter(transport, said, None, loop)
    try:
        # The library still counts session/close and session/resume among what is not stable.
        await acp.run_agent(cast(Any, agent), writer, heard, use_unstable_protocol=True)
    finally:
        await agent.close()


def check_pipes() -> None:
    """Raise InvalidInput where nothing can be read or written."""
    # asyncio waits forever for input from /dev/null or a file, and cannot write to a file.
    for name, descriptor in (("stdin", 0), ("stdout", 1)):
        mode = os.fstat(descriptor).st_mode
        if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)):
            raise InvalidInput(
                name, "must be a pipe: an editor starts this command and speaks over its pipes"
            )
