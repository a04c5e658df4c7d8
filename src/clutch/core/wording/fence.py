r"""A child's text as data between fences that carry a nonce, and the parser that gets it back.

    <<<data 3f9c…>>>
    | "First line,\n"
    | "second \"line\"."
    <<<end of data 3f9c…>>>

Rules. The text is cut after every newline and each piece is one line: `| ` and a JSON string. Everything
that is not plainly visible is a JSON escape: controls, other line ends, bidi and zero-width characters,
surrogates. So a line of data always begins with `| "` and never is a fence, whatever it says, even if
the nonce was guessed; and between two fences with one nonce there is nothing but data.

Every Python string survives, lone surrogates too: where a high and a low one stand side by side without
being a pair, the text is cut between them, because one JSON string would join them into one character.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from clutch.core.shown import plain_json

_NONCE = re.compile(r"[0-9a-f]{32}")
_OPENING = re.compile(r"<<<data ([0-9a-f]{32})>>>")
_PREFIX = "| "
_CUT = re.compile("(?<=\n)|(?<=[\ud800-\udbff])(?=[\udc00-\udfff])")
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


def unfence(block: str, nonce: str) -> str | None:
    """The text of a block that is one fence with this nonce and nothing else."""
    first, *data, last = block.split("\n") if "\n" in block else (block, block)
    is_whole = first == _opening(nonce) and last == _closing(nonce)
    return _decoded(data) if is_whole and all(line.startswith(_PREFIX) for line in data) else None


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
    return [piece for piece in _CUT.split(text) if piece] or [""]


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
