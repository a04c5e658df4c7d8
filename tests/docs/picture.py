"""The picture in the README: a real shell at a real terminal types these lines, and what it showed becomes an SVG.

python -m tests.docs.picture      # records it anew; half a minute

Nothing is drawn by hand. A recording in which nothing was under way when the gateway was killed shows nothing, and is
refused. The picture asks no other host for anything, not even for a font.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from string import Template

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

FILE = Path(__file__).parents[2] / "docs" / "picture.svg"
STATE = ".local/state/clutch"
COLUMNS, ROWS, PATIENCE_S = 84, 50, 60.0
TASKS = 8  #: of a survey in which subagents may spawn
#: What is typed, and what must have been shown before the next line is; $pid is the gateway's.
LINES = (
    ('clutch run "Survey the folder" --key survey', "t_"),
    ("clutch tree", "running"),
    ("kill -9 $pid    # the gateway, in the middle of it", ""),
    ('clutch run "Survey the folder" --key survey --wait | head -2', "done · Survey the folder"),
    ("clutch tree", f"{TASKS} done"),
    ('clutch why "size and shape" | head -5', "Resumed at step"),
)
CONFIG = '{ agents: { defaults: { model: "offline", subagents: { maxSpawnDepth: 3 } } } }\n'
NOTES = "# Notes\n\nTODO: water the plants\n"
PROMPT = "\x1b[1;32m$\x1b[0m "
INK = TerminalTheme(
    (24, 26, 31),
    (208, 212, 220),
    [(40, 44, 52), (224, 108, 117), (126, 191, 110), (222, 184, 105),
     (97, 167, 239), (198, 120, 221), (86, 182, 194), (208, 212, 220)],
    [(120, 126, 138), (240, 128, 136), (150, 214, 134), (236, 204, 130),
     (130, 190, 255), (216, 150, 236), (110, 206, 216), (255, 255, 255)],
)  # fmt: skip
#: Rich's own loads a font from elsewhere.
FORMAT = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img"
 aria-label="A terminal: a tree of tasks, kill -9 of its gateway, and the same tree finished by the next one">
<style>
.{unique_id}-matrix {{ font: {char_height}px/{line_height}px ui-monospace, Menlo, Consolas, monospace }}
.{unique_id}-title {{ font: bold 18px sans-serif }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


class Shell:
    """A bash at a terminal."""

    def __init__(self, folder: Path) -> None:
        self.home = folder
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        inherited = {name: value for name, value in os.environ.items() if name in ("PYTHONPATH", "LANG")}
        self._process = subprocess.Popen(
            ["/usr/bin/env", "bash", "--norc", "--noprofile", "--noediting", "+m"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=folder / "project",
            env={
                **inherited,
                "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
                "HOME": str(folder),
                "TERM": "xterm-256color",
                "PS1": PROMPT,
            },
            start_new_session=True,
        )
        os.close(theirs)
        self.shown = ""
        self._until_prompt()

    def type(self, line: str) -> str:
        """Type a line and return what the terminal showed after it."""
        before = len(self.shown)
        os.write(self._ours, f"{line}\n".encode())
        self._until_prompt()
        return self.shown[before:]

    def _until_prompt(self) -> None:
        before, deadline = len(self.shown), time.monotonic() + PATIENCE_S
        while not self.shown.endswith(PROMPT) or len(self.shown) == before:
            assert time.monotonic() < deadline, f"no prompt:\n{self.shown}"
            if select.select([self._ours], [], [], 0.2)[0]:
                self.shown += os.read(self._ours, 65536).decode()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)


def record() -> str:
    """Return everything that the terminal showed, with its colours."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        state = folder / STATE
        state.mkdir(parents=True, mode=0o700)
        (state / "clutch.json").write_text(CONFIG)
        (folder / "project" / "docs").mkdir(parents=True)
        (folder / "project" / "docs" / "notes.md").write_text(NOTES)
        (folder / "project" / "app.py").write_text('print("hello")\n')
        shell = Shell(folder)
        try:
            return _typed(shell)
        finally:
            shell.type("clutch stop")
            shell.close()


def _typed(shell: Shell) -> str:
    pid = ""
    for line, wanted in LINES:
        answer = shell.type(Template(line).substitute(pid=pid))
        assert wanted in answer, f"{line} did not show {wanted!r}, record it again:\n{answer}"
        if not pid and (started := re.search(r"\(pid (\d+)\)", answer)):
            pid = started[1]
            _until_half_done(shell.home)
    return shell.shown.removesuffix(PROMPT)


def _until_half_done(home: Path) -> None:
    """Wait until all eight tasks were started and one of them is done."""
    look = [sys.executable, "-m", "clutch", "ps", "--json", "--state", str(home / STATE)]
    deadline = time.monotonic() + PATIENCE_S
    while True:
        said = json.loads(subprocess.run(look, capture_output=True, check=True).stdout)
        if len(said["tasks"]) == TASKS and any(task["outcome"] for task in said["tasks"]):
            return
        assert time.monotonic() < deadline, f"nothing was half done: {said['summary']}"


def drawn(shown: str) -> str:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(shown.replace("\r\n", "\n").strip()))
    made = console.export_svg(title="clutch", theme=INK, code_format=FORMAT, unique_id="clutch")
    return "\n".join(line.rstrip() for line in made.splitlines()) + "\n"


if __name__ == "__main__":
    FILE.write_text(drawn(record()), encoding="utf-8")
