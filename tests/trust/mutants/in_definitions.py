"""Planted bugs in agent files and skills: what is not approved is used, and a file widens rights."""

from __future__ import annotations

from collections.abc import Mapping
from functools import wraps
from typing import Any

from clutch.core.authority import EVERY_TOOL, ToolFilter
from clutch.core.definitions import Decisions, DefinitionState, FileDefinition, FileTrust
from tests.trust.mutants.mutant import Mutant


def _uses_everything(over: Any) -> tuple[Any, ...]:
    @wraps(over)
    def bug(one: FileDefinition, decisions: Decisions, trust: FileTrust) -> DefinitionState:
        del one, decisions, trust
        return DefinitionState.ACTIVE

    return (bug,)


def _hashes_the_name(over: Any) -> tuple[Any, ...]:
    @wraps(over)
    def bug(kind: Any, name: str, contents: Mapping[str, bytes]) -> str:
        return str(over(kind, name, dict.fromkeys(contents, b"")))

    return (bug,)


def _last_skill_counts(over: Any) -> tuple[Any, ...]:
    @wraps(over)
    def bug(loaded: Any) -> ToolFilter:
        return next((one for one in reversed(list(loaded)) if one is not None), EVERY_TOOL)

    return (bug,)


def _only_the_parent_limits(over: Any) -> tuple[Any, ...]:
    @wraps(over)
    def bug(parent: Any, target: Any, request: Any, policy: Any) -> Any:
        from dataclasses import replace

        return over(parent, replace(target, tools=EVERY_TOOL), request, policy)

    return (bug,)


def _mutant(name: str, target: str, plant: Any, about: str) -> Mutant:
    return Mutant(name, (f"clutch.core.{target}",), frozenset({"S33"}), (), plant, about)


MUTANTS = (
    _mutant(
        "unapproved_files_are_used", "definitions._state", _uses_everything, "a proposal is an instruction"
    ),
    _mutant("changed_files_stay_approved", "definitions.digest", _hashes_the_name, "a changed file is used"),
    _mutant(
        "skills_widen", "definitions.after_loading", _last_skill_counts, "a second skill lifts the first one"
    ),
    _mutant(
        "agent_files_widen",
        "authority.child_rights",
        _only_the_parent_limits,
        "an agent of a file has every tool of its parent",
    ),
)
