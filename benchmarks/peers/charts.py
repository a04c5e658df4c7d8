"""`python -m benchmarks.peers.charts`: writes the tables and charts of `docs/benchmarks.md` from `recorded.jsonl`.

To record anew: `make bench-peers >benchmarks/peers/recorded.jsonl`, then this. Charts are plain SVG.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Final

from benchmarks.peers.environment import ROOT
from benchmarks.peers.registry import PEERS
from benchmarks.peers.tables import Recorded, name_of, read, tables

PAGE: Final = ROOT / "docs" / "benchmarks.md"
PICTURES: Final = ROOT / "docs" / "pictures"

_WIDTH, _LINE, _LABEL, _BAR = 720, 26, 180, 440
_HEAD: Final = 34  # height of a title
_OURS, _THEIRS = "#1f6feb", "#8c959f"
_PALETTE: Final = (
    _OURS,
    "#54aeff",
    "#d4a72c",
    "#cf222e",
    "#1a7f37",
    "#8250df",
    "#bf3989",
    "#bc4c00",
    "#57606a",
)
_PLOT_HEIGHT: Final = 300
_LEFT, _RIGHT = 70, 190  # margins of a plot: numbers, names
_LOWEST: Final = 1e-3  # a logarithm needs more than nothing

Series = Sequence[tuple[str, Sequence[tuple[int, float]]]]


def filled(page: str, recorded: Recorded) -> str:
    """The page with its tables made anew. Every table must have its place there."""
    for name, table in tables(recorded).items():
        begin, end = f"<!-- table: {name} -->\n", "\n<!-- end -->"
        if page.count(begin) != 1:
            raise ValueError(
                f"docs/benchmarks.md has {page.count(begin)} places for the table {name!r}; it needs one"
            )
        before, after = page.split(begin)
        page = before + begin + table + end + after.split(end, 1)[1]
    return page


def charts(recorded: Recorded) -> dict[str, str]:
    """Every picture by its file name."""
    w1 = [(name, recorded.median("w1", name, "cpu_ms_per_child")) for name in PEERS]
    return {
        "bench-peers-w1.svg": bars("CPU per child, ms (less is better)", w1),
        "bench-peers-stored.svg": lines(
            "Bytes stored per model call", _series(recorded, "stored_bytes_per_call")
        ),
        "bench-peers-cpu.svg": lines("CPU per model call, ms", _series(recorded, "cpu_ms_per_call")),
    }


def _series(recorded: Recorded, figure: str) -> Series:
    sizes = recorded.sizes("history")
    found = []
    for system in PEERS:
        values = [(n, recorded.median("history", system, figure, n)) for n in sizes]
        found.append((system, [(n, value) for n, value in values if value is not None]))
    return found


def bars(title: str, values: Sequence[tuple[str, float | None]]) -> str:
    most = max((value for _, value in values if value is not None), default=1.0)
    parts = [_text(10, 22, title, weight="bold")]
    for place, (system, value) in enumerate(values):
        y = _HEAD + place * _LINE
        parts.append(_text(_LABEL - 8, y + 17, name_of(system).replace("`", ""), anchor="end"))
        if value is None:
            parts.append(_text(_LABEL, y + 17, "not measured"))
            continue
        width = max(1.0, _BAR * value / most)
        colour = _OURS if PEERS[system].is_ours else _THEIRS
        parts.append(f'<rect x="{_LABEL}" y="{y + 4}" width="{width:.1f}" height="18" fill="{colour}"/>')
        parts.append(_text(_LABEL + width + 6, y + 17, f"{value:.1f}"))
    return _svg(_HEAD + len(values) * _LINE + 10, title, parts)


def lines(title: str, series: Series) -> str:
    """Both axes are logarithmic: a slope of one is growth with the length of the run."""
    points = [(float(n), max(value, _LOWEST)) for _, values in series for n, value in values]
    x_of = _scale([x for x, _ in points], _LEFT, _WIDTH - _RIGHT)
    y_of = _scale([y for _, y in points], _HEAD + _PLOT_HEIGHT, _HEAD + 10)
    parts = [_text(10, 22, f"{title} (both axes logarithmic)", weight="bold")]
    parts += _axes(sorted({int(x) for x, _ in points}), [y for _, y in points], x_of, y_of)
    names = []
    for colour, (system, values) in zip(_PALETTE, series, strict=True):
        known = [(x_of(n), y_of(max(value, _LOWEST))) for n, value in values]
        if known:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in known)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in known]
            names.append((known[-1][1], system, colour))
    return _svg(_HEAD + _PLOT_HEIGHT + 40, title, parts + _names(names))


def _names(ends: Sequence[tuple[float, str, str]]) -> list[str]:
    """Beside the ends of the lines, moved apart where they would overlap."""
    parts, lowest = [], 0.0
    for y, system, colour in sorted(ends):
        lowest = max(y + 4, lowest + 15)
        parts.append(_text(_WIDTH - _RIGHT + 10, lowest, name_of(system).replace("`", ""), colour=colour))
    return parts


def _axes(
    sizes: Sequence[int],
    values: Sequence[float],
    x_of: Callable[[float], float],
    y_of: Callable[[float], float],
) -> list[str]:
    parts = [_text(x_of(n), _HEAD + _PLOT_HEIGHT + 20, f"{n:,}", anchor="middle") for n in sizes]
    parts.append(_text(_LEFT, _HEAD + _PLOT_HEIGHT + 36, "model calls in one run"))
    low, high = (
        (math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))) if values else (0, 0)
    )
    for power in range(low, high + 1):
        y = y_of(10.0**power)
        if _HEAD <= y <= _HEAD + _PLOT_HEIGHT + 1:
            parts.append(
                f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#d0d7de"/>'
            )
            parts.append(_text(_LEFT - 6, y + 4, f"{10.0**power:,g}", anchor="end"))
    return parts


def _scale(values: Sequence[float], first: float, last: float) -> Callable[[float], float]:
    low = math.log10(min(values)) if values else 0.0
    high = math.log10(max(values)) if values else 1.0
    span = (high - low) or 1.0
    return lambda value: first + (math.log10(value) - low) / span * (last - first)


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal", colour: str = "#1f2328"
) -> str:
    style = f'text-anchor="{anchor}" font-weight="{weight}" fill="{colour}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'


def _svg(height: float, title: str, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" role="img"'
        f' aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="13">'
    )
    return "\n".join([head, '<rect width="100%" height="100%" fill="#ffffff"/>', *parts, "</svg>\n"])


def main() -> None:
    recorded = read()
    PAGE.write_text(filled(PAGE.read_text(), recorded))
    for name, picture in charts(recorded).items():
        Path(PICTURES / name).write_text(picture)


if __name__ == "__main__":
    main()
