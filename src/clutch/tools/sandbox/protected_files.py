"""Which protected files a sandbox guards: those of its workspace and of every other visible folder, found each time.

Mounting at a path in reach of another sandboxed process is a race with that process: it could replace the path by a
link to a file of the user while bubblewrap mounts it. A guard that some running sandbox of the same folder lacks is
therefore checked from inside before the command starts: it must be the file that was found
(`ProtectedMount.identity`)."""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import stat
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from clutch.core import attachments
from clutch.core.attachments import INSTRUCTIONS
from clutch.logs import logger
from clutch.ports import ToolFailed
from clutch.tools.directories import DIRECTORY
from clutch.tools.sandbox import bubblewrap
from clutch.tools.sandbox.bubblewrap import ProtectedMount, mounted_above, python_inside, python_places
from clutch.tools.sandbox.policy import SandboxPolicy, is_beneath

# --------------------------------------------------------------------------------------------------
# Protected files of a directory tree, found by walking all of it: what `core.attachments` recognises, at any depth.
#
# The tree is walked before every command, so the walk must be cheap. The entries of a folder are cached with its inode
# and its change time, which no program can set: a second walk costs one `lstat` per folder. Dependency folders are
# walked like all others, but instructions in them stay writable, because Clutch reads none of them and package managers
# replace these folders as a whole.
#
# Links are not followed: what they lead to is found where it lies, or is not visible in the sandbox.

FOLDERS_MAX = 200_000  # a larger tree is refused: an agent could plant a file in the part that is not guarded
#: A change in the same tick of the kernel's clock as the walk leaves the same change time.
TICK_NS = 20_000_000

#: Folders of dependencies and caches, replaced as a whole by their own tools.
DEPENDENCIES = frozenset(("node_modules", "bower_components", ".venv", "venv", ".tox", ".nox", "__pycache__"))
#: What git runs or follows in a repository; of a workspace that is one itself, only these can be read-only.
REPOSITORY_PARTS = ("HEAD", "commondir", "config", "config.worktree", "hooks", "modules")
#: Names that a read-only folder may have, so that most folders cost one look.
_FOLDERS = attachments.REPOSITORIES | {tail[-1] for tail in attachments.DEFINITIONS}
#: Names that a walk looks for in a folder, beside those that are compared without regard to case.
_NAMES = attachments.MARKS | attachments.READ_ONLY_FILES


class SurveyFailed(Exception):
    """The tree cannot be walked to its end, or is itself a state directory; the message names the remedy."""


@dataclass(frozen=True, slots=True)
class ProtectedFile:
    """A protected file or folder. `is_hidden`: agents may not even read it."""

    path: str
    is_hidden: bool = False


@dataclass(frozen=True, slots=True)
class _Folder:
    """`stamp`: inode and change time. `names`: entries that a rule asks for; `files`: the regular ones of them."""

    stamp: tuple[int, int, int]
    folders: tuple[str, ...]
    names: frozenset[str]
    files: frozenset[str]


_remembered: dict[str, _Folder] = {}


def findings(root: str) -> Iterator[ProtectedFile]:
    """Yield all protected files beneath `root`, a real path, nearest first. Blocks. Raises SurveyFailed."""
    waiting: deque[tuple[str, bool, bool]] = deque([(root, False, False)])
    count = 0
    while waiting:
        path, is_guarded, is_dependency = waiting.popleft()
        if (folder := _folder(path)) is None:
            continue
        count += 1
        if count > FOLDERS_MAX:
            raise SurveyFailed(
                f"{root} has more than {FOLDERS_MAX} folders, which is too many to find the protected files in it; "
                "use a smaller folder as workspace"
            )
        if folder.files and attachments.is_state(folder.files):
            if path == root:
                raise SurveyFailed(f"{root} is a state directory of Clutch; use another folder as workspace")
            yield ProtectedFile(path, is_hidden=True)
            continue
        if folder.names and not is_guarded:
            for found in _in_folder(root, path, folder, is_dependency=is_dependency):
                yield ProtectedFile(found)
                is_guarded = is_guarded or found == path
        for name in folder.folders:
            below = f"{path}/{name}"
            is_named = (
                not is_guarded
                and name.casefold() in _FOLDERS
                and _is_read_only(below, is_dependency=is_dependency)
            )
            if is_named:
                yield ProtectedFile(below)
            waiting.append((below, is_guarded or is_named, is_dependency or name in DEPENDENCIES))


