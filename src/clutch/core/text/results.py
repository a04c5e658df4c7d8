"""What a child's own last text means: silence, a summary, how much of it to pass on, how much to keep.

Only ever applied to the assistant text of the child itself. A token inside a longer text is text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from clutch.core.text.format import plain_json

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
_text = json.encoder.encode_basestring


@dataclass(frozen=True, slots=True)
class Fenced:
    nonce: str
    text: str


def fence(text: str, nonce: str) -> str:
    """`nonce`: 128 fresh random bits as 32 hex digits, the same for all fences of one message."""
    if not _NONCE.fullmatch(nonce):
        raise ValueError("a nonce is 32 lower-case hex digits")
    lines = [_PREFIX + plain_json(_text(piece)) for piece in _pieces(text)]
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
