"""Files of a workspace that a message mentions: what is added, what is refused, and which names are offered."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core import attachments
from clutch.errors import InvalidInput
from clutch.tools.mentions import NAMES_MAX, WorkspaceMentions


def with_files(text: str, root: Path) -> str:
    return asyncio.run(WorkspaceMentions().with_files(text, str(root)))


def names(prefix: str, root: Path) -> list[str]:
    return asyncio.run(WorkspaceMentions().names(str(root), prefix))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    place = tmp_path / "workspace"
    (place / "docs" / "deep").mkdir(parents=True)
    (place / "docs" / "plan.md").write_text("the plan")
    (place / "docs" / "deep" / "Planet.md").write_text("round")
    (place / ".hidden").write_text("h")
    (place / "two words.md").write_text("w")
    (tmp_path / "secret").write_text("secret")
    return place


def test_each_mentioned_file_is_added_once_and_the_rest_is_plain_text(root: Path) -> None:
    text = "compare @docs/plan.md with @docs/plan.md, @missing, @docs and me@example.org"
    assert with_files(text, root) == f"{text}\n\ndocs/plan.md:\n```\nthe plan\n```"


@pytest.mark.parametrize(
    "name", ["/components/x", "../x", "../secret", "docs/../../secret", "/etc/passwd", "x/" * 200, "a\0b"]
)
def test_a_name_that_is_no_path_beneath_the_workspace_is_plain_text(root: Path, name: str) -> None:
    (root.parent / "secret").write_text("secret")
    text = f"import it from @{name} and read @docs/plan.md"
    assert with_files(text, root) == f"{text}\n\ndocs/plan.md:\n```\nthe plan\n```"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("link", "symlinks are not followed"),
        ("folder/secret", "symlinks are not followed"),
        ("state/token", "state directory of Clutch"),
        ("state/deeper/notes", "state directory of Clutch"),
        ("large", "more than 48 KiB"),
        ("binary", "is not UTF-8 text"),
    ],
)
def test_a_file_that_may_not_be_read_is_refused(root: Path, name: str, why: str) -> None:
    (root / "link").symlink_to("../secret")
    (root / "folder").symlink_to("..")
    (root / "state" / "deeper").mkdir(parents=True)
    for one in ("state/lock", "state/token", "state/deeper/notes"):
        (root / one).write_text("secret")
    (root / "large").write_bytes(b"x" * (attachments.FILE_BYTES_MAX + 1))
    (root / "binary").write_bytes(b"\xff")
    with pytest.raises(InvalidInput, match=why):
        with_files(f"read @{name}", root)


def test_names_begin_with_the_path_then_files_of_that_name_anywhere(root: Path) -> None:
    assert names("", root) == ["docs/"]
    assert names("d", root) == ["docs/"]
    assert names("docs/p", root) == ["docs/plan.md"]
    assert names("plan", root) == ["docs/plan.md", "docs/deep/Planet.md"]
    assert names(".h", root) == [".hidden"]
    assert names("two", root) == []
    assert names("missing/", root) == []
    (root / ".gitignore").write_text("docs\n")
    assert names("plan", root) == []


def test_names_are_bounded_and_stay_inside(root: Path) -> None:
    for number in range(3 * NAMES_MAX):
        (root / f"file{number}").write_text("")
    assert len(names("f", root)) == NAMES_MAX
    for prefix in ("../", "/etc/", "docs/../../"):
        with pytest.raises(InvalidInput, match="prefix"):
            names(prefix, root)
    (root / "link").symlink_to("..")
    assert names("link", root) == []
    with pytest.raises(InvalidInput, match="symlinks are not followed"):
        names("link/", root)


def test_a_state_directory_is_not_offered(root: Path) -> None:
    (root / "state").mkdir()
    for name in ("lock", "token"):
        (root / "state" / name).write_text("secret")
    assert names("s", root) == []
    assert names("tok", root) == []
    with pytest.raises(InvalidInput, match="state directory"):
        names("state/", root)


@given(st.text())
def test_a_text_without_files_stays_as_it_is(text: str) -> None:
    assert attachments.with_files(text, lambda _: None) == text


@given(st.text(), st.text(alphabet="`\nx", max_size=20))
def test_a_file_cannot_leave_its_fence(text: str, body: str) -> None:
    whole = attachments.with_files("@name", lambda _: body.encode())
    fence = whole.splitlines()[3]
    assert set(fence) == {"`"}
    assert fence not in body
    assert whole.endswith(f"\n{fence}")
    assert [name for name in attachments.mentioned(text) if "@" in name[:1] or not name] == []
