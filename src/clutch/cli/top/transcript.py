"""The transcript of one task as paragraphs: messages, text of the model, tool calls with duration, thinking folded.

The transcript is read in pieces, each once. What the model writes at this moment comes with the stream and stands at
the end, until the piece that contains it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.text import Text

from clutch.cli import output
from clutch.cli.top.lines import BAD, GOOD, QUIET, STRONG, text_of
from clutch.cli.top.tree import Task
from clutch.core.model import RETRYABLE
from clutch.core.text.format import duration, in_words, main_argument, size, visible

NAMES = {"user": "Message", "task": "Task", "instruction": "Instruction", "system": "Runtime"}
INDENT = 7  #: the time of a message stands before its text
MESSAGES_MAX = 2000  #: of a long transcript, the end


@dataclass(frozen=True, slots=True, eq=False)
class Paragraph:
    """A text that is wrapped at words, below its time. The same object is wrapped only once for a width."""

    text: Text
    mark: str = ""
    indent: int = INDENT


@dataclass(slots=True)
class ShownTranscript:
    task_id: str
    started: float | None
    after: int = 0  #: the number of the last message that was read
    is_open: bool = False  #: thinking and outputs are shown
    is_reading: bool = False
    is_stale: bool = True  #: there may be more to read
    is_loaded: bool = False
    live: str = ""
    _messages: list[Mapping[str, Any]] = field(default_factory=list)
    _made: list[list[Paragraph]] = field(default_factory=list)  #: of each message

    def add(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Add what was read. The message before gets its paragraphs again: it may have made calls that have ended."""
        if not messages:
            return
        self.after, self.live = messages[-1]["seq"], ""
        known = len(self._messages)
        self._messages += messages
        self._make(max(0, known - 1))
        del self._messages[:-MESSAGES_MAX], self._made[:-MESSAGES_MAX]

    def toggle(self) -> None:
        self.is_open = not self.is_open
        self._make(0)

    def _make(self, first: int) -> None:
        self._made[first:] = [self._of(place) for place in range(first, len(self._messages))]

    def paragraphs(self, task: Task | None) -> list[Paragraph]:
        shown = [one for made in self._made for one in made]
        if self.live:
            shown.append(Paragraph(Text(text_of(self.live)), "now"))
        if task is not None and task["status"] in RETRYABLE and self.is_loaded:
            error = Text(f"{task['status']}: {text_of(str(task['error'] or task['doingNow']))}", BAD)
            shown += [Paragraph(error), Paragraph(Text("r runs it again or continues it.", QUIET))]
        if not shown:
            shown.append(
                Paragraph(Text("No messages yet." if self.is_loaded else "Loading", QUIET), indent=0)
            )
        return shown

    def last_text(self) -> str:
        """Return what the model wrote last."""
        answers = (one["body"].get("text", "") for one in reversed(self._messages) if one["kind"] == "answer")
        return self.live or next((text for text in answers if text.strip()), "")

    def _of(self, place: int) -> list[Paragraph]:
        message = self._messages[place]
        mark, body = self._mark(message["at"]), message["body"]
        match message["kind"]:
            case "input":
                title = NAMES.get(body["source"], str(body["source"]))
                return [Paragraph(Text(title, QUIET), mark), Paragraph(Text(text_of(body["text"])))]
            case "answer":
                return self._answer(body, mark, message["at"], self._messages[place + 1 : place + 2])
            case "results":
                return []  # with their calls
            case kind:
                return [Paragraph(Text(f"{kind}: {text_of(str(body.get('text', body)))}", QUIET), mark)]

    def _mark(self, moment: str) -> str:
        at = output.at(moment)
        if at is None or self.started is None:
            return ""
        return "0s" if at - self.started < 1 else duration(at - self.started)

    def _answer(
        self, body: Mapping[str, Any], mark: str, at: str, following: Sequence[Mapping[str, Any]]
    ) -> list[Paragraph]:
        made = [Paragraph(self._thought(str(one.get("text", "")))) for one in body.get("thoughts", ())]
        if body["text"]:
            made.append(Paragraph(Text(text_of(body["text"]))))
        ended = following[0] if following and following[0]["kind"] == "results" else None
        for index, call in enumerate(body["calls"]):
            made += self._call(call, index, at, ended)
        if made:
            made[0] = Paragraph(made[0].text, mark)
        return made

    def _thought(self, text: str) -> Text:
        folded = f"▸ Thinking · {len(text):,} characters · t shows it"
        return Text(f"▾ Thinking\n{text_of(text)}" if self.is_open else folded, QUIET)

    def _call(
        self, call: Mapping[str, Any], index: int, at: str, ended: Mapping[str, Any] | None
    ) -> list[Paragraph]:
        words = in_words(
            visible(call["name"], 60), main_argument(call["args"])
        )  # which has its escapes already
        found = [] if ended is None else [one for one in ended["body"]["results"] if one["index"] == index]
        if ended is None or not found:
            return [Paragraph(Text.assemble((f"● {words}", STRONG), " · no result yet"))]
        (result,) = found[:1]
        took = max(0.0, (output.at(ended["at"]) or 0.0) - (output.at(at) or 0.0))
        passed = f"{took * 1000:.0f} ms" if took < 1 else duration(took)
        mark = ("✗ ", BAD) if result["failed"] else ("✓ ", GOOD)
        about = f" · {passed} · {size(len(result['text'].encode()))}"
        shown = [Paragraph(Text.assemble(mark, words, (about, QUIET)))]
        if self.is_open or result["failed"]:
            shown.append(Paragraph(Text(text_of(result["text"]), QUIET), indent=INDENT + 2))
        return shown
