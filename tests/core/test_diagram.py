"""The picture of the phases says what the edges say, no more and no less."""

from __future__ import annotations

import re
import subprocess
import sys

from clutch.core.events import EDGES
from clutch.core.model import FINISHED, Phase
from tests.docs.phases import mermaid

ARROW = re.compile(r"    (\S+) --> (\S+)(?: : .+)?")
BOX = re.compile(r'    state "(.+)" as (\w+)')


def edges_of(picture: str) -> tuple[list[tuple[str, str]], dict[str, list[str]]]:
    """The arrows as drawn, and what each box stands for."""
    header, *lines = picture.splitlines()
    assert header == "stateDiagram-v2"
    arrows, boxes = [], {}
    for line in lines:
        if box := BOX.fullmatch(line):
            boxes[box[2]] = box[1].split(", ")
        else:
            arrow = ARROW.fullmatch(line)
            assert arrow is not None, line
            arrows.append((arrow[1], arrow[2]))
    return arrows, boxes


def test_picture_has_exactly_the_edges_of_the_state_machine() -> None:
    arrows, boxes = edges_of(mermaid())
    drawn = {
        (Phase(name), Phase(end))
        for start, end in arrows
        for name in boxes.get(start, [start])
        if "[*]" not in (start, end)
    }
    assert drawn == EDGES


def test_picture_starts_at_spawning_and_ends_where_tasks_finish() -> None:
    arrows, _ = edges_of(mermaid())
    assert [end for start, end in arrows if start == "[*]"] == [Phase.SPAWNING]
    assert [start for start, end in arrows if end == "[*]"] == [phase for phase in Phase if phase in FINISHED]


def test_kills_are_one_arrow_and_no_arrow_is_drawn_twice() -> None:
    arrows, _ = edges_of(mermaid())
    assert len(set(arrows)) == len(arrows)
    assert mermaid().count(": kill") == 1


def test_picture_is_the_same_text_in_every_process() -> None:
    program = "from tests.docs.phases import mermaid; print(mermaid(), end='')"
    for seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert run.stdout == mermaid()
