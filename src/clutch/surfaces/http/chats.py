"""The HTTP paths of the chat: conversations with main agents, files that a message may mention, slash commands."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

from clutch.api import overview
from clutch.api.actions import ActionBody
from clutch.api.slash import COMMANDS
from clutch.core.authority import Scope
from clutch.core.ids import ROW_NUMBER_MAX
from clutch.surfaces.http.routes import Ask, Query, Reply, route
from clutch.transactions.read.lists import PAGE_MAX

PREFIX_CHARS_MAX = 300


class ConversationQuery(Query):
    before: Annotated[int | None, Field(ge=1, le=ROW_NUMBER_MAX)] = None
    after: Annotated[int | None, Field(ge=0, le=ROW_NUMBER_MAX)] = None
    limit: Annotated[int, Field(ge=1, le=PAGE_MAX)] = 50


class FilesQuery(Query):
    prefix: Annotated[str, Field(max_length=PREFIX_CHARS_MAX)] = ""


class FileNames(TypedDict):
    files: list[str]  #: relative to the workspace; a folder ends with a slash


class CommandName(TypedDict):
    name: str
    usage: str


class CommandNames(TypedDict):
    commands: list[CommandName]


@route("GET", "/v1/chats")
async def list_chats(ask: Ask) -> Reply[overview.Chats]:
    """Conversations with main agents, the latest active first: what each does, and its last line."""
    return Reply(await ask.app.read(overview.listed))


class OpenedSession(TypedDict):
    sessionKey: str
    workspace: str


@route("POST", "/v1/sessions/{key}")
async def open_session(ask: Ask) -> Reply[OpenedSession]:
    """Open a main session, so that a client can follow it before its first message. An open one stays as it is."""
    gateway, key = ask.app.gateway, ask.path["key"]
    await gateway.session(key)
    return Reply({"sessionKey": key, "workspace": await gateway.workspace(key)})


@route("GET", "/v1/sessions/{key}/conversation")
async def conversation(ask: Ask[ActionBody, ConversationQuery]) -> Reply[overview.ConversationObject]:
    """The newest messages of a main session, or those `before` or `after` a number, in order.

    With them: messages that the agent has not read yet, how its turns ended, and which results were delivered where."""
    query, key = ask.query, ask.path["key"]
    read = ask.app.read(
        overview.conversation, ask.who, key, before=query.before, after=query.after, limit=query.limit
    )
    return Reply(await read)


@route("GET", "/v1/sessions/{key}/files", Scope.WRITE)
async def files(ask: Ask[ActionBody, FilesQuery]) -> Reply[FileNames]:
    """Names in the agent's workspace that complete `@` in a message, at most 20."""
    return Reply({"files": await ask.app.gateway.file_names(ask.path["key"], ask.query.prefix)})


@route("GET", "/v1/commands")
async def commands(ask: Ask) -> Reply[CommandNames]:
    """The slash commands of a chat."""
    del ask
    return Reply({"commands": [{"name": name, "usage": one.usage} for name, one in COMMANDS.items()]})


ENTRIES = (list_chats, open_session, conversation, files, commands)
