"""What a person says about one MCP server. Nothing here talks to it.

A server gets nothing of ours by itself: its environment is a short list and what is named here, its headers
are the ones written here. Values that may be secrets stay out of `repr`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NoReturn
from urllib.parse import urlsplit

from clutch.core.authority.tools import any_matches
from clutch.errors import InvalidInput

NAME_CHARS_MAX = 24  # leaves 38 of the 64 that providers allow for the tool's own name
TIMEOUT_MAX_S = 3600.0

#: What every program needs to run at all; never a key.
INHERITED = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "TMPDIR", "TZ", "USER")

# No "__" and none at the ends, so that the first "__" of a tool's name always ends the server's.
_NAME = re.compile(r"[a-zA-Z0-9]+(?:[_-][a-zA-Z0-9]+)*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OWN_HEADERS = frozenset(
    {"accept", "connection", "content-length", "content-type", "host", "last-event-id", "transfer-encoding"}
)
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """Either `command` (stdio) or `url` (streamable HTTP). Raises InvalidInput naming the field."""

    name: str
    command: str | None = None  #: a program that speaks on stdin and stdout
    args: tuple[str, ...] = ()  #: of the command
    cwd: str | None = None  #: where it is started
    env: Mapping[str, str] = field(default_factory=dict, repr=False)  #: variables it gets
    inherit: frozenset[str] = frozenset()  #: names of our own variables it may see beside INHERITED
    sandbox: bool = True  #: its process runs boxed
    network: bool = False  #: in the sandbox; without one it always has it
    visible: tuple[str, ...] = ()  #: folders it can read in the sandbox, such as the one it is installed in
    url: str | None = None  #: streamable HTTP
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  #: sent with every request
    connect_timeout_s: float = 10.0  #: until it must have answered the first time
    call_timeout_s: float = 60.0  #: of one call of a tool
    read_only_consent: bool = False  #: believe its readOnlyHint and idempotentHint
    #: tools (or patterns) that a person approves per call
    approve: frozenset[str] | Literal["all"] = frozenset()
    allow: tuple[str, ...] = ("*",)  #: the only tools taken from it, by its own names for them

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or len(self.name) > NAME_CHARS_MAX:
            raise InvalidInput(
                f"mcp.servers.{self.name[:40]!r}",
                f"a name is letters and digits with single - or _ between them, at most {NAME_CHARS_MAX} "
                "characters; rename the server",
            )
        if (self.command is None) == (self.url is None):
            self._refuse("command", "exactly one of command and url must be set; remove one or add one")
        if self.command is not None:
            self._check_process(self.command)
        else:
            self._check_http(self.url or "")
        for name in ("connect_timeout_s", "call_timeout_s"):
            if not 0 < getattr(self, name) <= TIMEOUT_MAX_S:
                self._refuse(name, f"must be more than 0 and at most {TIMEOUT_MAX_S:g} seconds")
        if not self.allow or not all(self.allow):
            self._refuse("allow", 'must hold at least one name or pattern; remove it to allow all ("*")')

    def _check_process(self, command: str) -> None:
        if not command.strip():
            self._refuse("command", "must name a program")
        if self.headers:
            self._refuse("headers", "belong to a url; a command gets its secrets through env")
        for name, value in (*self.env.items(), *((name, "") for name in self.inherit)):
            if not _VARIABLE.fullmatch(name) or "\0" in value:
                self._refuse("env", f"{name[:40]!r} cannot be a variable: letters, digits and _ only, no NUL")
        if any("\0" in text for text in (command, *self.args, self.cwd or "", *self.visible)):
            self._refuse("args", "must not contain NUL")

    def _check_http(self, url: str) -> None:
        if self.args or self.env or self.inherit or self.visible or self.cwd is not None:
            self._refuse("url", "args, cwd, env, inherit and visible belong to a command; remove them")
        try:
            parts = urlsplit(url)
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            self._refuse("url", "is not a URL; write it as https://host/path")
        if not is_address:
            self._refuse("url", "must be an http or https address, such as https://host/path")
        if parts.username or parts.password:
            self._refuse("url", "must not contain a name or password; put them in headers")
        if self.headers and parts.scheme == "http" and parts.hostname not in _LOOPBACK:
            self._refuse("url", "headers would cross the network unencrypted; use https")
        for name, value in self.headers.items():
            if not _HEADER.fullmatch(name) or name.lower() in _OWN_HEADERS or name.lower().startswith("mcp-"):
                self._refuse("headers", f"{name[:40]!r} is not a header that can be set here; remove it")
            if not value.isascii() or not value.isprintable():
                self._refuse("headers", f"the value of {name[:40]} must be printable ASCII text on one line")

    def _refuse(self, name: str, rule: str) -> NoReturn:
        raise InvalidInput(f"mcp.servers.{self.name}.{name}", rule)

    def granted(self) -> dict[str, str]:
        """The variables that the settings give it."""
        return {name: os.environ[name] for name in self.inherit if name in os.environ} | dict(self.env)

    def environment(self) -> dict[str, str]:
        """All that a process of this server sees of ours."""
        return {name: os.environ[name] for name in INHERITED if name in os.environ} | self.granted()

    def without_secrets(self, text: str) -> str:
        """A server may print what it was given; its last words must not carry that to a model."""
        given = (*self.granted().values(), *self.headers.values())
        for value in sorted((value for value in given if len(value) >= 6), key=len, reverse=True):
            text = text.replace(value, "***")
        return text

    def allows(self, tool: str) -> bool:
        return any_matches(self.allow, tool)

    def wants_approval(self, tool: str) -> bool:
        return self.approve == "all" or any_matches(self.approve, tool)
