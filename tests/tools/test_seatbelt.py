"""The Seatbelt profile by its text: what its rules decide for a path. No profile here was loaded by a Mac."""

from __future__ import annotations

import fcntl
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from clutch.core import attachments
from clutch.ports import ToolContext
from clutch.tools.file_process import FileProcess
from clutch.tools.sandbox import process, seatbelt
from clutch.tools.sandbox.bubblewrap import ProtectedMount
from clutch.tools.sandbox.policy import Sandbox, SandboxPolicy
from clutch.tools.sandbox.process import Offer, SandboxKind, sandbox_kind
from clutch.tools.shell import Shell, ShellArguments
from clutch.wiring import sandbox_offer

GOLDEN = Path(__file__).parent / "seatbelt"
ROOT, SCRATCH = "/Users/ann/work", "/private/var/folders/x/T/clutch-501/0a"
SHELL = SandboxPolicy(ROOT, hidden=(f"{ROOT}/state", "/Users/ann/.local/state/clutch"))
POLICIES = {
    "command": (SHELL, (ProtectedMount(f"{ROOT}/lib/.git"), ProtectedMount(f"{ROOT}/x/old", True)), SCRATCH),
    "file_worker": (SandboxPolicy(ROOT, is_writable=False, read_only=("/Users/ann/.venv",)), (), None),
    "network": (
        SandboxPolicy(
            ROOT, network=True, writable=("/Users/ann/.codex",), hidden=("/Users/ann/.codex/state",)
        ),
        (),
        SCRATCH,
    ),
}


# ---- a reader of profiles: what the last rule that matches decides ------------------------------------------


def tokens(text: str) -> Iterator[str]:
    at = 0
    while match := re.compile(r'\s*(#?"(?:[^"\\]|\\.)*"|[()]|[^\s()"]+)').match(text, at):
        yield match[1]
        at = match.end()
    assert not text[at:].strip()


def forms(words: Iterator[str]) -> list[Any]:
    found: list[Any] = []
    for word in words:
        if word == ")":
            return found
        found.append(forms(words) if word == "(" else word)
    return found


def rules(profile: seatbelt.SeatbeltProfile) -> list[list[Any]]:
    return [rule for rule in forms(tokens(profile.text)) if rule[0] in ("allow", "deny")]


def text_of(word: Any, parameters: dict[str, str]) -> str:
    if isinstance(word, list):
        assert word[0] == "param"
        return parameters[word[1].strip('"')]
    return str(word).removeprefix("#").strip('"')


def matches(condition: list[Any], path: str, parameters: dict[str, str]) -> bool:
    kind, *rest = condition
    if kind in ("require-all", "require-any", "require-not"):
        found = [matches(one, path, parameters) for one in rest]
        return {"require-all": all(found), "require-any": any(found), "require-not": not any(found)}[kind]
    if kind not in ("subpath", "literal", "regex"):
        return False
    value = text_of(rest[0], parameters)
    if kind == "regex":
        return re.search(value, path, re.DOTALL) is not None
    return path == value or (kind == "subpath" and path.startswith(f"{value}/"))


def allows(profile: seatbelt.SeatbeltProfile, operation: str, path: str) -> bool:
    verdict = False
    for word, *rest in rules(profile):
        names = [one for one in rest if isinstance(one, str)]
        conditions = [one for one in rest if isinstance(one, list)]
        is_named = any(
            operation == name or (name.endswith("*") and operation.startswith(name[:-1])) for name in names
        )
        if is_named and (not conditions or any(matches(one, path, profile.parameters) for one in conditions)):
            verdict = word == "allow"
    return verdict


def reads(profile: seatbelt.SeatbeltProfile, path: str) -> bool:
    return allows(profile, "file-read-data", path)


def writes(profile: seatbelt.SeatbeltProfile, path: str) -> bool:
    verdicts = {allows(profile, f"file-write-{kind}", path) for kind in ("data", "create")}
    assert len(verdicts) == 1
    return verdicts.pop()