def _in_folder(root: str, path: str, folder: _Folder, *, is_dependency: bool) -> Iterator[str]:
    """Yield the folder itself when it is read-only as a whole, else its read-only files."""
    is_skill = attachments.SKILL in folder.files and not is_dependency
    is_repository = attachments.is_repository(folder.names)
    if path != root and (is_repository or is_skill):
        yield path
        return
    if is_repository:
        yield from (f"{path}/{name}" for name in REPOSITORY_PARTS)
    for name in sorted(folder.files):
        if _is_read_only(f"{path}/{name}", is_dependency=is_dependency):
            yield f"{path}/{name}"


def _is_read_only(path: str, *, is_dependency: bool) -> bool:
    """Decide about a path by its last two names; a folder above that is read-only was decided before."""
    parts = path.split("/")[-2:]
    if is_dependency and parts[-1].casefold() not in attachments.REPOSITORIES:
        return False
    return attachments.read_only_part(parts) == len(parts)


def _folder(path: str) -> _Folder | None:
    try:
        status = os.lstat(path)
    except OSError:  # removed meanwhile
        return None
    stamp = (status.st_dev, status.st_ino, status.st_ctime_ns)
    known = _remembered.get(path)
    if known is not None and known.stamp == stamp:
        return known
    if not stat.S_ISDIR(status.st_mode):
        return None
    began = time.time_ns()
    try:
        found = _read(path, stamp)
    except OSError:  # removed meanwhile, or closed to this user
        return None
    if began - status.st_ctime_ns > TICK_NS:
        if len(_remembered) > 2 * FOLDERS_MAX:
            _remembered.clear()
        _remembered[path] = found
    return found


def _read(path: str, stamp: tuple[int, int, int]) -> _Folder:
    folders, names, files = [], set(), set()
    with os.scandir(path) as entries:
        for entry in entries:
            is_folder = entry.is_dir(follow_symlinks=False)
            if is_folder:
                folders.append(entry.name)
            if _is_listed(entry.name):
                names.add(entry.name)
                if not is_folder and entry.is_file(follow_symlinks=False):
                    files.add(entry.name)
    return _Folder(stamp, tuple(folders), frozenset(names), frozenset(files))


def _is_listed(name: str) -> bool:
    return name in _NAMES or name.casefold() in attachments.FOLDED


TREES_MAX = 200  # submodules and worktrees that one repository names
GUARDS_MAX = 1000  # each is up to a dozen words of a command line, and bubblewrap takes 9,000

#: The sandboxes that run now in this process: their workspace, and what is guarded in them.
_running: list[tuple[str, frozenset[str]]] = []


@contextmanager
def guarding(
    policy: SandboxPolicy, found: tuple[ProtectedMount, ...]
) -> Iterator[tuple[ProtectedMount, ...]]:
    """Register a sandbox for as long as it runs. `found`: from `guards_of`, which blocks."""
    others = [
        paths for root, paths in _running if is_beneath(root, policy.root) or is_beneath(policy.root, root)
    ]
    guards = tuple(
        guard if all(guard.path in paths for paths in others) else replace(guard, identity=_identity(guard))
        for guard in found
    )
    own = policy.root, frozenset(guard.path for guard in guards)
    _running.append(own)
    try:
        yield guards
    finally:
        _running.remove(own)


def is_settled(path: str) -> bool:
    """Return whether no running command could have written `path`: it is guarded in every sandbox that shows it."""
    real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    return all(real in paths for root, paths in _running if is_beneath(real, root))


def unread_instructions() -> list[str]:
    """Return the instructions that Clutch does not read yet, because a running program could have written them."""
    named = {f"{root}/{name}" for root, _ in tuple(_running) for name in INSTRUCTIONS}
    return sorted(path for path in named if os.path.lexists(path) and not is_settled(path))


