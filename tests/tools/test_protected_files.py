"""Protected files of a workspace, tried by every tool family: state directories are hidden, the rest is read-only."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from clutch import Clutch
from clutch.contain import in_thread
from clutch.ports import OperatorNotice, SandboxAccess, ToolContext, ToolFailed
from clutch.tools import files
from clutch.tools.file_process import FileProcess
from clutch.tools.mcp.definitions import McpServer
from clutch.tools.mcp.server import launching
from clutch.tools.sandbox import process as probing
from clutch.tools.sandbox import protected_files
from clutch.tools.sandbox.policy import SandboxPolicy
from clutch.tools.sandbox.process import Offer, SandboxedPrograms
from clutch.tools.sandbox.protected_files import is_settled
from clutch.tools.shell import Shell, ShellArguments
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

TOKEN = "canary-token-71c2"
#: Files an agent may read and not change, each with what it holds before.
READ_ONLY = (
    "clutch.json", "sub/clutch.json", "AGENTS.md", "HEARTBEAT.md", "sub/AGENTS.md", ".agents/reviewer.md",
    ".claude/agents/reviewer.md", ".claude/skills/x/SKILL.md", "skills/review/SKILL.md", "skills/review/run.py",
)  # fmt: skip


def state_in(folder: Path, database: str = "clutch.db") -> Path:
    folder.mkdir(0o700, parents=True)
    for name in ("lock", database, "token"):
        (folder / name).write_text(TOKEN)
    return folder


async def in_shell(root: Path, command: str, **settings: Any) -> str:
    arguments = ShellArguments(command=command, timeout_seconds=60)
    return await Shell(**settings).run(arguments, ToolContext(str(root), "main", "key"))


def in_acp(root: Path, command: str, **places: tuple[str, ...]) -> str:
    room = SandboxAccess(
        str(root), str(root), places.get("visible", ()), places.get("writable", ()), None, False
    )
    with SandboxedPrograms().launching(("/bin/sh", "-c", command), {}, room) as launch:
        return _ran(launch)


def in_mcp(root: Path, command: str, **settings: Any) -> str:
    settings = {"cwd": str(root)} | settings
    server = McpServer(name="x", command="/bin/sh", args=("-c", command), **settings)
    with launching(server, root.parent / f"{root.name}-state" / "mcp" / "x") as launch:
        return _ran(launch)


def _ran(launch: Any) -> str:
    done = subprocess.run(
        launch.argv, cwd=launch.cwd, env=dict(launch.env), pass_fds=launch.kept,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=30,
    )  # fmt: skip
    return done.stdout


async def in_family(family: str, root: Path, command: str) -> str:
    match family:
        case "shell":
            return await in_shell(root, command)
        case "acp":
            return await asyncio.to_thread(in_acp, root, command)
        case _:
            return await asyncio.to_thread(in_mcp, root, command)


@pytest.fixture(params=["bubblewrap", "landlock", "darwin"])
async def room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FileProcess]:
    if request.param != "bubblewrap":
        version = probing.probe().landlock if request.param == "landlock" else 0
        system = "linux" if request.param == "landlock" else "darwin"
        monkeypatch.setattr(probing, "probe", lambda: Offer(None, "there is none", version, system=system))
    room = FileProcess()
    yield room
    await room.close()


# ---- state directories -------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["state", "deep/er/state", "node_modules/x/state", ".git/state"])
@pytest.mark.parametrize("family", ["shell", "acp", "mcp"])
async def test_commands_neither_read_nor_write_a_state_directory(
    tmp_path: Path, family: str, where: str
) -> None:
    state = state_in(tmp_path / where)
    said = await in_family(
        family,
        tmp_path,
        f"cat {where}/*; grep -r canary .; echo x >{where}/clutch.json; rm -rf {where} 2>&1; mv {where} away; echo end",
    )
    assert "end" in said
    assert TOKEN not in said
    assert sorted(path.name for path in state.iterdir()) == ["clutch.db", "lock", "token"]


@pytest.mark.parametrize("family", ["acp", "mcp"])
async def test_state_in_a_further_visible_folder_is_hidden_too(tmp_path: Path, family: str) -> None:
    (tmp_path / "root").mkdir()
    state_in(tmp_path / "seen" / "state")
    visible, command = (
        (str(tmp_path / "seen"),),
        f"ls {tmp_path}/seen; cat {tmp_path}/seen/state/token; echo end",
    )
    ran = in_acp if family == "acp" else in_mcp
    said = await asyncio.to_thread(ran, tmp_path / "root", command, visible=visible)
    assert "state" in said
    assert "end" in said
    assert TOKEN not in said


@pytest.mark.parametrize("database", ["clutch.db", "gateway.json"])
@pytest.mark.parametrize("where", ["state", "deep/er/state"])
async def test_file_tools_refuse_a_state_directory_made_at_any_time(
    room: FileProcess, tmp_path: Path, where: str, database: str
) -> None:
    root = str(tmp_path)
    await room.run("list", {"path": "."}, root, True)
    await room.run("write", {"path": "x", "text": "x"}, root, False)
    state = state_in(tmp_path / where, database)
    calls: list[tuple[str, dict[str, Any]]] = [
        ("read", {"path": f"{where}/token"}),
        ("list", {"path": where}),
        ("search", {"pattern": "canary", "path": where}),
        ("write", {"path": f"{where}/clutch.json", "text": "{}"}),
        ("write", {"path": f"{where}/new/file", "text": "{}"}),
        ("edit", {"path": f"{where}/token", "edits": [{"old": TOKEN, "new": "x", "all": False}]}),
    ]
    for name, args in calls:
        with pytest.raises(ToolFailed, match=r"state directory|no such file|read-only"):
            await room.run(name, args, root, name in ("read", "list", "search"))
    assert TOKEN not in await room.run("search", {"pattern": "canary"}, root, True)
    assert "token" not in await room.run("list", {"path": ".", "recursive": True}, root, True)
    assert sorted(path.name for path in state.iterdir()) == sorted([database, "lock", "token"])


@pytest.mark.parametrize("family", ["shell", "acp", "mcp"])
async def test_state_directory_is_no_workspace(tmp_path: Path, family: str) -> None:
    state_in(tmp_path / "state")
    with pytest.raises(Exception, match="state directory of Clutch"):
        await in_family(family, tmp_path / "state", "cat token")
    with pytest.raises(ToolFailed, match="state directory of Clutch"):
        files.run("read", {"path": "token"}, str(tmp_path / "state"))


async def test_file_tools_make_no_state_directory(room: FileProcess, tmp_path: Path) -> None:
    await room.run("write", {"path": "state/lock", "text": ""}, str(tmp_path), False)
    with pytest.raises(ToolFailed, match="state directory"):
        await room.run("write", {"path": "state/clutch.db", "text": ""}, str(tmp_path), False)


# ---- read-only files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["shell", "acp", "mcp"])
async def test_commands_read_and_do_not_change_instructions_config_agents_and_skills(
    tmp_path: Path, family: str
) -> None:
    for name in READ_ONLY:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("before")
    script = "; ".join(
        f"cat {name}; echo evil >{name}; echo evil >x; mv x {name}; rm {name}" for name in READ_ONLY
    )
    said = await in_family(
        family, tmp_path, f"{script}; rm -rf .agents .claude skills; touch free && echo end"
    )
    assert "end" in said
    assert said.count("before") >= len(READ_ONLY)
    assert {name: (tmp_path / name).read_text() for name in READ_ONLY} == dict.fromkeys(READ_ONLY, "before")


@pytest.mark.parametrize("family", ["shell", "acp"])
async def test_a_workspace_below_a_visible_folder_is_guarded_like_any_other(
    tmp_path: Path, family: str
) -> None:
    root = tmp_path / "projects" / "one"
    (root / ".git" / "hooks").mkdir(parents=True)
    (root / "AGENTS.md").write_text("before")
    command, visible = (
        "echo evil >AGENTS.md; echo evil >.git/hooks/pre-commit; touch free && echo end",
        (str(root.parent),),
    )
    if family == "shell":
        said = await in_shell(root, command, read_only=visible)
    else:
        said = await asyncio.to_thread(in_acp, root, command, visible=visible)
    assert "end" in said
    assert (root / "AGENTS.md").read_text() == "before"
    assert list((root / ".git" / "hooks").iterdir()) == []


async def test_file_tools_do_not_change_the_python_that_clutch_runs_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its modules are loaded also where they lie in a workspace, and only bubblewrap mounts them read-only."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "module.py").write_text("before")
    edit = {"path": "venv/module.py", "edits": [{"old": "before", "new": "evil", "all": False}]}
    for name, args in (("write", {"path": "venv/lib/new.py", "text": "evil"}), ("edit", edit)):
        with pytest.raises(ToolFailed, match="read-only for agents"):
            files.run(name, args, str(tmp_path))
    assert (tmp_path / "venv" / "module.py").read_text() == "before"
    assert not (tmp_path / "venv" / "lib").exists()
    files.run("write", {"path": "venv2/free.py", "text": "x"}, str(tmp_path))


async def refused(room: FileProcess, name: str, args: dict[str, Any], root: Path) -> bool:
    try:
        await room.run(name, args, str(root), False)
    except ToolFailed as failed:
        return "read-only for agents" in str(failed)
    return False


@pytest.mark.parametrize("exists", [True, False])
async def test_file_tools_do_not_write_read_only_files(
    room: FileProcess, tmp_path: Path, exists: bool
) -> None:
    """All of them in one folder: each folder has a process of its own."""
    for name in READ_ONLY if exists else ():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).parent.joinpath("SKILL.md").write_text("before")
        (tmp_path / name).write_text("before")
    names = READ_ONLY if exists else [name for name in READ_ONLY if name != "skills/review/run.py"]
    written = {"text": "evil"}
    assert [
        name for name in names if not await refused(room, "write", {**written, "path": name}, tmp_path)
    ] == []
    if exists:
        edited = {"edits": [{"old": "before", "new": "evil", "all": False}]}
        assert [
            name for name in names if not await refused(room, "edit", {**edited, "path": name}, tmp_path)
        ] == []
        for name in names:
            assert "before" in await room.run("read", {"path": name}, str(tmp_path), True)
            assert (tmp_path / name).read_text() == "before"
    else:
        assert [name for name in names if (tmp_path / name).exists()] == []


async def test_dependencies_may_bring_instructions_along(tmp_path: Path) -> None:
    """A package manager replaces the folders of packages as a whole; Clutch reads nothing in them."""
    (tmp_path / "node_modules" / "x").mkdir(parents=True)
    (tmp_path / "node_modules" / "x" / "AGENTS.md").write_text("a package's own")
    said = await in_shell(tmp_path, "rm -r node_modules && echo removed")
    assert "removed" in said


# ---- repositories ------------------------------------------------------------------------------------------


def git(root: Path, *words: str) -> str:
    """Run git as the user does, outside any sandbox."""
    done = subprocess.run(
        ["/usr/bin/git", "-C", str(root), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout


@pytest.mark.parametrize("family", ["shell", "acp", "mcp"])
async def test_nested_repositories_are_read_only(tmp_path: Path, family: str) -> None:
    for name in ("proj", "a/b/deep", "node_modules/dep"):
        git(tmp_path, "init", "-q", name)
    git(tmp_path, "init", "-q", "--bare", "plain")
    git(tmp_path, "init", "-q", "--separate-git-dir", str(tmp_path / "apart"), "work")
    ran = tmp_path.parent / "ran"
    places = ("proj/.git", "a/b/deep/.git", "node_modules/dep/.git", "plain", "apart")
    script = "; ".join(
        f"git config -f {place}/config core.fsmonitor 'touch {ran}'; echo 'touch {ran}' >{place}/hooks/pre-commit"
        for place in places
    )
    script += (
        "; mv proj/.git old; mv proj other; rm -rf work/.git; echo 'gitdir: ../evil' >work/.git; echo end"
    )
    said = await in_family(family, tmp_path, script)
    assert "end" in said
    for place in ("proj", "a/b/deep", "node_modules/dep", "work"):
        assert "fsmonitor" not in git(tmp_path / place, "config", "--list", "--local")
        git(tmp_path / place, "status")
    assert not ran.exists()
    assert not [hook for place in places for hook in (tmp_path / place / "hooks").glob("pre-commit")]


async def test_repository_made_during_a_command_is_guarded_for_every_later_one(tmp_path: Path) -> None:
    """Also while the command that was there before still runs."""
    waiting = asyncio.create_task(in_shell(tmp_path, "touch started; while [ ! -e go ]; do sleep 0.05; done"))
    async with asyncio.timeout(PATIENCE_S):
        while not (tmp_path / "started").exists():  # noqa: ASYNC110 - another process makes it, without an event
            await asyncio.sleep(0.02)
    await asyncio.to_thread(git, tmp_path, "init", "-q", "proj")
    said = await in_shell(tmp_path, "git -C proj config core.fsmonitor evil; touch go")
    await waiting
    assert "exit code" in said
    assert "fsmonitor" not in await asyncio.to_thread(git, tmp_path / "proj", "config", "--list", "--local")


PLANTED = {
    "fsmonitor": "git init -q p && git -C p config core.fsmonitor 'touch RAN'",
    "hook": "git init -q p && printf '#!/bin/sh\ntouch RAN' >p/.git/hooks/post-index-change && chmod +x p/.git/hooks/*",
    "hooks elsewhere": "git init -q p && git -C p config core.hooksPath ../evil",
    "ssh": "git init -q p && git -C p config core.sshCommand 'touch RAN'",
    "include": "git init -q p && printf '[core]\nfsmonitor = touch RAN\n' >c && git -C p config include.path ../../c",
    "filter": "git init -q p && git -C p config filter.x.clean 'touch RAN; cat'",
    "bare": "git init -q --bare p && git -C p config core.bare false && git -C p config core.fsmonitor 'touch RAN'",
    "commondir": "git init -q p && cp -r p/.git evil && git config -f evil/config core.fsmonitor 'touch RAN' && "
    "echo ../../evil >p/.git/commondir",
    "submodule": "git init -q p && mkdir p/.git/modules && git init -q --separate-git-dir p/.git/modules/s p/s && "
    "git -C p/s config core.fsmonitor 'touch RAN'",
    "top": "git init -q && git config core.fsmonitor 'touch RAN'",
    "top bare": "git init -q --bare . && git config core.bare false && git config core.fsmonitor 'touch RAN'",
}


@pytest.mark.parametrize("family", ["shell", "acp"])
@pytest.mark.parametrize("name", PLANTED)
async def test_programs_planted_in_a_new_repository_do_not_run_outside(
    tmp_path: Path, name: str, family: str
) -> None:
    root, ran = tmp_path / "root", tmp_path / "ran"
    root.mkdir()
    said = await in_family(family, root, PLANTED[name].replace("RAN", str(ran)) + " && echo END-OF-PLANTING")
    assert "END-OF-PLANTING" in said, said
    if family == "shell":
        assert "was renamed to HEAD.withheld" in said
    for place in ("p", "p/s", "."):
        if (root / place).is_dir():
            git(root / place, "add", "-A")
            git(root / place, "status")
    assert not ran.exists()


async def test_planted_files_are_put_aside_however_often_the_command_is_cancelled(tmp_path: Path) -> None:
    script = f"{PLANTED['hook']}; echo evil >AGENTS.md; echo planted; sleep 60"
    arguments = ShellArguments(command=script, timeout_seconds=60)
    planted = asyncio.Event()
    running = asyncio.create_task(
        Shell().run(arguments, ToolContext(str(tmp_path), "main", "key"), lambda _: planted.set())
    )
    await planted.wait()
    while not running.done():
        running.cancel()
        await asyncio.sleep(0)
    assert running.cancelled()
    assert (tmp_path / "p/.git/HEAD.withheld").exists()
    assert (tmp_path / "AGENTS.md.withheld").exists()
    assert is_settled(str(tmp_path / "AGENTS.md"))  # no sandbox is left


#: Runs a command in the sandbox of a tool family, and is killed meanwhile.
VICTIM = """
import asyncio, subprocess, sys
from pathlib import Path
from clutch.core.policy import Limits
from clutch.ports import SandboxAccess, ToolContext
from clutch.tools.mcp.server import launching
from clutch.tools.mcp.definitions import McpServer
from clutch.tools.registry import AllTools, ToolSettings
from clutch.tools.sandbox.process import SandboxedPrograms
family, root, state, command = sys.argv[1:]
def started(launch):
    subprocess.run(launch.argv, cwd=launch.cwd, env=dict(launch.env), pass_fds=launch.kept)
