"""MCP servers and their tools as data: settings, definitions, differences, approved definitions.

A tool gets a name that every provider takes, a description without invisible characters and a valid schema, or is
refused with the reason. Nothing here talks to a server or decides whether a tool is approved."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol
from urllib.parse import urlsplit

from clutch.core.authority import any_matches
from clutch.core.model import Definition as OfferedDefinition
from clutch.core.model import ToolOffer, canonical
from clutch.core.text.format import is_plain, quoted, visible
from clutch.errors import InvalidInput
from clutch.ports import ToolSpec

if TYPE_CHECKING:
    from mcp_types import CallToolResult

# --------------------------------------------------------------------------------------------------
# The settings of one MCP server.
#
# A server gets only what is named: its environment is a short list and the variables of the settings, its headers are
# those of the settings. Values that may be secrets are not part of `repr`.

SERVER_NAME_CHARS_MAX = 24  # leaves 38 of the 64 that providers allow for the tool's own name
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
    """Has either `command` (stdio) or `url` (streamable HTTP). Raises InvalidInput naming the field."""

    name: str
    command: str | None = None  #: Program that speaks MCP on stdin and stdout.
    args: tuple[str, ...] = ()  #: Arguments of the program.
    cwd: str | None = None  #: Directory in which the program is started.
    env: Mapping[str, str] = field(default_factory=dict, repr=False)  #: Environment variables of the program.
    inherit: frozenset[str] = frozenset()  #: Names of environment variables that the program inherits.
    sandbox: bool = True  #: Run the program in the sandbox.
    network: bool = False  #: Network access in the sandbox. Without the sandbox a program always has it.
    #: Folders that the program can read in the sandbox, such as its installation.
    visible: tuple[str, ...] = ()
    url: str | None = None  #: Address of a server with streamable HTTP, instead of command.
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  #: Headers of every request.
    connect_timeout_s: float = 10.0  #: Time until the server must have answered for the first time.
    call_timeout_s: float = 60.0  #: Time limit of one tool call.
    read_only_consent: bool = False  #: Trust the server's readOnlyHint and idempotentHint.
    #: Tools (names or patterns) whose calls a person approves, or "all".
    approve: frozenset[str] | Literal["all"] = frozenset()
    #: The only tools that agents get from this server, by the server's names.
    allow: tuple[str, ...] = ("*",)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or len(self.name) > SERVER_NAME_CHARS_MAX:
            raise InvalidInput(
                f"mcp.servers.{self.name[:40]!r}",
                f"a name is letters and digits with single - or _ between them, at most {SERVER_NAME_CHARS_MAX} "
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
        """Return the variables that the settings give it."""
        return {name: os.environ[name] for name in self.inherit if name in os.environ} | dict(self.env)

    def environment(self) -> dict[str, str]:
        """Return the whole environment of a process of this server."""
        return {name: os.environ[name] for name in INHERITED if name in os.environ} | self.granted()

    def without_secrets(self, text: str) -> str:
        """Mask the secrets of the settings in a text."""
        # A server may print the secrets it was given: they must not reach a model or a log.
        given = (*self.granted().values(), *self.headers.values())
        for value in sorted((value for value in given if len(value) >= 6), key=len, reverse=True):
            text = text.replace(value, "***")
        return text

    def allows(self, tool: str) -> bool:
        """Return whether agents may have this tool of the server."""
        return any_matches(self.allow, tool)

    def wants_approval(self, tool: str) -> bool:
        """Return whether the user approves each call of this tool."""
        return self.approve == "all" or any_matches(self.approve, tool)


NAME_CHARS_MAX = 64
DESCRIPTION_CHARS_MAX = 2000
FIELD_DESCRIPTION_CHARS_MAX = 500
SCHEMA_BYTES_MAX = 32 * 1024
SCHEMA_DEPTH_MAX = 24

_DIGEST_CHARS = 8
# Texts for readers: only these may lose characters.
_WORDS = frozenset({"$comment", "description", "title"})


class BadTool(Exception):
    """The tool cannot be offered to a model; the message says why."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A tool as its server describes it, word for word."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None
    annotations: Mapping[str, Any] | None

    def as_json(self) -> dict[str, Any]:
        return {
            "annotations": self.annotations,
            "description": self.description,
            "inputSchema": self.input_schema,
            "name": self.name,
            "outputSchema": self.output_schema,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Definition:
        return cls(
            data["name"], data["description"], data["inputSchema"], data["outputSchema"], data["annotations"]
        )

    def hints(self, name: str) -> bool:
        return self.annotations is not None and self.annotations.get(name) is True


def changes(before: Definition, after: Definition) -> tuple[str, ...]:
    """Return the names of the parts that differ."""
    old, new = before.as_json(), after.as_json()
    names = {
        "annotations": "annotations",
        "description": "description",
        "inputSchema": "input schema",
        "outputSchema": "output schema",
    }
    return tuple(words for key, words in names.items() if canonical(old[key]) != canonical(new[key]))


def tool_name(server: str, tool: str) -> str:
    """Return `<server>__<tool>`. No built-in tool has "__" in its name, so this is never a reserved one."""
    name = f"{server}__{re.sub(r'[^a-zA-Z0-9_-]', '_', tool)}"
    if len(name) <= NAME_CHARS_MAX:
        return name
    digest = hashlib.sha256(tool.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]
    return f"{name[: NAME_CHARS_MAX - _DIGEST_CHARS - 1]}_{digest}"


def spec_of(server: McpServer, tool: Definition) -> ToolSpec:
    # Hints count only with the operator's consent: a server can claim anything about itself.
    is_read_only = server.read_only_consent and tool.hints("readOnlyHint")
    return ToolSpec(
        tool_name(server.name, tool.name),
        f"(MCP server {server.name}) {plain(tool.description, DESCRIPTION_CHARS_MAX)}".rstrip(),
        parameters(tool.input_schema),
        replay_safe=is_read_only or (server.read_only_consent and tool.hints("idempotentHint")),
        read_only=is_read_only,
        needs_approval=server.wants_approval(tool.name),
        is_outward=True,
    )


def vet(tool: Definition) -> None:
    """Raises BadTool for a tool that providers refuse or that hides text. Slow at first: it loads a library."""
    from jsonschema import Draft202012Validator, SchemaError

    if not tool.name or not is_plain(tool.name):
        raise BadTool("its name is empty or has invisible characters")
    schema = parameters(tool.input_schema)
    if len(canonical(schema)) > SCHEMA_BYTES_MAX:
        raise BadTool(f"its input schema has more than {SCHEMA_BYTES_MAX} bytes")
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        where = "/".join(str(part) for part in error.absolute_path)
        raise BadTool(f"its input schema is no JSON Schema (at {plain(where, 100) or 'the top'})") from error


def plain(text: str, length_max: int) -> str:
    """Remove control, bidi and invisible characters from a text, and cut it; line ends stay."""
    kept = "".join(char for char in text[: 4 * length_max] if char in "\n\t" or is_plain(char)).strip()
    return kept if len(kept) <= length_max else f"{kept[: length_max - 1]}…"


def parameters(schema: Mapping[str, Any]) -> dict[str, Any]:
    if schema.get("type", "object") != "object" or not isinstance(schema.get("properties", {}), dict):
        raise BadTool("its input schema is not an object; arguments always have names")
    cleaned = _cleaned({"type": "object", "properties": {}, **schema}, schema, "", 0)
    assert isinstance(cleaned, dict)
    return cleaned


def _cleaned(value: object, whole: Mapping[str, Any], key: str, depth: int) -> object:
    if depth > SCHEMA_DEPTH_MAX:
        raise BadTool(f"its input schema is nested deeper than {SCHEMA_DEPTH_MAX}")
    match value:
        case str() if key in _WORDS:
            return plain(value, FIELD_DESCRIPTION_CHARS_MAX)
        case str():
            _check_text(value)
            if key == "$ref" and not _resolves(value, whole):
                raise BadTool(f"its input schema refers to {plain(value, 100)!r}, which is not in it")
            return value
        case dict():
            for name in value:
                _check_text(name)
            return {name: _cleaned(inner, whole, name, depth + 1) for name, inner in value.items()}
        case list():
            return [_cleaned(inner, whole, "", depth + 1) for inner in value]
        case _:
            return value


def _check_text(text: str) -> None:
    if not is_plain(text.replace("\n", "").replace("\t", "")):
        raise BadTool("its input schema has invisible characters outside of descriptions")


def _resolves(reference: str, whole: object) -> bool:
    if reference != "#" and not reference.startswith("#/"):
        return False
    for part in reference.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(whole, dict) or name not in whole:
            return False
        whole = whole[name]
    return True


# --------------------------------------------------------------------------------------------------
# The differences of a tool, as text for the user who approves it.
#
# It contains everything that a model would be shown, uncut: an attacker would hide instructions behind a cut.

DESCRIPTION_CHARS_SEEN = 4 * DESCRIPTION_CHARS_MAX  # a model may be shown a part of these
ESCAPE_CHARS = 10  # as \U0001f600
OUTPUT_CHARS_MAX = 2000  # no model is shown an output schema


def offer_text(server: str, before: Definition | None, after: Definition) -> str:
    tool = quoted(after.name, 80)
    if before is None:
        lines = [
            f"MCP server {server} offers a new tool {tool}. It is withheld until you approve it.",
            f"description: {_description(after)}",
            f"input schema: {json.dumps(parameters(after.input_schema), sort_keys=True)}",
        ]
    else:
        heading = f"MCP server {server} has changed its tool {tool}. It is withheld until you approve what it is now."
        lines = [heading, *_changes(before, after)]
    return "\n  ".join(lines)


def _changes(before: Definition, after: Definition) -> Iterator[str]:
    if before.description != after.description:
        yield f"description, approved: {_description(before)}"
        yield f"description, now: {_description(after)}"
    old, new = parameters(before.input_schema), parameters(after.input_schema)
    schemas = [f"input schema, {line}" for line in _apart(old, new, "")]
    is_other = canonical(before.input_schema) != canonical(after.input_schema)
    yield from schemas or (["input schema: only what no model is shown"] if is_other else [])
    yield from (f"hints, {line}" for line in _apart(before.annotations or {}, after.annotations or {}, ""))
    if canonical(before.output_schema) != canonical(after.output_schema):
        yield f"output schema, now: {visible(json.dumps(after.output_schema, sort_keys=True), OUTPUT_CHARS_MAX)}"


def _apart(before: Mapping[str, Any], after: Mapping[str, Any], path: str) -> Iterator[str]:
    """Compare key by key; a value that is no object is shown completely."""
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        where = f"{path}{visible(key, 200)}"
        if key in before and key in after:
            if isinstance(old, dict) and isinstance(new, dict):
                yield from _apart(old, new, f"{where}.")
            elif canonical(old) != canonical(new):
                yield f"{where}: was {json.dumps(old, sort_keys=True)}, now {json.dumps(new, sort_keys=True)}"
        elif key in after:
            yield f"{where} is new: {json.dumps(new, sort_keys=True)}"
        else:
            yield f"{where} is gone: {json.dumps(old, sort_keys=True)}"


def _description(tool: Definition) -> str:
    seen = tool.description[:DESCRIPTION_CHARS_SEEN]
    return quoted(seen, ESCAPE_CHARS * DESCRIPTION_CHARS_SEEN)


# --------------------------------------------------------------------------------------------------
# A copy of the approved definitions, for callers that cannot wait for the store.
#
# The whole definition is kept, so that a model sees approved text only, and a user sees what changed. The copy may be
# outdated for a moment: then a tool that was just approved is withheld, never the other way round.


class ToolPins(Protocol):
    """The approved tools of MCP servers, stored in one place for all processes."""

    async def stamp(self) -> int:
        """A number that changes whenever the approvals may have changed."""

    async def approved(self) -> Mapping[str, Mapping[str, OfferedDefinition]]:
        """By server and tool. A server that was seen is there."""

    async def see(self, server: str, tools: Mapping[str, OfferedDefinition]) -> None:
        """Approve all tools of a server that was never seen; of any other, none."""

    async def ask(self, server: str, offers: Sequence[ToolOffer]) -> Mapping[str, str]:
        """Ask the user about tools of this server, in place of the questions asked before.

        A rejected tool is not asked about again. Return the rejected tools, each with the name of its question."""


class Pins:
    def __init__(self) -> None:
        self._store: ToolPins | None = None
        self._stamp: int | None = None
        self._approved: Mapping[str, Mapping[str, Definition]] = {}

    async def open(self, store: ToolPins) -> None:
        self._store = store
        await self.look()

    def knows(self, server: str) -> bool:
        return server in self._approved

    def tools(self, server: str) -> Mapping[str, Definition]:
        return self._approved.get(server, {})

    async def look(self) -> bool:
        """Read the approved definitions again; return whether they changed."""
        stamp = await self._opened.stamp()
        if stamp == self._stamp:
            return False
        approved = await self._opened.approved()
        self._approved = {
            server: {name: Definition.from_json(tool) for name, tool in tools.items()}
            for server, tools in approved.items()
        }
        self._stamp = stamp
        return True

    async def see(self, server: str, tools: Mapping[str, Definition]) -> None:
        """Approve all tools of a server that was never seen before."""
        if not self.knows(server):
            await self._opened.see(server, {name: tool.as_json() for name, tool in tools.items()})
        await self.look()

    async def ask(self, server: str, offers: Sequence[ToolOffer]) -> Mapping[str, str]:
        """Ask a user about new and changed tools. Return the rejected ones, each with the id of its question."""
        return await self._opened.ask(server, offers)

    @property
    def _opened(self) -> ToolPins:
        assert self._store is not None, "the tools of MCP servers are opened before they are used"
        return self._store


# --------------------------------------------------------------------------------------------------
# The state of the other end of one connection: whether it has ended, and its final output.

STDERR_BYTES_KEPT = 4096
STDERR_CHARS_SHOWN = 600


class Gone(Exception):
    """The connection ended; whether the last call took effect is unknown."""


class McpServerError(Exception):
    """The server answered with an error, or with something that is no answer."""


@dataclass(frozen=True, slots=True)
class RemoteTaskState:
    """A task of the server that carries out a call. `result` None: it works, and is asked again after `poll_s`."""

    task_id: str
    poll_s: float
    result: CallToolResult | None = None


@dataclass(slots=True)
class Wire:
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    is_up: bool = False  #: the handshake is done: the server gets time to stop
    exit_code: int | None = None
    verdict: str = ""  #: why Clutch has ended it
    noise: int = 0  #: lines on stdout that are no messages
    first_noise: str = ""
    _stderr: bytes = b""

    def add_stderr(self, data: bytes) -> None:
        self._stderr = (self._stderr + data)[-STDERR_BYTES_KEPT:]

    def add_noise(self, line: bytes) -> None:
        self.noise += 1
        self.first_noise = self.first_noise or line[:80].decode("utf-8", "replace")

    def final_output(self, without_secrets: Callable[[str], str]) -> str:
        # Secrets are masked before the text is cut: half of a secret would not be recognised.
        said = without_secrets(self._stderr.decode("utf-8", "replace")).strip()[-STDERR_CHARS_SHOWN:]
        words = [self.verdict] if self.verdict else []
        if self.exit_code is not None:
            words.append(f"exit code {self.exit_code}")
        if self.noise:
            words.append(
                f"{self.noise} lines on stdout that are no messages, the first: {self.first_noise!r}"
            )
        if said:
            words.append(f"its stderr ends with: {said}")
        return "; ".join(words)
