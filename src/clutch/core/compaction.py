"""What of a transcript a model is shown: all of it, or a summary of the beginning and the rest as it was.

    stored   I0 A1 R1 I2 A3 R3 A4 R4 S(upto R3) A5 R5
    shown    I0 S  I2          A4 R4            A5 R5

A summary hides what it covers but for two messages that are repeated word for word: the task, which is the
session's contract, and the last message of a user or parent, if nothing of the kind comes later. It is cut
before an input or an answer, never between an answer and its results, and never into what the model has not
answered yet. The stored transcript only grows; a second summary is made of what the first one shows.

Entries are numbered from `base` + 1 on: `base` is where the present generation of a session begins.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import assert_never, cast

from clutch.core.messages import Answer, Entry, Input, Message, Results, Summary, Usage, dump
from clutch.core.model import LetterKind
from clutch.core.text import prompts
from clutch.core.validation import check

BYTES_PER_TOKEN = 4  # of English text and of JSON; other texts are corrected by what the provider counts
FREED_BYTES_MIN = 2000  # a summary that saves less is not worth a call of the model
RECORD_CHARS_MAX = 8000  # of one text, in what is summarised
#: Words that bind the session; what children and the runtime say is news.
BINDING = frozenset({LetterKind.TASK, LetterKind.USER, LetterKind.INSTRUCTION, LetterKind.DECISION})


@dataclass(frozen=True, slots=True)
class ContextLimits:
    """How much a model is shown of everything that could be shown."""

    window_tokens: int = 128_000  #: Context window of models whose size is not known.
    compact_at: float = 0.8  #: Share of the context window at which the transcript is summarised.
    keep_tokens: int = 20_000  #: Newest part of the transcript that a summary leaves unchanged.
    summary_bytes_max: int = 16_000  #: Size of such a summary.
    #: Characters of one tool result in the prompt; a longer one goes to a file.
    result_chars_max: int = 32_000
    document_bytes_max: int = 16_000  #: Size of AGENTS.md in the prompt. It is sent with every request.
    active_children_max: int = 16  #: Active children listed in the prompt of their parent.
    recent_children_max: int = 8  #: Ended children listed in the prompt of their parent.
    recent_children_s: float = 1800.0  #: Ended children are listed for this time.
    system_events_max: int = 20  #: System events shown in one turn.
    fork_bytes_max: int = 200_000  #: Size of a conversation that a spawn with context "fork" may copy.

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class Cut:
    """What a summary is to cover and how long it may be."""

    upto: int
    old: tuple[Message, ...]
    bytes_max: int


def view(transcript: Sequence[Entry], base: int) -> Sequence[Message]:
    """Without a summary the very list that was given."""
    at = _last_summary(transcript)
    if at is None:
        return cast("Sequence[Message]", transcript)
    summary = cast("Summary", transcript[at])
    first = summary.upto - base
    task, order = _repeated(transcript, first)
    return [*task, Input(prompts.compacted(summary.text), "summary"), *order, *_plain(transcript[first:])]


def _last_summary(transcript: Sequence[Entry]) -> int | None:
    kinds = list(map(type, reversed(transcript)))  # no loop of Python's own: it is asked for at every step
    return len(kinds) - 1 - kinds.index(Summary) if Summary in kinds else None


def _plain(entries: Sequence[Entry]) -> list[Message]:
    return [entry for entry in entries if not isinstance(entry, Summary)]


def _repeated(transcript: Sequence[Entry], first: int) -> tuple[list[Input], list[Input]]:
    """The task and the last instruction, each only if the summary hides it."""
    spoken = [(at, said) for at, said in enumerate(transcript) if isinstance(said, Input)]
    tasks = [(at, said) for at, said in spoken if said.source == LetterKind.TASK][-1:]
    orders = [(at, said) for at, said in spoken if said.source in BINDING][-1:]
    task = [said for at, said in tasks if at < first]
    order = [said for at, said in orders if at < first and (at, said) not in tasks]
    return task, order


# ---- how large it is -----------------------------------------------------------------------------------


def size(messages: Sequence[Message]) -> int:
    return sum(_bytes(message) for message in messages)


def _bytes(message: Message) -> int:
    text = dump(message)
    return len(text) if text.isascii() else len(text.encode())


def estimate_tokens(transcript: Sequence[Entry], base: int, overhead_bytes: int = 0) -> int:
    """The provider counted everything up to its last answer; only what came since is guessed.

    `overhead_bytes`: the system prompt and the tools, as long as no provider has counted them. A count from before
    the last summary says nothing about what is shown now."""
    for at in reversed(range(len(transcript))):
        match transcript[at]:
            case Summary():
                break
            case Answer(usage=usage) if usage.input:
                since = size(_plain(transcript[at + 1 :]))
                return usage.input + usage.output + since // BYTES_PER_TOKEN
            case _:
                continue
    return (overhead_bytes + size(view(transcript, base))) // BYTES_PER_TOKEN


# ---- where to cut ----------------------------------------------------------------------------------------


def cut(
    transcript: Sequence[Entry],
    base: int,
    rules: ContextLimits,
    *,
    overhead_bytes: int = 0,
    is_forced: bool = False,
) -> Cut | None:
    """None: there is room, or nothing that could go. `is_forced`: the provider said it is too long already."""
    total = estimate_tokens(transcript, base, overhead_bytes)
    if not is_forced and total <= rules.window_tokens * rules.compact_at:
        return None
    first = _place(transcript, min(rules.keep_tokens, rules.window_tokens // 4, total // 4))
    shown = view(transcript, base)
    upto = base + first
    hidden = view([*transcript, Summary("", upto)], base)
    freed = size(shown) - size(hidden)
    if freed < FREED_BYTES_MIN:
        return None
    old = shown[: len(shown) - len(_plain(transcript[first:]))]
    # Marking lines and escaping can make a text four times as long; a fifth of what goes is shorter even then.
    return Cut(upto, tuple(old), min(rules.summary_bytes_max, freed // 5))


def _place(transcript: Sequence[Entry], keep_tokens: int) -> int:
    """The first entry that stays: as early as the size allows, but no later than what is unanswered."""
    latest = _unanswered(transcript)
    room = keep_tokens * BYTES_PER_TOKEN
    chosen = latest
    for at in reversed(range(len(transcript))):
        entry = transcript[at]
        if not isinstance(entry, Summary):
            room -= _bytes(entry)
        if room < 0:
            break
        if at <= latest and isinstance(entry, Input | Answer):
            chosen = at
    return chosen


def _unanswered(transcript: Sequence[Entry]) -> int:
    """Where the part begins that the model has yet to answer; results stay with the answer that asked for them."""
    answered = next(
        (at for at in reversed(range(len(transcript))) if isinstance(transcript[at], Answer)), None
    )
    if answered is None:
        return 0
    last = transcript[answered]
    return answered if isinstance(last, Answer) and last.calls else answered + 1


def record(old: Sequence[Message]) -> str:
    """The part to be summarised as one text, for a model that has no tools. Very long pieces lose their middle."""
    return "\n\n".join(line for message in old for line in _recorded(message))


def _recorded(message: Message) -> Iterator[str]:
    match message:
        case Input(text, source):
            yield f"[{source}]\n{_short(text)}"
        case Answer(text, calls):
            if text:
                yield f"[agent]\n{_short(text)}"
            for call in calls:
                yield f"[agent calls {call.name}]\n{_short(json.dumps(dict(call.args), ensure_ascii=False))}"
        case Results(results):
            for result in results:
                yield f"[{result.name} {'failed' if result.failed else 'answered'}]\n{_short(result.text)}"
        case _:
            assert_never(message)


def _short(text: str) -> str:
    return text if len(text) <= RECORD_CHARS_MAX else "\n(…)\n".join(ends(text, RECORD_CHARS_MAX))


def ends(text: str, chars_max: int) -> tuple[str, str]:
    """The beginning tells what it is and the end how it came out; the beginning gets three quarters."""
    tail = chars_max // 4
    return text[: chars_max - tail], text[len(text) - tail :]


def summary(cut: Cut, text: str) -> Summary:
    """Plain lines, never longer than what they replace, whatever the model wrote."""
    plain = "".join(letter if letter == "\n" or letter.isprintable() else " " for letter in text.strip())
    return Summary(plain.encode()[: cut.bytes_max].decode("utf-8", "ignore"), cut.upto)


# ---- a copy for a child ------------------------------------------------------------------------------------


def forked(transcript: Sequence[Entry], base: int, bytes_max: int) -> list[Message] | None:
    """What the caller has before its eyes, up to its last complete step. None: too long to be copied.

    The child has not spent what the answers cost, and no provider has counted them beside its own system prompt."""
    shown = list(view(transcript, base))
    if shown and isinstance(shown[-1], Answer) and shown[-1].calls:
        shown.pop()  # the answer that spawns: its calls have no results yet
    if not shown:
        return []
    copied = [replace(said, usage=Usage()) if isinstance(said, Answer) else said for said in shown]
    copied.append(Input(prompts.FORKED, LetterKind.NOTE))
    return copied if size(copied) <= bytes_max else None
