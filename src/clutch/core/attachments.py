"""Files of tasks and workspaces: how they may be named, how much there may be, what is kept, and what is protected.

Every task has one directory with two sides, and another once the first is to go and it works again:

    in/    what was given at spawn; the child only reads it
    out/   what its tools produced and it hands over

An agent reaches its own as `/task/in/NAME` and `/task/out/NAME`, and those of a task it asked for as
`/tasks/t_…/out/NAME`. Contents are never part of a transcript: `redacted` takes them out of a spawn call once
they are on disk."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import astuple, dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from clutch.core import ids
from clutch.core.messages import Answer, Call, Results
from clutch.core.model import Delivery, Outcome
from clutch.core.validation import check
from clutch.errors import InvalidInput

KEY = "tools.sessions_spawn.attachments."
SPAWN = "sessions_spawn"
MANIFEST = ".manifest.json"
NAME_BYTES_MAX = 255  # what a file system takes
SHA256_CHARS = 64
REMOVED = "(removed)"
#: They make a name read otherwise than it is written.
TURNS_TEXT = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class AttachmentErrorCode(StrEnum):
    """Why files are refused, for machines."""

    DISABLED = "attachments_disabled"
    FILE_COUNT = "attachments_file_count_exceeded"
    FILE_BYTES = "attachments_file_bytes_exceeded"
    TOTAL_BYTES = "attachments_total_bytes_exceeded"
    NAME = "attachments_invalid_name"
    DUPLICATE = "attachments_duplicate_name"
    BASE64 = "attachments_invalid_base64"


class Encoding(StrEnum):
    UTF8 = "utf8"
    BASE64 = "base64"


class Side(StrEnum):
    IN = "in"
    OUT = "out"


class FileVersion(NamedTuple):
    """Which directory of which task. Removing names both: done late, it never meets what was made since."""

    task_id: int
    number: int = 0


class BlobIdentity(NamedTuple):
    """Which fleet a key of a shared blob store belongs to. `older_below`: tasks with smaller numbers may have files
    there that were stored without the name of the fleet."""

    name: str
    older_below: int = 0

    def key(self, key: str) -> str:
        return f"{self.name}/{key}"

    def may_be_older(self, key: str) -> bool:
        """Whether an earlier version may have stored it: as `tasks/NUMBER.VERSION/…`."""
        found = _TASK_KEY.match(key)
        return found is not None and int(found[1]) < self.older_below


_TASK_KEY = re.compile(r"tasks/(\d+)\.\d+(/|$)")


@dataclass(frozen=True, slots=True)
class AttachmentRules:
    """`tools.sessions_spawn.attachments.*`. The limits hold for each side of a task."""

    enabled: bool = True  #: Files may be attached to a spawn.
    files_max: int = 50  #: Files per task and direction.
    file_bytes_max: int = 1024 * 1024  #: Size of one file.
    total_bytes_max: int = 5 * 1024 * 1024  #: Size of all files of a task together, per direction.
    retain_on_keep: bool = False  #: Keep the attachments of a delivered task until it is archived.

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """What is known of a file wherever its contents are not shown."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Handed:
    """What a task hands over, by name. `left_out`: entries that are no plain files or are over the limits."""

    files: tuple[StoredFile, ...] = ()
    left_out: int = 0

    def to_text(self) -> str | None:
        if not self.files and not self.left_out:
            return None
        return json.dumps({"files": [astuple(file) for file in self.files], "leftOut": self.left_out})


_NO_FILES = Handed()


def handed(text: str | None) -> Handed:
    if text is None:
        return _NO_FILES
    known = json.loads(text)
    return Handed(tuple(StoredFile(*file) for file in known["files"]), known["leftOut"])


@dataclass(frozen=True, slots=True)
class Attachment:
    name: str
    content: bytes

    @property
    def stored(self) -> StoredFile:
        return StoredFile(self.name, len(self.content), hashlib.sha256(self.content).hexdigest())


@dataclass(frozen=True, slots=True)
class AttachmentInput:
    """An attachment as a caller wrote it."""

    name: str
    content: str
    encoding: Encoding = Encoding.UTF8


