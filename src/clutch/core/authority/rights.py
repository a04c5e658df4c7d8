"""The rights of a session: made once at spawn, stored with its row, never changed.

    child = parent ∩ target agent ∩ what this spawn asked for ∩ what the child's role gets

Every field can only shrink on the way down: allow-lists and denials are added, never taken away; a
sandbox is never left, a network never gained, a depth never raised. Plan mode is a filter over them
(`under_plan`), lifted by approval; what is spawned meanwhile is born with it and keeps it.

Budgets shrink the same way but have their own arithmetic, see `budget`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar, cast

from clutch.core.authority.tools import (
    EVERY_TOOL,
    Role,
    ToolFilter,
    ToolPolicy,
    any_matches,
    role,
    role_filter,
)

JSON_VERSION = 1
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rights:
    role: Role
    depth: int
    depth_max: int  #: sessions below this one are at most this deep
    tools: ToolFilter = EVERY_TOOL
    models: frozenset[frozenset[str]] = frozenset()  #: allow-lists, each must have the model; none = any
    sandbox: bool = False  #: its tools run boxed
    network: bool = True  #: boxed tools may reach the network
    read_only: bool = False  #: only tools that change nothing

    def permits_tool(self, name: str, *, is_read_only: bool) -> bool:
        return (is_read_only or not self.read_only) and self.tools.permits(name)

    def permits_model(self, name: str) -> bool:
        return all(any_matches(patterns, name) for patterns in self.models)

    @property
    def may_spawn(self) -> bool:
        return self.depth < self.depth_max and self.tools.permits("sessions_spawn")


@dataclass(frozen=True, slots=True)
class AgentGrant:
    """What the config gives to an agent, whoever starts it."""

    depth_max: int
    tools: ToolFilter = EVERY_TOOL
    models: frozenset[str] | None = None
    sandbox: bool = False
    network: bool = True


@dataclass(frozen=True, slots=True)
class Request:
    """What one spawn asked for. It can only remove."""

    tools: frozenset[str] | None = None
    models: frozenset[str] | None = None
    depth_max: int | None = None
    sandbox: bool = False  #: `sandbox: "require"`
    network: bool = True
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class NoSandbox:
    """Refused: the child must run boxed and the target agent does not."""

    reason: str


def root_rights(agent: AgentGrant) -> Rights:
    return Rights(
        role=Role.MAIN,
        depth=0,
        depth_max=agent.depth_max,
        tools=agent.tools,
        models=_lists(agent.models),
        sandbox=agent.sandbox,
        network=agent.network,
    )


def child_rights(
    parent: Rights, target: AgentGrant, request: Request, policy: ToolPolicy
) -> Rights | NoSandbox:
    if (parent.sandbox or request.sandbox) and not target.sandbox:
        who = "the requester is sandboxed" if parent.sandbox else "sandbox is required"
        return NoSandbox(f"{who} and the target agent is not")
    depth = parent.depth + 1
    depth_max = min(parent.depth_max, target.depth_max)
    if request.depth_max is not None:
        depth_max = min(depth_max, request.depth_max)
    child_role = role(depth, depth_max)
    asked = ToolFilter(_lists(request.tools))
    return Rights(
        role=child_role,
        depth=depth,
        depth_max=depth_max,
        tools=parent.tools.and_also(target.tools).and_also(asked).and_also(role_filter(child_role, policy)),
        models=parent.models | _lists(target.models) | _lists(request.models),
        sandbox=target.sandbox,  # a parent or a request that needs one was refused above without it
        network=parent.network and target.network and request.network,
        read_only=parent.read_only or request.read_only,
    )


def under_plan(rights: Rights) -> Rights:
    """What holds until the plan is approved. The stored rights stay as they are."""
    return replace(rights, read_only=True)


def is_within(child: Rights, parent: Rights) -> bool:
    """By construction, without trying any tool name: the child's every part is at most the parent's."""
    return (
        child.depth > parent.depth
        and child.depth_max <= parent.depth_max
        and child.tools.allow >= parent.tools.allow
        and child.tools.deny >= parent.tools.deny
        and child.models >= parent.models
        and child.sandbox >= parent.sandbox
        and child.network <= parent.network
        and child.read_only >= parent.read_only
    )


def _lists(patterns: frozenset[str] | None) -> frozenset[frozenset[str]]:
    return frozenset() if patterns is None else frozenset({patterns})


# --- as stored --------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def to_text(rights: Rights) -> str:
    return json.dumps(to_json(rights))


@lru_cache(maxsize=1024)
def from_text(stored: str) -> Rights:
    return from_json(json.loads(stored))


def to_json(rights: Rights) -> dict[str, object]:
    """A plain dict; the same rights always give the same text."""
    return {
        "v": JSON_VERSION,
        "role": str(rights.role),
        "depth": rights.depth,
        "depth_max": rights.depth_max,
        "tools_allow": _dump(rights.tools.allow),
        "tools_deny": sorted(rights.tools.deny),
        "models": _dump(rights.models),
        "sandbox": rights.sandbox,
        "network": rights.network,
        "read_only": rights.read_only,
    }


def from_json(stored: Mapping[str, object]) -> Rights:
    """Raises ValueError for anything `to_json` does not write: rights are not guessed."""
    if stored.get("v") != JSON_VERSION or set(stored) != _FIELDS:
        raise ValueError(f"these are not rights of version {JSON_VERSION}")
    return Rights(
        role=Role(_read(stored, "role", str)),
        depth=_read(stored, "depth", int),
        depth_max=_read(stored, "depth_max", int),
        tools=ToolFilter(_read_lists(stored, "tools_allow"), _strings(stored["tools_deny"])),
        models=_read_lists(stored, "models"),
        sandbox=_read(stored, "sandbox", bool),
        network=_read(stored, "network", bool),
        read_only=_read(stored, "read_only", bool),
    )


def _dump(lists: frozenset[frozenset[str]]) -> list[list[str]]:
    return sorted(sorted(patterns) for patterns in lists)


def _read(stored: Mapping[str, object], field: str, kind: type[T]) -> T:
    value = stored[field]
    if type(value) is not kind:  # exactly: True is no depth
        raise ValueError(f"stored rights: {field} is not a {kind.__name__}")
    return value


def _read_lists(stored: Mapping[str, object], field: str) -> frozenset[frozenset[str]]:
    return frozenset(_strings(patterns) for patterns in _read(stored, field, list))


def _strings(value: object) -> frozenset[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError("stored rights: not a list of patterns")
    return frozenset(cast("list[str]", value))


_FIELDS = frozenset(to_json(Rights(Role.MAIN, 0, 0)))
