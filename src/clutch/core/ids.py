"""Names and their grammar: session keys, public ids. What a person types to point at one is in `targets`.

Session keys      agent:<agentId>:main
                  agent:<agentId>:chat:<name>       name: a-z 0-9, then also . _ -, at most 64 in all
                  agent:<agentId>:subagent:<uuid4>  canonical lower-case form only
The shape of a key carries no rights. Anything outside the grammar is rejected, never normalised: two
spellings of one name would be two doors to one room.

Public ids        t_… r_… w_… are the row number in base 32, least significant digit first, so that rows
                  made one after the other differ in their first digits and short prefixes stay unique."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

SHOWN_INPUT_MAX = 80  # an error repeats enough of the input to recognise it, never the whole
ROW_NUMBER_MAX = 2**63 - 1  # what both databases can hold; a larger "id" cannot exist

_AGENT_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_CHAT_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_KEY_SHAPES = "agent:<agentId>:main, agent:<agentId>:chat:<name> or agent:<agentId>:subagent:<uuid4>"


class KeyKind(StrEnum):
    MAIN = "main"
    CHAT = "chat"
    SUBAGENT = "subagent"


@dataclass(frozen=True, slots=True)
class BadKey:
    message: str


@dataclass(frozen=True, slots=True)
class SessionKey:
    agent_id: str
    kind: KeyKind
    name: str = ""  # empty for main, the chat's name, or the child's uuid

    def __post_init__(self) -> None:
        problem = _key_problem(self.agent_id, self.kind, self.name)
        if problem is not None:
            raise ValueError(problem)

    def __str__(self) -> str:
        tail = "" if self.kind is KeyKind.MAIN else f":{self.name}"
        return f"agent:{self.agent_id}:{self.kind}{tail}"


def _shown(text: str) -> str:
    return ascii(text[:SHOWN_INPUT_MAX]) + ("…" if len(text) > SHOWN_INPUT_MAX else "")


def agent_id_problem(text: str) -> str | None:
    """Its form only; whether there is such an agent is another question."""
    if _AGENT_ID.fullmatch(text):
        return None
    return f"agent id {_shown(text)} is not valid: a-z, 0-9, _ and -, at most 64, taken as written"


def _key_problem(agent_id: str, kind: KeyKind, name: str) -> str | None:
    if problem := agent_id_problem(agent_id):
        return problem
    match kind:
        case KeyKind.MAIN:
            return None if name == "" else f"a main session has no name, got {_shown(name)}"
        case KeyKind.CHAT:
            rule = "a-z, 0-9, . _ and -, at most 64"
            return None if _CHAT_NAME.fullmatch(name) else f"chat name {_shown(name)} is not valid: {rule}"
        case KeyKind.SUBAGENT:
            return None if _UUID4.fullmatch(name) else f"{_shown(name)} is not a lower-case uuid4"
        case _:
            assert_never(kind)


def main_key(agent_id: str) -> SessionKey:
    return SessionKey(agent_id, KeyKind.MAIN)


def chat_key(agent_id: str, name: str) -> SessionKey:
    return SessionKey(agent_id, KeyKind.CHAT, name)


def subagent_key(agent_id: str, uuid4: str) -> SessionKey:
    return SessionKey(agent_id, KeyKind.SUBAGENT, uuid4)


def agent_of(session_key: str) -> str:
    """Of a key that was checked when its session was made."""
    return session_key.split(":", 2)[1]


def parse_session_key(text: str, known: Iterable[str] = ("main",)) -> SessionKey | BadKey:
    """`known`: agents that a wrong id may have meant."""
    match text.split(":", 4):
        case ["agent", agent_id, "main"]:
            kind, name = KeyKind.MAIN, ""
        case ["agent", agent_id, "chat", name]:
            kind = KeyKind.CHAT
        case ["agent", agent_id, "subagent", name]:
            kind = KeyKind.SUBAGENT
        case _:
            return BadKey(f"{_shown(text)} is not a session key: {_KEY_SHAPES}")
    problem = _key_problem(agent_id, kind, name)
    if problem is not None:
        return BadKey(problem + agent_hint(text, known) if agent_id_problem(agent_id) else problem)
    return SessionKey(agent_id, kind, name)


def agent_hint(text: str, known: Iterable[str]) -> str:
    """For the end of an error message about what should be a session key: nothing, if it is not the agent's id."""
    match text.split(":", 2):
        case ["agent", agent_id, _] if agent_id not in (names := tuple(known)):
            return hint(agent_id, names)
        case _:
            return ""


