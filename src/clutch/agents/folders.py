"""The folders of agent files and skills, read without following a link and within bounds. Blocking calls."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from clutch.agents.front_matter import front_matter
from clutch.core.definitions import (
    DefinitionKind,
    DefinitionSource,
    FileDefinition,
    FileProblem,
    KnownTools,
    agent_of,
    digest,
    skill_of,
)
from clutch.core.text.format import visible

AGENT_BYTES_MAX = 64 * 1024  # instructions of every request of its subagents
SKILL_BYTES_MAX = 64 * 1024  # SKILL.md, which a model reads as a whole
FILES_BYTES_MAX = 4 * 2**20  # all other files of one skill
FOLDER_BYTES_MAX = 32 * 2**20  # other files of all skills of a folder: each look holds them in memory
FILES_MAX = 200  # of one skill, with its folders
DEPTH_MAX = 6
ENTRIES_MAX = 200  # of one folder of agent files or skills; a larger one is no such folder
SKILL_FILE = "SKILL.md"
#: Beneath a workspace.
AGENT_FOLDERS = (".claude/agents", ".agents")
SKILL_FOLDERS = (".claude/skills", ".agents/skills")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a pipe must not wait for a writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class FolderPlace:
    """A folder with agent files or skills. `root` is opened as it is, `below` part by part and through no link."""

    kind: DefinitionKind
    root: str
    below: str
    source: DefinitionSource
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Content:
    """A definition, and the text that a person reads before approving it."""

    found: FileDefinition
    text: str


def user_places(state: str) -> Iterator[FolderPlace]:
    """Yield the places in the state directory, where only the user writes."""
    yield FolderPlace(DefinitionKind.AGENT, state, "agents", DefinitionSource.USER)
    yield FolderPlace(DefinitionKind.SKILL, state, "skills", DefinitionSource.USER)
    with suppress(OSError), _opened(state, "agents") as folder:
        for name in _names(folder):
            yield FolderPlace(
                DefinitionKind.SKILL, state, f"agents/{name}/skills", DefinitionSource.OWN, name
            )


def workspace_places(workspace: str, *, has_agents: bool) -> Iterator[FolderPlace]:
    folders = [(DefinitionKind.SKILL, below) for below in SKILL_FOLDERS]
    if has_agents:
        folders += [(DefinitionKind.AGENT, below) for below in AGENT_FOLDERS]
    for kind, below in folders:
        yield FolderPlace(kind, workspace, below, DefinitionSource.WORKSPACE, workspace)


def contents(place: FolderPlace, known: KnownTools, is_settled: Callable[[str], bool]) -> Iterator[Content]:
    """Yield what is in a folder, by name. What cannot be read is an invalid definition; a missing folder has none.

    `is_settled`: says of a path that no running command could have written it."""
    room = FOLDER_BYTES_MAX
    try:
        with _opened(place.root, place.below) as folder:
            for name in _names(folder):
                path = f"{place.root}/{place.below}/{name}"
                if not name.isprintable():  # a name that is no text could be neither stored nor shown
                    yield Content(_invalid(place, visible(name, 60), visible(path, 400), _unnamed(name)), "")
                    continue
                if place.kind is DefinitionKind.AGENT and name.endswith(".md") and is_settled(path):
                    yield _agent(folder, name, path, place, known)
                if place.kind is DefinitionKind.SKILL and is_settled(f"{path}/{SKILL_FILE}"):
                    for content in _skill(folder, name, path, place, room):
                        room -= (
                            sum(map(len, content.found.skill.files.values())) if content.found.skill else 0
                        )
                        yield content
    except OSError:
        return


def file_at(path: str, known: KnownTools) -> FileDefinition:
    """The agent file, or the skill of a `SKILL.md`, wherever it lies."""
    around, name = os.path.split(os.path.abspath(path))
    kind = DefinitionKind.SKILL if name == SKILL_FILE else DefinitionKind.AGENT
    if kind is DefinitionKind.SKILL:
        around, name = os.path.split(around)
    place = FolderPlace(kind, around, ".", DefinitionSource.WORKSPACE)
    try:
        with _opened(place.root, place.below) as folder:
            if kind is DefinitionKind.AGENT:
                return _agent(folder, name, path, place, known).found
            for content in _skill(folder, name, os.path.dirname(path) or ".", place, FILES_BYTES_MAX):
                return content.found
    except OSError:
        pass
    return _invalid(place, name, path, FileProblem(1, "there is no such file, or its folder is a link"))


def agent_file(path: str, data: bytes, known: KnownTools, source: DefinitionSource) -> FileDefinition:
    """Parse one agent file."""
    stem = path.rpartition("/")[2].removesuffix(".md")
    seen = digest(DefinitionKind.AGENT, stem, {"": data})
    base = FileDefinition(DefinitionKind.AGENT, stem, path, source, digest=seen)
    return _parsed(base, data, known, {})


def _agent(folder: int, name: str, path: str, place: FolderPlace, known: KnownTools) -> Content:
    try:
        data = _read(folder, name, AGENT_BYTES_MAX)
    except FileProblem as error:
        return Content(_invalid(place, name.removesuffix(".md"), path, error), "")
    return Content(agent_file(path, data, known, place.source), data.decode("utf-8", "replace"))


def _skill(around: int, name: str, path: str, place: FolderPlace, room: int) -> Iterator[Content]:
    try:
        with _entered(around, name) as folder:
            if SKILL_FILE not in os.listdir(folder):
                return
            try:
                data = _read(folder, SKILL_FILE, SKILL_BYTES_MAX)
                files = dict(_files(folder, "", min(room, FILES_BYTES_MAX)))
            except FileProblem as error:
                yield Content(_invalid(place, name, f"{path}/{SKILL_FILE}", error), "")
                return
    except OSError:  # a file beside the folders, or a link
        return
    seen = digest(DefinitionKind.SKILL, name, {SKILL_FILE: data, **files})
    base = FileDefinition(DefinitionKind.SKILL, name, f"{path}/{SKILL_FILE}", place.source, place.owner, seen)
    yield Content(_parsed(base, data, KnownTools(), files), data.decode("utf-8", "replace"))


def _parsed(
    base: FileDefinition, data: bytes, known: KnownTools, files: Mapping[str, bytes]
) -> FileDefinition:
    try:
        said = front_matter(data)
        if base.kind is DefinitionKind.SKILL:
            return replace(base, skill=skill_of(base.name, said, files))
        agent, notes = agent_of(base.name, said, known)
        return replace(
            base, name=agent.id, agent=agent, notes=tuple(notes), model_line=said.lines.get("model", 1)
        )
    except FileProblem as error:
        return replace(base, problem=error)


def _invalid(place: FolderPlace, name: str, path: str, problem: FileProblem) -> FileDefinition:
    return FileDefinition(place.kind, name, path, place.source, place.owner, problem=problem)


def _unnamed(name: str) -> FileProblem:
    return FileProblem(1, f"{visible(name, 200)}: the name has characters that cannot be shown; rename it")


# ---- reading ---------------------------------------------------------------------------------------------------


def _names(folder: int) -> list[str]:
    return sorted(os.listdir(folder))[:ENTRIES_MAX]


@contextmanager
def _opened(root: str, below: str) -> Iterator[int]:
    here = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in below.split("/"):
            inner = os.open(part, _FOLDER, dir_fd=here)
            os.close(here)
            here = inner
        yield here
    finally:
        os.close(here)


@contextmanager
def _entered(around: int, name: str) -> Iterator[int]:
    folder = os.open(name, _FOLDER, dir_fd=around)
    try:
        yield folder
    finally:
        os.close(folder)


def _read(folder: int, name: str, bytes_max: int) -> bytes:
    try:
        file = os.open(name, _FILE, dir_fd=folder)
    except OSError as error:
        raise FileProblem(1, f"{name}: {error.strerror}; links are not followed") from error
    try:
        # Before `fdopen`, which raises OSError for a folder: then the files after it would not be read.
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise FileProblem(1, f"{name}: is not a plain file")
        with os.fdopen(file, "rb", closefd=False) as stream:
            data = stream.read(bytes_max + 1)
    finally:
        os.close(file)
    if len(data) > bytes_max:
        raise FileProblem(1, f"{name}: must have at most {bytes_max} bytes")
    return data


def _files(
    folder: int, beneath: str, bytes_max: int, depth: int = 1, count: list[int] | None = None
) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a skill except its SKILL.md. Raises FileProblem for what has no fixed content."""
    used = count if count is not None else [0, 0]
    for name in sorted(os.listdir(folder)):
        path, used[0] = f"{beneath}{name}", used[0] + 1
        if not name.isprintable():
            raise _unnamed(path)
        if used[0] > FILES_MAX or depth > DEPTH_MAX:
            raise FileProblem(1, f"a skill has at most {FILES_MAX} files and {DEPTH_MAX} levels of folders")
        if path == SKILL_FILE:
            continue
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            with _entered(folder, name) as inner:
                yield from _files(inner, f"{path}/", bytes_max, depth + 1, used)
            continue
        data = _read(folder, name, bytes_max - used[1])
        used[1] += len(data)
        yield path, data