def attachments(given: Sequence[AttachmentInput], rules: AttachmentRules) -> tuple[Attachment, ...]:
    """Raises InvalidInput, whose rule begins with the code. Where attachments are off, admission says so:
    nothing is looked at here."""
    if not rules.enabled:
        return tuple(Attachment(one.name, b"") for one in given)
    if len(given) > rules.files_max:
        raise _wrong(
            "attachments", AttachmentErrorCode.FILE_COUNT, f"{len(given)} files, at most {rules.files_max}"
        )
    names: set[str] = set()
    found: list[Attachment] = []
    left = rules.total_bytes_max
    for place, one in enumerate(given):
        field = f"attachments[{place}]"
        if problem := name_problem(one.name):
            raise _wrong(f"{field}.name", AttachmentErrorCode.NAME, problem)
        if one.name in names:
            raise _wrong(f"{field}.name", AttachmentErrorCode.DUPLICATE, "two files cannot have one name")
        names.add(one.name)
        content = _content(one, field, rules.file_bytes_max)
        left -= len(content)
        if left < 0:
            raise _wrong(
                "attachments",
                AttachmentErrorCode.TOTAL_BYTES,
                f"at most {rules.total_bytes_max} bytes together",
            )
        found.append(Attachment(one.name, content))
    return tuple(found)