_NEAR = (
    0.65  # two letters swapped in a word of three are 0.67; `nope` is no `openai`, though they share three
)


def nearest(text: str, known: Iterable[str]) -> str | None:
    """The configured name a mistyped one most likely meant. Only ever shown, never used in its place."""
    names = {name.casefold(): name for name in sorted(known)}
    typed = text[:SHOWN_INPUT_MAX].strip().casefold()
    close = difflib.get_close_matches(typed, names, n=1, cutoff=_NEAR)
    return names[close[0]] if close else None


def hint(text: str, known: Iterable[str]) -> str:
    """For the end of an error message."""
    suggestion = nearest(text, known)
    return "" if suggestion is None else f"; did you mean {suggestion!r}?"


# --- public ids -------------------------------------------------------------------------------------------

_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford: no i l o u, nothing to misread
_DIGIT_VALUES = {digit: value for value, digit in enumerate(_DIGITS)}
_BEGINNING = re.compile(f"[{_DIGITS}]{{1,12}}")
_ENCODED = re.compile(f"0|[{_DIGITS}]{{0,12}}[{_DIGITS[1:]}]")


def _encode(number: int) -> str:
    if not 0 <= number <= ROW_NUMBER_MAX:
        raise ValueError(f"{number} is not a row number")
    digits = []
    while number:
        digits.append(_DIGITS[number & 31])
        number >>= 5
    return "".join(digits) or "0"


def _decode(text: str) -> int | None:
    if not _ENCODED.fullmatch(text):
        return None
    number = sum(_DIGIT_VALUES[digit] << (5 * place) for place, digit in enumerate(text))
    return number if number <= ROW_NUMBER_MAX else None


def _parse_id(prefix: str, text: str) -> int | None:
    return _decode(text[len(prefix) :]) if text.startswith(prefix) else None


def task_id(number: int) -> str:
    return "t_" + _encode(number)


def run_id(number: int) -> str:
    return "r_" + _encode(number)


def worker_id(number: int) -> str:
    return "w_" + _encode(number)


def question_id(number: int) -> str:
    return "q_" + _encode(number)


def parse_task_id(text: str) -> int | None:
    """None unless `text` is exactly what `task_id` prints for some row."""
    return _parse_id("t_", text)


def parse_run_id(text: str) -> int | None:
    return _parse_id("r_", text)


def low_digits(prefix: str, text: str) -> tuple[int, int] | None:
    """The beginning of an id as arithmetic: such a row number leaves the second when divided by the first."""
    digits = text[len(prefix) :]
    if not text.startswith(prefix) or not _BEGINNING.fullmatch(digits):
        return None
    return 32 ** len(digits), sum(_DIGIT_VALUES[digit] << (5 * place) for place, digit in enumerate(digits))


def parse_question_id(text: str) -> int | None:
    return _parse_id("q_", text)


def message_id(number: int) -> str:
    """Of a message to a channel, by the number of its row in the outbox."""
    return "m_" + _encode(number)


def parse_message_id(text: str) -> int | None:
    return _parse_id("m_", text)


def plan_hash(plan: str) -> str:
    """An approval is bound to the words that were approved."""
    return hashlib.sha256(plan.encode()).hexdigest()[:16]


# --------------------------------------------------------------------------------------------------
# Who descends from whom, when all that is left is what each one says about its parent.
#
# Clutch itself writes parent and depth down when a child is born. Records of other systems may lack both, name a
# parent that is gone, or name each other in a circle.


def untangled(parent_of: Mapping[str, str]) -> dict[str, str]:
    """The same without the links that would close a circle, in the order they are given."""
    kept: dict[str, str] = {}
    for name, parent in parent_of.items():
        if name not in ancestors(parent, kept) and name != parent:
            kept[name] = parent
    return kept


def ancestors(name: str, parent_of: Mapping[str, str]) -> tuple[str, ...]:
    """Nearest first. Ends where a circle would begin again."""
    chain: list[str] = []
    seen = {name}
    while (above := parent_of.get(name)) is not None and above not in seen:
        chain.append(above)
        seen.add(above)
        name = above
    return tuple(chain)


def depth(name: str, parent_of: Mapping[str, str]) -> int:
    """0 for whoever has no parent."""
    return len(ancestors(name, parent_of))