# ---- the text -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", POLICIES)
def test_the_text_is_as_recorded(name: str) -> None:
    """Written anew with CLUTCH_RECORD=1; read the difference before you commit it."""
    profile = seatbelt.profile(*POLICIES[name])
    named = "".join(f"; {key}={path}\n" for key, path in profile.parameters.items())
    path = GOLDEN / f"{name}.sb"
    if os.environ.get("CLUTCH_RECORD"):
        path.write_text(profile.text + named, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == profile.text + named


@pytest.mark.parametrize(
    ("path", "is_read", "is_written"),
    [
        (f"{ROOT}/a/b.txt", True, True),
        (f"{SCRATCH}/file", True, True),
        ("/usr/lib/libSystem.dylib", True, False),
        ("/Users/ann/.ssh/id_ed25519", False, False),
        ("/Users/ann/work2/file", False, False),
        ("/private/tmp/other", False, False),
        ("/Library/Keychains/System.keychain", False, False),
        (f"{ROOT}/state", False, False),
        (f"{ROOT}/state/token", False, False),
        (f"{ROOT}/x/old/token", False, False),
        ("/Users/ann/.local/state/clutch/token", False, False),
        (f"{ROOT}/lib/.git/config", True, False),
        (f"{ROOT}/.git/hooks/pre-commit", True, False),
        (f"{ROOT}/new/deep/.GIT", True, False),
        (f"{ROOT}/clutch.json", True, False),
        (f"{ROOT}/sub/Agents.md", True, False),
        (f"{ROOT}/.claude/agents/a.md", True, False),
        (f"{ROOT}/.claude/notes.md", True, True),
        (f"{ROOT}/node_modules/p/AGENTS.md", True, True),
        (f"{ROOT}/node_modules/p/.git/config", True, False),
        (f"{ROOT}/later/clutch.db", False, False),
        (f"{ROOT}/later/clutch.db-wal", False, False),
        (f"{ROOT}/gitignore", True, True),
    ],
)
def test_a_command_sees_and_changes_what_it_may(path: str, is_read: bool, is_written: bool) -> None:
    profile = seatbelt.profile(*POLICIES["command"])
    assert (reads(profile, path), writes(profile, path)) == (is_read, is_written)


def test_folders_above_protected_files_keep_their_names() -> None:
    profile = seatbelt.profile(*POLICIES["command"])
    for path in (ROOT, SCRATCH, f"{ROOT}/lib", f"{ROOT}/x", f"{ROOT}/.claude"):
        assert not allows(profile, "file-write-unlink", path), path
    assert allows(profile, "file-write-unlink", f"{ROOT}/other")
    assert not allows(profile, "file-write-create", f"{ROOT}/.claude")
    assert not allows(profile, "file-link", f"{ROOT}/clutch.json")


def test_a_worker_of_a_read_only_workspace_changes_nothing() -> None:
    profile = seatbelt.profile(*POLICIES["file_worker"])
    assert reads(profile, f"{ROOT}/a")
    assert reads(profile, "/Users/ann/.venv/bin/python")
    assert not any(writes(profile, path) for path in (f"{ROOT}/a", "/Users/ann/.venv/x", "/private/tmp/x"))


def test_the_network_is_off_unless_allowed_and_never_a_socket_that_is_a_file() -> None:
    def named(name: str) -> list[list[Any]]:
        found = rules(seatbelt.profile(*POLICIES[name]))
        return [rule for rule in found if any(str(word).startswith("network") for word in rule)]

    assert named("command") == []
    assert ["allow", "network-outbound", ["remote", "ip"]] in named("network")
    sockets = [rule for rule in named("network") if rule[-1][0] not in ("remote", "local")]
    assert sockets == [["allow", "network-outbound", ["literal", '"/private/var/run/mDNSResponder"']]]


def test_git_of_clutch_itself_may_write_a_repository() -> None:
    policy = SandboxPolicy("/Users/ann/child", writable=(f"{ROOT}/.git",), keeps_protected=False)
    profile = seatbelt.profile(policy, (), None)
    assert writes(profile, "/Users/ann/child/.git")
    assert writes(profile, f"{ROOT}/.git/worktrees/child/HEAD")
    assert not reads(profile, f"{ROOT}/file")


def test_a_workspace_inside_a_hidden_directory_is_visible_and_the_rest_is_not() -> None:
    policy = SandboxPolicy("/Users/ann/state/workspaces/3", hidden=("/Users/ann/state",))
    profile = seatbelt.profile(policy, (), None)
    assert writes(profile, "/Users/ann/state/workspaces/3/file")
    assert allows(profile, "file-read-metadata", "/Users/ann/state")
    assert not reads(profile, "/Users/ann/state")
    assert not reads(profile, "/Users/ann/state/token")
    assert not reads(profile, "/Users/ann/state/workspaces/4/file")


# ---- any policy, and any name of a folder -------------------------------------------------------------------

HOSTILE = st.text(
    st.sampled_from("\"\\\n\r\t()#;|{}[]^$.*+?' =%aé\u202eZ") | st.characters(codec="utf-8"),
    min_size=1,
    max_size=12,
).filter(lambda name: not set(name) & {"/", "\0"} and name not in (".", ".."))


@st.composite
def policies(draw: st.DrawFn) -> tuple[SandboxPolicy, tuple[ProtectedMount, ...]]:
    root = f"/Users/{draw(HOSTILE)}/{draw(HOSTILE)}"

    def below() -> str:
        return "/".join([root, *draw(st.lists(HOSTILE, min_size=1, max_size=3))])

    policy = SandboxPolicy(
        root,
        is_writable=draw(st.booleans()),
        read_only=tuple(below() for _ in range(draw(st.integers(0, 2)))),
        writable=tuple(below() for _ in range(draw(st.integers(0, 2)))),
        hidden=tuple(below() for _ in range(draw(st.integers(0, 3)))),
        network=draw(st.booleans()),
    )
    return policy, tuple(ProtectedMount(below(), draw(st.booleans())) for _ in range(draw(st.integers(0, 3))))


@given(policies(), HOSTILE)
def test_every_hidden_path_is_denied_after_any_rule_that_allows_it(
    made: tuple[SandboxPolicy, tuple[ProtectedMount, ...]], name: str
) -> None:
    policy, guards = made
    profile = seatbelt.profile(policy, guards, SCRATCH)
    hidden = [*policy.hidden, *(guard.path for guard in guards if guard.is_hidden)]
    for path in hidden:
        for one in (path, f"{path}/{name}"):
            # A visible directory inside a hidden one is what the settings say: the nearest decides.
            nearer = [root for root in policy.shown if root.startswith(f"{path}/")]
            if not any(one == root or one.startswith(f"{root}/") for root in nearer):
                assert not allows(profile, "file-read-data", one)
                is_on_the_way = any(root.startswith(f"{one}/") for root in nearer)
                assert allows(profile, "file-read-metadata", one) is is_on_the_way
                assert not allows(profile, "file-write-create", one)
                assert not allows(profile, "process-exec", one)


@given(policies(), HOSTILE)
def test_no_name_of_a_folder_becomes_part_of_the_program(
    made: tuple[SandboxPolicy, tuple[ProtectedMount, ...]], name: str
) -> None:
    policy, guards = made
    profile = seatbelt.profile(policy, guards, f"/private/tmp/{name}")
    assert set(profile.text) <= set(map(chr, range(32, 127))) | {"\n"}
    assert "\\" not in profile.text
    read = forms(tokens(profile.text))
    assert len(read) == len(profile.lines)
    assert {rule[0] for rule in read} == {"version", "allow", "deny"}
    words = seatbelt.launch(policy, ["true"], cwd="/", guards=guards).argv
    given_paths = [word.partition("=")[2] for word in words if re.match(r"P\d+=", word)]
    assert policy.root in given_paths


@given(
    policies(), st.lists(HOSTILE, max_size=2), st.sampled_from(sorted(attachments.READ_ONLY_FILES | {".git"}))
)
def test_a_protected_name_is_never_written_beneath_a_hostile_root(
    made: tuple[SandboxPolicy, tuple[ProtectedMount, ...]], between: Sequence[str], name: str
) -> None:
    policy, guards = made
    assume(not {one.casefold() for one in between} & {"venv", "node_modules"})
    profile = seatbelt.profile(policy, guards, SCRATCH)
    for spelled in (name, name.upper(), name.lower()):
        assert not writes(profile, "/".join([policy.root, *between, spelled]))


# ---- on a machine -------------------------------------------------------------------------------------------


def test_the_command_line_sets_limits_inside_and_passes_paths_beside_the_text() -> None:
    launch = seatbelt.launch(*POLICIES["command"][:1], ["echo", "x"], cwd=ROOT, guards=(), scratch=SCRATCH)
    assert list(launch.argv[:2]) == ["/usr/bin/sandbox-exec", "-p"]
    assert f"P0={ROOT}" in launch.argv or f"P1={ROOT}" in launch.argv
    assert list(launch.argv[-2:]) == ["echo", "x"]
    assert "ulimit -f" in launch.argv[-4]
    assert "ulimit -u" not in launch.argv[-4]  # it would count all processes of the user
    assert (launch.env["HOME"], launch.env["TMPDIR"], launch.cwd) == (SCRATCH, SCRATCH, ROOT)


def program(path: Path, text: str) -> str:
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


#: What takes the place of `sandbox-exec`: no rule is applied.
APPLIES_NOTHING = """
import os, sys
words = sys.argv[1:]
while words[0] in ("-p", "-D"): del words[:2]
os.execv(words[0], words)
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (APPLIES_NOTHING, "Seatbelt does not hold here: a command can read a hidden file"),
        ("print('cannot start a program')", "Seatbelt does not hold here: a command cannot start a program"),
        (
            "import sys; sys.exit('unbound variable: file*')",
            "Seatbelt does not work here: unbound variable: file*",
        ),
        ("import os; os.abort()", "Seatbelt does not work here: -6"),
        ("", ""),
    ],
)
def test_a_seatbelt_that_does_not_hold_is_no_sandbox(tmp_path: Path, text: str, said: str) -> None:
    assert seatbelt.trouble(program(tmp_path / "sandbox-exec", text)) == said


def test_a_system_without_sandbox_exec_has_no_sandbox(tmp_path: Path) -> None:
    missing = str(tmp_path / "none")
    assert seatbelt.trouble(missing) == f"this system has no {missing}"


def test_every_denial_is_tried(tmp_path: Path) -> None:
    """Without any sandbox, the check finds each of its denials broken."""
    for folder in ("root/hidden", "outside"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("root/hidden/file", "root/kept", "outside/file"):
        (tmp_path / file).write_text("x")
    words = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        seatbelt.CHECK,
        str(tmp_path / "root"),
        str(tmp_path / "outside"),
    ]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(said) == len(set(said)) == 10
    assert all(line.startswith("can ") for line in said)


def test_a_mac_with_seatbelt_uses_it_for_commands_and_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "probe", lambda: Offer(None, "", 0, "darwin", seatbelt.SANDBOX_EXEC))
    assert {sandbox_kind(Sandbox.ON, for_shell=is_shell) for is_shell in (True, False)} == {
        SandboxKind.SEATBELT
    }
    offer = sandbox_offer()
    assert offer.is_ok
    assert "seatbelt holds commands and file tools (untested on real hardware" in offer.detail


@pytest.fixture
def mac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace on a machine whose `sandbox-exec` takes all words and applies no rule."""
    offer = Offer(None, "", 0, "darwin", program(tmp_path / "sandbox-exec", APPLIES_NOTHING))
    monkeypatch.setattr(process, "probe", lambda: offer)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.mark.anyio
async def test_a_command_runs_through_sandbox_exec_with_a_directory_of_its_own(mac: Path) -> None:
    command = "pwd; echo $HOME; echo x >$TMPDIR/file; echo new >AGENTS.md"
    arguments = ShellArguments(command=command, timeout_seconds=60)
    said = await Shell().run(arguments, ToolContext(str(mac), "agent:main:main", "call"))
    assert said.startswith(f"{mac}\n{mac.parent}/clutch-{os.geteuid()}/")
    assert "exit code 0" in said
    assert "AGENTS.md was renamed to AGENTS.md.withheld" in said


@pytest.mark.anyio
async def test_file_tools_run_through_sandbox_exec(mac: Path) -> None:
    tools = FileProcess()
    try:
        await tools.run("write", {"path": "a", "text": "x"}, str(mac), False)
        assert "1  x" in await tools.run("read", {"path": "a"}, str(mac), True)
    finally:
        await tools.close()


def test_a_program_runs_through_sandbox_exec_with_its_variables(mac: Path) -> None:
    policy, words = SandboxPolicy(str(mac)), ("/bin/sh", "-c", "echo $KEY; pwd")
    with process.sandboxed_program(policy, words, {"KEY": "a value"}, cwd=str(mac)) as launch:
        done = subprocess.run(
            launch.argv,
            env=dict(launch.env),
            cwd=launch.cwd,
            pass_fds=launch.kept,
            capture_output=True,
            check=True,
        )
    assert done.stdout.decode() == f"a value\n{mac}\n"
    assert "a value" not in " ".join(launch.argv)


def test_temporary_directories_are_private_and_removed_when_no_process_uses_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with seatbelt.scratch_directory() as (first, lock):
        Path(first, "file").write_text("x")
        assert stat.S_IMODE(os.stat(first).st_mode) == 0o700
        with seatbelt.scratch_directory() as (second, _):
            assert os.path.isdir(first)
        inherited = os.dup(lock)
    with seatbelt.scratch_directory():
        assert os.path.isdir(first)  # a process of the command still runs
        assert not os.path.exists(second)
    fcntl.flock(inherited, fcntl.LOCK_UN)
    os.close(inherited)
    with seatbelt.scratch_directory():
        assert not os.path.exists(first)