if family == "shell":
    context = ToolContext(root, "main", "key", on_output=lambda text: print(text, flush=True))
    asyncio.run(AllTools(Limits(), ToolSettings(), Path(state)).run("shell", {"command": command}, context))
elif family == "acp":
    room = SandboxAccess(root, root, (), (), None, False)
    with SandboxedPrograms((), state + "/commands").launching(("/bin/sh", "-c", command), {}, room) as launch:
        started(launch)
else:
    server = McpServer(name="x", command="/bin/sh", args=("-c", command), cwd=root)
    with launching(server, Path(state) / "mcp" / "x") as launch:
        started(launch)
"""


@pytest.mark.parametrize("family", ["shell", "acp", "mcp"])
async def test_planted_files_are_put_aside_by_the_next_gateway_after_kill_9(
    tmp_path: Path, family: str
) -> None:
    root, state = tmp_path / "root", tmp_path / "state"
    root.mkdir()
    async with Clutch(state=state, workspace=root, serve=False):
        pass
    (root / "HEARTBEAT.md").write_text("of a person")
    script = f"{PLANTED['hook']}; echo evil >AGENTS.md; echo planted; sleep 60"
    killed = await asyncio.create_subprocess_exec(
        sys.executable, "-c", VICTIM, family, str(root), str(state), script, stdout=subprocess.PIPE
    )
    assert killed.stdout is not None
    assert b"planted" in await asyncio.wait_for(killed.stdout.readline(), PATIENCE_S)
    killed.kill()
    await killed.wait()
    assert (root / "AGENTS.md").exists()
    async with Clutch(state=state, workspace=root, serve=False) as c:
        told = [one.detail for one in c.services.problems() if one.subject == "planted-file"]
    assert (root / "p/.git/HEAD.withheld").exists()
    assert (root / "AGENTS.md.withheld").exists()
    assert (root / "HEARTBEAT.md").exists()
    assert len(told) == 2
    assert list((state / "commands").iterdir()) == []


def _problems(clutch: Clutch) -> list[OperatorNotice]:
    """Without what concerns the process of the tests: a test before may have used its folder as a workspace."""
    return [one for one in clutch.services.problems() if one.subject != "import-path"]


async def test_instructions_added_while_a_program_runs_are_reported_as_not_read(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "HEARTBEAT.md").write_text("there before")
    room = SandboxAccess(str(root), str(root), (), (), None, False)
    async with Clutch(state=tmp_path / "state", workspace=root, serve=False) as c:
        async with in_thread(lambda: SandboxedPrograms().launching(("/bin/sh", "-c", "sleep 60"), {}, room)):
            assert _problems(c) == []
            (root / "AGENTS.md").write_text("of a person")
            (notice,) = _problems(c)
        assert _problems(c) == []
    assert (notice.subject, notice.is_error) == ("unread-instructions", False)
    assert notice.detail.startswith(f"{root}/AGENTS.md is not read yet")
    assert (root / "AGENTS.md.withheld").read_text() == "of a person"


async def test_a_command_that_runs_is_left_alone_by_another_gateway(tmp_path: Path) -> None:
    box = SandboxPolicy(root=str(tmp_path / "root"), journal=str(tmp_path / "commands"))
    (tmp_path / "root").mkdir()
    with protected_files.noted(box, ()):
        (tmp_path / "root" / "AGENTS.md").write_text("made meanwhile")
        assert protected_files.finish(tmp_path / "commands") == []
    assert (tmp_path / "root" / "AGENTS.md").exists()
    assert list((tmp_path / "commands").iterdir()) == []


async def test_harmless_new_repository_stays_as_it_is(tmp_path: Path) -> None:
    said = await in_shell(
        tmp_path,
        "git init -q p && cd p && git config user.name a && git config user.email a@b && touch f && git add f && "
        "git commit -qm x && git remote add origin https://example.com/x.git && cd .. && git clone -q p q",
    )
    assert "withheld" not in said
    assert "exit code 0" in said
    assert git(tmp_path / "p", "log", "--format=%s").strip() == "x"


@pytest.mark.parametrize("family", ["shell", "acp"])
async def test_config_and_instructions_that_a_command_makes_are_put_aside(
    tmp_path: Path, family: str
) -> None:
    made = ("AGENTS.md", "HEARTBEAT.md", "clutch.json", "other-state/clutch.json", "state/clutch.json")
    script = "mkdir other-state state; touch state/lock state/clutch.db; "
    said = await in_family(family, tmp_path, script + "; ".join(f"echo evil >{name}" for name in made))
    for name in made:
        assert not (tmp_path / name).exists()
        assert (tmp_path / f"{name}.withheld").read_text() == "evil\n"
        assert family != "shell" or f"{name} was renamed to" in said


@pytest.mark.parametrize(
    ("text", "harmful"),
    [
        ("[core]\n\tbare = false\n", None),
        ('[remote "origin"]\n\turl = https://x/y\n# x\n', None),
        ('[remote "origin"]\n\turl = ext::sh -c x\n', "ext::"),
        ("[core] fsmonitor = x\n", "fsmonitor"),
        ("[core]\nbare = a\\\nfsmonitor = x", "bare"),
        ("[Core]\nFSMonitor = x", "core.fsmonitor"),
        ('[includeIf "gitdir:/"]\npath = x', "includeif.path"),
        ("[alias]\nst = !x", "alias.st"),
        ('[alias]\n#\r[remote "o"]\nurl = !x', "alias.url"),
        ('[alias]\n#\x0c[remote "o"]\nurl = !x', "alias.url"),
        ("[core]\r\n\tbare = false\r\n", None),
    ],
)
def test_only_known_settings_of_git_are_harmless(text: str, harmful: str | None) -> None:
    found = protected_files.harmful_setting(text)
    assert (found is None) is (harmful is None)
    assert (harmful or "") in (found or "")
