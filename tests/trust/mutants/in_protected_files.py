"""Planted bugs in what agents may see and change in a workspace. Simulated worlds have no files: a probe finds them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.trust.mutants.mutant import Mutant

_FILES = frozenset({"S32"})


def _sees_states(is_state: Any) -> tuple[Any, ...]:
    del is_state

    def bug(files: Any) -> bool:
        del files
        return False

    return (bug,)


def _writes_anything(read_only_part: Any) -> tuple[Any, ...]:
    del read_only_part

    def bug(parts: Any) -> None:
        del parts

    return (bug,)


def _only_at_the_top(findings: Any) -> tuple[Any, ...]:
    def bug(root: str) -> Iterator[Any]:
        return (found for found in findings(root) if found.path.count("/") == root.count("/") + 1)

    return (bug,)


def _keeps_what_was_planted(withhold: Any) -> tuple[Any, ...]:
    del withhold

    def bug(box: Any, known: Any) -> list[str]:
        del box, known
        return []

    return (bug,)


def _harmless_settings(harmful_setting: Any) -> tuple[Any, ...]:
    del harmful_setting

    def bug(text: str) -> None:
        del text

    return (bug,)


def _loads_anything(refuse_writable: Any) -> tuple[Any, ...]:
    del refuse_writable

    def bug(path: Any, home: Any, workspaces: Any) -> None:
        del path, home, workspaces

    return (bug,)


def _never_looks_again(new_state: Any) -> tuple[Any, ...]:
    del new_state

    def bug(policy: Any, hidden: Any, since: Any) -> None:
        del policy, hidden, since

    return (bug,)


def _waits_for_none(showing: Any) -> tuple[Any, ...]:
    del showing

    def bug(path: Any) -> list[str]:
        del path
        return []

    return (bug,)


def _mutant(name: str, target: str, plant: Any, about: str) -> Mutant:
    return Mutant(name, (f"clutch.{target}",), _FILES, (), plant, about)


MUTANTS = (
    _mutant(
        "state_directories_are_seen",
        "core.attachments.is_state",
        _sees_states,
        "an agent reads the token of a gateway",
    ),
    _mutant(
        "protected_files_are_written",
        "core.attachments.read_only_part",
        _writes_anything,
        "an agent writes the config and the instructions",
    ),
    _mutant(
        "only_the_top_is_guarded",
        "tools.sandbox.protected_files.findings",
        _only_at_the_top,
        "what lies deeper in a workspace is not guarded from commands",
    ),
    _mutant(
        "state_directories_moved_in_are_seen",
        "tools.sandbox.lifetime.new_state",
        _never_looks_again,
        "a program that runs reads a state directory that is moved into its workspace",
    ),
    _mutant(
        "new_state_directories_are_seen",
        "tools.sandbox.lifetime.showing",
        _waits_for_none,
        "a program that runs reads the token of a state directory that Clutch makes in its workspace",
    ),
    _mutant(
        "planted_files_stay",
        "tools.sandbox.protected_files.withhold",
        _keeps_what_was_planted,
        "what a command has made is in force when it ends",
    ),
    _mutant(
        "new_repositories_are_trusted",
        "tools.sandbox.protected_files.harmful_setting",
        _harmless_settings,
        "programs in the settings of a new repository run outside",
    ),
    _mutant(
        "any_config_is_loaded",
        "config.load.refuse_writable",
        _loads_anything,
        "a config that an agent could have written is loaded",
    ),
)