def _identity(guard: ProtectedMount) -> str:
    if guard.is_hidden:  # an empty file system covers whatever lies there
        return ""
    try:
        status = os.lstat(guard.path)
    except OSError:
        return "gone"
    return f"{status.st_dev}:{status.st_ino}"


def own_guards(policy: SandboxPolicy) -> tuple[ProtectedMount, ...]:
    """Return the guards known without a walk: directories that the settings hide, and the Python that runs Clutch."""
    inside = [path for path in policy.hidden if is_beneath(path, policy.root) and os.path.isdir(path)]
    hidden = [ProtectedMount(path, is_hidden=True) for path in inside]
    python = [ProtectedMount(path) for path in python_inside(policy.root)] if policy.is_writable else []
    return (*hidden, *_unhidden(python, hidden))


def guards_of(policy: SandboxPolicy) -> tuple[ProtectedMount, ...]:
    """Return all guards that are needed now. Blocks: walks the workspace. Raises ToolFailed."""
    own = own_guards(policy)
    try:
        found = [guard for root in walked_folders(policy) for guard in _guards_in(root, policy)]
    except SurveyFailed as error:
        raise ToolFailed(f"workspace: {error}") from error
    if policy.is_writable:
        named = dict.fromkeys(islice(bubblewrap.trees_of(policy.root), TREES_MAX))
        inside = [path for path in named if is_beneath(path, policy.root) and path != policy.root]
        found += [ProtectedMount(path) for path in inside if _is_file_or_folder(path)]
    known = {guard.path: guard for guard in reversed((*own, *found))}
    if len(known) > GUARDS_MAX:
        raise ToolFailed(
            f"workspace: {policy.root} has more than {GUARDS_MAX} protected files and repositories, which is too many "
            "to guard; use a smaller folder as workspace"
        )
    hidden = [guard for guard in known.values() if guard.is_hidden]
    return (*hidden, *_unhidden([guard for guard in known.values() if not guard.is_hidden], hidden))


def walked_folders(policy: SandboxPolicy) -> list[str]:
    """Return the folders that a command sees, without the system, the Python of Clutch and folders inside others."""
    system = ("/usr", *python_places())
    apart = [root for root in policy.shown if not any(is_beneath(root, other) for other in system)]
    return [root for root in apart if not any(is_beneath(root, other) and root != other for other in apart)]


def _guards_in(root: str, policy: SandboxPolicy) -> Iterator[ProtectedMount]:
    # A read-only folder may have a writable one in it: the nearest mount above a protected file decides.
    writable = {*policy.writable, *((policy.root,) if policy.is_writable else ())}
    for found in findings(root):
        is_writable = mounted_above(found.path, policy.shown) in writable
        if (found.is_hidden or is_writable) and _is_file_or_folder(found.path):
            yield ProtectedMount(found.path, found.is_hidden)


