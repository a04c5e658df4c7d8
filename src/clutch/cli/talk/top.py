"""`clutch top`: the list of tasks, drawn anew every second until a key says that it is enough."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
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


def newest_first(tasks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What works, then what ended last, children still below their parents: the rest may not fit."""
    working = [task for task in tasks if task["outcome"] is None]
    ended = showing.nested([task for task in tasks if task["outcome"] is not None])
    families = sorted((list(_family(top)) for top in ended), key=_last_end, reverse=True)
    return [*working, *chain.from_iterable(families)]


def _family(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield task
    for child in task["nodes"]:
        yield from _family(child)


def _last_end(family: Sequence[Mapping[str, Any]]) -> str:
    return max(str(task["endedAt"]) for task in family)


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
