"""`clutch top`: the list of tasks, drawn anew every second until a key says that it is enough."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clutch.cli import screen, showing
from clutch.cli.asking import answering
from clutch.cli.reading import source
from clutch.cli.talk.seat import Seat, raw_terminal, whole_screen
from clutch.cli.talk.typing import Key, Text

EVERY_S = 1.0
ENOUGH = (Text("q"), Key.ESCAPE, Key.INTERRUPT, Key.END_OF_FILE)


def top(state: Path | None, *, as_json: bool) -> None:
    """Without a terminal, or for a program, it is `clutch ps`."""
    if as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return showing.ps(state, showing.Wanted(), as_json=as_json, command="top")
    with answering("top", as_json=False), source(state) as here:
        seat, wanted = Seat(), showing.Wanted().to_query()
        with raw_terminal(), whole_screen():
            while True:
                _draw(here.tasks(**wanted))
                if any(key in ENOUGH for key in seat.wait(EVERY_S)):
                    return


def newest_first(tasks: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """What works, then what ended last, children still below their parents: the rest may not fit."""
    working = [task for task in tasks if task["outcome"] is None]
    families: list[list[Mapping[str, Any]]] = []
    for task in tasks:
        if task["outcome"] is not None:
            if task["depth"] == 1 or not families:
                families.append([])
            families[-1].append(task)
    return [*working, *(task for family in reversed(families) for task in family)]


def _draw(page: Mapping[str, Any]) -> None:
    columns, rows = shutil.get_terminal_size()
    tasks = newest_first(page["tasks"])
    lines = [
        f"{screen.clock(screen.moment_now())}  {screen.summary(page['summary'])}  (q leaves)"[:columns],
        "",
    ]
    if tasks:
        lines += screen.table(tasks, screen.now(), page.get("stalledAfterSeconds")).split("\n")
    sys.stdout.write("\x1b[H\x1b[J" + "\r\n".join(lines[: rows - 1]))
    sys.stdout.flush()
