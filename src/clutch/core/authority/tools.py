"""Tool names: aliases, `*` patterns, filters that can only narrow, and what each role gets.

A filter is a set of allow-lists and one deny-list. A tool passes when every allow-list has a pattern for
it and no denial does. Putting two filters together unites both parts, so the result passes at most what
each of them passes: there is no operation that adds a tool back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from clutch.core.checks import check

#: Accepted spellings. Resolved before any rule is asked, so that a denial cannot be walked around.
ALIASES = {"spawn_subagent": "sessions_spawn", "subagent_spawn": "sessions_spawn", "bash": "shell"}

_SPELLINGS = {
    meant: (meant, *(alias for alias in ALIASES if ALIASES[alias] == meant)) for meant in ALIASES.values()
}

SESSION_TOOLS = frozenset(
    {
        "sessions_spawn",
        "subagents",
        "sessions_list",
        "sessions_history",
        "sessions_yield",
        "sessions_subagent_remove",
    }
)
#: The only ones of them that `alsoAllow` can give to a leaf.
LEAF_READS = frozenset({"sessions_list", "sessions_history"})
#: Reserved names: no child has them, whoever provides a tool of that name.
NEVER_FOR_CHILDREN = frozenset({"gateway", "cron", "agents_list", "session_status", "sessions_send"})


class Role(StrEnum):
    MAIN = "main"
    ORCHESTRATOR = "orchestrator"
    LEAF = "leaf"


def role(depth: int, depth_max: int) -> Role:
    """Asked once, at spawn, and stored: raising the limit later promotes nobody."""
    if depth == 0:
        return Role.MAIN
    return Role.ORCHESTRATOR if depth < depth_max else Role.LEAF


def canonical(name: str) -> str:
    return ALIASES.get(name, name)


def matches(pattern: str, name: str) -> bool:
    """`*` stands for any characters; everything else for itself. No pattern takes long to answer."""
    if "*" not in pattern:
        return pattern == name
    first, *middle, last = pattern.split("*")
    if len(name) < len(first) + len(last) or not name.startswith(first) or not name.endswith(last):
        return False
    at, end = len(first), len(name) - len(last)
    for piece in middle:
        found = name.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


def any_matches(patterns: Iterable[str], name: str) -> bool:
    return any(matches(pattern, name) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class ToolFilter:
    """Without anything in it, it lets everything through."""

    allow: frozenset[frozenset[str]] = frozenset()
    deny: frozenset[str] = frozenset()

    def permits(self, name: str) -> bool:
        name = canonical(name)
        # A denial also hits by a tool's other spellings; `deny: ["bash"]` means the shell.
        if any(any_matches(self.deny, spelling) for spelling in _SPELLINGS.get(name, (name,))):
            return False
        return all(any_matches(map(canonical, patterns), name) for patterns in self.allow)

    def and_also(self, other: ToolFilter) -> ToolFilter:
        return ToolFilter(self.allow | other.allow, self.deny | other.deny)


EVERY_TOOL = ToolFilter()


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """`tools.subagents.tools` of the config. `allow` None = not set; set, it is the whole list."""

    allow: frozenset[str] | None = None  #: the only tools, by name or pattern; None = all that are not denied
    also_allow: frozenset[str] = frozenset()  #: added to these, and reads of sessions for leaves
    deny: frozenset[str] = frozenset()  #: never these; wins

    def __post_init__(self) -> None:
        check(self)

    @property
    def filter(self) -> ToolFilter:
        return _filter(self)


@lru_cache(maxsize=256)  # asked for every child
def _filter(policy: ToolPolicy) -> ToolFilter:
    allow = frozenset() if policy.allow is None else frozenset({policy.allow | policy.also_allow})
    return ToolFilter(allow, policy.deny)


def role_filter(of: Role, policy: ToolPolicy) -> ToolFilter:
    """What a session of this role passes at most. The config is for children; a main session has all."""
    if of is Role.MAIN:
        return EVERY_TOOL
    return policy.filter.and_also(ToolFilter(deny=NEVER_FOR_CHILDREN | _withheld(of, policy)))


def _withheld(of: Role, policy: ToolPolicy) -> frozenset[str]:
    if of is not Role.LEAF:
        return frozenset()
    return SESSION_TOOLS - {name for name in LEAF_READS if any_matches(policy.also_allow, name)}
