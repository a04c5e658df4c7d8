"""A transcript as others may read it: bounded, secrets taken out, the newest kept.

A text is looked through for secrets before it is cut, so that a cut never makes one unrecognisable.
Whatever is left out is said: `is_cut` a text, `is_dropped` whole entries, `before` where to ask on. A long text is
read in pieces, each from where the last one ended; so is the result of a task, also when its transcript is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from clutch.core import messages
from clutch.core.checks import check
from clutch.core.messages import Answer, Input, Results, Summary
from clutch.core.redaction import redact
from clutch.core.shown import size
from clutch.core.wording.calls import in_words, main_argument

OVERHEAD = 120  # bytes of an entry beside its text: number, time, names
RESULTS_MAX = 20  # of one answer
RESULT = "result"  # the kind of an entry that is no message: what a task ended with


@dataclass(frozen=True, slots=True)
class Reading:
    """`history.*`: how much of a transcript one look shows."""

    bytes_max: int = 80 * 1024  #: more would fill the reader's own context
    text_chars_max: int = 4000  #: of one text
    entry_bytes_max: int = 256 * 1024  #: a longer entry is not even loaded
    limit: int = 50  #: entries, unless asked for more
    limit_max: int = 200  #: entries at most
    log: int = 20  #: lines of a log, unless asked for more
    messages_max: int = 20  #: of each session in a list

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class Stored:
    """An entry as it is stored; without its body when that is too long to be worth it."""

    seq: int
    at: float
    kind: str
    length: int
    body: str | None


@dataclass(frozen=True, slots=True)
class Said:
    """`source`: who put it to the model, or the tool that gave it. `calls`: tools the answer asked for, in words."""

    seq: int
    at: float
    kind: str
    text: str
    source: str = ""
    calls: tuple[str, ...] = ()
    is_cut: bool = False
    is_redacted: bool = False
    is_failed: bool = False
    next_offset: int | None = None  #: where the rest of a text that was cut begins

    @property
    def bytes(self) -> int:
        return OVERHEAD + len(self.text.encode()) + sum(len(call.encode()) for call in self.calls)


@dataclass(frozen=True, slots=True)
class History:
    entries: tuple[Said, ...] = ()  #: oldest first
    before: int | None = None  #: older ones are found before this number; None = there are none
    is_cut: bool = False
    is_redacted: bool = False
    is_dropped: bool = False


def history(
    stored: Sequence[Stored], rules: Reading, *, with_tools: bool, is_more: bool, offset: int = 0
) -> History:
    """Of entries in order; `is_more`: there are older ones. `offset`: where to begin in each text."""
    newest_first = (tuple(_said(entry, rules, with_tools, offset)) for entry in reversed(stored))
    kept, is_dropped = _newest(newest_first, rules.bytes_max)
    oldest = kept[0].seq if kept else stored[0].seq if stored else None
    return History(
        tuple(kept),
        oldest if is_more or is_dropped else None,
        any(one.is_cut for one in kept),
        any(one.is_redacted for one in kept),
        is_dropped,
    )


def of_result(text: str, at: float, rules: Reading, offset: int = 0) -> History:
    said = _piece(Said(0, at, RESULT, ""), text, rules, offset)
    return History((said,), None, said.is_cut, said.is_redacted)


def _newest(entries: Iterable[tuple[Said, ...]], bytes_max: int) -> tuple[list[Said], bool]:
    """What there is room for, and whether that is not all. Whole answers' results stay together, so that a page never
    begins in the middle of one. What is older is not even looked through: that is slow."""
    kept: list[Said] = []
    room = bytes_max
    for entry in entries:
        room -= sum(one.bytes for one in entry)
        if room < 0 and kept and entry:
            return kept, True
        kept = [*entry, *kept]
    return kept, False


def _said(entry: Stored, rules: Reading, with_tools: bool, offset: int) -> Iterator[Said]:
    blank = Said(entry.seq, entry.at, entry.kind, "")
    if entry.body is None:
        yield replace(
            blank, text=f"[{entry.kind} of {size(entry.length)}: too long to be shown]", is_cut=True
        )
        return
    match messages.load(entry.kind, entry.body):
        case Input(text, source):
            yield _piece(replace(blank, source=source), text, rules, offset)
        case Answer() as answer:
            calls = tuple(_call(call.name, call.args) for call in answer.calls) if with_tools else ()
            if answer.text.strip() or calls:
                yield _piece(replace(blank, calls=calls), answer.text, rules, offset)
        case Results(results):
            yield from _results(blank, results, rules, offset) if with_tools else ()
        case Summary(text):
            yield _piece(blank, text, rules, offset)
        case never:
            assert_never(never)


def _call(name: str, args: object) -> str:
    return in_words(name, redact(main_argument(args if isinstance(args, dict) else {})).text)


def _results(blank: Said, results: Sequence[messages.Result], rules: Reading, offset: int) -> Iterator[Said]:
    shown = results[:RESULTS_MAX]
    for result in shown:
        one = replace(blank, source=result.name, is_failed=result.failed)
        yield _piece(one, result.text, rules, offset, parts=len(shown) + 1)
    if len(results) > len(shown):
        yield replace(blank, text=f"[and {len(results) - len(shown)} results more]", is_cut=True)


def _piece(blank: Said, text: str, rules: Reading, offset: int, parts: int = 1) -> Said:
    """`parts`: that share the room of one look. `offset`: in the text without its secrets."""
    shown = redact(text)
    room = rules.bytes_max // parts - OVERHEAD
    cut = shown.text[offset : offset + rules.text_chars_max].encode()[:room].decode(errors="ignore")
    end = offset + len(cut)
    if end >= len(shown.text):
        return replace(blank, text=cut, is_redacted=shown.is_any)
    where = "result=true" if blank.kind == RESULT else f"before={blank.seq + 1}"
    note = f"… [{len(text)} characters in all; go on with {where} offset={end}]"
    return replace(blank, text=cut + note, is_cut=True, is_redacted=shown.is_any, next_offset=end)
