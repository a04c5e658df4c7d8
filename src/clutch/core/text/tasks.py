"""Tasks as text: a child's last text as others read it, the list of a chat, everything about one task, and a log of
its transcript."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import assert_never

from clutch.core import ids
from clutch.core.fair_share import Priority
from clutch.core.model import DeliveryStatus, Outcome, Phase, Plan, TaskStatus
from clutch.core.status import (
    delivery_status,
    delivery_text,
    doing_now,
    elapsed_s,
    error_text,
    result_text,
    task_status,
)
from clutch.core.text.format import (
    ERROR_MAX,
    KEY_MAX,
    UNKNOWN,
    counted,
    duration,
    money,
    plain_json,
    quoted,
    size,
    tokens,
    visible,
)
from clutch.core.views import History, HistoryEntry, PhaseCounts, Tally, TaskView

# --------------------------------------------------------------------------------------------------
# What a child's own last text means: silence, a summary, how much of it to pass on, how much to keep.
#
# Only ever applied to the assistant text of the child itself. A token inside a longer text is text.

SUMMARY_MARK = "SUMMARY:"
RESULT_BYTES_MIN = 256  # room for the note that says what was cut
_TRUNCATED = re.compile(r"\n\n\[truncated here: (\d{1,12}) bytes in full\]\n\n")
_LINE_END = re.compile(r"\r\n|\n|\r")


class Silence(StrEnum):
    """The whole trimmed reply is one of these words."""

    ANNOUNCE_SKIP = "ANNOUNCE_SKIP"  #: nothing is announced
    NO_REPLY = "NO_REPLY"  #: nothing to say; an earlier real text stands in for it


def silence(reply: str) -> Silence | None:
    word = reply.strip()
    if word == Silence.ANNOUNCE_SKIP:
        return Silence.ANNOUNCE_SKIP
    return Silence.NO_REPLY if word.upper() == Silence.NO_REPLY else None


def summary(text: str, length_max: int = 200) -> str:
    """What follows the last line that starts with `SUMMARY:`, up to a blank line; else the tail."""
    marked = _marked_summary(text)
    if marked:
        return marked if len(marked) <= length_max else marked[: length_max - 1].rstrip() + "…"
    whole = text.strip()
    return whole if len(whole) <= length_max else "…" + whole[1 - length_max :].lstrip()


def _marked_summary(text: str) -> str:
    lines = _LINE_END.split(text)
    marks = [number for number, line in enumerate(lines) if line.startswith(SUMMARY_MARK)]
    if not marks:
        return ""
    paragraph = [lines[marks[-1]].removeprefix(SUMMARY_MARK)]
    for line in lines[marks[-1] + 1 :]:
        if not line.strip():
            break
        paragraph.append(line)
    return "\n".join(paragraph).strip()


class PayloadMode(StrEnum):
    """How much of a result its parent reads."""

    AUTO = "auto"
    SUMMARY = "summary"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Payload:
    text: str
    is_summary: bool  #: there is more to read than this


def payload(
    text: str, mode: PayloadMode, inline_max_chars: int = 4000, summary_max_chars: int = 200
) -> Payload:
    """How much of a result travels in the announce itself."""
    match mode:
        case PayloadMode.FULL:
            return Payload(text, is_summary=False)
        case PayloadMode.AUTO if len(text) <= inline_max_chars:
            return Payload(text, is_summary=False)
        case PayloadMode.AUTO | PayloadMode.SUMMARY:
            short = summary(text, summary_max_chars)
            return Payload(short, is_summary=short != text.strip())
        case _:
            assert_never(mode)


@dataclass(frozen=True, slots=True)
class Frozen:
    """A result by value. `text` is None when the child said nothing; sizes are in UTF-8 bytes."""

    text: str | None
    bytes: int
    original_bytes: int
    truncated: bool


def freeze(text: str, bytes_max: int = 100 * 1024) -> Frozen:
    """Valid UTF-8 of at most `bytes_max` bytes, the note about a cut included.

    Halves of surrogate pairs and NUL characters cannot be stored: halves that belong together are joined, the
    rest becomes U+FFFD.
    The cut is in the middle, because a child's summary stands at the end.
    """
    if bytes_max < RESULT_BYTES_MIN:
        raise ValueError(f"a result needs room for at least {RESULT_BYTES_MIN} bytes, got {bytes_max}")
    if not text.strip() or silence(text) is not None:
        return Frozen(None, 0, 0, truncated=False)
    clean = storable(text)
    encoded = clean.encode()
    if len(encoded) <= bytes_max:
        return Frozen(clean, len(encoded), len(encoded), truncated=False)
    shortened = _cut_middle(encoded, bytes_max)
    return Frozen(shortened, len(shortened.encode()), len(encoded), truncated=True)


def storable(text: str) -> str:
    """Halves of surrogate pairs that belong together are joined; of a lone one, and of a NUL, a mark is left."""
    if text.isascii():
        return text.replace("\0", "\ufffd")
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").replace("\0", "\ufffd")


def cut_from(text: str) -> int | None:
    """How long a result was before `freeze` cut it, in bytes; None when it is whole."""
    noted = _TRUNCATED.search(text)
    return int(noted[1]) if noted else None


def _cut_middle(encoded: bytes, bytes_max: int) -> str:
    note = f"\n\n[truncated here: {len(encoded)} bytes in full]\n\n"
    room = bytes_max - len(note.encode())
    head = encoded[: room * 3 // 4]
    tail = encoded[len(encoded) - room // 4 :]
    # The whole is valid, so only a character split by a cut can be ignored here.
    return head.decode(errors="ignore") + note + tail.decode(errors="ignore")


# --------------------------------------------------------------------------------------------------
# A child's text as data between fences that carry a nonce, and the parser that gets it back.
#
#     <<<data 3f9c…>>>
#     | "First line,\n"
#     | "second \"line\"."
#     <<<end of data 3f9c…>>>
#
# Rules. The text is cut after every newline and each piece is one line: `| ` and a JSON string. Everything
# that is not plainly visible is a JSON escape: controls, other line ends, bidi and zero-width characters,
# surrogates. So a line of data always begins with `| "` and never is a fence, whatever it says, even if
# the nonce was guessed; and between two fences with one nonce there is nothing but data.
#
# Every Python string survives, lone surrogates too: where a high and a low one stand side by side without
# being a pair, the text is cut between them, because one JSON string would join them into one character.

_NONCE = re.compile(r"[0-9a-f]{32}")
_OPENING = re.compile(r"<<<data ([0-9a-f]{32})>>>")
_PREFIX = "| "
_PIECES = re.compile("(?<=\n)|(?<=[\ud800-\udbff])(?=[\udc00-\udfff])")
# What `json.dumps` does with a text, without making an encoder for each.
_as_json_text = json.encoder.encode_basestring


@dataclass(frozen=True, slots=True)
class Fenced:
    nonce: str
    text: str


def fence(text: str, nonce: str) -> str:
    """`nonce`: 128 fresh random bits as 32 hex digits, the same for all fences of one message."""
    if not _NONCE.fullmatch(nonce):
        raise ValueError("a nonce is 32 lower-case hex digits")
    lines = [_PREFIX + plain_json(_as_json_text(piece)) for piece in _pieces(text)]
    return "\n".join([_opening(nonce), *lines, _closing(nonce)])


def parse_fences(message: str, nonce: str | None = None) -> list[Fenced]:
    """All well-formed fences of a message in order; only those with `nonce` if one is given.

    A block that breaks a rule is no fence; what follows its opening line is looked at afresh.
    """
    lines = message.split("\n")
    found: list[Fenced] = []
    at = 0
    while at < len(lines):
        opened = _OPENING.fullmatch(lines[at])
        at += 1
        if opened is None:
            continue
        data = list(_data_lines(lines, at))
        text = _decoded(data)
        at += len(data)
        is_closed = at < len(lines) and lines[at] == _closing(opened[1])
        if is_closed and text is not None and nonce in (None, opened[1]):
            found.append(Fenced(opened[1], text))
    return found


def _opening(nonce: str) -> str:
    return f"<<<data {nonce}>>>"


def _closing(nonce: str) -> str:
    return f"<<<end of data {nonce}>>>"


def _pieces(text: str) -> list[str]:
    if "\n" not in text and text.isascii():
        return [text]
    return [piece for piece in _PIECES.split(text) if piece] or [""]


def _data_lines(lines: list[str], start: int) -> Iterator[str]:
    for at in range(start, len(lines)):
        if not lines[at].startswith(_PREFIX):
            return
        yield lines[at]


def _decoded(data: list[str]) -> str | None:
    if not data:
        return None
    try:
        pieces = [json.loads(line.removeprefix(_PREFIX)) for line in data]
    except (ValueError, RecursionError):  # a stranger's look-alike may hold any JSON, also very deep
        return None
    return "".join(pieces) if all(isinstance(piece, str) for piece in pieces) else None


LIST_LABEL_MAX = 72
LOG_TEXT_MAX = 400  # of one line of a log
NOTHING = "No subagents."
NO_TIME = "-"  #: in the place of a time that there is none of


def plan_tag(phase: Phase, plan: str) -> str:
    if phase is Phase.AWAITING_APPROVAL:
        return "[PLAN:AWAITING APPROVAL]"
    return {Plan.APPROVED.value: "[PLAN:APPROVED]", Plan.DRAFTING.value: "[PLAN]"}.get(plan, "")


def headline(view: TaskView) -> str:
    """`t_7f3a "AI research": done, undelivered`"""
    status = task_status(view).value
    is_lost = delivery_status(view.delivery) is DeliveryStatus.UNDELIVERED
    named = f"{ids.task_id(view.task_id)} {quoted(view.label)}"
    return f"{named}: {status}, {DeliveryStatus.UNDELIVERED}" if is_lost else f"{named}: {status}"


def elapsed_text(view: TaskView) -> str:
    elapsed = elapsed_s(view)
    return NO_TIME if elapsed is None else duration(elapsed)


def summary_text(counts: PhaseCounts) -> str:
    """`3 running · 1 waiting · 2 in the inbox · 12 done · $0.42`; counts of zero are left out."""
    named = (
        (counts.running, TaskStatus.RUNNING), (counts.queued, TaskStatus.QUEUED), (counts.waiting, TaskStatus.WAITING),
        (counts.needs_you, "in the inbox"), (counts.done, TaskStatus.DONE), (counts.failed, TaskStatus.FAILED),
        (counts.timeout, TaskStatus.TIMED_OUT), (counts.killed, TaskStatus.KILLED), (counts.lost, TaskStatus.LOST),
        (counts.delivering, DeliveryStatus.DELIVERING), (counts.undelivered, DeliveryStatus.UNDELIVERED),
        (counts.unsent, "unsent"),
    )  # fmt: skip
    parts = [f"{count} {name}" for count, name in named if count]
    if counts.usd is not None:
        parts.append(money(counts.usd))
    return " · ".join(parts) or "no tasks"


# ---- the list ------------------------------------------------------------------------------------------


def list_text(views: Sequence[TaskView], title: str = "Subagents (this session)") -> str:
    """Numbered from 1, in the given order; the caller stores the numbers."""
    if not views:
        return NOTHING
    active = sum(view.outcome is None for view in views)
    words = [task_status(view).value for view in views]
    width = max(map(len, words))
    head = f"{title}   Active: {active} · Done: {len(views) - active}"
    lines = (
        f"{number}) {' · '.join((word.ljust(width), *_parts(view)))}"
        for number, (word, view) in enumerate(zip(words, views, strict=True), start=1)
    )
    return "\n".join((head, *lines))


def _parts(view: TaskView) -> Iterator[str]:
    tag = "" if view.plan is None else plan_tag(view.phase, view.plan.state)
    yield f"{visible(view.label, LIST_LABEL_MAX)} {tag}".rstrip()
    yield elapsed_text(view)
    if view.outcome is None and view.own.tokens:
        yield f"{tokens(view.own.tokens)} tok"
    yield doing_now(view).at(view.at)
    if view.outcome not in (None, Outcome.OK):
        yield result_text(view)
    yield ids.task_id(view.task_id)


# ---- all of one ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Contract:
    """The parameters of the spawn and figures of the result, beside the view of a task."""

    task: str
    requester: str  #: label or key of the parent
    thinking: str | None = None
    mode: str = "run"
    cleanup: str = "keep"
    workspace: str | None = None
    queued_at: float | None = None
    archived_at: float | None = None
    archive_at: float | None = None
    result_bytes: int | None = None
    result_sha: str | None = None
    attachments: tuple[tuple[str, int], ...] = ()
    context: str = "isolated"
    expects_completion: bool = True
    notify_parent: bool = True


def info_text(view: TaskView, contract: Contract) -> str:
    return "\n".join(f"{name}: {value}" for name, value in _facts(view, contract))


def _facts(view: TaskView, contract: Contract) -> Iterator[tuple[str, str]]:
    yield "Status", task_status(view).value
    yield "Now", doing_now(view).at(view.at)
    yield "Phase", f"{view.phase} ({visible(view.reason, ERROR_MAX)})" if view.reason else str(view.phase)
    yield "Label", visible(view.label, KEY_MAX)
    yield "Task", visible(contract.task, 1000)
    run = UNKNOWN if view.run_id is None else ids.run_id(view.run_id)
    yield (
        "Ids",
        f"task {ids.task_id(view.task_id)}, run {run}, generation {view.generation}, attempt {view.attempt}",
    )
    yield "Session", visible(view.session_key or "(deleted)", KEY_MAX)
    yield "Parent", visible(contract.requester, KEY_MAX)
    yield "Depth", str(view.depth)
    yield "Role", view.role or UNKNOWN
    yield "Model", f"asked {_text(view.model_requested)}, used {_text(view.model)}"
    yield "Thinking", _text(contract.thinking)
    if view.share is not None:
        yield "Share", view.share
    if view.priority is not Priority.NORMAL:
        yield "Priority", view.priority
    yield "Mode", contract.mode
    yield "Cleanup", contract.cleanup
    yield "Workspace", _text(contract.workspace)
    yield "Created", _moment(view.created_at)
    yield "Queued", _moment(contract.queued_at)
    yield "Started", _moment(view.started_at)
    yield "Ended", _moment(view.ended_at)
    yield (
        "Archive",
        f"archived {_moment(contract.archived_at)}" if contract.archived_at else _moment(contract.archive_at),
    )
    yield "Elapsed", elapsed_text(view)
    yield "Tokens", f"{_used(view.own)} (subtree {_used(view.subtree)})"
    yield "Cost", f"{_cost(view.own)} (subtree {_cost(view.subtree)})"
    delivery = view.delivery
    again = "" if delivery.next_at is None else f", next attempt {_moment(delivery.next_at)}"
    tried = f", {counted(delivery.attempts, 'attempt')}{again}" if view.outcome else ""
    yield "Delivery", f"{delivery_text(delivery) or 'none yet'}{tried}"
    error = f": {error_text(view.error)}" if view.error else ""
    yield "Outcome", f"{view.outcome}{error}" if view.outcome else "none yet"
    yield "Result", _result(view, contract)
    yield (
        "Attachments",
        ", ".join(f"{visible(name, KEY_MAX)} ({size(count)})" for name, count in contract.attachments)
        or "none",
    )
    yield "Plan", plan_tag(view.phase, view.plan.state if view.plan else Plan.NONE.value) or "none"


def _text(value: str | None) -> str:
    return UNKNOWN if not value else visible(value, KEY_MAX)


def _moment(at: float | None) -> str:
    return UNKNOWN if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _used(tally: Tally) -> str:
    if tally.calls and not tally.tokens:
        return f"{UNKNOWN}, {counted(tally.calls, 'call')}"
    parts = f"in {tokens(tally.input)} / out {tokens(tally.output)}"
    return f"{tokens(tally.tokens)}, {parts}, {counted(tally.calls, 'call')}"


def _cost(tally: Tally) -> str:
    if tally.usd is None:
        return UNKNOWN
    return money(Decimal(tally.usd)) if not tally.unpriced else f"at least {money(tally.usd)}"


def _result(view: TaskView, contract: Contract) -> str:
    if contract.result_bytes is None:
        return "none"
    sha = (contract.result_sha or "")[:12]
    return f"{size(contract.result_bytes)}, sha256 {sha}…, captured {_moment(view.ended_at)}"


# ---- a log ---------------------------------------------------------------------------------------------


def log_text(shown: History) -> str:
    if not shown.entries:
        return "The transcript is empty."
    lines = [line for said in shown.entries for line in _log_lines(said)]
    if shown.before is not None:
        lines.insert(0, f"(older entries before #{shown.before})")
    return "\n".join(lines)


def _log_lines(said: HistoryEntry) -> Iterator[str]:
    at = f"#{said.seq} {datetime.fromtimestamp(said.at, UTC):%H:%M:%S}"
    who = {"input": said.source or "input", "answer": "assistant", "results": said.source}.get(
        said.kind, said.kind
    )
    if said.text.strip():
        failed = " failed" if said.is_failed else ""
        yield f"{at} {visible(who, KEY_MAX)}{failed}: {visible(said.text.strip(), LOG_TEXT_MAX)}"
    for call in said.calls:
        yield f"{at} assistant calls {visible(call, LOG_TEXT_MAX)}"
