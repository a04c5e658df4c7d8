"""Names and their grammar: session keys, public ids, and what a user may type to point at one.

Session keys      agent:<agentId>:main
                  agent:<agentId>:chat:<name>       name: a-z 0-9, then also . _ -, at most 64 in all
                  agent:<agentId>:subagent:<uuid4>  canonical lower-case form only
The shape of a key carries no rights. Anything outside the grammar is rejected, never normalised: two
spellings of one name would be two ways to one session.

Public ids        t_… r_… w_… are the row number in base 32, least significant digit first, so that rows
                  made one after the other differ in their first digits and short prefixes stay unique."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
# Clutch itself writes parent and depth when a child is created. Records of other systems may lack both, name a
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
    """0 for a session without a parent."""
    return len(ancestors(name, parent_of))


CANDIDATES_MAX = 10


# --- targets: what was typed ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FullKey:
    key: SessionKey


@dataclass(frozen=True, slots=True)
class TaskRef:
    id: int


@dataclass(frozen=True, slots=True)
class RunRef:
    id: int


@dataclass(frozen=True, slots=True)
class Numbered:
    number: int
    text: str  # as typed: `007` may also be the beginning of a label


class Keyword(StrEnum):
    """What depends on who types it."""

    LAST = "last"
    MAIN = "main"
    CURRENT = "current"


@dataclass(frozen=True, slots=True)
class TargetText:
    """The beginning of an id or key, a label, or the beginning of a label."""

    text: str


Target = FullKey | TaskRef | RunRef | Numbered | Keyword | TargetText

# No database stores these, so no name has them: NUL, and half a surrogate pair.
_NOBODYS = re.compile("[\x00\ud800-\udfff]")

# A longer number was never shown and is a name; int() of a very long one would raise.
_NUMBERED = re.compile(r"#?([0-9]{1,9})")


def parse_target(text: str) -> Target:
    text = text.strip()
    key = parse_session_key(text)
    if isinstance(key, SessionKey):
        return FullKey(key)
    if (task := parse_task_id(text)) is not None:
        return TaskRef(task)
    if (run := parse_run_id(text)) is not None:
        return RunRef(run)
    if numbered := _NUMBERED.fullmatch(text):
        return Numbered(int(numbered[1]), text)
    return Keyword(text) if text in set(Keyword) else TargetText(text)


# --- targets: what was meant ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Candidate:
    """One session the caller may see. A main session has neither task nor label."""

    session_key: str
    task_id: int | None = None
    run_id: int | None = None
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Viewpoint:
    """What the words that depend on the caller mean for this caller."""

    numbering: Mapping[int, int] = field(default_factory=dict)  # number last shown -> task
    last_task_id: int | None = None
    main_key: str | None = None
    current_key: str | None = None


@dataclass(frozen=True, slots=True)
class Unknown:
    text: str
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class Ambiguous:
    text: str
    candidates: tuple[Candidate, ...]
    total: int


Found = Candidate | Unknown | Ambiguous
_Test = Callable[[Candidate], bool]


def resolve(target: Target, candidates: Sequence[Candidate], viewpoint: Viewpoint) -> Found:
    """The first of these that finds anything decides: the exact meaning (key, id, number, keyword), the
    beginning of an id or key, the exact label, the beginning of a label. Two finds are Ambiguous.

    Numbers and keywords come before labels on purpose. Labels are written by models; a child called
    "last resort" or "main" must not catch what was meant for `last` or `main`.
    """
    text = target_text(target)
    for test in (_exactly(target, viewpoint), _id_starting(text), _label_equal(text), _label_starting(text)):
        found = tuple(candidate for candidate in candidates if test(candidate))
        if len(found) == 1:
            return found[0]
        if found:
            return Ambiguous(text, found[:CANDIDATES_MAX], len(found))
    return Unknown(text, tuple(candidates[:CANDIDATES_MAX]))


@dataclass(frozen=True, slots=True)
class WaitingItem:
    """One item of the inbox: its id, and the session that asks."""

    id: str
    asker: Candidate


def items_meant(text: str, items: Sequence[WaitingItem], viewpoint: Viewpoint) -> list[WaitingItem]:
    """Return the items that a text names: by the id of a question or a beginning of it, else by their task or session.

    Only sessions that ask are looked at: a finished task with the same label makes nothing ambiguous."""
    text = text.strip()
    if named := [item for item in items if _is_question(text) and item.id == text]:
        return named
    if named := [item for item in items if _is_question(text) and item.id.startswith(text)]:
        return named
    match resolve(parse_target(text), list(dict.fromkeys(item.asker for item in items)), viewpoint):
        case Candidate() as asker:
            return [item for item in items if item.asker == asker]
        case Ambiguous(_, askers):
            return [item for item in items if item.asker in askers]
        case Unknown():
            return []


def _is_question(text: str) -> bool:
    return len(text) > 2 and text.startswith("q_")


def target_text(target: Target) -> str:
    match target:
        case FullKey(key):
            return str(key)
        case TaskRef(number):
            return task_id(number)
        case RunRef(number):
            return run_id(number)
        case Numbered(_, text) | TargetText(text):
            return text
        case Keyword():
            return target.value
        case _:
            assert_never(target)


def can_be_a_name(text: str) -> bool:
    return bool(text) and not _NOBODYS.search(text)


def _exactly(target: Target, viewpoint: Viewpoint) -> _Test:
    match target:
        case FullKey(key):
            return _key_is(str(key))
        case TaskRef(number):
            return _task_is(number)
        case RunRef(number):
            return lambda candidate: candidate.run_id == number
        case Numbered(number, _):
            return _task_is(viewpoint.numbering.get(number))
        case Keyword.LAST:
            return _task_is(viewpoint.last_task_id)
        case Keyword.MAIN:
            return _key_is(viewpoint.main_key)
        case Keyword.CURRENT:
            return _key_is(viewpoint.current_key)
        case TargetText(_):
            return _nothing
        case _:
            assert_never(target)


def _nothing(_: Candidate) -> bool:
    return False


def _task_is(number: int | None) -> _Test:
    return lambda candidate: number is not None and candidate.task_id == number


def _key_is(key: str | None) -> _Test:
    return lambda candidate: candidate.session_key == key


def _id_starting(text: str) -> _Test:
    # At least one digit, or the whole first word of a key: `t` or `a` alone is no way to point at anything.
    if text.startswith("agent:"):
        return lambda candidate: candidate.session_key.startswith(text)
    if len(text) > 2 and text.startswith("t_"):
        return lambda candidate: candidate.task_id is not None and task_id(candidate.task_id).startswith(text)
    if len(text) > 2 and text.startswith("r_"):
        return lambda candidate: candidate.run_id is not None and run_id(candidate.run_id).startswith(text)
    return _nothing


def _label_equal(text: str) -> _Test:
    return lambda candidate: text != "" and candidate.label == text


def _label_starting(text: str) -> _Test:
    return lambda candidate: text != "" and candidate.label is not None and candidate.label.startswith(text)
