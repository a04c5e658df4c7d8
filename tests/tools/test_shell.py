"""The tool `shell`: what the model reads, what watchers see, and that an ended command is ended."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from pathlib import Path

import pytest

from clutch.ports import ToolContext, ToolFailed
from clutch.tools.sandbox import process as probing
from clutch.tools.sandbox.policy import Sandbox, SandboxPolicy
from clutch.tools.sandbox.process import Offer
from clutch.tools.shell import BoundedOutput, Shell, ShellArguments
from tests.patience import PATIENCE_S
from tests.tools.escapes.witness import processes_with

pytestmark = pytest.mark.anyio


def context(root: Path) -> ToolContext:
    return ToolContext(str(root), "main", "key")


async def run(root: Path, command: str, shell: Shell | None = None, **more: object) -> str:
    arguments = ShellArguments.model_validate({"command": command, **more})
    return await (shell or Shell()).run(arguments, context(root))


async def test_answer_has_output_of_both_streams_and_exit_code(tmp_path: Path) -> None:
    said = await run(tmp_path, "echo out; echo err >&2; exit 3")
    assert said.startswith("out\nerr\n(exit code 3, ")


async def test_what_it_writes_belongs_to_the_caller(tmp_path: Path) -> None:
    await run(tmp_path, "mkdir -p a/b && echo text >a/b/file && chmod 600 a/b/file")
    written = tmp_path / "a" / "b" / "file"
    assert written.read_text() == "text\n"
    assert (written.stat().st_uid, written.stat().st_gid) == (os.geteuid(), os.getegid())


async def test_command_runs_in_the_folder_it_names(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    assert (await run(tmp_path, "pwd", cwd="inner")).startswith(f"{tmp_path}/inner\n")


@pytest.mark.parametrize("cwd", ["..", "/etc", "a/../../b"])
async def test_folder_outside_is_refused(tmp_path: Path, cwd: str) -> None:
    with pytest.raises(ToolFailed, match=r"path: must"):
        await run(tmp_path, "pwd", cwd=cwd)


async def test_output_is_live(tmp_path: Path) -> None:
    """The command goes on only after its first line was seen outside."""
    seen: list[str] = []

    def on_output(text: str) -> None:
        seen.append(text)
        (tmp_path / "go").touch()

    command = "echo first; while [ ! -e go ]; do sleep 0.01; done; echo second"
    arguments = ShellArguments(command=command, timeout_seconds=20)
    await Shell().run(arguments, context(tmp_path), on_output)
    assert "".join(seen) == "first\nsecond\n"
    assert seen[0] == "first\n"


async def test_command_over_its_time_is_killed_with_all_it_started(tmp_path: Path) -> None:
    marker = secrets.token_hex(8)
    command = f"setsid sh -c 'sleep 600; : {marker}' & echo begun; sleep 600; : {marker}"
    said = await run(tmp_path, command, timeout_seconds=0.5)
    assert said.startswith("begun\n(killed after ")
    assert "it took longer than 0.5 s" in said
    assert processes_with(marker) == []


async def test_cancelled_call_kills_at_once(tmp_path: Path) -> None:
    marker = secrets.token_hex(8)
    begun = asyncio.Event()
    arguments = ShellArguments(
        command=f"setsid sleep 600 & echo begun; sleep 600; : {marker}", timeout_seconds=600
    )
    call = asyncio.ensure_future(Shell().run(arguments, context(tmp_path), lambda text: begun.set()))
    await begun.wait()
    assert processes_with(marker)
    call.cancel()
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(asyncio.CancelledError):
            await call
    assert processes_with(marker) == []


async def test_long_output_keeps_both_ends_and_says_what_is_missing(tmp_path: Path) -> None:
    said = await run(tmp_path, "seq 100000")
    assert said.startswith("1\n2\n3\n")
    assert "99999\n100000\n(exit code 0" in said
    cut = 588_895 - 64 * 1024
    assert f"(... {cut} bytes cut ...)" in said


def test_kept_output_is_exact_up_to_its_room() -> None:
    output = BoundedOutput(part_bytes=4)
    for piece in (b"ab", b"cdef", b"gh"):
        output.add(piece)
    assert output.text() == "abcdefgh"
    output.add(b"ij")
    assert output.text() == "abcd\n(... 2 bytes cut ...)\nghij"


async def test_environment_is_the_allow_list_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANTED", "yes")
    monkeypatch.setenv("SECRET_PASSWORD", "no")
    said = await run(tmp_path, "env", Shell(environment=("WANTED",)))
    names = {line.split("=")[0] for line in said.splitlines() if "=" in line}
    assert names == {"WANTED", "PATH", "HOME", "TERM", "PWD"}


@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "CLUTCH_TOKEN"])
def test_our_own_secrets_cannot_be_allowed(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="never given to a tool"):
        SandboxPolicy(str(tmp_path), environment=(name,))


@pytest.mark.parametrize("root", ["/", "/usr", "/etc", "/tmp", "/var"])  # noqa: S108
async def test_system_is_no_workspace(root: str) -> None:
    with pytest.raises(ToolFailed, match="choose a folder of its own"):
        await run(Path(root), "true")


async def test_hidden_folder_is_no_workspace_itself(tmp_path: Path) -> None:
    with pytest.raises(ToolFailed, match="choose a folder of its own"):
        await run(tmp_path, "true", Shell(hidden=(str(tmp_path),)))


async def test_hidden_folder_of_the_workspace_is_empty_inside(tmp_path: Path) -> None:
    (tmp_path / "deep" / "state").mkdir(parents=True)
    (tmp_path / "deep" / "state" / "token").write_text("secret")
    shell = Shell(hidden=(str(tmp_path / "deep" / "state"),))
    said = await run(
        tmp_path, "cat deep/state/token; mv deep other; touch deep/state/x; ls deep/state", shell
    )
    assert "secret" not in said
    assert [path.name for path in (tmp_path / "deep" / "state").iterdir()] == ["token"]


async def test_git_works_inside(tmp_path: Path) -> None:
    commit = "git -c user.name=a -c user.email=a@b.c commit -qm first && git log --oneline"
    said = await run(tmp_path, f"git init -q && echo x >file && git add file && {commit}")
    assert "first\n(exit code 0" in said


async def test_repository_made_by_an_agent_cannot_uncover_what_is_hidden(tmp_path: Path) -> None:
    """What it names is guarded by mounting it once more, and that must not undo the other mount."""
    (tmp_path / "state" / "deep").mkdir(parents=True)
    for name in ("state/token", "state/deep/token"):
        (tmp_path / name).write_text("secret")
    shell = Shell(hidden=(str(tmp_path / "state"),))
    for name in ("state", "state/deep"):
        link = f"--cacheinfo 160000,{'1' * 40},{name}"
        assert "exit code 0" in await run(tmp_path, f"git init -q && git update-index --add {link}", shell)
        assert "secret" not in await run(tmp_path, "cat state/token state/deep/token", shell)
        shutil.rmtree(tmp_path / ".git")


async def test_submodule_is_guarded_wherever_its_own_files_say_it_lies(tmp_path: Path) -> None:
    (tmp_path / ".git" / "modules" / "a" / "b").mkdir(parents=True)
    (tmp_path / ".git" / "modules" / "a" / "b" / "HEAD").touch()
    (tmp_path / ".git" / "modules" / "a" / "b" / "config").write_text(
        "[core]\n\tworktree = ../../../../deep/b\n"
    )
    (tmp_path / "deep" / "b").mkdir(parents=True)
    (tmp_path / "deep" / "b" / ".git").write_text("gitdir: ../../.git/modules/a/b\n")
    await run(tmp_path, "rm deep/b/.git; mv deep other; echo x >deep/b/.git; echo y >deep/b/file")
    assert (tmp_path / "deep" / "b" / ".git").read_text().startswith("gitdir")
    assert (tmp_path / "deep" / "b" / "file").read_text() == "y\n"


async def test_link_named_git_is_not_followed(tmp_path: Path) -> None:
    """An agent's own `.git` must not make the next box show what it points to."""
    outside = tmp_path / "outside"
    (outside / "hooks").mkdir(parents=True)
    (outside / "config").write_text("secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / ".git").symlink_to(outside)
    assert "secret" not in await run(root, "cat .git/config")


async def test_no_sandbox_is_refused_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "probe", lambda: Offer(None, "bubblewrap is not installed", 7))
    with pytest.raises(ToolFailed, match=r'apt install bubblewrap.*sandbox: "off"'):
        await run(tmp_path, "true")


async def test_no_sandbox_on_macos_is_refused_with_both_remedies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer = Offer(None, "this system has no /usr/bin/sandbox-exec", 0, system="darwin")
    monkeypatch.setattr(probing, "probe", lambda: offer)
    with pytest.raises(
        ToolFailed, match=r'^shell refused: this.* sandbox: "off".*needsApproval: true'
    ) as refusal:
        await run(tmp_path, "true")
    assert "bubblewrap" not in str(refusal.value)


async def test_sandbox_off_runs_with_a_clean_environment(tmp_path: Path) -> None:
    said = await run(tmp_path, "pwd; env | wc -l", Shell(sandbox=Sandbox.OFF, environment=()))
    assert said.startswith(f"{tmp_path}\n")
    assert int(said.splitlines()[1]) <= 4
