"""What differs on macOS, decided from a description of the system. None of this was run on a Mac."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from clutch.ports import ToolFailed
from clutch.tools import files
from clutch.tools.directories import changeable_by_name
from clutch.tools.sandbox import process as probing
from clutch.tools.sandbox.bubblewrap import limited
from clutch.tools.sandbox.policy import Sandbox, SandboxLimits
from clutch.tools.sandbox.process import Offer, SandboxKind, offered, sandbox_kind
from clutch.tools.workspace import FileAccessError
from clutch.wiring import sandbox_offer

NOTHING = Offer(None, "this system has no /usr/bin/sandbox-exec", 0, system="darwin")


def test_without_a_sandbox_file_tools_work_and_commands_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "probe", lambda: NOTHING)
    assert sandbox_kind(Sandbox.ON, for_shell=False) is SandboxKind.PATH_CHECKS
    assert sandbox_kind(Sandbox.OFF, for_shell=True) is SandboxKind.NONE
    with pytest.raises(ToolFailed, match="shell refused: this system has no /usr/bin/sandbox-exec"):
        sandbox_kind(Sandbox.ON, for_shell=True)


def test_a_linux_without_a_sandbox_refuses_file_tools_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "probe", lambda: Offer(None, "bubblewrap is not installed", 0, "linux"))
    with pytest.raises(ToolFailed, match="file tools refused"):
        sandbox_kind(Sandbox.ON, for_shell=False)


def test_other_systems_have_no_sandbox() -> None:
    assert offered("freebsd14") == Offer(None, "there is no sandbox for freebsd14 yet", 0, system="freebsd14")


def test_doctor_says_what_holds_without_a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "probe", lambda: NOTHING)
    offer = sandbox_offer()
    assert not offer.is_ok
    assert "shell refused: this system has no /usr/bin/sandbox-exec" in offer.detail
    assert "file tools work: a process of their own checks every path" in offer.detail
    assert 'sandbox: "off"' in (offer.remedy or "")


def test_limits_of_one_process_need_no_proc() -> None:
    words = limited(
        SandboxLimits(), ["/bin/sh", "-c", "ulimit -c; echo started"], is_first=False, system="darwin"
    )
    assert "/proc" not in " ".join(words)
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "0\nstarted\n"


def test_a_directory_is_opened_by_its_name_and_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("x")
    (tmp_path / "link").symlink_to("folder")
    around = os.open(tmp_path, os.O_RDONLY)
    try:
        here = changeable_by_name(around, "folder")
        assert os.listdir(here) == ["file"]
        os.close(here)
        with pytest.raises(NotADirectoryError):
            changeable_by_name(around, "link")
        with pytest.raises(FileNotFoundError):
            changeable_by_name(around, "none")
    finally:
        os.close(around)


@pytest.mark.parametrize(
    "path", ["agents.md", "Skill.MD", ".CLAUDE/Agents/a.md", ".GIT/hooks/x", "CLUTCH.json", "a/.Agents/b"]
)
def test_another_spelling_of_a_protected_file_is_read_only_where_case_does_not_matter(
    tmp_path: Path, path: str
) -> None:
    with pytest.raises(FileAccessError, match="read-only for agents"):
        files._writable(str(tmp_path), path, ignores_case=True)
    assert files._writable(str(tmp_path), "Notes/agent.md", ignores_case=True) == ("Notes", "agent.md")


def test_other_spellings_are_other_files_where_case_matters(tmp_path: Path) -> None:
    assert files._writable(str(tmp_path), "agents.md", ignores_case=False) == ("agents.md",)
