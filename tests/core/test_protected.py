"""The rules for protected files: what is recognised, and under which paths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core import attachments

PLAIN = st.lists(
    st.text("abc.", min_size=1, max_size=6).filter(lambda name: name not in (".", "..")), max_size=4
)
PROTECTED = (
    (".git",), (".hg",), (".git", "hooks", "pre-commit"), ("clutch.json",), ("AGENTS.md",), ("HEARTBEAT.md",),
    ("SKILL.md",), (".agents", "reviewer.md"), (".claude", "agents", "a.md"), (".claude", "skills", "x", "run.py"),
)  # fmt: skip


@given(PLAIN, st.sampled_from(PROTECTED))
def test_protected_names_are_recognised_below_any_folder(above: list[str], tail: tuple[str, ...]) -> None:
    parts = [*above, *tail]
    end = attachments.read_only_part(parts)
    assert end is not None
    assert len(above) < end <= len(parts)


@given(PLAIN)
def test_other_names_are_not_protected(parts: list[str]) -> None:
    assert attachments.read_only_part(parts) is None


@pytest.mark.parametrize(
    "parts", [("clutch.json", "x"), (".claude", "notes.md"), ("agents", "a.md"), ("git",)]
)
def test_names_that_only_look_similar_are_not_protected(parts: tuple[str, ...]) -> None:
    assert attachments.read_only_part(parts) is None


@pytest.mark.parametrize(
    ("files", "is_state"),
    [
        ({"lock", "clutch.db"}, True),
        ({"lock", "token"}, True),
        ({"lock", "gateway.json", "x"}, True),
        ({"clutch.db"}, False),
        ({"token", "gateway.json"}, False),
        ({"lock"}, False),
    ],
)
def test_a_state_directory_has_a_lock_and_a_file_of_clutch(files: set[str], is_state: bool) -> None:
    assert attachments.is_state(files) is is_state


@pytest.mark.parametrize(
    ("names", "is_repository"),
    [
        ({"HEAD", "objects", "refs", "config"}, True),
        ({"HEAD", "commondir"}, True),
        ({"HEAD", "objects"}, False),
        ({"objects", "refs"}, False),
    ],
)
def test_a_repository_is_what_git_takes_for_one(names: set[str], is_repository: bool) -> None:
    assert attachments.is_repository(names) is is_repository
