"""What a user types in a chat: commands of the chat itself, files mentioned with @, and the history of texts.

The same at a terminal and through a pipe."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from clutch.core import attachments
from clutch.core.text.format import size, visible
from clutch.errors import InvalidInput
from clutch.surfaces.http_client import Declined, GatewayClient, item_path

# --------------------------------------------------------------------------------------------------
# Commands of the chat itself: they are not sent as messages.

CHAT_COMMANDS = ("attach", "answer", "help", "quit")
USAGE = {
    "/attach": "Usage: /attach TASK (an id, a number of the last list, or a label; quotes around it are allowed)",
    "/answer": "Usage: /answer ID your answer, /answer ID approve [comment] or /answer ID reject [reason]",
}
COMMANDS_HELP = (
    "/attach TASK watches a subagent; /answer ID text|approve|reject decides; "
    "also: /subagents help, /status …"
)
HELP = (
    "Enter sends; Alt-Enter or \\ at the end of a line begins a new one; Tab completes; @file brings a file along.\n"
    "↓ on an empty line enters the list of subagents: Enter opens one, x stops it, a approves, Esc returns.\n"
    "An approval: a approves, r rejects, Esc decides later, and Esc again brings it back;\n"
    "a shell command is confirmed with y.\n"
    f"Ctrl-C or /stop stops the turn, Ctrl-C twice or Ctrl-D leaves; tasks keep running. /stop all stops them.\n"
    f"{COMMANDS_HELP}"
)
PIPED_HELP = f"Each line is a message; @file brings a file along; /quit ends.\n{COMMANDS_HELP}"


#: As the gateway reads it: `/etc/passwd` is no command, and neither is `/ hello`.
_COMMAND = re.compile(r"/[a-z]+(?:\s.*)?", re.DOTALL)


def is_command(text: str) -> bool:
    """Whether the text is a slash command, which the agent does not read."""
    return _COMMAND.fullmatch(text.strip()) is not None


def target(words: str) -> str:
    """Return the task that `/attach` names, without quotes around its label."""
    text = words.strip()
    return text[1:-1].strip() if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def usage_of(word: str, rest: str) -> str | None:
    """Return the usage line of a command with too few arguments, else None."""
    needed = {"/attach": 1, "/answer": 2}.get(word, 0)
    return USAGE[word] if len(rest.split(maxsplit=1)) < needed else None


def answer(words: str) -> Callable[[GatewayClient], None]:
    """Return the call for `/answer ID text`, `/answer ID approve …` or `/answer ID reject …`.

    The call may be repeated after a lost connection: an item that the first attempt saw and the second does not find
    unchanged was decided by the first."""
    item, _, rest = words.partition(" ")
    verdict, _, reason = rest.strip().partition(" ")
    decision = verdict if verdict in ("approve", "reject") else "answer"
    text = rest.strip() if decision == "answer" else reason
    seen: list[str] = []

    def decide(client: GatewayClient) -> None:
        try:
            found = client.get(item_path(item))
        except Declined:
            if seen:
                return
            raise
        if seen and found["hash"] not in seen:
            return
        seen[:] = [found["hash"]]
        client.post(item_path(found["id"]), {"decision": decision, "text": text, "hash": found["hash"]})

    return decide


# --------------------------------------------------------------------------------------------------
# Files: `@path` in a message appends the file's text (`core.mentions`). Absolute paths, `~` and links are the user's
# own business here; only a state directory of Clutch is refused. The submitted texts are kept in a private file.

HISTORY_FILE = "chat-history"
HISTORY_MAX = 1000
PATHS_CHARS_MAX = 1000  # of the files in the line that names them


def with_files(text: str, base: Path, say: Callable[[str], object]) -> str:
    """Append each mentioned file that exists to the text, and say which were.

    Raises InvalidInput for a file that cannot be sent."""
    read: list[str] = []

    def content(name: str) -> bytes | None:
        found = _content(name, path := base / Path(name).expanduser())
        if found is not None:
            # It may be anywhere on this machine: the whole path is shown, and whose rights opened it.
            read.append(f"{path.resolve()} ({size(len(found))})")
        return found

    whole = attachments.with_files(text, content)
    if read:
        say(f"Attached {visible(', '.join(read), PATHS_CHARS_MAX)}, read with your own rights.")
    return whole


def _content(name: str, path: Path) -> bytes | None:
    if not path.is_file():
        return None
    if any(_is_state(folder) for folder in path.resolve().parents):
        raise InvalidInput(f"@{name}", attachments.HIDDEN)
    with path.open("rb") as file:
        return file.read(attachments.FILE_BYTES_MAX + 1)


def _is_state(folder: Path) -> bool:
    known = (attachments.LOCK, *attachments.STATE_FILES)
    return attachments.is_state({name for name in known if (folder / name).is_file()})


def completions(word: str, base: Path) -> Iterator[str]:
    """Yield the files that complete a word which begins with @."""
    folder, _, start = word[1:].rpartition("/")
    place = base / Path(folder).expanduser() if folder or not word.startswith("@/") else Path("/")
    try:
        found = sorted((one.name, one.is_dir()) for one in place.iterdir())
    except OSError:
        return
    before = f"@{folder}/" if folder or word.startswith("@/") else "@"
    for name, is_folder in found:
        if attachments.completes(name, start):
            yield f"{before}{name}{'/' if is_folder else ''}"


def read_history(home: Path) -> list[str]:
    try:
        lines = (home / HISTORY_FILE).read_text(encoding="utf-8").splitlines()
        return [str(json.loads(line)) for line in lines[-HISTORY_MAX:]]
    except (OSError, ValueError):
        # An unreadable history must not prevent a chat.
        return []


def write_history(home: Path, history: list[str]) -> None:
    fresh = home / f".{HISTORY_FILE}.{os.getpid()}"
    file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "w", encoding="utf-8") as out:
        out.writelines(json.dumps(one, ensure_ascii=False) + "\n" for one in history[-HISTORY_MAX:])
    fresh.replace(home / HISTORY_FILE)
