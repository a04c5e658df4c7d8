"""S32: agents see no state directory of Clutch, change no protected file, and plant no program that runs outside."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from clutch.testing.invariants.probes import Probe

_TOKEN = "a-token-that-no-agent-reads"  # noqa: S105 - of this story only
_READ_ONLY = (
    "clutch.json",
    "AGENTS.md",
    "sub/HEARTBEAT.md",
    ".claude/agents/a.md",
    "skill/SKILL.md",
    "proj/.git/config",
)


def _story() -> Iterator[str]:
    """Asks the file tools and the guards of a sandbox, without starting one: what they decide is what counts."""
    with tempfile.TemporaryDirectory(prefix="clutch-probe-") as folder:
        root = Path(os.path.realpath(folder)) / "workspace"
        for name in ("state", "deep/er/state"):
            (root / name).mkdir(parents=True)
            for file in ("lock", "clutch.db", "token"):
                (root / name / file).write_text(_TOKEN)
        for name in _READ_ONLY:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text("before")
        yield from _read(str(root))
        yield from _written(str(root))
        yield from _unguarded(str(root))
        yield from _appeared(root)
        yield from _planted(root)
        yield from _loaded(root)


def _read(root: str) -> Iterator[str]:
    for name, args in (
        ("read", {"path": "state/token"}),
        ("search", {"pattern": _TOKEN, "ignored": True}),
        ("read", {"path": "deep/er/state/token"}),
    ):
        if _TOKEN in _ran(name, args, root).replace("state/token", ""):
            yield f"{name} {args} shows a token"


def _written(root: str) -> Iterator[str]:
    for path in (*_READ_ONLY, "state/clutch.json"):
        _ran("write", {"path": path, "text": "after"}, root)
        there = Path(root, path)
        if there.exists() and there.read_text() == "after":
            yield f"write changes {path}"


def _ran(name: str, args: Mapping[str, object], root: str) -> str:
    from clutch.ports import ToolFailed
    from clutch.tools import files

    try:
        return files.run(name, args, root)
    except ToolFailed as error:
        return str(error)


def _unguarded(root: str) -> Iterator[str]:
    from clutch.tools.sandbox.policy import SandboxPolicy, is_beneath
    from clutch.tools.sandbox.protected_files import guards_of

    guards = guards_of(SandboxPolicy(root))
    hidden = {guard.path for guard in guards if guard.is_hidden}
    for name in ("state", "deep/er/state"):
        if f"{root}/{name}" not in hidden:
            yield f"a command sees {name}"
    for name in _READ_ONLY:
        if not any(is_beneath(f"{root}/{name}", guard.path) for guard in guards):
            yield f"a command can change {name}"


def _appeared(root: Path) -> Iterator[str]:
    from clutch.tools.sandbox.lifetime import new_state, running_sandbox, showing
    from clutch.tools.sandbox.policy import SandboxPolicy

    policy, late = SandboxPolicy(str(root)), root / "deep" / "late-state"
    with running_sandbox(policy) as sandbox:
        hidden, since = [guard.path for guard in sandbox.guards if guard.is_hidden], time.monotonic()
        late.mkdir()
        for file in ("lock", "clutch.db"):
            (late / file).touch()
        if new_state(policy, tuple(hidden), since) is None:
            yield "a running command sees a state directory that is moved in"
        if not showing(str(late)):
            yield "a running command sees a state directory that Clutch makes"


def _planted(root: Path) -> Iterator[str]:
    from clutch.tools.sandbox.policy import SandboxPolicy
    from clutch.tools.sandbox.protected_files import guards_of, withhold

    box = SandboxPolicy(str(root))
    before = guards_of(box)
    for name in ("new/.git/objects", "new/.git/refs", "other-state"):
        (root / name).mkdir(parents=True)
    (root / "new/.git/HEAD").write_text("ref: refs/heads/main\n")
    (root / "new/.git/config").write_text("[core]\n\tfsmonitor = evil\n")
    (root / "other-state/clutch.json").write_text("{}")
    withhold(box, before)
    for name in ("new/.git/HEAD", "other-state/clutch.json"):
        if (root / name).exists():
            yield f"{name}, made by a command, stays in place"


def _loaded(root: Path) -> Iterator[str]:
    from clutch.config.load import refuse_writable
    from clutch.errors import ConfigInvalid

    (root / "own.json").write_text("{}")
    try:
        refuse_writable(root / "own.json", Path("/"), [str(root)])
    except ConfigInvalid:
        return
    yield "a config that an agent could have written is loaded"


PROBE = Probe("S32", "agents see no state directory and change no protected file", _story)
