"""Files in a workspace that agents may not see or may not change, recognised by name.

A Clutch state directory is hidden: it holds a token, transcripts and a config. What steers Clutch, or names programs
that run later outside the sandbox, is read-only: repositories, `clutch.json`, instructions, agent and skill files.
File tools ask these rules for every path; the sandbox asks them for every folder and mounts what they name.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

LOCK = "lock"
#: Beside a lock, one of these makes a folder a state directory. With PostgreSQL there is no database file.
STATE_FILES = frozenset(("clutch.db", "token", "gateway.json"))
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
