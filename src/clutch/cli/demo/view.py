"""What a person sees of a demo while it runs: a live tree on a terminal, else one line per thing that happened.

Words only, on stderr; the figures are the report's. Draws what it is given and asks nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TextIO

from clutch.core import keys, wording
from clutch.core.model import Phase
from clutch.core.policy import Life
from clutch.protocol.queries import TimelineRow, TreeRow

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.tree import Tree

SUMMARY_CHARS_MAX = 160
STALLED_S = Life().stalled_s
_WORDS = {"announcing": "reported", "cleanup_pending": "told", "announce_deferred": "waits for its children"}


@dataclass(frozen=True, slots=True)
class Picture:
    at: float
    tree: Sequence[TreeRow]
    timeline: Sequence[TimelineRow]
    results: Mapping[int, str]  #: by task, of those that have ended


class View(Protocol):
    def show(self, picture: Picture) -> None: ...

    def say(self, text: str) -> None: ...

    def close(self) -> None: ...


class Silent:
    def show(self, picture: Picture) -> None: ...

    def say(self, text: str) -> None: ...

    def close(self) -> None: ...


def view_on(stream: TextIO) -> View:
    return LiveTree(stream) if stream.isatty() else Lines(stream)


def news(picture: Picture, seen: int) -> Iterator[str]:
    """The timeline lines after the first `seen`, in words; steps that mean nothing to a person are left out."""
    labels = {row.task_id: row.label for row in picture.tree}
    for line in picture.timeline[seen:]:
        if text := _happened(line, picture.results.get(line.task_id, "")):
            yield f"{labels.get(line.task_id, '')} ({keys.task_id(line.task_id)}): {text}"


def _happened(line: TimelineRow, result: str) -> str | None:
    if line.from_phase == line.to_phase:
        return line.reason
    match line.to_phase:
        case "ending" | "completed":
            return None
        case "queued" if line.from_phase == "spawning":
            return "accepted"
        case "announcing":
            return f"reports {line.reason}: {_summary(result)}"
        case "cleanup_pending":
            return f"was heard ({line.reason})"
        case phase:
            return f"{phase} ({line.reason})"


def _summary(result: str) -> str:
    return wording.visible(" ".join(wording.summary(result).split()), SUMMARY_CHARS_MAX)


class Lines:
    def __init__(self, stream: TextIO) -> None:
        self._stream, self._seen = stream, 0
        self._started_at: float | None = None

    def show(self, picture: Picture) -> None:
        if self._started_at is None:
            self._started_at = picture.at
        for text in news(picture, self._seen):
            self.say(f"{picture.at - self._started_at:5.1f}s  {text}")
        self._seen = len(picture.timeline)

    def say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def close(self) -> None: ...


class LiveTree:
    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=stream, highlight=False, markup=False, emoji=False)
        self._live = Live(console=self._console, auto_refresh=False)
        self._live.start()
        self._seen = 0

    def show(self, picture: Picture) -> None:
        for text in news(picture, self._seen):
            if "): reports " in text:  # the rest is in the tree
                self.say(text)
        self._seen = len(picture.timeline)
        self._live.update(drawn(picture), refresh=True)

    def say(self, text: str) -> None:
        self._console.print(text)

    def close(self) -> None:
        self._live.stop()


def drawn(picture: Picture) -> RenderableType:
    from rich.text import Text
    from rich.tree import Tree

    top = Tree(Text("main agent", style="bold"))
    nodes: dict[int, Tree] = {}
    for row in picture.tree:
        parent = nodes.get(row.requester_id, top)
        nodes[row.task_id] = parent.add(Text(one_line(row, picture), style=_style(row)))
    return top


def one_line(row: TreeRow, picture: Picture) -> str:
    """`phase · label · age · tokens · tool · resumed`"""
    end = picture.at if row.ended_at is None else row.ended_at
    resumed = [
        line.reason
        for line in picture.timeline
        if line.task_id == row.task_id and line.reason.startswith("resumed @")
    ]
    parts = [
        _phase(row, picture.at),
        row.label,
        wording.duration(max(0.0, end - row.created_at)),
        f"{wording.tokens(row.tokens)} tok",
        row.current_tool or "",
        resumed[-1] if resumed else "",
    ]
    return " · ".join(part for part in parts if part)


def _phase(row: TreeRow, at: float) -> str:
    if row.phase in ("completed", "completed_giveup"):
        return f"{'done' if row.outcome == 'ok' else row.outcome} {row.delivery}"
    if row.phase in _WORDS:
        return _WORDS[row.phase]
    return wording.state_words(
        Phase(row.phase),
        row.reason,
        at=at,
        parked_until=row.parked_until,
        moved_at=row.progress_at,
        stalled_s=STALLED_S,
    )


def _style(row: TreeRow) -> str:
    if row.outcome not in (None, "ok"):
        return "red"
    return {"running": "bold cyan", "completed": "green", "announcing": "yellow", "queued": "dim"}.get(
        row.phase, ""
    )