def _is_file_or_folder(path: str) -> bool:
    # A link guards nothing: its target is not visible in the sandbox, or is found where it lies.
    try:
        mode = os.lstat(path).st_mode
    except (OSError, ValueError):
        return False
    return os.path.realpath(path) == path and (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _unhidden(guards: list[ProtectedMount], hidden: list[ProtectedMount]) -> Iterator[ProtectedMount]:
    # A repository that an agent wrote may name any path: a read-only mount must not uncover what is hidden.
    return (guard for guard in guards if not any(is_beneath(guard.path, other.path) for other in hidden))


# --------------------------------------------------------------------------------------------------
# Files that a command made and that would act outside its sandbox are renamed when the command has ended.
#
# A mount guards files that exist when a command starts, not files that it makes. So the walk is repeated after it. New
# protected files are guarded from the next command on, and three kinds are renamed to `NAME.withheld` at once:
#
# - `clutch.json` anywhere, and `AGENTS.md` or `HEARTBEAT.md` at the top of the workspace: Clutch would load them.
# - `HEAD` of a git repository whose hooks or settings are not known to be harmless: git does not enter it without.
# - `hgrc` of a Mercurial repository, which names its hooks.
#
# A gateway that is killed renames nothing, so each command is noted on disk while it runs, with the protected files
# that existed before it. The next process of the same state directory does the work for commands that have ended
# (`finish`).
#
# A user who wants the file renames it back. Every name is opened from the workspace down and never through a link.

log = logger(__name__)

REPOSITORY_FOLDERS_MAX = 2000  # of one repository: itself and its submodules
CONFIG_BYTES_MAX = 64 * 1024
SUFFIX = ".withheld"
COMMANDS = "commands"  #: in the state directory: the journal of running commands

_SECTION = re.compile(r'\[\s*([A-Za-z0-9-]+)(?:\s+"[^"\\]*")?\s*\]')
_KEY = re.compile(r"([A-Za-z][A-Za-z0-9-]*)\s*=\s*([^\\]*)")
#: Settings of git that name no program, no other file and no transport of their own.
_HARMLESS = {
    "branch": {"merge", "rebase", "remote"},
    "core": {
        "autocrlf", "bare", "compression", "eol", "filemode", "ignorecase", "logallrefupdates", "precomposeunicode",
        "repositoryformatversion", "safecrlf", "symlinks",
    },
    "init": {"defaultbranch"},
    "pull": {"ff", "rebase"},
    "push": {"autosetupremote", "default"},
    "remote": {"fetch", "prune", "pushurl", "tagopt", "url"},
    "submodule": {"active", "branch", "recurse", "url"},
    "user": {"email", "name"},
}  # fmt: skip


@contextmanager
def noted(policy: SandboxPolicy, known: Sequence[ProtectedMount]) -> Iterator[None]:
    """List a sandbox in its journal for as long as it runs. Blocks. Raises ToolFailed."""
    if policy.journal is None or not policy.is_writable:
        yield
        return
    note = {"root": policy.root, "writable": policy.writable, "known": [guard.path for guard in known]}
    try:
        path, file = locked_note(policy.journal, json.dumps(note))
    except OSError as error:
        raise ToolFailed(f"the command cannot be noted in {policy.journal}: {error.strerror}") from error
    try:
        yield
    finally:
        with suppress(OSError):
            os.unlink(path)
        os.close(file)


def locked_note(journal: str, note: str) -> tuple[str, int]:
    """Write a note, locked before it has the name by which it is found. The kernel unlocks it when its process dies."""
    os.makedirs(journal, mode=0o700, exist_ok=True)
    file, hidden = tempfile.mkstemp(prefix=".", dir=journal)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.write(file, note.encode("utf-8", "surrogateescape"))
        path = f"{journal}/{os.path.basename(hidden)[1:]}"
        os.rename(hidden, path)
    except BaseException:
        os.close(file)
        os.unlink(hidden)
        raise
    return path, file


def finish(journal: Path) -> list[str]:
    """Rename what commands of killed gateways planted, and return one sentence for each file. Blocks."""
    return [said for path in sorted(journal.glob("[!.]*")) for said in _finish(path)]


def _finish(path: Path) -> list[str]:
    with suppress(OSError), path.open(encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: the command still runs
        said: list[str] = []
        with suppress(ValueError, KeyError, TypeError):  # a full disk cut it, or its folder is gone
            note = json.load(stream)
            policy = SandboxPolicy(root=note["root"], writable=tuple(note["writable"]))
            said = withhold(policy, [ProtectedMount(one) for one in note["known"]])
        path.unlink(missing_ok=True)
        return said
    return []


def withhold(policy: SandboxPolicy, known: Sequence[ProtectedMount]) -> list[str]:
    """Rename what was planted since `known` was found, and return one sentence for each file.

    Blocks. Called when the sandbox has ended: before that, a process of it could plant the file again."""
    if not policy.is_writable:
        return []
    paths, said = {guard.path for guard in known}, []
    for root in (policy.root, *policy.writable):
        with suppress(SurveyFailed):  # the next command is refused for the same reason
            new = [found for found in findings(root) if found.path not in paths]
            for found in new:
                said += [
                    f"{name} was renamed to {kept}: {why}" for name, kept, why in _put_aside(root, found)
                ]
    for one in said:
        log.warning("A command created a protected file: %s", one)
    return said


def _put_aside(root: str, found: ProtectedFile) -> Iterator[tuple[str, str, str]]:
    for path, why in _unwanted(root, found):
        with suppress(OSError):  # removed or replaced meanwhile
            yield os.path.relpath(path, root), _renamed(root, path), why


def _unwanted(root: str, found: ProtectedFile) -> Iterator[tuple[str, str]]:
    folder, name = os.path.split(found.path)
    config = f"{found.path}/{attachments.CONFIG}" if found.is_hidden else found.path
    if os.path.basename(config).casefold() == attachments.CONFIG and os.path.lexists(config):
        yield config, "a config of Clutch is written by a person"
    elif folder == root and name in attachments.INSTRUCTIONS:
        yield found.path, "instructions of agents are written by a person"
    elif name.casefold() == ".hg" and os.path.lexists(f"{found.path}/hgrc"):
        yield f"{found.path}/hgrc", "settings of a new repository name programs"
    elif not found.is_hidden:
        # Of a workspace that became a repository itself, its parts were found.
        place = folder if folder == root and name == "HEAD" else found.path
        yield from ((f"{path}/HEAD", why) for path, why in _harmful(root, place))


def _harmful(root: str, path: str) -> Iterator[tuple[str, str]]:
    """Yield the git directories in `path`, itself included, that are not known to be harmless."""
    for folder, folders, files in islice(os.walk(path), REPOSITORY_FOLDERS_MAX):
        if "HEAD" not in files:
            continue
        folders[:] = [name for name in folders if name == "modules"]
        names = _names(root, folder)
        if "commondir" in names or "config.worktree" in names:
            yield folder, "a new repository takes its settings from elsewhere"
        elif any(not name.endswith(".sample") for name in _names(root, f"{folder}/hooks") or ()):
            yield folder, "a new repository has hooks"
        elif "config" in names and (key := _first_harmful(root, f"{folder}/config")) is not None:
            yield folder, f"a new repository sets {key}, which may run a program"


def _names(root: str, folder: str) -> list[str]:
    """Return the entries of a folder; one that cannot be read counts as harmful."""
    if not os.path.lexists(folder):
        return []
    try:
        with _opened(root, folder) as here:
            return os.listdir(here)
    except OSError:
        return ["commondir"]


def _first_harmful(root: str, path: str) -> str | None:
    try:
        with _opened(root, os.path.dirname(path)) as here:
            file = os.open("config", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=here)
        with open(file, "rb") as stream:
            text = stream.read(CONFIG_BYTES_MAX + 1).decode("utf-8", "replace")
    except OSError:
        return "a config that cannot be read"
    return harmful_setting(text) if len(text) <= CONFIG_BYTES_MAX else "more than can be read"


def harmful_setting(text: str) -> str | None:
    """Return the first setting of a git config that is not known to be harmless, None where all are."""
    section = ""
    for line in map(str.strip, text.split("\n")):  # as git does: no other character ends a line or a comment
        if not line or line[0] in "#;":
            continue
        if found := _SECTION.fullmatch(line):
            section = found[1].lower()
        elif not (found := _KEY.fullmatch(line)) or "::" in found[2]:
            return repr(line[:80])
        elif found[1].lower() not in _HARMLESS.get(section, ()):
            return f"{section}.{found[1].lower()}"
    return None


def _renamed(root: str, path: str) -> str:
    folder, name = os.path.split(path)
    kept = f"{name}{SUFFIX}"
    with _opened(root, folder) as here:
        try:
            os.rename(name, kept, src_dir_fd=here, dst_dir_fd=here)
        except (IsADirectoryError, NotADirectoryError):
            kept = f"{kept}-{secrets.token_hex(4)}"
            os.rename(name, kept, src_dir_fd=here, dst_dir_fd=here)
    return kept


@contextmanager
def _opened(root: str, folder: str) -> Iterator[int]:
    assert is_beneath(folder, root)
    here = os.open(root, DIRECTORY)
    try:
        for name in os.path.relpath(folder, root).split("/"):
            deeper = os.open(name, DIRECTORY, dir_fd=here)
            os.close(here)
            here = deeper
        yield here
    finally:
        os.close(here)
