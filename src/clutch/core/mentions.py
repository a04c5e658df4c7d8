"""Files that a user mentions in a message with `@path`, for the chat in the terminal and the one of the dashboard.

A mention of what is not there is plain text. A file must be UTF-8 text of at most 48 KiB. How a name is found and read
is up to the caller: the terminal reads with the rights of its user, the gateway beneath the agent's workspace only."""

from __future__ import annotations

import re
from collections.abc import Callable

from clutch.errors import InvalidInput

FILE_BYTES_MAX = 48 * 1024  #: a message may have 64 KiB, with the typed text
HIDDEN = "is in a state directory of Clutch, which holds secrets"
_MENTIONED = re.compile(r"(?<!\S)@([^\s@]\S*)")


def mentioned(text: str) -> list[str]:
    """Return the names that a message mentions, each once."""
    return list(dict.fromkeys(_MENTIONED.findall(text)))


def with_files(text: str, read: Callable[[str], bytes | None]) -> str:
    """Append each mentioned file to the text. `read` returns the beginning of a file, one byte more than may be sent;
    None: there is no such file. Raises InvalidInput for a file that cannot be sent."""
    contents = ((name, read(name)) for name in mentioned(text))
    return "\n\n".join([text, *(_quoted(name, raw) for name, raw in contents if raw is not None)])


def _quoted(name: str, raw: bytes) -> str:
    if len(raw) > FILE_BYTES_MAX:
        raise InvalidInput(f"@{name}", f"has more than {FILE_BYTES_MAX // 1024} KiB; let an agent read it")
    try:
        body = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"@{name}", "is not UTF-8 text; let an agent read it") from error
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", body)), default=0))
    return f"{name}:\n{fence}\n{body}\n{fence}"


def completes(name: str, start: str) -> bool:
    """Whether the name of a file or folder may complete what was typed of it. Hidden ones are offered to a user who
    types the dot, and one with white space cannot be mentioned."""
    is_offered = bool(start) or not name.startswith(".")
    return is_offered and name.startswith(start) and is_mentionable(name)


def is_mentionable(path: str) -> bool:
    return bool(path) and path.isprintable() and not any(char.isspace() for char in path)
