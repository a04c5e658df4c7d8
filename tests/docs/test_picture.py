"""The pictures are recordings of `make screenshots`: commands exist and did what is shown, and no picture is unused."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from string import Template
from xml.etree import ElementTree

import typer

from clutch.cli.app import app
from tests.docs.picture import COLUMNS, FILE, LINES, drawn

ROOT = Path(__file__).parents[2]
SVG = FILE.read_text(encoding="utf-8")
TEXT = "{http://www.w3.org/2000/svg}text"


def shown(svg: str) -> str:
    """The lines of the terminal, as they are read."""
    rows: dict[float, str] = {}
    for piece in ElementTree.fromstring(svg).iter(TEXT):  # noqa: S314 (our own file)
        if "clip-path" in piece.attrib:
            row = float(piece.attrib["y"])
            at = round(float(piece.attrib["x"]) / 12.2)
            rows[row] = rows.get(row, "").ljust(at) + (piece.text or "").replace("\xa0", " ")
    return "\n".join(row.rstrip() for _, row in sorted(rows.items()))


def test_the_readme_shows_it() -> None:
    assert f"]({FILE.relative_to(ROOT)})" in (ROOT / "README.md").read_text()


def test_every_command_it_types_exists() -> None:
    group = typer.main.get_command(app)
    for line, _ in LINES:
        if not line.startswith("clutch"):
            continue
        _, word, *rest = shlex.split(line.partition("|")[0])
        command = getattr(group, "commands")[word]  # noqa: B009 (a group has them, a command not)
        command.make_context(word, rest)


def test_it_shows_each_line_and_what_had_to_come_of_it() -> None:
    steps = re.split(r"(?m)^\$ ", shown(SVG))[1:]
    assert len(steps) == len(LINES)
    for step, (line, wanted) in zip(steps, LINES, strict=True):
        typed, _, answer = step.partition("\n")
        assert re.fullmatch(Template(re.escape(line).replace(r"\$", "$")).substitute(pid=r"\d+"), typed)
        assert wanted in answer


def test_it_is_what_the_recorder_draws() -> None:
    """The frame, the styles and every place; only colours are not read back."""
    again = drawn(shown(SVG))
    assert shown(again) == shown(SVG)
    assert [line for line in SVG.splitlines() if "rect" in line][:2] == [
        line for line in again.splitlines() if "rect" in line
    ][:2]
    assert max(map(len, shown(SVG).splitlines())) <= COLUMNS


def test_it_asks_nobody_for_anything_and_names_no_place_on_a_machine() -> None:
    inside = SVG.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|url\((?!#)|@import|<script|<image|href", inside)
    assert not re.search(r"/(?:tmp|home|root|work|var|usr)/", inside)


def test_each_picture_of_the_dashboard_is_shown_in_a_page_and_loads_nothing() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")))
    pictures = list((ROOT / "docs" / "pictures").iterdir())
    assert pictures
    assert [one.name for one in pictures if f"pictures/{one.name}" not in pages] == []
    for drawn_one in (one for one in pictures if one.suffix == ".svg"):
        assert set(re.findall(r"https?://[^\s\"')]+", drawn_one.read_text())) <= {
            "http://www.w3.org/2000/svg"
        }