def name_problem(name: str) -> str | None:
    """The rule a name breaks. What passes is one component of a path, and reads as it is written."""
    if not name or name in (".", "..", MANIFEST):
        return f"must not be empty, '.', '..' or {MANIFEST}"
    if any(char in name for char in "/\\"):
        return "must not contain / or \\"
    if any(unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") or char in TURNS_TEXT for char in name):
        return "must not contain control characters"
    if len(name.encode()) > NAME_BYTES_MAX:
        return f"must not be longer than {NAME_BYTES_MAX} bytes"
    return None


def _content(given: AttachmentInput, field: str, bytes_max: int) -> bytes:
    is_text = given.encoding is Encoding.UTF8
    too_large = _wrong(field, AttachmentErrorCode.FILE_BYTES, f"at most {bytes_max} bytes each")
    if len(given.content) > (bytes_max if is_text else 4 * (bytes_max + 2) // 3):
        raise too_large
    content = given.content.encode() if is_text else _decoded(given.content, field)
    if len(content) > bytes_max:
        raise too_large
    return content


def _decoded(text: str, field: str) -> bytes:
    """Strict: what decodes must encode to the same again, so that one content has one form."""
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _wrong(f"{field}.content", AttachmentErrorCode.BASE64, "is not strict base64") from error
    if base64.b64encode(content).decode() != text:
        raise _wrong(f"{field}.content", AttachmentErrorCode.BASE64, "is not strict base64")
    return content


def _wrong(field: str, code: AttachmentErrorCode, rule: str) -> InvalidInput:
    return InvalidInput(field, f"{code}: {rule}")


def receipt(files: Iterable[StoredFile]) -> dict[str, object]:
    """What the answer of a spawn says about its files."""
    listed = list(files)
    return {
        "count": len(listed),
        "totalBytes": sum(file.bytes for file in listed),
        "files": [{"name": file.name, "bytes": file.bytes, "sha256": file.sha256} for file in listed],
    }


# ---- paths -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """A path of an agent that leads to the files of a task. `task_id` None: its own."""

    task_id: int | None
    side: Side
    path: str  #: beneath that side


def task_path(path: object) -> Place | None:
    """None: any other path. Raises InvalidInput for one that begins like a task's and is none."""
    if not isinstance(path, str):
        return None
    first, _, rest = path.removeprefix("/").partition("/")
    if not path.startswith("/") or first not in ("task", "tasks"):
        return None
    task_id = None
    if first == "tasks":
        name, _, rest = rest.partition("/")
        task_id = ids.parse_task_id(name)
        if task_id is None:
            raise InvalidInput("path", "must be /tasks/TASK/in/… or /tasks/TASK/out/…")
    side, _, beneath = rest.partition("/")
    if side not in tuple(Side):
        raise InvalidInput("path", "must be /task/in/… or /task/out/…")
    return Place(task_id, Side(side), beneath or ".")


SKILLS = "/skills"  #: where file tools find the files of skills
RESULTS = "/results"  #: where a session finds its own large tool results


def result_path(path: object) -> str | None:
    """Return the path beneath the session's large results, None for any other path."""
    if not isinstance(path, str) or not (path == RESULTS or path.startswith(f"{RESULTS}/")):
        return None
    return path.removeprefix(RESULTS).removeprefix("/") or "."


def skill_path(path: object) -> str | None:
    """Return the path beneath the copies of skills, None for any other path."""
    return (
        path.removeprefix(f"{SKILLS}/") if isinstance(path, str) and path.startswith(f"{SKILLS}/") else None
    )


# ---- transcripts -------------------------------------------------------------------------------------------


def redacted(answer: Answer) -> Answer:
    """Without the contents of files; the same answer where there are none."""
    if not any(_has_contents(call) for call in answer.calls):
        return answer
    return replace(
        answer, calls=tuple(_without(call) if _has_contents(call) else call for call in answer.calls)
    )


def _has_contents(call: Call) -> bool:
    given = call.args.get("attachments") if call.name == SPAWN else None
    if given is None or given == REMOVED:
        return False
    return not isinstance(given, list) or not all(_is_kept(one) for one in given)


def _is_kept(given: object) -> bool:
    """Exactly what `_kept` makes: anything else may be, or hide, a content."""
    match given:
        case {"name": str(), "bytes": int(), "sha256": str(digest), **more}:
            return not more and len(digest) == SHA256_CHARS
        case {"name": str(), **more}:
            return not more
        case _:
            return False


def _without(call: Call) -> Call:
    given = call.args["attachments"]
    kept: object = [_kept(one) for one in given] if isinstance(given, list) else REMOVED
    return replace(call, args={**call.args, "attachments": kept})


def _kept(given: object) -> dict[str, object]:
    """Whatever a model wrote there, well formed or not."""
    if not isinstance(given, Mapping):
        return {"name": REMOVED}
    name, content = given.get("name"), given.get("content")
    known: dict[str, object] = {"name": name[:NAME_BYTES_MAX] if isinstance(name, str) else REMOVED}
    if isinstance(content, str):
        data = _bytes_of(content, given)
        known |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return known


def _bytes_of(content: str, given: Mapping[Any, Any]) -> bytes:
    if given.get("encoding") == Encoding.BASE64:
        try:
            return base64.b64decode(content, validate=True)
        except (binascii.Error, ValueError):
            pass
    return content.encode("utf-8", "replace")


# --------------------------------------------------------------------------------------------------
# What goes once a task is over, and what stays.
#
# Outcome, result, usage and timeline always stay. Of the rest:
#
#     undelivered          what was given to it goes; everything else waits for a redelivery
#     killed, lost         all its files
#     cleanup: delete      all its files, its own workspace, its session with the transcript
#     cleanup: keep        what was given to it, unless the policy retains that; the rest until it is archived
#     never begun          whatever was made for it

EVERYTHING = (Side.IN, Side.OUT)


class Removal(NamedTuple):
    sides: tuple[Side, ...] = ()
    workspace: bool = False
    session: bool = False
    number: int = 0  #: of the file version that the sides are removed from
    generation: int = 0  #: whose end it is: the word that it is done says nothing of another one


def removal(
    *, outcome: Outcome | None, delivery: Delivery, is_begun: bool, is_deleted: bool, is_retained: bool
) -> Removal:
    """`is_deleted`: the spawn asked for it. `is_retained`: what was given stays with a task that is kept."""
    given = () if is_retained and not is_deleted else (Side.IN,)
    if not is_begun:
        return Removal(EVERYTHING, workspace=True, session=is_deleted)
    if delivery is Delivery.UNDELIVERED:
        return Removal(given)
    if is_deleted:
        return Removal(EVERYTHING, workspace=True, session=True)
    return Removal(EVERYTHING if outcome in (Outcome.KILLED, Outcome.LOST) else given)


def is_stripped(*, outcome: Outcome | None, is_begun: bool, is_archived: bool) -> bool:
    """Of a finished task: its files are removed, or are being removed. A new attempt has another file version."""
    return is_archived or not is_begun or outcome in (Outcome.KILLED, Outcome.LOST)


# --------------------------------------------------------------------------------------------------
# Files in a workspace that agents may not see or may not change, recognised by name
#
# A Clutch state directory is hidden: it holds a token, transcripts and a config. What steers Clutch, or names programs
# that run later outside the sandbox, is read-only: repositories, `clutch.json`, instructions, agent and skill files.
# File tools ask these rules for every path; the sandbox asks them for every folder and mounts what they name.


LOCK = "lock"
#: Written with the lock, before a state directory holds anything else.
STATE_MARK = ".clutch-state"
#: Beside a lock, one of these makes a folder a state directory. With PostgreSQL there is no database file.
STATE_FILES = frozenset((STATE_MARK, "clutch.db", "token", "gateway.json"))
SKILL = "SKILL.md"
#: Names whose presence in a folder says what the folder is.
MARKS = frozenset((LOCK, *STATE_FILES, "HEAD", "commondir", "objects", "refs", SKILL))

#: Metadata of version control: it names programs (hooks, filters, monitors) that the user's own commands run.
REPOSITORIES = frozenset((".git", ".hg"))
CONFIG = "clutch.json"
#: Instructions that Clutch puts into prompts, or sends agents to.
INSTRUCTIONS = frozenset(("AGENTS.md", "HEARTBEAT.md"))
#: Folders of agent and skill definitions, each as the end of a path.
DEFINITIONS = ((".agents",), (".claude", "agents"), (".claude", "skills"))

#: Single names that are read-only wherever they stand; those that make programs run, without regard to case.
FOLDED = REPOSITORIES | {CONFIG}
READ_ONLY_FILES = INSTRUCTIONS | {CONFIG, SKILL}


_KNOWN = MARKS | REPOSITORIES | READ_ONLY_FILES | {name for tail in DEFINITIONS for name in tail}
_KNOWN_BY_FOLDED = {name.casefold(): name for name in _KNOWN}


def without_case(name: str) -> str:
    """Return the name as the rules spell it, for a file system that takes other spellings for the same file."""
    return _KNOWN_BY_FOLDED.get(name.casefold(), name)


def is_state(files: Set[str]) -> bool:
    """Return whether a folder with these regular files is a state directory of Clutch."""
    return LOCK in files and not STATE_FILES.isdisjoint(files)


def is_repository(names: Set[str]) -> bool:
    """Return whether git takes a folder with these entries for a repository, under whatever name it lies."""
    return "HEAD" in names and ("commondir" in names or {"objects", "refs"} <= names)


def read_only_part(parts: Sequence[str]) -> int | None:
    """Return how many parts of a path lead to the outermost read-only file or folder on it, None without one."""
    for end, name in enumerate(parts, 1):
        is_definition = any(tuple(parts[:end][-len(tail) :]) == tail for tail in DEFINITIONS)
        is_file = end == len(parts) and (name in READ_ONLY_FILES or name.casefold() == CONFIG)
        if name.casefold() in REPOSITORIES or is_definition or is_file:
            return end
    return None


# --------------------------------------------------------------------------------------------------
# Files that a user mentions in a message with `@path`, for the chat in the terminal and the one of the dashboard.
#
# A mention of what is not there is plain text. A file must be UTF-8 text of at most 48 KiB. How a name is found and
# read is up to the caller: the terminal reads with the rights of its user, the gateway beneath the agent's workspace
# only.

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


# --------------------------------------------------------------------------------------------------
# What a session wrote, as it was last stored for the other machines of a fleet.
#
# Contents are stored by their hash, so what did not change is not stored again. The list of them is stored the same
# way, and its hash stands in the row of the session: one write makes a new list current.


class SavedRoot(StrEnum):
    """Where a session writes besides a workspace that it shares."""

    WORKSPACE = "workspace"  #: an isolated one, of its own
    RESULTS = "results"  #: large tool results
    OUT = "out"  #: what it hands over at its end


class WrittenFile(NamedTuple):
    root: SavedRoot
    path: str
    bytes: int
    is_executable: bool = False

    @property
    def shown(self) -> str:
        """The name by which its session knows it."""
        around = {SavedRoot.RESULTS: f"{RESULTS}/", SavedRoot.OUT: "/task/out/"}.get(self.root, "")
        return f"{around}{self.path}"


#: Of one session. Each is a request to the store when it changes, and again on the machine that resumes the session.
SAVED_FILES_MAX = 1000


@dataclass(frozen=True, slots=True)
class SavedFiles:
    """`head`: of the transcript at that moment. `removed`: files that came with the workspace and were deleted.
    `left_out`: names of files that were too large, too many, or no plain files."""

    head: int
    files: tuple[tuple[WrittenFile, str], ...] = ()  #: each with its hash
    removed: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    has_repository: bool = False  #: the workspace is a checkout

    @property
    def hashes(self) -> frozenset[str]:
        return frozenset(digest for _, digest in self.files)

    def to_text(self) -> str:
        # A removed file may have a name that is not UTF-8: escaped, it can be stored.
        return json.dumps([self.head, self.files, self.removed, self.left_out, self.has_repository])


def saved_files(text: str) -> SavedFiles:
    head, files, removed, left_out, has_repository = json.loads(text)
    known = tuple((WrittenFile(SavedRoot(root), *rest), digest) for (root, *rest), digest in files)
    return SavedFiles(head, known, tuple(removed), tuple(left_out), has_repository)


class FetchedFiles(NamedTuple):
    """The files of a session on another machine. `workspace`: its own, made anew. `saved`: what was stored of it; None:
    nothing, or the store does not answer. `missing`: names of what could not be had."""

    workspace: str | None
    saved: SavedFiles | None
    missing: tuple[str, ...]


def to_save(
    found: Iterable[WrittenFile], *, file_bytes_max: int, bytes_max: int
) -> tuple[list[WrittenFile], list[WrittenFile]]:
    """Which files are stored, and which are left out. Near the top of a tree are the files that were written by hand,
    deep in it those that a program has made: within the limits the first go first, and small ones before large ones."""
    kept: list[WrittenFile] = []
    left_out: list[WrittenFile] = []
    room = bytes_max
    for file in sorted(found, key=lambda one: (one.path.count("/"), one.bytes, one)):
        if len(kept) < SAVED_FILES_MAX and file.bytes <= min(file_bytes_max, room):
            kept.append(file)
            room -= file.bytes
        else:
            left_out.append(file)
    return kept, left_out


def is_restorable(path: str) -> bool:
    """Whether a stored path names a file below its root that an agent may have written."""
    parts = path.split("/")
    return all(part not in ("", ".", "..") for part in parts) and read_only_part(parts) is None


WRITING = frozenset(("write", "edit"))
_KEPT_RESULT = re.compile(rf"{RESULTS}/[0-9a-f]{{16}}\.txt")


def written_by(entries: Iterable[object]) -> tuple[str, ...]:
    """Return the paths that file tools were to write, each once."""
    calls = (call for entry in entries if isinstance(entry, Answer) for call in entry.calls)
    paths = (call.args.get("path") for call in calls if call.name in WRITING)
    return tuple(dict.fromkeys(path for path in paths if isinstance(path, str)))


def lost_files(
    entries: Sequence[object], *, saved: SavedFiles | None, base: int, is_isolated: bool
) -> tuple[str, ...]:
    """Return what file tools wrote, and the large results that were kept, after the last save. `entries`: of the
    transcript, after `base`. Files of a workspace that several sessions share are not stored and not named here."""
    since = entries[max(0, (0 if saved is None else saved.head) - base) :]
    own = (path for path in written_by(since) if is_isolated or path.startswith("/"))
    stored = set() if saved is None else {file.shown for file, _ in saved.files}
    texts = (result.text for entry in since if isinstance(entry, Results) for result in entry.results)
    kept = (name for text in texts for name in _KEPT_RESULT.findall(text) if name not in stored)
    return tuple(dict.fromkeys((*own, *kept)))
