"""Files in a talk: `@path` in a message brings the file's text along; what was typed is kept in a private file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from clutch.errors import InvalidInput

HISTORY_FILE = "chat-history"
HISTORY_MAX = 1000
FILE_BYTES_MAX = 48 * 1024  #: a message may have 64 KiB, and the words need room, too
_MENTIONED = re.compile(r"(?<!\S)@([^\s@]\S*)")


def with_files(text: str, base: Path) -> str:
    """Each file that is mentioned and there, once, below the words. Raises InvalidInput for one that cannot be sent."""
    found = dict.fromkeys(
        name for name in _MENTIONED.findall(text) if (base / Path(name).expanduser()).is_file()
    )
    return "\n\n".join([text, *(_quoted(name, base / Path(name).expanduser()) for name in found)])


def _quoted(name: str, path: Path) -> str:
    with path.open("rb") as file:
        raw = file.read(FILE_BYTES_MAX + 1)
    if len(raw) > FILE_BYTES_MAX:
        raise InvalidInput(f"@{name}", f"has more than {FILE_BYTES_MAX // 1024} KiB; let an agent read it")
    try:
        body = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"@{name}", "is not a text in UTF-8") from error
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", body)), default=0))
    return f"{name}:\n{fence}\n{body}\n{fence}"


def completions(word: str, base: Path) -> Iterator[str]:
    """`word` begins with @."""
    folder, _, start = word[1:].rpartition("/")
    place = base / Path(folder).expanduser() if folder or not word.startswith("@/") else Path("/")
    try:
        names = sorted(one.name + ("/" if one.is_dir() else "") for one in place.iterdir())
    except OSError:
        return
    before = f"@{folder}/" if folder or word.startswith("@/") else "@"
    for name in names:
        if name.startswith(start) and (start or not name.startswith(".")) and " " not in name:
            yield before + name


def read_history(home: Path) -> list[str]:
    try:
        lines = (home / HISTORY_FILE).read_text(encoding="utf-8").splitlines()
        return [str(json.loads(line)) for line in lines[-HISTORY_MAX:]]
    except (OSError, ValueError):
        return []  # a comfort, never a reason not to talk


def write_history(home: Path, history: list[str]) -> None:
    fresh = home / f".{HISTORY_FILE}.{os.getpid()}"
    file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "w", encoding="utf-8") as out:
        out.writelines(json.dumps(one, ensure_ascii=False) + "\n" for one in history[-HISTORY_MAX:])
    fresh.replace(home / HISTORY_FILE)
